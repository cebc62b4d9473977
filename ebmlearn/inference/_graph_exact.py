import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .. import messages
from .._sentinels import EXCLUDED
from ..messages import GraphInstance, Product
from ..models import Statistics
from ..models._problem import each, each_and_mean
from ._base import TooLarge
from ._beliefs import AbstractDerived, Beliefs
from ._graph_elimination import check_width, eliminated


# How many configurations are looked at together.
_CHUNK = 1024
# Up to so many bits of configurations, listing them on the device is faster.
_FEW = 12


class _Enumerated(AbstractDerived):
    """What is known of the configurations of factors."""

    value: Float[Array, "*batch"]
    way: "Way" = eqx.field(static=True)

    def pairwise(self, problem: Any, log_odds: Any) -> Any:
        return problem.model.factors(_factors(problem, self.way))

    def log_partition(self, problem: Any, log_odds: Any) -> Float[Array, "*batch"]:
        return self.value


class Way(NamedTuple):
    """How log Z of a graph is found: all configurations are listed, or variables are eliminated
    with tables of at most `2**most` entries.
    """

    product: Product
    eliminates: bool
    most: int

    def log_z(self, model: Any, instance: GraphInstance) -> Float[Array, ""]:
        """Log Z of one instance, or its largest log-potential."""
        if self.eliminates:
            return eliminated(model, instance, self.product, self.most)[0]
        return _log_z(model, instance, self.product)

    def solved(
        self, model: Any, instance: GraphInstance
    ) -> tuple[Float[Array, ""], Float[Array, " states"]]:
        """Log Z of one instance, and the probability of each state of each variable."""
        if self.eliminates:
            return eliminated(model, instance, self.product, self.most)
        (unary,) = instance.unary
        return jax.value_and_grad(lambda u: self.log_z(model, instance._replace(unary=(u,))))(unary)


def way_of(problem: Any, product: Product, method: str | None, most: int) -> Way:
    """How to find log Z of a graph. Raises `ValueError` if it has too many configurations."""
    model = problem.model
    size = math.prod(int(n) for n in model.num_states)
    tables = model.as_tables() is not None
    if method == "elimination" and not tables:
        raise ValueError(
            f'`method="elimination"` needs tables, got a {type(model).__name__}: write it as a'
            " `TableModel`."
        )
    if method == "elimination" or (method is None and tables and size > 2**_FEW):
        check_width(problem, product, most)
        return Way(product, True, most)
    if size > 2**most:
        raise TooLarge(
            f"`model` must have at most 2**{most} configurations to enumerate, got {size}: raise"
            " `max_units`."
        )
    return Way(product, False, most)


def graph_beliefs(problem: Any, way: Way) -> Beliefs:
    """Exact beliefs of a graph."""
    log_z, marginals = _solved(problem, way)
    shape = problem.shape
    return Beliefs(
        problem,
        _Enumerated(log_z, way),
        log_odds=problem.model.units((jnp.log(problem.model.padded(marginals)),)),
        # Evidence may leave no configuration.
        converged=jnp.isfinite(log_z),
        iterations=jnp.zeros(shape, jnp.int32),
        residual=jnp.zeros(shape, log_z.dtype),
    )


@eqx.filter_jit
def graph_statistics(problem: Any, way: Way) -> Statistics:
    """Exact expected statistics of a graph."""
    model, shape = problem.model, problem.shape

    def one(instance: GraphInstance) -> tuple[Any, Any]:
        log_z, (marginals, factors) = _gradients(model, instance, way)
        return (log_z, model.padded(marginals)), factors

    (log_z, units), factors = each_and_mean(one, messages.instances(problem), shape, 64)
    return Statistics(
        units=model.units((units,)),
        pairwise=model.factors(factors),
        squares=(),
        # Evidence may leave no configuration.
        converged=jnp.isfinite(log_z),
        iterations=jnp.zeros(shape, jnp.int32),
        residual=jnp.zeros(shape, units.dtype),
    )


@eqx.filter_jit
def _solved(problem: Any, way: Way) -> tuple[Array, Array]:
    """Log Z, and the probability of each state of each variable."""

    def one(instance: GraphInstance) -> tuple[Array, Array]:
        return way.solved(problem.model, instance)

    return each(one, messages.instances(problem), problem.shape, 64)


@eqx.filter_jit
def _factors(problem: Any, way: Way) -> Any:
    def one(instance: GraphInstance) -> Any:
        return _gradients(problem.model, instance, way)[1][1]

    return each(one, messages.instances(problem), problem.shape, 64)


def _gradients(model: Any, instance: GraphInstance, way: Way) -> tuple[Array, tuple[Array, Any]]:
    """Log Z and its gradient: the probabilities of states, and of the configurations of factors."""
    (unary,) = instance.unary

    def log_z(unary: Array, potentials: Any) -> Float[Array, ""]:
        changed = eqx.tree_at(lambda m: m.log_potentials, model, potentials)
        return way.log_z(changed, instance._replace(unary=(unary,)))

    return jax.value_and_grad(log_z, argnums=(0, 1))(unary, model.log_potentials)


def _log_z(model: Any, instance: GraphInstance, product: str) -> Float[Array, ""]:
    (unary,) = instance.unary
    counts = np.asarray(model.num_states)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    total = math.prod(int(n) for n in counts)
    places = np.concatenate([[1], np.cumprod(counts[::-1].astype(np.int64))[:-1]])[::-1]
    nothing = jnp.asarray(-jnp.inf, unary.dtype)

    def listed(first: Int[Array, ""]) -> tuple[Array, Array]:
        """The scores of a part of the configurations, and the numbers of what they are like with
        all variables that are summed over at 0.
        """
        index = first + jnp.arange(min(_CHUNK, total), dtype=jnp.int32)
        rows = index[:, None] // places.astype(np.int32)[None, :] % counts.astype(np.int32)[None, :]
        own = unary[rows + starts.astype(np.int32)[None, :]]
        scores = model.log_potential(rows, "max" if product == "max" else "sum") + own.sum(-1)
        allowed = (index < total) & (own > EXCLUDED / 2).all(-1)
        if instance.clamp is not None:
            held = instance.clamp[None, :]
            allowed = allowed & ((held < 0) | (held == rows)).all(-1)
        own = places.astype(np.int32)
        if instance.outputs is not None:
            own = jnp.where(instance.outputs, own, jnp.zeros_like(own))
        return jnp.where(allowed, scores, nothing), rows @ own

    @jax.checkpoint
    def part(first: Int[Array, ""]) -> Float[Array, ""]:
        scores, _ = listed(first)
        if product == "max":
            return _largest(scores)
        top = jax.lax.stop_gradient(scores.max())
        top = jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top))
        # A sum of nothing is not differentiable as a logarithm.
        mass = jnp.where(scores > nothing, jnp.exp(scores - top), jnp.zeros_like(scores)).sum()
        some = mass > 0
        return jnp.where(some, top + jnp.log(jnp.where(some, mass, jnp.ones_like(mass))), nothing)

    firsts = jnp.arange(0, total, _CHUNK, dtype=jnp.int32)
    if product == "mixed":
        scores, number = jax.lax.map(jax.checkpoint(listed), firsts)
        return _best_sum(scores.reshape(-1), number.reshape(-1), total)
    parts = jax.lax.map(part, firsts)
    return _largest(parts) if product == "max" else jax.nn.logsumexp(parts)


def _best_sum(scores: Float[Array, " n"], of: Int[Array, " n"], size: int) -> Float[Array, ""]:
    """The largest of the logarithms of sums of exponentials, `of` which each score is a term."""
    top = jax.lax.stop_gradient(jax.ops.segment_max(scores, of, size))
    mass = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top))[of])
    log_sums = top + jnp.log(jax.lax.stop_gradient(jax.ops.segment_sum(mass, of, size)))
    # The terms of the largest sum alone, of which some are nothing.
    mine = (of == jnp.argmax(log_sums)) & (scores > -jnp.inf)
    return jax.nn.logsumexp(jnp.where(mine, scores, -jnp.inf), where=mine)


def _largest(x: Float[Array, " n"]) -> Float[Array, ""]:
    """The largest number, whose gradient is that of one of them even if several are as large."""
    return x[jnp.argmax(x)]
