"""How likely values are if units are independent."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..models import AbstractPlainModel


# So many rows of each state are added to the data, so that no state is impossible.
_ADDED = 0.5


def surprise_alone(
    model: AbstractPlainModel, train: Array, rows: Array
) -> Float[Array, "rows units"]:
    """Minus the log-probability of each value of rows, in nats, if units were independent and
    distributed as in the rows of `train`. The number for a missing value means nothing.
    """
    if model.grouped:
        return _by_state(train, rows, np.asarray(model.variables.counts)).astype(model.dtype)
    return (_by_frequency if model.layers[0].finite else _by_normal)(train, rows)


def _by_frequency(
    train: Float[Array, "_ units"], rows: Float[Array, "rows units"]
) -> Float[Array, "rows units"]:
    """Minus the log-probability of binary values, or its mean where they are shares."""
    known = ~jnp.isnan(train)
    ones = jnp.where(known, train, jnp.zeros_like(train)).sum(0) + _ADDED
    zeros = jnp.where(known, 1 - train, jnp.zeros_like(train)).sum(0) + _ADDED
    both = ones + zeros
    return -rows * jnp.log(ones / both)[None] - (1 - rows) * jnp.log(zeros / both)[None]


def _by_normal(
    train: Float[Array, "_ units"], rows: Float[Array, "rows units"]
) -> Float[Array, "rows units"]:
    """Minus the log-density of real values."""
    mean, variance = jnp.nanmean(train, 0), jnp.nanvar(train, 0)
    variance = jnp.maximum(variance, jnp.finfo(train.dtype).tiny)
    return ((rows - mean[None]) ** 2 / variance[None] + jnp.log(2 * jnp.pi * variance)[None]) / 2


def _by_state(
    train: Int[Array, "_ variables"],
    rows: Int[Array, "rows variables"],
    num_states: Int[np.ndarray, " variables"],
) -> Float[Array, "rows variables"]:
    """Minus the log-probability of states."""
    counts = np.stack([(train == k).sum(0) for k in range(max(num_states))])
    log_p = np.log(counts + _ADDED) - np.log(counts.sum(0) + _ADDED * np.asarray(num_states))
    return -jnp.take_along_axis(jnp.asarray(log_p), jnp.maximum(rows, 0), axis=0)
