"""What each kind of factor adds to the Bethe free energy.

A function here takes the messages towards all factors of a kind and their log-potentials, and
returns log Z_f of each factor, the logarithm of the sum over its configurations of
exp(log-potential + messages); or of the largest term, for max-product. The gradient of their sum in
the log-potentials is the belief of each configuration, so that nothing else need be said of a
factor.

Excluded states carry messages of about -1e6. Each sum is shifted by the larger message of each
variable first, so that these cost no digits of the others.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from pgmax import factor

from .._sentinels import EXCLUDED
from ..messages import Product
from ._nnbm_group import log_normalisers, NNBMFactor
from ._updates import log_1m_exp


def enumeration(
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
    """Factors that list their configurations; `factors` says which of them each belongs to."""
    incoming = vtof[factor_configs_edge_states]
    scores = potentials + jax.ops.segment_sum(incoming, factor_configs_indices, num_val_configs)
    top = jax.ops.segment_max(scores, factors, num_factors)
    if product == "max":
        return top
    top = jax.lax.stop_gradient(top)
    total = jax.ops.segment_sum(jnp.exp(scores - top[factors]), factors, num_factors)
    return top + jnp.log(total)


def logical(
    vtof: Float[Array, " edge_states"],
    potentials: Float[Array, " none"],
    product: Product,
    *,
    parents_factor_indices: Int[Array, " parents"],
    parents_msg_indices: Int[Array, " parents"],
    children_edge_states: Int[Array, " factors"],
    edge_states_offset: Any,
) -> Float[Array, " factors"]:
    """OR: the child is 0 if all parents are, else 1. AND is the same with states exchanged, which
    the offset says.
    """
    size = children_edge_states.shape[0]
    same, other, top = _pairs(vtof, parents_msg_indices, edge_states_offset)

    def over_parents(x: Array) -> Array:
        return jax.ops.segment_sum(x, parents_factor_indices, size)

    all_same = over_parents(same)
    if product == "max":
        best = jax.ops.segment_max(other - same, parents_factor_indices, size)
        some_other = jnp.minimum(best, 0)
    else:
        # log(prod(e^same + e^other) - prod(e^same)), of which the first is e^spread the second.
        spread = over_parents(jax.nn.softplus(other - same))
        some_other = over_parents(jnp.logaddexp(same, other)) + jnp.maximum(
            log_1m_exp(spread), EXCLUDED
        )
    child_same = vtof[children_edge_states] + all_same
    child_other = vtof[children_edge_states + edge_states_offset] + some_other
    reduce = jnp.maximum if product == "max" else jnp.logaddexp
    return over_parents(top) + reduce(child_same, child_other)


def pool(
    vtof: Float[Array, " edge_states"],
    potentials: Float[Array, " none"],
    product: Product,
    *,
    pool_choices_factor_indices: Int[Array, " choices"],
    pool_choices_msg_indices: Int[Array, " choices"],
    pool_indicators_edge_states: Int[Array, " factors"],
) -> Float[Array, " factors"]:
    """All choices are 0 and so is the indicator, or exactly one is 1 and so is the indicator."""
    size, of = pool_indicators_edge_states.shape[0], pool_choices_factor_indices
    zero, one, top = _pairs(vtof, pool_choices_msg_indices, 1)

    def over_choices(x: Array) -> Array:
        return jax.ops.segment_sum(x, of, size)

    # Without each choice in turn. Whole multiples of what excludes a state are summed apart.
    coarse = jnp.where(zero < EXCLUDED / 2, EXCLUDED, 0.0).astype(zero.dtype)
    others = (over_choices(coarse)[of] - coarse) + (over_choices(zero - coarse)[of] - zero + coarse)
    alone = one + others
    best = jax.lax.stop_gradient(jax.ops.segment_max(alone, of, size))
    if product == "max":
        chosen = jax.ops.segment_max(alone, of, size)
    else:
        chosen = best + jnp.log(over_choices(jnp.exp(alone - best[of])))
    none = vtof[pool_indicators_edge_states] + over_choices(zero)
    chosen = vtof[pool_indicators_edge_states + 1] + chosen
    reduce = jnp.maximum if product == "max" else jnp.logaddexp
    return over_choices(top) + reduce(none, chosen)


def _pairs(
    vtof: Float[Array, " edge_states"], first: Int[Array, " n"], offset: Any
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, " n"]]:
    """The messages of two states less the larger of them, and that."""
    a, b = vtof[first], vtof[first + offset]
    top = jnp.maximum(a, b)
    return a - top, b - top, top


NORMALISERS: dict[type, Any] = {
    factor.EnumFactor: enumeration,
    factor.ORFactor: logical,
    factor.ANDFactor: logical,
    factor.PoolFactor: pool,
    NNBMFactor: log_normalisers,
}
