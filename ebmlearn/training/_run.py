"""A run on the host: one lane of `fit`, or the many lanes of `fit_many`."""

import dataclasses
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, PyTree

from .. import _checks
from .._types import AnyArray
from .._watch import Watch
from ._checkpoint import Keeper
from ._growth import Growth
from ._history import EpochReport, Fitted, History, Lane, means_of, Record, Stopped
from ._state import advance, compiled, Feed, is_full, Keys, Training, TrainState, trajectory_of
from ._validation import Judge


# The largest number of steps in one call of the device, and how long a call should take.
ROOM = 1024
SECONDS = 0.5


class _Now(NamedTuple):
    """The state of a run: on the device, the best parameters, and the facts on the host."""

    state: TrainState
    best: PyTree
    lanes: tuple[Lane, ...]


class Batches:
    """Data as an iterable of batches, which is iterated once in each epoch."""

    def __init__(self, data: Iterable, batch_size: int | None):
        wanted = "an array, a tuple of arrays, or an iterable of batches"
        _checks.instance("data", data, Iterable, wanted)
        if isinstance(data, Iterator):
            raise ValueError(
                "`data` must be an iterable that can be iterated again in each epoch, such as a"
                f" list or a loader, got {_checks.describe(data)}."
            )
        if batch_size is not None:
            raise ValueError(
                f"`batch_size` must be None if `data` yields batches, got {batch_size}."
            )
        self.data, self.batch_size = data, None
        self.steps: int | None = len(data) if hasattr(data, "__len__") else None  # pyright: ignore

    def first(self) -> PyTree:
        """A batch to check the model against."""
        for batch in self.data:
            return batch
        raise ValueError("`data` must yield at least one batch, got 0.")


class Run:
    """The state of a run on the host. All lanes that are active are at the same step."""

    def __init__(
        self,
        training: Training,
        state: TrainState,
        rows: Feed | Batches,
        keys: tuple[Keys, Keys],
        validation: Judge,
        growth: Growth,
    ):
        self.training, self.rows, self.keys = training, rows, keys
        self.validation, self.growth = validation, growth
        self.callbacks: Sequence[Callable[[EpochReport], Any]] = ()
        lanes = tuple(Lane(Record(History({}, {}, {}))) for _ in range(state.step.size))
        # Replaced as a whole, so that Ctrl-C never finds a half-updated state.
        self.now = _Now(state, training.counted(state), lanes)
        self.metric = math.nan  # the last one, for the progress bar
        self.stopped: dict[int, Stopped] = {}  # why lanes are no longer active
        self.keeper: Keeper | None = None
        self.saved: Lane | None = None
        self.at_once = 1
        self.which = " in some runs" if training.many else ""

    @property
    def front(self) -> Lane:
        """The lane that has made most steps; those that are active have made as many."""
        return max(self.now.lanes, key=lambda lane: lane.step)

    @property
    def active(self) -> Bool[AnyArray, "*lanes"]:
        on = [k not in self.stopped for k in range(len(self.now.lanes))]
        return np.array(on).reshape(self.now.state.step.shape)

    def stop(self, why: Stopped, least: int = 0) -> None:
        """Stops all lanes that have waited for so many validations."""
        for k, lane in enumerate(self.now.lanes):
            if lane.waited >= least:
                self.stopped.setdefault(k, why)

    def keep_in(self, keeper: Keeper) -> None:
        self.keeper, resume = keeper, keeper.settings.resume
        if not resume and jax.process_index() == 0:
            keeper.clear()
        state, best, _ = self.now
        found = keeper.newest({"state": state, "best": best}) if resume else None
        if found is not None:
            tree, facts = found
            state, best, history = tree["state"], tree["best"], History(**tree["history"])
            # Earlier versions called it the form of messages.
            old = {"odds": True, "log-odds": False}.get(facts.pop("form", None))
            moderate = facts.pop("moderate", old)
            self.training = dataclasses.replace(self.training, moderate=moderate)
            # Files of older versions do not have all facts.
            validated = int(max(history.validations["step"], default=0))
            facts = {"step": int(state.step), "validated": validated, **facts}
            self.saved = Lane(Record(history, facts.get("done", 0)), **facts)
            self.now = _Now(state, best, (self.saved,))

    def to_end(
        self, epochs: int, patience: int | None, progress: bool, seconds: float | int | None = None
    ) -> list[Fitted]:
        """Runs to the end, until Ctrl-C, or until the time is over, and returns the result of each
        lane.
        """
        shown = progress and jax.process_index() == 0
        total = None if self.rows.steps is None else epochs * self.rows.steps
        name, done = type(self.training.learner).__name__, self.front.step
        try:
            with Watch(name, total, seconds, progress=shown, done=done, always=True) as watch:
                self._go(epochs, patience, watch)
        except KeyboardInterrupt:
            self.stop("interrupted")
        self._save()
        return self._fitted()

    def _go(self, epochs: int, patience: int | None, watch: Watch) -> None:
        # Ctrl-C may have stopped the run in a validation.
        self._validate(False)
        began = self.front.step
        while self.front.epoch < epochs:
            for feed, most in self._feeds(epochs):
                if patience is not None:
                    self.stop("patience", patience)
                if watch.over and self.front.step > began:
                    self._validate(True, over=True)
                    self.stop("seconds")
                if not self.active.any():
                    return
                self._steps(feed, most, watch)
                self._validate(False)
                if not isinstance(self.rows, Feed) or self.front.done < self.rows.steps:
                    self._save_if_due(False)
            self._validate(True)
            report = self._finish_epoch()
            # Call all of them, even if the first returns True.
            if any([_is_true(callback(report)) for callback in self.callbacks]):
                self.stop("callback")
                return

    def _feeds(self, epochs: int) -> Iterator[tuple[Feed, int]]:
        """The data of the next steps and their largest number, until the epoch ends."""
        if isinstance(self.rows, Feed):
            while self.front.done < self.rows.steps:
                yield self.rows, self._most(epochs, self.rows.steps)
            return
        for batch in itertools.islice(self.rows.data, self.front.done, None):
            if self.training.augment is None:
                model = self.training.model(self.now.state.parameters)
                model.check(batch, "data")
                # This says what is missing.
                batch = model.as_batch(batch)
            feed = Feed(jax.tree.map(jnp.asarray, batch), 1, None)
            before = self.front.done
            while self.front.done == before:
                yield feed, 1
        if not self.front.done:
            raise ValueError(
                "`data` must yield at least one batch in each epoch, got 0 in epoch"
                f" {self.front.epoch}."
            )

    def _most(self, epochs: int, steps: int) -> int:
        """How many steps there are until something must happen on the host."""
        front = self.front
        periods = [self.validation.every] if self.validation.wanted else []
        periods += [] if self.keeper is None else [self.keeper.settings.every]
        at_end = self.callbacks or None in periods
        most = (1 if at_end else epochs - front.epoch) * steps - front.done
        rest = [every - front.step % every for every in periods if every is not None]
        return min(most, self.at_once, ROOM, *rest)

    def _steps(self, feed: Feed, asked: int, watch: Watch) -> None:
        """Makes some steps in one call of the device, and reads the results."""
        front = self.front
        began = time.perf_counter()
        state, infos, largest = compiled(advance)(
            self.training,
            self.now.state,
            feed,
            self.keys,
            self.active,
            np.asarray(front.epoch, np.int32),
            np.asarray(front.done % feed.steps, np.int32),
            np.asarray(asked, np.int32),
            ROOM,
        )
        lanes = self.now.lanes
        infos = np.asarray(infos).reshape(len(lanes), -1, ROOM)
        ends = np.asarray(state.step).reshape(-1).tolist()
        taken = time.perf_counter() - began
        self._look_for_faults(np.asarray(state.fault).reshape(-1, 2), feed)
        own = [x[:, : end - lane.step] for x, end, lane in zip(infos, ends, lanes, strict=True)]
        lanes = tuple(lane.moved(x, feed, taken) for lane, x in zip(lanes, own, strict=True))
        self.now = self.now._replace(state=state, lanes=lanes)
        number = self.front.step - front.step
        if number < asked and self.active.any():
            # Parameters are no longer moderate: compiled for any from here on.
            self.training = dataclasses.replace(self.training, moderate=False)
        # Twice as many next time, up to half a second; the results do not depend on it.
        self.at_once = max(1, min(2 * number, int(SECONDS * number / max(taken, 1e-9))))
        if number:
            self.growth.look(own, np.asarray(largest).reshape(-1), self.front.step)
            watch.count(number, **self._figures(np.concatenate(own, axis=1)))

    def _figures(self, infos: np.ndarray) -> dict[str, Any]:
        """Figures for the progress bar: means of the last steps, without NaN."""
        means = means_of(infos)
        name = "loss" if math.isfinite(means["loss"]) else "gap"
        told = {name: f"{means[name]:.4g}", "metric": f"{self.metric:.4g}"}
        told["converged"] = f"{means['converged']:.0%}"
        return {"epoch": self.front.epoch + 1, **{k: x for k, x in told.items() if "nan" not in x}}

    def _validate(self, end: bool, over: bool = False) -> None:
        """If it is time, or the time is over, validates all active lanes, and keeps the best
        parameters of each.
        """
        (state, best, old), front = self.now, self.front
        due = over or front.is_due(self.validation.every, end)
        due = due and front.validated != front.step
        if not self.validation.wanted or not due or not self.active.any():
            return
        current = self.training.counted(state)
        values = self.validation.values(self.training, current, front.epoch)
        measured, active = self.validation.metric is not None, self.active.reshape(-1)
        if measured and np.isnan(values[active]).any():
            text = f"`metric` must return a number, got NaN in epoch {front.epoch}{self.which}."
            warnings.warn(text, stacklevel=6)
        told = math.nan, math.nan, math.nan
        if self.validation.chains is not None:
            model = self.training.model(current)
            told = self.validation.chains(model, trajectory_of(state.chains, model), front.step)
        lanes, better = list(old), np.zeros(len(old), bool)
        for k in np.flatnonzero(active):
            lane, value = old[k], float(values[k])
            if lane.validations:
                self.validation.compare(value, lane.best)
            lanes[k] = lane.judged(value, told)
            better[k] = lanes[k].waited == 0
        if better.any():
            best = current if better.all() else _chosen(better, current, best)
        self.now = _Now(state, best, tuple(lanes))
        if measured:
            self.metric = float(np.fmin.reduce(values[active]))

    def _finish_epoch(self) -> EpochReport:
        """Ends an epoch of all lanes that have made its steps, and returns its report."""
        front, lanes, means, value = self.front, list(self.now.lanes), {}, math.nan
        for k, lane in enumerate(lanes):
            if lane.step == front.step:
                means, value = lane.record.add_epoch()
                lanes[k] = lane._replace(epoch=lane.epoch + 1, done=0)
        current = self.training.counted(self.now.state)
        model = self.training.model(current) if self.callbacks else None
        self.now = self.now._replace(lanes=tuple(lanes))
        self._save_if_due(True)
        return EpochReport(front.epoch, front.step, model, value, means)

    def _save_if_due(self, end: bool) -> None:
        if self.keeper is not None and self.front.is_due(self.keeper.settings.every, end):
            self._save()

    def _save(self) -> None:
        """Writes a checkpoint, if there is anything new to write."""
        if self.keeper is None or jax.process_index() != 0 or self.saved == self.front:
            return
        state, best, (lane,) = self._judged()
        facts = {**lane.facts, "moderate": self.training.moderate}
        tree = {"state": state, "best": best, "history": lane.history._asdict()}
        self.keeper.write(tree, self.training.free(best), facts)
        self.saved = self.front

    def _fitted(self) -> list[Fitted]:
        state, best, lanes = self._judged()
        last = self.training.counted(state)
        found = self.training.apart((best, last, state.chains), len(lanes))
        if any(is_full(chains) for *_, chains in found):
            text = "The trajectory is full, and the last two models rarely swap"
            warnings.warn(f"{text}{self.which}: give it more room.", stacklevel=5)
        return [
            Fitted(
                model=self.training.model(best),
                last=self.training.model(last),
                parameters=self.training.free(best),
                history=lane.history.told(),
                best_epoch=lane.best_epoch,
                best_step=lane.best_step,
                stopped=self.stopped.get(k, "epochs"),
                trajectory=trajectory_of(chains, self.training.model(last)),
            )
            for k, (lane, (best, last, chains)) in enumerate(zip(lanes, found, strict=True))
        ]

    def _judged(self) -> _Now:
        """Where the run is; without a metric, the last parameters are the best."""
        if self.validation.metric is not None:
            return self.now
        state, _, lanes = self.now
        lanes = [x._replace(best_epoch=x.epoch - 1, best_step=x.step) for x in lanes]
        return _Now(state, self.training.counted(state), tuple(lanes))

    def interruption(self) -> str:
        """Where the run was interrupted, and how to resume it."""
        where = f"Interrupted in epoch {self.front.epoch} after step {self.front.step}."
        if self.keeper is None:
            return f"{where} The run is not saved: pass `checkpoint=folder` to `fit`."
        folder = self.keeper.settings.folder
        return (
            f"{where} The run is saved in {folder!r}: call `fit` again with the same arguments to"
            " resume."
        )

    def _look_for_faults(self, faults: np.ndarray, feed: Feed) -> None:
        """A gradient that is not finite stops one lane of many, and is an error of a single one."""
        for k in np.flatnonzero(faults[:, 0] >= 0):
            if self.training.many:
                self.stopped.setdefault(int(k), "diverged")
                continue
            step, leaf = faults[k].tolist()
            paths, _ = jax.tree_util.tree_flatten_with_path(self.now.state.parameters)
            name = jax.tree_util.keystr(paths[leaf][0]).lstrip(".")
            kept = ""
            if self.keeper is not None and self.keeper.paths():
                kept = f" The last good checkpoint is {list(self.keeper.paths().values())[-1]}."
            done = self.front.done % feed.steps + step - self.front.step
            raise FloatingPointError(
                f"The gradient of `{name}`, or its value after the step, is NaN or infinite in"
                f" epoch {self.front.epoch + done // feed.steps}, step {step}, counted from 0: try"
                f" a smaller learning rate.{kept}"
            )


@eqx.filter_jit
def _chosen(which: Bool[AnyArray, " lanes"], new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jax.vmap(jnp.where)(which, a, b), new, old)


def _is_true(x: Any) -> bool:
    """Whether a callback returned True; other values are ignored."""
    boolean = getattr(x, "dtype", None) == np.bool_ and np.ndim(x) == 0
    return x is True or (boolean and bool(x))
