"""Messages between neighbours on a grid, by shifted arrays (Lázaro-Gredilla et al. 2021, appendix
B).
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, Int, PyTree

from .._sentinels import EXCLUDED, LIMIT
from .._types import AnyArray
from ..factors import Lattice
from ..factors._lattice import ends, moved
from ._forms import Heard, reduced, Sums
from ._sent import AbstractSent, Damp, less_the_largest, Singles, without
from ._types import Form, Product, Start


# How far below the largest log-potential of its table another may lie where messages are products
# of matrices, by the bytes of a number. Each factor is scaled up by the exponential of a quarter of
# it, so that sums lie between those of minus and plus a half of it: in the middle of the range of
# the numbers, where neither they nor gradients divided by them are lost.
_SPREAD = {4: 80.0, 8: 640.0}


def spread(dtype: DTypeLike) -> float:
    """How far below the largest entry of a table another may lie in the fast form."""
    return _SPREAD[jnp.dtype(dtype).itemsize]


class LatticeSent(AbstractSent):
    """All pairs of places that lie an offset apart. Messages are `[height, width, states]` towards
    the first and the second places, zero where there is no pair.

    In the fast form a message is the logarithm of a product of matrices. It serves if no entry of
    the table lies further below its largest than float32 has room for, 80.

    `leaf` is a group whose units are each joined to one place, and to nothing else. What it sends
    never changes, so that it sends before the first sweep, and hears after the last.
    """

    table: Float[Array, "m n"]
    kernel: Float[Array, "m n"] | None
    shape: tuple[int, ...] = eqx.field(static=True)
    offset: tuple[int, ...] = eqx.field(static=True)
    ends: tuple[int, ...] = eqx.field(static=True)
    product: Product = eqx.field(static=True)
    leaf: Any = eqx.field(static=True)  # pyright: ignore

    def __init__(
        self,
        factor: Lattice,
        ends: tuple[int, ...],
        form: Form,
        product: Product,
        leaf: int | None,
        beta: Float[AnyArray, ""],
    ):
        self.table = jnp.clip(factor.tempered(beta).table, -LIMIT, LIMIT)
        self.shape, self.offset, self.ends = factor.shape, factor.offset, ends
        self.product, self.leaf, self.kernel = product, leaf, None
        if form == "odds" and product == "sum" and leaf is None:
            limit = spread(self.table.dtype)
            top = jax.lax.stop_gradient(self.table.max())
            self.kernel = jnp.exp(jnp.maximum(self.table - top, -limit) + limit / 4)

    @property
    def excludes(self) -> bool:
        """Not in the fast form."""
        return self.kernel is None

    def start(self, start: Start, heard: Sequence[Heard]) -> PyTree:
        return tuple(jnp.zeros((*self.shape, n), self.table.dtype) for n in self.table.shape)

    def spread(self, fields: Sequence[Any], joined: Callable = jnp.subtract) -> PyTree:
        """Zero where there is no pair."""
        out = []
        for end, there in zip(self.ends, self._there, strict=True):
            field = fields[end].reshape(*self.shape, -1)
            out.append(field * jnp.asarray(there, field.dtype)[..., None])
        return tuple(out)

    def update(self, messages: PyTree, heard: Sequence[Heard], damp: Damp) -> PyTree:
        one, two = self._cavities(messages, heard)
        back = tuple(-step for step in self.offset)
        new = moved(self._sent(two, 1), back), moved(self._sent(one, 0), self.offset)
        return tuple(damp(a, b) for a, b in zip(messages, new, strict=True))

    def turn(
        self, messages: PyTree, heard: Sequence[Heard], sender: int, damp: Damp
    ) -> tuple[PyTree, PyTree]:
        new = self.update(messages, heard, damp)
        both = zip(new, messages, self.ends, strict=True)
        kept = tuple(b if end == sender else a for a, b, end in both)
        return kept, kept

    def added(self, sums: Sums, sent: PyTree, group: int) -> Sums:
        rows = sums[1]
        for end, message in zip(self.ends, sent, strict=True):
            if end == group:
                rows = rows + message.reshape(rows.shape)
        return sums[0], rows

    def normalisers(
        self, messages: PyTree, heard: Sequence[Heard], singles: Singles
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        one, two = self._edges(self._cavities(messages, heard))
        found = reduced(_sums(one, self.table, self.product) + two, -1, self.product)
        own = self._edges([singles[end].reshape(self.shape) for end in self.ends])
        return (found - own[0] - own[1]).sum(), (found > EXCLUDED / 2).all()

    def statistic(
        self, messages: PyTree, heard: Sequence[Heard], temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "m n"]]:
        one, two = self._edges(self._cavities(messages, heard))
        table = temperature * self.table

        # A row of the grid at a time.
        def step(total: Array, row: tuple[Array, Array]) -> tuple[Array, None]:
            joint = row[0][..., :, None] + row[1][..., None, :]
            joint = temperature * joint + jnp.broadcast_to(table, joint.shape)
            p = jax.nn.softmax(joint, axis=(-2, -1))
            return total + p.sum(tuple(range(p.ndim - 2))), None

        return (jax.lax.scan(step, jnp.zeros_like(table), (one, two))[0],)

    def left(self, messages: PyTree, group: int, possible: Bool[Array, "n states"]) -> Any:
        for end, message in zip(self.ends, messages, strict=True):
            if end == group:
                fine = less_the_largest(message) > EXCLUDED / 2
                possible = possible & fine.reshape(possible.shape)
        return possible

    def counts(self, group: int, size: int) -> tuple[Int[AnyArray, " n"], Int[AnyArray, " n"]]:
        pairs = zip(self.ends, self._there, strict=True)
        degree = np.sum([there for end, there in pairs if end == group], 0).ravel()
        return degree.astype(np.int32), np.where(degree > 0, 2, 1).astype(np.int32)

    @property
    def _there(self) -> tuple[np.ndarray, np.ndarray]:
        """Whether a place is a first, and a second one of a pair."""
        out = []
        for place in ends(self.shape, self.offset):
            mask = np.zeros(self.shape, bool)
            mask[place] = True
            out.append(mask)
        return tuple(out)  # pyright: ignore

    def _edges(self, parts: Sequence[Array]) -> tuple[Array, Array]:
        """What is at the first and at the second places of all pairs."""
        first, second = ends(self.shape, self.offset)
        return parts[0][first], parts[1][second]

    def _cavities(self, messages: PyTree, heard: Sequence[Heard]) -> tuple[Array, Array]:
        """The scores at first and second places without what these messages say."""
        out = []
        for end, message in zip(self.ends, messages, strict=True):
            rows, is_open = (x.reshape(message.shape) for x in (heard[end].rows, heard[end].open))
            out.append(without(rows, is_open, message))
        return tuple(out)  # pyright: ignore

    def _sent(self, cavities: Float[Array, "... m"], end: int) -> Float[Array, "... n"]:
        """What each place sends. Each message is right up to a constant, and these are such that
        none grows.
        """
        # The subtraction is differentiated too: otherwise a constant, and its rounding errors, grow
        # sevenfold in each sweep of a gradient.
        cavities = cavities - cavities.max(-1, keepdims=True)
        if self.kernel is None:
            return _sums(cavities, self.table.T if end else self.table, self.product)
        scale = spread(cavities.dtype) / 4
        mass = jnp.exp(cavities + scale)
        # With factors rounded to 10 bits, as GPUs do by default, the scores of labels were wrong by
        # 0.02 after 15 sweeps of a trained model, by 2e-4 otherwise. Opt in to the default with
        # `jax.default_matmul_precision`.
        asked: Any = jax.config
        precision = None if asked.jax_default_matmul_precision else "highest"
        kernel = self.kernel.T if end else self.kernel
        return jnp.log(jnp.matmul(mass, kernel, precision=precision)) - 2 * scale


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
