"""What factors send to variables, and what they add to the Bethe approximation of log Z.

All variables of a model are rows of scores, one for each state. `held` says whose state is known:
nothing is taken from their scores.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._sentinels import LEAST
from .._types import AnyArray
from ..factors import Dense, Tables


Rows = Float[Array, "variables most"]
# The sum of exponentials over an axis, as a logarithm, or the maximum.
Reduce = Callable[[Array, int], Array]


class AbstractSent(eqx.Module):
    """The messages of a factor, for one instance."""

    @abc.abstractmethod
    def spread(self, rows: Rows) -> PyTree:
        """Messages to each variable that say what its row does."""

    @abc.abstractmethod
    def update(
        self, edges: PyTree, rows: Rows, held: Bool[Array, "variables most"], reduce: Reduce
    ) -> PyTree:
        """What is sent if variables have these scores, given what was sent to them before."""

    @abc.abstractmethod
    def added(self, rows: Rows, edges: PyTree) -> Rows:
        """Scores with all messages added to them."""

    @abc.abstractmethod
    def joint(
        self, edges: PyTree, rows: Rows, held: Bool[Array, "variables most"]
    ) -> Float[Array, "factors *states"]:
        """The scores of all configurations of each part of the factor."""

    @abc.abstractmethod
    def statistic(self, p: Float[Array, "factors *states"]) -> Float[Array, "..."]:
        """The expected statistic of the parameters, from the probabilities of configurations."""

    @abc.abstractmethod
    def counts(self, variables: int) -> tuple[Int[Array, " variables"], Int[Array, " variables"]]:
        """The number of parts that each variable is in, and the number of variables of these."""


class TablesSent(AbstractSent):
    """Tables of one shape."""

    tables: Float[Array, "tables ..."]
    members: Int[AnyArray, "tables _"]

    def spread(self, rows: Rows) -> tuple[Float[Array, "tables _"], ...]:
        return tuple(
            rows[self.members[:, axis], :size] for axis, size in enumerate(self.tables.shape[1:])
        )

    def update(self, edges: Any, rows: Rows, held: Array, reduce: Reduce) -> PyTree:
        cavities = self._cavities(edges, rows, held)
        return tuple(self._sent(cavities, axis, reduce) for axis in range(len(edges)))

    def added(self, rows: Rows, edges: Any) -> Rows:
        for axis, message in enumerate(edges):
            rows = rows.at[self.members[:, axis], : message.shape[1]].add(message)
        return rows

    def joint(self, edges: Any, rows: Rows, held: Array) -> Float[Array, "tables ..."]:
        table = self.tables
        for axis, cavity in enumerate(self._cavities(edges, rows, held)):
            table = table + jnp.broadcast_to(_along(cavity, axis, table.ndim), table.shape)
        return table

    def statistic(self, p: Float[Array, "tables ..."]) -> Float[Array, "tables ..."]:
        return p

    def counts(self, variables: int) -> tuple[Int[Array, " variables"], Int[Array, " variables"]]:
        none, flat = jnp.zeros(variables, jnp.int32), self.members.reshape(-1)
        return none.at[flat].add(1), none.at[flat].max(self.members.shape[1])

    def _cavities(self, edges: Any, rows: Rows, held: Array) -> list[Float[Array, "tables _"]]:
        """The scores of variables without what these tables sent to them."""
        out = []
        for axis, message in enumerate(edges):
            members, size = self.members[:, axis], message.shape[1]
            field = rows[members, :size]
            out.append(jnp.where(held[members, :size], field, field - message))
        return out

    def _sent(self, cavities: list[Array], axis: int, reduce: Reduce) -> Float[Array, "tables _"]:
        table = self.tables
        for other, cavity in enumerate(cavities):
            if other != axis:
                table = table + jnp.broadcast_to(_along(cavity, other, table.ndim), table.shape)
        rows = jnp.moveaxis(table, axis + 1, 1).reshape(*table.shape[:1], table.shape[axis + 1], -1)
        return _less_the_largest(reduce(rows, -1))


class DenseSent(AbstractSent):
    """All pairs of units of two groups, or of one. Messages towards the second unit of a pair are
    `[m, n, states]`, and so are those towards the first; inside a group these are the same ones.
    """

    tables: Float[Array, "m n _ _"]
    inside: tuple[Float[Array, "_ _"], Float[Array, "_ _"]]
    starts: tuple[int, int] = eqx.field(static=True)
    is_one: bool = eqx.field(static=True)

    def spread(self, rows: Rows) -> tuple[Float[Array, "m n _"], ...]:
        m, n, a, b = self.tables.shape
        one, two = self._ends(rows)
        to_second = jnp.broadcast_to(two[None, :, :b], (m, n, b))
        if self.is_one:
            # A unit sends nothing to itself.
            own = jnp.eye(m, dtype=bool)[..., None]
            return (jnp.where(own, jnp.zeros_like(to_second), to_second),)
        return jnp.broadcast_to(one[:, None, :a], (m, n, a)), to_second

    def update(self, edges: Any, rows: Rows, held: Array, reduce: Reduce) -> PyTree:
        one, two = self._cavities(edges, rows, held)
        to_second = _less_the_largest(reduce(self.tables + one[..., :, None], 2))
        if self.is_one:
            return (to_second,)
        return _less_the_largest(reduce(self.tables + two[..., None, :], 3)), to_second

    def added(self, rows: Rows, edges: Any) -> Rows:
        m, n, a, b = self.tables.shape
        first, second = self.starts
        rows = rows.at[second : second + n, :b].add(edges[-1].sum(0))
        return rows if self.is_one else rows.at[first : first + m, :a].add(edges[0].sum(1))

    def joint(self, edges: Any, rows: Rows, held: Array) -> Float[Array, "pairs _ _"]:
        one, two = self._cavities(edges, rows, held)
        found = self.tables + one[..., :, None] + two[..., None, :]
        if self.is_one:
            # Each pair once.
            first, second = jnp.triu_indices(found.shape[0], 1)
            return found[first, second]
        return found.reshape(-1, *found.shape[2:])

    def statistic(self, p: Float[Array, "pairs _ _"]) -> Float[Array, "_ _"]:
        m, n, a, b = self.tables.shape
        if self.is_one:
            first, second = jnp.triu_indices(m, 1)
            both = jnp.zeros((m, m, a, a), p.dtype).at[first, second].set(p)
            p = both + both.transpose(1, 0, 3, 2)
        one, two = self.inside
        found = jnp.einsum("mnab,ax,by->mxny", p.reshape(m, n, a, b), one, two, precision="highest")
        return found.reshape(m * one.shape[1], n * two.shape[1])

    def counts(self, variables: int) -> tuple[Int[Array, " variables"], Int[Array, " variables"]]:
        m, n, _, _ = self.tables.shape
        degree = width = jnp.zeros(variables, jnp.int32)
        ends = [(self.starts[1], n, m - 1)] if self.is_one else []
        if not self.is_one:
            ends = [(self.starts[0], m, n), (self.starts[1], n, m)]
        for start, size, others in ends:
            degree = degree.at[start : start + size].add(others)
            width = width.at[start : start + size].max(2 if others > 0 else 0)
        return degree, width

    def _ends(self, rows: Array) -> tuple[Array, Array]:
        m, n, _, _ = self.tables.shape
        first, second = self.starts
        return rows[first : first + m], rows[second : second + n]

    def _cavities(self, edges: Any, rows: Rows, held: Array) -> tuple[Array, Array]:
        """The scores of the units of each pair without what the other one sent."""
        (one, two), (held_one, held_two) = self._ends(rows), self._ends(held)
        to_second = edges[-1]
        to_first = to_second.transpose(1, 0, 2) if self.is_one else edges[0]
        a, b = to_first.shape[-1], to_second.shape[-1]
        first = jnp.broadcast_to(one[:, None, :a], to_first.shape)
        second = jnp.broadcast_to(two[None, :, :b], to_second.shape)
        return (
            jnp.where(held_one[:, None, :a], first, first - to_first),
            jnp.where(held_two[None, :, :b], second, second - to_second),
        )


def sent_by(factor: Any, units: dict[str, Any], starts: dict[str, int], beta: Any) -> AbstractSent:
    """The messages of a factor with its log-potentials times `beta`. Groups start at some rows."""
    return _KINDS[type(factor)](factor, units, starts, beta)


def _tables(factor: Tables, units: Any, starts: dict[str, int], beta: Any) -> TablesSent:
    first = jnp.asarray([starts[group] for group in factor.axes], jnp.int32)
    members = jnp.asarray(factor.members) + first[None]
    return TablesSent(factor.tempered(beta).log_potentials, members)


def _dense(factor: Dense, units: Any, starts: dict[str, int], beta: Any) -> DenseSent:
    ends = factor.first, factor.second
    inside = tuple(units[group].states_inside(factor.weights.dtype) for group in ends)
    pairs = factor.tempered(beta).pairs(units)
    return DenseSent(pairs, inside, (starts[ends[0]], starts[ends[1]]), ends[0] == ends[1])  # pyright: ignore


_KINDS: dict[type, Callable[..., AbstractSent]] = {Tables: _tables, Dense: _dense}


def _less_the_largest(sent: Float[Array, "... _"]) -> Float[Array, "... _"]:
    sent = sent - sent.max(-1, keepdims=True)
    return jnp.maximum(sent, jnp.asarray(LEAST, sent.dtype))


def _along(cavity: Float[Array, "tables _"], axis: int, rank: int) -> Float[Array, "tables ..."]:
    shape = [1] * rank
    shape[0], shape[axis + 1] = cavity.shape
    return cavity.reshape(shape)
