from typing import Any, Literal, NamedTuple

import equinox as eqx
import numpy as np

from ..learners import StepInfo
from ..samplers import Trajectory


Stopped = Literal["epochs", "patience", "callback", "interrupted", "diverged"]


class History(NamedTuple):
    """The history of a run, as arrays by name: `steps["loss"]`, `epochs["metric"]`.

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
    """

    epoch: int
    step: int
    model: Any
    metric: float
    info: dict[str, float]


class Fitted(eqx.Module):
    """What [`ebmlearn.fit`][] returns.

    - `model`: the best model by the validation metric; without a metric, the last model.
    - `last`: the last model.
    - `parameters`: the parameters that `build` made `model` from; without `build`, `model` itself.
    - `history`: a [`History`][ebmlearn._fit.History].
    - `best_epoch`: the epoch of `model`, counted from 0. Without a metric it is the last complete
      epoch, or -1 if there is none.
    - `best_step`: the number of steps after which `model` was taken.
    - `stopped`: why the run ended: `"epochs"`, `"patience"`, `"callback"`, `"interrupted"`, or in
      [`ebmlearn.fit_many`][] `"diverged"`.
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


def means_of(x: np.ndarray) -> np.ndarray:
    """The mean of each row, without NaN."""
    there = ~np.isnan(x)
    count = there.sum(1)
    sums = np.where(there, x, np.zeros_like(x)).sum(1)
    return np.where(count > 0, sums / np.maximum(count, 1), np.nan)


class Record:
    """Collects the history of a run."""

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

    def add_validation(
        self, step: int, metric: float, equilibrium: tuple[float, float, float]
    ) -> None:
        self.validations.append((step, metric, *equilibrium))

    def add_epoch(self) -> tuple[dict[str, float], float]:
        """Ends an epoch; returns the means over its steps and its last metric."""
        infos = np.concatenate(self.current, 1)
        means = means_of(infos)
        self.ended += infos.shape[1]
        last, metric, *_ = self.validations[-1] if self.validations else (0, np.nan)
        metric = float(metric) if last > self.ended - infos.shape[1] else float("nan")
        self.epochs.append(np.array([*means, metric, self.seconds]))
        self.current, self.seconds = [], 0.0
        return dict(zip(StepInfo._fields, means.tolist(), strict=True)), metric

    def history(self, steps: int, epochs: int, validations: int) -> History:
        """The history of the first steps, epochs and validations."""
        infos = np.concatenate(self.steps, 1)[:, :steps]
        ended = np.array(self.epochs[:epochs]).reshape(-1, len(_EPOCH))
        found = np.array(self.validations[:validations], float).reshape(-1, len(_VALIDATION))
        return History(
            dict(zip(StepInfo._fields, infos, strict=True)),
            dict(zip(_EPOCH, ended.T, strict=True)),
            dict(zip(_VALIDATION, [found[:, 0].astype(np.int64), *found.T[1:]], strict=True)),
        )


_EPOCH = (*StepInfo._fields, "metric", "seconds")
# The last three tell of the chains: see `ebmlearn.equilibrium`.
_VALIDATION = ("step", "metric", "autocorrelation_time", "r_hat", "gap")
