from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _checks
from .._types import AnyArray


# From states and the truth, both of shape [batch, visible], to the cost of each unit.
Cost = Callable[[Float[Array, "batch visible"], Float[Array, "batch visible"]], AnyArray]


def hamming(
    state: Float[AnyArray, "*#batch visible"], truth: Float[AnyArray, "*#batch visible"]
) -> Float[AnyArray, "*#batch visible"]:
    """The Hamming loss: each wrong unit costs 1."""
    # Of states that have numbers, any two differ by 1 or more.
    return jnp.minimum(abs(state - truth), 1)


def check_cost(cost: Any) -> None:
    """Raises `TypeError` unless `cost` may be called."""
    if not callable(cost):
        got = _checks.describe(cost)
        raise TypeError(f"`cost` must be a function of states and the truth, got {got}.")
