"""What all views of graphs share."""

import abc
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .. import _checks
from .._sentinels import EXCLUDED, LIMIT
from .._types import AnyArray
from ..models._graph import scaled_potentials
from ._registry import AbstractMaker
from ._types import Product
from ._view import AbstractView, Expected, LEANING, one_by_one, Told


class GraphInstance(NamedTuple):
    """What may differ between instances of one graph: the unary score of every state of every
    variable, one after the other, and the states at which variables are held, -1 where free; for
    mixed-product, the variables over which it maximises.
    """

    unary: tuple[Float[Array, " states"]]
    clamp: Int[Array, " variables"] | None
    outputs: Bool[Array, " variables"] | None = None

    def tempered(self, temperature: Float[AnyArray, ""]) -> "GraphInstance":
        """That of the model of $p^{1/T}$."""
        return self._replace(unary=(scaled_potentials(self.unary[0], 1 / temperature),))


class GraphState(NamedTuple):
    """Messages of the dense blocks (towards their first and their second end), what a view keeps of
    all other edges, and the scores of all states that they add up to.
    """

    messages: tuple[tuple[Float[Array, "_ _"], Float[Array, "_ _"]], ...]
    rest: PyTree
    fields: Float[Array, "..."]


class AbstractGraphView(AbstractView):
    """Message passing on a graph of factors of any kind, written for one instance. Subclasses say
    how scores are laid out and how messages are sent.
    """

    product: eqx.AbstractVar[Product]

    def sweeps(
        self, state: Any, instance: Any, number: Int[Array, ""], rows: int = 1
    ) -> tuple[Any, Any]:
        """So many sweeps, one after the other."""
        return one_by_one(self, state, instance, number)

    @abc.abstractmethod
    def _edges(self, state: GraphState) -> PyTree:
        """The messages of all edges, as arrays."""

    @abc.abstractmethod
    def _with_edges(self, edges: PyTree, state: GraphState, instance: GraphInstance) -> GraphState:
        """A state with other messages, and the scores that they add up to."""

    @abc.abstractmethod
    def _told(self, rest: PyTree, instance: GraphInstance) -> Float[Array, "..."]:
        """Unary scores with the messages of all edges but those of dense blocks."""

    @abc.abstractmethod
    def _normalisers(
        self, scores: Float[Array, "..."], state: GraphState, instance: GraphInstance
    ) -> tuple[list[Float[Array, "..."]], list[Float[Array, "..."]]]:
        """Log Z of each factor, or its maximum, given scores less the largest of each variable:
        first of factors that may exclude configurations, then of all others.
        """

    @abc.abstractmethod
    def _spread(self, x: Float[Array, "..."], combine: Callable[[Array, Array], Array]) -> PyTree:
        """Numbers of all fields in the places of the messages to them, as messages. One that is one
        number for the states 1 and 0 has those of both, combined.
        """

    @abc.abstractmethod
    def _degrees(self) -> AnyArray:
        """The number of edges of each variable that has fields."""

    @abc.abstractmethod
    def _widths(self) -> AnyArray:
        """The number of variables in the largest factor of each variable that has fields."""

    @abc.abstractmethod
    def _log_potential(self, states: Int[Array, " variables"]) -> Float[Array, ""]:
        """The sum of the log-potentials that one configuration meets, minus infinity if it breaks a
        factor.
        """

    @abc.abstractmethod
    def _features(self, states: Int[Array, " variables"]) -> tuple[Float[Array, "..."], ...]:
        """How often one configuration meets each log-potential."""

    @abc.abstractmethod
    def _places(
        self, clamp: Int[Array, " variables"]
    ) -> tuple[Int[AnyArray, "..."], Int[AnyArray, "..."]]:
        """For each field the state that its variable is held at, and the number of its own state;
        both broadcast to the fields.
        """

    @abc.abstractmethod
    def _by_variable(self, fields: Float[Array, "..."]) -> Float[Array, "... most"]:
        """Fields with the states of a variable along the last axis; what counts as nothing where it
        has no more.
        """

    @abc.abstractmethod
    def _by_field(self, tops: Float[Array, "..."]) -> Float[Array, "..."]:
        """A value of each variable for each of its fields."""

    def leaning(
        self, instance: GraphInstance, key: PRNGKeyArray, sign: Float[Array, ""]
    ) -> GraphState:
        state = self.start(instance, "centred")
        fields = state.fields
        lean = sign * jax.random.uniform(key, fields.shape, fields.dtype, -LEANING, LEANING)
        return self._with_edges(self._spread(lean, jnp.subtract), state, instance)

    def mixture(
        self,
        beliefs: tuple[Float[Array, "parts variables most"], ...],
        log_weights: Float[Array, " parts"],
    ) -> tuple[Float[Array, "variables most"]]:
        scores = jax.nn.log_softmax(beliefs[0], axis=-1)
        return (jax.nn.logsumexp(log_weights[:, None, None] + scores, axis=0),)

    def evened(self, state: GraphState, instance: GraphInstance) -> GraphState:
        """Messages less an equal share of what they and the unary scores of a variable add up to.
        All its states then have the same score, but for excluded ones, and `log_partition` of
        max-product is a value of the dual of the linear relaxation: an upper bound of the largest
        log-potential.
        """
        share, _ = self._shares(state.fields, instance)
        edges = jax.tree.map(jnp.subtract, self._edges(state), self._spread(share, jnp.subtract))
        return self._even(edges, state, instance)

    def relaxed(
        self, state: GraphState, instance: GraphInstance
    ) -> tuple[GraphState, Float[Array, ""]]:
        """One sweep of coordinate descent on that dual, from messages that are evened, and how far
        they were from where it leads. Max-product only.

        New messages to one variable, evened, minimise the dual while all others stay. All variables
        do that at once, each a part of the way: one divided by the number of variables in its
        largest factor. The new dual is at most a mean of those that each variable would reach by
        itself, because it is convex, so that it never rises.
        """
        heard = self.update(state, instance)
        share, excluded = self._shares(heard.fields, instance)
        part = self._by_field(1 / jnp.asarray(self._widths(), share.dtype))
        # What is excluded is said at once.
        step = jnp.where(excluded, jnp.ones_like(share), jnp.broadcast_to(part, share.shape))
        old, new = self._edges(state), self._edges(heard)
        new = jax.tree.map(jnp.subtract, new, self._spread(share, jnp.subtract))
        moved = jax.tree.map(
            lambda a, b, part: (1 - part) * a + part * b, old, new, self._spread(step, jnp.maximum)
        )
        far = jax.tree.map(
            lambda a, b: (jnp.abs(b - a) / jnp.maximum(jnp.abs(b), 1)).max(initial=0), old, new
        )
        change = jnp.stack([jnp.zeros((), share.dtype), *jax.tree.leaves(far)]).max()
        return self._even(moved, state, instance), change

    def _even(self, edges: PyTree, state: GraphState, instance: GraphInstance) -> GraphState:
        """A state with messages that are evened: scores are equal without rounding errors."""
        state = self._with_edges(edges, state, instance)
        scores, _ = self._shifted(state.fields, instance)
        even = jnp.where(scores < EXCLUDED / 2, scores, jnp.zeros_like(scores))
        return state._replace(fields=even)

    def _shares(
        self, fields: Float[Array, "..."], instance: GraphInstance
    ) -> tuple[Float[Array, "..."], Bool[Array, "..."]]:
        """Scores less the largest of each variable, divided by the number of its edges, zero for
        states that are excluded; and which are.
        """
        scores, _ = self._shifted(fields, instance)
        excluded = scores < EXCLUDED / 2
        degrees = self._by_field(jnp.maximum(jnp.asarray(self._degrees(), scores.dtype), 1))
        return jnp.where(excluded, jnp.zeros_like(scores), scores / degrees), excluded

    def change(self, old: GraphState, new: GraphState, instance: GraphInstance) -> Float[Array, ""]:
        """The largest change of a probability between two states."""
        before, after = (
            jax.nn.softmax(self._by_variable(self._held(state.fields, instance)), axis=-1)
            for state in (old, new)
        )
        return jax.lax.stop_gradient(jnp.abs(after - before).max(initial=0))

    def log_partition(self, state: GraphState, instance: GraphInstance) -> Float[Array, ""]:
        # Added up again, so that a gradient with the messages held fixed is complete.
        scores, top = self._shifted(self.resume(state, instance).fields, instance)
        single = self._reduce(self._by_variable(scores), -1)
        out = top.sum() + ((1 - jnp.asarray(self._degrees(), top.dtype)) * single).sum()
        for parts in self._normalisers(scores, state, instance):
            for part in parts:
                out = out + part.sum()
        return jnp.where(self.is_possible(state, instance), out, -jnp.inf)

    def is_possible(self, state: GraphState, instance: GraphInstance) -> Bool[Array, ""]:
        """Whether a state of each variable and a configuration of each factor are left. Only such
        messages count as each exclude a state: those that are merely low may add up to as much.
        """
        scores, _ = self._shifted(self.resume(state, instance).fields, instance)
        factors, _ = self._normalisers(scores, state, instance)
        excluding = jax.tree.map(
            lambda x: jnp.where(x < EXCLUDED / 2, x, jnp.zeros_like(x)), state.rest
        )
        _, variables = self._shifted(self._told(excluding, instance), instance)
        return jnp.stack([(x > EXCLUDED / 2).all() for x in (variables, *factors)]).all()

    def statistics(self, state: GraphState, instance: GraphInstance) -> Expected:
        """The gradient of `log_partition` at a fixed point; what is maximised is 0 or 1."""
        (scores,) = self.beliefs(state, instance)
        if self.product == "max":
            states = self.decode((scores,))
            units = jax.nn.one_hot(states, scores.shape[-1], dtype=scores.dtype)
            return Expected((units,), self._features(states), ())
        one = jnp.ones((), scores.dtype)
        pairs = self.pairwise(state, instance, one)
        return Expected((jax.nn.softmax(scores, axis=-1),), pairs, ())

    def decode(self, beliefs: tuple[Float[Array, "variables most"]]) -> Int[Array, " variables"]:
        """The likeliest state of each variable."""
        return beliefs[0].argmax(-1).astype(jnp.int32)

    def score(self, states: Int[Array, " variables"], instance: GraphInstance) -> Float[Array, ""]:
        """The log-potential of one configuration with its unary terms, minus infinity where it
        breaks a factor.
        """
        return self.linear(states, instance.unary) + self._log_potential(states)

    def is_peak(self, states: Int[Array, " variables"], instance: GraphInstance) -> Bool[Array, ""]:
        """Whether no change of one variable raises the log-potential."""
        given = self.given(states, instance)
        own = jnp.take_along_axis(given, states[:, None], axis=-1)[:, 0]
        # A configuration that is excluded is no peak, though all its neighbours may be too.
        peak = (given.max(-1) <= own) & (own > EXCLUDED / 2)
        return (peak if instance.clamp is None else peak | (instance.clamp >= 0)).all()

    def _held(self, fields: Float[Array, "..."], instance: GraphInstance) -> Float[Array, "..."]:
        """Scores; variables whose state is given leave no doubt of it. Fields may have leading
        axes.
        """
        if instance.clamp is None:
            return fields
        clamp, number = (jnp.broadcast_to(x, fields.shape) for x in self._places(instance.clamp))
        excluded = jnp.asarray(EXCLUDED, fields.dtype)
        given = jnp.where(clamp == number, jnp.zeros((), fields.dtype), excluded)
        return jnp.where(clamp >= 0, given, fields)

    def _excluded(self, instance: GraphInstance) -> Bool[AnyArray, "..."] | None:
        """Which states evidence excludes."""
        if instance.clamp is None:
            return None
        clamp, number = self._places(instance.clamp)
        return (clamp >= 0) & (clamp != number)

    def _shifted(
        self, fields: Float[Array, "..."], instance: GraphInstance
    ) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Scores less the largest of each variable, and that. What evidence excludes is no largest,
        and remains excluded.
        """
        excluded = self._excluded(instance)
        left = fields
        if excluded is not None:
            left = jnp.where(excluded, jnp.asarray(-jnp.inf, fields.dtype), fields)
        top = jax.lax.stop_gradient(self._by_variable(left).max(-1))
        scores = fields - self._by_field(top)
        if excluded is not None:
            scores = jnp.where(excluded, jnp.asarray(EXCLUDED, fields.dtype), scores)
        return scores, top

    def _reduce(self, scores: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
        """The logarithm of the sum of exponentials over an axis, or the maximum."""
        return scores.max(axis) if self.product == "max" else jax.nn.logsumexp(scores, axis=axis)


class AbstractGraphMaker(AbstractMaker):
    """What the makers of graphs have in common: variables are all of one side, and log-potentials
    must remain small against what stands for minus infinity.
    """

    of_graphs: ClassVar[bool] = True

    def instances(self, problem: Any) -> GraphInstance:
        """Likelihoods are added to the unary scores."""
        (unary,) = problem.model.unary()
        rows = problem.flat(unary)
        if problem.log_likelihood is not None:
            rows = rows + problem.flat(problem.log_likelihood.astype(rows.dtype))
        held = problem.held
        if held is not None:
            held = problem.flat(jnp.asarray(held).astype(jnp.int32))
        outputs = None if problem.outputs is None else problem.flat(problem.outputs)
        return GraphInstance((rows,), held, outputs)

    def perturbed(
        self, model: Any, units: Any, clamped: Any, noise: tuple[Float[Array, "rows _"], ...]
    ) -> tuple[GraphInstance, tuple[Float[Array, "rows _"], ...]]:
        (own,), (unary,) = noise, model.unary()
        held = None if clamped is None else jnp.where(clamped, units, -1)
        if held is not None:
            own = jnp.where((held >= 0)[:, model.owners], jnp.zeros_like(own), own)
        return GraphInstance((jnp.broadcast_to(unary, own.shape) + own,), held), (own,)

    def noise_in(
        self, model: Any, noise: tuple[Float[Array, "rows _"], ...], groups: tuple[Hashable, ...]
    ) -> tuple[Float[Array, "rows _"], ...]:
        (own,) = noise
        chosen = np.zeros(len(model.num_states), bool)
        for group in groups:
            chosen[model.places(group, "perturb").reshape(-1)] = True
        mask = jnp.broadcast_to(chosen[model.owners], own.shape)
        return (jnp.where(mask, own, jnp.zeros_like(own)),)

    def told(
        self, problem: Any, beliefs: tuple[Array, ...], temperature: Float[AnyArray, ""]
    ) -> Told:
        return Told(problem.model.units((temperature * beliefs[0],)))

    def check(self, model: Any, product: Product, temperature: float | Float[AnyArray, ""]) -> None:
        """Raises `ValueError` for mixed-product, and where log-potentials divided by a temperature
        are no longer small against what stands for minus infinity.
        """
        if product == "mixed":
            name = _checks.article(type(model).__name__)
            raise ValueError(
                f'`product` must be "sum" or "max" for messages of {name}, got "mixed": take'
                ' `Exact(product="mixed")`, or `LSSVM` to train it.'
            )
        if not _checks.is_concrete((model, temperature)) or float(temperature) >= 1:
            return
        sizes = [np.abs(x) for x in model.log_potentials if x.size]
        peaks = [float(np.where(x < LIMIT / 2, x, 0).max()) for x in sizes]
        least = max([1e-4, *(4 * peak / LIMIT for peak in peaks)])
        if float(temperature) < least:
            raise ValueError(
                f"`temperature` must be at least {least:.3g} for log-potentials as large as"
                f' {max(peaks, default=0):.3g}, or `product="max"` for 0, got'
                f" {float(temperature):.3g}."
            )

    def check_mixed(self, model: Any, argument: str) -> None:
        """Nothing: scores can be mixed."""

    def rows(
        self, model: Any, instance: GraphInstance
    ) -> tuple[Float[Array, "variables most"], Bool[Array, "variables most"]]:
        (flat,) = instance.unary
        unary = model.padded(flat)
        there = model.padded(jnp.ones_like(flat)) > 0
        if instance.clamp is not None:
            states = jnp.arange(unary.shape[-1], dtype=instance.clamp.dtype)
            number = jnp.broadcast_to(states, unary.shape)
            held = jnp.broadcast_to(instance.clamp[:, None], unary.shape)
            there = there & ((held < 0) | (held == number))
        return unary, there

    def scored(
        self, scores: Float[Array, "variables most"], instance: GraphInstance
    ) -> tuple[Float[Array, "variables most"]]:
        return (scores,)

    def expected(
        self,
        model: Any,
        members: tuple[Int[AnyArray, "_ _"], ...],
        p: Float[Array, "variables most"],
        joint: tuple[Float[Array, "..."], ...],
    ) -> Expected:
        def tables(potentials: Any) -> tuple[Float[Array, "..."], ...]:
            own = eqx.tree_at(lambda m: m.log_potentials, model, potentials)
            return tuple(table for _, table in self.tables(own))

        # Tables are linear in the log-potentials, which several of them may share.
        (pairs,) = jax.vjp(tables, model.log_potentials)[1](joint)
        return Expected((p,), pairs, ())

    def takes_turns(self, model: Any) -> bool:
        """All variables send at once, whatever the graph is."""
        return False


def tempered(x: Float[Array, "..."], beta: Float[AnyArray, ""]) -> Float[Array, "..."]:
    """Log-potentials times `beta`, within limits; what they exclude stays excluded."""
    return jnp.clip(scaled_potentials(x, beta), -LIMIT, LIMIT)
