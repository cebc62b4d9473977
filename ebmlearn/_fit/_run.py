"""A run of `fit` on the host."""

import math
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from .. import _checks
from ..learners import StepInfo
from ..messages import Form
from ._checkpoint import Keeper
from ._data import Arrays, Batches
from ._history import EpochReport, Fitted, Record
from ._progress import Bar
from ._state import advance, Training, TrainState


# The most steps that are done between two looks at the host, and how long they should take.
_ROOM = 1024
_SECONDS = 0.5


class _Now(NamedTuple):
    """Where a run is: on the device, the best parameters, and the facts on the host."""

    state: TrainState
    best: PyTree
    facts: dict[str, Any]


class Run:
    """The state of a run on the host."""

    def __init__(
        self,
        training: Training,
        state: TrainState,
        rows: Arrays | Batches,
        order_key: PRNGKeyArray,
        step_key: PRNGKeyArray,
    ):
        self.opened, self.rows = training, rows
        self.order_key, self.step_key = order_key, step_key
        self.training = training.in_form(_first_form(training, state))
        facts = {"epoch": 0, "done": 0, "best": math.inf, "best_epoch": -1, "best_step": 0}
        facts["form"] = self.training.form
        # Replaced as a whole, so that Ctrl-C never finds one of them ahead of the others.
        self.now = _Now(state, self._counted(state), facts)
        self.record = Record(None)
        self.keeper: Keeper | None = None
        self.saved: tuple[int, int] | None = None
        self.at_once = 1
        self.seconds = 0.0

    @property
    def state(self) -> TrainState:
        return self.now.state

    @property
    def facts(self) -> dict[str, Any]:
        return self.now.facts

    @property
    def epoch(self) -> int:
        return self.facts["epoch"]

    @property
    def place(self) -> tuple[int, int]:
        """How many steps and epochs are done."""
        return int(self.state.step), self.epoch

    @property
    def waited(self) -> int:
        """Epochs since the best one."""
        return self.epoch - 1 - self.facts["best_epoch"] if self.epoch else 0

    def keep_in(self, keeper: Keeper, resume: bool) -> None:
        self.keeper = keeper
        if not resume and jax.process_index() == 0:
            keeper.clear()
        found = keeper.newest(self.state, self.now.best) if resume else None
        if found is not None:
            state, best, history, facts = found
            self.now = _Now(state, best, facts)
            self.training = self.opened.in_form(facts["form"])
            self.record = Record(history)
            self.saved = self.place

    def steps(self, bar: Bar) -> None:
        """All steps of the current epoch that are still to do."""
        began = time.perf_counter()
        if isinstance(self.rows, Arrays):
            assert self.rows.steps is not None
            order = self.rows.order(jax.random.fold_in(self.order_key, self.epoch))
            while self.facts["done"] < self.rows.steps:
                number = min(self.at_once, self.rows.steps - self.facts["done"], _ROOM)
                self._steps(self.rows.data, order, self.rows.batch_size, number, bar)
        else:
            for batch in self.rows.epoch(self.facts["done"]):
                if self.training.augment is None:
                    self.training.model(self.state.parameters).check(batch, "data")
                batch = jax.tree.map(jnp.asarray, batch)
                size = jax.tree.leaves(batch)[0].shape[0]
                before = self.facts["done"]
                while self.facts["done"] == before:
                    self._steps(batch, jnp.arange(size, dtype=jnp.int32), size, 1, bar)
            if not self.facts["done"]:
                raise ValueError(
                    f"`data` must give a batch in each epoch, got none in epoch {self.epoch}."
                )
        self.seconds = time.perf_counter() - began

    def _steps(
        self, data: PyTree, order: Int[Array, " rows"], size: int, number: int, bar: Bar
    ) -> None:
        """Some steps in one call of the device, then a look at what came of them."""
        step = int(self.state.step)
        until = self.keeper.steps_until_due(step) if self.keeper else None
        number = number if until is None else min(number, until)
        first = self.facts["done"] if isinstance(self.rows, Arrays) else 0
        began = time.perf_counter()
        state, infos = advance(
            self.training,
            self.opened,
            self.state,
            data,
            order,
            self.step_key,
            jnp.asarray(self.epoch, jnp.int32),
            jnp.asarray(first, jnp.int32),
            jnp.asarray(number, jnp.int32),
            size,
            _ROOM,
        )
        asked, number = number, int(state.step) - step
        rows = np.asarray(infos)[:, :number]
        infos = dict(zip(StepInfo._fields, rows, strict=True))
        taken = time.perf_counter() - began
        self._check_finite(state)
        form = self.training.form
        if number < asked:
            # The weights have outgrown the form of the messages: the general one from here on.
            form = "log-odds"
            self.training = self.opened.in_form(form)
        # Twice as many next time, up to what takes half a second; the results do not depend on it.
        self.at_once = max(1, min(2 * number, int(_SECONDS * number / max(taken, 1e-9))))
        self.record.add_steps(infos)
        facts = {**self.facts, "done": self.facts["done"] + number, "form": form}
        self.now = self.now._replace(state=state, facts=facts)
        if not number:
            return
        bar.update(number, self.epoch, {name: float(x.mean()) for name, x in infos.items()})
        end = isinstance(self.rows, Arrays) and self.facts["done"] == self.rows.steps
        if self.keeper is not None and not end and self.keeper.due(step + number, False):
            self.save()

    def finish_epoch(self, metric: Callable | None, validation: Any, bar: Bar) -> EpochReport:
        """Validates, and says how the epoch went."""
        step, done = int(self.state.step), self.facts["done"]
        current = self._counted(self.state)
        model = self.training.model(current)
        value = math.nan if metric is None else _number(metric(model, validation, self.epoch))
        facts, best = {**self.facts, "epoch": self.epoch + 1, "done": 0}, self.now.best
        if metric is not None and math.isnan(value):
            text = f"`metric` must give a number, got NaN in epoch {self.epoch}."
            warnings.warn(text, stacklevel=3)
        # The first is better than the start, whatever it is.
        if metric is None or value < self.facts["best"] or self.facts["best_epoch"] < 0:
            known = math.inf if math.isnan(value) else value
            facts.update(best=known, best_epoch=self.epoch, best_step=step)
            best = current
        means = self.record.epoch_means(step - done)
        self.record.add_epoch(**means, metric=value, seconds=self.seconds)
        report = EpochReport(self.epoch, step, model, value, means)
        self.now = self.now._replace(facts=facts, best=best)
        bar.metric = value
        if self.keeper is not None and self.keeper.due(step, True):
            self.save()
        return report

    def save(self) -> None:
        """Writes a checkpoint, if there is anything new to write."""
        if self.keeper is None or jax.process_index() != 0 or self.saved == self.place:
            return
        state, best, facts = self.now
        self.keeper.write(int(state.step), state, best, self.record.history(*self.place), facts)
        self.saved = self.place

    def fitted(self, stopped: Any, measured: bool) -> Fitted:
        last = self._counted(self.state)
        best = self.now.best if measured else last
        return Fitted(
            model=self.training.model(best),
            last=self.training.model(last),
            parameters=self.training.free(best),
            history=self.record.history(*self.place),
            best_epoch=self.facts["best_epoch"],
            stopped=stopped,
        )

    def _counted(self, state: TrainState) -> PyTree:
        """The parameters that count: their running mean, if there is one."""
        averaged = self.training.average is not None
        return state.average if averaged else state.parameters

    def _check_finite(self, state: TrainState) -> None:
        step, leaf = (int(x) for x in np.asarray(state.fault))
        if step < 0:
            return
        paths, _ = jax.tree_util.tree_flatten_with_path(state.parameters)
        name = jax.tree_util.keystr(paths[leaf][0]).lstrip(".")
        kept = ""
        if self.keeper is not None and self.keeper.paths():
            kept = f" The last good checkpoint is {list(self.keeper.paths().values())[-1]}."
        raise FloatingPointError(
            f"The gradient of `{name}`, or the value it would lead to, is NaN or infinite in epoch"
            f" {self.epoch}, step {step}, counted from 0: try a smaller learning rate.{kept}"
        )


def _first_form(training: Training, state: TrainState) -> Form | None:
    """The form of messages that suits the weights at the start, if there is a choice."""
    serves = training.fits(training.model(state.parameters), 0)
    return None if serves is None else ("odds" if bool(serves) else "log-odds")


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        got = _checks.describe(value)
        raise TypeError(f"`metric` must give a number, got {got}.") from error
