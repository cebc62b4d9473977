"""A model of a graph as a PGMax graph again, from its wires and parameters alone."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from pgmax import factor, fgraph, fgroup, vgroup

from ..models._groups import cut_states
from ._convert import no_grid, PGMaxGraph
from ._dense_group import RBMFactorGroup
from ._grid import Grid
from ._layout import Kind


Groups = list[Any]


def rebuilt(model: Any, grid: Grid | None) -> PGMaxGraph:
    """A graph with the variables, factors and log-potentials of a model, and its evidence. Groups
    that hold no log-potentials, as logical ones, come as one group for each type.
    """
    no_grid(model, grid)
    layout, wires = model.layout, model.wires
    groups = []
    counts = cut_states(model.num_states, layout.variables)
    for (shape, most), labels, states in zip(layout.variables, layout.labels, counts, strict=True):
        number: Any = most if (states == most).all() else states.astype(np.int64)
        if labels is None:
            groups.append(vgroup.NDVarArray(num_states=number, shape=shape))
        else:
            groups.append(vgroup.VarDict(num_states=number, variable_names=labels))
    graph = fgraph.FactorGraph(groups)
    variables = [v for group in groups for v in group.variables]
    owner = np.asarray(wires.variable)

    values = [np.asarray(x) for x in model.log_potentials]
    listed = [x for x, (_, dense) in zip(values, layout.groups, strict=True) if not dense]
    for k, kind in enumerate(layout.kinds):
        edges = np.asarray(wires.states)[slice(*kind.messages)]
        own, size = [], 0
        while size < kind.potentials[1] - kind.potentials[0]:
            own.append(listed.pop(0))
            size += own[-1].size
        arguments = {name: np.asarray(x) for name, x in wires.arguments[k].items()}
        met = [variables[v] for v in owner[edges]], np.asarray(wires.local)[edges]
        for group in MAKERS[kind.type](kind, own, arguments, *met):
            graph.add_factors(group)
    for k, ends in zip(layout.dense, wires.ends, strict=True):
        first, second = ([variables[v] for v in owner[np.asarray(end)]] for end in ends)
        graph.add_factors(RBMFactorGroup(first, second, jnp.asarray(values[k])))
    evidence = {}
    for group, x, states in zip(groups, model.evidence, counts, strict=True):
        if isinstance(group, vgroup.VarDict):
            pairs = zip(group.variable_names, x, states, strict=True)
            evidence[group] = {name: row[: int(n)] for name, row, n in pairs}
        else:
            evidence[group] = x
    return PGMaxGraph(graph, tuple(groups), evidence)


def _enumerations(
    kind: Kind, values: list[np.ndarray], arguments: dict, edges: list, local: np.ndarray
) -> Groups:
    """Groups that list their configurations, one factor after the other."""
    at, of = arguments["factor_configs_edge_states"], arguments["factor_configs_indices"]
    out, first = [], 0
    for potentials in values:
        number = 1 if potentials.ndim == 1 else potentials.shape[0]
        configurations = potentials.size // number
        own = (of >= first) & (of < first + potentials.size)
        places = at[own].reshape(number, configurations, -1)
        first += potentials.size
        joined = [[edges[e] for e in row[0]] for row in places]
        if potentials.ndim == 3:
            group = fgroup.PairwiseFactorGroup(joined, potentials)
        elif potentials.ndim == 1:
            group = factor.EnumFactor(
                variables=joined[0], factor_configs=local[places[0]], log_potentials=potentials
            )
        else:
            group = fgroup.EnumFactorGroup(
                variables_for_factors=joined,
                factor_configs=local[places[0]],
                log_potentials=potentials,
            )
        out.append(group)
    return out


def _with_child(make: Callable[[Any], Any], child: str) -> Callable[..., Groups]:
    """Groups of binary variables, of which the last of each factor is named by `child`."""

    def made(
        kind: Kind, values: list[np.ndarray], arguments: dict, edges: list, local: np.ndarray
    ) -> Groups:
        last = arguments[child] // 2
        binary = edges[::2]
        starts = [0, *(int(k) + 1 for k in last[:-1])]
        return [make([binary[a : int(b) + 1] for a, b in zip(starts, last, strict=True)])]

    return made


# How the groups of each type of factors are made again. Groups of our own add theirs.
MAKERS: dict[type, Callable[..., Groups]] = {
    factor.EnumFactor: _enumerations,
    factor.ORFactor: _with_child(fgroup.ORFactorGroup, "children_edge_states"),
    factor.ANDFactor: _with_child(fgroup.ANDFactorGroup, "children_edge_states"),
    factor.PoolFactor: _with_child(fgroup.PoolFactorGroup, "pool_indicators_edge_states"),
}
