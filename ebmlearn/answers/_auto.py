import dataclasses
import math
import time
from dataclasses import KW_ONLY
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .. import _checks, messages
from .._types import Key
from .._watch import Watch
from ..inference import (
    AbstractInference,
    affordable,
    Beliefs,
    ConvergentBP,
    Exact,
    MeanField,
    Report,
    TooLarge,
    TRBP,
)
from ..models import AbstractModel, AbstractPlainModel, Problem, refuse, Refused, Statistics
from ._auto_bp import iterated, propagated
from ._host_networks import drawn, tables_of
from ._maximum import maximised
from ._tempered_means import apart, ENOUGH, Judged, sampled


_MEMORY = 28  # the logarithm to base 2 of the largest table
# Tables of more shapes than these take a minute to compile with their derivatives.
_SHAPES = 8
_MINI_BUCKETS = "mini-buckets"


class Auto(AbstractInference):
    """The exact answer if it can be had in the time, else the best of several approximations; and
    how good it is. It runs on the host, so it cannot be part of a compiled function.

    - Exact inference is taken if it is fast enough: see [`ebmlearn.Exact`][].
    - Otherwise belief propagation from several starts with automatic damping, if it does not
      converge [`ebmlearn.ConvergentBP`][], mean field and [`ebmlearn.TRBP`][] are candidates.
      Two samplers judge them: weighted draws from mini-buckets, which are an elimination with
      tables of limited size, and short parallel tempering. The one with the smaller error counts.
      The answer is the candidate whose means are closest to its means, or its own means if all
      candidates are further away than its error. Mini-buckets also give an estimate of log Z, and
      an upper bound. If a model has tables of many shapes, all else would compile for minutes, and
      mini-buckets alone answer.
    - With `product="max"`, a search looks for the most likely states until the time is over: parts
      of the model that are narrow enough are solved exactly given the rest. The bound of
      [`ebmlearn.MPLP`][] is reported beside.

    It stops at the first result after `seconds`. Compilation cannot be stopped, so the first call
    for a model may take longer. With `progress`, a bar in a terminal or a notebook says what it is
    doing, if the call takes more than two seconds.

    `report` of the beliefs says what was used and how good it is: see
    [`ebmlearn.inference.Report`][].

    !!! example

        ```python
        beliefs = ebmlearn.Auto(seconds=5)(ebmlearn.RBM.init(16, 8))
        print(beliefs.report)
        ```

    **Arguments:**

    - `seconds`: about how long it may take.
    - `product`: `"sum"` for marginals and log Z, `"max"` for the most likely configuration.
    - `exact`: False leaves out exact inference.
    - `key`: a seed or key for the samplers.
    - `progress`: whether to show what it does in a terminal or a notebook, if the call takes more
      than two seconds.
    """

    seconds: float | int = eqx.field(static=True, default=20)
    _: KW_ONLY
    product: Literal["sum", "max"] = eqx.field(static=True, default="sum")
    exact: bool = eqx.field(static=True, default=True)
    key: Key = 0
    progress: bool = eqx.field(static=True, default=True)
    takes = Exact.takes

    def __check_init__(self):
        _checks.number("seconds", self.seconds, 0, float("inf"), "(0, inf)")
        _checks.choice("product", self.product, ("sum", "max"))
        _checks.key(self.key)
        _checks.instance("progress", self.progress, bool, "a boolean")

    def accepts(self, model: AbstractModel) -> bool:
        """Whether `Exact` takes the model. Approximations are known for binary units and graphs."""
        return Exact().accepts(model)

    def _beliefs(self, problem: Problem) -> Beliefs:
        if not _checks.is_concrete(problem):
            raise TypeError(
                "`Auto` must be called outside of compiled functions, got traced values: name"
                " another inference there, such as `BP(20)`."
            )
        began, options = time.perf_counter(), {"progress": self.progress, "unit": "s"}
        with Watch("Auto", math.ceil(self.seconds), self.seconds, **options) as watch:
            watch.stage("exact inference")
            found = self._exact(problem) if self.exact else None
            if found is None:
                if not (messages.serves(problem.model) and problem.model.numbered):
                    refuse(
                        problem.model, "be small enough for exact inference in the time of `Auto`"
                    )
                key, deadline = _checks.as_key(self.key), began + self.seconds
                if self.product == "sum":
                    found = _summed(problem, deadline, key, watch)
                else:
                    watch.stage("search")
                    found = maximised(problem, deadline, key)
        assert found.report is not None
        took = time.perf_counter() - began
        return found.with_report(dataclasses.replace(found.report, seconds=took))

    def _statistics(self, problem: Problem) -> Statistics:
        raise TypeError("`inference` must be one that can be compiled for learning, got `Auto`.")

    def _exact(self, problem: Problem) -> Beliefs | None:
        most = min(affordable(problem, self.seconds), _MEMORY)
        try:
            found = Exact(product=self.product, max_units=most).beliefs_of(problem)
        except TooLarge:
            return None
        value = found.log_partition
        return found.with_report(
            Report("exact inference", True, jnp.zeros_like(value), value, value)
        )


def _require_approximations(model: AbstractPlainModel) -> None:
    if not (messages.serves(model) and model.numbered):
        refuse(model, "be small enough for exact inference in the time of `Auto`")


class _Candidates(NamedTuple):
    """Approximations by name; log Z by messages that converged, if any did, and bounds of it."""

    beliefs: dict[str, Beliefs]
    value: Float[Array, "*batch"]
    lower: Float[Array, "*batch"]
    upper: Float[Array, "*batch"]


def _summed(problem: Problem, deadline: float, key: PRNGKeyArray, watch: Watch) -> Beliefs:
    """The best approximation of the marginals, and of log Z."""
    began, stacks = time.perf_counter(), tables_of(problem.model)
    compact = stacks is not None and len(stacks) <= _SHAPES
    # Draws compile nothing. Where all else compiles for long, they have all the time.
    end = began + (deadline - began) / 3 if compact else deadline
    watch.stage(_MINI_BUCKETS)
    draws = drawn(problem, stacks, end, jax.random.fold_in(key, 1))
    judges = []
    if draws is not None:
        judges = [Judged(_MINI_BUCKETS, draws.beliefs, draws.beliefs.residual)]
    if draws is not None and not compact:
        told = _Candidates({}, draws.value, jnp.full_like(draws.value, -jnp.inf), draws.bound)
    else:
        watch.stage("messages")
        told = _candidates(problem, deadline, compact, key)
        if not judges or float(judges[0].error.max()) > ENOUGH:
            watch.stage("parallel tempering")
            chains = sampled(problem, key, deadline - time.perf_counter())
            judges += [] if chains is None else [chains]
    name, beliefs, error = _best(told, judges)
    value, upper = told.value, told.upper
    if draws is not None:
        value, upper = draws.value, jnp.minimum(upper, draws.bound)
        name += "" if name == _MINI_BUCKETS else f", log Z by {_MINI_BUCKETS}"
    return beliefs.with_report(Report(name, False, error, told.lower, upper), value)


def _candidates(problem: Problem, deadline: float, compact: bool, key: PRNGKeyArray) -> _Candidates:
    """Approximations by messages and by mean field, in half of the time that is left."""
    shape, dtype = problem.shape, problem.model.dtype
    lower, upper = jnp.full(shape, -jnp.inf, dtype), jnp.full(shape, jnp.inf, dtype)
    began = time.perf_counter()
    half = (began + deadline) / 2
    tables = half if compact else began
    last = propagated(problem, "sum", half, key)
    out = {"belief propagation": last}
    if not bool(last.converged.all()) and (found := _asked(ConvergentBP(), problem, tables)):
        last = out["convergent belief propagation"] = found
    if found := _asked(MeanField(1), problem, half):
        out["mean field"], lower = found, found.log_partition
    if found := _asked(TRBP(), problem, tables):
        out["TRBP"], upper = found, found.log_partition
    return _Candidates(out, jnp.clip(last.log_partition, lower, upper), lower, upper)


def _best(told: _Candidates, judges: list[Judged]) -> Judged:
    """The candidate nearest to the most accurate draws, and its error; or the draws themselves, if
    all candidates are further away than their error.
    """
    if not judges:
        return Judged(*next(iter(told.beliefs.items())), jnp.full_like(told.value, jnp.nan))
    best = min(judges, key=lambda x: float(x.error.mean()))
    noise, means = best.error, best.beliefs.means
    least = float(noise.mean())
    # The first of those that are as near comes last, and stays.
    for name, beliefs in reversed(told.beliefs.items()):
        distance = apart(beliefs.means, means, noise.ndim)
        own = jnp.sqrt(jnp.maximum(distance**2 - noise**2, 0.0))
        if float(own.mean()) <= least:
            best, least = Judged(name, beliefs, own), float(own.mean())
    return best._replace(error=jnp.maximum(best.error, noise))


def _asked(inference: AbstractInference, problem: Problem, deadline: float) -> Beliefs | None:
    """Beliefs, or None if it is too late, or the inference does not take the model."""
    if time.perf_counter() >= deadline:
        return None
    try:
        return iterated(inference, problem, deadline)
    except Refused:
        return None
