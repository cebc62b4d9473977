from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from pgmax import factor

from .._sentinels import LEAST
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
from ..models._groups import as_rows
from ..models._require import refuse
from ._factors import DenseFactor, KindFactor
from ._layout import Layout, Wires


class GraphView(AbstractGraphView):
    """Message passing on a PGMax graph: dense groups by matrices, logical and pool factors by
    updates that lose no digits, all other factors by those that PGMax knows, at temperature 1 or 0;
    everything at the same time, as PGMax does.

    A dense group keeps one number for each edge and direction, the log-odds of a message in centred
    form, or its odds; see `messages/_edge.py`.
    """

    factors: tuple[DenseFactor | KindFactor, ...]
    layout: Layout = eqx.field(static=True)
    wires: Wires
    weights: tuple[Float[Array, "_ _"], ...]
    shifts: tuple[tuple[Float[Array, " _"], Float[Array, " _"]], ...]
    damping: Float[AnyArray, ""] | None
    product: Product = eqx.field(static=True)
    form: Form = eqx.field(static=True)
    begin: Start | None = eqx.field(static=True)

    def __init__(
        self,
        factors: tuple[DenseFactor | KindFactor, ...],
        layout: Layout,
        wires: Wires,
        product: Product,
        form: Form,
        damping: Float[AnyArray, ""] | None,
        begin: Start | None = None,
    ):
        self.factors, self.layout, self.wires = factors, layout, wires
        self.product, self.form, self.damping, self.begin = product, form, damping, begin
        half = [f.weights / 2 for f in factors if isinstance(f, DenseFactor)]
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
        out: list[Array] = []
        for f in self.factors:
            if isinstance(f, DenseFactor):
                own = temperature * self._dense_scores(f.number, state, scores)
                out.append(jax.nn.softmax(own, axis=0)[3])
            else:
                out += f.expected(temperature * vtof[slice(*f.kind.messages)], temperature)
        return tuple(out)

    def linear(
        self, states: Int[Array, " variables"], unary: tuple[Float[Array, " states"]]
    ) -> Float[Array, ""]:
        met = states[self.wires.variable] == self.wires.local
        return jnp.where(met, unary[0], jnp.zeros_like(unary[0])).sum()

    def given(
        self, states: Int[Array, " variables"], instance: GraphInstance
    ) -> Float[Array, "variables most"]:
        """The score of every state of every variable given all other variables."""
        met = states[self.wires.variable] == self.wires.local
        (fields,) = instance.unary
        for f in self.factors:
            fields = fields + f.fields(met.astype(fields.dtype))
        return self._by_variable(fields)

    @property
    def kinds(self) -> list[KindFactor]:
        """All factors but dense groups, in the order of their messages."""
        return [f for f in self.factors if isinstance(f, KindFactor)]

    def _told(
        self, rest: Float[Array, " edge_states"], instance: GraphInstance
    ) -> Float[Array, " states"]:
        return instance.unary[0].at[self.wires.states].add(rest)

    def _normalisers(
        self, scores: Float[Array, " states"], state: GraphState, instance: GraphInstance
    ) -> tuple[list[Float[Array, " _"]], list[Float[Array, "_ _"]]]:
        vtof = self._towards_factors(scores, state.rest, instance)
        listed = [f.normalisers(vtof[slice(*f.kind.messages)]) for f in self.kinds]
        dense = range(len(self.weights))
        return listed, [self._reduce(self._dense_scores(k, state, scores), 0) for k in dense]

    def _log_potential(self, states: Int[Array, " variables"]) -> Float[Array, ""]:
        return _met(self.factors, states)

    def _features(self, states: Int[Array, " variables"]) -> tuple[Float[Array, "..."], ...]:
        found = eqx.filter_grad(_met)(self.factors, states)
        return sum((f.statistic(g) for f, g in zip(self.factors, found, strict=True)), ())

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
        variable, dtype = jnp.asarray(self.wires.variable), self.factors[0].dtype
        width = jnp.ones(self.layout.num_variables, dtype)
        for first, second in self.wires.ends:
            for end, other in ((first, second), (second, first)):
                width = width.at[variable[end]].max(2.0 if other.shape[0] else 1.0)
        for f in self.kinds:
            at = variable[f.states]
            width = width.at[at].max(f.widths())
        return width

    def _places(
        self, clamp: Int[Array, " variables"]
    ) -> tuple[Int[AnyArray, " states"], Int[AnyArray, " states"]]:
        return clamp[self.wires.variable], self.wires.local

    def _by_field(self, tops: Float[Array, " variables"]) -> Float[Array, " states"]:
        return tops[self.wires.variable]

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
        parts = [f.messages(vtof[slice(*f.kind.messages)], self.product) for f in self.kinds]
        new = self._damped(rest, jnp.concatenate(parts).astype(rest.dtype))
        return self.normalised(new)

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
        return as_rows(fields, self.layout.every_count, LEAST)


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
        factors = tuple(f.tempered(beta) for f in model.factors(product))
        return GraphView(factors, model.layout, model.wires, product, form, damping, model.start)

    def fits(
        self, model: Any, temperature: Float[AnyArray, ""], damped: bool
    ) -> bool | Bool[AnyArray, ""]:
        return False if damped else odds_serve(model.blocks(), temperature)

    def size(self, model: Any, schedule: Schedule) -> int:
        return sum(f.size({}) for f in model.factors())

    def tables(self, model: Any) -> Stacks:
        if any(kind.type is not factor.EnumFactor for kind in model.layout.kinds):
            hint = "write it as tables by `uai.to_tables`"
            refuse(model, "let all factors list their configurations, or be dense", hint)
        return model.whole_tables()

    def mended(
        self, model: Any, states: Int[Array, " variables"], instance: GraphInstance
    ) -> Int[Array, " variables"]:
        """Children of OR, AND and pool factors follow, unless factors contend for one of them."""
        if model.sites.problem is not None:
            return states
        held = None if instance.clamp is None else (instance.clamp >= 0)[None]
        return model.sites.followed(states[None], held)[0]


def _met(
    factors: tuple[DenseFactor | KindFactor, ...], states: Int[Array, " variables"]
) -> Float[Array, ""]:
    """The sum of the log-potentials that one configuration meets."""
    out = jnp.zeros((), factors[0].dtype if factors else float)
    for f in factors:
        out = out - f.energy(f.layout.by_group(states))
    return out


def _sum(x: Float[Array, "m n"], axis: int) -> Float[Array, " _"]:
    coarse, rest = total(x, axis)
    return coarse + rest


def _log_odds(scores: Float[Array, " states"], first: Int[AnyArray, " n"]) -> Float[Array, " n"]:
    return scores[first + 1] - scores[first]
