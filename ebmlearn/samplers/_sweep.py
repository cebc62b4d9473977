"""Block Gibbs sampling of bipartite models: given the even layers the odd ones are independent, and
the other way round.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..models import AbstractPairwiseModel


def start_even(
    model: AbstractPairwiseModel,
    probabilities: Sequence[Float[Array, "chains _"]],
    key: PRNGKeyArray,
) -> list[Float[Array, "chains _"]]:
    """Draws the even layers independently; the odd layers are zero, since a sweep begins with them.

    `probabilities` are those of all layers.
    """
    if not model.is_bipartite:
        raise ValueError(
            "`model` must be an RBM, a CRBM or a DBM for block Gibbs sampling, got a"
            f" {type(model).__name__}."
        )
    keys = jax.random.split(key, len(probabilities))
    return [
        _bernoulli(p, keys[k]) if k % 2 == 0 else jnp.zeros_like(p)
        for k, p in enumerate(probabilities)
    ]


def sweep(
    model: AbstractPairwiseModel, layers: list[Float[Array, "chains _"]], key: PRNGKeyArray
) -> list[Float[Array, "chains _"]]:
    """Draws the odd layers given the even ones, then the even layers given the odd ones."""
    keys = jax.random.split(key, len(layers))
    layers = list(layers)
    for turn in (1, 0):
        for layer in range(turn, len(layers), 2):
            layers[layer] = _bernoulli(conditional(model, layers, layer), keys[layer])
    return layers


def given_even(
    model: AbstractPairwiseModel, layers: list[Float[Array, "chains _"]]
) -> tuple[Float[Array, "chains _"], ...]:
    """The even layers as they are, the odd layers as probabilities given them."""
    return tuple(
        conditional(model, layers, k) if k % 2 else layer for k, layer in enumerate(layers)
    )


def conditional(
    model: AbstractPairwiseModel, layers: list[Float[Array, "chains _"]], layer: int
) -> Float[Array, "chains _"]:
    """The probability of 1 of each unit of a layer given the layers beside it."""
    bias = model.unary()[layer]
    field = jnp.broadcast_to(bias, layers[layer].shape)
    for first, second, weights in model.blocks():
        if second == layer:
            field = field + layers[first] @ weights
        elif first == layer:
            field = field + layers[second] @ weights.T
    return jax.nn.sigmoid(field)


def _bernoulli(p: Float[Array, "..."], key: PRNGKeyArray) -> Float[Array, "..."]:
    return (jax.random.uniform(key, p.shape, p.dtype) < p).astype(p.dtype)
