"""The factors of pixels on a grid, each joined to its eight neighbours by the same four tables, and
seen through channels; and what one configuration meets of the tables.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..factors import ends as ends, Lattice, moved as moved, OFFSETS as OFFSETS
from ._groups import Sizes


Tables = tuple[Float[Array, "states states"], ...] | Float[Array, "4 states states"]
Emissions = tuple[Float[Array, "states _"], ...]


def lattices(
    names: tuple[str, ...], shape: tuple[int, int], tables: Tables, emissions: Emissions
) -> tuple[Lattice, ...]:
    """The four tables between neighbours, then that of each channel. Groups are the hidden states,
    then the channels.
    """
    own, *channels = names
    pairs = zip(tables, OFFSETS, strict=True)
    near = [Lattice(own, own, table, shape, offset) for table, offset in pairs]
    seen = zip(channels, emissions, strict=True)
    return (*near, *(Lattice(own, name, table, shape, (0, 0)) for name, table in seen))


def sizes_of(shape: tuple[int, int], tables: Tables, emissions: Emissions) -> Sizes:
    """The groups of variables: hidden states, then channels."""
    return tuple((shape, x.shape[-1]) for x in (tables[0], *emissions))


def log_potential(
    shape: tuple[int, int], tables: Tables, emissions: Emissions, states: Int[Array, " variables"]
) -> Float[Array, ""]:
    """The sum of the log-potentials that one configuration meets, minus infinity if one of them
    excludes it.
    """
    factors, own = _posed(shape, tables, emissions, states)
    return -jnp.stack([factor.energy(own) for factor in factors]).sum()


def features(
    shape: tuple[int, int], tables: Tables, emissions: Emissions, states: Int[Array, " variables"]
) -> tuple[Float[Array, "..."], ...]:
    """How often one configuration meets each log-potential."""
    factors, own = _posed(shape, tables, emissions, states)
    return tuple(jax.grad(lambda factor: -factor.energy(own))(x).table for x in factors)


def around(tables: Tables, x: Int[Array, "height width"]) -> Float[Array, "height width states"]:
    """What its eight neighbours add to the score of each state of each pixel."""
    factors, own = _posed(x.shape, tables, (), x.reshape(-1))
    return jnp.stack([f.given(own, f.first) for f in factors]).sum(0).reshape(*x.shape, -1)


def _posed(
    shape: tuple[int, ...], tables: Tables, emissions: Emissions, states: Int[Array, " variables"]
) -> tuple[tuple[Lattice, ...], dict[str, Int[Array, " pixels"]]]:
    names = tuple(map(str, range(1 + len(emissions))))
    own = dict(zip(names, jnp.split(states, len(names)), strict=True))
    return lattices(names, shape, tables, emissions), own  # pyright: ignore
