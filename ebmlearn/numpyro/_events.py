"""Configurations of a model as one vector, which is what a NumPyro site holds."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PRNGKeyArray

from .. import _checks
from ..models import (
    AbstractLayeredModel,
    BoltzmannMachine,
    CRBM,
    DBM,
    GaussianRBM,
    NNBM,
    RBM,
    SemiRestrictedBM,
)
from ..samplers._sweep import drawn


# Models whose hidden units are summed out, so that a site holds the visible ones alone.
_SUMMED = (RBM, SemiRestrictedBM, GaussianRBM)
# Models without layers.
_FLAT = (BoltzmannMachine, NNBM)


def typed(key: Array) -> Array:
    """A key, or several, as typed ones: NumPyro allows others."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    return jax.random.wrap_key_data(key)


def check(model: Any) -> None:
    """Raises `TypeError` unless `model` can be the distribution of a site."""
    if isinstance(model, CRBM):
        raise TypeError("`model` must be an RBM: call `crbm.condition(x)` first, got a CRBM.")
    if not isinstance(model, (*_SUMMED, *_FLAT, DBM)):
        raise TypeError(
            "`model` must be an RBM, a BoltzmannMachine, a DBM, a SemiRestrictedBM, a GaussianRBM"
            f" or an NNBM, got {_checks.describe(model)}."
        )
    if "softmax" in model.kinds():
        raise TypeError("`model` must have no label units to be a distribution, got some.")


def size(model: AbstractLayeredModel) -> int:
    """How many units a site holds."""
    sizes = [bias.shape[-1] for bias in model.unary()]
    return sum(sizes) if isinstance(model, DBM) else sizes[0]


def log_potential(model: Any, event: Num[Array, "*batch n"]) -> Float[Array, "*batch"]:
    """The log-probability of an event, up to log Z."""
    if isinstance(model, _SUMMED):
        return -model.free_energy(event)
    if isinstance(model, _FLAT):
        return -model.energy(event)
    visible, *hidden = _cut(model, event)
    return -model.energy(visible, tuple(hidden))


def units(model: Any, event: Num[Array, "chains n"], key: PRNGKeyArray) -> Any:
    """States of all units, the hidden ones drawn given the visible ones where these are all that
    the event tells.
    """
    if isinstance(model, _FLAT):
        return model.units((event,))
    if isinstance(model, DBM):
        return model.units(tuple(_cut(model, event)))
    dtype = model.unary()[0].dtype
    hidden = jnp.zeros((event.shape[0], model.num_hidden), dtype)
    hidden = drawn(model, [event.astype(dtype), hidden], 1, key, 1.0, False, None)
    return model.units((event, hidden.astype(jnp.int32)))


def event(model: AbstractLayeredModel, units: Any) -> Num[Array, "chains n"]:
    """What a site holds of a configuration."""
    leaves = jax.tree.leaves(units)
    return jnp.concatenate(leaves, -1) if isinstance(model, DBM) else leaves[0]


def _cut(model: DBM, event: Num[Array, "*batch n"]) -> list[Num[Array, "*batch _"]]:
    sizes = [bias.shape[-1] for bias in model.unary()]
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes) - 1)]
    return jnp.split(event, ends, axis=-1)
