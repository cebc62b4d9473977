import dataclasses
import time
from dataclasses import KW_ONLY
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .. import _checks
from .._types import Key
from ..inference import (
    AbstractInference,
    Beliefs,
    ConvergentBP,
    Exact,
    MeanField,
    Report,
    TRBP,
)
from ..inference._base import TooLarge
from ..inference._beliefs import Found
from ..inference._exact import affordable, MAXIMISES
from ..messages import graph_kinds, MAKERS
from ..models import Statistics
from ._chains import apart, sampled
from ._maximum import maximised
from ._propagated import iterated, propagated


_MEMORY = 28  # the logarithm to base 2 of the largest table
# Tables of more shapes than these take a minute to compile with their derivatives.
_SHAPES = 8


class Auto(AbstractInference):
    """The exact answer if it can be had in the time, else the best of several approximations; and
    how good it is. It runs on the host, so it cannot be part of a compiled function.

    - Exact inference is taken if it is fast enough: see [`ebmlearn.Exact`][].
    - Otherwise belief propagation from several starts with automatic damping, if it does not
      converge [`ebmlearn.ConvergentBP`][], mean field and [`ebmlearn.TRBP`][] are candidates. Short
      parallel tempering with chains from random starts judges them: the answer is the candidate
      whose means are closest to those of the chains, or the chains' own if all candidates are
      further away than the chains are from each other.
    - With `product="max"`, a search looks for the most likely states until the time is over: parts
      of the model that are narrow enough are solved exactly given the rest. The bound of
      [`ebmlearn.MPLP`][] is reported beside.

    `report` of the beliefs says what was used and how good it is: see [`ebmlearn.Report`][].

    !!! example

        ```python
        beliefs = ebmlearn.Auto(seconds=5)(model)
        print(beliefs.report)
        ```
    """

    seconds: float | int = eqx.field(static=True, default=20)
    _: KW_ONLY
    product: Literal["sum", "max"] = eqx.field(static=True, default="sum")
    exact: bool = eqx.field(static=True, default=True)
    key: Key = 0

    def __check_init__(self):
        _checks.number("seconds", self.seconds, 0, float("inf"), "(0, inf)")
        _checks.choice("product", self.product, ("sum", "max"))
        _checks.as_key(self.key)

    @property
    def takes(self) -> tuple[str, ...]:
        """Binary units, and graphs."""
        return ("binary", *graph_kinds())

    @property
    def maximises(self) -> Literal["nothing", "visible", "all"]:
        """It follows from `product`."""
        return MAXIMISES[self.product]

    def _beliefs(self, problem: Any) -> Beliefs:
        if not _checks.is_concrete(problem):
            raise TypeError(
                "`Auto` must be called outside of compiled functions, got traced values: name"
                " another inference there, such as `BP(20)`."
            )
        began = time.perf_counter()
        found = self._exact(problem) if self.exact else None
        if found is None:
            ask = _summed if self.product == "sum" else maximised
            found = ask(problem, began + self.seconds, _checks.as_key(self.key))
        assert found.report is not None
        took = time.perf_counter() - began
        return found.with_report(dataclasses.replace(found.report, seconds=took))

    def _statistics(self, problem: Any) -> Statistics:
        raise TypeError("`inference` must be one that can be compiled for learning, got `Auto`.")

    def _exact(self, problem: Any) -> Beliefs | None:
        most = min(affordable(problem, self.seconds), _MEMORY)
        inference = Exact(self.product, max_units=most)
        try:
            found = inference.beliefs_of(problem)
        except TooLarge:
            return None
        nothing = jnp.zeros(problem.shape, problem.model.dtype)
        value = found.log_partition
        report = Report("exact inference", True, nothing, value, value)
        return found.with_report(report)


class _Candidate(NamedTuple):
    name: str
    beliefs: Beliefs


def _summed(problem: Any, deadline: float, key: Any) -> Beliefs:
    """The best approximation of the marginals."""
    began = time.perf_counter()
    half = (began + deadline) / 2
    candidates = [_Candidate("belief propagation", propagated(problem, "sum", half, key))]
    lower = upper = None
    tables = half if _is_compact(problem) else began
    if not bool(candidates[0].beliefs.converged.all()) and (
        found := _asked(ConvergentBP(), problem, tables)
    ):
        candidates.append(_Candidate("convergent belief propagation", found))
    bethe = candidates[-1].beliefs.log_partition
    if found := _asked(MeanField(1), problem, half):
        candidates.append(_Candidate("mean field", found))
        lower = found.log_partition
    if found := _asked(TRBP(), problem, tables):
        candidates.append(_Candidate("TRBP", found))
        upper = found.log_partition
    shape, dtype = problem.shape, problem.model.dtype
    lower = jnp.full(shape, -jnp.inf, dtype) if lower is None else lower
    upper = jnp.full(shape, jnp.inf, dtype) if upper is None else upper
    judge = None
    if time.perf_counter() < deadline:
        judge = sampled(problem, key, deadline - time.perf_counter())
    best = candidates[0]
    if judge is None:
        unknown = jnp.full(shape, jnp.nan, dtype)
        return best.beliefs.with_report(Report(best.name, False, unknown, lower, upper))
    noise = judge.error
    errors = []
    for _, beliefs in candidates:
        distance = apart(beliefs.means, judge.means, len(shape))
        errors.append(jnp.sqrt(jnp.maximum(distance**2 - noise**2, 0.0)))
    means = [float(x.mean()) for x in errors]
    k = int(np.argmin(means))
    best, error = candidates[k], errors[k]
    found = best.beliefs
    if means[k] > float(noise.mean()):
        value = jnp.clip(bethe, lower, upper)
        found = Beliefs(
            problem,
            Found(value, None, "Auto"),
            log_odds=problem.log_odds(judge.means),
            converged=jnp.ones(shape, bool),
            iterations=jnp.full(shape, judge.steps, jnp.int32),
            residual=noise,
        )
        return found.with_report(Report("parallel tempering", False, noise, lower, upper))
    return found.with_report(Report(best.name, False, jnp.maximum(error, noise), lower, upper))


def _asked(inference: AbstractInference, problem: Any, deadline: float) -> Beliefs | None:
    """Beliefs, or None if it is too late, or the inference does not take the model."""
    if time.perf_counter() >= deadline:
        return None
    try:
        return iterated(inference, problem, deadline)
    except TypeError:
        return None


def _is_compact(problem: Any) -> bool:
    """Whether the factors of a model are tables of a few shapes."""
    try:
        return len(MAKERS[problem.model.kind].tables(problem.model)) <= _SHAPES
    except TypeError:
        return False
