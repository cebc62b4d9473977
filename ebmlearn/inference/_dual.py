import functools
import math
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .. import _checks, messages
from .._sentinels import LEAST
from ..factors import Stacks
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
    minimised,
    Piece,
    pieces_of,
    restored,
    settled,
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
        scores, best, found, went = self._found(problem)
        derived = Found(best.value, found, type(self).__name__)
        return Beliefs(problem, derived, log_odds=problem.named(scores), **went._asdict())

    def _statistics(self, problem: Problem) -> Statistics:
        model, (_, _, found, went) = problem.model, self._found(problem)
        expected = found.expected(problem)
        size = math.prod(problem.shape)
        pairs = tuple(
            x.reshape(size, *x.shape[len(problem.shape) :]).mean(0) for x in expected.pairs
        )
        units = problem.expected(expected.units)
        return Statistics(units, model.by_factor(pairs), expected.squares, *went)

    def _found(self, problem: Problem) -> tuple[Array, Best, "_Pairs", Went]:
        """Scores of all states, what was found, what it says of factors, and how it went."""
        model = problem.model
        limits = limited(self.iterations, self.tol, model.dtype)
        if any(factor.helpers for factor in model.factors()):
            hint = "write it as tables by `uai.to_tables`"
            refuse(model, f"have factors of few variables for {type(self).__name__}", hint)
        listed = _listed(model)
        if not _checks.is_concrete([members for members, _ in listed]):
            hint = "use it as a constant there, and its log-potentials as the argument"
            refuse(model, "not be an argument of a compiled function", hint)
        pieces = pieces_of((len(problem.counts), max(problem.counts)), listed)
        best, scores = _solved(limits, problem, listed, pieces, type(self).search)
        went = Went(best.residual <= limits.tol, best.iterations, best.residual)
        return scores, best, _Pairs(best.p, best.joint, listed, pieces), went


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
        above = ebmlearn.TRBP()(model).log_partition
        below = ebmlearn.MeanField(iterations=100)(model).log_partition
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
        beliefs = ebmlearn.BP(1000, damping="auto", tol=1e-4)(model)
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


class _Pairs(eqx.Module):
    """What the probabilities of states and of the entries of tables say of factors."""

    p: Float[Array, "*batch variables most"]
    joint: tuple[Float[Array, "..."], ...]
    listed: Stacks
    pieces: tuple[tuple[Piece, ...], ...] = eqx.field(static=True)

    def __call__(self, problem: Problem) -> PyTree:
        return problem.model.by_factor(self.expected(problem).pairs)

    def expected(self, problem: Problem) -> Expected:
        """Expected statistics of each instance."""
        one = functools.partial(_expected, problem.model, self.listed, self.pieces)
        for _ in problem.shape:
            one = jax.vmap(one)
        return one(self.p, self.joint)


def _kept(table: Array) -> np.ndarray | slice:
    """Tables that join something: not those that are known to be zero."""
    if not _checks.is_concrete(table):
        return slice(None)
    return np.flatnonzero(np.asarray(table).reshape(len(table), -1).any(-1))


def _listed(model: AbstractPlainModel) -> Stacks:
    """All tables that join something."""
    found = ((members, table, _kept(table)) for members, table in stacks_of(model) or ())
    return tuple((members[kept], table[kept]) for members, table, kept in found)


@eqx.filter_jit
def _solved(
    limits: Limits,
    problem: Problem,
    listed: Stacks,
    pieces: tuple[tuple[Piece, ...], ...],
    search: Search,
) -> tuple[Best, Array]:
    """What was found, and scores of all states."""
    shape = len(problem.counts), max(problem.counts)
    tables = decomposed(shape, listed, pieces, problem.model.dtype)

    def one(instance: Any) -> tuple[Best, Array]:
        rows, there = instance
        best = search(tables, rows, there, limits)
        floor = jnp.asarray(jnp.finfo(rows.dtype).tiny, rows.dtype)
        scores = jnp.log(jnp.maximum(best.p, floor))
        scores = jnp.where(there, scores, jnp.asarray(LEAST, rows.dtype))
        return best, scores

    # The entries of all tables are kept some twenty times.
    size = 20 * sum(table.size for _, table in listed)
    return each(one, problem.scores(), problem.shape, max(1, KEPT // max(1, size)))


def _expected(
    model: AbstractPlainModel,
    listed: Stacks,
    pieces: tuple[tuple[Piece, ...], ...],
    p: Float[Array, "variables most"],
    joint: tuple[Array, ...],
) -> Expected:
    """Expected statistics of one instance."""
    found, out = iter(restored(pieces, listed, joint, p)), []
    units, names = messages.probabilities(model.layers, p), model.names
    means = {name: x.reshape(-1) for name, x in zip(names, units, strict=True)}
    own_units = dict(zip(names, model.layers, strict=True))
    for factor in model.factors():
        tables = []
        for members, table in stacks_of(model, (factor,)) or ():
            # Variables that nothing joins are independent.
            own = jnp.ones((len(table), *(1,) * (table.ndim - 1)), p.dtype)
            for axis, size in enumerate(table.shape[1:]):
                shape = (len(table), *(size if k == axis else 1 for k in range(table.ndim - 1)))
                own = own * p[members[:, axis], :size].reshape(shape)
            tables.append(own.at[_kept(table)].set(next(found)))
        # Tables are linear in the log-potentials, which several of them may share.
        again = eqx.filter_vjp(lambda f: [x for _, x in stacks_of(model, (f,))], factor)[1]  # pyright: ignore
        (gradient,) = again(tables)
        out += factor.with_own(factor.statistic(gradient), means, own_units)
    return Expected(units, tuple(out), (None,) * len(units))
