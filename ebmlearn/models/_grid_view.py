import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._types import AnyArray
from ._graph import AbstractGraphView, EXCLUDED, GraphInstance, GraphState, largest_change
from ._groups import cut_states, LIMIT, Sizes
from ._view import Form, Product, Start


# From the first end of an edge to its second, in the order of the tables: down, right, along the
# diagonal, along the antidiagonal.
OFFSETS = ((1, 0), (0, 1), (1, 1), (1, -1))
_DIRECTIONS = (*OFFSETS, *((-rows, -columns) for rows, columns in OFFSETS))
# The score of a state that a variable does not have.
_LEAST = -1e32
# How far below the largest log-potential of its table another may lie where messages are products
# of matrices, by the bytes of a number. Each factor is scaled up by the exponential of a quarter of
# it, so that sums lie between those of minus and plus a half of it: in the middle of the range of
# the numbers, where neither they nor gradients divided by them are lost.
_SPREAD = {4: 80.0, 8: 640.0}


def spread(dtype: jnp.dtype) -> float:
    """How far below the largest entry of a table another may lie in the fast form."""
    return _SPREAD[jnp.dtype(dtype).itemsize]


class GridMessages(NamedTuple):
    """Messages to each pixel, first from the first ends of its edges, then from the second ones,
    zero where there is no edge; and the unary scores of the hidden states, with what all channels
    say of them.
    """

    sent: Float[Array, "8 height width states"]
    unary: Float[Array, "height width states"]


class GridView(AbstractGraphView):
    """Message passing on a grid in which each pixel is joined to eight others, by shifted arrays:
    all messages at the same time, as PGMax passes them (Lázaro-Gredilla et al. 2021, appendix B).

    Channels are leaves: what they say is added to the hidden states before the first sweep, and
    what the hidden states say of them is read off when beliefs are asked for. Both is exact.

    In the fast form a message is the logarithm of a product of matrices. Entries of a table that
    lie further below its largest than float32 has room for, 80, count as lying just so far below: a
    factor of 1e-35. `GridMRF.fast` says where that may be.
    """

    tables: Float[Array, "4 states states"]
    emissions: tuple[Float[Array, "states _"], ...]
    kernels: Float[Array, "8 states states"] | None
    damping: Float[AnyArray, ""] | None
    shape: tuple[int, int] = eqx.field(static=True)
    product: Product = eqx.field(static=True)

    def __init__(
        self,
        shape: tuple[int, int],
        tables: Float[Array, "4 states states"],
        emissions: tuple[Float[Array, "states _"], ...],
        product: Product,
        form: Form,
        damping: Float[AnyArray, ""] | None,
    ):
        self.shape, self.tables, self.emissions = shape, tables, emissions
        self.product, self.damping = product, damping
        self.kernels = None
        if form == "odds" and product == "sum":
            limit = spread(tables.dtype)
            top = jax.lax.stop_gradient(tables.max((1, 2), keepdims=True))
            self.kernels = _both_ways(jnp.exp(jnp.maximum(tables - top, -limit) + limit / 4))

    @property
    def sizes(self) -> Sizes:
        """The groups of variables: hidden states, then channels."""
        states = self.tables.shape[-1]
        return ((self.shape, states), *((self.shape, e.shape[-1]) for e in self.emissions))

    def start(self, instance: GraphInstance, start: Start) -> GraphState:
        unary = self._unary(instance)
        sent = jnp.zeros((8, *unary.shape), unary.dtype)
        return GraphState((), GridMessages(sent, unary), unary)

    def resume(self, state: GraphState, instance: GraphInstance) -> GraphState:
        return self._state(state.rest.sent, self._unary(instance))

    def update(self, state: GraphState, instance: GraphInstance) -> GraphState:
        old, unary = state.rest
        new = self._messages(self._cavities(state.fields, old, instance))
        new = jnp.stack([_moved(x, at) for x, at in zip(new, _DIRECTIONS, strict=True)])
        if self.damping is not None:
            new = self.damping * old + (1 - self.damping) * new
        return self._state(new, unary)

    def beliefs(
        self, state: GraphState, instance: GraphInstance
    ) -> tuple[Float[Array, "variables most"]]:
        fields = self._held(state.fields, instance)
        channels = [
            scores + self._reduce(cavity[..., None] + emission[None, None], -2)
            for cavity, scores, emission in self._channels(state.fields, instance)
        ]
        return (_padded([fields, *channels]),)

    def change(self, old: GraphState, new: GraphState, instance: GraphInstance) -> Float[Array, ""]:
        """That of the hidden states, on which the channels depend."""
        return largest_change(*(self._held(state.fields, instance) for state in (old, new)))

    def given(
        self, states: Int[Array, " variables"], instance: GraphInstance
    ) -> Float[Array, "variables most"]:
        x, *seen = cut_states(states, self.sizes)
        fields, *channels = self._split(instance.unary[0])
        for table, (down, across) in zip(self.tables, OFFSETS, strict=True):
            fields = fields + _moved(table[x], (down, across))
            fields = fields + _moved(table.T[x], (-down, -across))
        out = []
        for emission, y, scores in zip(self.emissions, seen, channels, strict=True):
            fields = fields + emission.T[y]
            out.append(scores + emission[x])
        return _padded([fields, *out])

    def linear(
        self, states: Int[Array, " variables"], unary: tuple[Float[Array, " states"]]
    ) -> Float[Array, ""]:
        parts = zip(cut_states(states, self.sizes), self._split(unary[0]), strict=True)
        met = [jnp.take_along_axis(u, x[..., None], axis=-1).sum() for x, u in parts]
        return jnp.stack(met).sum()

    def score(self, states: Int[Array, " variables"], instance: GraphInstance) -> Float[Array, ""]:
        return self.linear(states, instance.unary) + self.log_potential(states)

    def log_potential(self, states: Int[Array, " variables"]) -> Float[Array, ""]:
        """The sum of the log-potentials that one configuration meets, minus infinity if one of them
        excludes it.
        """
        x, *seen = cut_states(states, self.sizes)
        met = []
        for table, offset in zip(self.tables, OFFSETS, strict=True):
            first, second = ends(self.shape, offset)
            met.append(table[x[first], x[second]].sum())
        met += [emission[x, y].sum() for emission, y in zip(self.emissions, seen, strict=True)]
        out = jnp.stack(met).sum()
        return jnp.where(out < EXCLUDED / 2, -jnp.inf, out)

    def features(self, states: Int[Array, " variables"]) -> tuple[Float[Array, "..."], ...]:
        """How often one configuration meets each log-potential."""
        one_hot = [
            jax.nn.one_hot(x, n, dtype=self.tables.dtype)
            for x, (_, n) in zip(cut_states(states, self.sizes), self.sizes, strict=True)
        ]
        x, *seen = one_hot
        pairs = [(x[first], x[second]) for first, second in map(self._ends, OFFSETS)]
        pairs += [(x, y) for y in seen]
        return tuple(jnp.einsum("ijs,ijt->st", a, b, precision="highest") for a, b in pairs)

    def log_partition(self, state: GraphState, instance: GraphInstance) -> Float[Array, ""]:
        # Added up anew, so that a gradient with the messages held fixed is complete.
        sent = state.rest.sent
        scores, top, excluded = self._shifted(self._unary(instance) + sent.sum(0), instance)
        single = self._reduce(scores, -1)
        out = top.sum() + ((1 - jnp.asarray(self._degrees(), top.dtype)) * single).sum()
        cavities = self._less(scores, sent, excluded)
        for k, table in enumerate(self.tables):
            one, two = self._edge(cavities, k)
            out = out + self._reduce(self._sums(one, table) + two, -1).sum()
        return out

    def pairwise(
        self, state: GraphState, instance: GraphInstance, temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "..."], ...]:
        scores, _, excluded = self._shifted(state.fields, instance)
        cavities = temperature * self._less(scores, state.rest.sent, excluded)
        tables = temperature * self.tables
        out = [_pairs(*self._edge(cavities, k), table) for k, table in enumerate(tables)]
        for cavity, own, emission in self._channels(state.fields, instance):
            joint = cavity[..., None] + own[:, :, None, :] + emission[None, None]
            out.append(jax.nn.softmax(temperature * joint, axis=(-2, -1)).sum((0, 1)))
        return tuple(out)

    def statistics(
        self, state: GraphState, instance: GraphInstance
    ) -> tuple[tuple[Float[Array, "variables most"]], tuple[Float[Array, "..."], ...]]:
        (scores,) = self.beliefs(state, instance)
        if self.product == "max":
            states = scores.argmax(-1).astype(jnp.int32)
            units = jax.nn.one_hot(states, scores.shape[-1], dtype=scores.dtype)
            return (units,), self.features(states)
        one = jnp.ones((), scores.dtype)
        return (jax.nn.softmax(scores, axis=-1),), self.pairwise(state, instance, one)

    def _messages(
        self, cavities: Float[Array, "8 height width states"]
    ) -> Float[Array, "8 height width states"]:
        """What each pixel sends in each direction. Each message is right up to a constant, and
        these are such that none grows.
        """
        # Differentiated, too: a constant would else grow sevenfold in each sweep of a gradient, and
        # the rounding errors of what should cancel with it.
        cavities = cavities - cavities.max(-1, keepdims=True)
        if self.kernels is None:
            return jax.vmap(self._sums)(cavities, _both_ways(self.tables))
        scale = spread(cavities.dtype) / 4
        mass = jnp.exp(cavities + scale)
        # With factors rounded to 10 bits, as GPUs do by default, the scores of labels were wrong by
        # 0.02 after 15 sweeps of a trained model, by 2e-4 otherwise. Who asks for it, may have it.
        asked: Any = jax.config
        precision = None if asked.jax_default_matmul_precision else "highest"
        total = jnp.einsum("kijs,kst->kijt", mass, self.kernels, precision=precision)
        return jnp.log(total) - 2 * scale

    def _sums(
        self, scores: Float[Array, "height width states"], table: Float[Array, "states states"]
    ) -> Float[Array, "height width states"]:
        """The logarithm of the sum, or the maximum, over the sender's states."""
        if self.product == "max":
            return (scores[..., None] + table[None, None]).max(-2)
        return _log_sums(scores, table)

    def _unary(self, instance: GraphInstance) -> Float[Array, "height width states"]:
        """The unary scores of the hidden states, with what channels say of them."""
        fields, *_ = self._split(instance.unary[0])
        for k in range(len(self.emissions)):
            fields = fields + self._said(k, instance)
        return fields

    def _said(self, k: int, instance: GraphInstance) -> Float[Array, "height width states"]:
        """What a channel says of the hidden states."""
        scores = self._own(k, instance)
        return self._reduce(scores[:, :, None, :] + self.emissions[k][None, None], -1)

    def _own(self, k: int, instance: GraphInstance) -> Float[Array, "height width values"]:
        """The unary scores of a channel; what is not observed there is excluded."""
        scores = self._split(instance.unary[0])[1 + k]
        if instance.clamp is None:
            return scores
        clamp = cut_states(instance.clamp, self.sizes)[1 + k][..., None]
        other = (clamp >= 0) & (clamp != _numbers(scores))
        return jnp.where(other, jnp.asarray(EXCLUDED, scores.dtype), scores)

    def _channels(
        self, fields: Float[Array, "height width states"], instance: GraphInstance
    ) -> list[tuple[Array, Array, Array]]:
        """Of each channel, the scores of the hidden states without what it says itself, its own
        unary scores, and its table.
        """
        out = []
        for k, emission in enumerate(self.emissions):
            cavity = self._held(fields - self._said(k, instance), instance)
            out.append((cavity, self._own(k, instance), emission))
        return out

    def _state(self, sent: Array, unary: Array) -> GraphState:
        return GraphState((), GridMessages(sent, unary), unary + sent.sum(0))

    def _clamp(self, instance: GraphInstance) -> Int[Array, "height width 1"] | None:
        """Where the hidden states are held."""
        if instance.clamp is None:
            return None
        return jnp.asarray(cut_states(instance.clamp, self.sizes)[0][..., None])

    def _held(
        self, fields: Float[Array, "*more height width states"], instance: GraphInstance
    ) -> Float[Array, "*more height width states"]:
        """Scores; variables whose state is given leave no doubt of it."""
        clamp = self._clamp(instance)
        if clamp is None:
            return fields
        clamp = jnp.broadcast_to(clamp, (*fields.shape[:-1], 1))
        nothing, excluded = jnp.zeros((), fields.dtype), jnp.asarray(EXCLUDED, fields.dtype)
        given = jnp.where(clamp == _numbers(fields), nothing, excluded)
        return jnp.where(clamp >= 0, given, fields)

    def _cavities(
        self, fields: Array, sent: Array, instance: GraphInstance
    ) -> Float[Array, "8 height width states"]:
        """The scores with which each pixel sends in each direction: less what came from there."""
        return self._held(fields[None] - _turned(sent), instance)

    def _less(
        self, scores: Array, sent: Array, excluded: Bool[Array, "height width states"] | None
    ) -> Float[Array, "8 height width states"]:
        """As `_cavities`, of scores less the largest of each pixel; nothing is taken from states
        that are excluded for good.
        """
        cavities = scores[None] - _turned(sent)
        if excluded is None:
            return cavities
        return jnp.where(excluded[None], scores[None], cavities)

    def _shifted(
        self, fields: Float[Array, "height width states"], instance: GraphInstance
    ) -> tuple[Array, Array, Array | None]:
        """Scores less the largest of each pixel, that, and which states evidence excludes."""
        clamp = self._clamp(instance)
        if clamp is None:
            top = jax.lax.stop_gradient(fields.max(-1, keepdims=True))
            return fields - top, top, None
        excluded = (clamp >= 0) & (clamp != _numbers(fields))
        nothing = jnp.asarray(-jnp.inf, fields.dtype)
        top = jax.lax.stop_gradient(jnp.where(excluded, nothing, fields).max(-1, keepdims=True))
        scores = jnp.where(excluded, jnp.asarray(EXCLUDED, fields.dtype), fields - top)
        return scores, top, excluded

    def _edge(self, cavities: Array, k: int) -> tuple[Array, Array]:
        """The scores at the first and the second ends of all edges of a table."""
        first, second = self._ends(OFFSETS[k])
        return cavities[k][first], cavities[4 + k][second]

    def _ends(self, offset: tuple[int, int]) -> tuple[tuple, tuple]:
        return ends(self.shape, offset)

    def _degrees(self) -> Float[np.ndarray, "height width"]:
        """The number of edges of each pixel."""
        out = np.zeros(self.shape)
        for first, second in map(self._ends, OFFSETS):
            out[first] += 1
            out[second] += 1
        return out

    def _split(self, flat: Float[Array, " states"]) -> list[Float[Array, "height width _"]]:
        """Values of all states, by group."""
        out, at = [], 0
        for shape, states in self.sizes:
            size = math.prod(shape) * states
            out.append(flat[at : at + size].reshape(*shape, states))
            at += size
        return out

    def _reduce(self, scores: Array, axis: int) -> Array:
        if self.product == "max":
            return scores.max(axis)
        return jax.nn.logsumexp(scores, axis=axis)


def ends(shape: tuple[int, int], offset: tuple[int, int]) -> tuple[tuple, tuple]:
    """Where the first and the second ends of all edges of an offset are."""
    (height, width), (down, across) = shape, offset
    left, right = slice(0, max(width - 1, 0)), slice(1, width)
    columns = {0: (slice(None), slice(None)), 1: (left, right), -1: (right, left)}[across]
    return (slice(0, height - down), columns[0]), (slice(down, height), columns[1])


@jax.custom_jvp
def _log_sums(
    scores: Float[Array, "height width states"], table: Float[Array, "states states"]
) -> Float[Array, "height width states"]:
    """The logarithm of the sum over the sender's states, for all tables."""
    return jax.nn.logsumexp(scores[..., None] + table[None, None], axis=-2)


@_log_sums.defjvp
def _(primals, tangents):
    # A state of the sender at a time: all pairs of states of all pixels would not fit in memory.
    (scores, table), (more, rest) = primals, tangents
    out = _log_sums(scores, table)

    @jax.checkpoint
    def step(total: Array, part: tuple) -> tuple[Array, None]:
        score, row, dscore, drow = part
        weight = jnp.exp(score[..., None] + row[None, None] - out)
        return total + weight * (dscore[..., None] + drow[None, None]), None

    parts = jnp.moveaxis(scores, -1, 0), table, jnp.moveaxis(more, -1, 0), rest
    return out, jax.lax.scan(step, jnp.zeros_like(out), parts)[0]


def _pairs(
    one: Float[Array, "down across states"],
    two: Float[Array, "down across states"],
    table: Float[Array, "states states"],
) -> Float[Array, "states states"]:
    """The beliefs of all pairs of states, added up over edges, a row of the grid at a time."""

    def step(total: Array, row: tuple[Array, Array]) -> tuple[Array, None]:
        joint = row[0][:, :, None] + row[1][:, None, :] + table[None]
        return total + jax.nn.softmax(joint, axis=(-2, -1)).sum(0), None

    return jax.lax.scan(step, jnp.zeros_like(table), (one, two))[0]


def _both_ways(tables: Float[Array, "4 states states"]) -> Float[Array, "8 states states"]:
    """The tables for messages from first ends, and from second ends."""
    return jnp.concatenate([tables, tables.swapaxes(1, 2)])


def _turned(sent: Float[Array, "8 height width states"]) -> Array:
    """Of each direction, the messages that came against it."""
    return jnp.concatenate([sent[4:], sent[:4]])


def _moved(
    x: Float[Array, "height width states"], offset: tuple[int, int]
) -> Float[Array, "height width states"]:
    """An array moved by an offset, zero where nothing comes from."""
    padding = [(step, -step, 0) for step in offset]
    return jax.lax.pad(x, jnp.zeros((), x.dtype), [*padding, (0, 0, 0)])


def _numbers(x: Float[Array, "... states"]) -> Int[Array, "... states"]:
    """The numbers of the states, with as many axes."""
    return jnp.arange(x.shape[-1], dtype=jnp.int32).reshape((1,) * (x.ndim - 1) + (-1,))


def _padded(parts: list[Float[Array, "height width _"]]) -> Float[Array, "variables most"]:
    """The states of each variable as a row; what counts as nothing where it has no more."""
    most = max(x.shape[-1] for x in parts)
    rows = [
        jnp.pad(
            x.reshape(-1, x.shape[-1]), ((0, 0), (0, most - x.shape[-1])), constant_values=_LEAST
        )
        for x in parts
    ]
    return jnp.concatenate(rows)


def tempered(x: Float[Array, "states _"], beta: Float[Array, ""]) -> Float[Array, "states _"]:
    """A table at another temperature, within limits."""
    return jnp.clip(beta * x, -LIMIT, LIMIT)
