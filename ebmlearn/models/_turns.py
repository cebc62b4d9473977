"""Models whose units are drawn in turns, by the scores of their states."""

import abc
from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._types import AnyArray
from ._base import AbstractPlainModel


class AbstractTurns(AbstractPlainModel):
    """A model whose units are drawn in turns. What is drawn at once is a site: a unit, or several
    units that move together, as one variable of a graph does with those that it determines.

    Here, a configuration is one row of integers for all units, and a site has states of its own,
    numbered from 0 on.
    """

    layerwise: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def site_states(self) -> Int[np.ndarray, " sites"]:
        """The number of states of each site."""

    @abc.abstractmethod
    def turns(self) -> Int[AnyArray, "turns width"]:
        """Which sites are drawn in each turn: no two of one turn depend on each other. Short rows
        are filled up with the number of sites.
        """

    @abc.abstractmethod
    def scores(
        self,
        rows: Int[Array, "rows units"],
        members: Int[Array, " width"],
        held: Bool[Array, "rows units"] | None,
    ) -> Float[Array, "rows width most"]:
        """The log-potential at each state of some sites, all others as they are, up to a constant
        for each: minus infinity where a site has no such state, or where it would change a unit
        that is held. Members beyond the last site may have any scores.
        """

    @abc.abstractmethod
    def chosen(
        self, rows: Int[Array, "rows units"], members: Int[Array, " width"]
    ) -> Int[Array, "rows width"]:
        """The states of some sites."""

    @abc.abstractmethod
    def placed(
        self,
        rows: Int[Array, "rows units"],
        members: Int[Array, " width"],
        states: Int[Array, "rows width"],
    ) -> Int[Array, "rows units"]:
        """Configurations with other states of some sites. Members beyond the last are left out."""

    @abc.abstractmethod
    def to_rows(self, layers: Sequence[Float[Array, "rows _"]]) -> Int[Array, "rows units"]:
        """Configurations as rows of integers, from states as they are inside."""

    @abc.abstractmethod
    def from_rows(self, rows: Int[Array, "rows units"]) -> list[Float[Array, "rows _"]]:
        """The reverse of `to_rows`."""


def taken(rows: Array, members: Int[Array, " width"]) -> Array:
    """Columns of rows; the last one for members beyond it."""
    return rows.at[:, members].get(mode="clip")


def put(
    rows: Int[Array, "rows units"], members: Int[Array, " width"], states: Int[Array, "rows width"]
) -> Int[Array, "rows units"]:
    """Rows with other columns; members beyond the last are left out."""
    return rows.at[:, members].set(states.astype(rows.dtype), mode="drop")


def unless_held(
    scores: Float[Array, "rows width most"],
    own: Int[Array, "rows width"],
    held: Bool[Array, "rows width"] | None,
) -> Float[Array, "rows width most"]:
    """Scores that leave no choice where a unit is held."""
    if held is None:
        return scores
    number = jnp.broadcast_to(jnp.arange(scores.shape[-1], dtype=own.dtype), scores.shape)
    other = number != jnp.broadcast_to(own[..., None], scores.shape)
    return jnp.where(other & jnp.broadcast_to(held[..., None], scores.shape), -jnp.inf, scores)


def coloured(joined: list[list[tuple[int, int]]]) -> Int[np.ndarray, "colours width"]:
    """Variables in classes of which no two depend on each other: a greedy colouring. Each variable
    has pairs of numbers of sides: one that it is on, and the one that it depends on, which is the
    same for a factor whose variables all depend on each other. A side knows the colours of its
    variables as the bits of a number.
    """
    number = len(joined)
    used = [0] * (1 + max((max(pair) for pairs in joined for pair in pairs), default=-1))
    colour = np.zeros(number, int)
    for v in sorted(range(number), key=lambda v: -len(joined[v])):
        met = 0
        for _, other in joined[v]:
            met |= used[other]
        free = ~met & (met + 1)
        colour[v] = free.bit_length() - 1
        for own, _ in joined[v]:
            used[own] |= free
    return by_colour(colour)


def by_colour(colour: Int[np.ndarray, " number"]) -> Int[np.ndarray, "colours width"]:
    """The members of each colour. Short rows are filled up with their number."""
    rows = [np.flatnonzero(colour == c) for c in np.unique(colour)]
    out = np.full((len(rows), max(map(len, rows), default=0)), len(colour), np.int32)
    for k, row in enumerate(rows):
        out[k, : len(row)] = row
    return out
