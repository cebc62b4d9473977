import abc
import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .. import _checks, messages
from .._sentinels import LEAST
from ..factors import Stacks
from ..messages import Expected
from ..models import AbstractModel, Statistics
from ..models._listed import stacks_of
from ..models._problem import each
from ..models._require import refuse
from ._base import AbstractInference, check_limits, KEPT, limited, Limits
from ._beliefs import AbstractDerived, Beliefs
from ._power_sums import Best, decomposed, Decomposition, Piece, pieces_of, restored


# From tables, unary scores, the states that are possible, and limits.
Search = Callable[[Decomposition, Array, Array, Limits], Best]


class AbstractDual(AbstractInference):
    """Inference by the search of a value of log Z over messages between the tables of a model, in
    its dual form.
    """

    iterations: eqx.AbstractVar[int | Int[Array, ""]]
    tol: eqx.AbstractVar[float | Float[Array, ""] | None]

    @abc.abstractmethod
    def _search(self) -> Search:
        """What finds the value and the probabilities that belong to it, of one instance."""

    @property
    def takes(self) -> tuple[str, ...]:
        """Models of binary and categorical units."""
        return ("binary", "categorical", "a graph")

    def accepts(self, model: AbstractModel) -> bool:
        """Whether units have a few states each."""
        return messages.serves(model) and model.numbered  # pyright: ignore

    @property
    def maximises(self) -> Literal["nothing"]:
        """Nothing."""
        return "nothing"

    def __check_init__(self):
        check_limits(self.iterations, 0.0, self.tol)

    def _beliefs(self, problem: Any) -> Beliefs:
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
        best, scores = _solved(limits, problem, listed, pieces, self._search())
        return Beliefs(
            problem,
            _Found(best, listed, pieces),
            log_odds=problem.named(scores),
            converged=best.residual <= limits.tol,
            iterations=best.iterations,
            residual=best.residual,
        )

    def _statistics(self, problem: Any) -> Statistics:
        model, beliefs = problem.model, self._beliefs(problem)
        derived: Any = beliefs._derived
        found = derived.expected(problem)
        size = math.prod(problem.shape)
        pairs = tuple(x.reshape(size, *x.shape[len(problem.shape) :]).mean(0) for x in found.pairs)
        return Statistics(
            units=problem.expected(found.units),
            pairwise=model.by_factor(pairs),
            squares=found.squares,
            converged=beliefs.converged,
            iterations=beliefs.iterations,
            residual=beliefs.residual,
        )


class _Found(AbstractDerived):
    """The value of log Z, and the probabilities that belong to it."""

    best: Best
    listed: Stacks
    pieces: tuple[tuple[Piece, ...], ...] = eqx.field(static=True)

    def pairwise(self, problem: Any, log_odds: Any) -> Any:
        return problem.model.by_factor(self.expected(problem).pairs)

    def log_partition(self, problem: Any, log_odds: Any) -> Float[Array, "*batch"]:
        return self.best.value

    def expected(self, problem: Any) -> Expected:
        """Expected statistics of each instance."""
        return _expected(problem, self.best, self.listed, self.pieces)


def _shape(problem: Any) -> tuple[int, int]:
    """The number of variables, and of the states of the one that has most."""
    rows, _ = jax.eval_shape(lambda: problem.scores())
    return rows.shape[1:]


def _kept(table: Array) -> np.ndarray | slice:
    """Tables that join something: not those that are known to be zero."""
    if not _checks.is_concrete(table):
        return slice(None)
    return np.flatnonzero(np.asarray(table).reshape(len(table), -1).any(-1))


def _listed(model: Any) -> Stacks:
    """All tables that join something."""
    out = []
    for members, table in stacks_of(model) or ():
        kept = _kept(table)
        out.append((members[kept], table[kept]))
    return tuple(out)


@eqx.filter_jit
def _solved(
    limits: Limits,
    problem: Any,
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
    problem: Any, best: Best, listed: Stacks, pieces: tuple[tuple[Piece, ...], ...]
) -> Expected:
    """Expected statistics of each instance."""
    model = problem.model
    factors = model.factors()

    def one(p: Array, joint: tuple[Array, ...]) -> Expected:
        found, out = iter(restored(pieces, listed, joint, p)), []
        units = messages.probabilities(model.layers, p)
        names = messages.names_of(model)
        means = {name: x.reshape(-1) for name, x in zip(names, units, strict=True)}
        own_units = dict(zip(names, model.layers, strict=True))
        for factor in factors:
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

    for _ in problem.shape:
        one = jax.vmap(one)
    return one(best.p, best.joint)
