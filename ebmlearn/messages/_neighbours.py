"""Messages between neighbours on a grid, by shifted arrays (Lázaro-Gredilla et al. 2021, appendix
B).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, Int, PyTree, Shaped

from .._sentinels import EXCLUDED, LIMIT
from .._types import AnyArray
from ..factors import Lattice
from ..factors._lattice import ends, moved
from ._factor_messages import less_the_largest, mixed, without
from ._forms import (
    AbstractSent,
    Damp,
    Form,
    Heard,
    Maximised,
    Product,
    reduced,
    Singles,
    Start,
    Sums,
)


# How far below the largest log-potential of its table another may lie where messages are products
# of matrices, by the bytes of a number. Each factor is scaled up by the exponential of a quarter of
# it, so that sums lie between those of minus and plus a half of it: in the middle of the range of
# the numbers, where neither they nor gradients divided by them are lost.
_SPREAD = {4: 80.0, 8: 640.0}


def spread(dtype: DTypeLike) -> float:
    """How far below the largest entry of a table another may lie in the fast form."""
    return _SPREAD[jnp.dtype(dtype).itemsize]


class LatticeSent(AbstractSent):
    """All pairs of places that lie one of some offsets apart, with a table for each offset.
    Messages are `[offsets, height, width, states]` towards the first and the second places, zero
    where there is no pair.

    In the fast form a message is the logarithm of a product of matrices. It serves if no entry of
    a table lies further below its largest than float32 has room for, 80.

    `leaf` is a group whose units are each joined to one place, and to nothing else. What it sends
    never changes, so that it sends before the first sweep, and hears after the last.
    """

    tables: Float[Array, "offsets m n"]
    kernels: Float[Array, "offsets m n"] | None
    maximised: Maximised
    shape: tuple[int, ...] = eqx.field(static=True)
    offsets: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    ends: tuple[int, ...] = eqx.field(static=True)
    product: Product = eqx.field(static=True)
    leaf: Any = eqx.field(static=True)  # pyright: ignore

    def __init__(
        self,
        factors: Sequence[Lattice],
        ends: tuple[int, ...],
        form: Form,
        product: Product,
        maximised: Maximised,
        leaf: int | None,
        beta: Float[AnyArray, ""],
    ):
        """`factors` join the same groups."""
        tables = jnp.stack([factor.tempered(beta).table for factor in factors])
        self.tables = jnp.clip(tables, -LIMIT, LIMIT)
        self.shape, self.offsets = factors[0].shape, tuple(factor.offset for factor in factors)
        self.ends, self.product, self.leaf, self.kernels = ends, product, leaf, None
        self.maximised = maximised
        if form == "odds" and product == "sum" and leaf is None:
            limit = spread(self.tables.dtype)
            top = jax.lax.stop_gradient(self.tables.max((1, 2), keepdims=True))
            self.kernels = jnp.exp(jnp.maximum(self.tables - top, -limit) + limit / 4)

    @property
    def excludes(self) -> bool:
        """Not in the fast form."""
        return self.kernels is None

    def start(self, start: Start, heard: Sequence[Heard]) -> PyTree:
        number, *sizes = self.tables.shape
        return tuple(jnp.zeros((number, *self.shape, n), self.tables.dtype) for n in sizes)

    def spread(self, fields: Sequence[Any], joined: Callable = jnp.subtract) -> PyTree:
        """Zero where there is no pair."""
        out = []
        for end, there in zip(self.ends, self._there(), strict=True):
            field = fields[end].reshape(1, *self.shape, -1)
            out.append(field * jnp.asarray(there, field.dtype)[..., None])
        return tuple(out)

    def update(self, messages: PyTree, heard: Sequence[Heard], damp: Damp) -> PyTree:
        one, two = self._cavities(messages, heard)
        back = [tuple(-step for step in offset) for offset in self.offsets]
        if self.maximised is not None:
            ways = (False, back), (True, self.offsets)
            known = (heard[end].rows.reshape(1, *self.shape, -1) for end in self.ends)
            masks = [mask.reshape(1, *self.shape, 1) for mask in self.maximised]
            one, two = (
                mixed(
                    functools.partial(self._sent, back=turned),
                    cavity,
                    rows,
                    own,
                    _all_moved(jnp.broadcast_to(other, (len(steps), *other.shape[1:])), steps),
                )
                for (turned, steps), cavity, rows, own, other in zip(
                    ways, (one, two), known, masks, masks[::-1], strict=True
                )
            )
        # All at once, if both ends have as many states.
        elif one.shape == two.shape:
            both = jnp.concatenate([one, two])
            one, two = jnp.split(self._sent(both, self.product, both_ways=True), 2)
        else:
            one, two = self._sent(one, self.product), self._sent(two, self.product, back=True)
        new = _all_moved(two, back), _all_moved(one, self.offsets)
        return tuple(damp(a, b) for a, b in zip(messages, new, strict=True))

    def added(self, sums: Sums, sent: PyTree, group: int) -> Sums:
        rows = sums[1]
        for end, message in zip(self.ends, sent, strict=True):
            if end == group:
                rows = rows + message.sum(0).reshape(rows.shape)
        return sums[0], rows

    def normalisers(
        self, messages: PyTree, heard: Sequence[Heard], singles: Singles
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        own = [singles[end].reshape(self.shape) for end in self.ends]
        values, possible = [], []
        for k, (one, two) in enumerate(self._edges(self._cavities(messages, heard))):
            found = reduced(_sums(one, self.tables[k], self.product) + two, -1, self.product)
            first, second = ends(self.shape, self.offsets[k])
            values.append((found - own[0][first] - own[1][second]).sum())
            possible.append((found > EXCLUDED / 2).all())
        return jnp.stack(values).sum(), jnp.stack(possible).all()

    def statistic(
        self, messages: PyTree, heard: Sequence[Heard], temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "m n"], ...]:
        edges = self._edges(self._cavities(messages, heard))
        pairs = zip(edges, self.tables, strict=True)
        return tuple(_expected(*ends, table, temperature) for ends, table in pairs)

    def left(self, messages: PyTree, group: int, possible: Bool[Array, "n states"]) -> Any:
        for end, message in zip(self.ends, messages, strict=True):
            if end == group:
                fine = (less_the_largest(message) > EXCLUDED / 2).all(0)
                possible = possible & fine.reshape(possible.shape)
        return possible

    def counts(self, group: int, size: int) -> tuple[Int[AnyArray, " n"], Int[AnyArray, " n"]]:
        pairs = zip(self.ends, self._there(), strict=True)
        degree = np.sum([there.sum(0) for end, there in pairs if end == group], 0).ravel()
        return degree.astype(np.int32), np.where(degree > 0, 2, 1).astype(np.int32)

    def _there(self) -> tuple[np.ndarray, np.ndarray]:
        """Whether a place is a first, and a second one of a pair, by offset."""
        out = np.zeros((2, len(self.offsets), *self.shape), bool)
        for k, offset in enumerate(self.offsets):
            for end, place in enumerate(ends(self.shape, offset)):
                out[end, k][place] = True
        return out[0], out[1]

    def _edges(self, parts: Sequence[Array]) -> list[tuple[Array, Array]]:
        """What is at the first and at the second places of all pairs, by offset."""
        found = [ends(self.shape, offset) for offset in self.offsets]
        return [(parts[0][k][one], parts[1][k][two]) for k, (one, two) in enumerate(found)]

    def _cavities(self, messages: PyTree, heard: Sequence[Heard]) -> tuple[Array, Array]:
        """The scores at first and second places without what these messages say."""
        out = []
        for end, message in zip(self.ends, messages, strict=True):
            shape = (1, *message.shape[1:])
            rows, is_open = (x.reshape(shape) for x in (heard[end].rows, heard[end].open))
            out.append(without(rows, is_open, message))
        return tuple(out)  # pyright: ignore

    def _sent(
        self,
        cavities: Float[Array, "k ... m"],
        product: Product,
        back: bool = False,
        both_ways: bool = False,
    ) -> Float[Array, "k ... n"]:
        """What each place sends, from first places, from second ones, or from both. Each message is
        right up to a constant, and these are such that none grows.
        """

        def turned(x: Float[Array, "offsets m n"]) -> Array:
            other = x.swapaxes(1, 2)
            return jnp.concatenate([x, other]) if both_ways else (other if back else x)

        # The subtraction is differentiated too: otherwise a constant, and its rounding errors, grow
        # sevenfold in each sweep of a gradient.
        cavities = cavities - cavities.max(-1, keepdims=True)
        if self.kernels is None:
            sums = functools.partial(_sums, product=product)
            return jax.vmap(sums)(cavities, turned(self.tables))
        scale = spread(cavities.dtype) / 4
        mass = jnp.exp(cavities + scale)
        # With factors rounded to 10 bits, as GPUs do by default, the scores of labels were wrong by
        # 0.02 after 15 sweeps of a trained model, by 2e-4 otherwise. Opt in to the default with
        # `jax.default_matmul_precision`.
        asked: Any = jax.config
        precision = None if asked.jax_default_matmul_precision else "highest"
        total = jnp.einsum("k...s,kst->k...t", mass, turned(self.kernels), precision=precision)
        return jnp.log(total) - 2 * scale


def _all_moved(
    sent: Shaped[Array, "offsets ..."], offsets: Sequence[tuple[int, ...]]
) -> Shaped[Array, "offsets ..."]:
    return jnp.stack([moved(x, offset) for x, offset in zip(sent, offsets, strict=True)])


def _expected(
    one: Float[Array, "... m"],
    two: Float[Array, "... n"],
    table: Float[Array, "m n"],
    temperature: Float[Array, ""],
) -> Float[Array, "m n"]:
    """The beliefs of all pairs of states, added up over pairs, a row of the grid at a time."""
    table = temperature * table

    def step(total: Array, row: tuple[Array, Array]) -> tuple[Array, None]:
        joint = row[0][..., :, None] + row[1][..., None, :]
        joint = temperature * joint + jnp.broadcast_to(table, joint.shape)
        p = jax.nn.softmax(joint, axis=(-2, -1))
        return total + p.sum(tuple(range(p.ndim - 2))), None

    return jax.lax.scan(step, jnp.zeros_like(table), (one, two))[0]


def _sums(
    scores: Float[Array, "... m"], table: Float[Array, "m n"], product: Product
) -> Float[Array, "... n"]:
    """The logarithm of the sum, or the maximum, over the sender's states."""
    if product == "max":
        wide = scores[..., None]
        return (wide + jnp.broadcast_to(table, (*scores.shape, table.shape[1]))).max(-2)
    return _log_sums(scores, table)


@jax.custom_jvp
def _log_sums(scores: Float[Array, "... m"], table: Float[Array, "m n"]) -> Float[Array, "... n"]:
    """The logarithm of the sum over the sender's states, for all tables."""
    wide = jnp.broadcast_to(table, (*scores.shape, table.shape[1]))
    return jax.nn.logsumexp(scores[..., None] + wide, axis=-2)


@_log_sums.defjvp
def _(primals, tangents):
    # A state of the sender at a time: all pairs of states of all pixels would not fit in memory.
    (scores, table), (more, rest) = primals, tangents
    out = _log_sums(scores, table)

    @jax.checkpoint
    def step(total: Array, part: tuple) -> tuple[Array, None]:
        score, row, dscore, drow = part
        row, drow = (jnp.broadcast_to(x, out.shape) for x in (row, drow))
        weight = jnp.exp(score[..., None] + row - out)
        return total + weight * (dscore[..., None] + drow), None

    parts = jnp.moveaxis(scores, -1, 0), table, jnp.moveaxis(more, -1, 0), rest
    return out, jax.lax.scan(step, jnp.zeros_like(out), parts)[0]


def is_narrow(factor: Lattice, units: Any, temperature: Float[AnyArray, ""], damped: bool) -> Any:
    """Whether the fast form serves. Leaves have none."""
    if not any(factor.offset):
        return None
    table = factor.table
    width = table.max() - table.min()
    return width <= spread(table.dtype) * jnp.asarray(temperature)
