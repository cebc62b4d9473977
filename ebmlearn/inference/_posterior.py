from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..models import AbstractPairwiseModel
from ._base import AbstractInference, Statistics
from ._instances import Problem


def is_closed(model: AbstractPairwiseModel) -> bool:
    """Whether the hidden units are independent given the visible ones: every edge then ends in the
    visible layer.
    """
    return all(0 in (block.first, block.second) for block in model.blocks())


def posterior(
    model: AbstractPairwiseModel,
    visible: Float[Array, "batch visible"],
    inference: AbstractInference,
    product: Literal["sum", "max"] = "sum",
) -> Statistics:
    """Expected statistics given all visible units (`x` of a BoltzmannMachine), or those of the most
    likely hidden units if `product="max"`.

    They are exact where that is a formula; else, in a DBM, `inference` is asked with the visible
    units held.
    """
    if not is_closed(model):
        observed = jnp.ones(visible.shape, bool)
        return inference._statistics(Problem(model, visible, observed, trusted=True))
    size = visible.shape[0]
    fields = [jnp.broadcast_to(bias, (size, bias.shape[-1])) for bias in model.unary()]
    for first, second, weights in model.blocks():
        if first != second:
            sent = visible @ weights if first == 0 else visible @ weights.T
            layer = max(first, second)
            fields[layer] = fields[layer] + sent
    if product == "sum":
        hidden = [jax.nn.sigmoid(field) for field in fields[1:]]
    else:
        hidden = [(field > 0).astype(field.dtype) for field in fields[1:]]
    return observed_statistics(model, (visible, *hidden))


def observed_statistics(
    model: AbstractPairwiseModel, layers: tuple[Float[Array, "batch _"], ...]
) -> Statistics:
    """The statistics of a batch in which no two units that share an edge are both uncertain:
    `pairwise` is then a product of two matrices.
    """
    size = layers[0].shape[0]
    pairs = tuple(layers[a].T @ layers[b] / size for a, b, _ in model.blocks())
    return Statistics(
        units=model.units(layers),
        pairwise=model.factors(pairs),
        converged=jnp.ones(size, bool),
        iterations=jnp.zeros(size, jnp.int32),
        residual=jnp.zeros(size, layers[0].dtype),
    )
