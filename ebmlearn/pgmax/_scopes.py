"""Which edges of a kind of factors belong to the same factor.

A function here takes a number for each state of each edge, the same for all states of an edge, and
returns in each place the sum over all edges of that factor. A state that no configuration of the
factor has gets 0.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from pgmax import factor


def enumeration(
    x: Float[Array, " edge_states"],
    *,
    factor_configs_indices: Int[Array, " entries"],
    factor_configs_edge_states: Int[Array, " entries"],
    num_val_configs: int,
    **unused: Any,
) -> Float[Array, " edge_states"]:
    """A configuration has one state of each edge."""
    of = factor_configs_indices
    sums = jax.ops.segment_sum(x[factor_configs_edge_states], of, num_val_configs)
    return jnp.zeros_like(x).at[factor_configs_edge_states].max(sums[of])


def logical(
    x: Float[Array, " edge_states"],
    *,
    parents_factor_indices: Int[Array, " parents"],
    parents_msg_indices: Int[Array, " parents"],
    children_edge_states: Int[Array, " factors"],
    edge_states_offset: Any,
) -> Float[Array, " edge_states"]:
    """Parents and a child."""
    places = parents_factor_indices, parents_msg_indices, children_edge_states
    return _with_child(x, *places, edge_states_offset)


def pool(
    x: Float[Array, " edge_states"],
    *,
    pool_choices_factor_indices: Int[Array, " choices"],
    pool_choices_msg_indices: Int[Array, " choices"],
    pool_indicators_edge_states: Int[Array, " factors"],
) -> Float[Array, " edge_states"]:
    """Choices and an indicator."""
    places = pool_choices_factor_indices, pool_choices_msg_indices, pool_indicators_edge_states
    return _with_child(x, *places, 1)


def _with_child(
    x: Float[Array, " edge_states"],
    of: Int[Array, " parents"],
    parents: Int[Array, " parents"],
    children: Int[Array, " factors"],
    offset: Any,
) -> Float[Array, " edge_states"]:
    sums = x[children] + jax.ops.segment_sum(x[parents], of, children.shape[0])
    out = jnp.zeros_like(x)
    for step in (0, offset):
        out = out.at[parents + step].set(sums[of]).at[children + step].set(sums)
    return out


# Groups of our own add theirs.
SCOPES: dict[type, Any] = {
    factor.EnumFactor: enumeration,
    factor.ORFactor: logical,
    factor.ANDFactor: logical,
    factor.PoolFactor: pool,
}
