"""Enumeration of the states of some units, the others being independent given those."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._sentinels import CLAMPED
from ..messages import Instance, Product
from ..models import AbstractLayeredModel


# Numbers in memory at a time: configurations of a chunk times units, and instances of a chunk
# times configurations.
CHUNK = 2**21


class Sides(NamedTuple):
    """Which layers are enumerated, and which are independent given those."""

    listed: tuple[int, ...]
    free: tuple[int, ...]
    sizes: tuple[int, ...]
    product: Product

    def units(self, side: Literal["listed", "free"]) -> int:
        return sum(self.sizes[layer] for layer in getattr(self, side))

    def gather(self, layers: tuple[Any, ...], side: Literal["listed", "free"], fill: Any) -> Array:
        """One vector of the layers of a side. `fill` stands for layers that are None."""
        parts = [jnp.zeros(0, fill.dtype)]
        for k in getattr(self, side):
            part = layers[k]
            parts.append(jnp.broadcast_to(fill, (self.sizes[k],)) if part is None else part)
        return jnp.concatenate(parts)

    def scatter(self, listed: Array, free: Array) -> tuple[Array, ...]:
        """The layers, in order, from one vector for each side."""
        out: list[Any] = [None] * len(self.sizes)
        for layers, x in ((self.listed, listed), (self.free, free)):
            ends = np.cumsum([self.sizes[k] for k in layers])
            for k, end in zip(layers, ends, strict=True):
                out[k] = x[end - self.sizes[k] : end]
        return tuple(out)


class Table(eqx.Module):
    """One instance laid out for enumeration: the log-potential s·b + ½ s·J s + r·(c + sW) of the
    listed units s and the free units r.
    """

    bias: Float[Array, " n"]
    inner: Float[Array, "n n"]
    cross: Float[Array, "n m"]
    free_bias: Float[Array, " m"]
    clamp: Float[Array, " n"]
    free_clamp: Float[Array, " m"]
    product: Product = eqx.field(static=True)

    def __init__(self, model: AbstractLayeredModel, instance: Instance, sides: Sides):
        zero = jnp.zeros((), instance.unary[0].dtype)
        self.bias = sides.gather(instance.unary, "listed", zero)
        self.free_bias = sides.gather(instance.unary, "free", zero)
        self.clamp = sides.gather(instance.clamp, "listed", zero)
        self.free_clamp = sides.gather(instance.clamp, "free", zero)
        starts = _starts(sides)
        inner = jnp.zeros((self.bias.size, self.bias.size), zero.dtype)
        cross = jnp.zeros((self.bias.size, self.free_bias.size), zero.dtype)
        for first, second, w, _ in model.blocks():
            if first == second:
                inner = jax.lax.dynamic_update_slice(inner, w, (starts[first], starts[first]))
            elif first in sides.listed:
                cross = jax.lax.dynamic_update_slice(cross, w, (starts[first], starts[second]))
            else:
                cross = jax.lax.dynamic_update_slice(cross, w.T, (starts[second], starts[first]))
        self.inner, self.cross = inner, cross
        self.product = sides.product

    @property
    def chunk(self) -> int:
        """How many configurations are treated at once, a power of two."""
        most = max(1, CHUNK // max(1, self.bias.size + self.free_bias.size))
        return min(2**self.bias.size, 2 ** (most.bit_length() - 1))

    def chunks(self) -> Int[Array, "chunks chunk"]:
        """The numbers of all configurations."""
        return jnp.arange(2**self.bias.size, dtype=jnp.int32).reshape(-1, self.chunk)

    def configurations(self, numbers: Int[Array, " k"]) -> Float[Array, "k n"]:
        """The states of the listed units. The first unit is the highest bit of the number."""
        shifts = jnp.arange(self.bias.size - 1, -1, -1, dtype=jnp.int32)
        return ((numbers[:, None] >> shifts[None, :]) & 1).astype(self.bias.dtype)

    def fields(self, s: Float[Array, "k n"]) -> Float[Array, "k m"]:
        """The log-odds of the free units."""
        return s @ self.cross + self.free_bias[None, :]

    def reference(self) -> Float[Array, ""]:
        """The log-potential of the unary terms at their best. Scores are relative to it, so that
        large biases do not swallow small terms.
        """
        return _positive(self.bias).sum() + _positive(self.free_bias).sum()

    def scores(self) -> Float[Array, " configurations"]:
        """The log-potential of every configuration, the free units summed out (or maximised), less
        the `reference`.
        """
        over = jax.nn.relu if self.product == "max" else jax.nn.softplus

        @jax.checkpoint
        def some(numbers):
            s = self.configurations(numbers)
            pull = s @ self.cross
            bias = jnp.broadcast_to(self.free_bias, pull.shape)
            clamp = jnp.broadcast_to(self.free_clamp, pull.shape)
            # over(field) - relu(bias), without the difference of two large numbers.
            free = jnp.where(bias > 0, pull + over(-pull - bias), over(pull + bias))
            free = jnp.where(clamp > 0, pull + jnp.where(bias > 0, 0, bias), free)
            free = jnp.where(clamp < 0, -_positive(bias), free)
            best = (self.bias > 0).astype(s.dtype)
            out = (s - best[None, :]) @ self.bias + ((s @ self.inner) * s).sum(1) / 2 + free.sum(1)
            return jnp.where(self._allowed(s), out, jnp.full_like(out, -jnp.inf))

        return jax.lax.map(some, self.chunks()).reshape(-1)

    def _allowed(self, s: Float[Array, "k n"]) -> Bool[Array, " k"]:
        against = (2 * s - 1) * self.clamp[None, :]
        return (against >= 0).all(1)

    def moments(
        self, weights: Float[Array, " configurations"]
    ) -> tuple[Float[Array, "n n"], Float[Array, "n m"]]:
        """The probabilities that both of two listed units are 1, and that both a listed and a free
        unit are, under weights of the configurations.
        """

        @jax.checkpoint
        def step(carry, chunk):
            numbers, p = chunk
            s = self.configurations(numbers)
            ps = p[:, None] * s
            free = jax.nn.sigmoid(self.fields(s))
            clamp = jnp.broadcast_to(self.free_clamp, free.shape)
            free = jnp.where(clamp == 0, free, (1 + clamp) / 2)
            return (carry[0] + ps.T @ s, carry[1] + ps.T @ free), None

        start = jnp.zeros_like(self.inner), jnp.zeros_like(self.cross)
        out, _ = jax.lax.scan(step, start, (self.chunks(), weights.reshape(-1, self.chunk)))
        return out

    def listed_log_odds(self, values: Float[Array, " configurations"]) -> Float[Array, " units"]:
        """The values of all configurations with a unit at 1, added up (or the largest of them),
        against those with it at 0. `values` may belong to the first units only.
        """
        reduce = jnp.max if self.product != "sum" else jax.nn.logsumexp
        zero, one = by_state(values, reduce)
        clamp = self.clamp[: zero.size]
        # A clamped unit has no configuration in one of its states.
        safe = jnp.where(clamp == 0, one, 0) - jnp.where(clamp == 0, zero, 0)
        return jnp.where(clamp == 0, safe, clamp * CLAMPED)

    def free_log_odds(self, scores: Float[Array, " configurations"]) -> Float[Array, " m"]:
        """The same for the free units."""
        reduce = jnp.max if self.product == "max" else jax.nn.logsumexp
        join = jnp.maximum if self.product == "max" else jnp.logaddexp

        @jax.checkpoint
        def step(carry, chunk):
            numbers, score = chunk
            if self.product == "max":
                both = self.forced(numbers, score)
            else:
                field = self.fields(self.configurations(numbers))
                state = jnp.stack([jax.nn.log_sigmoid(-field), jax.nn.log_sigmoid(field)])
                both = state + jnp.broadcast_to(score[:, None], field.shape)[None]
            return join(carry, reduce(both, axis=1)), None

        start = jnp.full((2, self.free_bias.size), -jnp.inf, scores.dtype)
        chunks = self.chunks(), scores.reshape(-1, self.chunk)
        zero, one = jax.lax.scan(step, start, chunks)[0]
        free = self.free_clamp == 0
        safe = jnp.where(free, one, 0) - jnp.where(free, zero, 0)
        return jnp.where(free, safe, self.free_clamp * CLAMPED)

    def forced(self, numbers: Int[Array, " k"], score: Float[Array, " k"]) -> Float[Array, "2 k m"]:
        """The log-potentials of configurations with each free unit in turn forced to 0 and to 1."""
        field = self.fields(self.configurations(numbers))
        base = jnp.broadcast_to(score[:, None], field.shape)
        clamp = jnp.broadcast_to(self.free_clamp, field.shape)
        never = jnp.full_like(field, -jnp.inf)
        at_zero = jnp.where(clamp > 0, never, base - jnp.where(clamp < 0, 0, jnp.maximum(field, 0)))
        at_one = base + jnp.where(clamp > 0, 0, jnp.minimum(field, 0))
        return jnp.stack([at_zero, jnp.where(clamp < 0, never, at_one)])


def _positive(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The positive part, of slope 0 at 0, where that of `jnp.maximum` is a half. Biases are often
    0, and what `scores` are relative to must cancel there too.
    """
    return jnp.where(x > 0, x, jnp.zeros_like(x))


def _starts(sides: Sides) -> dict[int, int]:
    """Where each layer begins in the vector of its side."""
    out = {}
    for layers in (sides.listed, sides.free):
        at = 0
        for k in layers:
            out[k] = at
            at += sides.sizes[k]
    return out


def blocks(
    model: AbstractLayeredModel, sides: Sides, inner: Array, cross: Array
) -> tuple[Array, ...]:
    """Cuts matrices over all listed and free units into the blocks of the model."""
    starts, out = _starts(sides), []
    for first, second, w, _ in model.blocks():
        if first == second:
            out.append(jax.lax.dynamic_slice(inner, (starts[first], starts[first]), w.shape))
        elif first in sides.listed:
            out.append(jax.lax.dynamic_slice(cross, (starts[first], starts[second]), w.shape))
        else:
            at = starts[second], starts[first]
            out.append(jax.lax.dynamic_slice(cross, at, w.shape[::-1]).T)
    return tuple(out)


def by_state(
    values: Float[Array, " configurations"], reduce: Callable
) -> tuple[Float[Array, " units"], Float[Array, " units"]]:
    """The values of all configurations with a unit at 0, reduced, and with it at 1."""
    units = values.size.bit_length() - 1
    if not units:
        return values[:0], values[:0]

    # The bit of a unit is the first while it is looked at, then the last. So one step is compiled,
    # not one for each unit.
    def step(values: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        both = values.reshape(2, -1)
        return both.T.reshape(-1), (reduce(both[0]), reduce(both[1]))

    return jax.lax.scan(step, values, None, length=units)[1]


def pair_maxima(table: Table) -> tuple[Float[Array, "n n"], Float[Array, "n m"]]:
    """Max-product beliefs of pairs (listed, listed) and (listed, free), normalised over states."""
    scores = table.scores()
    n, m = table.cross.shape

    def step(carry, chunk):
        numbers, score = chunk
        s = table.configurations(numbers)
        forced = table.forced(numbers, score)
        inner, cross = [], []
        for state in (0, 1):
            # One listed unit at a time: nothing of size configurations × n × m.
            def with_unit(column, state=state):
                fits = column == state
                here = jnp.where(fits, score, -jnp.inf)
                pair = [jnp.where(s == other, here[:, None], -jnp.inf).max(0) for other in (0, 1)]
                held = jnp.where(fits[None, :, None], forced, -jnp.inf).max(1)
                return jnp.stack(pair), held

            a, b = jax.lax.map(with_unit, s.T)
            inner.append(a)
            cross.append(b)
        new = jnp.stack(inner), jnp.stack(cross)
        return tuple(jnp.maximum(x, y) for x, y in zip(carry, new, strict=True)), None

    start = (
        jnp.full((2, n, 2, n), -jnp.inf, scores.dtype),
        jnp.full((2, n, 2, m), -jnp.inf, scores.dtype),
    )
    chunks = table.chunks(), scores.reshape(-1, table.chunk)
    (inner, cross), _ = jax.lax.scan(step, start, chunks)
    both = []
    for best in (inner, cross):
        flat = best.transpose(0, 2, 1, 3).reshape(4, n, best.shape[-1])
        both.append(jax.nn.softmax(flat, axis=0)[3])
    return both[0], both[1]
