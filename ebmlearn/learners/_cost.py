from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .. import _checks
from .._types import AnyArray
from ..inference import AbstractInference
from ..inference._graph import GraphProblem
from ..inference._instances import Problem
from ..inference._posterior import is_closed
from ..models import AbstractLayeredModel, BoltzmannMachine, NNBM
from ..models._graph import AbstractGraphModel


# From states and the truth, both of shape [batch, visible], to the cost of each unit.
Cost = Callable[[Float[Array, "batch visible"], Float[Array, "batch visible"]], Any]


def hamming(
    state: Float[AnyArray, "*#batch visible"], truth: Float[AnyArray, "*#batch visible"]
) -> Float[AnyArray, "*#batch visible"]:
    """The Hamming loss: each wrong unit costs 1."""
    return abs(state - truth)


def augmented(
    model: AbstractLayeredModel, truth: Float[Array, "batch visible"], cost: Cost
) -> AbstractLayeredModel:
    """The model whose log-potential is higher by the cost of the visible units: for the Hamming
    loss, $b_i$ plus $1 - 2 v_i$ (Ping & Ihler 2017, eq. (7)).
    """
    extra = cost(jnp.ones_like(truth), truth) - cost(jnp.zeros_like(truth), truth)
    _checks.exact_shape("cost", extra, truth.shape, "one number a visible unit")
    bias = jnp.broadcast_to(model.unary()[0], truth.shape) + extra.astype(truth.dtype)
    return model.with_unary((bias, *model.unary()[1:]))


def check_cost(cost: Any) -> None:
    """Raises `TypeError` unless `cost` may be called."""
    if not callable(cost):
        got = _checks.describe(cost)
        raise TypeError(f"`cost` must be a function of states and the truth, got {got}.")


def free_energy(
    model: AbstractLayeredModel | AbstractGraphModel,
    visible: Float[Array, "batch visible"] | Int[Array, "batch variables"],
    inference: AbstractInference,
) -> Float[Array, " batch"]:
    """Minus the log-potential of visible units, hidden units summed out: by formula, or for a DBM
    and a graph by the inference with the visible units held.
    """
    if isinstance(model, AbstractGraphModel):
        return -inference._beliefs(GraphProblem(model, visible)).log_partition
    if isinstance(model, (BoltzmannMachine, NNBM)):
        return model.energy(visible)
    if is_closed(model):
        return model.free_energy(visible)  # pyright: ignore
    observed = jnp.ones(visible.shape, bool)
    return -inference._beliefs(Problem(model, visible, observed, trusted=True)).log_partition
