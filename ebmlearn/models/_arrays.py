import functools
import inspect
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, DTypeLike, Float, Num, PRNGKeyArray, PyTree, Shaped

from .. import _checks
from .._types import AnyArray


def states(name: str, x: Shaped[AnyArray, "..."], size: int, dtype: DTypeLike) -> Num[Array, "..."]:
    """Checks the last axis of an array of states and casts it to the dtype of the model."""
    x = jnp.asarray(x)
    if x.ndim == 0 or x.shape[-1] != size:
        raise ValueError(
            f"`{name}` must have shape (..., {size}), one per unit, got {_checks.describe(x)}."
        )
    return x.astype(dtype)


def instancewise(fn: Callable) -> Callable:
    """Lifts a function of vectors to arrays of vectors, whose leading axes broadcast."""
    names = list(inspect.signature(fn).parameters)

    @functools.wraps(fn)
    def lifted(*args: Array) -> PyTree:
        labels = names if len(names) == len(args) else [f"layer {k}" for k in range(len(args))]
        shapes = {k: x.shape[:-1] for k, x in zip(labels, args, strict=True)}
        shape = _checks.broadcastable(**shapes)
        if shape == ():
            return fn(*args)
        axes = tuple(None if x.ndim == 1 else 0 for x in args)
        size = math.prod(shape)
        flat = tuple(
            x
            if x.ndim == 1
            else jnp.broadcast_to(x, (*shape, x.shape[-1])).reshape(size, x.shape[-1])
            for x in args
        )
        out = jax.vmap(fn, axes)(*flat)
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), out)

    return lifted


def parameter(name: str) -> Callable[[ArrayLike], Array]:
    """What makes a field hold a parameter: an array of float32 or float64."""

    def convert(x: ArrayLike) -> Array:
        return _checks.parameter(name, x)

    return convert


def optional(name: str) -> Callable[[ArrayLike | None], Array | None]:
    """The same for a parameter that may be left out."""

    def convert(x: ArrayLike | None) -> Array | None:
        return None if x is None else _checks.parameter(name, x)

    return convert


def gaussian(
    shape: tuple[int, ...], scale: float, dtype: DTypeLike | None, key: PRNGKeyArray
) -> Float[Array, "..."]:
    """Normal random weights of standard deviation `scale`."""
    _checks.number("scale", scale, 0, float("inf"), "[0, inf)")
    dtype = jax.dtypes.canonicalize_dtype(float if dtype is None else dtype)
    return jnp.asarray(scale, dtype) * jax.random.normal(key, shape, dtype)


@jax.jit
def without_diagonal(couplings: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """A matrix with zeros on its diagonal."""
    own = jnp.eye(couplings.shape[0], dtype=bool)
    return jnp.where(own, jnp.zeros((), couplings.dtype), couplings)


@jax.jit
def symmetrised(couplings: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The symmetric part without its diagonal: what the energy means, also after an update that
    broke the symmetry or while differentiating.
    """
    return without_diagonal((couplings + couplings.T) / 2)
