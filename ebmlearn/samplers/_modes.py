"""The slow modes of a model, along which chains from different starts are compared."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..factors import Dense
from ..models import AbstractPlainModel


# Means that differ by more standard errors than this do not agree.
ERRORS = 4.5
MODES = 5


def _visible(
    model: AbstractPlainModel, samples: Any, num_chains: int
) -> Float[Array, "steps chains _"]:
    """The visible units of samples, or all of a model without layers, by step and chain."""
    layers = model.encode(model.variables.named(model.variables.folded(samples)))
    x = layers[0] if model.turns is None else jnp.concatenate(layers, axis=-1)
    steps = x.shape[0] // num_chains
    return x[: steps * num_chains].reshape(steps, num_chains, -1)


def on_modes(
    model: AbstractPlainModel,
    samples: tuple[PyTree, PyTree],
    num_chains: int,
    modes: int = MODES,
) -> tuple[Float[Array, "steps chains modes"], Float[Array, "steps chains modes"]]:
    """The samples of two groups of chains along slow modes: the leading singular vectors of all
    weights of the visible units, or the principal components of the states if there are none.
    """
    one, other = (_visible(model, x, num_chains) for x in samples)
    own, first = model.factors() if model.turns is None else (), model.names[0]
    dense = [f for f in own if isinstance(f, Dense) and first in f.groups and f.weights.size]
    if dense:
        ends = [f.weights if f.first == first else f.weights.T for f in dense]
        vectors = jnp.linalg.svd(jnp.concatenate(ends, axis=1), full_matrices=False)[0]
    else:
        rows = jnp.concatenate([one, other]).reshape(-1, one.shape[-1])
        centred = rows - rows.mean(0, keepdims=True)
        vectors = jnp.linalg.eigh(centred.T @ centred)[1][:, ::-1]
    vectors = vectors[:, :modes]
    return one @ vectors, other @ vectors


def gaps(
    one: Float[Array, "steps chains modes"], other: Float[Array, "steps chains modes"]
) -> Float[Array, " modes"]:
    """How far the means of two groups of chains are apart, in standard errors."""
    first, second = one.mean(0), other.mean(0)
    error = sum(x.var(0, ddof=1) / x.shape[0] for x in (first, second))
    apart = jnp.abs(first.mean(0) - second.mean(0))
    # Chains that stand still in one place agree.
    small = 1e-6 * (1 + jnp.abs(first).max(0))
    return jnp.where(apart <= small, jnp.zeros_like(apart), apart / jnp.sqrt(error))
