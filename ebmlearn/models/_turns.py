"""How the units of a model are drawn in turns, by the scores of their states."""

import abc
from collections.abc import Sequence
from typing import Any, TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .. import _checks
from .._sentinels import EXCLUDED, LEAST
from .._types import AnyArray
from ..factors import Stacks


if TYPE_CHECKING:
    from ._base import AbstractPlainModel


class AbstractTurns(eqx.Module):
    """How the units of a model are drawn in turns. What is drawn at once is a site: a unit, or
    several units that move together, as one variable of a graph does with those that it determines.

    Here, a configuration is one row of integers for all units, and a site has states of its own,
    numbered from 0 on.
    """

    model: eqx.AbstractVar[Any]
    # Which sites are drawn in each turn: no two of one turn depend on each other. Short rows are
    # filled up with the number of sites.
    order: eqx.AbstractVar[Int[AnyArray, "turns width"]]

    @property
    def site_states(self) -> Int[np.ndarray, " sites"]:
        """The number of states of each site: by default of each unit."""
        return np.asarray(self.model.variables.counts)

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

    def chosen(
        self, rows: Int[Array, "rows units"], members: Int[Array, " width"]
    ) -> Int[Array, "rows width"]:
        """The states of some sites."""
        return taken(rows, members)

    def placed(
        self,
        rows: Int[Array, "rows units"],
        members: Int[Array, " width"],
        states: Int[Array, "rows width"],
    ) -> Int[Array, "rows units"]:
        """Configurations with other states of some sites. Members beyond the last are left out."""
        return put(rows, members, states)

    def completed(
        self,
        rows: Int[Array, "rows units"],
        fixed: Bool[Array, "rows units"],
        key: PRNGKeyArray,
    ) -> Int[Array, "rows units"]:
        """Random configurations that are possible, with the states of units that are fixed."""
        return rows

    def conditionals(
        self, rows: Int[Array, "rows units"]
    ) -> tuple[Float[Array, "rows sites most"], Int[Array, "rows sites"]]:
        """The scores of the states of each term of the pseudo-likelihood, all else held, and the
        present state of that term. By default a term is a unit.
        """
        return given(self.model, self.layers(rows)), rows

    @property
    def determined(self) -> Int[AnyArray, " _"]:
        """The units that others determine."""
        return np.zeros(0, np.int32)

    def log_number(self) -> Float[Array, ""]:
        """The logarithm of the number of configurations that are possible."""
        return jnp.log(jnp.asarray(self.model.variables.counts, self.model.dtype)).sum()

    def no_chains(self) -> str | None:
        """Why chains that change a site at a time would not reach all configurations; None if they
        do.
        """
        return None

    def no_moves(self) -> str | None:
        """The same of chains that follow fields."""
        return self.no_chains()

    def mended(self, states: tuple[Array, ...], clamp: tuple[Any, ...]) -> tuple[Array, ...]:
        """States of one instance by group, in which units that others determine are computed from
        these, unless they are held.
        """
        return states

    def rows(self, layers: Sequence[Float[Array, "rows _"]]) -> Int[Array, "rows units"]:
        """Configurations as rows of integers, from states as they are inside."""
        pairs = zip(self.model.layers, layers, strict=True)
        return jnp.concatenate([u.decode(x) for u, x in pairs], -1)

    def layers(self, rows: Int[Array, "rows units"]) -> list[Float[Array, "rows _"]]:
        """The reverse of `rows`."""
        pairs = zip(self.model.layers, self.model.variables.cut(rows), strict=True)
        return [u.encode(x, self.model.dtype) for u, x in pairs]


class Alone(AbstractTurns):
    """Each unit is a site, and units that share no factor are drawn at once."""

    model: Any
    order: Int[AnyArray, "turns width"]

    def no_chains(self) -> str | None:
        if any(excludes(x) for factor in self.model.factors() for x in factor.parameters):
            return (
                "its tables exclude configurations, so that variables may not come past each"
                " other; take `Exact`, `BP` or `PMP`"
            )
        return None

    def scores(
        self,
        rows: Int[Array, "rows units"],
        members: Int[Array, " width"],
        held: Bool[Array, "rows units"] | None,
    ) -> Float[Array, "rows width most"]:
        found = given(self.model, self.layers(rows)).at[:, members].get(mode="clip")
        found = jnp.where(found < EXCLUDED / 2, -jnp.inf, found)
        free = None if held is None else taken(held, members)
        return unless_held(found, taken(rows, members), free)


def excludes(x: Float[AnyArray, "..."]) -> bool:
    """Whether log-potentials that are known exclude something."""
    return _checks.is_concrete(x) and bool((np.asarray(x) < EXCLUDED / 2).any())


def given(
    model: "AbstractPlainModel", layers: Sequence[Float[Array, "rows _"]]
) -> Float[Array, "rows units most"]:
    """The score of every state of every unit given all others; what a factor excludes has about
    -1e6, what a unit does not have less.
    """
    fields = [model.field(layers, k) for k in range(len(layers))]
    parts, kinds = [], tuple[Any, ...](model.layers)
    most = max(units.number for units in kinds)
    for units, field in zip(kinds, fields, strict=True):
        wide = ((0, 0), (0, 0), (0, most - units.number))
        parts.append(jnp.pad(units.scores(field), wide, constant_values=LEAST))
    return jnp.concatenate(parts, 1)


def in_order(stacks: Stacks, units: int) -> Int[np.ndarray, "colours width"]:
    """Units in classes of which no two share a table."""
    joined: list[list[tuple[int, int]]] = [[] for _ in range(units)]
    side = 0
    for members, _ in stacks:
        for own in np.asarray(members).tolist():
            for v in own:
                joined[v].append((side, side))
            side += 1
    return coloured(joined)


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
