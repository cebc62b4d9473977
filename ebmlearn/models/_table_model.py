import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .. import _checks
from .._sentinels import EXCLUDED, LEAST
from .._types import AnyArray, Batch
from ..units import Categorical
from ._block import Block
from ._graph import AbstractGraphModel, excludes, potentials, scaled_potentials
from ._groups import (
    cut_states,
    cut_units,
    Groups,
    likelihoods_of,
    place,
    rows_of,
    Sizes,
)
from ._problem import whole
from ._statistics import Statistics
from ._tables import features, given, log_potential
from ._turns import coloured, put, taken, unless_held


class TableModel(AbstractGraphModel):
    """A Markov network: variables of finitely many states, and tables of log-potentials of any few
    of them,

    $E(x) = -\\sum_k T_k(x_{s_k})$.

    All its variables are one group, `"x"`. Inferences, samplers and learners work on it as on other
    graphs; [`ebmlearn.Exact`][] eliminates variables where tables stay small. The tables of one
    shape are kept as one array, so that thousands of them compile as one.

    !!! example

        ```python
        # A chain of three variables with 2, 3 and 2 states.
        model = ebmlearn.TableModel([2, 3, 2], [(0, 1), (1, 2)], [jnp.eye(2, 3), jnp.eye(3, 2)])
        beliefs = ebmlearn.Exact()(model, {"x": jnp.array([1, -1, -1])})  # the first is observed
        beliefs["x"]  # [3, 3], zero where a variable has no more states
        beliefs.pairwise[1]  # [3, 2], of the second table
        ```
    """

    log_potentials: tuple[Float[Array, "..."], ...]
    members: tuple[Int[AnyArray, "_ _"], ...]
    colours: Int[AnyArray, "colours width"]
    counts: tuple[int, ...] = eqx.field(static=True)
    places_of_tables: tuple[tuple[int, int], ...] = eqx.field(static=True)

    def __init__(
        self,
        states: Sequence[int] | Int[np.ndarray, " variables"],
        scopes: Sequence[Sequence[int]],
        log_tables: Sequence[Float[AnyArray, "..."]] | Float[AnyArray, "tables ..."],
    ):
        """**Arguments:**

        - `states`: the number of states of each variable.
        - `scopes`: for each table the variables that it joins, from 0 on.
        - `log_tables`: for each table its log-potentials, with one axis for each variable of its
          scope, in that order, at most 1e6. Minus infinity excludes a configuration, and so does
          anything below -5e5.
        """
        self.counts = _counts(states)
        scopes, tables = _scoped(scopes, log_tables, self.counts)
        self.log_potentials, self.members, self.places_of_tables = _stacked(scopes, tables)
        joined: list[list[tuple[int, int]]] = [[] for _ in self.counts]
        for k, scope in enumerate(scopes):
            for v in scope:
                joined[v].append((k, k))
        self.colours = coloured(joined)

    @property
    def scopes(self) -> tuple[tuple[int, ...], ...]:
        """The variables of each table."""
        members = [np.asarray(x) for x in self.members]
        return tuple(tuple(members[k][row].tolist()) for k, row in self.places_of_tables)

    @property
    def log_tables(self) -> tuple[Float[AnyArray, "..."], ...]:
        """The log-potentials of each table, in the order of `scopes`."""
        return self.factors(self.log_potentials).by_table()

    def with_log_tables(self, log_tables: Sequence[Float[AnyArray, "..."]]) -> "TableModel":
        """The model with other log-potentials.

        **Arguments:**

        - `log_tables`: one array for each table, as for the class itself.
        """
        _, tables = _scoped(self.scopes, log_tables, self.counts)
        values: list[list[Any]] = [[None] * len(x) for x in self.log_potentials]
        for (k, row), table in zip(self.places_of_tables, tables, strict=True):
            values[k][row] = table
        return eqx.tree_at(lambda m: m.log_potentials, self, tuple(map(_stack, values)))

    @property
    def num_variables(self) -> int:
        """The number of variables."""
        return len(self.counts)

    @property
    def kind(self) -> str:
        """Tables."""
        return "tables"

    @property
    def layers(self) -> tuple[Categorical, ...]:
        """The variables, all with as many states as the one that has most."""
        return (Categorical(len(self.counts), max(self.counts)),)

    @property
    def sizes(self) -> Sizes:
        return (((len(self.counts),), max(self.counts)),)

    @property
    def group_names(self) -> tuple[str, ...]:
        """All variables are one group, `x`."""
        return ("x",)

    @property
    def num_states(self) -> Int[np.ndarray, " variables"]:
        return np.asarray(self.counts, np.int64)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the tables."""
        return self.log_potentials[0].dtype if self.log_potentials else np.dtype(np.float32)

    def project(self) -> "TableModel":
        """The model itself: its tables may be any numbers."""
        return self

    def trained(self) -> "TableModel":
        """True in the place of each array."""
        return jax.tree.map(lambda _: True, self)

    def tempered(self, beta: float | Float[Array, ""]) -> "TableModel":
        """The model of $p(x)^\\beta$."""
        scaled = tuple(scaled_potentials(x, beta) for x in self.log_potentials)
        return eqx.tree_at(lambda m: m.log_potentials, self, scaled)

    def unary(self) -> tuple[Float[Array, " states"]]:
        """Zero: what a variable has of its own is a table of one axis."""
        return (jnp.zeros(sum(self.counts), self.dtype),)

    def blocks(self) -> tuple[Block, ...]:
        return ()

    def rows(self, data: Batch, name: str = "data") -> Int[AnyArray, "*batch variables"]:
        """Observed states as one array.

        **Arguments:**

        - `data`: `{"x": states}` with states `[*batch, variables]`, integers or booleans, -1 where
          not known; or such an array alone.

        **Returns:**

        An array `[*batch, variables]`, -1 where a variable is not observed.
        """
        return rows_of(data, name, self.sizes, self.num_states, self._index)

    def likelihood(self, data: Batch) -> tuple[Batch, Float[Array, "*batch states"] | None]:
        data, parts = likelihoods_of(data, self.sizes, self.num_states, self._index)
        return data, None if parts is None else self.flattened(parts[0])

    def units(self, layers: Sequence[Float[Array, "*batch variables most"]]) -> Groups:
        return Groups(cut_units(layers[0], self.sizes), self.group_names)

    def configuration(self, states: Int[AnyArray, "*batch variables"]) -> Groups:
        return Groups(cut_states(states, self.sizes), self.group_names)

    def factors(self, blocks: tuple[Float[Array, "..."], ...]) -> "ByTable":
        return ByTable(
            tuple(blocks),
            tuple(x.ndim for x in self.log_potentials),
            self.places_of_tables,
        )

    def padded(self, flat: Float[Array, "*batch states"]) -> Float[Array, "*batch variables most"]:
        variable, local = _by_state(self.counts)
        shape = *flat.shape[:-1], len(self.counts), max(self.counts)
        return jnp.zeros(shape, flat.dtype).at[..., variable, local].set(flat)

    def flattened(
        self, padded: Float[Array, "*batch variables most"]
    ) -> Float[Array, "*batch states"]:
        variable, local = _by_state(self.counts)
        return padded[..., variable, local]

    def log_potential(
        self, states: Int[Array, "*batch variables"], product: Literal["sum", "max"] = "max"
    ) -> Float[Array, "*batch"]:
        met = functools.partial(log_potential, self.log_potentials, self.members)
        flat = jax.vmap(met)(states.reshape(-1, states.shape[-1]))
        return flat.reshape(states.shape[:-1])

    def features(
        self, states: Int[Array, " variables"]
    ) -> tuple[Float[Array, "variables most"], tuple[Float[Array, "..."], ...]]:
        units = jax.nn.one_hot(states, max(self.counts), dtype=self.dtype)
        return units, features(self.log_potentials, self.members, states)

    def expected_energy(self, statistics: Statistics) -> Float[Array, ""]:
        out = jnp.zeros((), self.dtype)
        for table, x in zip(self.log_potentials, statistics.pairwise.values, strict=True):
            out = out - (table * x).sum()
        return out

    def given(self, rows: Int[Array, "rows variables"]) -> Float[Array, "rows variables most"]:
        found = functools.partial(given, self.log_potentials, self.members)
        out = jax.vmap(lambda row: found(row, jnp.zeros(self._wide, self.dtype)))(rows)
        there = jnp.broadcast_to(self.there, out.shape)
        return jnp.where(there, out, jnp.asarray(LEAST, out.dtype))

    def as_tables(
        self,
    ) -> tuple[tuple[Int[AnyArray, "_ _"], Float[Array, "..."]], ...]:
        return tuple(zip(self.members, self.log_potentials, strict=True))

    def classes(self) -> Int[AnyArray, "colours width"]:
        return self.colours

    def expected_potential(self, q: Float[Array, "variables most"]) -> Float[Array, ""]:
        out = jnp.zeros((), q.dtype)
        for table, members in zip(self.log_potentials, self.members, strict=True):
            for axis in reversed(range(table.ndim - 1)):
                p = q[members[:, axis], : table.shape[-1]]
                p = p.reshape(p.shape[0], *(1,) * (table.ndim - 2), p.shape[1])
                table = (table * jnp.broadcast_to(p, table.shape)).sum(-1)
            out = out + table.sum()
        return out

    @property
    def site_states(self) -> Int[np.ndarray, " variables"]:
        return self.num_states

    def turns(self) -> Int[AnyArray, "colours width"]:
        return self.colours

    def scores(
        self,
        rows: Int[Array, "rows variables"],
        members: Int[Array, " width"],
        held: Bool[Array, "rows variables"] | None,
    ) -> Float[Array, "rows width most"]:
        found = self.given(rows).at[:, members].get(mode="clip")
        found = jnp.where(found < EXCLUDED / 2, -jnp.inf, found)
        return unless_held(
            found, taken(rows, members), None if held is None else taken(held, members)
        )

    def chosen(
        self, rows: Int[Array, "rows variables"], members: Int[Array, " width"]
    ) -> Int[Array, "rows width"]:
        return taken(rows, members)

    def placed(
        self,
        rows: Int[Array, "rows variables"],
        members: Int[Array, " width"],
        states: Int[Array, "rows width"],
    ) -> Int[Array, "rows variables"]:
        return put(rows, members, states)

    def completed(
        self, rows: Int[Array, "rows variables"], fixed: Bool[Array, "rows variables"]
    ) -> Int[Array, "rows variables"]:
        """The same: no table may exclude what is drawn."""
        return rows

    @property
    def determined(self) -> Int[np.ndarray, " 0"]:
        """None."""
        return np.zeros(0, np.int32)

    def base_log_partition(self, base: tuple[Float[Array, " _"], ...]) -> Float[Array, ""]:
        return jnp.log(jnp.asarray(self.counts, self.dtype)).sum()

    def no_chains(self) -> str | None:
        if any(excludes(x) for x in self.log_potentials):
            return (
                "its tables exclude configurations, so that variables may not come past each"
                " other; take `Exact`, `BP` or `PMP`"
            )
        return None

    def no_moves(self) -> str | None:
        return self.no_chains()

    @property
    def there(self) -> Bool[np.ndarray, "variables most"]:
        """Which states variables have, of as many as the one that has most."""
        return np.arange(max(self.counts))[None] < np.asarray(self.counts)[:, None]

    @property
    def _wide(self) -> tuple[int, int]:
        return len(self.counts), max(self.counts)

    def _index(self, group: Any, what: str) -> int:
        return place(self.group_names, group, what)


class ByTable(eqx.Module):
    """An array for each table of a [`ebmlearn.TableModel`][], which `tables[k]` gives."""

    values: tuple[Float[AnyArray, "..."], ...]
    ranks: tuple[int, ...] = eqx.field(static=True)
    places: tuple[tuple[int, int], ...] = eqx.field(static=True)

    def __getitem__(self, table: int) -> Float[AnyArray, "..."]:
        number = whole(table)
        if number is None or not -len(self.places) <= number < len(self.places):
            raise IndexError(f"the index must be from 0 to {len(self.places) - 1}, got {table!r}.")
        k, row = self.places[number]
        axis = self.values[k].ndim - self.ranks[k]
        return self.values[k][(slice(None),) * axis + (row, ...)]

    def by_table(self) -> tuple[Float[AnyArray, "..."], ...]:
        """The arrays of all tables."""
        values = tuple(np.asarray(x) if _checks.is_concrete(x) else x for x in self.values)
        parts = ByTable(values, self.ranks, self.places)
        return tuple(parts[k] for k in range(len(self.places)))


@functools.lru_cache(maxsize=64)
def _by_state(counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Of each state of each variable, the variable and its number there."""
    variable = np.repeat(np.arange(len(counts)), counts)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return variable, np.arange(len(variable)) - first[variable]


def _counts(states: Any) -> tuple[int, ...]:
    if isinstance(states, int) or not isinstance(states, Iterable):
        got = _checks.describe(states)
        raise TypeError(f"`states` must hold the number of states of each variable, got {got}.")
    found = []
    for k, n in enumerate(states):
        number = whole(n)
        if number is None or number < 1:
            raise ValueError(f"`states[{k}]` must be a whole number from 1 on, got {n!r}.")
        found.append(number)
    if not found:
        raise ValueError("`states` must hold the number of states of each variable, got none.")
    return tuple(found)


def _scoped(
    scopes: Any, log_tables: Any, counts: tuple[int, ...]
) -> tuple[list[tuple[int, ...]], list[Any]]:
    """Scopes and tables, checked."""
    scopes, tables = list(scopes), list(log_tables)
    if len(scopes) != len(tables):
        raise ValueError(
            f"`log_tables` must hold one table for each of {len(scopes)} scopes, got {len(tables)}."
        )
    found = []
    for k, scope in enumerate(scopes):
        if not isinstance(scope, Iterable):
            got = _checks.describe(scope)
            raise TypeError(f"`scopes[{k}]` must hold the variables of a table, got {got}.")
        numbers = tuple(whole(v) for v in scope)
        if any(v is None or not 0 <= v < len(counts) for v in numbers):
            raise ValueError(
                f"`scopes[{k}]` must hold variables from 0 to {len(counts) - 1}, got"
                f" {tuple(scope)!r}."
            )
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"`scopes[{k}]` must hold each variable once, got {tuple(scope)!r}.")
        shape = tuple(counts[v] for v in numbers)  # pyright: ignore
        if np.shape(tables[k]) != shape:
            raise ValueError(
                f"`log_tables[{k}]` must have shape {shape}, the states of variables"
                f" {tuple(scope)!r}, got {_checks.describe(tables[k])}."
            )
        found.append(numbers)
        if not hasattr(tables[k], "dtype"):
            tables[k] = np.asarray(tables[k])
    kinds = sorted({str(jax.dtypes.canonicalize_dtype(x.dtype)) for x in tables})
    if len(kinds) > 1:
        raise TypeError(f"`log_tables` must have one dtype, got {' and '.join(kinds)}.")
    return found, tables


def _stacked(
    scopes: list[tuple[int, ...]], tables: list[Any]
) -> tuple[tuple[Array, ...], tuple[np.ndarray, ...], tuple[tuple[int, int], ...]]:
    """Tables of one shape as one array, their scopes, and where each table is."""
    shapes: dict[tuple[int, ...], int] = {}
    members: list[list[tuple[int, ...]]] = []
    values: list[list[Any]] = []
    places = []
    for scope, table in zip(scopes, tables, strict=True):
        k = shapes.setdefault(tuple(np.shape(table)), len(shapes))
        if k == len(values):
            members.append([])
            values.append([])
        places.append((k, len(values[k])))
        members[k].append(scope)
        values[k].append(table)
    arrays = tuple(np.asarray(x, np.int32).reshape(len(x), -1) for x in members)
    return tuple(map(_stack, values)), arrays, tuple(places)


def _stack(tables: list[Any]) -> Float[Array, "tables ..."]:
    """Tables of one shape."""
    known = all(isinstance(x, np.ndarray) for x in tables)
    return potentials("log_tables", np.stack(tables) if known else jnp.stack(tables))
