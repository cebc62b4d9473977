"""Changes of single units, of all layers side by side: what they would gain, and how they are made.

A move takes one unit to one of its other states. The moves of all units lie along one axis, those
of a unit beside each other.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..models import AbstractPlainModel
from ..units import _random


Layers = Sequence[Float[Array, "chains _"]]


def owners(model: AbstractPlainModel) -> Int[np.ndarray, " moves"]:
    """Which unit each move changes, all layers being numbered on."""
    kinds: Any = model.layers
    others = np.concatenate([np.full(units.size, units.number - 1) for units in kinds])
    return np.repeat(np.arange(len(others)), others)


def gains(
    model: AbstractPlainModel, layers: Layers, fields: Layers
) -> Float[Array, "chains moves"]:
    """What each move adds to the log-potential, as fields tell it."""
    parts = []
    for change, field in zip(_changes(model, layers), fields, strict=True):
        by_unit = field.reshape(*change.shape[:2], 1, change.shape[3])
        gain = (change * jnp.broadcast_to(by_unit, change.shape)).sum(-1)
        parts.append(gain.reshape(gain.shape[0], gain.shape[1] * gain.shape[2]))
    return jnp.concatenate(parts, -1)


def moved(
    model: AbstractPlainModel, layers: Layers, chosen: Float[Array, "chains moves"]
) -> list[Float[Array, "chains _"]]:
    """The states after all moves at which `chosen` is 1, at most one of each unit."""
    out, at = [], 0
    for x, change in zip(layers, _changes(model, layers), strict=True):
        chains, size, number, _ = change.shape
        own = chosen[:, at : at + size * number].reshape(chains, size, number, 1)
        out.append(x + (change * jnp.broadcast_to(own, change.shape)).sum(2).reshape(x.shape))
        at += size * number
    return out


def differences(
    model: AbstractPlainModel, old: Layers, new: Layers, fields: Layers
) -> Float[Array, "chains units"]:
    """What the change of each unit from its old state to its new one gains, as fields tell it."""
    parts = []
    for a, b, field, units in zip(old, new, fields, model.layers, strict=True):
        gain = ((b - a) * field).reshape(a.shape[0], units.size, units.width // max(units.size, 1))
        parts.append(gain.sum(-1))
    return jnp.concatenate(parts, -1)


def free(
    model: AbstractPlainModel, clamp: Sequence[Any] | None, chains: int
) -> Bool[Array, "chains units"] | None:
    """Which units may change; None if all may."""
    if clamp is None:
        return None
    parts = [
        jnp.ones((chains, units.size), bool) if mask is None else ~mask
        for units, mask in zip(model.layers, clamp, strict=True)
    ]
    return jnp.concatenate(parts, -1)


def over_moves(
    model: AbstractPlainModel, logits: Float[Array, "chains moves"]
) -> Float[Array, "chains units"]:
    """The logarithm of the sum of exponentials over the moves of each unit."""
    out, at = [], 0
    kinds: Any = model.layers
    for units in kinds:
        number = units.size * (units.number - 1)
        part = logits[:, at : at + number].reshape(logits.shape[0], units.size, units.number - 1)
        # Of two states, there is one to move to; of one, none.
        sums = {1: lambda x: jnp.full(x.shape[:2], -jnp.inf, x.dtype), 2: lambda x: x[..., 0]}
        out.append(sums.get(units.number, lambda x: jax.nn.logsumexp(x, axis=-1))(part))
        at += number
    return jnp.concatenate(out, -1)


def one_each(
    model: AbstractPlainModel, logits: Float[Array, "chains moves"], key: PRNGKeyArray, stay: bool
) -> Float[Array, "chains moves"]:
    """1 for one move of each unit, drawn by its logits; or none, where units may stay, whose logit
    is 0.
    """
    kinds: Any = model.layers
    out, at = [], 0
    for units, own in zip(kinds, jax.random.split(key, len(kinds)), strict=True):
        size, others = units.size, units.number - 1
        part = logits[:, at : at + size * others]
        at += size * others
        if others < 2:
            out.append(_random.decided(part, own) if stay else jnp.ones_like(part))
            continue
        part = part.reshape(part.shape[0], size, others)
        if stay:
            part = jnp.concatenate([jnp.zeros((*part.shape[:2], 1), part.dtype), part], -1)
        state = _random.choose(part, _random.choices(own, part.shape, part.dtype))
        made = jax.nn.one_hot(state, part.shape[-1], dtype=part.dtype)[..., -others:]
        out.append(made.reshape(made.shape[0], size * others))
    return jnp.concatenate(out, -1)


def _changes(model: AbstractPlainModel, layers: Layers) -> list[Float[Array, "chains n others _"]]:
    """From the state of each unit to each of its others."""
    kinds: Any = model.layers
    out = []
    for units, x in zip(kinds, layers, strict=True):
        others = units.others(x)
        own = x.reshape(*others.shape[:2], 1, others.shape[3])
        out.append(others - jnp.broadcast_to(own, others.shape))
    return out
