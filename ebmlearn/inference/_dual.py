import abc
import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .. import _checks
from .._sentinels import LEAST
from ..messages import Expected, graph_kinds, MAKERS, Stacks
from ..models import Statistics
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
        """Binary units, and graphs."""
        return ("binary", *graph_kinds())

    @property
    def maximises(self) -> Literal["nothing"]:
        """Nothing."""
        return "nothing"

    def __check_init__(self):
        check_limits(self.iterations, 0.0, self.tol)

    def _beliefs(self, problem: Any) -> Beliefs:
        model = problem.model
        limits = limited(self.iterations, self.tol, model.dtype)
        listed = MAKERS[model.kind].tables(model)
        if not _checks.is_concrete([members for members, _ in listed]):
            hint = "use it as a constant there, and its log-potentials as the argument"
            refuse(model, "not be an argument of a compiled function", hint)
        pieces = pieces_of(_shape(problem), listed)
        best, beliefs = _solved(limits, problem, listed, pieces, self._search())
        told = MAKERS[model.kind].told(problem, beliefs, jnp.ones((), model.dtype))
        return Beliefs(
            problem,
            _Found(best, listed, pieces),
            log_odds=told.log_odds,
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
            units=model.units(found.units),
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
    maker = MAKERS[problem.model.kind]
    instances = jax.eval_shape(lambda: maker.instances(problem))
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), instances)
    rows, _ = jax.eval_shape(lambda x: maker.rows(problem.model, x), one)
    return rows.shape


@eqx.filter_jit
def _solved(
    limits: Limits,
    problem: Any,
    listed: Stacks,
    pieces: tuple[tuple[Piece, ...], ...],
    search: Search,
) -> tuple[Best, tuple[Array, ...]]:
    """What was found, and beliefs in the form of messages."""
    model, maker = problem.model, MAKERS[problem.model.kind]
    tables = decomposed(_shape(problem), listed, pieces, model.dtype)

    def one(instance: Any) -> tuple[Best, tuple[Array, ...]]:
        rows, there = maker.rows(model, instance)
        best = search(tables, rows, there, limits)
        floor = jnp.asarray(jnp.finfo(rows.dtype).tiny, rows.dtype)
        scores = jnp.log(jnp.maximum(best.p, floor))
        scores = jnp.where(there, scores, jnp.asarray(LEAST, rows.dtype))
        return best, maker.scored(scores, instance)

    # The entries of all tables are kept some twenty times.
    size = 20 * sum(table.size for _, table in listed)
    return each(one, maker.instances(problem), problem.shape, max(1, KEPT // max(1, size)))


def _expected(
    problem: Any, best: Best, listed: Stacks, pieces: tuple[tuple[Piece, ...], ...]
) -> Expected:
    """Expected statistics of each instance."""
    model, members = problem.model, tuple(own for own, _ in listed)

    def one(p: Array, joint: tuple[Array, ...]) -> Expected:
        tables = restored(pieces, listed, joint, p)
        return MAKERS[model.kind].expected(model, members, p, tables)

    for _ in problem.shape:
        one = jax.vmap(one)
    return one(best.p, best.joint)
