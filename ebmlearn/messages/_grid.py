import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._sentinels import EXCLUDED, LEAST
from .._types import AnyArray
from ..models._groups import cut_states, Sizes
from ..models._lattice import (
    around,
    ends,
    features,
    log_potential,
    moved,
    OFFSETS,
    sizes_of,
)
from ._graph import AbstractGraphMaker, AbstractGraphView, GraphInstance, GraphState, tempered
from ._registry import Stacks
from ._types import Form, Product, Schedule, Start


_DIRECTIONS = (*OFFSETS, *((-rows, -columns) for rows, columns in OFFSETS))
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
    what the hidden states say of them is read off when beliefs are asked for. Both steps are exact.

    In the fast form a message is the logarithm of a product of matrices. It serves if no entry of a
    table lies further below its largest than float32 has room for, 80: see `GridMaker.fits`.
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
    def tells_statistics(self) -> bool:
        """Messages are scores in both forms."""
        return True

    def start(self, instance: GraphInstance, start: Start) -> GraphState:
        unary = self._unary(instance)
        sent = jnp.zeros((8, *unary.shape), unary.dtype)
        return GraphState((), GridMessages(sent, unary), unary)

    def resume(self, state: GraphState, instance: GraphInstance) -> GraphState:
        return self._state(state.rest.sent, self._unary(instance))

    def update(self, state: GraphState, instance: GraphInstance) -> GraphState:
        old, unary = state.rest
        new = self._messages(self._cavities(state.fields, old, instance))
        new = jnp.stack([moved(x, at) for x, at in zip(new, _DIRECTIONS, strict=True)])
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

    def given(
        self, states: Int[Array, " variables"], instance: GraphInstance
    ) -> Float[Array, "variables most"]:
        x, *seen = cut_states(states, self._sizes)
        fields, *channels = self._split(instance.unary[0])
        fields = fields + around(self.tables, jnp.asarray(x))
        out = []
        for emission, y, scores in zip(self.emissions, seen, channels, strict=True):
            fields = fields + emission.T[y]
            out.append(scores + emission[x])
        return _padded([fields, *out])

    def linear(
        self, states: Int[Array, " variables"], unary: tuple[Float[Array, " states"]]
    ) -> Float[Array, ""]:
        parts = zip(cut_states(states, self._sizes), self._split(unary[0]), strict=True)
        met = [jnp.take_along_axis(u, x[..., None], axis=-1).sum() for x, u in parts]
        return jnp.stack(met).sum()

    def pairwise(
        self, state: GraphState, instance: GraphInstance, temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "..."], ...]:
        scores, _ = self._shifted(state.fields, instance)
        cavities = temperature * self._less(scores, state.rest.sent, instance)
        tables = temperature * self.tables
        out = [_pairs(*self._edge(cavities, k), table) for k, table in enumerate(tables)]
        for cavity, own, emission in self._channels(state.fields, instance):
            joint = cavity[..., None] + own[:, :, None, :] + emission[None, None]
            out.append(jax.nn.softmax(temperature * joint, axis=(-2, -1)).sum((0, 1)))
        return tuple(out)

    def _told(
        self, rest: GridMessages, instance: GraphInstance
    ) -> Float[Array, "height width states"]:
        return self._unary(instance) + rest.sent.sum(0)

    def _normalisers(
        self, scores: Float[Array, "height width states"], state: GraphState, instance: Any
    ) -> tuple[list[Float[Array, "_ _"]], list[Float[Array, "_ _"]]]:
        cavities, out = self._less(scores, state.rest.sent, instance), []
        for k, table in enumerate(self.tables):
            one, two = self._edge(cavities, k)
            out.append(self._reduce(self._sums(one, table) + two, -1))
        # In the fast form tables exclude nothing.
        return (out, []) if self.kernels is None else ([], out)

    def _log_potential(self, states: Int[Array, " variables"]) -> Float[Array, ""]:
        return log_potential(self.shape, self.tables, self.emissions, states)

    def _features(self, states: Int[Array, " variables"]) -> tuple[Float[Array, "..."], ...]:
        return features(self.shape, self.tables, self.emissions, states)

    def _edges(self, state: GraphState) -> Float[Array, "8 height width states"]:
        return state.rest.sent

    def _with_edges(
        self, edges: Float[Array, "8 height width states"], state: GraphState, instance: Any
    ) -> GraphState:
        return self._state(edges, state.rest.unary)

    def _spread(
        self, x: Float[Array, "height width states"], combine: Any
    ) -> Float[Array, "8 height width states"]:
        """Zero where there is no edge."""
        joined = jnp.stack([moved(jnp.ones_like(x), at) for at in _DIRECTIONS])
        return joined * x[None]

    def _widths(self) -> Float[np.ndarray, "height width"]:
        return np.full(self.shape, 2.0)

    # Fields are those of the hidden states alone, on which the channels depend.
    def _places(
        self, clamp: Int[Array, " variables"]
    ) -> tuple[Int[Array, "height width 1"], Int[Array, "1 1 states"]]:
        held = jnp.asarray(cut_states(clamp, self._sizes)[0])
        return held[..., None], jnp.arange(self.tables.shape[-1], dtype=jnp.int32)[None, None]

    def _by_variable(
        self, fields: Float[Array, "height width states"]
    ) -> Float[Array, "height width states"]:
        return fields

    def _by_field(self, tops: Float[Array, "height width"]) -> Float[Array, "height width 1"]:
        return tops[..., None]

    @property
    def _sizes(self) -> Sizes:
        """The groups of variables: hidden states, then channels."""
        return sizes_of(self.shape, self.tables, self.emissions)

    def _messages(
        self, cavities: Float[Array, "8 height width states"]
    ) -> Float[Array, "8 height width states"]:
        """What each pixel sends in each direction. Each message is right up to a constant, and
        these are such that none grows.
        """
        # The subtraction is differentiated too: otherwise a constant, and its rounding errors, grow
        # sevenfold in each sweep of a gradient.
        cavities = cavities - cavities.max(-1, keepdims=True)
        if self.kernels is None:
            return jax.vmap(self._sums)(cavities, _both_ways(self.tables))
        scale = spread(cavities.dtype) / 4
        mass = jnp.exp(cavities + scale)
        # With factors rounded to 10 bits, as GPUs do by default, the scores of labels were wrong by
        # 0.02 after 15 sweeps of a trained model, by 2e-4 otherwise. Opt in to the default with
        # `jax.default_matmul_precision`.
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
        clamp = cut_states(instance.clamp, self._sizes)[1 + k][..., None]
        number = jnp.arange(scores.shape[-1], dtype=jnp.int32)[None, None]
        other = (clamp >= 0) & (clamp != number)
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

    def _cavities(
        self, fields: Array, sent: Array, instance: GraphInstance
    ) -> Float[Array, "8 height width states"]:
        """The scores with which each pixel sends in each direction: less what came from there."""
        return self._held(fields[None] - _turned(sent), instance)

    def _less(
        self, scores: Array, sent: Array, instance: GraphInstance
    ) -> Float[Array, "8 height width states"]:
        """As `_cavities`, of scores less the largest of each pixel; nothing is taken from states
        that are excluded for good.
        """
        cavities = scores[None] - _turned(sent)
        excluded = self._excluded(instance)
        if excluded is None:
            return cavities
        return jnp.where(excluded[None], scores[None], cavities)

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
        for shape, states in self._sizes:
            size = math.prod(shape) * states
            out.append(flat[at : at + size].reshape(*shape, states))
            at += size
        return out


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


def _padded(parts: list[Float[Array, "height width _"]]) -> Float[Array, "variables most"]:
    """The states of each variable as a row; what counts as nothing where it has no more."""
    most = max(x.shape[-1] for x in parts)
    rows = [
        jnp.pad(
            x.reshape(-1, x.shape[-1]), ((0, 0), (0, most - x.shape[-1])), constant_values=LEAST
        )
        for x in parts
    ]
    return jnp.concatenate(rows)


class GridMaker(AbstractGraphMaker):
    """Messages of a [`ebmlearn.GridMRF`][]."""

    def view(
        self,
        model: Any,
        product: Product,
        form: Form,
        schedule: Schedule,
        damping: Float[AnyArray, ""] | None,
        beta: Float[AnyArray, ""],
    ) -> GridView:
        tables = jnp.stack([tempered(x, beta) for x in model.tables])
        emissions = tuple(tempered(x, beta) for x in model.trained_emissions)
        return GridView(model.shape, tables, emissions, product, form, damping)

    def fits(
        self, model: Any, temperature: Float[AnyArray, ""], damped: bool
    ) -> bool | Bool[AnyArray, ""]:
        tables = jnp.stack(model.tables)
        widest = (tables.max((1, 2)) - tables.min((1, 2))).max()
        return widest <= spread(tables.dtype) * jnp.asarray(temperature)

    def size(self, model: Any, schedule: Schedule) -> int:
        return 8 * math.prod(model.shape) * model.bias.shape[0]

    def tables(self, model: Any) -> Stacks:
        return model.as_tables()

    def mended(
        self, model: Any, states: Int[Array, " variables"], instance: GraphInstance
    ) -> Int[Array, " variables"]:
        """The states as they are: no factor determines a variable."""
        return states
