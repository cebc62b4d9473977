from typing import Any, Literal, NamedTuple

import equinox as eqx
import numpy as np

from ..learners import StepInfo


class History(NamedTuple):
    """What happened in a run, as arrays by name: `steps["loss"]`, `epochs["metric"]`.

    - Of each step: `loss`, `gap`, `converged`, `iterations`, `accepted`, as
      [`ebmlearn.learners.StepInfo`][] explains them.
    - Of each epoch: the means of these, `metric` on the validation data (NaN without), and
      `seconds`.
    """

    steps: dict[str, np.ndarray]
    epochs: dict[str, np.ndarray]


class EpochReport(NamedTuple):
    """What a callback of [`ebmlearn.fit`][] is given after each epoch; it may return True to stop.

    `epoch` counts from 0, `step` counts the steps done, `info` holds the means over the epoch and
    `metric` the validation metric.
    """

    epoch: int
    step: int
    model: Any
    metric: float
    info: dict[str, float]


class Fitted(eqx.Module):
    """What [`ebmlearn.fit`][] returns.

    - `model`: the best model by the validation metric; without one, the last.
    - `last`: the last model.
    - `parameters`: what `model` was built from, if `build` was given; else `model` itself.
    - `history`: a [`History`][ebmlearn._fit.History].
    - `best_epoch`: the epoch, counted from 0, after which `model` was taken, or without a metric
      the last that was ended; -1 if none was.
    - `stopped`: why the run ended: `"epochs"`, `"patience"`, `"callback"` or `"interrupted"`.
    """

    model: Any
    last: Any
    parameters: Any
    history: History
    best_epoch: int
    stopped: Literal["epochs", "patience", "callback", "interrupted"]


def _mean(x: np.ndarray) -> float:
    """The mean of the numbers that are there."""
    there = x[~np.isnan(x)]
    return float(there.mean()) if there.size else float("nan")


class Record:
    """Collects a history while it happens."""

    def __init__(self, history: History | None):
        self.steps = {name: [] for name in StepInfo._fields}
        self.epochs = {name: [] for name in (*StepInfo._fields, "metric", "seconds")}
        if history is not None:
            for name, values in history.steps.items():
                self.steps[name] = [values]
            for name, values in history.epochs.items():
                self.epochs[name] = list(values)

    def add_steps(self, infos: dict[str, np.ndarray]) -> None:
        for name, values in infos.items():
            self.steps[name].append(values)

    def epoch_means(self, first: int) -> dict[str, float]:
        """The means of all steps from `first` on."""
        return {name: _mean(np.concatenate(x)[first:]) for name, x in self.steps.items()}

    def add_epoch(self, **values: float) -> None:
        for name, value in values.items():
            self.epochs[name].append(value)

    def history(self, steps: int, epochs: int) -> History:
        """What happened in so many steps and epochs; what an interrupted one added is left out."""
        none = np.zeros(0, np.float32)
        return History(
            {name: np.concatenate([none, *parts])[:steps] for name, parts in self.steps.items()},
            {name: np.asarray(x, np.float64)[:epochs] for name, x in self.epochs.items()},
        )
