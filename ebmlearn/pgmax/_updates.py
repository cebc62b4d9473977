"""Messages of logical and pool factors, at temperature 1 or 0.

PGMax's logical factors take differences of sums and call nothing what is closer than 1e-4, so that
they exclude states that are only rare: log-odds of -12 become -1e32. These are sums of positive
terms: each factor sends one log-odds to each of its variables, and what is left out of a sum is
never subtracted from it where it is the largest term. Pool factors are written in the same way.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from pgmax import factor

from .._sentinels import NOTHING


def logical(
    vtof_msgs: Float[Array, " edge_states"],
    temperature: float,
    *,
    parents_factor_indices: Int[Array, " parents"],
    parents_msg_indices: Int[Array, " parents"],
    children_edge_states: Int[Array, " factors"],
    edge_states_offset: Any,
    **unused: Any,
) -> Float[Array, " edge_states"]:
    """OR: the child is 0 if all parents are, else 1. AND is the same with states exchanged, which
    the offset says. With $d$ the log-odds of the parents and $e$ those of the child, a parent gets
    $-\\log(1 - e^{-s} + e^{-s - e})$, where $e^s$ is the product of $1 + e^d$ over the others.
    """
    of, size = parents_factor_indices, children_edge_states.shape[0]
    d = vtof_msgs[parents_msg_indices + edge_states_offset] - vtof_msgs[parents_msg_indices]
    child = vtof_msgs[children_edge_states + edge_states_offset] - vtof_msgs[children_edge_states]
    e = child[of]
    if temperature:
        s, others = _sums(jax.nn.softplus(d), of, size)
        to_parents = -jnp.logaddexp(log_1m_exp(others), -(others + e))
        to_children = s + log_1m_exp(s)
        # Where the sum is no number any more, its terms are e^d themselves.
        rare, _ = _log_sums(d, of, size)
        to_children = jnp.where(s < 1e-30, rare, to_children)
    else:
        s, others = _sums(jnp.maximum(d, 0), of, size)
        best, best_other = _maxima(d, of, size)
        to_parents = jnp.minimum(others + e, jnp.maximum(-best_other, 0))
        to_children = s + jnp.minimum(best, 0)
    out = jnp.zeros_like(vtof_msgs)
    out = out.at[parents_msg_indices + edge_states_offset].set(to_parents)
    return out.at[children_edge_states + edge_states_offset].set(to_children)


def pool(
    vtof_msgs: Float[Array, " edge_states"],
    temperature: float,
    *,
    pool_choices_factor_indices: Int[Array, " choices"],
    pool_choices_msg_indices: Int[Array, " choices"],
    pool_indicators_edge_states: Int[Array, " factors"],
    **unused: Any,
) -> Float[Array, " edge_states"]:
    """All choices are 0 and so is the indicator, or exactly one is 1 and so is the indicator."""
    of, size = pool_choices_factor_indices, pool_indicators_edge_states.shape[0]
    d = vtof_msgs[pool_choices_msg_indices + 1] - vtof_msgs[pool_choices_msg_indices]
    e = vtof_msgs[pool_indicators_edge_states + 1] - vtof_msgs[pool_indicators_edge_states]
    if temperature:
        to_indicators, others = _log_sums(d, of, size)
        to_choices = -jnp.logaddexp(-e[of], others)
    else:
        to_indicators, others = _maxima(d, of, size)
        to_choices = jnp.minimum(e[of], -others)
    out = jnp.zeros_like(vtof_msgs).at[pool_choices_msg_indices + 1].set(to_choices)
    return out.at[pool_indicators_edge_states + 1].set(to_indicators)


UPDATES = {factor.ORFactor: logical, factor.ANDFactor: logical, factor.PoolFactor: pool}


def _largest(x: Float[Array, " n"], of: Int[Array, " n"], size: int) -> Array:
    """Which entry is the largest of its factor: one of each, though some may be equal."""
    top = jax.ops.segment_max(x, of, size)
    place = jnp.arange(x.shape[0])
    first = jax.ops.segment_min(jnp.where(x == top[of], place, x.shape[0]), of, size)
    return place == first[of]


def _sums(
    x: Float[Array, " n"], of: Int[Array, " n"], size: int
) -> tuple[Float[Array, " factors"], Float[Array, " n"]]:
    """The sums of terms that are not negative, and for each term the sum of the others."""
    largest = jax.lax.stop_gradient(_largest(x, of, size))
    rest = jax.ops.segment_sum(jnp.where(largest, jnp.zeros_like(x), x), of, size)
    top = jax.ops.segment_sum(jnp.where(largest, x, jnp.zeros_like(x)), of, size)
    mine = jnp.where(largest, jnp.zeros_like(x), x)
    # Without a smaller term: it is added to the largest only after it has been taken away.
    others = (rest[of] - mine) + jnp.where(largest, jnp.zeros_like(x), top[of])
    return rest + top, jnp.maximum(others, 0)


def _log_sums(
    x: Float[Array, " n"], of: Int[Array, " n"], size: int
) -> tuple[Float[Array, " factors"], Float[Array, " n"]]:
    """The logarithm of the sum of exponentials, and that without each of them."""
    largest = jax.lax.stop_gradient(_largest(x, of, size))
    _, second = _maxima(x, of, size)
    # Relative to the largest of those that are left.
    top = jax.lax.stop_gradient(jax.ops.segment_max(x, of, size))
    total = jax.ops.segment_sum(jnp.exp(x - top[of]), of, size)
    shift = jax.lax.stop_gradient(jnp.maximum(second, NOTHING))
    runner_up = jax.ops.segment_max(jnp.where(largest, shift, NOTHING), of, size)
    small = jnp.where(largest, NOTHING, x)
    rest = jax.ops.segment_sum(
        jnp.where(largest, jnp.zeros_like(x), jnp.exp(small - runner_up[of])), of, size
    )
    alone = rest <= 0
    log_rest = runner_up + jnp.log(jnp.where(alone, jnp.ones_like(rest), rest))
    log_rest = jnp.where(alone, NOTHING, log_rest)
    mine = jnp.where(largest, jnp.zeros_like(x), jnp.exp(jnp.minimum(x - top[of], 0)))
    left = top[of] + jnp.log(jnp.maximum(total[of] - mine, 0.5))
    return top + jnp.log(total), jnp.where(largest, log_rest[of], left)


def _maxima(
    x: Float[Array, " n"], of: Int[Array, " n"], size: int
) -> tuple[Float[Array, " factors"], Float[Array, " n"]]:
    """The maxima, and for each entry the maximum of the others."""
    largest = _largest(x, of, size)
    top = jax.ops.segment_max(x, of, size)
    second = jax.ops.segment_max(jnp.where(largest, jnp.full_like(x, NOTHING), x), of, size)
    return top, jnp.where(largest, second[of], top[of])


def log_1m_exp(x: Float[Array, " n"]) -> Float[Array, " n"]:
    """log(1 - exp(-x)) for x >= 0."""
    safe = jnp.where(x > 0, x, jnp.ones_like(x))
    small = jnp.log(-jnp.expm1(-jnp.minimum(safe, 1)))
    large = jnp.log1p(-jnp.exp(-jnp.maximum(safe, 0.5)))
    return jnp.where(x > 0, jnp.where(safe < 0.7, small, large), jnp.full_like(x, NOTHING))
