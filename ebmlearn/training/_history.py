"""The history and the result of a run, and the state of its lanes."""

import math
from typing import Any, Literal, NamedTuple

import equinox as eqx
import numpy as np

from ..learners import StepInfo
from ..samplers import Trajectory
from ._state import Feed


Stopped = Literal["epochs", "patience", "callback", "interrupted", "diverged", "seconds"]


class History(NamedTuple):
    """The history of a run, as arrays by name: `steps["loss"]`, `epochs["metric"]`.

    !!! example

        ```python
        from ebmlearn import datasets

        data = datasets.digits().train.x
        fitted = ebmlearn.fit(ebmlearn.RBM.init(64, 8), ebmlearn.CD(), data, epochs=2)
        fitted.history.steps["gap"], fitted.history.epochs["seconds"]
        ```

    **Fields:**

    - `steps`: `loss`, `gap`, `converged`, `iterations` and `accepted` of each step, as
      [`ebmlearn.learners.StepInfo`][] explains them.
    - `epochs`: the means of these over each epoch, the last validation `metric` of the epoch, and
      `seconds`. Columns that hold only NaN are left out.
    - `validations`: the `step` after which each validation was made, counted from 1, and its
      `metric`; with `fit(..., equilibrium=True)` also `autocorrelation_time`, `r_hat` and `gap`,
      the largest of all slow modes that [`ebmlearn.equilibrium`][] finds.
    """

    steps: dict[str, np.ndarray]
    epochs: dict[str, np.ndarray]
    validations: dict[str, np.ndarray]

    def told(self) -> "History":
        """The same without the columns of `epochs` that hold only NaN, and those of `validations`
        that were not asked for.
        """
        epochs = {k: x for k, x in self.epochs.items() if not x.size or not np.isnan(x).all()}
        told, asked = self.validations, ("step", "metric")
        told = {k: x for k, x in told.items() if k in asked or not np.isnan(x).all()}
        return self._replace(epochs=epochs, validations=told)


class EpochReport(NamedTuple):
    """What [`ebmlearn.fit`][] passes to a callback after each epoch. A callback that returns True
    stops the run.

    `epoch` counts from 0, `step` is the number of steps so far, `info` holds the means over the
    epoch, and `metric` is the last validation metric of the epoch, NaN if there was none.

    !!! example

        ```python
        from ebmlearn import datasets

        def show(report):
            print(report.epoch, report.step, report.info["gap"])

        data = datasets.digits().train.x
        ebmlearn.fit(ebmlearn.RBM.init(64, 8), ebmlearn.CD(), data, epochs=2, callbacks=[show])
        ```

    **Fields:**

    - `epoch`: the number of the epoch, counted from 0.
    - `step`: the number of steps so far.
    - `model`: the model after the epoch.
    - `metric`: the last validation metric of the epoch, NaN if there was none.
    - `info`: the means over the epoch, a [`ebmlearn.learners.StepInfo`][].
    """

    epoch: int
    step: int
    model: Any
    metric: float
    info: dict[str, float]


class Fitted(eqx.Module):
    """What [`ebmlearn.fit`][] returns.

    !!! example

        ```python
        from ebmlearn import datasets

        data = datasets.digits().train.x
        fitted = ebmlearn.fit(ebmlearn.RBM.init(64, 8), ebmlearn.CD(), data, epochs=2)
        fitted.model, fitted.history.epochs["gap"], fitted.stopped
        ```

    **Fields:**

    - `model`: the best model by the validation metric; without a metric, the last model.
    - `last`: the last model.
    - `parameters`: the parameters that `build` made `model` from; without `build`, `model` itself.
    - `history`: a [`History`][ebmlearn.training.History].
    - `best_epoch`: the epoch of `model`, counted from 0. Without a metric it is the last complete
      epoch, or -1 if there is none.
    - `best_step`: the number of steps after which `model` was taken.
    - `stopped`: why the run ended: `"epochs"`, `"patience"`, `"callback"`, `"interrupted"`, or in
      [`ebmlearn.fit_many`][] `"diverged"` or `"seconds"`.
    - `trajectory`: the [`ebmlearn.Trajectory`][] that `fit` recorded, or that of the learner's
      sampler; None if there is none. It ends at `last`.
    """

    model: Any
    last: Any
    parameters: Any
    history: History
    best_epoch: int
    best_step: int
    stopped: Stopped
    trajectory: Trajectory | None = None


def means_of(x: np.ndarray) -> dict[str, float]:
    """The mean of each row of infos, without NaN, by name."""
    with np.errstate(invalid="ignore"):
        means = np.nansum(x, 1) / (~np.isnan(x)).sum(1)
    return dict(zip(StepInfo._fields, means.tolist(), strict=True))


class Record:
    """Collects the history of a lane."""

    def __init__(self, history: History, done: int = 0):
        """Continues the history of a run that was stopped after `done` steps of an epoch."""
        none, (steps, epochs, told) = np.zeros(0, np.float32), history
        self.steps = [np.stack([steps.get(name, none) for name in StepInfo._fields])]
        self.epochs = list(np.stack([epochs.get(name, none) for name in _EPOCH], 1))
        # Files of older versions do not have all of them.
        none = np.full(len(told.get("step", ())), np.nan)
        self.validations = list(zip(*[told.get(k, none) for k in _VALIDATION], strict=True))
        self.ended = self.steps[0].shape[1] - done  # steps of epochs that are ended
        self.current = [self.steps[0][:, self.ended :]]  # those of the epoch that is not
        self.seconds = 0.0

    def add_steps(self, infos: np.ndarray, seconds: float) -> None:
        """Adds steps of one epoch."""
        self.steps.append(infos)
        self.current.append(infos)
        self.seconds += seconds

    def add_epoch(self) -> tuple[dict[str, float], float]:
        """Ends an epoch; returns the means over its steps and its last metric."""
        infos = np.concatenate(self.current, 1)
        means = means_of(infos)
        self.ended += infos.shape[1]
        last, metric, *_ = self.validations[-1] if self.validations else (0, np.nan)
        metric = float(metric) if last > self.ended - infos.shape[1] else float("nan")
        self.epochs.append(np.array([*means.values(), metric, self.seconds]))
        self.current, self.seconds = [], 0.0
        return means, metric


_EPOCH = (*StepInfo._fields, "metric", "seconds")
# The last three tell of the chains: see `ebmlearn.equilibrium`.
_VALIDATION = ("step", "metric", "autocorrelation_time", "r_hat", "gap")


class Lane(NamedTuple):
    """The facts of one lane. They say how much of its record counts, so that a record may be ahead
    of them when Ctrl-C comes. Checkpoints hold all facts.
    """

    record: Record
    step: int = 0
    epoch: int = 0
    done: int = 0  # steps of this epoch
    best: float = math.inf
    best_epoch: int = -1
    best_step: int = 0
    waited: int = 0  # validations since the best one
    validations: int = 0
    validated: int = 0  # the step of the last one

    @property
    def facts(self) -> dict[str, Any]:
        return {name: x for name, x in self._asdict().items() if name != "record"}

    @property
    def history(self) -> History:
        """The history so far."""
        record = self.record
        infos = np.concatenate(record.steps, 1)[:, : self.step]
        ended = np.array(record.epochs[: self.epoch]).reshape(-1, len(_EPOCH))
        found = np.array(record.validations[: self.validations], float)
        step, *told = found.reshape(-1, len(_VALIDATION)).T
        return History(
            dict(zip(StepInfo._fields, infos, strict=True)),
            dict(zip(_EPOCH, ended.T, strict=True)),
            dict(zip(_VALIDATION, [step.astype(np.int64), *told], strict=True)),
        )

    def moved(self, infos: np.ndarray, feed: Feed, seconds: float) -> "Lane":
        """After some steps of a feed, which are recorded."""
        number = infos.shape[1]
        if not number:
            return self
        # Epochs that were ended on the way. One that ends here may have to be validated first.
        borders = range(feed.steps - self.done, number, feed.steps) if feed.batch_size else ()
        *ended, last = np.split(infos, borders, axis=1)
        for part in ended:
            self.record.add_steps(part, seconds * part.shape[1] / number)
            self.record.add_epoch()
        self.record.add_steps(last, seconds * last.shape[1] / number)
        done = self.done + number - len(ended) * feed.steps
        return self._replace(step=self.step + number, epoch=self.epoch + len(ended), done=done)

    def judged(self, value: float, told: tuple[float, float, float]) -> "Lane":
        """After a validation, which is recorded. If it is the best, nothing has waited since."""
        self.record.validations.append((self.step, value, *told))
        new = self._replace(validations=self.validations + 1, validated=self.step)
        # The first is better than the start, whatever it is.
        if self.best_epoch >= 0 and not value < self.best:
            return new._replace(waited=self.waited + 1)
        best = math.inf if math.isnan(value) else value
        return new._replace(best=best, best_epoch=self.epoch, best_step=self.step, waited=0)

    def is_due(self, every: int | None, end: bool) -> bool:
        """Whether it is time for what happens every so many steps, or at the end of an epoch."""
        return end if every is None else self.step % every == 0
