"""A model of a graph as a PGMax graph again, from its wires and parameters alone."""

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from pgmax import factor, fgraph, fgroup, vgroup

from ._dense_group import RBMFactorGroup
from ._flat import cut_states
from ._grid import Grid
from ._layout import configurations
from ._model import FactorGraphModel
from ._nnbm_group import from_flat, NNBMFactor, NNBMFactorGroup
from ._sites import related


def rebuilt(model: FactorGraphModel) -> tuple[fgraph.FactorGraph, tuple[Any, ...], dict]:
    """A graph with the variables, factors and log-potentials of a model, its groups of variables,
    and its evidence. Groups that hold no log-potentials, as logical ones, come as one group for
    each type.
    """
    layout, wires = model.layout, model.wires
    groups: list[Any] = []
    evidence: dict[Any, PyTree] = {}
    counts = cut_states(model.num_states, layout.variables)
    for (shape, _), labels, states, x in zip(
        layout.variables, layout.labels, counts, model.evidence, strict=True
    ):
        if labels is None:
            groups.append(vgroup.NDVarArray(num_states=states, shape=shape))  # pyright: ignore
            evidence[groups[-1]] = x
        else:
            groups.append(vgroup.VarDict(num_states=states, variable_names=labels))  # pyright: ignore
            rows = zip(labels, x, states.tolist(), strict=True)
            evidence[groups[-1]] = {name: row[:n] for name, row, n in rows}
    graph = fgraph.FactorGraph(groups)
    variables = [v for group in groups for v in group.variables]
    values = [np.asarray(x) for x in model.log_potentials]
    for k, kind in enumerate(layout.kinds):
        own = [values[i] for i in kind.owned]
        for group in _MAKERS[kind.type](model, k, own, variables):
            graph.add_factors(group)
    owner = np.asarray(wires.variable)
    for k, ends in zip(layout.dense, wires.ends, strict=True):
        first, second = ([variables[v] for v in owner[np.asarray(end)]] for end in ends)
        graph.add_factors(RBMFactorGroup(first, second, jnp.asarray(values[k])))
    return graph, tuple(groups), evidence


def _enumerations(model: FactorGraphModel, k: int, values: list, variables: list) -> Iterator[Any]:
    """Groups that list their configurations, one factor after the other."""
    owner, local = np.asarray(model.wires.variable), np.asarray(model.wires.local)
    every = configurations(model.layout, model.wires, k)
    for potentials, states in zip(values, every, strict=True):
        joined = [[variables[v] for v in row] for row in owner[states[:, 0]]]
        if potentials.ndim == 3:
            yield fgroup.PairwiseFactorGroup(joined, potentials)
        elif potentials.ndim == 1:
            yield factor.EnumFactor(joined[0], potentials, local[states[0]])
        else:
            yield fgroup.EnumFactorGroup(joined, local[states[0]], potentials)


def _with_child(model: FactorGraphModel, k: int, values: list, variables: list) -> Iterator[Any]:
    """A group of binary variables, of which the others determine the last of each factor."""
    owner, above, below = related(model.layout, model.wires, k)
    ends = np.cumsum(np.bincount(owner, minlength=len(below)))[:-1]
    parents = np.split(above[np.argsort(owner, kind="stable")], ends)
    joined = [[variables[v] for v in (*x, y)] for x, y in zip(parents, below, strict=True)]
    yield _LOGICAL[model.layout.kinds[k].type](joined)


def _quantised(model: FactorGraphModel, k: int, values: list, variables: list) -> Iterator[Any]:
    """Groups of quantised units."""
    kind, wires = model.layout.kinds[k], model.wires
    own, states = kind.arguments(), np.asarray(wires.states)[slice(*kind.messages)]
    edges = np.asarray(wires.variable)[states]
    at = node = 0
    for (n, size), flat in zip(own["shapes"], values, strict=True):
        at += n * (n - 1) * size
        joined = [variables[v] for v in edges[at : at + n * size : size]]
        at += n * size
        grid = Grid(own["nodes"][node : node + size], own["log_weights"][node : node + size])
        node += size
        couplings, bias = from_flat(flat, n)
        yield NNBMFactorGroup(joined, couplings, grid, bias)


# How the groups of each type of factors are made again.
_LOGICAL: dict[type, Callable[..., Any]] = {
    factor.ORFactor: fgroup.ORFactorGroup,
    factor.ANDFactor: fgroup.ANDFactorGroup,
    factor.PoolFactor: fgroup.PoolFactorGroup,
}
_MAKERS: dict[type, Callable[..., Iterator[Any]]] = {
    factor.EnumFactor: _enumerations,
    NNBMFactor: _quantised,
    **dict.fromkeys(_LOGICAL, _with_child),
}
