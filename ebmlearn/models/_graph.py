import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._types import AnyArray
from ._view import Block, Form, Product, Schedule, Start


# The score of a state that evidence excludes: finite, so that nothing becomes NaN.
EXCLUDED = -1e6


class GraphInstance(NamedTuple):
    """What may differ between instances of one graph: the unary score of every state of every
    variable, one after the other, and the states at which variables are held, -1 where free.
    """

    unary: tuple[Float[Array, " states"]]
    clamp: Int[Array, " variables"] | None


class GraphState(NamedTuple):
    """Messages of the dense blocks (towards their first and their second end), what a view keeps of
    all other edges, and the scores of all states that they add up to.
    """

    messages: tuple[tuple[Float[Array, "_ _"], Float[Array, "_ _"]], ...]
    rest: PyTree
    fields: Float[Array, "..."]


class AbstractGraphView(eqx.Module):
    """Message passing on a graph of factors of any kind, written for one instance."""

    @abc.abstractmethod
    def start(self, instance: GraphInstance, start: Start) -> GraphState:
        """No messages; those of dense blocks in ±1 form (`centred`) or in {0, 1} form (`plain`)."""

    @abc.abstractmethod
    def update(self, state: GraphState, instance: GraphInstance) -> GraphState:
        """One sweep: every message is sent once, all at the same time."""

    @abc.abstractmethod
    def resume(self, state: GraphState, instance: GraphInstance) -> GraphState:
        """Messages of another instance, with what they add up to here."""

    @abc.abstractmethod
    def beliefs(
        self, state: GraphState, instance: GraphInstance
    ) -> tuple[Float[Array, "variables most"]]:
        """The score of every state of every variable."""

    @abc.abstractmethod
    def given(
        self, states: Int[Array, " variables"], instance: GraphInstance
    ) -> Float[Array, "variables most"]:
        """The score of every state of every variable given all other variables."""

    @abc.abstractmethod
    def linear(
        self, states: Int[Array, " variables"], unary: tuple[Float[Array, " states"]]
    ) -> Float[Array, ""]:
        """The sum of the unary terms that states meet."""

    @abc.abstractmethod
    def score(self, states: Int[Array, " variables"], instance: GraphInstance) -> Float[Array, ""]:
        """The log-potential of one configuration with its unary terms, minus infinity where it
        breaks a factor.
        """

    @abc.abstractmethod
    def log_partition(self, state: GraphState, instance: GraphInstance) -> Float[Array, ""]:
        """The Bethe approximation of log Z, or of the largest log-potential for max-product."""

    @abc.abstractmethod
    def pairwise(
        self, state: GraphState, instance: GraphInstance, temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "..."], ...]:
        """The expected statistic of every log-potential: the belief of its configuration."""

    @abc.abstractmethod
    def statistics(
        self, state: GraphState, instance: GraphInstance
    ) -> tuple[tuple[Float[Array, "variables most"]], tuple[Float[Array, "..."], ...]]:
        """The gradient of `log_partition` at a fixed point."""

    def decode(self, beliefs: tuple[Float[Array, "variables most"]]) -> Int[Array, " variables"]:
        """The likeliest state of each variable."""
        return beliefs[0].argmax(-1).astype(jnp.int32)

    def is_peak(self, states: Int[Array, " variables"], instance: GraphInstance) -> Bool[Array, ""]:
        """Whether no change of one variable raises the log-potential."""
        given = self.given(states, instance)
        own = jnp.take_along_axis(given, states[:, None], axis=-1)[:, 0]
        # A configuration that is excluded is no peak, though all its neighbours may be too.
        peak = (given.max(-1) <= own) & (own > EXCLUDED / 2)
        return (peak if instance.clamp is None else peak | (instance.clamp >= 0)).all()

    @abc.abstractmethod
    def change(self, old: GraphState, new: GraphState, instance: GraphInstance) -> Float[Array, ""]:
        """The largest change of a probability between two states."""


def largest_change(
    before: Float[Array, "... states"], after: Float[Array, "... states"]
) -> Float[Array, ""]:
    """The largest change of a probability between two scores."""
    before, after = jax.nn.softmax(before, axis=-1), jax.nn.softmax(after, axis=-1)
    return jax.lax.stop_gradient(jnp.abs(after - before).max(initial=0))


class AbstractGraphModel(eqx.Module):
    """Discrete variables joined by factors of any kind. Inferences and learners work on what
    subclasses say of themselves here.
    """

    log_potentials: eqx.AbstractVar[tuple[Float[Array, "..."], ...]]

    @property
    @abc.abstractmethod
    def num_states(self) -> Int[np.ndarray, " variables"]:
        """The number of states of each variable."""

    @abc.abstractmethod
    def unary(self) -> tuple[Float[Array, " states"]]:
        """The evidence of every state of every variable, one after the other."""

    @abc.abstractmethod
    def blocks(self) -> tuple[Block, ...]:
        """The weights of dense blocks of binary variables."""

    @abc.abstractmethod
    def fast(self, temperature: Float[AnyArray, ""], damped: bool) -> bool | Bool[Array, ""]:
        """Whether sum-product may run in the fast form of the messages, `"odds"`, as exactly as in
        the general one.
        """

    @property
    @abc.abstractmethod
    def num_messages(self) -> int:
        """How many numbers the messages of an instance are."""

    @abc.abstractmethod
    def view(
        self,
        product: Product,
        form: Form,
        schedule: Schedule,
        damping: Float[AnyArray, ""] | None,
        beta: Float[AnyArray, ""],
    ) -> AbstractGraphView:
        """The message-passing view of this model, its log-potentials times `beta`."""

    @abc.abstractmethod
    def rows(self, data: Any, name: str) -> Int[AnyArray, "*batch variables"]:
        """Observed states as one array, -1 where a variable is not observed, from a dictionary of
        them; checked.
        """

    @abc.abstractmethod
    def likelihood(self, data: Any) -> tuple[Any, Float[Array, "*batch states"] | None]:
        """Takes what is no state but a likelihood of each from evidence: the rest of it, and the
        logarithms of the likelihoods.
        """

    @abc.abstractmethod
    def units(self, layers: tuple[Float[Array, "*batch variables most"]]) -> Any:
        """One value for each state of each variable, by the groups of the graph."""

    @abc.abstractmethod
    def configuration(self, states: Int[AnyArray, "*batch variables"]) -> Any:
        """One state for each variable, by the groups of the graph."""

    @abc.abstractmethod
    def factors(self, blocks: tuple[Float[Array, "..."], ...]) -> Any:
        """One value for each log-potential, by the groups of the graph."""

    @abc.abstractmethod
    def padded(self, flat: Float[Array, "*batch states"]) -> Float[Array, "*batch variables most"]:
        """Probabilities of all states, a row for each variable, zero where it has no more."""

    @abc.abstractmethod
    def flattened(
        self, padded: Float[Array, "*batch variables most"]
    ) -> Float[Array, "*batch states"]:
        """The reverse of `padded`: the states of all variables, one after the other."""

    @abc.abstractmethod
    def log_potential(
        self, states: Int[Array, "*batch variables"], product: Product = "max"
    ) -> Float[Array, "*batch"]:
        """The sum of the log-potentials that configurations meet, without evidence: minus infinity
        where one breaks a factor. To be summed over, rather than maximised, it has the weights of
        quantised variables too.
        """

    @abc.abstractmethod
    def features(
        self, states: Int[Array, " variables"]
    ) -> tuple[Float[Array, "variables most"], tuple[Float[Array, "..."], ...]]:
        """The statistics of one configuration: 1 for each state, and for each log-potential, that
        it meets.
        """

    @abc.abstractmethod
    def energy(self, states: Any) -> Float[Array, "*batch"]:
        """The energy of configurations."""

    @abc.abstractmethod
    def expected_energy(self, units: Any, pairwise: Any) -> Float[Array, ""]:
        """The mean energy under expected statistics: `units` of each instance, `pairwise` of all.
        Its gradient with the statistics held fixed is what learning needs.
        """

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """A graph is always a single one."""
        return ()

    @property
    def is_bipartite(self) -> bool:
        """Whether variables fall into two sides that can take turns; not asked of graphs."""
        return False
