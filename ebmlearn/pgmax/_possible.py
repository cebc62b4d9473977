"""Sets of variables of which factors exclude some configurations."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from .._types import AnyArray


# Relations of more configurations are not listed.
_MOST = 2048


class Relation(NamedTuple):
    """Variables, and their possible configurations. Those of a `closed` one stay possible if
    variables become 0. One that is not `whole` has too many configurations to list.
    """

    scope: Int[np.ndarray, " width"]
    rows: Int[np.ndarray, "possible width"]
    closed: bool = False
    whole: bool = True

    def joined(self, other: "Relation") -> "Relation":
        """What both allow."""
        new = ~np.isin(other.scope, self.scope)
        scope = np.concatenate([self.scope, other.scope[new]])
        if self.whole and other.whole:
            _, mine, theirs = np.intersect1d(self.scope, other.scope, return_indices=True)
            same = np.ones((len(self.rows), len(other.rows)), bool)
            for a, b in zip(mine, theirs, strict=True):
                same &= self.rows[:, a, None] == other.rows[None, :, b]
            if same.sum() <= _MOST:
                one, two = np.nonzero(same)
                rows = np.concatenate([self.rows[one], other.rows[two][:, new]], 1)
                return Relation(scope, rows, self.closed and other.closed)
        return too_many(scope, self.closed and other.closed)

    def among(self, kept: Int[np.ndarray, " _"]) -> "Relation":
        """What it says of some of the variables, in the order of these."""
        at = np.flatnonzero(np.isin(self.scope, kept))
        at = at[np.argsort(self.scope[at])]
        return self._replace(scope=self.scope[at], rows=np.unique(self.rows[:, at], axis=0))

    def is_connected(self) -> bool:
        """Whether each configuration becomes each other by changes of single variables, each to
        the state that it has there at last. Then chains that change one variable at a time reach
        all of them, whatever variables are held and whatever states evidence excludes.
        """
        rows = self.rows
        if self.closed:
            return True
        distance = sum((x[:, None] != x[None]).astype(np.int32) for x in rows.T)
        nearer = ((distance[own == 1] < own).any(0) for own in distance)  # pyright: ignore
        return all((near | (own == 0)).all() for near, own in zip(nearer, distance, strict=True))  # pyright: ignore


def too_many(scope: Int[np.ndarray, " width"], closed: bool = False) -> Relation:
    """A relation that is not listed, but for zeros."""
    return Relation(scope, np.zeros((1, len(scope)), int), closed, False)


def listed(scope: Int[np.ndarray, " width"], rows: Int[np.ndarray, "_ width"]) -> Relation:
    """A relation of these configurations."""
    return Relation(scope, rows) if len(rows) <= _MOST else too_many(scope)


def one_at_most(scope: Int[np.ndarray, " width"]) -> Relation:
    """Binary variables of which one at most is 1."""
    if len(scope) >= _MOST:
        return too_many(scope, closed=True)
    rows = np.concatenate([np.zeros((1, len(scope)), int), np.eye(len(scope), dtype=int)])
    return Relation(scope, rows, closed=True)


def function(
    child: int,
    parents: Int[np.ndarray, " width"],
    counts: Int[np.ndarray, " width"],
    strides: Int[np.ndarray, " width"],
    table: Int[np.ndarray, " entries"],
) -> Relation:
    """A variable that is a function of others, of so many states, -1 where there is none."""
    scope = np.append(parents, child)
    if math.prod(counts.tolist()) > _MOST:
        return too_many(scope)
    rows = np.indices(tuple(counts)).reshape(len(parents), math.prod(counts.tolist())).T
    rows = np.column_stack([rows, table[rows @ strides]])
    return Relation(scope, rows[rows[:, -1] >= 0])


class Possible(eqx.Module):
    """Sets of variables that have the same possible configurations, `rows`; only some of these if
    they are not `whole`.
    """

    members: Int[AnyArray, "sets width"]
    rows: Int[AnyArray, "possible width"]
    whole: bool = eqx.field(static=True)

    def drawn(
        self,
        rows: Int[Array, "rows variables"],
        fixed: Bool[Array, "rows variables"],
        allowed: Bool[Array, "variables most"],
        key: PRNGKeyArray,
    ) -> Int[Array, "rows variables"]:
        """Rows in which the variables of each set that are not fixed have states that are possible
        together with the fixed ones, and of which evidence allows as many as it can.
        """
        at, every = jnp.asarray(self.members), jnp.asarray(self.rows, rows.dtype)
        x, kept = rows[:, at], fixed[:, at]
        agrees = x[..., None, :] == every[None, None]
        fit = (agrees | ~kept[..., None, :]).sum(-1)
        fit = fit + allowed[at[:, None], every[None]].sum(-1)[None]
        noise = jax.random.uniform(key, fit.shape)
        chosen = every[(fit.astype(noise.dtype) + noise).argmax(-1)]
        return rows.at[:, at].set(jnp.where(kept, x, chosen))


def possible_sets(relations: Iterable[Relation]) -> tuple[tuple[Possible, ...], str | None]:
    """Sets of variables that do not depend on each other, from what excludes configurations of any
    of them, and why chains that change one variable at a time would not do.
    """
    home: dict[int, Relation] = {}
    problem = None
    for own in relations:
        for other in {id(x): x for v in own.scope if (x := home.get(int(v)))}.values():
            own = own.joined(other)
        if not len(own.rows):
            problem = "its factors exclude all configurations"
        home.update(dict.fromkeys(own.scope.tolist(), own))
    alike: dict[tuple[bytes, int, bool, bool], list[Relation]] = {}
    for own in {id(x): x for x in home.values()}.values():
        own = own.among(own.scope)
        key = own.rows.tobytes(), len(own.scope), own.closed, own.whole
        alike.setdefault(key, []).append(own)
    found = []
    for same in alike.values():
        first = same[0]
        if not (first.whole or first.closed):
            problem = (
                "its factors exclude configurations of too many variables to see whether chains"
                " reach all others"
            )
        elif not first.is_connected():
            problem = (
                "its factors exclude configurations, so that variables, each with what it"
                " determines, may not come past each other"
            )
        members = np.stack([own.scope for own in same]).astype(np.int32)
        found.append(Possible(members, first.rows.astype(np.int32), first.whole))
    return () if problem else tuple(found), problem
