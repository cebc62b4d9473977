"""Networks of tables as graphs."""

from typing import Any

import numpy as np
from pgmax import fgraph, fgroup, vgroup

from ..models import Groups
from ._convert import no_grid, PGMaxGraph
from ._grid import Grid


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
