import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._sentinels import LEAST
from .._types import AnyArray
from ..factors import Stacks
from ._graph import AbstractGraphMaker, AbstractGraphView, GraphInstance, GraphState
from ._sent import AbstractSent, sent_by
from ._types import Form, Product, Schedule, Start


class FactorView(AbstractGraphView):
    """Message passing on factors of any kind, all at the same time. Fields are a row of scores for
    each variable. `model` has its log-potentials times the inverse temperature.
    """

    model: Any
    parts: tuple[AbstractSent, ...]
    there: Bool[AnyArray, "variables most"]
    damping: Float[AnyArray, ""] | None
    product: Product = eqx.field(static=True)

    @property
    def tells_statistics(self) -> bool:
        """Messages are scores in all forms."""
        return True

    def start(self, instance: GraphInstance, start: Start) -> GraphState:
        rows = self._unary(instance)
        nothing = tuple(part.spread(jnp.zeros_like(rows)) for part in self.parts)
        return self._with_edges(nothing, GraphState((), nothing, rows), instance)

    def resume(self, state: GraphState, instance: GraphInstance) -> GraphState:
        return self._with_edges(state.rest, state, instance)

    def update(self, state: GraphState, instance: GraphInstance) -> GraphState:
        rows, held = self._held(state.fields, instance), self._known(instance)
        new = []
        for part, old in zip(self.parts, state.rest, strict=True):
            sent = part.update(old, rows, held, self._reduce)
            new.append(sent if self.damping is None else jax.tree.map(self._damped, old, sent))
        return self._with_edges(tuple(new), state, instance)

    def _damped(self, old: Array, new: Array) -> Array:
        keep = jnp.asarray(self.damping)
        return keep * old + (1 - keep) * new

    def beliefs(
        self, state: GraphState, instance: GraphInstance
    ) -> tuple[Float[Array, "variables most"]]:
        held = self._held(state.fields, instance)
        return (jnp.where(jnp.asarray(self.there), held, jnp.asarray(LEAST, held.dtype)),)

    def given(
        self, states: Int[Array, " variables"], instance: GraphInstance
    ) -> Float[Array, "variables most"]:
        return self._unary(instance) + self.model.pulled(states[None])[0]

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
        for part, joint in zip(self.parts, self._joint(scores, state, instance), strict=True):
            flat = joint.reshape(joint.shape[0], math.prod(joint.shape[1:]))
            p = jax.nn.softmax(temperature * flat, axis=-1)
            out.append(part.statistic(p.reshape(joint.shape)))
        return tuple(out)

    def _normalisers(
        self, scores: Float[Array, "variables most"], state: GraphState, instance: GraphInstance
    ) -> tuple[list[Float[Array, " _"]], list[Float[Array, " _"]]]:
        found = self._joint(scores, state, instance)
        flat = [x.reshape(x.shape[0], math.prod(x.shape[1:])) for x in found]
        return [self._reduce(x, -1) for x in flat], []

    def _joint(
        self, scores: Float[Array, "variables most"], state: GraphState, instance: GraphInstance
    ) -> list[Float[Array, "..."]]:
        """The scores of the configurations of factors. Nothing is taken from what evidence
        excludes.
        """
        excluded = self._excluded(instance)
        held = jnp.zeros(scores.shape, bool) if excluded is None else excluded
        held = jnp.broadcast_to(held, scores.shape)
        pairs = zip(self.parts, state.rest, strict=True)
        return [part.joint(edges, scores, held) for part, edges in pairs]

    def _log_potential(self, states: Int[Array, " variables"]) -> Float[Array, ""]:
        return self.model.log_potential(states)

    def _features(self, states: Int[Array, " variables"]) -> tuple[Float[Array, "..."], ...]:
        return self.model.features(states)[1]

    def _edges(self, state: GraphState) -> PyTree:
        return state.rest

    def _with_edges(self, edges: Any, state: GraphState, instance: GraphInstance) -> GraphState:
        return GraphState((), edges, self._told(edges, instance))

    def _told(self, rest: Any, instance: GraphInstance) -> Float[Array, "variables most"]:
        rows = self._unary(instance)
        for part, edges in zip(self.parts, rest, strict=True):
            rows = part.added(rows, edges)
        return rows

    def _spread(
        self, x: Float[Array, "variables most"], combine: Callable[[Array, Array], Array]
    ) -> PyTree:
        return tuple(part.spread(x) for part in self.parts)

    def _degrees(self) -> Int[Array, " variables"]:
        found = [part.counts(self.there.shape[0])[0] for part in self.parts]
        return sum(found, jnp.zeros(self.there.shape[0], jnp.int32))

    def _widths(self) -> Int[Array, " variables"]:
        out = jnp.ones(self.there.shape[0], jnp.int32)
        for part in self.parts:
            out = jnp.maximum(out, part.counts(self.there.shape[0])[1])
        return out

    def _places(
        self, clamp: Int[Array, " variables"]
    ) -> tuple[Int[Array, "variables 1"], Int[Array, "1 most"]]:
        return clamp[:, None], jnp.arange(self.there.shape[1], dtype=jnp.int32)[None]

    def _by_variable(self, fields: Float[Array, "*b v most"]) -> Float[Array, "*b v most"]:
        return fields

    def _by_field(self, tops: Float[Array, " variables"]) -> Float[Array, "variables 1"]:
        return tops[:, None]

    def _known(self, instance: GraphInstance) -> Bool[Array, "variables most"]:
        """The rows of variables that are held."""
        if instance.clamp is None:
            return jnp.zeros(self.there.shape, bool)
        return jnp.broadcast_to((instance.clamp >= 0)[:, None], self.there.shape)

    def _unary(self, instance: GraphInstance) -> Float[Array, "variables most"]:
        """Unary scores as rows; what counts as nothing where a variable has no more states."""
        (flat,) = instance.unary
        nothing = jnp.full(self.there.shape, LEAST, flat.dtype)
        variable, local = jnp.nonzero(self.there, size=flat.shape[0])
        return nothing.at[variable, local].set(flat)


class FactorMaker(AbstractGraphMaker):
    """Messages of a [`ebmlearn.FactorModel`][] and of a [`ebmlearn.TableModel`][]."""

    def view(
        self,
        model: Any,
        product: Product,
        form: Form,
        schedule: Schedule,
        damping: Float[AnyArray, ""] | None,
        beta: Float[AnyArray, ""],
    ) -> FactorView:
        units, starts = model.places_of_groups()
        parts = tuple(sent_by(factor, units, starts, beta) for factor in model.factors())
        return FactorView(
            model=model.tempered(beta),
            parts=parts,
            there=model.there,
            damping=damping,
            product=product,
        )

    def fits(
        self, model: Any, temperature: Float[AnyArray, ""], damped: bool
    ) -> bool | Bool[AnyArray, ""]:
        return False

    def size(self, model: Any, schedule: Schedule) -> int:
        units, _ = model.places_of_groups()
        return sum(factor.size(units) for factor in model.factors())

    def tables(self, model: Any) -> Stacks:
        return model.as_tables()

    def mended(
        self, model: Any, states: Int[Array, " variables"], instance: GraphInstance
    ) -> Int[Array, " variables"]:
        """The states as they are: no factor determines a variable."""
        return states
