"""What factors of each kind that is not dense compute: messages, and their share of log Z.

Excluded states carry messages of about -1e6. Each sum is shifted by the larger message of each
variable first, so that these cost no digits of the others.

PGMax's logical factors take differences of sums and call nothing what is closer than 1e-4, so that
they exclude states that are only rare: log-odds of -12 become -1e32. Ours are sums of positive
terms: each factor sends one log-odds to each of its variables, and what is left out of a sum is
never subtracted from it where it is the largest term. Pool factors are written in the same way.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from pgmax import factor

from .._sentinels import EXCLUDED, NOTHING
from ..messages import Product
from ._nnbm_group import log_normalisers, NNBMFactor


# From the type of a factor with a variable that the others determine to the names of its arguments:
# the factors and the messages of what determines it, and its own messages.
_LOGICAL = ("parents_factor_indices", "parents_msg_indices", "children_edge_states")
_POOL = (
    "pool_choices_factor_indices",
    "pool_choices_msg_indices",
    "pool_indicators_edge_states",
)
DETERMINING: dict[type, tuple[str, str, str]] = {
    factor.ORFactor: _LOGICAL,
    factor.ANDFactor: _LOGICAL,
    factor.PoolFactor: _POOL,
}


def determined(kind: type, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """The factor of each parent, the first message of each parent and child, and how far the one
    of the other state is. OR: the child is 0 if all parents are, else 1. AND is the same with
    states exchanged, which the offset says. Pool: all parents are 0 and so is the child, or exactly
    one is 1 and so is the child.
    """
    return *(arguments[name] for name in DETERMINING[kind]), arguments.get("edge_states_offset", 1)


def _messages(
    kind: type, *, vtof_msgs: Float[Array, " edge_states"], temperature: float, **arguments: Any
) -> Float[Array, " edge_states"]:
    """Messages of logical and pool factors. With $d$ the log-odds of the parents and $e$ those of
    the child, a parent of OR gets $-\\log(1 - e^{-s} + e^{-s - e})$, where $e^s$ is the product of
    $1 + e^d$ over the others.
    """
    of, parents, children, offset = determined(kind, arguments)
    size = children.shape[0]
    d = vtof_msgs[parents + offset] - vtof_msgs[parents]
    e = (vtof_msgs[children + offset] - vtof_msgs[children])[of]
    if kind is factor.PoolFactor and temperature:
        to_children, others = _log_sums(d, of, size)
        to_parents = -jnp.logaddexp(-e, others)
    elif kind is factor.PoolFactor:
        to_children, others = _maxima(d, of, size)
        to_parents = jnp.minimum(e, -others)
    elif temperature:
        s, others = _sums(jax.nn.softplus(d), of, size)
        to_parents = -jnp.logaddexp(_log_1m_exp(others), -(others + e))
        # Where the sum is no number any more, its terms are e^d themselves.
        to_children = jnp.where(s < 1e-30, _log_sums(d, of, size)[0], s + _log_1m_exp(s))
    else:
        s, others = _sums(jnp.maximum(d, 0), of, size)
        best, best_other = _maxima(d, of, size)
        to_parents = jnp.minimum(others + e, jnp.maximum(-best_other, 0))
        to_children = s + jnp.minimum(best, 0)
    out = jnp.zeros_like(vtof_msgs).at[parents + offset].set(to_parents)
    return out.at[children + offset].set(to_children)


def _log_z(
    kind: type,
    vtof: Float[Array, " edge_states"],
    potentials: Float[Array, " none"],
    product: Product,
    **arguments: Any,
) -> Float[Array, " factors"]:
    """Log Z of logical and pool factors."""
    of, parents, children, offset = determined(kind, arguments)
    over = functools.partial(jax.ops.segment_sum, segment_ids=of, num_segments=children.shape[0])
    top = jnp.maximum(vtof[parents], vtof[parents + offset])
    same, other = vtof[parents] - top, vtof[parents + offset] - top
    hard = product == "max"
    if kind is factor.PoolFactor:
        # Without each choice in turn. Whole multiples of what excludes a state are summed apart.
        coarse = jnp.where(same < EXCLUDED / 2, EXCLUDED, 0.0).astype(same.dtype)
        others = (over(coarse)[of] - coarse) + (over(same - coarse)[of] - same + coarse)
        alone = other + others
        some = jax.ops.segment_max(alone, of, children.shape[0])
        if not hard:
            best = jax.lax.stop_gradient(some)
            some = best + jnp.log(over(jnp.exp(alone - best[of])))
    elif hard:
        some = jnp.minimum(jax.ops.segment_max(other - same, of, children.shape[0]), 0)
    else:
        # log(prod(e^same + e^other) - prod(e^same)), of which the first is e^spread the second.
        spread = over(jax.nn.softplus(other - same))
        some = over(jnp.logaddexp(same, other)) + jnp.maximum(_log_1m_exp(spread), EXCLUDED)
    reduce = jnp.maximum if hard else jnp.logaddexp
    return over(top) + reduce(vtof[children] + over(same), vtof[children + offset] + some)


def _enumeration(
    vtof: Float[Array, " edge_states"],
    potentials: Float[Array, " configurations"],
    product: Product,
    *,
    factor_configs_indices: Int[Array, " entries"],
    factor_configs_edge_states: Int[Array, " entries"],
    factors: Int[Array, " configurations"],
    num_val_configs: int,
    num_factors: int,
) -> Float[Array, " factors"]:
    """Log Z of factors that list their configurations; `factors` says which of them each belongs
    to.
    """
    incoming = vtof[factor_configs_edge_states]
    scores = potentials + jax.ops.segment_sum(incoming, factor_configs_indices, num_val_configs)
    top = jax.ops.segment_max(scores, factors, num_factors)
    if product == "max":
        return top
    top = jax.lax.stop_gradient(top)
    total = jax.ops.segment_sum(jnp.exp(scores - top[factors]), factors, num_factors)
    return top + jnp.log(total)


# Updates that take the place of PGMax's own.
UPDATES = {kind: functools.partial(_messages, kind) for kind in DETERMINING}

# Functions of the messages towards all factors of a kind and of their log-potentials: log Z of each
# factor, the logarithm of the sum over its configurations of exp(log-potential + messages), or of
# the largest term, for max-product. The gradient of their sum in the log-potentials is the belief
# of each configuration, so that nothing else need be said of a factor.
NORMALISERS: dict[type, Any] = {
    factor.EnumFactor: _enumeration,
    NNBMFactor: log_normalisers,
    **{kind: functools.partial(_log_z, kind) for kind in DETERMINING},
}


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
    small, large = (jnp.where(own, x, jnp.zeros_like(x)) for own in (~largest, largest))
    rest, top = (jax.ops.segment_sum(terms, of, size) for terms in (small, large))
    # Without a smaller term: it is added to the largest only after it has been taken away.
    others = (rest[of] - small) + jnp.where(largest, jnp.zeros_like(x), top[of])
    return rest + top, jnp.maximum(others, 0)


def _log_sums(
    x: Float[Array, " n"], of: Int[Array, " n"], size: int
) -> tuple[Float[Array, " factors"], Float[Array, " n"]]:
    """The logarithm of the sum of exponentials, and that without each of them."""
    largest = jax.lax.stop_gradient(_largest(x, of, size))
    small = jnp.where(largest, NOTHING, x)
    # Relative to the largest of those that are left.
    top, second = (
        jax.lax.stop_gradient(jnp.maximum(jax.ops.segment_max(own, of, size), NOTHING))
        for own in (x, small)
    )
    total = jax.ops.segment_sum(jnp.exp(x - top[of]), of, size)
    zero = jnp.zeros_like(x)
    rest = jax.ops.segment_sum(jnp.where(largest, zero, jnp.exp(small - second[of])), of, size)
    alone = rest <= 0
    log_rest = second + jnp.log(jnp.where(alone, jnp.ones_like(rest), rest))
    log_rest = jnp.where(alone, NOTHING, log_rest)
    mine = jnp.where(largest, zero, jnp.exp(jnp.minimum(x - top[of], 0)))
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


def _log_1m_exp(x: Float[Array, " n"]) -> Float[Array, " n"]:
    """log(1 - exp(-x)) for x >= 0."""
    safe = jnp.where(x > 0, x, jnp.ones_like(x))
    small = jnp.log(-jnp.expm1(-jnp.minimum(safe, 1)))
    large = jnp.log1p(-jnp.exp(-jnp.maximum(safe, 0.5)))
    return jnp.where(x > 0, jnp.where(safe < 0.7, small, large), jnp.full_like(x, NOTHING))
