"""Models with other biases."""

import math
from typing import TypeVar

import jax.numpy as jnp

from ._base import AbstractPlainModel


Plain = TypeVar("Plain", bound=AbstractPlainModel)


def batched(model: Plain, shape: tuple[int, ...]) -> Plain:
    """The model with an instance for each row of a batch of this shape, along one axis; itself if
    it is a single one.
    """
    if model.batch_shape == ():
        return model
    size = math.prod(shape)
    biases = [
        b if b.ndim == 1 else jnp.broadcast_to(b, (*shape, b.shape[-1])).reshape(size, -1)
        for b in model.unary()
    ]
    return model.with_unary(tuple(biases))
