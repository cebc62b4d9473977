import functools
import math
from collections.abc import Callable
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
from ._power_sums import Best, decomposed, Decomposition, Piece, pieces_of, restored


# From tables, unary scores, the states that are possible, and limits.
Search = Callable[[Decomposition, Array, Array, Limits], Best]


class AbstractDual(AbstractInference):
    """Inference by the search of a value of log Z over messages between the tables of a model, in
    its dual form. `search` finds the value and the probabilities that belong to it, of one
    instance.
    """

    iterations: eqx.AbstractVar[int | Int[Array, ""]]
    tol: eqx.AbstractVar[float | Float[Array, ""] | None]
    search: ClassVar[Search]
    takes = ("binary", "categorical", "a graph")

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
        pieces = pieces_of(_shape(problem), listed)
        best, scores = _solved(limits, problem, listed, pieces, type(self).search)
        went = Went(best.residual <= limits.tol, best.iterations, best.residual)
        return scores, best, _Pairs(best.p, best.joint, listed, pieces), went


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


def _shape(problem: Problem) -> tuple[int, int]:
    """The number of variables, and of the states of the one that has most."""
    rows, _ = jax.eval_shape(lambda: problem.scores())
    return rows.shape[1:]


def _kept(table: Array) -> np.ndarray | slice:
    """Tables that join something: not those that are known to be zero."""
    if not _checks.is_concrete(table):
        return slice(None)
    return np.flatnonzero(np.asarray(table).reshape(len(table), -1).any(-1))


def _listed(model: AbstractPlainModel) -> Stacks:
    """All tables that join something."""
    out = []
    for members, table in stacks_of(model) or ():
        kept = _kept(table)
        out.append((members[kept], table[kept]))
    return tuple(out)


@eqx.filter_jit
def _solved(
    limits: Limits,
    problem: Problem,
    listed: Stacks,
    pieces: tuple[tuple[Piece, ...], ...],
    search: Search,
) -> tuple[Best, Array]:
    """What was found, and scores of all states."""
    model = problem.model
    tables = decomposed(_shape(problem), listed, pieces, model.dtype)

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
    units, names = messages.probabilities(model.layers, p), messages.names_of(model)
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
