from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _checks
from .._types import AnyArray
from ..models import AbstractLayeredModel


# From states and the truth, both of shape [batch, visible], to the cost of each unit.
Cost = Callable[[Float[Array, "batch visible"], Float[Array, "batch visible"]], AnyArray]


def hamming(
    state: Float[AnyArray, "*#batch visible"], truth: Float[AnyArray, "*#batch visible"]
) -> Float[AnyArray, "*#batch visible"]:
    """The Hamming loss: each wrong unit costs 1."""
    return abs(state - truth)


def augmented(model: Any, truth: Float[Array, "batch visible"], cost: Cost) -> AbstractLayeredModel:
    """The model with the cost of the visible units added to its log-potential: for the Hamming
    loss, $b_i$ becomes $b_i + 1 - 2 v_i$ (Ping & Ihler 2017, eq. (7)).
    """
    extra = cost(jnp.ones_like(truth), truth) - cost(jnp.zeros_like(truth), truth)
    _checks.exact_shape("cost", extra, truth.shape, "one number per visible unit")
    bias = jnp.broadcast_to(model.unary()[0], truth.shape) + extra.astype(truth.dtype)
    return model.with_unary((bias, *model.unary()[1:]))


def check_cost(cost: Any) -> None:
    """Raises `TypeError` unless `cost` may be called."""
    if not callable(cost):
        got = _checks.describe(cost)
        raise TypeError(f"`cost` must be a function of states and the truth, got {got}.")
