import abc
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .. import _checks
from .._sentinels import EXCLUDED, LEAST
from .._types import AnyArray, Batch, Evidence, Observed
from ..factors import AbstractFactor, Stacks
from ..units import _random, AbstractUnits, Binary
from ._alone import by_state
from ._base import only_trained, States
from ._chains import as_mask
from ._energy import EnergyModel
from ._graph_problem import GraphProblem, masked
from ._groups import (
    as_flat,
    as_rows,
    cut_states,
    cut_units,
    Groups,
    joined_states,
    likelihoods_of,
    place,
    rows_of,
    Sizes,
)
from ._problem import each_and_mean
from ._require import refuse
from ._statistics import Statistics
from ._turns import AbstractTurns, coloured, put, taken, unless_held


Result = TypeVar("Result")
Graph = TypeVar("Graph", bound="AbstractFactorModel")
_ARRAYS = (jax.Array, np.ndarray)
# How many numbers the statistics of the configurations are that are treated at once.
_AT_ONCE = 2**26


class AbstractFactorModel(AbstractTurns):
    """Groups of binary or categorical units, joined by factors. `counts` is the number of states of
    each variable, `colours` are classes of variables of which no two share a factor, and
    `group_names` are the names of groups.
    """

    hint: ClassVar[str] = "take `BP` or `Exact`, `Gibbs` or `PMP` to sample, `MLE` to train it"
    log_potentials: eqx.AbstractVar[tuple[Float[Array, "..."], ...]]
    counts: eqx.AbstractVar[tuple[int, ...]]
    colours: eqx.AbstractVar[Int[AnyArray, "colours width"]]

    @property
    @abc.abstractmethod
    def group_names(self) -> tuple[str, ...]:
        """A word for each group of variables."""

    def energy(self, states: PyTree) -> Float[Array, "*batch"]:
        """The energy of configurations, infinite where a factor or the evidence excludes one.

        **Arguments:**

        - `states`: from groups of variables to states `[*batch, *shape]`, of all groups; or the
          states of all variables, `[*batch, variables]`.
        """
        rows = jnp.asarray(self.rows(self.unnamed(states), "states"))
        if _checks.is_concrete(rows) and bool((rows < 0).any()):
            raise ValueError("`states` must hold a state of each variable, got some of them.")
        return _energy(self, rows)

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
        """The number of variables that queries are about."""
        return len(self.num_states)

    @property
    def query_defaults(self) -> tuple[float, float]:
        """The initial scale and strength of a [`ebmlearn.QueryModel`][] of this graph."""
        return 1.0, 1000.0

    def places(self, group: Hashable, name: str) -> Int[np.ndarray, "..."]:
        """The indices of the variables of a group; an error names the argument."""
        return np.asarray(self.configuration(self._numbers).take(group, f"`{name}`"))

    def observe(
        self, batch: Batch, name: str = "batch"
    ) -> tuple["AbstractFactorModel", Int[Array, "rows variables"], Bool[Array, "rows variables"]]:
        """Checks a batch of data. Returns the model, the states of all variables, and booleans for
        those in the data.
        """
        rows = self.asked_rows(batch, name)
        return self, rows, rows >= 0

    def asked_rows(self, data: Batch, name: str) -> Int[Array, "rows variables"]:
        """Rows of data, checked."""
        rows = jnp.asarray(self.rows(data, name))
        _checks.rank(name, rows, 2, "[rows, variables], or groups of them with a leading axis")
        return rows

    def as_batch(self, batch: Batch) -> Int[Array, "rows variables"]:
        """One array, so that compiled code keeps no group of the graph alive."""
        return jnp.asarray(self.rows(batch, "batch"))

    def problem(self, evidence: Evidence, observed: Observed) -> GraphProblem:
        """The graph with evidence, checked."""
        return GraphProblem(self, evidence, observed).checked()

    def told_in(self, rows: Int[Array, "rows variables"]) -> Bool[Array, "rows variables"]:
        """Which values of rows are not missing."""
        return rows >= 0

    def row_problem(self, rows: Int[Array, "rows variables"], observed: PyTree) -> GraphProblem:
        """The graph with some of the states of rows held."""
        return GraphProblem(self, jnp.where(observed, rows, jnp.full_like(rows, -1)))

    def surprise_alone(
        self, train: Int[Array, "_ variables"], rows: Int[Array, "rows variables"]
    ) -> Float[Array, "rows variables"]:
        """By the frequencies of states."""
        return by_state(train, rows, self.num_states).astype(self.dtype)

    def holding(self, seen: Int[Array, "rows variables"], observed: PyTree) -> GraphProblem:
        """The problem in which all variables in the data are fixed."""
        return GraphProblem(self, seen).with_outputs(seen >= 0)

    def if_complete(
        self,
        seen: PyTree,
        observed: Bool[Array, "rows variables"],
        formula: Callable[[], Result],
        infer: Callable[[], Result],
    ) -> Result:
        """The result of `formula` if all variables are in the data, else that of `infer`."""
        return jax.lax.cond(observed.all(), formula, infer)

    def complete(self, seen: Int[Array, "rows variables"], mode: bool = False) -> Statistics:
        """The statistics of configurations in which all variables are known."""
        size = seen.shape[0]
        numbers = sum(x.size for x in self.log_potentials) + len(self.owners)
        chunk = max(1, _AT_ONCE // numbers)
        units, factors = each_and_mean(self.features, seen, (size,), chunk)
        return Statistics(
            units=self.units((units,)),
            pairwise=self.by_factor(factors),
            squares=(None,) * len(self.layers),
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
        """States for samplers to start from, and booleans for those that the data fix."""
        return jnp.maximum(seen, 0), observed

    def chains_of(self, units: PyTree, clamped: PyTree) -> tuple[PyTree, PyTree]:
        """The same for states that have been checked."""
        return units, clamped

    def from_view(self, states: tuple[Int[Array, "rows _"], ...]) -> Int[Array, "rows variables"]:
        """Converts states that messages decode to states of samplers."""
        return jnp.concatenate(states, -1)

    def by_group(
        self, unary: Sequence[Float[Array, "rows states"]], nothing: float = LEAST
    ) -> tuple[Float[Array, "rows ..."], ...]:
        """Unary terms of rows by group: log-odds of binary units, scores of the states of others;
        `nothing` where one has no more.
        """
        (flat,) = unary
        rows = self.padded(flat)
        there = jnp.broadcast_to(self.padded(jnp.ones_like(flat[:1])) > 0, rows.shape)
        rows = jnp.where(there, rows, jnp.asarray(nothing, rows.dtype))
        kinds: Any = self.layers
        sizes = tuple(((u.size,), u.number) for u in kinds)
        pairs = zip(self.layers, cut_units(rows, sizes), strict=True)
        return tuple(x[..., 1] - x[..., 0] if isinstance(u, Binary) else x for u, x in pairs)

    def chains(
        self, num_chains: int, key: PRNGKeyArray, start: PyTree, clamped: PyTree
    ) -> tuple[Int[Array, "chains variables"], Bool[Array, "chains variables"] | None]:
        """States of all variables, drawn where `start` does not tell them, and which of them are
        held, or None.
        """
        size, start = len(self.num_states), self.unnamed(start)
        for name, x in (("start", start), ("clamped", clamped)):
            if x is not None and not isinstance(x, (Mapping, *_ARRAYS)):
                got = _checks.describe(x)
                raise TypeError(
                    f"`{name}` must be a dictionary of groups of variables for a graph, got {got}."
                )
        given = self._started(num_chains, start)
        drawn = jax.random.uniform(key, (num_chains, size))
        counts = jnp.broadcast_to(jnp.asarray(self.num_states, drawn.dtype), drawn.shape)
        rows = jnp.where(given >= 0, given, (drawn * counts).astype(jnp.int32))
        rows = self.completed(rows, given >= 0)
        if clamped is None:
            return rows, None
        by_group = isinstance(clamped, Mapping)
        if isinstance(start, _ARRAYS) and by_group:
            named = self.configuration(jnp.asarray(start))
            start = {group: named.take(group, "`clamped`") for group in clamped}
        if start is None or (by_group and any(group not in start for group in clamped)):
            raise ValueError("`start` must hold the states of all groups that are `clamped`.")
        if not by_group:
            return rows, as_mask("clamped", clamped, (num_chains, size)) & (given >= 0)
        evidence = {group: start[group] for group in clamped}
        held = self._fitted(masked(evidence, clamped, "start", "clamped"), num_chains)
        return jnp.where(held >= 0, held, rows), held >= 0

    def told(
        self, num_chains: int, start: PyTree, clamped: PyTree
    ) -> Bool[Array, "chains variables"]:
        """Which variables keep their start while others are drawn from what is possible. Raises
        `ValueError` if a variable is held that others determine.
        """
        found = self.determined
        known = clamped is not None and _checks.is_concrete((found, clamped))
        if known and np.asarray(clamped)[:, np.asarray(found)].any():
            raise ValueError(
                "`clamped` must not hold variables that OR, AND or pool factors determine, got"
                " some: hold the variables that determine them, or take `PMP`."
            )
        return self._started(num_chains, start) >= 0

    def _started(self, num_chains: int, start: PyTree) -> Int[Array, "chains variables"]:
        """The states that `start` tells, -1 where it does not."""
        start = self.unnamed(start)
        if start is None:
            return jnp.full((num_chains, len(self.num_states)), -1, jnp.int32)
        return self._fitted(start, num_chains)

    def _fitted(self, start: Any, num_chains: int) -> Int[Array, "chains variables"]:
        """States for each chain."""
        held, size = self.rows(start, "start"), len(self.num_states)
        if held.shape not in ((size,), (num_chains, size)):
            raise ValueError(
                f"`start` must hold one configuration, or one for each of {num_chains} samples,"
                f" got leading axes of shape {held.shape[:-1]}."
            )
        return jnp.broadcast_to(jnp.asarray(held), (num_chains, size)).astype(jnp.int32)

    def unnamed(self, configuration: Any) -> Any:
        """Rows of states, from samples by group; what is not by group as it is."""
        if isinstance(configuration, type(self.configuration(self._numbers))):
            return joined_states(configuration.values, self.sizes)
        return configuration

    @property
    def _numbers(self) -> Int[np.ndarray, " variables"]:
        return np.arange(len(self.num_states))

    def encode(self, units: Int[Array, "*rows variables"]) -> list[Float[Array, "*rows _"]]:
        """States of all variables, one-hot, by group."""
        parts = cut_states(units, self.sizes)
        return [
            layer.encode(x.reshape(*units.shape[:-1], layer.size), self.dtype)
            for layer, x in zip(self.layers, parts, strict=True)
        ]

    def decode(self, layers: Sequence[Float[Array, "*rows _"]]) -> Int[Array, "*rows variables"]:
        """The reverse of `encode`."""
        return jnp.concatenate([u.decode(x) for u, x in zip(self.layers, layers, strict=True)], -1)

    def to_rows(self, layers: Sequence[Float[Array, "rows _"]]) -> Int[Array, "rows variables"]:
        return self.decode(layers)

    def from_rows(self, rows: Int[Array, "rows variables"]) -> list[Float[Array, "rows _"]]:
        return self.encode(rows)

    def masks(
        self, clamped: Bool[Array, "rows variables"] | None
    ) -> Sequence[Bool[Array, "rows _"]] | None:
        """Which variables of each group are held."""
        if clamped is None:
            return None
        parts = cut_states(clamped, self.sizes)
        return [jnp.asarray(x).reshape(x.shape[0], -1) for x in parts]

    def energies(self, layers: States) -> Float[Array, " rows"]:
        return self.energy(self.decode(layers))

    def fields(self, layers: States) -> list[Float[Array, "rows _"]]:
        """The scores of all states given all other variables, by group."""
        parts = cut_units(self.given(self.decode(layers)), self.sizes)
        kinds: Any = self.layers
        return [
            u.field_of(x.reshape(x.shape[0], u.size, u.number))
            for u, x in zip(kinds, parts, strict=True)
        ]

    def between(self: Graph, base: tuple[Float[Array, " _"], ...], beta: Float[Array, ""]) -> Graph:
        """The model of $p(x)^\\beta$: `base` is zero, so that all that is possible is as likely."""
        return self.tempered(beta)

    def independent(self: Graph, seen: PyTree, observed: PyTree) -> Graph:
        """The graph at an infinite temperature: all that is possible is as likely."""
        return self.tempered(0.0)

    def near(self, units: Any, key: PRNGKeyArray) -> list[Float[Array, "rows _"]]:
        """States of variables drawn from their probabilities, each by itself: those that data tell
        have one state.
        """
        keys = jax.random.split(key, len(self.sizes))
        rows, sure = [], []
        for p, own in zip(units.values, keys, strict=True):
            flat = p.reshape(p.shape[0], -1, p.shape[-1])
            noise = _random.choices(own, flat.shape, flat.dtype)
            rows.append(_random.choose(jnp.log(flat), noise).astype(jnp.int32))
            sure.append(flat.max(-1) == 1)
        return self.encode(self.completed(jnp.concatenate(rows, -1), jnp.concatenate(sure, -1)))

    def as_energy(self) -> EnergyModel:
        """The same distribution as an [`ebmlearn.EnergyModel`][], whose units are the groups of
        variables by name: `x`, or `x_0`, `x_1` and so on, of an [`ebmlearn.GridMRF`][] `state` and
        the names of its channels. NumPyro's kernels and distributions take it. Samplers are faster
        on the graph itself.
        """
        reason = self.no_moves()
        if reason is not None:
            refuse(self, "let each variable change alone to be an energy", reason)
        names: Any = self.group_names
        alone = names == ("x",)
        units = self.layers[0] if alone else dict(zip(names, self.layers, strict=True))
        return EnergyModel(_Energy(self), units)

    def has_gaps(self, observed: PyTree) -> bool:
        """False: variables that data do not tell are hidden."""
        return False

    @property
    def owners(self) -> Int[np.ndarray, " states"]:
        """Which variable each state belongs to."""
        counts = np.asarray(self.num_states)
        return np.repeat(np.arange(len(counts)), counts)

    @property
    def num_states(self) -> Int[np.ndarray, " variables"]:
        """The number of states of each variable."""
        return np.asarray(self.counts, np.int64)

    @property
    def num_variables(self) -> int:
        """The number of variables."""
        return len(self.counts)

    @property
    def kind(self) -> str:
        """Tables."""
        return "tables"

    @property
    def sizes(self) -> Sizes:
        """The shape of each group of variables, and the number of their states."""
        kinds: Any = self.layers
        return tuple(((u.size,), u.number) for u in kinds)

    def places_of_groups(self) -> tuple[dict[str, AbstractUnits], dict[str, int]]:
        """The units of each group, and the number of the first of them among all."""
        starts = np.cumsum([0, *(u.size for u in self.layers)])[:-1].tolist()
        names = self.group_names
        return dict(zip(names, self.layers, strict=True)), dict(zip(names, starts, strict=True))

    def rows(self, data: Batch, name: str = "data") -> Int[AnyArray, "*batch variables"]:
        """Observed states as one array.

        **Arguments:**

        - `data`: from the names of groups to states `[*batch, size]`, integers or booleans, -1
          where not known; or an array as returned here.

        **Returns:**

        An array `[*batch, variables]`, -1 where a variable is not observed.
        """
        return rows_of(data, name, self.sizes, self.num_states, self._index)

    def likelihood(self, data: Batch) -> tuple[Batch, Float[Array, "*batch states"] | None]:
        """Takes what is no state but a likelihood of each from evidence: the rest of it, and the
        logarithms of the likelihoods.
        """
        data, parts = likelihoods_of(data, self.sizes, self.num_states, self._index)
        if parts is None:
            return data, None
        most = max(self.counts)
        wide = [jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, most - x.shape[-1])]) for x in parts]
        return data, self.flattened(jnp.concatenate(wide, -2))

    def units(self, layers: Sequence[Float[Array, "*batch variables most"]]) -> Groups:
        """One value for each state of each variable, by group."""
        return Groups(cut_units(layers[0], self.sizes), self.group_names)

    def configuration(self, states: Int[AnyArray, "*batch variables"]) -> Groups:
        """One state for each variable, by group."""
        return Groups(cut_states(states, self.sizes), self.group_names)

    def padded(self, flat: Float[Array, "*batch states"]) -> Float[Array, "*batch variables most"]:
        """Values of all states, a row for each variable, zero where it has no more."""
        return as_rows(flat, self.counts)

    def flattened(
        self, padded: Float[Array, "*batch variables most"]
    ) -> Float[Array, "*batch states"]:
        """The reverse of `padded`: the states of all variables, one after the other."""
        return as_flat(padded, self.counts)

    def log_potential(
        self, states: Int[Array, "*batch variables"], product: Literal["sum", "max"] = "max"
    ) -> Float[Array, "*batch"]:
        """The sum of the log-potentials that configurations meet, without evidence: minus infinity
        where one breaks a factor. To be summed over, rather than maximised, it has the weights of
        quantised variables too.
        """
        own = self._by_group(states)
        out = jnp.zeros(states.shape[:-1], self.dtype)
        for factor in self.factors(product):
            out = out - factor.energy(own)
        return out

    def features(
        self, states: Int[Array, " variables"]
    ) -> tuple[Float[Array, "variables most"], tuple[Float[Array, "..."], ...]]:
        """The statistics of one configuration: 1 for each state, and for each log-potential, that
        it meets.
        """
        units = jax.nn.one_hot(states, max(self.counts), dtype=self.dtype)
        return units, self._statistics(self._by_group(states))

    def expected_energy(self, statistics: Statistics) -> Float[Array, ""]:
        """The mean energy under expected statistics."""
        out = jnp.zeros((), self.dtype)
        model = only_trained(self)
        (unary,) = model.unary()
        means = cut_units(self.padded(unary), self.sizes)
        for own, x in zip(means, statistics.units.values, strict=True):
            out = out - (own * x.reshape(-1, *own.shape).mean(0)).sum()
        found = iter(statistics.pairwise.values)
        for factor in model.factors():
            own = tuple(next(found) for _ in factor.parameters)
            out = out + factor.mean_energy(own) if own else out
        return out

    def pulled(self, rows: Int[Array, "rows variables"]) -> Float[Array, "rows variables most"]:
        """What all factors say of every state of every variable given all others."""
        own, most = self._by_group(rows), max(self.counts)
        out = []
        for name, units in zip(self.group_names, self.layers, strict=True):
            field = jnp.zeros((rows.shape[0], units.width), self.dtype)
            for factor in self.factors():
                if name in factor.groups:
                    field = field + jnp.broadcast_to(factor.given(own, name), field.shape)
            found = units.scores(field)  # pyright: ignore
            out.append(jnp.pad(found, ((0, 0), (0, 0), (0, most - found.shape[-1]))))
        return jnp.concatenate(out, 1)

    def given(self, rows: Int[Array, "rows variables"]) -> Float[Array, "rows variables most"]:
        """The score of every state of every variable given all others; what a factor excludes has
        about -1e6, what a variable does not have less.
        """
        found = self.pulled(rows)
        found = found + jnp.broadcast_to(self.padded(self.unary()[0]), found.shape)
        there = jnp.broadcast_to(self.there, found.shape)
        return jnp.where(there, found, jnp.asarray(LEAST, found.dtype))

    def as_tables(self) -> Stacks | None:
        """All factors as stacks of tables of one shape: the variables of each, and its
        log-potentials. None for a graph whose factors are not all tables.
        """
        units, starts = self.places_of_groups()
        out = [factor.stacks(units, starts) for factor in self.factors()]
        found: Any = [x for x in out if x is not None]
        return sum(found, ()) if len(found) == len(out) else None

    def classes(self) -> Int[AnyArray, "colours width"]:
        """Variables in classes of which no two share a factor. Short rows are filled up with the
        number of variables.
        """
        return self.colours

    def expected_potential(self, q: Float[Array, "variables most"]) -> Float[Array, ""]:
        """The mean log-potential, without evidence, of independent variables with these
        probabilities of states. It is linear in the probabilities of each variable.
        """
        parts, own = cut_units(q, self.sizes), {}
        for name, units, p in zip(self.group_names, self.layers, parts, strict=True):
            inside, p = units.states_inside(q.dtype), p.reshape(units.size, -1)  # pyright: ignore
            own[name] = jnp.einsum("uk,ks->us", p, inside, precision="highest").reshape(-1)
        out = jnp.zeros((), q.dtype)
        for factor in self.factors():
            out = out - factor.energy(own)
        return out

    @property
    def site_states(self) -> Int[np.ndarray, " variables"]:
        """Those of each variable."""
        return self.num_states

    def turns(self) -> Int[AnyArray, "colours width"]:
        """Variables of which no two share a factor."""
        return self.colours

    def scores(
        self,
        rows: Int[Array, "rows variables"],
        members: Int[Array, " width"],
        held: Bool[Array, "rows variables"] | None,
    ) -> Float[Array, "rows width most"]:
        """The log-potential at each state of some variables, all others as they are."""
        found = self.given(rows).at[:, members].get(mode="clip")
        found = jnp.where(found < EXCLUDED / 2, -jnp.inf, found)
        return unless_held(
            found, taken(rows, members), None if held is None else taken(held, members)
        )

    def chosen(
        self, rows: Int[Array, "rows variables"], members: Int[Array, " width"]
    ) -> Int[Array, "rows width"]:
        """The states of some variables."""
        return taken(rows, members)

    def placed(
        self,
        rows: Int[Array, "rows variables"],
        members: Int[Array, " width"],
        states: Int[Array, "rows width"],
    ) -> Int[Array, "rows variables"]:
        """Configurations with other states of some variables."""
        return put(rows, members, states)

    def completed(
        self, rows: Int[Array, "rows variables"], fixed: Bool[Array, "rows variables"]
    ) -> Int[Array, "rows variables"]:
        """The same: no table may exclude what is drawn."""
        return rows

    @property
    def determined(self) -> Int[AnyArray, " _"]:
        """None."""
        return np.zeros(0, np.int32)

    def base_log_partition(self, base: tuple[Float[Array, " _"], ...]) -> Float[Array, ""]:
        """The logarithm of the number of configurations."""
        return jnp.log(jnp.asarray(self.counts, self.dtype)).sum()

    def no_chains(self) -> str | None:
        """Why chains that change a variable at a time would not reach all configurations."""
        if any(excludes(x) for x in self.log_potentials):
            return (
                "its tables exclude configurations, so that variables may not come past each"
                " other; take `Exact`, `BP` or `PMP`"
            )
        return None

    @property
    def there(self) -> Bool[np.ndarray, "variables most"]:
        """Which states variables have, of as many as the one that has most."""
        return np.arange(max(self.counts))[None] < np.asarray(self.counts)[:, None]

    def _by_group(self, rows: Int[Array, "*batch variables"]) -> dict[str, Any]:
        parts = [x.reshape(*rows.shape[:-1], -1) for x in cut_states(rows, self.sizes)]
        return dict(zip(self.group_names, parts, strict=True))

    def _statistics(self, states: Any) -> tuple[Float[Array, "..."], ...]:
        """What configurations meet of each log-potential."""

        def potential(factors: tuple[AbstractFactor, ...]) -> Float[Array, ""]:
            return -jnp.stack(
                [jnp.zeros((), self.dtype), *(f.energy(states) for f in factors)]
            ).sum()

        factors = self.factors()
        found = eqx.filter_grad(potential)(factors)
        return sum((f.statistic(g) for f, g in zip(factors, found, strict=True)), ())

    def _index(self, group: Any, what: str) -> int:
        return place(self.group_names, group, what)


class _Energy(eqx.Module):
    """The energy of a graph as a function of one-hot states, linear in those of each variable."""

    graph: AbstractFactorModel

    def __call__(self, states: Any) -> Float[Array, ""]:
        graph = self.graph
        q = _probabilities(graph, list(states.values()) if isinstance(states, dict) else [states])
        (unary,) = graph.unary()
        # What a variable does not have is excluded.
        there = graph.padded(jnp.ones_like(unary))
        scores = graph.padded(unary) + (1 - there) * jnp.asarray(EXCLUDED, unary.dtype)
        return -graph.expected_potential(q) - (scores * q).sum()


def _probabilities(
    graph: AbstractFactorModel, parts: Sequence[Float[Array, "..."]]
) -> Float[Array, "variables most"]:
    """Of all states, from the internal states of all groups or their means."""
    rows, most = [], int(graph.num_states.max())
    for units, x in zip(graph.layers, parts, strict=True):
        # Binary units are one number each.
        by_unit = x.reshape(units.size, -1)
        own = jnp.concatenate([1 - by_unit, by_unit], 1) if isinstance(units, Binary) else by_unit
        rows.append(jnp.pad(own, ((0, 0), (0, most - own.shape[-1]))))
    return jnp.concatenate(rows)


def excludes(x: Float[AnyArray, "..."]) -> bool:
    """Whether log-potentials that are known exclude something."""
    return _checks.is_concrete(x) and bool((np.asarray(x) < EXCLUDED / 2).any())


@eqx.filter_jit
def _energy(
    model: AbstractFactorModel, rows: Int[Array, "*batch variables"]
) -> Float[Array, "*batch"]:
    (unary,) = model.unary()
    starts = np.concatenate([[0], np.cumsum(model.num_states)[:-1]]).astype(np.int32)
    met = unary[rows + jnp.broadcast_to(starts, rows.shape)]
    own = jnp.where(met < EXCLUDED / 2, -jnp.inf, met).sum(-1)
    return -model.log_potential(rows) - own


def colours_of(stacks: Stacks, variables: int) -> Int[np.ndarray, "colours width"]:
    """Variables in classes of which no two share a factor."""
    joined: list[list[tuple[int, int]]] = [[] for _ in range(variables)]
    side = 0
    for members, _ in stacks:
        for own in np.asarray(members).tolist():
            for v in own:
                joined[v].append((side, side))
            side += 1
    return coloured(joined)
