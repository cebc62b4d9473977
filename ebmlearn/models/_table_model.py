from collections.abc import Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .. import _checks
from .._types import AnyArray
from ..factors import Tables
from ..units import Categorical
from ..units._categorical import categorical
from ._base import AbstractPlainModel, Arrays, Kinds
from ._grouped import AbstractGrouped, where_there
from ._problem import whole
from ._turns import AbstractTurns, Alone, in_order


class TableModel(AbstractGrouped, AbstractPlainModel):
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
        stacks = tuple(zip(self.members, self.log_potentials, strict=True))
        self.colours = in_order(stacks, len(self.counts))

    @property
    def scopes(self) -> tuple[tuple[int, ...], ...]:
        """The variables of each table."""
        members = [np.asarray(x) for x in self.members]
        return tuple(tuple(members[k][row].tolist()) for k, row in self.places_of_tables)

    @property
    def log_tables(self) -> tuple[Float[AnyArray, "..."], ...]:
        """The log-potentials of each table, in the order of `scopes`."""
        return self.by_factor(self.log_potentials).by_table()

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
    def layers(self) -> tuple[Categorical, ...]:
        """The variables, padded to the largest number of states."""
        return (categorical(len(self.counts), self.counts),)

    @property
    def names(self) -> tuple[str, ...]:
        """All variables are one group, `x`."""
        return ("x",)

    def unary(self) -> tuple[Float[Array, " _"]]:
        """Zero: what a variable has of its own is a table of one axis."""
        dtype = self.log_potentials[0].dtype if self.log_potentials else np.dtype(np.float32)
        (units,) = self.layers
        return (where_there(units, jnp.zeros(units.width, dtype)),)

    def factors(self, product: str = "sum") -> tuple[Tables, ...]:
        """The tables of each shape."""
        own = (len(self.counts), max(self.counts), True)
        return tuple(
            Tables(("x",) * (table.ndim - 1), table, members, (own,) * (table.ndim - 1))
            for table, members in zip(self.log_potentials, self.members, strict=True)
        )

    def remade(self, layers: Kinds, parameters: Arrays, unary: Arrays) -> "TableModel":
        """The model with other tables; it has no biases."""
        return eqx.tree_at(lambda m: m.log_potentials, self, tuple(parameters))

    @property
    def turns(self) -> AbstractTurns:
        """Variables that share no table are drawn at once."""
        return Alone(self, self.colours)

    def by_factor(self, values: tuple[Float[Array, "..."], ...]) -> "ByTable":
        return ByTable(
            tuple(values),
            tuple(x.ndim for x in self.log_potentials),
            self.places_of_tables,
        )


class ByTable(eqx.Module):
    """An array for each table of a [`ebmlearn.TableModel`][], which `tables[k]` gives.

    !!! example

        ```python
        model = ebmlearn.TableModel([2, 3], [(0, 1)], [jnp.eye(2, 3)])
        ebmlearn.Exact()(model).pairwise[0]  # [2, 3]
        ```

    **Fields:**

    - `values`: an array for each shape of tables.
    - `ranks`, `places`: for each table, the index of its array and its row in it.
    """

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
    return _checks.log_potentials("log_tables", np.stack(tables) if known else jnp.stack(tables))
