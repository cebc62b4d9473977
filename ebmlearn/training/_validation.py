"""When and how a run is validated."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float64, Int, PRNGKeyArray, PyTree, Shaped

from .. import _checks, messages
from .._types import AnyArray
from ..learners import AbstractComparedMetric, AbstractLearner, Metric
from ..models import AbstractModel, AbstractPlainModel
from ..samplers import AbstractSampler, equilibrium, Gibbs, Trajectory, TrajectoryTempering
from ._state import Training


_CHAINS, _BURN_IN, _STEPS = 32, 100, 200
# Of a model, its trajectory and the step: the largest autocorrelation time, R-hat and gap.
ChainCheck = Callable[[AbstractPlainModel, Trajectory | None, int], tuple[float, float, float]]
# A metric has risen if it is above the best one before it, and above that of the simple model, by
# more than this share of the larger of the two. Metrics of real units may be negative.
RISE = 0.01


@dataclasses.dataclass(frozen=True)
class Validation:
    """How [`ebmlearn.fit`][] judges the model while it trains, and when it stops.

    !!! example

        ```python
        from ebmlearn import datasets

        digits = datasets.digits()
        validation = ebmlearn.Validation(digits.valid.x, patience=5)
        rbm = ebmlearn.RBM.init(64, 8)
        fitted = ebmlearn.fit(rbm, ebmlearn.CD(), digits.train.x, validation=validation)
        fitted.best_epoch, fitted.history.epochs["metric"]
        ```

    **Arguments:**

    - `data`: data for `metric`, in the same form as those of `fit`.
    - `metric`: a function of the model, the validation data (or None) and the epoch that returns a
      number; lower is better. By default the share of wrong units for a CRBM, the cross-entropy on
      a fixed set of queries for query training (see [`ebmlearn.query_entropy`][]), and the mean of
      minus [`ebmlearn.pseudo_log_likelihood`][] for all models that have it; for other models the
      negative log-likelihood by the inference of [`ebmlearn.MLE`][]. Query training warns once if
      its metric rises above that of independent units, as happens when a model memorises few rows.
      In [`ebmlearn.fit_many`][] it is compiled and mapped over all runs, so it takes JAX arrays and
      returns one.
    - `every`: the number of steps between two validations. By default `fit` validates at the end of
      each epoch. Without a metric, callbacks and checkpoints, the device runs several epochs
      without waiting for the host.
    - `patience`: stop after this many validations without a better metric.
    - `equilibrium`: whether to run chains of the learner's sampler, or of Gibbs sampling if it has
      none, at each validation: 32 from data and 32 from noise, of 300 steps. `history.validations`
      then holds their `autocorrelation_time`, `r_hat` and `gap` along slow modes: see
      [`ebmlearn.equilibrium`][]. An `r_hat` far above 1 says that the model is learned out of
      equilibrium. `fit_many` has no such chains.
    """

    data: PyTree = None
    metric: Metric | Callable[[PyTree, PyTree, Int[Array, ""]], ArrayLike] | None = None
    _: dataclasses.KW_ONLY
    every: int | None = None
    patience: int | None = None
    equilibrium: bool = False

    def __post_init__(self) -> None:
        if self.metric is not None:
            _checks.function("metric", self.metric)
        for name in ("every", "patience"):
            value = getattr(self, name)
            if value is not None:
                _checks.count(name, value)
                if self.data is None and self.metric is None:
                    raise ValueError(f"`data` must be given with `{name}`, got None.")


def as_validation(x: Any) -> Validation:
    """A validation, or one by these data."""
    return x if isinstance(x, Validation) else Validation(x)


@dataclasses.dataclass
class Judge:
    """The metric of a run, its data, and when to call it."""

    metric: Metric | Callable | None
    data: PyTree
    every: int | None  # steps; None is the end of an epoch
    simple: float | None = None  # what a simple model has, until the metric has risen above it
    chains: ChainCheck | None = None

    @property
    def wanted(self) -> bool:
        return self.metric is not None or self.chains is not None

    def compare(self, value: float, best: float) -> None:
        """Warns once if a metric, after the best one before it, is above that of a simple model."""
        if self.simple is None or not isinstance(self.metric, AbstractComparedMetric):
            return
        limit = max(self.simple, best)
        if value > limit + RISE * abs(limit):
            warnings.warn(self.metric.worse(value, self.simple), stacklevel=7)
            self.simple = None

    def values(
        self, training: Training, parameters: PyTree, epoch: int
    ) -> Float64[np.ndarray, " lanes"]:
        """The metric of each lane, NaN if there is none. That of a single one is called as it is;
        that of many is compiled.
        """
        if self.metric is None:
            return np.array([np.nan])
        if training.many:
            try:
                at = np.asarray(epoch, np.int32)
                found = np.asarray(_in_lanes(training, self.metric, parameters, self.data, at))
            except _NOT_TRACEABLE as error:
                raise TypeError(
                    "`metric` must be traceable in `fit_many`: use only `jax.numpy` and return a"
                    " JAX array, without `float`, `if` or NumPy; or call `fit` for each run."
                ) from error
        else:
            found = [self.metric(training.model(parameters), self.data, epoch)]
        try:
            return np.array([float(x) for x in found])
        except (TypeError, ValueError) as error:
            got = _checks.describe(found[0])
            raise TypeError(f"`metric` must return a number, got {got}.") from error


_NOT_TRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


@eqx.filter_jit
def _in_lanes(
    training: Training, metric: Callable, parameters: PyTree, data: Any, epoch: Int[AnyArray, ""]
) -> Shaped[Array, "lanes *shape"]:
    def judged(moderate: bool | None) -> Array:
        def one(parameters: PyTree) -> Array:
            return jnp.asarray(metric(training.model(parameters), data, epoch))

        with messages.assuming(moderate):
            return training.each(one)(parameters)

    # One way for all of them: a choice for each lane would be made by running both.
    found = training.are_moderate(metric, parameters)
    if found is None:
        return judged(None)
    return jax.lax.cond(found.all(), lambda: judged(True), lambda: judged(False))


def chain_check(learner: AbstractLearner, data: PyTree, key: PRNGKeyArray) -> ChainCheck:
    """A function that tells how far chains of a model are from equilibrium, of all slow modes."""
    found = getattr(learner, "sampler", None)
    own = found if isinstance(found, AbstractSampler) else Gibbs()
    long = {"num_chains": _CHAINS, "burn_in": _BURN_IN, "steps": _STEPS}

    def check(
        model: AbstractPlainModel, trajectory: Trajectory | None, step: int
    ) -> tuple[float, float, float]:
        sampler = own
        if isinstance(own, TrajectoryTempering) and trajectory is not None:
            sampler = TrajectoryTempering(trajectory, sampler=own.sampler)
        found = equilibrium(model, sampler, data, key=jax.random.fold_in(key, step), **long)
        parts = found.autocorrelation_times, found.r_hat, found.gaps
        longest, r_hat, gap = (float(x.max()) for x in parts)
        return longest, r_hat, gap

    return check


def metric_of(
    metric: Callable | None, learner: AbstractLearner, model: AbstractModel, validation: Any
) -> Callable | None:
    """The metric that was given, or that of the learner."""
    if validation is None or metric is not None:
        return metric
    found = learner.metric(model)
    if found is None:
        kind = _checks.article(type(model).__name__)
        raise ValueError(
            f"`metric` must be given for {kind} and this learner, got None: write"
            " `validation=Validation(data, metric)`."
        )
    model.check(validation, "validation")
    return found
