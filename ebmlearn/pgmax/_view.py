import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from pgmax import factor

from .._sentinels import EXCLUDED, LEAST
from .._types import AnyArray
from ..messages import (
    AbstractGraphMaker,
    AbstractGraphView,
    Form,
    GraphInstance,
    GraphState,
    hard,
    log_product,
    odds,
    ODDS_LIMIT,
    odds_serve,
    Product,
    Schedule,
    soft,
    Stacks,
    Start,
    total,
)
from ._layout import Layout, Wires
from ._stacks import stacks_of
from ._tables import Tables
from ._updates import UPDATES


class GraphView(AbstractGraphView):
    """Message passing on a PGMax graph: dense groups by matrices, logical and pool factors by
    updates that lose no digits, all other factors by those that PGMax knows, at temperature 1 or 0;
    everything at the same time, as PGMax does.

    A dense group keeps one number for each edge and direction, the log-odds of a message in centred
    form, or its odds; see `messages/_edge.py`.
    """

    tables: Tables
    weights: tuple[Float[Array, "_ _"], ...]
    shifts: tuple[tuple[Float[Array, " _"], Float[Array, " _"]], ...]
    damping: Float[AnyArray, ""] | None
    product: Product = eqx.field(static=True)
    form: Form = eqx.field(static=True)
    begin: Start | None = eqx.field(static=True)

    def __init__(
        self,
        tables: Tables,
        product: Product,
        form: Form,
        damping: Float[AnyArray, ""] | None,
        begin: Start | None = None,
    ):
        self.tables, self.product, self.form, self.damping = tables, product, form, damping
        self.begin = begin
        half = [w / 2 for w in tables.weights]
        self.shifts = tuple((_sum(w, 1), _sum(w, 0)) for w in half)
        if form == "odds":
            # Outside its range this form is not used; there, the clip keeps gradients finite.
            limit = ODDS_LIMIT / 2
            half = [jnp.exp(jnp.clip(w, -limit, limit)) for w in half]
        self.weights = tuple(half)

    @property
    def tells_statistics(self) -> bool:
        return self.form == "log-odds"

    def start(self, instance: GraphInstance, start: Start) -> GraphState:
        (unary,) = instance.unary
        start = start if self.begin is None else self.begin
        messages = []
        for w in self.weights:
            if self.form == "odds":
                message = jnp.ones_like(w) if start == "centred" else 1 / w
            else:
                message = jnp.zeros_like(w) if start == "centred" else -w
            messages.append((message, message))
        rest = jnp.zeros(self.wires.states.shape, unary.dtype)
        return self.state(tuple(messages), rest, instance)

    def resume(self, state: GraphState, instance: GraphInstance) -> GraphState:
        return self.state(state.messages, state.rest, instance)

    def state(self, messages: Any, rest: Any, instance: GraphInstance) -> GraphState:
        """Messages with the scores that they add up to."""
        return GraphState(messages, rest, self._fields(messages, rest, instance))

    def update(self, state: GraphState, instance: GraphInstance) -> GraphState:
        held = self._held(state.fields, instance)
        rest = self._rest(state.rest, held, instance)
        messages = []
        for w, (to_first, to_second), (first, second) in zip(
            self.weights, state.messages, self.wires.ends, strict=True
        ):
            one, two = _log_odds(held, first)[:, None], _log_odds(held, second)[None, :]
            messages.append(
                (
                    self._damped(to_first, self._sent(w, two, to_second)),
                    self._damped(to_second, self._sent(w, one, to_first)),
                )
            )
        return self.state(tuple(messages), rest, instance)

    def beliefs(
        self, state: GraphState, instance: GraphInstance
    ) -> tuple[Float[Array, "variables most"]]:
        return (self._by_variable(self._held(state.fields, instance)),)

    def pairwise(
        self, state: GraphState, instance: GraphInstance, temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "..."], ...]:
        scores, _ = self._shifted(state.fields, instance)
        vtof = self._towards_factors(scores, state.rest, instance)
        dense = [
            jax.nn.softmax(temperature * self._dense_scores(k, state, scores), axis=0)[3]
            for k in range(len(self.weights))
        ]
        listed = self.tables.expected(temperature * vtof, self.product, temperature)
        return self.tables.by_group(listed, dense)

    def linear(
        self, states: Int[Array, " variables"], unary: tuple[Float[Array, " states"]]
    ) -> Float[Array, ""]:
        met = states[self.wires.variable] == self.wires.local
        return jnp.where(met, unary[0], jnp.zeros_like(unary[0])).sum()

    def given(
        self, states: Int[Array, " variables"], instance: GraphInstance
    ) -> Float[Array, "variables most"]:
        """The score of every state of every variable given all other variables. In log-odds form
        and of max-product only.
        """
        (fields,) = instance.unary
        chosen = self.tables.chosen(states)
        vtof = chosen[self.wires.states]
        parts = [jnp.zeros(0, vtof.dtype)]
        for k, kind in enumerate(self.layout.kinds):
            own = vtof[slice(*kind.messages)]
            if kind.type is factor.EnumFactor:
                parts.append(self._given_listed(k, own))
            else:
                parts.append(self._messages(k, own))
        sent = jnp.maximum(jnp.concatenate(parts).astype(vtof.dtype), jnp.asarray(EXCLUDED))
        fields = fields.at[self.wires.states].add(sent)
        for w, (first, second) in zip(self.weights, self.wires.ends, strict=True):
            one, two = (self.tables.is_one(chosen, end) for end in (first, second))
            fields = fields.at[first + 1].add(2 * jnp.matmul(w, two, precision="highest"))
            fields = fields.at[second + 1].add(2 * jnp.matmul(one, w, precision="highest"))
        return self._by_variable(fields)

    def _given_listed(self, k: int, vtof: Float[Array, " edge_states"]) -> Array:
        """Of factors that list their configurations: the log-potential at each state of each of
        their variables, the others being as chosen.
        """
        arguments, kind = self.wires.arguments[k], self.layout.kinds[k]
        at, of = arguments["factor_configs_edge_states"], arguments["factor_configs_indices"]
        differs = (vtof < 0).astype(jnp.int32)[at]
        potentials = self.tables.potentials_of(kind)
        elsewhere = jax.ops.segment_sum(differs, of, potentials.shape[0])[of] - differs
        met = jnp.where(elsewhere == 0, potentials[of], jnp.asarray(EXCLUDED, vtof.dtype))
        return jnp.full_like(vtof, EXCLUDED).at[at].max(met)

    def _told(
        self, rest: Float[Array, " edge_states"], instance: GraphInstance
    ) -> Float[Array, " states"]:
        return instance.unary[0].at[self.wires.states].add(rest)

    def _normalisers(
        self, scores: Float[Array, " states"], state: GraphState, instance: GraphInstance
    ) -> tuple[list[Float[Array, " _"]], list[Float[Array, "_ _"]]]:
        vtof = self._towards_factors(scores, state.rest, instance)
        listed = [
            self.tables.normalisers(k, vtof[slice(*kind.messages)], self.product)
            for k, kind in enumerate(self.layout.kinds)
        ]
        dense = range(len(self.weights))
        return listed, [self._reduce(self._dense_scores(k, state, scores), 0) for k in dense]

    def _log_potential(self, states: Int[Array, " variables"]) -> Float[Array, ""]:
        return self.tables.log_potential(states, self.product)

    def _features(self, states: Int[Array, " variables"]) -> tuple[Float[Array, "..."], ...]:
        return self.tables.features(states, self.product)

    def _edges(self, state: GraphState) -> tuple[Any, Float[Array, " edge_states"]]:
        return state.messages, state.rest

    def _with_edges(
        self, edges: tuple[Any, Any], state: GraphState, instance: GraphInstance
    ) -> GraphState:
        return self.state(*edges, instance)

    def _spread(
        self, x: Float[Array, " states"], combine: Callable[[Array, Array], Array]
    ) -> tuple[Any, Float[Array, " edge_states"]]:
        dense = []
        for w, (first, second) in zip(self.weights, self.wires.ends, strict=True):
            one, two = (combine(x[end + 1], x[end]) for end in (first, second))
            if self.form == "odds":
                one, two = jnp.exp(one), jnp.exp(two)
            dense.append(
                (jnp.broadcast_to(one[:, None], w.shape), jnp.broadcast_to(two[None, :], w.shape))
            )
        return tuple(dense), x[self.wires.states]

    def _degrees(self) -> Int[AnyArray, " variables"]:
        return self.wires.degrees

    def _widths(self) -> Float[Array, " variables"]:
        variable, dtype = jnp.asarray(self.wires.variable), self.tables.potentials.dtype
        width = jnp.ones(self.layout.num_variables, dtype)
        for first, second in self.wires.ends:
            for end, other in ((first, second), (second, first)):
                width = width.at[variable[end]].max(2.0 if other.shape[0] else 1.0)
        for k, kind in enumerate(self.layout.kinds):
            at = variable[self.wires.states[slice(*kind.messages)]]
            ones = jnp.ones(at.shape, dtype)
            width = width.at[at].max(self.tables.over_factors(k, ones))
        return width

    def _places(
        self, clamp: Int[Array, " variables"]
    ) -> tuple[Int[AnyArray, " states"], Int[AnyArray, " states"]]:
        return clamp[self.wires.variable], self.wires.local

    def _by_field(self, tops: Float[Array, " variables"]) -> Float[Array, " states"]:
        return tops[self.wires.variable]

    @property
    def layout(self) -> Layout:
        """The shape of the graph."""
        return self.tables.layout

    @property
    def wires(self) -> Wires:
        """What is joined to what."""
        return self.tables.wires

    def _towards_factors(
        self,
        scores: Float[Array, " states"],
        rest: Float[Array, " edge_states"],
        instance: GraphInstance,
    ) -> Float[Array, " edge_states"]:
        """Messages from variables: their scores less what came from the factor itself, which is
        not taken from states that are excluded for good.
        """
        own = scores[self.wires.states]
        excluded = self._excluded(instance)
        if excluded is None:
            return own - rest
        return jnp.where(excluded[self.wires.states], own, own - rest)

    def _fields(
        self, messages: Any, rest: Float[Array, " edge_states"], instance: GraphInstance
    ) -> Float[Array, " states"]:
        """The score of each state: its evidence and all messages towards it."""
        fields = self._told(rest, instance)
        for (to_first, to_second), (first, second), shifts in zip(
            messages, self.wires.ends, self.shifts, strict=True
        ):
            for towards, end, axis, shift in (
                (to_first, first, 1, shifts[0]),
                (to_second, second, 0, shifts[1]),
            ):
                sent = log_product(towards, axis) if self.form == "odds" else _sum(towards, axis)
                fields = fields.at[end + 1].add(sent + shift)
        return fields

    def _rest(
        self,
        rest: Float[Array, " edge_states"],
        held: Float[Array, " states"],
        instance: GraphInstance,
    ) -> Float[Array, " edge_states"]:
        """New messages of all factors but dense groups."""
        if not self.layout.kinds:
            return rest
        vtof = held[self.wires.states]
        if instance.clamp is None:
            vtof = vtof - rest
        else:
            free = self._places(instance.clamp)[0][self.wires.states] < 0
            vtof = jnp.where(free, vtof - rest, vtof)
        parts = [
            self._messages(k, vtof[slice(*kind.messages)])
            for k, kind in enumerate(self.layout.kinds)
        ]
        new = self._damped(rest, jnp.concatenate(parts).astype(rest.dtype))
        return self.normalised(new)

    def _messages(self, k: int, vtof: Float[Array, " edge_states"]) -> Any:
        """New messages of all factors of a kind."""
        kind = self.layout.kinds[k]
        update = UPDATES.get(kind.type, factor.FAC_TO_VAR_UPDATES[kind.type])
        # PGMax mixes dtypes and ranks, which a user may have forbidden.
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return update(
                vtof_msgs=vtof,
                log_potentials=self.tables.potentials_of(kind),
                temperature=0.0 if self.product == "max" else 1.0,
                normalize=True,
                **self.wires.arguments[k],
                **kind.arguments(),
            )

    def normalised(self, rest: Float[Array, " edge_states"]) -> Float[Array, " edge_states"]:
        """Messages less the largest of each edge."""
        top = jax.ops.segment_max(rest, self.wires.edges, self.layout.num_edges)
        return jnp.maximum(rest - top[self.wires.edges], jnp.asarray(LEAST, rest.dtype))

    def _sent(self, w: Array, field: Array, incoming: Array) -> Array:
        """The messages that one end of a dense group sends, given those that came to it."""
        if self.form == "odds":
            return odds(w, field, incoming)
        t = jnp.broadcast_to(field, w.shape) - incoming
        return (hard if self.product == "max" else soft)(w, t)

    def _damped(self, old: Array, new: Array) -> Any:
        return new if self.damping is None else self.damping * old + (1 - self.damping) * new

    def _dense_scores(
        self, k: int, state: GraphState, scores: Float[Array, " states"]
    ) -> Float[Array, "4 m n"]:
        """The logarithm of the unnormalised belief of each pair of states of each edge, 00 to 11.
        In log-odds form only.
        """
        w, (first, second) = self.weights[k], self.wires.ends[k]
        to_first, to_second = state.messages[k]
        one = jnp.broadcast_to(scores[first + 1][:, None], w.shape) - to_first - w
        two = jnp.broadcast_to(scores[second + 1][None, :], w.shape) - to_second - w
        one = jnp.stack([jnp.broadcast_to(scores[first][:, None], w.shape), one])
        two = jnp.stack([jnp.broadcast_to(scores[second][None, :], w.shape), two])
        pairs = one[:, None] + two[None, :]
        return pairs.at[1, 1].add(2 * w).reshape(4, *w.shape)

    def _by_variable(self, fields: Float[Array, " states"]) -> Float[Array, "variables most"]:
        """The states of each variable as a row; what counts as nothing where it has no more."""
        layout = self.layout
        if layout.is_uniform:
            return fields.reshape(layout.num_variables, layout.max_states)
        slots = self.wires.slots
        variables = jnp.arange(layout.num_variables, dtype=slots.dtype)[:, None]
        states = jnp.arange(layout.max_states, dtype=slots.dtype)[None, :]
        own = (self.wires.variable[slots] == variables) & (self.wires.local[slots] == states)
        return jnp.where(own, fields[slots], jnp.asarray(LEAST, fields.dtype))


class GraphMaker(AbstractGraphMaker):
    """Messages of a [`ebmlearn.pgmax.FactorGraphModel`][]."""

    def view(
        self,
        model: Any,
        product: Product,
        form: Form,
        schedule: Schedule,
        damping: Float[AnyArray, ""] | None,
        beta: Float[AnyArray, ""],
    ) -> GraphView:
        return GraphView(model.tables(beta), product, form, damping, model.start)

    def fits(
        self, model: Any, temperature: Float[AnyArray, ""], damped: bool
    ) -> bool | Bool[AnyArray, ""]:
        return False if damped else odds_serve(model.blocks(), temperature)

    def size(self, model: Any, schedule: Schedule) -> int:
        layout = model.layout
        dense = sum(2 * math.prod(layout.groups[k][0]) for k in layout.dense)
        return dense + len(model.wires.states)

    def tables(self, model: Any) -> Stacks:
        return stacks_of(model)

    def mended(
        self, model: Any, states: Int[Array, " variables"], instance: GraphInstance
    ) -> Int[Array, " variables"]:
        """Children of OR, AND and pool factors follow, unless factors contend for one of them."""
        if model.sites.problem is not None:
            return states
        held = None if instance.clamp is None else (instance.clamp >= 0)[None]
        return model.sites.followed(states[None], held)[0]


def _sum(x: Float[Array, "m n"], axis: int) -> Float[Array, " _"]:
    coarse, rest = total(x, axis)
    return coarse + rest


def _log_odds(scores: Float[Array, " states"], first: Int[AnyArray, " n"]) -> Float[Array, " n"]:
    return scores[first + 1] - scores[first]
