from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._sentinels import LEAST
from .._types import AnyArray
from ..models._tables import features, given, log_potential
from ._graph import AbstractGraphMaker, AbstractGraphView, GraphInstance, GraphState, tempered
from ._registry import Stacks
from ._types import Form, Product, Schedule, Start


# For each stack of tables and each axis, what the tables send to the variables there.
Messages = tuple[tuple[Float[Array, "_ _"], ...], ...]


class TableView(AbstractGraphView):
    """Message passing on tables of any shape, all at the same time. Fields are a row of scores for
    each variable.
    """

    tables: tuple[Float[Array, "..."], ...]
    members: tuple[Int[AnyArray, "_ _"], ...]
    there: Bool[AnyArray, "variables most"]
    damping: Float[AnyArray, ""] | None
    product: Product = eqx.field(static=True)

    @property
    def tells_statistics(self) -> bool:
        """Messages are scores in all forms."""
        return True

    def start(self, instance: GraphInstance, start: Start) -> GraphState:
        nothing = tuple(
            tuple(jnp.zeros((x.shape[0], size), x.dtype) for size in x.shape[1:])
            for x in self.tables
        )
        return self.resume(GraphState((), nothing, self._unary(instance)), instance)

    def resume(self, state: GraphState, instance: GraphInstance) -> GraphState:
        return GraphState((), state.rest, self._told(state.rest, instance))

    def update(self, state: GraphState, instance: GraphInstance) -> GraphState:
        held = self._held(state.fields, instance)
        new = []
        for table, own, old in zip(self.tables, self.members, state.rest, strict=True):
            cavities = self._cavities(held, own, old, instance)
            sent = [self._sent(table, cavities, axis) for axis in range(len(old))]
            if self.damping is not None:
                sent = [
                    self.damping * x + (1 - self.damping) * y
                    for x, y in zip(old, sent, strict=True)
                ]
            new.append(tuple(sent))
        return GraphState((), tuple(new), self._told(tuple(new), instance))

    def beliefs(
        self, state: GraphState, instance: GraphInstance
    ) -> tuple[Float[Array, "variables most"]]:
        held = self._held(state.fields, instance)
        return (jnp.where(jnp.asarray(self.there), held, jnp.asarray(LEAST, held.dtype)),)

    def given(
        self, states: Int[Array, " variables"], instance: GraphInstance
    ) -> Float[Array, "variables most"]:
        return given(self.tables, self.members, states, self._unary(instance))

    def linear(
        self, states: Int[Array, " variables"], unary: tuple[Float[Array, " states"]]
    ) -> Float[Array, ""]:
        rows = self._unary(GraphInstance(unary, None))
        return jnp.take_along_axis(rows, states[:, None].astype(jnp.int32), axis=1).sum()

    def pairwise(
        self, state: GraphState, instance: GraphInstance, temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "..."], ...]:
        scores, _ = self._shifted(state.fields, instance)
        out = []
        for table, own, sent in zip(self.tables, self.members, state.rest, strict=True):
            joint = self._joint(table, self._less(scores, own, sent, instance))
            flat = jax.nn.softmax(temperature * joint.reshape(table.shape[0], -1), axis=-1)
            out.append(flat.reshape(table.shape))
        return tuple(out)

    def _normalisers(
        self, scores: Float[Array, "variables most"], state: GraphState, instance: GraphInstance
    ) -> tuple[list[Float[Array, " _"]], list[Float[Array, " _"]]]:
        out = []
        for table, own, sent in zip(self.tables, self.members, state.rest, strict=True):
            joint = self._joint(table, self._less(scores, own, sent, instance))
            out.append(self._reduce(joint.reshape(table.shape[0], -1), -1))
        return out, []

    def _log_potential(self, states: Int[Array, " variables"]) -> Float[Array, ""]:
        return log_potential(self.tables, self.members, states)

    def _features(self, states: Int[Array, " variables"]) -> tuple[Float[Array, "..."], ...]:
        return features(self.tables, self.members, states)

    def _edges(self, state: GraphState) -> Messages:
        return state.rest

    def _with_edges(self, edges: Messages, state: GraphState, instance: Any) -> GraphState:
        return GraphState((), edges, self._told(edges, instance))

    def _spread(self, x: Float[Array, "variables most"], combine: Any) -> Messages:
        return tuple(
            tuple(x[own[:, axis], :size] for axis, size in enumerate(table.shape[1:]))
            for table, own in zip(self.tables, self.members, strict=True)
        )

    def _degrees(self) -> Int[Array, " variables"]:
        out = jnp.zeros(self.there.shape[0], jnp.int32)
        for own in self.members:
            out = out.at[own.reshape(-1)].add(1)
        return out

    def _widths(self) -> Int[Array, " variables"]:
        out = jnp.ones(self.there.shape[0], jnp.int32)
        for own in self.members:
            out = out.at[own.reshape(-1)].max(own.shape[1])
        return out

    def _places(
        self, clamp: Int[Array, " variables"]
    ) -> tuple[Int[Array, "variables 1"], Int[Array, "1 most"]]:
        return clamp[:, None], jnp.arange(self.there.shape[1], dtype=jnp.int32)[None]

    def _by_variable(self, fields: Float[Array, "*b v most"]) -> Float[Array, "*b v most"]:
        return fields

    def _by_field(self, tops: Float[Array, " variables"]) -> Float[Array, "variables 1"]:
        return tops[:, None]

    def _unary(self, instance: GraphInstance) -> Float[Array, "variables most"]:
        """Unary scores as rows; what counts as nothing where a variable has no more states."""
        (flat,) = instance.unary
        nothing = jnp.full(self.there.shape, LEAST, flat.dtype)
        variable, local = jnp.nonzero(self.there, size=flat.shape[0])
        return nothing.at[variable, local].set(flat)

    def _told(self, rest: Messages, instance: GraphInstance) -> Float[Array, "variables most"]:
        fields = self._unary(instance)
        for own, messages in zip(self.members, rest, strict=True):
            for axis, message in enumerate(messages):
                fields = fields.at[own[:, axis], : message.shape[1]].add(message)
        return fields

    def _cavities(
        self,
        fields: Float[Array, "variables most"],
        own: Int[AnyArray, "tables _"],
        sent: tuple[Float[Array, "_ _"], ...],
        instance: GraphInstance,
    ) -> list[Float[Array, "_ _"]]:
        """The scores of the variables of tables without what these sent. Nothing is taken from
        variables that are held.
        """
        out = []
        for axis, message in enumerate(sent):
            members = own[:, axis]
            field = fields[members, : message.shape[1]]
            less = field - message
            if instance.clamp is not None:
                less = jnp.where((instance.clamp[members] >= 0)[:, None], field, less)
            out.append(less)
        return out

    def _less(self, scores: Array, own: Any, sent: Any, instance: GraphInstance) -> list[Array]:
        """As `_cavities`, of scores less the largest of each variable; nothing is taken from states
        that are excluded for good.
        """
        out, excluded = [], self._excluded(instance)
        for axis, message in enumerate(sent):
            members, size = own[:, axis], message.shape[1]
            field = scores[members, :size]
            less = field - message
            if excluded is not None:
                less = jnp.where(excluded[members, :size], field, less)
            out.append(less)
        return out

    def _joint(
        self, table: Float[Array, "tables ..."], cavities: list[Float[Array, "_ _"]]
    ) -> Float[Array, "tables ..."]:
        for axis, cavity in enumerate(cavities):
            table = table + jnp.broadcast_to(_along(cavity, axis, table.ndim), table.shape)
        return table

    def _sent(
        self, table: Float[Array, "tables ..."], cavities: list[Array], axis: int
    ) -> Float[Array, "tables _"]:
        """What tables send along an axis, less its largest."""
        for other, cavity in enumerate(cavities):
            if other != axis:
                table = table + jnp.broadcast_to(_along(cavity, other, table.ndim), table.shape)
        rows = jnp.moveaxis(table, axis + 1, 1).reshape(*table.shape[:1], table.shape[axis + 1], -1)
        sent = self._reduce(rows, -1)
        return jnp.maximum(sent - sent.max(-1, keepdims=True), jnp.asarray(LEAST, sent.dtype))


def _along(cavity: Float[Array, "tables _"], axis: int, rank: int) -> Float[Array, "tables ..."]:
    shape = [1] * rank
    shape[0], shape[axis + 1] = cavity.shape
    return cavity.reshape(shape)


class TableMaker(AbstractGraphMaker):
    """Messages of a [`ebmlearn.TableModel`][]."""

    def view(
        self,
        model: Any,
        product: Product,
        form: Form,
        schedule: Schedule,
        damping: Float[AnyArray, ""] | None,
        beta: Float[AnyArray, ""],
    ) -> TableView:
        tables = tuple(tempered(x, beta) for x in model.log_potentials)
        return TableView(
            tables=tables,
            members=model.members,
            there=model.there,
            damping=damping,
            product=product,
        )

    def fits(
        self, model: Any, temperature: Float[AnyArray, ""], damped: bool
    ) -> bool | Bool[AnyArray, ""]:
        return False

    def size(self, model: Any, schedule: Schedule) -> int:
        return sum(x.shape[0] * sum(x.shape[1:]) for x in model.log_potentials)

    def tables(self, model: Any) -> Stacks:
        return model.as_tables()

    def mended(
        self, model: Any, states: Int[Array, " variables"], instance: GraphInstance
    ) -> Int[Array, " variables"]:
        """The states as they are: no factor determines a variable."""
        return states
