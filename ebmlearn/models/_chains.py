"""States that chains start from, checked."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Num, PRNGKeyArray

from .. import _checks
from ..units import AbstractUnits
from ._names import by_layer


def chains(
    model: Any, num_chains: int, key: PRNGKeyArray, start: Any, clamped: Any
) -> tuple[Any, Any]:
    """States of all units by name, and which of them are held, or None."""
    if math.prod(model.batch_shape) not in (1, num_chains) or len(model.batch_shape) > 1:
        raise ValueError(
            "`num_chains` must be the number of instances of a model with batch axes,"
            f" {model.batch_shape}, got {num_chains}."
        )
    given = by_layer("start", model.names, start)
    masks = by_layer("clamped", model.names, clamped)
    drawn = _at_random(model, num_chains, key, tuple(x is None for x in given))
    states, held = [], []
    for name, units, x, mask, other in zip(
        model.names, model.layers, given, masks, drawn, strict=True
    ):
        if x is not None:
            x = chain_states(f"start ({name})", x, num_chains, units, model.dtype)
        if mask is not None:
            mask = as_mask(f"clamped ({name})", mask, (num_chains, units.size))
            if x is None:
                raise ValueError(f"`start` must hold states for clamped units ({name}), got None.")
        states.append(other if x is None else x)
        held.append(mask)
    return model.units(states), None if clamped is None else model.units(held)


@eqx.filter_jit
def _at_random(
    model: Any, num_chains: int, key: PRNGKeyArray, wanted: tuple[bool, ...]
) -> list[Num[Array, "chains _"] | None]:
    """Random states of the layers that are wanted, drawn in one program."""
    keys = jax.random.split(key, len(model.names))
    fields = [jnp.broadcast_to(b, (num_chains, b.shape[-1])) for b in model.unary()]
    parts = zip(model.layers, fields, keys, wanted, strict=True)
    return [u.decode(u.at_random(f, own)) if want else None for u, f, own, want in parts]


def chain_states(
    name: str, x: Any, num_chains: int, units: AbstractUnits, dtype: Any
) -> Num[Array, "chains n"]:
    """States of the units of a layer, checked, for each chain."""
    wanted = jnp.integer if units.finite else jnp.floating
    if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, wanted):
        what = "integers" if units.finite else "real numbers"
        raise TypeError(f"`{name}` must hold {what}, got {_checks.describe(x)}.")
    x = _fitted(name, x, (num_chains, units.size))
    units.check(name, x)
    return x.astype(jnp.int32 if units.finite else dtype)


def as_mask(name: str, x: Any, shape: tuple[int, int]) -> Bool[Array, "chains n"]:
    """Booleans for all chains, checked."""
    if not hasattr(x, "dtype") or x.dtype != jnp.bool_:
        raise TypeError(f"`{name}` must be a mask of booleans, got {_checks.describe(x)}.")
    return _fitted(name, x, shape)


def _fitted(name: str, x: Any, shape: tuple[int, int]) -> Array:
    if x.shape not in (shape, shape[1:]):
        raise ValueError(
            f"`{name}` must have shape {shape}, [chains, units], or {shape[1:]}, got"
            f" {_checks.describe(x)}."
        )
    return jnp.broadcast_to(jnp.asarray(x), shape)
