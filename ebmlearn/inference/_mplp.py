from dataclasses import KW_ONLY
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .. import messages
from .._sentinels import CLAMPED
from .._types import AnyArray
from ..messages import graph_kinds, Instance
from ..models import Statistics
from ..models._edges import edges_of
from ..models._problem import each
from ._base import AbstractInference, check_limits, chunk_of, limited, Limits
from ._beliefs import AbstractDerived, Beliefs
from ._graph_mplp import graph_beliefs, graph_statistics


class MPLP(AbstractInference):
    """Max-product linear programming (Globerson & Jaakkola 2007): coordinate descent on the dual of
    the linear relaxation of the MAP problem.

    Unlike max-product it always converges, and up to rounding `log_partition` is an upper bound of
    the largest log-potential, which no sweep raises. If the relaxation is not tight, beliefs are
    ties and `decode` may be poor.

    In layers of units, edges are updated one after another, which is slow; use it to check other
    solvers. In graphs, all variables are updated at once, each a part of the way: one divided by
    the number of variables in its largest factor. A sweep costs as much as one of max-product, and
    OR, AND or pool factors of many variables need many sweeps.

    !!! example

        ```python
        beliefs = ebmlearn.MPLP()(boltzmann)
        beliefs.decode().x, beliefs.log_partition
        ```
    """

    iterations: int | Int[Array, ""] = 1000
    _: KW_ONLY
    tol: float | Float[Array, ""] | None = 1e-6

    def __check_init__(self):
        check_limits(self.iterations, 0.0, self.tol)

    @property
    def takes(self) -> tuple[str, ...]:
        """Binary units, and graphs."""
        return ("binary", *graph_kinds())

    @property
    def maximises(self) -> Literal["all"]:
        """All units."""
        return "all"

    def _beliefs(self, problem: Any) -> Beliefs:
        model = problem.model
        limits = limited(self.iterations, self.tol, model.dtype)
        if model.kind != "binary":
            return graph_beliefs(limits, problem)
        edges, weights = edges_of(model)
        log_odds, bound, iterations, residual = _solved(problem, edges, weights, limits)
        return Beliefs(
            problem,
            _Dual(bound),
            log_odds=model.units(log_odds),
            converged=residual <= limits.tol,
            iterations=iterations,
            residual=residual,
        )

    def _statistics(self, problem: Any) -> Statistics:
        model = problem.model
        if model.kind != "binary":
            return graph_statistics(limited(self.iterations, self.tol, model.dtype), problem)
        beliefs = self._beliefs(problem)
        pairs = tuple(
            x.reshape(-1, *x.shape[-2:]).mean(0) for x in jax.tree.leaves(beliefs.pairwise)
        )
        return Statistics(
            units=model.units(model.encode(beliefs.decode())),
            pairwise=model.by_factor(pairs),
            squares=(None,) * len(model.names),
            converged=beliefs.converged,
            iterations=beliefs.iterations,
            residual=beliefs.residual,
        )


class _Dual(AbstractDerived):
    """Whether both ends of an edge are decoded as 1, and the value of the dual: an upper bound of
    the largest log-potential.
    """

    bound: Float[Array, "*batch"]

    def pairwise(self, problem: Any, log_odds: Any) -> Any:
        model = problem.model
        states = model.encode(problem.decode(log_odds))
        blocks = ((states[b.first], states[b.second]) for b in model.blocks())
        return model.by_factor(
            tuple(first[..., :, None] * second[..., None, :] for first, second in blocks)
        )

    def log_partition(self, problem: Any, log_odds: Any) -> Float[Array, "*batch"]:
        return self.bound


@eqx.filter_jit
def _solved(
    problem: Any,
    edges: Int[AnyArray, "edges 2"],
    weights: Float[Array, " edges"],
    limits: Limits,
) -> tuple[tuple[Array, ...], Array, Array, Array]:
    """Log-odds, the dual bound, sweeps, and the last change."""
    ends = np.cumsum([bias.shape[-1] for bias in problem.model.unary()])[:-1]
    edges = jnp.asarray(edges)

    def one(instance: Instance) -> tuple[tuple[Array, ...], Array, Array, Array]:
        unary, own, held, constant = _given(instance, edges, weights)
        if not edges.shape[0]:
            alone = constant + jnp.maximum(unary, 0).sum()
            fields = jnp.where(held == 0, unary, CLAMPED * held)
            none = jnp.zeros((), jnp.int32), jnp.zeros((), unary.dtype)
            return tuple(jnp.split(fields, ends)), alone, *none

        def update(e: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            messages, fields, change = carry
            pair, w, old = edges[e], own[e], messages[e]
            without = fields[pair] - old
            # What each end would be told by max-product, the other end first.
            told = jnp.maximum(w + without[::-1], 0) - jnp.maximum(without[::-1], 0)
            # An edge without weight, at a unit that is held for instance, has nothing to tell.
            new = jnp.where(w == 0, jnp.zeros_like(old), (told - without) / 2)
            moved = jnp.abs(new - old) / jnp.maximum(jnp.abs(new), 1)
            change = jnp.maximum(change, moved.max())
            return messages.at[e].set(new), fields.at[pair].set(without + new), change

        def sweep(state: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
            start = *state, jnp.zeros((), unary.dtype)
            messages, fields, change = jax.lax.fori_loop(0, edges.shape[0], update, start)
            return (messages, fields), change

        start = jnp.zeros((edges.shape[0], 2), unary.dtype), unary
        (messages, _), iterations, residual = limits.iterate(sweep, start)
        # Added up again: differences accumulate rounding errors.
        fields = unary.at[edges.reshape(-1)].add(messages.reshape(-1))
        to_first, to_second = messages[:, 0], messages[:, 1]
        edge = jnp.maximum(jnp.maximum(-to_first, -to_second), own - to_first - to_second)
        bound = constant + jnp.maximum(fields, 0).sum() + jnp.maximum(edge, 0).sum()
        fields = jnp.where(held == 0, fields, CLAMPED * held)
        return tuple(jnp.split(fields, ends)), bound, iterations, residual

    return each(one, messages.instances(problem), problem.shape, chunk_of(problem.model))


def _given(
    instance: Instance, edges: Int[Array, "edges 2"], weights: Float[Array, " edges"]
) -> tuple[Float[Array, " n"], Float[Array, " edges"], Float[Array, " n"], Float[Array, ""]]:
    """The problem that is left to the free units: unary terms, weights, which units are held at 1
    or 0 as 1 or -1, and the log-potential of these.
    """
    unary = jnp.concatenate(instance.unary)
    held = jnp.concatenate(
        [
            jnp.zeros_like(u) if c is None else c
            for u, c in zip(instance.unary, instance.clamp, strict=True)
        ]
    )
    free, on = held == 0, (held > 0).astype(unary.dtype)
    first, second = edges[:, 0], edges[:, 1]
    constant = unary @ on + weights @ (on[first] * on[second])
    told = unary.at[first].add(weights * on[second]).at[second].add(weights * on[first])
    left = jnp.where(free, told, jnp.zeros_like(told))
    own = jnp.where(free[first] & free[second], weights, jnp.zeros_like(weights))
    return left, own, held, constant


MPLP.__init__.__doc__ = """**Arguments:**

- `iterations`: the largest number of sweeps over all edges.
- `tol`: stop when no message changes by more than this in a sweep, relative to its size if that is
  above 1; in graphs, when none is further than this from where it moves. None makes all sweeps.
"""
