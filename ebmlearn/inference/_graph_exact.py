import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .. import messages
from ..messages import GraphInstance, Product
from ..models import AbstractGraphModel, Statistics
from ..models._problem import each, each_and_mean
from ._beliefs import AbstractDerived, Beliefs


# How many configurations are looked at together.
_CHUNK = 1024


class _Enumerated(AbstractDerived):
    """What enumeration says of the configurations of factors."""

    value: Float[Array, "*batch"]
    product: Product = eqx.field(static=True)

    def pairwise(self, problem: Any, log_odds: Any) -> Any:
        return problem.model.factors(_factors(problem, self.product))

    def log_partition(self, problem: Any, log_odds: Any) -> Float[Array, "*batch"]:
        return self.value


def graph_beliefs(problem: Any, product: Product, max_units: int) -> Beliefs:
    """Beliefs by enumerating all configurations of a graph."""
    _check_size(problem.model, max_units)
    log_z, marginals = _solved(problem, product)
    shape = problem.shape
    return Beliefs(
        problem,
        _Enumerated(log_z, product),
        log_odds=problem.model.units((jnp.log(problem.model.padded(marginals)),)),
        # Evidence may leave no configuration.
        converged=jnp.isfinite(log_z),
        iterations=jnp.zeros(shape, jnp.int32),
        residual=jnp.zeros(shape, log_z.dtype),
    )


@eqx.filter_jit
def graph_statistics(problem: Any, product: Product, max_units: int) -> Statistics:
    """Expected statistics by enumerating all configurations of a graph."""
    model, shape = problem.model, problem.shape
    _check_size(model, max_units)

    def one(instance: GraphInstance) -> tuple[Any, Any]:
        marginals, factors = _gradients(model, instance, product)
        return model.padded(marginals), factors

    units, factors = each_and_mean(one, messages.instances(problem), shape, 64)
    return Statistics(
        units=model.units((units,)),
        pairwise=model.factors(factors),
        squares=(),
        converged=jnp.isfinite(units).all((-2, -1)),
        iterations=jnp.zeros(shape, jnp.int32),
        residual=jnp.zeros(shape, units.dtype),
    )


def _check_size(model: AbstractGraphModel, max_units: int) -> None:
    size = math.prod(int(n) for n in model.num_states)
    if size > 2**max_units:
        raise ValueError(
            f"`model` must have at most 2**{max_units} configurations to enumerate, got {size}:"
            " raise `max_units`."
        )


@eqx.filter_jit
def _solved(problem: Any, product: str) -> tuple[Array, Array]:
    """Log Z, and the probability of each state of each variable."""

    def one(instance: GraphInstance) -> tuple[Array, Array]:
        (unary,) = instance.unary
        return jax.value_and_grad(
            lambda u: _log_z(problem.model, instance._replace(unary=(u,)), product)
        )(unary)

    return each(one, messages.instances(problem), problem.shape, 64)


@eqx.filter_jit
def _factors(problem: Any, product: str) -> Any:
    def one(instance: GraphInstance) -> Any:
        return _gradients(problem.model, instance, product)[1]

    return each(one, messages.instances(problem), problem.shape, 64)


def _gradients(model: Any, instance: GraphInstance, product: str) -> tuple[Array, Any]:
    """The probabilities of states, and of the configurations of factors: the gradient of log Z."""
    (unary,) = instance.unary

    def log_z(unary: Array, potentials: Any) -> Float[Array, ""]:
        changed = eqx.tree_at(lambda m: m.log_potentials, model, potentials)
        return _log_z(changed, instance._replace(unary=(unary,)), product)

    return jax.grad(log_z, argnums=(0, 1))(unary, model.log_potentials)


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
        scores = model.log_potential(rows, "max" if product == "max" else "sum") + unary[
            rows + starts.astype(np.int32)[None, :]
        ].sum(-1)
        allowed = index < total
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
