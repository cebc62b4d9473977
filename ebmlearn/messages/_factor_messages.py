"""What factors send to units, and what they add to the Bethe approximation of log Z."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from .._sentinels import EXCLUDED, LEAST
from .._types import AnyArray
from ._forms import (
    AbstractNumbered,
    AbstractSent,
    counts_of_pairs,
    Damp,
    Heard,
    Maximised,
    Product,
    reduced,
    Singles,
    Start,
    Sums,
)


class TablesSent(AbstractSent):
    """Tables of one shape. Messages towards an axis are `[tables, states]`."""

    tables: Float[Array, "tables ..."]
    members: Int[AnyArray, "tables _"]
    forms: tuple[AbstractNumbered, ...]
    maximised: Maximised
    ends: tuple[int, ...] = eqx.field(static=True)
    product: Product = eqx.field(static=True)

    @property
    def excludes(self) -> bool:
        return True

    def start(self, start: Start, heard: Sequence[Heard]) -> PyTree:
        zeros = (jnp.zeros((len(self.members), n), self.tables.dtype) for n in self._sizes)
        return tuple(form.message(x) for form, x in zip(self.forms, zeros, strict=True))

    def spread(self, fields: Sequence[Any], joined: Callable = jnp.subtract) -> PyTree:
        return tuple(
            form.message(form.rows(fields[end])[self.members[:, axis], :size])
            for axis, (form, end, size) in enumerate(
                zip(self.forms, self.ends, self._sizes, strict=True)
            )
        )

    def update(self, messages: PyTree, heard: Sequence[Heard], damp: Damp) -> PyTree:
        cavities = self._cavities(messages, heard)
        new = [self._sent(cavities, heard, axis) for axis in range(len(messages))]
        return tuple(damp(a, b) for a, b in zip(messages, new, strict=True))

    def added(self, sums: Sums, sent: PyTree, group: int) -> Sums:
        for axis, (form, end, message) in enumerate(zip(self.forms, self.ends, sent, strict=True)):
            if end == group:
                sums = form.told(sums, message, self.members[:, axis])
        return sums

    def normalisers(
        self, messages: PyTree, heard: Sequence[Heard], singles: Singles
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        value, possible = _added(self._joint(messages, heard), self.product)
        own = [singles[end][self.members[:, axis]].sum() for axis, end in enumerate(self.ends)]
        # What `_joint` leaves out.
        tops = [form.rows(x).max(-1).sum() for form, x in zip(self.forms, messages, strict=True)]
        for found in (own, tops):
            value = value - jnp.stack([jnp.zeros_like(value), *found]).sum()
        return value, possible

    def statistic(
        self, messages: PyTree, heard: Sequence[Heard], temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "tables ..."]]:
        return (_probabilities(self._joint(messages, heard), temperature),)

    def left(self, messages: PyTree, group: int, possible: Bool[Array, "n states"]) -> Any:
        for axis, (form, end, message) in enumerate(
            zip(self.forms, self.ends, messages, strict=True)
        ):
            if end == group:
                fine = less_the_largest(form.rows(message)) > EXCLUDED / 2
                possible = possible.at[self.members[:, axis], : fine.shape[-1]].min(fine)
        return possible

    def counts(self, group: int, size: int) -> tuple[Int[AnyArray, " n"], Int[AnyArray, " n"]]:
        degree = width = jnp.zeros(size, jnp.int32)
        for axis, end in enumerate(self.ends):
            if end == group:
                degree = degree.at[self.members[:, axis]].add(1)
                width = width.at[self.members[:, axis]].max(len(self.ends))
        return degree, width

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.tables.shape[1:]

    def _joint(self, messages: PyTree, heard: Sequence[Heard]) -> Float[Array, "tables ..."]:
        table = self.tables
        for axis, cavity in enumerate(self._cavities(messages, heard, level=True)):
            table = table + jnp.broadcast_to(_along(cavity, axis, table.ndim), table.shape)
        return table

    def _cavities(
        self, messages: PyTree, heard: Sequence[Heard], level: bool = False
    ) -> list[Float[Array, "tables _"]]:
        """The scores of units without what these tables sent to them; without the largest number of
        that if it should be `level` with scores that have been shifted. A message that excludes
        the state 0 of a binary unit is a large number for 1.
        """
        out = []
        for axis, (form, end, message) in enumerate(
            zip(self.forms, self.ends, messages, strict=True)
        ):
            at = self.members[:, axis], slice(self._sizes[axis])
            rows = less_the_largest(form.rows(message)) if level else form.rows(message)
            out.append(without(heard[end].rows[at], heard[end].open[at], rows))
        return out

    def _sent(
        self, cavities: list[Array], heard: Sequence[Heard], axis: int
    ) -> Float[Array, "tables ..."]:
        table = self.tables
        others = [k for k in range(len(cavities)) if k != axis]
        over = self._over()
        for k in others:
            cavity = cavities[k]
            if over is not None:
                own = heard[self.ends[k]].rows[self.members[:, k], : cavity.shape[-1]]
                cavity = plugged(cavity, own, over[k], over[axis])
            table = table + jnp.broadcast_to(_along(cavity, k, table.ndim), table.shape)
        if over is not None:
            # What is summed over comes first: a sum of maxima would be another one for each state.
            for k in others:
                total = jax.nn.logsumexp(table, axis=k + 1, keepdims=True)
                best = _along(over[k] & over[axis], 0, table.ndim)
                table = jnp.where(best, table, jnp.broadcast_to(total, table.shape))
        rows = jnp.moveaxis(table, axis + 1, 1).reshape(*table.shape[:1], self._sizes[axis], -1)
        found = reduced(rows, -1, "sum" if self.product == "sum" else "max")
        return self.forms[axis].message(less_the_largest(found))

    def _over(self) -> list[Bool[Array, "tables 1"]] | None:
        """Whether mixed-product maximises over the unit at each axis."""
        if self.maximised is None:
            return None
        pairs = enumerate(self.maximised)
        return [mask[self.members[:, axis]][:, None] for axis, mask in pairs]


class DenseSent(AbstractSent):
    """All pairs of units of two groups, or of one. Messages towards the second unit of a pair are
    `[m, n, states]`, and so are those towards the first; inside a group these are the same ones.
    """

    tables: Float[Array, "m n _ _"]
    inside: tuple[Float[Array, "_ _"], Float[Array, "_ _"]]
    forms: tuple[AbstractNumbered, ...]
    maximised: Maximised
    ends: tuple[int, ...] = eqx.field(static=True)
    product: Product = eqx.field(static=True)

    def start(self, start: Start, heard: Sequence[Heard]) -> PyTree:
        m, n, *sizes = self.tables.shape
        zeros = [jnp.zeros((m, n, size), self.tables.dtype) for size in sizes]
        found = [form.message(x) for form, x in zip(self.forms, zeros, strict=True)]
        return tuple(found[1:] if self._is_one else found)

    def spread(self, fields: Sequence[Any], joined: Callable = jnp.subtract) -> PyTree:
        m, n, a, b = self.tables.shape
        one, two = (form.rows(fields[e]) for form, e in zip(self.forms, self.ends, strict=True))
        to_second = jnp.broadcast_to(two[None], (m, n, b))
        if self._is_one:
            # A unit sends nothing to itself.
            own = jnp.eye(m, dtype=bool)[..., None]
            return (self.forms[1].message(jnp.where(own, jnp.zeros_like(to_second), to_second)),)
        to_first = jnp.broadcast_to(one[:, None], (m, n, a))
        return self.forms[0].message(to_first), self.forms[1].message(to_second)

    def update(self, messages: PyTree, heard: Sequence[Heard], damp: Damp) -> PyTree:
        one, two = self._cavities(messages, heard)
        to_second = self._sent(one, 0, heard)
        new = (to_second,) if self._is_one else (self._sent(two, 1, heard), to_second)
        return tuple(damp(a, b) for a, b in zip(messages, new, strict=True))

    def added(self, sums: Sums, sent: PyTree, group: int) -> Sums:
        first, second = self.ends
        if group == second:
            sums = _plus(sums, sent[-1].sum(0))
        if group == first and not self._is_one:
            sums = _plus(sums, sent[0].sum(1))
        return sums

    def counts(self, group: int, size: int) -> tuple[Int[AnyArray, " n"], Int[AnyArray, " n"]]:
        return counts_of_pairs(self.tables.shape[:2], self.ends, group, size)

    def normalisers(
        self, messages: PyTree, heard: Sequence[Heard], singles: Singles
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        value, possible = _added(self._joint(messages, heard), self.product)
        one, two = (singles[end].sum() for end in self.ends)
        m, n = self.tables.shape[:2]
        own = (m - 1) * one if self._is_one else n * one + m * two
        return value - own, possible

    def statistic(
        self, messages: PyTree, heard: Sequence[Heard], temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "_ _"]]:
        p = _probabilities(self._joint(messages, heard), temperature)
        m, n, a, b = self.tables.shape
        if self._is_one:
            first, second = jnp.triu_indices(m, 1)
            both = jnp.zeros((m, m, a, a), p.dtype).at[first, second].set(p)
            p = both + both.transpose(1, 0, 3, 2)
            # A unit has the same state as itself.
            own = jnp.arange(m)
            alone = jax.nn.softmax(temperature * heard[self.ends[0]].rows, axis=-1)
            p = p.at[own, own].set(jax.vmap(jnp.diag)(alone))
        one, two = self.inside
        found = jnp.einsum("mnab,ax,by->mxny", p.reshape(m, n, a, b), one, two, precision="highest")
        return (found.reshape(m * one.shape[1], n * two.shape[1]),)

    @property
    def _is_one(self) -> bool:
        return self.ends[0] == self.ends[1]

    def _joint(self, messages: PyTree, heard: Sequence[Heard]) -> Float[Array, "pairs _ _"]:
        one, two = self._cavities(messages, heard)
        found = self.tables + one[..., :, None] + two[..., None, :]
        if self._is_one:
            # Each pair once.
            first, second = jnp.triu_indices(found.shape[0], 1)
            return found[first, second]
        return found.reshape(math.prod(found.shape[:2]), *found.shape[2:])

    def _cavities(self, messages: PyTree, heard: Sequence[Heard]) -> tuple[Array, Array]:
        """The scores of the units of each pair without what the other one sent."""
        to_second = self.forms[1].rows(messages[-1])
        to_first = to_second.transpose(1, 0, 2) if self._is_one else self.forms[0].rows(messages[0])
        one, two = (heard[end] for end in self.ends)
        return (
            without(one.rows[:, None], one.open[:, None], to_first),
            without(two.rows[None], two.open[None], to_second),
        )

    def _sent(self, cavity: Array, axis: int, heard: Sequence[Heard]) -> Float[Array, "..."]:
        """What one end of all pairs sends to the other."""

        def sent(cavity: Array, product: Product) -> Array:
            wide = cavity[..., None, :] if axis else cavity[..., :, None]
            return reduced(self.tables + wide, axis + 2, product)

        if self.maximised is None:
            found = sent(cavity, self.product)
        else:
            rows = heard[self.ends[axis]].rows
            one, two = self.maximised[0][:, None, None], self.maximised[1][None, :, None]
            over = (two, one) if axis else (one, two)
            found = mixed(sent, cavity, rows[None] if axis else rows[:, None], *over)
        return self.forms[1 - axis].message(less_the_largest(found))


def without(rows: Array, is_open: Array, message: Array) -> Array:
    rows = jnp.broadcast_to(rows, message.shape)
    return jnp.where(jnp.broadcast_to(is_open, message.shape), rows - message, rows)


def plugged(cavity: Array, rows: Array, own: Array, other: Array) -> Array:
    """What is known of units when they send, if mixed-product maximises over some of them (`own`)
    and of those to which they send (`other`): a maximised one sends to a summed one as if it were
    held at its likeliest state (Liu & Ihler 2013, algorithm 2). `rows` are the scores of states.
    """
    best = rows == rows.max(-1, keepdims=True)
    held = jnp.where(best, jnp.zeros_like(rows), jnp.asarray(EXCLUDED, rows.dtype))
    return jnp.where(own & ~other, jnp.broadcast_to(held, cavity.shape), cavity)


def mixed(sent: Callable, cavity: Array, rows: Array, own: Array, other: Array) -> Array:
    """What one end of pairs sends to the other with mixed-product, by a function of what is known
    and of the product.
    """
    total = sent(plugged(cavity, rows, own, other), "sum")
    return jnp.where(own & other, sent(cavity, "max"), total)


def less_the_largest(sent: Float[Array, "... _"]) -> Float[Array, "... _"]:
    sent = sent - sent.max(-1, keepdims=True)
    return jnp.maximum(sent, jnp.asarray(LEAST, sent.dtype))


def _plus(sums: Sums, more: Array) -> Sums:
    return sums[0], sums[1] + more


def _added(
    joint: Float[Array, "parts ..."], product: Product
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """The sum of log Z of all parts, from the scores of their configurations; and whether each has
    one left.
    """
    found = reduced(_flat(joint), -1, product)
    return found.sum(), (found > EXCLUDED / 2).all()


def _probabilities(
    joint: Float[Array, "parts ..."], temperature: Float[Array, ""]
) -> Float[Array, "parts ..."]:
    """Those of the configurations of each part."""
    return jax.nn.softmax(temperature * _flat(joint), axis=-1).reshape(joint.shape)


def _flat(joint: Float[Array, "parts ..."]) -> Float[Array, "parts _"]:
    return joint.reshape(joint.shape[0], math.prod(joint.shape[1:]))


def _along(cavity: Shaped[Array, "tables _"], axis: int, rank: int) -> Shaped[Array, "tables ..."]:
    shape = [1] * rank
    shape[0], shape[axis + 1] = cavity.shape
    return cavity.reshape(shape)
