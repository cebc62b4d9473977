"""Which variables of a graph are drawn together, and which follow others."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int
from pgmax import factor

from .._types import AnyArray
from ..models import coloured
from ._kinds import determined, DETERMINING
from ._layout import Layout, listings, Wires
from ._possible import function, listed, one_at_most, Possible, possible_sets, Relation


# A variable is a function of others of at most so many configurations that are not all listed.
_ENTRIES = 2**14


class _Functions(NamedTuple):
    """Variables that are functions of others. The state of a child is the entry of `table` at
    `first`, plus the sum of `strides` times the states of its parents; `of` says whose a parent is.
    An entry is -1 where these have no possible state. `factor` is the number of the factor that
    says so.
    """

    factor: np.ndarray
    children: np.ndarray
    first: np.ndarray
    of: np.ndarray
    parents: np.ndarray
    strides: np.ndarray
    table: np.ndarray


class Sites(eqx.Module):
    """How the variables of a graph are drawn.

    If no factor makes a variable a function of others, in `turns` of variables that share no
    factor. Otherwise, one variable of each factor that does is a child (see `_Functions`). All
    other variables are drawn one by one, and `children` follow. Some configurations of those others
    may be excluded; `possible` are the others.
    """

    turns: Int[AnyArray, "turns width"]
    children: Int[AnyArray, " factors"]
    first: Int[AnyArray, " factors"]
    of: Int[AnyArray, " parents"]
    parents: Int[AnyArray, " parents"]
    strides: Int[AnyArray, " parents"]
    table: Int[AnyArray, " entries"]
    possible: tuple[Possible, ...]
    depth: int = eqx.field(static=True)
    problem: str | None = eqx.field(static=True)

    @property
    def is_free(self) -> bool:
        """Whether each variable may have any state, whatever the others are."""
        return not (self.depth or self.possible)

    def followed(
        self, rows: Int[Array, "rows variables"], held: Bool[Array, "rows variables"] | None = None
    ) -> Int[Array, "rows variables"]:
        """Configurations in which children that are not held have followed their parents, if these
        allow a state.
        """
        children, first, of, parents, strides, table = (
            jnp.asarray(x, rows.dtype)
            for x in (self.children, self.first, self.of, self.parents, self.strides, self.table)
        )
        for _ in range(self.depth):
            terms = strides[:, None] * rows[:, parents].T
            new = table[first[:, None] + jax.ops.segment_sum(terms, of, children.shape[0])].T
            kept = new < 0 if held is None else held[:, children] | (new < 0)
            new = jnp.where(kept, rows[:, children], new)
            rows = rows.at[:, children].set(new)
        return rows


def sites_of(layout: Layout, wires: Wires) -> Sites:
    """How the variables of a graph are drawn, found when a model is made of it."""
    functions, excluding = _functions(layout, wires)
    functions, depth, problem = _ordered(functions, layout.num_variables)
    possible: tuple[Possible, ...] = ()
    if problem is None:
        counts = np.asarray(layout.every_count)
        possible, problem = possible_sets(_of_free(excluding, functions, counts))
    if depth:
        free = np.setdiff1d(np.arange(layout.num_variables), functions.children)
        turns = free[:, None].astype(np.int32)
    else:
        turns = _coloured(layout, wires)
    arrays = {k: x.astype(np.int32) for k, x in functions._asdict().items() if k != "factor"}
    return Sites(turns=turns, possible=possible, depth=depth, problem=problem, **arrays)


def related(
    layout: Layout, wires: Wires, k: int
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], Int[np.ndarray, " factors"]]:
    """The variables that determine others by factors of a kind, with the number of the factor of
    each, and those others.
    """
    kind = layout.kinds[k]
    owner, *ends, _ = determined(kind.type, wires.arguments[k])
    variable = np.asarray(wires.variable)[np.asarray(wires.states)[slice(*kind.messages)]]
    above, below = (variable[np.asarray(end)] for end in ends)
    return np.asarray(owner), above, below


def _functions(layout: Layout, wires: Wires) -> tuple[_Functions, list[Relation]]:
    """All functions that single factors make of single variables, and what else they exclude."""
    parts, number, excluding = [_Functions(*[np.zeros(0, int)] * 7)], 0, []
    for k, kind in enumerate(layout.kinds):
        if kind.type in DETERMINING:
            owner, above, below = related(layout, wires, k)
            widths = np.bincount(owner, minlength=len(below))
            most, factors = widths.max(initial=0), number + np.arange(len(below))
            # A sum is how many parents are 1. For AND, it is all of them at the last place.
            every = kind.type is factor.ANDFactor
            first, table = every * (most - widths), np.arange(most + 1) >= (most if every else 1)
            own = factors, below, first, owner, above, np.ones_like(above), table
            parts.append(_Functions(*own))
            number += len(below)
            if kind.type is factor.PoolFactor:
                choices = np.split(above[np.argsort(owner, kind="stable")], np.cumsum(widths)[:-1])
                excluding += map(one_at_most, choices)
        elif kind.type is factor.EnumFactor:
            for scopes, states, _, shape in listings(layout, wires, k):
                rows = states[0]
                if len(rows) == math.prod(shape):
                    continue
                found = [*_listed(scopes, rows, shape, number)]
                whole = [own for own in found if (own.table >= 0).all()]
                if not whole:
                    excluding += [listed(scope, rows) for scope in scopes]
                parts += whole or found
                number += len(scopes)
    options = np.cumsum([0, *(len(x.children) for x in parts)])
    entries = np.cumsum([0, *(len(x.table) for x in parts)])
    moved = [
        x._replace(of=x.of + before, first=x.first + start)
        for x, before, start in zip(parts, options[:-1], entries[:-1], strict=True)
    ]
    return _Functions(*map(np.concatenate, zip(*moved, strict=True))), excluding


def _listed(
    scopes: Int[np.ndarray, "factors _"],
    rows: Int[np.ndarray, "configurations _"],
    shape: tuple[int, ...],
    number: int,
) -> Iterator[_Functions]:
    """The functions that factors make by the configurations that they list, each of which has
    other states of the others.
    """
    size = len(scopes)
    for k in range(len(shape)):
        others = shape[:k] + shape[k + 1 :]
        if not len(rows) <= math.prod(others) <= max(len(rows), _ENTRIES):
            continue
        strides = np.array([math.prod(others[i + 1 :]) for i in range(len(others))], int)
        at = np.delete(rows, k, 1) @ strides
        if len(np.unique(at)) == len(rows):
            table = np.full(math.prod(others), -1)
            table[at] = rows[:, k]
            yield _Functions(
                factor=number + np.arange(size),
                children=scopes[:, k],
                first=np.zeros(size, int),
                of=np.repeat(np.arange(size), len(others)),
                parents=np.delete(scopes, k, 1).reshape(-1),
                strides=np.tile(strides, size),
                table=table,
            )


def _of_free(
    relations: list[Relation], found: _Functions, counts: Int[np.ndarray, " variables"]
) -> Iterator[Relation]:
    """What relations say of the variables that no others determine."""
    order, sizes = np.argsort(found.of, kind="stable"), np.bincount(found.of, minlength=1)
    above = np.split(order, np.cumsum(sizes)[:-1])
    place = {int(v): k for k, v in enumerate(found.children)}
    for own in relations:
        left = own.scope.tolist()
        while left:
            k = place.get(left.pop())
            if k is not None:
                parents, table = found.parents[above[k]], found.table[found.first[k] :]
                child, strides = int(found.children[k]), found.strides[above[k]]
                own = own.joined(function(child, parents, counts[parents], strides, table))
                left += parents.tolist()
        yield own.among(np.setdiff1d(own.scope, found.children))


def _selected(found: _Functions, kept: Int[np.ndarray, " _"]) -> _Functions:
    """Some of these functions."""
    place = np.full(len(found.children), -1)
    place[kept] = np.arange(len(kept))
    factors, children, first = (x[kept] for x in found[:3])
    of, parents, strides = (x[place[found.of] >= 0] for x in found[3:6])
    return _Functions(factors, children, first, place[of], parents, strides, found.table)


def _ordered(found: _Functions, number: int) -> tuple[_Functions, int, str | None]:
    """A function for each factor such that none is a function of itself, after how many rounds all
    children have followed, and why chains would not do, if there are no such functions.

    A variable of one factor alone can follow last, whatever the other factors do, so that this
    factor can be set aside. Where factors are left, there is no order for these.
    """
    left = np.zeros(found.factor.max(initial=-1) + 1, bool)
    left[found.factor] = True
    chosen, depth = np.full(len(left), -1), 0
    one = _selected(found, np.unique(found.factor, return_index=True)[1])
    user = np.concatenate([one.factor, one.factor[one.of]])
    used = np.concatenate([one.children, one.parents])
    while left.any():
        uses = np.bincount(used[left[user]], minlength=number)
        ready = np.flatnonzero(left[found.factor] & (uses[found.children] == 1))
        if not len(ready):
            break
        chosen[found.factor[ready]] = ready
        left[found.factor[ready]] = False
        depth += 1
    reason = None
    if len(np.unique(found.children[left[found.factor]])) < left.sum():
        reason = "a variable is determined by two factors, which chains cannot change together"
    elif left.any():
        reason = "variables determine each other in a circle"
    return _selected(found, chosen[chosen >= 0]), depth, reason


def _coloured(layout: Layout, wires: Wires) -> Int[np.ndarray, "turns width"]:
    """Variables in classes of which no two share a factor."""
    variable = np.asarray(wires.variable)
    factors: list[list[tuple[int, int]]] = [[] for _ in range(layout.num_variables)]
    size = 0
    for k, kind in enumerate(layout.kinds):
        if kind.type is factor.EnumFactor:
            scopes = [row for found, *_ in listings(layout, wires, k) for row in found]
        else:
            # Of other kinds, all variables may depend on each other.
            scopes = [np.unique(variable[np.asarray(wires.states)[slice(*kind.messages)]])]
        for scope in scopes:
            for v in scope.tolist():
                factors[v].append((size, size))
            size += 1
    for first, second in wires.ends:
        # What lies at one end of a dense group depends on all that lies at the other.
        for end, own in ((first, 0), (second, 1)):
            for v in variable[np.asarray(end)].tolist():
                factors[v].append((size + own, size + 1 - own))
        size += 2
    return coloured(factors)
