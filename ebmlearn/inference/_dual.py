from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .. import _checks, messages
from .._sentinels import LEAST
from ..factors import AbstractFactor
from ..messages import Expected
from ..models import AbstractModel, AbstractPlainModel, Statistics
from ._base import (
    AbstractInference,
    check_limits,
    each,
    KEPT,
    limited,
    Limits,
    Problem,
    refuse,
    stacks_of,
)
from ._beliefs import Beliefs, Found, Went
from ._power_sums import (
    Best,
    decomposed,
    Decomposition,
    Entries,
    entries_of,
    minimised,
    restored,
    settled,
    Tables,
)


# From tables, unary scores, the states that are possible, and limits.
Search = Callable[[Decomposition, Array, Array, Limits], Best]


class AbstractDual(AbstractInference):
    """Inference by the search of a value of log Z over messages between the tables of a model, in
    its dual form. `search` finds the value and the probabilities that belong to it, of one
    instance.
    """

    iterations: int | Int[Array, ""] = 1000
    _: KW_ONLY
    tol: float | Float[Array, ""] | None = 1e-3
    search: ClassVar[Search]
    takes = ("binary", "categorical")

    def accepts(self, model: AbstractModel) -> bool:
        """Whether units have a few states each."""
        return messages.serves(model) and model.numbered  # pyright: ignore

    def __check_init__(self):
        check_limits(self.iterations, 0.0, self.tol)

    def _beliefs(self, problem: Problem) -> Beliefs:
        scores, best, entries, went = self._found(problem)
        pairs = jax.tree_util.Partial(_pairwise, best.p, best.joint, entries)
        derived = Found(best.value, pairs, type(self).__name__)
        return Beliefs(problem, derived, log_odds=problem.named(scores), **went._asdict())

    def _statistics(self, problem: Problem) -> Statistics:
        _, best, entries, went = self._found(problem)
        units, pairs, squares = _expected(best.p, best.joint, entries, problem)
        axes = tuple(range(len(problem.shape)))
        pairs = problem.model.by_factor(tuple(x.mean(axes) for x in pairs))
        return Statistics(problem.expected(units), pairs, squares, *went)

    def _found(self, problem: Problem) -> tuple[Array, Best, tuple[Entries, ...], Went]:
        """Scores of all states, what was found, which entries are joined, and how it went."""
        model = problem.model
        limits = limited(self.iterations, self.tol, model.dtype)
        if any(factor.helpers for factor in model.factors()):
            hint = "write it as tables by `uai.to_tables`"
            refuse(model, f"have factors of few variables for {type(self).__name__}", hint)
        stacks = stacks_of(model) or ()
        if not _checks.is_concrete([members for members, _ in stacks]):
            hint = "use it as a constant there, and its log-potentials as the argument"
            refuse(model, "not be an argument of a compiled function", hint)
        entries = entries_of(len(problem.counts), stacks)
        best, scores = _solved(limits, problem, entries, type(self).search)
        return scores, best, entries, Went(best.residual <= limits.tol, *best[3:])


class TRBP(AbstractDual):
    """Tree-reweighted belief propagation in its dual form: an upper bound of log Z (Wainwright,
    Jaakkola & Willsky 2005; Globerson & Jaakkola 2007; Ping, Liu & Ihler 2015).

    `log_partition` is an upper bound at any messages, so it holds whether or not the iterations
    converge. They minimise it over messages and over the weights of tables, which is a smooth
    convex problem, by L-BFGS. With [`ebmlearn.MeanField`][], which gives a lower bound, log Z is
    bracketed. On trees the bound is exact but for rounding.

    Beliefs are the gradient of the bound. They are unique and change smoothly with the model, but
    where couplings are strong and of both signs they are closer to uniform than the truth, and
    [`ebmlearn.BP`][] is more accurate if it converges.

    !!! example

        ```python
        model = ebmlearn.BoltzmannMachine.init(8, scale=1.0)
        above = ebmlearn.TRBP()(model).log_partition
        below = ebmlearn.MeanField()(model).log_partition
        ```

    **Arguments:**

    - `iterations`: the largest number of steps. A new number needs no compilation.
    - `tol`: stop when no entry of the gradient is larger than this: tables then agree about all
      probabilities up to this number. None makes all steps, and `converged` uses 1e-3.
    """

    search = staticmethod(minimised)


class ConvergentBP(AbstractDual):
    """Belief propagation for models on which messages do not converge: a double loop that minimises
    the Bethe free energy (Yuille 2002; Heskes 2006).

    The fixed points of [`ebmlearn.BP`][] are the stationary points of the Bethe free energy. If
    couplings are strong and contradict each other, messages may oscillate forever, whatever the
    damping. Here, each step of the outer loop replaces the concave part of the free energy by its
    tangent, and an inner loop minimises the convex function that is left. `log_partition` rises
    with each step, up to the accuracy of the inner loop, and ends at a local minimum of the free
    energy. That minimum may be far from the truth: look at `converged`, and compare with a sampler.

    It takes much longer than `BP`. Where `BP` converges, both often agree.

    !!! example

        ```python
        model = ebmlearn.BoltzmannMachine.init(8, scale=3.0)
        beliefs = ebmlearn.BP(damping="auto")(model)
        if not beliefs.converged:
            beliefs = ebmlearn.ConvergentBP()(model)
        ```

    **Arguments:**

    - `iterations`: the largest number of steps of the outer loop. A new number needs no
      compilation.
    - `tol`: stop when a step changes no probability by more than this, and tables agree about all
      probabilities up to this number. None makes all steps, and `converged` uses 1e-3.
    """

    _: KW_ONLY
    tol: float | Float[Array, ""] | None = 1e-4
    search = staticmethod(settled)


@eqx.filter_jit
def _solved(
    limits: Limits, problem: Problem, entries: tuple[Entries, ...], search: Search
) -> tuple[Best, Array]:
    """What was found, and scores of all states."""
    shape = len(problem.counts), max(problem.counts)
    stacks = stacks_of(problem.model) or ()
    tables = decomposed(shape, stacks, entries, problem.model.dtype)

    def one(instance: Any) -> tuple[Best, Array]:
        rows, there = instance
        best = search(tables, rows, there, limits)
        floor = jnp.asarray(jnp.finfo(rows.dtype).tiny, rows.dtype)
        scores = jnp.log(jnp.maximum(best.p, floor))
        scores = jnp.where(there, scores, jnp.asarray(LEAST, rows.dtype))
        return best, scores

    # The entries of all tables are kept some twenty times.
    size = 20 * sum(own.places.size for own in entries)
    return each(one, problem.scores(), problem.shape, max(1, KEPT // max(1, size)))


def _pairwise(p: Array, joint: Tables, entries: tuple[Entries, ...], problem: Problem) -> PyTree:
    return problem.model.by_factor(_expected(p, joint, entries, problem).pairs)


def _expected(
    p: Float[Array, "*batch variables most"],
    joint: Tables,
    entries: tuple[Entries, ...],
    problem: Problem,
) -> Expected:
    """Expected statistics of each instance, from the probabilities of states and of the entries of
    tables.
    """
    model = problem.model
    own_units = model.variables.by_name

    def one(p: Float[Array, "variables most"], joint: Tables) -> Expected:
        units, out = messages.probabilities(model.layers, p), ()
        means = {name: x.reshape(-1) for name, x in zip(model.names, units, strict=True)}
        found = iter(restored(stacks_of(model) or (), entries, joint, p))
        for factor in model.factors():
            # Tables are linear in the log-potentials, which several of them may share.
            own, again = eqx.filter_vjp(lambda f: _tables(model, f), factor)  # pyright: ignore
            (gradient,) = again([next(found) for _ in own])
            out += factor.with_own(factor.statistic(gradient), means, own_units)
        return Expected(units, out, (None,) * len(units))

    for _ in problem.shape:
        one = jax.vmap(one)
    return one(p, joint)


def _tables(model: AbstractPlainModel, factor: AbstractFactor) -> list[Array]:
    return [tables for _, tables in stacks_of(model, (factor,)) or ()]
