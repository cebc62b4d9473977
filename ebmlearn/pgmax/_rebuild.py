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
from ._layout import configurations
from ._sites import related


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
    for k, kind in enumerate(layout.kinds):
        own = [values[i] for i in layout.owned[k]]
        for group in MAKERS[kind.type](model, k, own, variables):
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


def _enumerations(model: Any, k: int, values: list[np.ndarray], variables: list) -> Groups:
    """Groups that list their configurations, one factor after the other."""
    out, owner, local = [], np.asarray(model.wires.variable), np.asarray(model.wires.local)
    for potentials, states in zip(
        values, configurations(model.layout, model.wires, k), strict=True
    ):
        joined = [[variables[v] for v in row] for row in owner[states[:, 0]]]
        if potentials.ndim == 3:
            group = fgroup.PairwiseFactorGroup(joined, potentials)
        elif potentials.ndim == 1:
            group = factor.EnumFactor(
                variables=joined[0], factor_configs=local[states[0]], log_potentials=potentials
            )
        else:
            group = fgroup.EnumFactorGroup(
                variables_for_factors=joined,
                factor_configs=local[states[0]],
                log_potentials=potentials,
            )
        out.append(group)
    return out


def _with_child(make: Callable[[Any], Any]) -> Callable[..., Groups]:
    """Groups of binary variables, of which the others determine the last of each factor."""

    def made(model: Any, k: int, values: list[np.ndarray], variables: list) -> Groups:
        owner, above, below = related(model.layout, model.wires, k)
        joined: list[list] = [[] for _ in below]
        for f, v in zip((*owner, *range(len(below))), (*above, *below), strict=True):
            joined[f].append(variables[v])
        return [make(joined)]

    return made


# How the groups of each type of factors are made again. Groups of our own add theirs.
MAKERS: dict[type, Callable[..., Groups]] = {
    factor.EnumFactor: _enumerations,
    factor.ORFactor: _with_child(fgroup.ORFactorGroup),
    factor.ANDFactor: _with_child(fgroup.ANDFactorGroup),
    factor.PoolFactor: _with_child(fgroup.PoolFactorGroup),
}
