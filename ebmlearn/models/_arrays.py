from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, DTypeLike, Float, Num, PRNGKeyArray, Shaped

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


def check_layers(weights: Array, visible_bias: Array, hidden_bias: Array) -> None:
    """Raises `ValueError` unless biases, which may have leading axes, fit the weights."""
    _checks.rank("weights", weights, 2, "[visible, hidden]")
    visible, hidden = weights.shape
    _checks.trailing("visible_bias", visible_bias, (visible,), "as `weights` has rows")
    _checks.trailing("hidden_bias", hidden_bias, (hidden,), "as `weights` has columns")
    _checks.broadcastable(visible_bias=visible_bias.shape[:-1], hidden_bias=hidden_bias.shape[:-1])


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
    """The symmetric part without its diagonal. The energy depends on nothing else, also after an
    update that broke the symmetry, and in derivatives.
    """
    return without_diagonal((couplings + couplings.T) / 2)
