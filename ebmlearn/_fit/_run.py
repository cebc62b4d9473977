"""A run of `fit` on the host."""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from .. import _checks
from ..learners import StepInfo
from ..messages import Form
from ._checkpoint import Keeper
from ._data import Arrays, Batches, Feed
from ._history import EpochReport, Fitted, History, Record, Stopped
from ._progress import Bar
from ._recorder import FULL, is_full, trajectory_in
from ._simple import Comparison
from ._state import advance, compiled, Training, TrainState


# The largest number of steps in one call of the device, and how long a call should take.
ROOM = 1024
SECONDS = 0.5
# A run diverges if its loss or gap becomes this many times its first value.
GROWTH = 1e4


class _Now(NamedTuple):
    """The state of a run: on the device, the best parameters, and the facts on the host."""

    state: TrainState
    best: PyTree
    facts: dict[str, Any]


class Validation(NamedTuple):
    """The metric of a run, its data, and when to call it."""

    metric: Callable[[Any, Any, int], Any] | None
    data: Any
    every: int | None  # steps; None is the end of an epoch
    comparison: Comparison
    chains: Callable[[Any, Any, int], tuple[float, float, float]] | None = None

    @property
    def wanted(self) -> bool:
        return self.metric is not None or self.chains is not None

    @property
    def at_end(self) -> bool:
        return self.wanted and self.every is None

    def due(self, step: int) -> bool:
        return self.wanted and self.every is not None and step % self.every == 0


class Run:
    """The state of a run on the host."""

    def __init__(
        self,
        training: Training,
        state: TrainState,
        rows: Arrays | Batches,
        keys: tuple[PRNGKeyArray, PRNGKeyArray],
        validation: Validation,
        callbacks: Sequence[Callable[[EpochReport], Any]],
    ):
        self.opened, self.rows, self.callbacks = training, rows, callbacks
        self.keys = keys
        self.validation = validation
        self.training = training.in_form(_first_form(training, state))
        facts = {"epoch": 0, "done": 0, "best": math.inf, "best_epoch": -1, "best_step": 0}
        facts |= {"waited": 0, "validations": 0, "validated": 0, "form": self.training.form}
        # Replaced as a whole, so that Ctrl-C never finds a half-updated state.
        self.now = _Now(state, self._counted(state), facts)
        self.record = Record(None)
        self.keeper: Keeper | None = None
        self.saved: tuple[int, int] | None = None
        self.at_once = 1
        self.began: dict[str, float] = {}  # the first loss and gap

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

    def keep_in(self, keeper: Keeper, resume: bool) -> None:
        self.keeper = keeper
        if not resume and jax.process_index() == 0:
            keeper.clear()
        found = keeper.newest(self.state, self.now.best) if resume else None
        if found is not None:
            state, best, history, facts = found
            self.now = _Now(state, best, facts)
            self.training = self.opened.in_form(facts["form"])
            self.record = Record(history, facts["done"])
            self.saved = self.place

    def go(self, epochs: int, patience: int | None, bar: Bar) -> Stopped:
        """Runs to the end and returns why it ended."""
        # Ctrl-C may have stopped the run in a validation.
        self._validate_if_due(bar)
        while self.epoch < epochs:
            for feed, most in self._feeds(epochs):
                if patience is not None and self.facts["waited"] >= patience:
                    return "patience"
                self._steps(feed, most, bar)
                self._validate_if_due(bar)
                step = int(self.state.step)
                ended = isinstance(self.rows, Arrays) and self.facts["done"] == self.rows.steps
                if self.keeper is not None and not ended and self.keeper.due(step, False):
                    self.save()
            report = self._finish_epoch(bar)
            # Call all of them, even if the first returns True.
            if any([_is_true(callback(report)) for callback in self.callbacks]):
                return "callback"
        return "epochs"

    def _feeds(self, epochs: int) -> Iterator[tuple[Feed, int]]:
        """The data of the next steps and their largest number, until the epoch ends."""
        if isinstance(self.rows, Arrays):
            feed = self.rows.feed()
            while self.facts["done"] < feed.steps:
                yield feed, self._most(epochs, feed.steps)
            return
        for batch in self.rows.epoch(self.facts["done"]):
            if self.training.augment is None:
                model = self.training.model(self.state.parameters)
                model.check(batch, "data")
                # This says what is missing.
                batch = model.as_batch(batch)
            feed = Feed(jax.tree.map(jnp.asarray, batch), 1, None)
            before = self.facts["done"]
            while self.facts["done"] == before:
                yield feed, 1
        if not self.facts["done"]:
            raise ValueError(
                f"`data` must yield at least one batch in each epoch, got 0 in epoch {self.epoch}."
            )

    def _most(self, epochs: int, steps: int) -> int:
        """How many steps there are until something must happen on the host."""
        step, done = int(self.state.step), self.facts["done"]
        kept_every = None if self.keeper is None else self.keeper.settings.every
        kept_at_end = self.keeper is not None and kept_every is None
        most = (epochs - self.epoch) * steps - done
        if self.callbacks or kept_at_end or self.validation.at_end:
            most = steps - done
        for every in (kept_every, self.validation.every):
            if every is not None:
                most = min(most, every - step % every)
        return min(most, self.at_once, ROOM)

    def _steps(self, feed: Feed, asked: int, bar: Bar) -> None:
        """Makes some steps in one call of the device, and reads the results."""
        step, done, epoch = int(self.state.step), self.facts["done"], self.epoch
        began = time.perf_counter()
        state, infos = compiled(advance)(
            self.training,
            self.opened,
            self.state,
            feed,
            self.keys,
            np.asarray(epoch, np.int32),
            np.asarray(done % feed.steps, np.int32),
            np.asarray(asked, np.int32),
            ROOM,
        )
        number = int(state.step) - step
        infos = np.asarray(infos)[:, :number]
        taken = time.perf_counter() - began
        self._check_finite(state, feed)
        form = self.training.form
        if number < asked:
            # The weights have outgrown the form of the messages: the general one from here on.
            form = "log-odds"
            self.training = self.opened.in_form(form)
        # Twice as many next time, up to half a second; the results do not depend on it.
        self.at_once = max(1, min(2 * number, int(SECONDS * number / max(taken, 1e-9))))
        # Epochs that were ended on the way. One that ends here may have to be validated first.
        borders = range(feed.steps - done, number, feed.steps) if feed.batch_size else ()
        *ended, last = np.split(infos, borders, axis=1)
        for part in ended:
            self.record.add_steps(part, taken * part.shape[1] / number)
            self.record.add_epoch()
        self.record.add_steps(last, taken * last.shape[1] / max(number, 1))
        done = done + number - len(ended) * feed.steps
        facts = {**self.facts, "epoch": epoch + len(ended), "done": done, "form": form}
        self.now = self.now._replace(state=state, facts=facts)
        if number:
            self._warn_of_growth(infos)
            means = dict(zip(StepInfo._fields, infos.mean(1).tolist(), strict=True))
            bar.update(number, self.epoch, means)

    def _validate_if_due(self, bar: Bar) -> None:
        step = int(self.state.step)
        if self.validation.due(step) and self.facts.get("validated", step) != step:
            self._validate(bar)

    def _validate(self, bar: Bar) -> None:
        """Validates the model, and keeps it if it is the best so far."""
        current = self._counted(self.state)
        model = self.training.model(current)
        metric, value = self.validation.metric, math.nan
        if metric is not None:
            value = _number(metric(model, self.validation.data, self.epoch))
            if math.isnan(value):
                text = f"`metric` must return a number, got NaN in epoch {self.epoch}."
                warnings.warn(text, stacklevel=6)
        step, facts, best = int(self.state.step), dict(self.facts), self.now.best
        if facts["validations"]:
            self.validation.comparison.see(value, facts["best"], 6)
        facts.update(waited=facts["waited"] + 1, validations=facts["validations"] + 1)
        facts["validated"] = step
        # The first is better than the start, whatever it is.
        if value < facts["best"] or facts["best_epoch"] < 0:
            known = math.inf if math.isnan(value) else value
            facts.update(best=known, best_epoch=self.epoch, best_step=step, waited=0)
            best = current
        told = ()
        if self.validation.chains is not None:
            trajectory = trajectory_in((self.state.recorder, self.state.learner), model)
            told = (self.validation.chains(model, trajectory, step),)
        self.record.add_validation(step, value, *told)
        self.now = self.now._replace(facts=facts, best=best)
        if metric is not None:
            bar.metric = value

    def _finish_epoch(self, bar: Bar) -> EpochReport:
        """Validates if it is time, and returns the report of the epoch."""
        if self.validation.at_end:
            self._validate(bar)
        step, epoch = int(self.state.step), self.epoch
        means, value = self.record.add_epoch()
        model = self.training.model(self._counted(self.state)) if self.callbacks else None
        report = EpochReport(epoch, step, model, value, means)
        self.now = self.now._replace(facts={**self.facts, "epoch": epoch + 1, "done": 0})
        if self.keeper is not None and self.keeper.due(step, True):
            self.save()
        return report

    def save(self) -> None:
        """Writes a checkpoint, if there is anything new to write."""
        if self.keeper is None or jax.process_index() != 0 or self.saved == self.place:
            return
        state, best, facts = self._judged()
        model = self.training.free(best)
        self.keeper.write(int(state.step), state, best, model, self._history(), facts)
        self.saved = self.place

    def fitted(self, stopped: Stopped) -> Fitted:
        last = self._counted(self.state)
        _, best, facts = self._judged()
        chains = self.state.recorder, self.state.learner
        if is_full(chains):
            warnings.warn(FULL, stacklevel=4)
        return Fitted(
            model=self.training.model(best),
            last=self.training.model(last),
            parameters=self.training.free(best),
            history=self._history().told(),
            best_epoch=facts["best_epoch"],
            best_step=facts["best_step"],
            stopped=stopped,
            trajectory=trajectory_in(chains, self.training.model(last)),
        )

    def _judged(self) -> _Now:
        """Where the run is; without a metric, the last parameters are the best."""
        if self.validation.metric is not None:
            return self.now
        step, epoch = self.place
        facts = {**self.facts, "best_epoch": epoch - 1, "best_step": step}
        return self.now._replace(best=self._counted(self.state), facts=facts)

    def interruption(self) -> str:
        """Where the run was interrupted, and how to resume it."""
        where = f"Interrupted in epoch {self.epoch} after step {int(self.state.step)}."
        if self.keeper is None:
            return f"{where} The run is not saved: pass `checkpoint=folder` to `fit`."
        folder = self.keeper.settings.folder
        return (
            f"{where} The run is saved in {folder!r}: call `fit` again with the same arguments to"
            " resume."
        )

    def _warn_of_growth(self, infos: np.ndarray) -> None:
        """Warns once if the loss or the gap has grown far beyond its first value."""
        for name in ("loss", "gap"):
            size = np.abs(infos[StepInfo._fields.index(name)])
            size = size[np.isfinite(size)]
            if not size.size:
                continue
            began = self.began.setdefault(name, float(size[0]))
            if size.max() > GROWTH * max(began, 1.0) and "warned" not in self.began:
                self.began["warned"] = 1.0
                warnings.warn(
                    f"The {name} has grown from {began:.3g} to {size.max():.3g} by step"
                    f" {int(self.state.step)}: the run diverges. Try a smaller learning rate.",
                    stacklevel=6,
                )

    def _history(self) -> History:
        return self.record.history(*self.place, self.facts["validations"])

    def _counted(self, state: TrainState) -> PyTree:
        """The running mean of the parameters if there is one, else the parameters."""
        averaged = self.training.average is not None
        return state.average if averaged else state.parameters

    def _check_finite(self, state: TrainState, feed: Feed) -> None:
        step, leaf = (int(x) for x in np.asarray(state.fault))
        if step < 0:
            return
        paths, _ = jax.tree_util.tree_flatten_with_path(state.parameters)
        name = jax.tree_util.keystr(paths[leaf][0]).lstrip(".")
        kept = ""
        if self.keeper is not None and self.keeper.paths():
            kept = f" The last good checkpoint is {list(self.keeper.paths().values())[-1]}."
        done = self.facts["done"] % feed.steps + step - int(self.state.step)
        raise FloatingPointError(
            f"The gradient of `{name}`, or its value after the step, is NaN or infinite in epoch"
            f" {self.epoch + done // feed.steps}, step {step}, counted from 0: try a smaller"
            f" learning rate.{kept}"
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
        raise TypeError(f"`metric` must return a number, got {got}.") from error


def _is_true(x: Any) -> bool:
    """Whether a callback returned True; other values are ignored."""
    boolean = getattr(x, "dtype", None) == np.bool_ and np.ndim(x) == 0
    return x is True or (boolean and bool(x))
