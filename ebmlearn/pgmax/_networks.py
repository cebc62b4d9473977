"""Networks of tables as graphs, and graphs as networks of tables."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from pgmax import factor, fgraph, fgroup, vgroup

from ..models import Groups, TableModel
from ..models._require import refuse
from ._convert import no_grid, PGMaxGraph, to_pgmax
from ._dense_group import RBMFactor
from ._grid import Grid


# The largest number of variables of a logical factor that becomes a table.
_MOST = 20
_Tables = Iterator[tuple[Any, Float[np.ndarray, "..."]]]


def from_tables(model: Any, grid: Grid | None) -> PGMaxGraph:
    """A graph of one group of variables, with a factor group for the tables of each shape. Tables
    of one variable become evidence, and a table of none adds to that of the first variable.
    """
    no_grid(model, grid)
    counts = model.num_states
    group: Any = vgroup.NDVarArray(num_states=counts, shape=counts.shape)
    graph = fgraph.FactorGraph([group])
    evidence = np.zeros((len(counts), counts.max()), model.dtype)
    # A graph has one factor of the same variables at most.
    joint: dict[tuple[int, ...], np.ndarray] = {}
    for scope, table in zip(model.scopes, model.log_tables, strict=True):
        if not scope:
            evidence[0, : counts[0]] += np.asarray(table)
        elif len(scope) == 1:
            evidence[scope[0], : counts[scope[0]]] += np.asarray(table)
        else:
            order = np.argsort(scope)
            key = tuple(np.asarray(scope)[order].tolist())
            moved = np.transpose(np.asarray(table), order)
            joint[key] = joint[key] + moved if key in joint else moved
    shapes: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for scope, table in joint.items():
        shapes.setdefault(table.shape, []).append(scope)
    for shape, scopes in shapes.items():
        graph.add_factors(
            fgroup.EnumFactorGroup(
                variables_for_factors=[[group[v] for v in scope] for scope in scopes],
                factor_configs=np.indices(shape).reshape(len(shape), -1).T,
                log_potentials=np.stack([joint[scope].reshape(-1) for scope in scopes]),
            )
        )
    return PGMaxGraph(graph, Groups((group,), model.group_names), {group: evidence})


def to_tables(model: Any) -> TableModel:
    """The evidence and the factors of a graph as tables, which exclude what factors do not list."""
    graph, groups, _ = to_pgmax(model)
    variables = [v for group in groups for v in group.variables]
    place = {v: k for k, v in enumerate(variables)}
    counts = model.num_states
    (unary,) = model.unary()
    scopes: list[tuple[int, ...]] = []
    tables: list[np.ndarray] = []
    for v, own in enumerate(np.split(np.asarray(unary), np.cumsum(counts)[:-1])):
        if own.any():
            scopes.append((v,))
            tables.append(own)
    for kind, owned in graph.factor_groups.items():
        for group in owned:
            if kind not in _READERS:
                refuse(model, "have factors that list their configurations, dense or logical ones")
            for joined, table in _READERS[kind](model, group):
                scopes.append(tuple(place[v] for v in joined))
                tables.append(np.asarray(table, model.dtype))
    return TableModel(counts.tolist(), scopes, tables)


def _listed(model: Any, group: Any) -> _Tables:
    """Groups whose factors list their configurations."""
    single = getattr(group, "single_factor", None)
    if isinstance(group, fgroup.PairwiseFactorGroup):
        matrix: Any = group.log_potential_matrix
        shape = np.shape(matrix)[-2:]
        configurations = np.indices(shape).reshape(2, -1).T
    else:
        configurations = np.asarray((single or group).factor_configs)
    potentials = np.asarray((single or group).log_potentials)
    potentials = potentials.reshape(-1, len(configurations))
    for joined, row in zip(group.variables_for_factors, potentials, strict=True):
        table = np.full([int(states) for _, states in joined], -np.inf)
        table[tuple(configurations.T)] = row
        yield joined, table


def _dense(model: Any, group: Any) -> _Tables:
    """Groups of all pairs of two layers."""
    weights = np.asarray(group.log_potentials).reshape(group.shape)
    for i, first in enumerate(group.visible_variables):
        for j, second in enumerate(group.hidden_variables):
            yield (first, second), np.array([[0, 0], [0, weights[i, j]]])


def _logical(
    holds: Callable[[Int[np.ndarray, "n ..."], Int[np.ndarray, "..."]], Any],
) -> Callable[[Any, Any], _Tables]:
    """Groups of factors that allow configurations: `holds` says which, of binary variables and a
    last one.
    """

    def read(model: Any, group: Any) -> _Tables:
        for joined in group.variables_for_factors:
            if len(joined) > _MOST:
                few = f"logical factors of at most {_MOST} variables"
                refuse(model, f"have {few} to become tables", f"one joins {len(joined)}")
            *states, last = np.indices((2,) * len(joined))
            yield joined, np.where(holds(np.stack(states), last), 0.0, -np.inf)

    return read


_READERS: dict[Any, Callable[[Any, Any], _Tables]] = {
    factor.EnumFactor: _listed,
    RBMFactor: _dense,
    factor.ORFactor: _logical(lambda parents, child: child == parents.any(0)),
    factor.ANDFactor: _logical(lambda parents, child: child == parents.all(0)),
    factor.PoolFactor: _logical(lambda choices, pool: choices.sum(0) == pool),
}
