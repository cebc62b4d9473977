import math
from dataclasses import KW_ONLY
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .. import _checks
from .._sentinels import LEAST
from ..messages import Expected, graph_kinds, MAKERS, Stacks
from ..models import Statistics
from ..models._base import refuse
from ..models._problem import each
from ._base import AbstractInference, check_limits, KEPT, limited, Limits
from ._beliefs import AbstractDerived, Beliefs
from ._power_sums import (
    bound,
    decomposed,
    Decomposition,
    Messages,
    minimised,
    Piece,
    pieces_of,
    restored,
)


class TRBP(AbstractInference):
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
    """

    iterations: int | Int[Array, ""] = 1000
    _: KW_ONLY
    tol: float | Float[Array, ""] | None = 1e-3

    def __check_init__(self):
        check_limits(self.iterations, 0.0, self.tol)

    @property
    def takes(self) -> tuple[str, ...]:
        """Binary units, and graphs."""
        return ("binary", *graph_kinds())

    @property
    def maximises(self) -> Literal["nothing"]:
        """Nothing."""
        return "nothing"

    def _beliefs(self, problem: Any) -> Beliefs:
        model = problem.model
        limits = limited(self.iterations, self.tol, model.dtype)
        listed = MAKERS[model.kind].tables(model)
        if not _checks.is_concrete([members for members, _ in listed]):
            hint = "use it as a constant there, and its log-potentials as the argument"
            refuse(model, "not be an argument of a compiled function", hint)
        shape = _shape(model, problem)
        pieces = pieces_of(shape, listed)
        tables = decomposed(shape, listed, pieces, model.dtype)
        value, beliefs, messages, iterations, residual = _solved(limits, problem, tables)
        told = MAKERS[model.kind].told(problem, beliefs, jnp.ones((), model.dtype))
        return Beliefs(
            problem,
            _Bound(value, messages, tables, listed, pieces),
            log_odds=told.log_odds,
            converged=residual <= limits.tol,
            iterations=iterations,
            residual=residual,
        )

    def _statistics(self, problem: Any) -> Statistics:
        model, beliefs = problem.model, self._beliefs(problem)
        derived: Any = beliefs._derived
        found = derived.expected(problem)
        size = math.prod(problem.shape)
        pairs = tuple(x.reshape(size, *x.shape[len(problem.shape) :]).mean(0) for x in found.pairs)
        return Statistics(
            units=model.units(found.units),
            pairwise=model.factors(pairs),
            squares=found.squares,
            converged=beliefs.converged,
            iterations=beliefs.iterations,
            residual=beliefs.residual,
        )


class _Bound(AbstractDerived):
    """The upper bound, and the probabilities that belong to it."""

    value: Float[Array, "*batch"]
    messages: Messages
    tables: Decomposition
    listed: Stacks
    pieces: tuple[tuple[Piece, ...], ...] = eqx.field(static=True)

    def pairwise(self, problem: Any, log_odds: Any) -> Any:
        return problem.model.factors(self.expected(problem).pairs)

    def log_partition(self, problem: Any, log_odds: Any) -> Float[Array, "*batch"]:
        return self.value

    def expected(self, problem: Any) -> Expected:
        """Expected statistics of each instance."""
        shape, model = problem.shape, problem.model
        p, joint = _gradient(problem, self.tables, self.messages)
        members = tuple(own for own, _ in self.listed)

        def one(p: Array, joint: Any) -> Expected:
            tables = restored(self.pieces, self.listed, joint, p)
            return MAKERS[model.kind].expected(model, members, p, tables)

        for _ in shape:
            one = jax.vmap(one)
        return one(p, joint)


def _shape(model: Any, problem: Any) -> tuple[int, int]:
    """The number of variables, and of the states of the one that has most."""
    maker = MAKERS[model.kind]
    instances = jax.eval_shape(lambda: maker.instances(problem))
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), instances)
    rows, _ = jax.eval_shape(lambda x: maker.rows(model, x), one)
    return rows.shape


def _at_once(tables: Decomposition) -> int:
    """How many instances are treated at once."""
    return max(1, KEPT // 16 // max(1, sum(x.tables.size for x in tables.stacks)))


@eqx.filter_jit
def _solved(
    limits: Limits, problem: Any, tables: Decomposition
) -> tuple[Array, Any, Messages, Array, Array]:
    """The bound, beliefs, messages, steps, and the last gradient."""
    model, maker = problem.model, MAKERS[problem.model.kind]

    def one(instance: Any) -> Any:
        rows, there = maker.rows(model, instance)
        fixed = jax.lax.stop_gradient((tables, rows))
        found, iterations, residual = minimised(*fixed, there, limits)
        # The bound is stationary in the messages, so its gradient needs none through them.
        found, residual = jax.lax.stop_gradient((found, residual))
        value, p = jax.value_and_grad(bound, argnums=2)(found, tables, rows, there)
        floor = jnp.asarray(jnp.finfo(p.dtype).tiny, p.dtype)
        scores = jnp.where(there, jnp.log(jnp.maximum(p, floor)), jnp.asarray(LEAST, p.dtype))
        return value, maker.scored(scores, instance), found, iterations, residual

    return each(one, maker.instances(problem), problem.shape, _at_once(tables))


@eqx.filter_jit
def _gradient(problem: Any, tables: Decomposition, messages: Messages) -> tuple[Array, Any]:
    """The probabilities of states, and of the entries of tables."""
    model, maker = problem.model, MAKERS[problem.model.kind]

    def one(args: tuple[Any, Messages]) -> tuple[Array, Any]:
        instance, at = args
        rows, there = maker.rows(model, instance)

        def value(rows: Array, values: tuple[Array, ...]) -> Float[Array, ""]:
            stacks = zip(tables.stacks, values, strict=True)
            own = tuple(x._replace(tables=table) for x, table in stacks)
            return bound(at, tables._replace(stacks=own), rows, there)

        return jax.grad(value, argnums=(0, 1))(rows, tuple(x.tables for x in tables.stacks))

    shape, size = problem.shape, math.prod(problem.shape)
    flat = jax.tree.map(lambda x: x.reshape(size, *x.shape[len(shape) :]), messages)
    return each(one, (maker.instances(problem), flat), shape, _at_once(tables))


TRBP.__init__.__doc__ = """**Arguments:**

- `iterations`: the largest number of steps. A new number needs no compilation.
- `tol`: stop when no entry of the gradient is larger than this: tables then agree about all
  probabilities up to this number. None makes all steps, and `converged` uses 1e-3.
"""
