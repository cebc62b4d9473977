"""Many runs of `fit` in one program, one lane per run."""

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key as PRNGKeys, PRNGKeyArray, PyTree, Shaped

from .. import _checks
from .._types import AnyArray, Key
from ..inference._base import fits, in_form, with_traced
from ..learners import AbstractLearner, StepInfo
from ..messages import Form
from ..models import AbstractModel
from ._data import Arrays, Feed, in_memory
from ._history import Fitted, means_of, Record, Stopped
from ._loop import all_rows, check_arguments, default_metric, opened, own_projection
from ._program import Program
from ._progress import Bar
from ._recorder import FULL, is_full, states_in, trajectory_in
from ._run import ROOM, SECONDS
from ._simple import Comparison
from ._state import column, compiled, first, step, Training, TrainState, walk


def fit_many(
    model: PyTree,
    learner: AbstractLearner,
    data: PyTree,
    *,
    optimizer: optax.GradientTransformation | Sequence[optax.GradientTransformation],
    key: Sequence[Key],
    epochs: int = 10,
    batch_size: int | None = None,
    validation: PyTree = None,
    metric: Callable[[PyTree, PyTree, Int[Array, ""]], Array] | None = None,
    validate_every: int | None = None,
    patience: int | None = None,
    project: Callable[[PyTree], PyTree] | None = None,
    build: Callable[[PyTree], AbstractModel] | None = None,
    augment: Callable[..., PyTree] | None = None,
    average: float | None = None,
    progress: bool = True,
) -> list[Fitted]:
    """Trains many models at once, one for each key. Use it to search over seeds and learning rates.
    Up to rounding, each result equals that of [`ebmlearn.fit`][] with the same key, model and
    optimizer. On a GPU, many small models take little longer than one.

    !!! example

        ```python
        grid = [(rate, seed) for rate in (1e-3, 1e-2, 1e-1) for seed in range(3)]
        found = ebmlearn.fit_many(
            [ebmlearn.RBM.init(visible=784, hidden=100, key=seed) for _, seed in grid],
            ebmlearn.SAP(num_chains=100),
            images,
            optimizer=[optax.adam(rate) for rate, _ in grid],
            key=[seed for _, seed in grid],
            epochs=20,
            batch_size=100,
            validation=valid,
            metric=lambda model, valid, epoch: model.free_energy(valid).mean(),
        )
        best = min(found, key=lambda x: x.history.validations["metric"].min(initial=jnp.inf))
        ```

    **Arguments:**

    - `model`: one initial model for all runs, or a list with one for each key. All must have the
      same shapes.
    - `optimizer`: one for all runs, or a list with one for each key. They may differ only in
      numbers, such as learning rates and the numbers of schedules.
    - `key`: a list of seeds or keys, one for each run.
    - `data`, `batch_size`: as for `fit`, the same for all runs. `data` must be arrays.
    - `metric`: as for `fit`, but it is compiled and mapped over all runs, so it must be traceable:
      it takes JAX arrays and returns one, as `ebmlearn.error_rate(...)` does.
    - `patience`: stop a run after this many validations without a better metric. The other runs
      continue.
    - `learner`, `epochs`, `validation`, `validate_every`, `project`, `build`, `augment`, `average`,
      `progress`: as for `fit`, the same for all runs.

    **Returns:**

    A list of [`ebmlearn.Fitted`][]. A run whose gradient is not finite stops at its last good step
    with `stopped="diverged"`; the other runs continue. Ctrl-C stops all runs.
    """
    if not isinstance(key, Sequence) or isinstance(key, str) or not len(key):
        got = _checks.describe(key)
        raise TypeError(f"`key` must be a list with one key for each run, got {got}.")
    keys = [_checks.as_key(k) for k in key]
    # Free parameters may be a tuple, and optimizers of Optax are.
    models = _for_each("model", model, len(keys), isinstance(model, list))
    several = isinstance(optimizer, Sequence) and not hasattr(optimizer, "update")
    optimizers = _for_each("optimizer", optimizer, len(keys), several)
    for one in optimizers:
        check_arguments(
            learner, one, epochs, 0, patience, metric, validation, validate_every, average
        )
    data, validation = _checks.as_data("data", data), _checks.as_data("validation", validation)
    if not in_memory(data):
        got = _checks.describe(data)
        raise TypeError(f"`data` must be an array or a tuple of arrays in `fit_many`, got {got}.")
    built, rows = opened(models[0], data, batch_size, build, augment, keys[0])
    assert isinstance(rows, Arrays)
    metric = default_metric(metric, learner, built, validation)
    project = own_projection if project is None and build is None else project
    decay = None if average is None else np.asarray(average, np.float32)
    learner = with_traced(learner)
    static = eqx.partition(models[0], eqx.is_inexact_array)[1]
    training = Training(learner, static, build, project, augment, decay, None)
    validation = jax.tree.map(jnp.asarray, validation)
    compared = Comparison(metric, built, lambda: all_rows(rows, augment, keys[0]), validation)
    lanes = _Lanes(training, models, optimizers, keys, rows, compared)
    shown = progress and jax.process_index() == 0
    bar = Bar(shown, type(learner).__name__, epochs * rows.steps, 0)
    try:
        lanes.go(epochs, metric, validation, validate_every, patience, bar)
    except KeyboardInterrupt:
        lanes.stop(lanes.active, "interrupted")
    finally:
        bar.close()
    return lanes.fitted(metric is not None)


def _for_each(name: str, x: Any, number: int, several: bool) -> Sequence[Any]:
    """One of them for each run."""
    if not several:
        return [x] * number
    if len(x) != number:
        raise ValueError(
            f"`{name}` must be one for all runs, or a list with one for each of the {number} keys,"
            f" got {len(x)}."
        )
    return x


class _Lane:
    """One run on the host."""

    def __init__(self):
        self.record = Record(None)
        self.best, self.best_epoch, self.best_step, self.waited = math.inf, -1, 0, 0
        self.stopped: Stopped = "epochs"
        self.step = self.epoch = 0


class _Lanes:
    """The runs on the host. All that are active are at the same step."""

    def __init__(
        self,
        training: Training,
        models: Sequence[Any],
        optimizers: Sequence[optax.GradientTransformation],
        keys: Sequence[PRNGKeyArray],
        rows: Arrays,
        comparison: Comparison,
    ):
        self.comparison = comparison
        split = jnp.stack([jax.random.split(key, 3) for key in keys])
        self.feed = rows.feed()
        self.keys = split[:, 0], split[:, 1]
        parts = [eqx.partition(model, eqx.is_inexact_array) for model in models]
        shapes = [jax.eval_shape(lambda x: x, own) for own, _ in parts]
        alike = [(shape, static) for shape, (_, static) in zip(shapes, parts, strict=True)]
        if not eqx.tree_equal((shapes[0], training.static), *alike):
            raise ValueError(
                "`model` must hold models of the same kind and shape, got different ones."
            )
        parameters = jax.tree.map(lambda *x: _stacked(x), *[own for own, _ in parts])
        # Optax mixes dtypes, which the user may have disabled.
        with jax.numpy_dtype_promotion("standard"):
            init, numbers = _together([(o.init, o) for o in optimizers], shapes[0])
            begun = compiled(_mapped, 0)(init, numbers, parameters)
            like = jax.eval_shape(init, shapes[0])
            update, self.numbers = _together(
                [(o.update, o) for o in optimizers], shapes[0], like, shapes[0]
            )
        self.opened = dataclasses.replace(training, update=update)
        self.state, serves = compiled(_begun)(training, parameters, begun, split[:, 2])
        self.best = self.current
        self.lanes = [_Lane() for _ in keys]
        self.active = np.ones(len(keys), bool)
        # All lanes send messages in one form, which must suit each of them.
        form: Form | None = None
        if serves is not None:
            form = "odds" if bool(serves.all()) else "log-odds"
        self.training = self.opened.in_form(form)
        self.at_once = 1

    @property
    def current(self) -> PyTree:
        """The parameters that count."""
        averaged = self.opened.average is not None
        return self.state.average if averaged else self.state.parameters

    def stop(self, which: np.ndarray, why: Stopped) -> None:
        for k in np.flatnonzero(which & self.active):
            self.lanes[k].stopped = why
        self.active = self.active & ~which

    def go(
        self,
        epochs: int,
        metric: Callable | None,
        validation: Any,
        every: int | None,
        patience: int | None,
        bar: Bar,
    ) -> None:
        steps, at = self.feed.steps, 0
        while at < epochs * steps and self.active.any():
            most = epochs * steps - at
            if metric is not None:
                most = min(most, (every or steps) - at % (every or steps))
            number = self._steps(at, min(most, self.at_once, ROOM), bar)
            at += number
            if number and metric is not None and at % (every or steps) == 0 and self.active.any():
                self._validate(metric, validation, (at - 1) // steps, patience, bar)
            self._end_epoch(at)

    def _steps(self, at: int, asked: int, bar: Bar) -> int:
        """Some steps of all active lanes in one call; returns how many."""
        began, steps = time.perf_counter(), self.feed.steps
        before = np.asarray(self.state.step)
        state, infos, number = compiled(advance_many)(
            self.training,
            self.opened,
            self.numbers,
            self.state,
            self.feed,
            self.keys,
            self.active,
            np.asarray(at // steps, np.int32),
            np.asarray(at % steps, np.int32),
            np.asarray(asked, np.int32),
            ROOM,
        )
        infos, number = np.asarray(infos), int(number)
        taken = time.perf_counter() - began
        made = np.asarray(state.step) - before
        own = list(zip(infos, made.tolist(), strict=True))
        for lane, (x, n) in zip(self.lanes, own, strict=True):
            self._record(lane, x[:, :n], at, taken)
        self.state = state
        self.stop(np.asarray(state.fault)[:, 0] >= 0, "diverged")
        if number < asked and self.active.any():
            # The weights of a lane have outgrown the form of the messages.
            self.training = self.opened.in_form("log-odds")
        self.at_once = max(1, min(2 * number, int(SECONDS * number / max(taken, 1e-9))))
        if number:
            means = means_of(np.concatenate([x[:, :n] for x, n in own], axis=1))
            info = dict(zip(StepInfo._fields, means.tolist(), strict=True))
            bar.update(number, at // steps, info)
        return number

    def _record(self, lane: _Lane, infos: np.ndarray, at: int, seconds: float) -> None:
        number, steps = infos.shape[1], self.feed.steps
        if not number:
            return
        *ended, last = np.split(infos, range(steps - at % steps, number, steps), axis=1)
        for part in ended:
            lane.record.add_steps(part, seconds * part.shape[1] / number)
            lane.record.add_epoch()
            lane.epoch += 1
        lane.record.add_steps(last, seconds * last.shape[1] / number)
        lane.step += number

    def _end_epoch(self, at: int) -> None:
        for lane in self.lanes:
            if lane.step == at and at == (lane.epoch + 1) * self.feed.steps:
                lane.record.add_epoch()
                lane.epoch += 1

    def _validate(
        self, metric: Callable, validation: Any, epoch: int, patience: int | None, bar: Bar
    ) -> None:
        """Validates all active lanes, and keeps the best parameters of each."""
        current = self.current
        try:
            found = _judged(self.opened, metric, current, validation, np.asarray(epoch, np.int32))
        except _NOT_TRACEABLE as error:
            raise TypeError(
                "`metric` must be traceable in `fit_many`: use only `jax.numpy` and return a JAX"
                " array, without `float`, `if` or NumPy; or call `fit` for each run."
            ) from error
        values = np.asarray(found, np.float64)
        if values.ndim != 1:
            got = _checks.describe(found[0])
            raise TypeError(f"`metric` must return a number, got {got}.")
        if np.isnan(values[self.active]).any():
            text = f"`metric` must return a number, got NaN in epoch {epoch} in some runs."
            warnings.warn(text, stacklevel=4)
        better = np.zeros(len(values), bool)
        for k in np.flatnonzero(self.active):
            lane, value = self.lanes[k], float(values[k])
            if lane.record.validations:
                self.comparison.see(value, lane.best, 4)
            lane.record.add_validation(lane.step, value)
            lane.waited += 1
            if value < lane.best or lane.best_epoch < 0:
                better[k] = True
                lane.best = math.inf if math.isnan(value) else value
                lane.best_epoch, lane.best_step, lane.waited = epoch, lane.step, 0
        self.best = _chosen(better, current, self.best)
        if patience is not None:
            self.stop(np.array([lane.waited >= patience for lane in self.lanes]), "patience")
        bar.metric = min(lane.best for lane in self.lanes)

    def fitted(self, measured: bool) -> list[Fitted]:
        found = jax.tree.map(np.asarray, (self.best if measured else self.current, self.current))
        # Moved all together, since each array that is moved by itself takes time.
        each = [jax.tree.map(lambda x: x[k], found) for k in range(len(self.lanes))]  # noqa: B023
        out, full = [], False
        for k, (lane, (chosen, end)) in enumerate(
            zip(self.lanes, jax.device_put(each), strict=True)
        ):
            chains = states_in(self.state.learner, k)
            full = full or is_full(chains)
            validations = len(lane.record.validations)
            one = Fitted(
                model=self.opened.model(chosen),
                last=self.opened.model(end),
                parameters=self.opened.free(chosen),
                history=lane.record.history(lane.step, lane.epoch, validations).told(),
                best_epoch=lane.best_epoch if measured else lane.epoch - 1,
                best_step=lane.best_step if measured else lane.step,
                stopped=lane.stopped,
                trajectory=trajectory_in(chains, self.opened.model(end)),
            )
            out.append(one)
        if full:
            warnings.warn(f"{FULL} This is so in some runs.", stacklevel=3)
        return out


def _together(
    functions: Sequence[tuple[Callable, optax.GradientTransformation]], *arguments: PyTree
) -> tuple[Program, PyTree]:
    """The program of functions that differ only in their numbers, and the numbers of each."""
    # An optimiser that serves several lanes is traced once.
    owned = {id(owner): function for function, owner in functions}
    known = {name: Program(function, *arguments) for name, function in owned.items()}
    programs = [known[id(owner)] for _, owner in functions]
    # Their structures hold all operations, but no numbers.
    if len({jax.tree.structure(one) for one in programs}) > 1:
        raise ValueError(
            "`optimizer` must hold optimizers that differ only in their numbers, got others."
        )
    return programs[0], jax.tree.map(lambda *x: np.stack(x), *[x.numbers for x in programs])


def _mapped(program: Program, numbers: PyTree, arguments: PyTree) -> PyTree:
    """A program with the numbers and the argument of each lane."""

    def one(numbers: PyTree, argument: PyTree) -> PyTree:
        return eqx.tree_at(lambda p: p.numbers, program, numbers)(argument)

    return jax.vmap(one)(numbers, arguments)


def _begun(
    training: Training,
    parameters: PyTree,
    optimizer: PyTree,
    keys: PRNGKeys[Array, " lanes"],
) -> tuple[TrainState, Bool[Array, " lanes"] | None]:
    """The state of each lane, and whether the fast form of messages suits it."""

    def one(own: PyTree, optimizer: PyTree, key: PRNGKeyArray) -> tuple[TrainState, Any]:
        serves = training.fits(training.model(own), 0)
        return first(training, own, optimizer, key), serves

    return jax.vmap(one)(parameters, optimizer, keys)


def _stacked(leaves: Sequence[Array]) -> Array:
    return jnp.asarray(np.stack([np.asarray(x) for x in leaves]))


_NOT_TRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


@eqx.filter_jit
def _judged(
    training: Training, metric: Callable, parameters: PyTree, data: Any, epoch: Int[AnyArray, ""]
) -> Shaped[Array, "lanes *shape"]:
    def judged(metric: Callable) -> Array:
        def one(parameters: PyTree) -> Array:
            return jnp.asarray(metric(training.model(parameters), data, epoch))

        return jax.vmap(one)(parameters)

    def serves(parameters: PyTree) -> Bool[Array, ""] | None:
        return fits(metric, training.model(parameters), jnp.asarray(epoch))

    # One form for all of them: a choice for each lane would be made by running both.
    suited = jax.vmap(serves)(parameters)
    if suited is None:
        return judged(metric)
    forms = [lambda: judged(in_form(metric, "odds")), lambda: judged(in_form(metric, "log-odds"))]
    return jax.lax.cond(suited.all(), *forms)


@eqx.filter_jit
def _chosen(which: Bool[AnyArray, " lanes"], new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jax.vmap(jnp.where)(which, a, b), new, old)


def advance_many(
    training: Training,
    opened: Training,
    numbers: PyTree,
    state: TrainState,
    feed: Feed,
    keys: tuple[PRNGKeys[Array, " lanes"], PRNGKeys[Array, " lanes"]],
    active: Bool[AnyArray, " lanes"],
    epoch: Int[AnyArray, ""],
    done: Int[AnyArray, ""],
    number: Int[AnyArray, ""],
    room: int,
) -> tuple[TrainState, Float[Array, "lanes infos room"], Int[Array, ""]]:
    """`number` steps at once of all active lanes, as `advance` does them. Lanes that are not active
    or have met a gradient that is not finite stay as they are. It stops before a step for which the
    weights of a lane have outgrown the form of messages. Returns how many steps it made as well.
    """

    def on(state: TrainState) -> Bool[Array, " lanes"]:
        return jnp.asarray(active) & (state.fault[:, 0] < 0)

    def order(epoch: Int[Array, ""]) -> Int[Array, "lanes rows"]:
        return jax.vmap(lambda key: feed.order(key, epoch))(keys[0])

    def more(state: TrainState, epoch: Int[Array, ""]) -> Bool[Array, ""]:
        def serves(parameters: PyTree) -> Any:
            return opened.fits(training.model(parameters), epoch)

        on_now = on(state)
        if training.form != "odds":
            return on_now.any()
        return on_now.any() & (jax.vmap(serves)(state.parameters) | ~on_now).all()

    def one(state: TrainState, rows: Any, k: Any, epoch: Any) -> tuple[TrainState, Array]:
        def lane(numbers: Any, old: TrainState, order: Any, key: Any, on: Any) -> tuple:
            own = eqx.tree_at(lambda t: t.update.numbers, training, numbers)
            new, info = step(own, old, feed.batch(order, k), key, epoch)
            good = on & (new.fault[0] < 0)
            kept = jax.tree.map(lambda a, b: jnp.where(good, a, b), new, old)
            fault = jnp.where(on, new.fault, old.fault)
            return eqx.tree_at(lambda s: s.fault, kept, fault), column(info)

        return jax.vmap(lane)(numbers, state, rows, keys[1], on(state))

    infos = jnp.zeros((len(active), len(StepInfo._fields), room), jnp.float32)
    made, state, infos = walk(feed, (epoch, done), number, state, infos, order, more, one)
    return state, infos, made
