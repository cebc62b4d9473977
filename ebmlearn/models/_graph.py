import abc
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NoReturn, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .. import _checks
from .._types import AnyArray, Batch, Evidence, Observed
from ..units import _random
from ._base import AbstractPlainModel, no_features, refuse
from ._block import Block
from ._graph_problem import GraphProblem
from ._problem import each_and_mean
from ._statistics import Statistics


Result = TypeVar("Result")
Graph = TypeVar("Graph", bound="AbstractGraphModel")
# How many numbers the statistics of the configurations are that are treated at once.
_AT_ONCE = 2**26


class AbstractGraphModel(AbstractPlainModel):
    """Discrete variables joined by factors of any kind. Inferences and learners work on what
    subclasses say of themselves here; `kind` is what messages are registered for.
    """

    hint: ClassVar[str] = "take `BP` or `Exact`, `PMP` to sample, `MLE` or `PMPLearner` to train it"
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
    def rows(self, data: Batch, name: str) -> Int[AnyArray, "*batch variables"]:
        """Observed states as one array, -1 where a variable is not observed, from a dictionary of
        them; checked.
        """

    @abc.abstractmethod
    def likelihood(self, data: Batch) -> tuple[Batch, Float[Array, "*batch states"] | None]:
        """Takes what is no state but a likelihood of each from evidence: the rest of it, and the
        logarithms of the likelihoods.
        """

    @abc.abstractmethod
    def units(self, layers: Sequence[Float[Array, "*batch variables most"]]) -> PyTree:
        """One value for each state of each variable, by the groups of the graph."""

    @abc.abstractmethod
    def configuration(self, states: Int[AnyArray, "*batch variables"]) -> PyTree:
        """One state for each variable, by the groups of the graph."""

    @abc.abstractmethod
    def factors(self, blocks: tuple[Float[Array, "..."], ...]) -> PyTree:
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
        self, states: Int[Array, "*batch variables"], product: Literal["sum", "max"] = "max"
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
    def energy(self, states: PyTree) -> Float[Array, "*batch"]:
        """The energy of configurations."""

    @abc.abstractmethod
    def expected_energy(self, statistics: Statistics) -> Float[Array, ""]:
        """The mean energy under expected statistics. Its gradient with the statistics held fixed is
        what learning needs.
        """

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """A graph is always a single one."""
        return ()

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the parameters."""
        return self.unary()[0].dtype

    @property
    def num_asked(self) -> int:
        """How many variables can be given or asked for."""
        return len(self.num_states)

    @property
    def finite(self) -> bool:
        """True: variables have finitely many states."""
        return True

    @property
    def query_defaults(self) -> tuple[float, float]:
        """Of a [`ebmlearn.QueryModel`][], where the scale of answers and the strength of evidence
        start.
        """
        return 1.0, 1000.0

    @property
    def is_seen(self) -> bool:
        """Data say of each variable whether they tell it."""
        return True

    def places(self, group: Hashable, name: str) -> Int[np.ndarray, "..."]:
        """Where the variables of a group stand among all; or an error that names the argument."""
        numbers: Any = np.arange(len(self.num_states))
        return np.asarray(self.configuration(numbers).take(group, f"`{name}`"))

    def observe(
        self, batch: Batch, name: str = "batch"
    ) -> tuple["AbstractGraphModel", Int[Array, "rows variables"], Bool[Array, "rows variables"]]:
        """Takes a batch of data apart, checked: the states of all variables, and which of them data
        tell.
        """
        rows = self.asked_rows(batch, name)
        return self, rows, rows >= 0

    def check(self, batch: Batch, name: str = "batch") -> None:
        """Raises unless a batch is made for this graph."""
        self.asked_rows(batch, name)

    def asked_rows(self, data: Batch, name: str) -> Int[Array, "rows variables"]:
        """Rows of data, checked."""
        rows = jnp.asarray(self.rows(data, name))
        _checks.rank(name, rows, 2, "[rows, variables], or groups of them with a leading axis")
        return rows

    def as_batch(self, batch: Batch) -> Int[Array, "rows variables"]:
        """One array, so that what is compiled holds on to no group of the graph."""
        return jnp.asarray(self.rows(batch, "batch"))

    def given_features(self: Graph, features: AnyArray | None) -> Graph:
        """The model itself: it has no features."""
        no_features(self, features)
        return self

    def bare(self: Graph) -> Graph:
        """The model itself: it has no features."""
        return self

    def problem(self, evidence: Evidence, observed: Observed) -> GraphProblem:
        """The graph with evidence, checked."""
        return GraphProblem(self, evidence, observed).checked()

    def told_in(self, rows: Int[Array, "rows variables"]) -> Bool[Array, "rows variables"]:
        """What of rows data tell."""
        return rows >= 0

    def row_problem(self, rows: Int[Array, "rows variables"], observed: PyTree) -> GraphProblem:
        """The graph with some of the states of rows held."""
        return GraphProblem(self, jnp.where(observed, rows, jnp.full_like(rows, -1)))

    def holding(self, seen: Int[Array, "rows variables"], observed: PyTree) -> GraphProblem:
        """The problem in which all that data tell is held."""
        return GraphProblem(self, seen)

    def if_complete(
        self,
        seen: PyTree,
        observed: Bool[Array, "rows variables"],
        formula: Callable[[], Result],
        infer: Callable[[], Result],
    ) -> Result:
        """What `formula` gives where data tell all variables, else what `infer` gives."""
        return jax.lax.cond(observed.all(), formula, infer)

    def complete(self, seen: Int[Array, "rows variables"], mode: bool = False) -> Statistics:
        """The statistics of configurations in which all variables are known."""
        size = seen.shape[0]
        numbers = sum(x.size for x in self.log_potentials) + len(self.owners)
        chunk = max(1, _AT_ONCE // numbers)
        units, factors = each_and_mean(self.features, seen, (size,), chunk)
        return Statistics(
            units=self.units((units,)),
            pairwise=self.factors(factors),
            squares=(),
            converged=jnp.ones(size, bool),
            iterations=jnp.zeros(size, jnp.int32),
            residual=jnp.zeros(size, self.dtype),
        )

    def complete_energies(self, seen: Int[Array, "rows variables"]) -> Float[Array, " rows"]:
        """The energies of configurations in which all variables are known."""
        return self.energy(seen)

    def sampled_statistics(self, units: Int[Array, "rows variables"], means: bool) -> Statistics:
        """The statistics of samples."""
        return self.complete(units)

    def held_states(self, seen: PyTree, observed: PyTree) -> tuple[PyTree, PyTree]:
        """States of all variables that data tell, and which these are."""
        return jnp.maximum(seen, 0), observed

    def centred_form(self: Graph) -> Graph:
        """Itself."""
        return self

    def plain_form(self: Graph) -> Graph:
        """Itself."""
        return self

    def perturbation(self, number: int, key: PRNGKeyArray) -> tuple[Float[Array, "rows states"]]:
        """Noise for every state of every variable, for perturbed maxima: Gumbel numbers less their
        mean over a variable, which has mean zero and moves no maximum.
        """
        (own,) = jax.random.split(key, 1)
        noise = _random.gumbels(own, (number, len(self.owners)), self.dtype)
        counts = np.asarray(self.num_states)
        mean = jax.vmap(lambda x: jax.ops.segment_sum(x, self.owners, len(counts)))(noise)
        mean = mean / jnp.broadcast_to(jnp.asarray(counts, self.dtype), mean.shape)
        return (noise - mean[:, self.owners],)

    def noise_centre(self, noise: tuple[Float[Array, " _"], ...]) -> Float[Array, ""]:
        """Nothing: the noise of the states of a variable is symmetric as it is."""
        return jnp.zeros((), noise[0].dtype)

    def chosen_noise(
        self, number: int, share: float | Float[Array, ""], key: PRNGKeyArray
    ) -> tuple[Bool[Array, "rows states"]]:
        """A share of the variables, drawn at random, in the places of `perturbation`."""
        (own,) = jax.random.split(key, 1)
        drawn = jax.random.bernoulli(own, share, (number, len(self.num_states)))
        return (drawn[:, self.owners],)

    def chains_of(self, units: PyTree, clamped: PyTree) -> tuple[PyTree, PyTree]:
        """The same from states that were checked before."""
        return units, clamped

    def from_view(self, states: Int[Array, "rows variables"]) -> Int[Array, "rows variables"]:
        """States that messages decode, as samplers hold them."""
        return states

    def chains(
        self, num_chains: int, key: PRNGKeyArray, start: PyTree, clamped: PyTree
    ) -> tuple[Int[Array, "samples variables"], Bool[Array, "samples variables"] | None]:
        """States of variables that are held, and which these are, or None."""
        size = len(self.num_states)
        for name, x in (("start", start), ("clamped", clamped)):
            if x is not None and not isinstance(x, Mapping):
                got = _checks.describe(x)
                raise TypeError(
                    f"`{name}` must be a dictionary of groups of variables for a graph, got {got}."
                )
        if clamped is None:
            return jnp.zeros((num_chains, size), jnp.int32), None
        if start is None or any(group not in start for group in clamped):
            raise ValueError("`start` must hold the states of all groups that are `clamped`.")
        evidence = {group: start[group] for group in clamped}
        held = GraphProblem(self, evidence, clamped).held
        if held is None:
            raise ValueError("`start` must hold states for PMP, integers, got likelihoods.")
        if held.shape not in ((size,), (num_chains, size)):
            raise ValueError(
                f"`start` must hold one configuration, or one for each of {num_chains} samples,"
                f" got leading axes of shape {held.shape[:-1]}."
            )
        held = jnp.broadcast_to(jnp.asarray(held), (num_chains, size))
        return jnp.maximum(held, 0), held >= 0

    @property
    def owners(self) -> Int[np.ndarray, " states"]:
        """Which variable each state belongs to."""
        counts = np.asarray(self.num_states)
        return np.repeat(np.arange(len(counts)), counts)

    def inside(self) -> tuple[PyTree, ...]:
        """None."""
        return ()

    def decayed(self: Graph) -> Graph:
        """Raises `ValueError`: the parameters are of many kinds."""
        return self._no_penalty("weight_decay")

    def uncentred(self: Graph, offsets: PyTree, batch: Batch) -> Graph:
        """Raises `ValueError`: the parameters are of many kinds."""
        return self._no_penalty("centred")

    def tempered(self, beta: float | Float[Array, ""]) -> NoReturn:
        """Raises `TypeError`."""
        return refuse(self, "be one of layers of units to be tempered")

    def _no_penalty(self, name: str) -> NoReturn:
        raise ValueError(
            f"`{name}` must not be set for a {type(self).__name__}, whose parameters are of many"
            " kinds; `optax.add_decayed_weights` takes a mask of them."
        )
