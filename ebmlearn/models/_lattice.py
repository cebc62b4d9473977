"""Pixels on a grid, each joined to its eight neighbours by the same four tables, and seen through
channels: which edges there are, and what a configuration meets of the tables.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._sentinels import EXCLUDED
from ..factors import ends as ends, moved as moved, OFFSETS as OFFSETS
from ._groups import cut_states, Sizes


def sizes_of(
    shape: tuple[int, int],
    tables: tuple[Float[Array, "states states"], ...] | Float[Array, "4 states states"],
    emissions: tuple[Float[Array, "states _"], ...],
) -> Sizes:
    """The groups of variables: hidden states, then channels."""
    return tuple((shape, x.shape[-1]) for x in (tables[0], *emissions))


def log_potential(
    shape: tuple[int, int],
    tables: tuple[Float[Array, "states states"], ...] | Float[Array, "4 states states"],
    emissions: tuple[Float[Array, "states _"], ...],
    states: Int[Array, " variables"],
) -> Float[Array, ""]:
    """The sum of the log-potentials that one configuration meets, minus infinity if one of them
    excludes it.
    """
    x, *seen = cut_states(states, sizes_of(shape, tables, emissions))
    met = []
    for table, offset in zip(tables, OFFSETS, strict=True):
        first, second = ends(shape, offset)
        met.append(table[x[first], x[second]])
    met += [emission[x, y] for emission, y in zip(emissions, seen, strict=True)]
    return jnp.stack([jnp.where(x < EXCLUDED / 2, -jnp.inf, x).sum() for x in met]).sum()


def features(
    shape: tuple[int, int],
    tables: tuple[Float[Array, "states states"], ...] | Float[Array, "4 states states"],
    emissions: tuple[Float[Array, "states _"], ...],
    states: Int[Array, " variables"],
) -> tuple[Float[Array, "..."], ...]:
    """How often one configuration meets each log-potential."""
    sizes = sizes_of(shape, tables, emissions)
    x, *seen = (
        jax.nn.one_hot(x, n, dtype=tables[0].dtype)
        for x, (_, n) in zip(cut_states(states, sizes), sizes, strict=True)
    )
    pairs = [(x[first], x[second]) for first, second in (ends(shape, at) for at in OFFSETS)]
    pairs += [(x, y) for y in seen]
    return tuple(jnp.einsum("ijs,ijt->st", a, b, precision="highest") for a, b in pairs)


def around(
    tables: tuple[Float[Array, "states states"], ...] | Float[Array, "4 states states"],
    x: Int[Array, "height width"],
) -> Float[Array, "height width states"]:
    """What its eight neighbours add to the score of each state of each pixel."""
    parts = []
    for table, (down, across) in zip(tables, OFFSETS, strict=True):
        parts.append(moved(table[x], (down, across)))
        parts.append(moved(table.T[x], (-down, -across)))
    return jnp.stack(parts).sum(0)
