"""States of all variables one after the other, as PGMax keeps them, and by group."""

import functools
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Shaped

from .._types import AnyArray


# The shape of each group, and the number of states of its variables.
Sizes = tuple[tuple[tuple[int, ...], int], ...]


def cut_units(
    padded: Shaped[Array, "*batch variables most"], sizes: Sizes
) -> tuple[Shaped[Array, "..."], ...]:
    """A value for each state of each variable, by group."""
    out, at = [], 0
    for shape, states in sizes:
        part = padded[..., at : at + math.prod(shape), :states]
        out.append(part.reshape(*part.shape[:-2], *shape, states))
        at += math.prod(shape)
    return tuple(out)


def cut_states(
    states: Int[AnyArray, "*batch variables"] | Bool[AnyArray, "*batch variables"], sizes: Sizes
) -> tuple[AnyArray, ...]:
    """A state for each variable, or a boolean, by group."""
    out, at = [], 0
    for shape, _ in sizes:
        part = states[..., at : at + math.prod(shape)]
        out.append(part.reshape(*part.shape[:-1], *shape))
        at += math.prod(shape)
    return tuple(out)


def as_rows(
    flat: Shaped[Array, "*batch states"], counts: tuple[int, ...], missing: float = 0.0
) -> Shaped[Array, "*batch variables most"]:
    """The states of all variables, one after the other, as a row for each variable: `missing` where
    it has no more states.
    """
    shape = *flat.shape[:-1], len(counts), max(counts)
    if min(counts) == max(counts):
        return flat.reshape(shape)
    variable, local = _by_state(counts)
    return jnp.full(shape, missing).astype(flat.dtype).at[..., variable, local].set(flat)


def as_flat(
    rows: Shaped[Array, "*batch variables most"], counts: tuple[int, ...]
) -> Shaped[Array, "*batch states"]:
    """The reverse of `as_rows`."""
    if min(counts) == max(counts):
        return rows.reshape(*rows.shape[:-2], math.prod(rows.shape[-2:]))
    variable, local = _by_state(counts)
    return rows[..., variable, local]


@functools.lru_cache(maxsize=64)
def _by_state(counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Of each state of each variable, the variable and its number there."""
    variable = np.repeat(np.arange(len(counts)), counts)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    local = np.arange(len(variable)) - first[variable]
    return variable.astype(np.int32), local.astype(np.int32)
