"""Factors of a graph as tables that exclude all but some of their entries."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from pgmax import factor

from .._sentinels import EXCLUDED
from .._types import AnyArray
from ._layout import Layout, listings, Wires
from ._sites import related


# A table of more than 2**_WIDE entries is split, if that makes it smaller.
_WIDE = 8
# Factors of one shape: the variables of each, the states of its configurations, and the numbers of
# their log-potentials, -1 for 0.
_Batch = tuple[Int[np.ndarray, "_ _"], Int[np.ndarray, "_ _ _"], Int[np.ndarray, "_ _"]]
# Makes so many helper variables of so many states.
_New = Callable[[int, int], Int[np.ndarray, " _"]]


class Listing(eqx.Module):
    """Tables of one shape: the variables of each, and of the entries that they do not exclude the
    table, the place in it, and the number of the log-potential, after which comes a 0.
    """

    members: Int[AnyArray, "tables _"]
    tables: Int[AnyArray, " entries"]
    entries: Int[AnyArray, " entries"]
    own: Int[AnyArray, " entries"]
    shape: tuple[int, ...] = eqx.field(static=True)

    def stack(self, potentials: Float[Array, " _"]) -> Float[Array, "tables ..."]:
        """The tables."""
        size = self.members.shape[0]
        values = jnp.concatenate([potentials, jnp.zeros(1, potentials.dtype)])
        flat = jnp.full((size, math.prod(self.shape)), EXCLUDED, potentials.dtype)
        flat = flat.at[self.tables, self.entries].set(values[self.own])
        return flat.reshape(size, *self.shape)


class Listed(eqx.Module):
    """The factors of one kind as tables. `helpers` are the numbers of states of variables that wide
    factors add, after those of the graph.
    """

    listings: tuple[Listing, ...]
    helpers: tuple[int, ...] = eqx.field(static=True)


def listed_in(layout: Layout, wires: Wires, wide: int = _WIDE) -> tuple[Listed | None, ...]:
    """The factors of each kind; None for a kind that has no tables. Wires must be known."""
    counts, out = list(layout.every_count), []
    for k, kind in enumerate(layout.kinds):
        if kind.type not in _BATCHES:
            out.append(None)
            continue
        before = len(counts)

        def new(number: int, states: int) -> Int[np.ndarray, " _"]:
            counts.extend([states] * number)
            return np.arange(len(counts) - number, len(counts))

        shapes: dict[tuple[int, ...], list[_Batch]] = {}
        for batch in _BATCHES[kind.type](layout, wires, k, wide, new):
            shape = tuple(counts[v] for v in batch[0][0])
            shapes.setdefault(shape, []).append(batch)
        size = sum(math.prod(layout.groups[i][0]) for i in kind.owned)
        found = tuple(_listing(shape, parts, size) for shape, parts in shapes.items())
        out.append(Listed(found, tuple(counts[before:])))
    return tuple(out)


def _listing(shape: tuple[int, ...], parts: list[_Batch], size: int) -> Listing:
    rows, entries, own, first = [], [], [], 0
    for scopes, states, numbers in parts:
        at = np.ravel_multi_index(tuple(np.moveaxis(states, -1, 0)), shape)
        rows.append(np.repeat(np.arange(len(scopes)) + first, numbers.shape[1]))
        entries.append(np.broadcast_to(at, numbers.shape).reshape(-1))
        own.append(np.where(numbers < 0, size, numbers).reshape(-1))
        first += len(scopes)
    members = np.concatenate([scopes for scopes, _, _ in parts])
    tables, places, numbers = (np.concatenate(x).astype(np.int32) for x in (rows, entries, own))
    return Listing(members.astype(np.int32), tables, places, numbers, shape)


def _enumerated(layout: Layout, wires: Wires, k: int, wide: int, new: _New) -> Iterator[_Batch]:
    """Factors that list their configurations. Of a wide one that lists few, the number of its
    configuration is a helper variable, which determines all others.
    """
    for joined, local, own, shape in listings(layout, wires, k):
        entries = math.prod(shape)
        if entries <= 2**wide or own.shape[1] * sum(shape) >= entries:
            yield joined, local, own
            continue
        helpers, every = new(*own.shape), np.broadcast_to(np.arange(own.shape[1]), own.shape)
        yield helpers[:, None], every[..., None], own
        for variables, theirs in zip(joined.T, np.moveaxis(local, -1, 0), strict=True):
            scope = np.stack([helpers, variables], 1)
            yield scope, np.stack([every, theirs], -1), np.full_like(own, -1)


def _determined(reduce: Any) -> Callable[..., Iterator[_Batch]]:
    """Factors whose last variable is a function of all others: `reduce` of them, one after the
    other. The values on the way are helper variables of a wide one.
    """

    def allowed(number: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        rows = np.indices((2,) * width).reshape(width, -1).T
        rows = rows[reduce.reduce(rows[:, :-1], axis=1) == rows[:, -1]]
        shape = number, len(rows)
        return np.broadcast_to(rows, (*shape, width)), np.full(shape, -1)

    def batches(layout: Layout, wires: Wires, k: int, wide: int, new: _New) -> Iterator[_Batch]:
        owner, above, below = related(layout, wires, k)
        above = above[np.argsort(owner, kind="stable")]
        widths = np.bincount(owner, minlength=len(below))
        first = np.cumsum(widths) - widths
        for width in np.unique(widths):
            same = np.flatnonzero(widths == width)
            *parents, last = above[first[same][:, None] + np.arange(width)].T
            if width + 1 > wide:
                # Two at a time.
                left, *rest = parents
                for x in rest:
                    helpers = new(len(same), 2)
                    yield np.stack([left, x, helpers], 1), *allowed(len(same), 3)
                    left = helpers
                parents = [left]
            scopes = np.stack([*parents, last, below[same]], 1)
            yield scopes, *allowed(*scopes.shape)

    return batches


_BATCHES: dict[type, Callable[..., Iterator[_Batch]]] = {
    factor.EnumFactor: _enumerated,
    factor.ORFactor: _determined(np.maximum),
    factor.ANDFactor: _determined(np.minimum),
    factor.PoolFactor: _determined(np.add),
}
