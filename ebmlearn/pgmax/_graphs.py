"""Models as PGMax graphs: units become variables, and factors become groups of factors."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from pgmax import fgraph, fgroup, vgroup

from .. import _checks
from ..factors import AbstractFactor, Dense, Tables
from ..models import (
    AbstractModel,
    AbstractPlainModel,
    is_nonnegative,
    refuse,
    require_model,
)
from ..units import AbstractUnits
from ._dense_group import RBMFactorGroup
from ._grid import check_grid, Grid, grid_for, quadratic
from ._model import FactorGraphModel
from ._nnbm_group import NNBMFactorGroup
from ._rebuild import rebuilt


# The variables of a table, and its log-potentials.
_Table = tuple[tuple[int, ...], np.ndarray]


class PGMaxGraph(NamedTuple):
    """A model as a PGMax graph.

    !!! example

        ```python
        from ebmlearn.pgmax import to_pgmax

        graph, variables, evidence = to_pgmax(ebmlearn.RBM.init(16, 8))
        variables.visible, variables.hidden
        ```

    **Fields:**

    - `graph`: the graph, with the weights of the model.
    - `variables`: its groups of variables, named as the units of the model: `variables.visible` and
      `variables.hidden`, or `variables.x`; of a GridMRF `variables["state"]` and those of channels;
      of a TableModel `variables["x"]`; of a FactorModel by the names of its groups; of a
      FactorGraphModel a tuple of groups, in the order of the graph that it was made of.
    - `evidence`: the biases of the model, for `evidence_updates` of PGMax or `with_evidence` of
      [`ebmlearn.pgmax.FactorGraphModel`][]. Leading axes are those of the model's biases.
    """

    graph: fgraph.FactorGraph
    variables: Any
    evidence: dict[Any, PyTree]


def to_pgmax(model: AbstractModel, grid: Grid | None = None) -> PGMaxGraph:
    """A model as a PGMax graph. Blocks of weights between layers of binary units become dense
    groups; weights inside a layer, or of categorical units, pairwise factors, where they are not
    zero. The tables of a grid become pairwise factors, a group for each in the order of its
    log-potentials. Other tables become factors that list all configurations, a group for those of
    one shape, and those of one variable evidence. Factors of the same variables are added up. A
    [`ebmlearn.pgmax.FactorGraphModel`][], such as one from a file, becomes its graph again.

    !!! example

        ```python
        from ebmlearn.pgmax import MatrixBP, to_pgmax

        graph, variables, evidence = to_pgmax(ebmlearn.RBM.init(16, 8))
        bp = MatrixBP(graph.bp_state)
        arrays = bp.run(bp.init(evidence_updates=evidence), num_iters=50, temperature=1.0)
        bp.get_beliefs(arrays)[variables.visible]
        ```

    **Arguments:**

    - `model`: a model of binary and categorical units, such as an RBM, a conditioned CRBM, a
      FactorModel or a TableModel; a FactorGraphModel; or a model of nonnegative units, which is
      quantised.
    - `grid`: for nonnegative units, the values of their states; `grid_for(model)` if not given.
    """
    require_model(model)
    if not isinstance(model, AbstractPlainModel):
        refuse(model, "be one of layers of units, or a graph, for to_pgmax")
    if is_nonnegative(model):
        return _quantised(model, grid)
    if grid is not None:
        kind = _checks.article(type(model).__name__)
        raise ValueError(f"`grid` must be None unless units are nonnegative, got one for {kind}.")
    if isinstance(model, FactorGraphModel):
        return PGMaxGraph(*rebuilt(model))
    return _converted(model)


def _quantised(model: AbstractPlainModel, grid: Grid | None) -> PGMaxGraph:
    """Nonnegative units on a grid as a graph of one group."""
    grid = grid_for(model) if grid is None else grid
    check_grid(grid)
    couplings, bias = quadratic(model)
    shape = (len(bias), len(grid.nodes))
    x = vgroup.NDVarArray(num_states=shape[1], shape=shape[:1])
    graph = fgraph.FactorGraph([x])
    graph.add_factors(NNBMFactorGroup(x, couplings, grid, bias))
    return PGMaxGraph(graph, model.named([x]), {x: jnp.zeros(shape)})


def _converted(model: AbstractPlainModel) -> PGMaxGraph:
    """Binary and categorical units as a graph, factor by factor."""
    layers: Any = model.layers
    if not all(units.numbered for units in layers):
        refuse(model, "have binary, categorical or nonnegative units for to_pgmax")
    names, variables = model.names, model.variables
    dense, tables, alone = _sorted(model, variables.by_name, variables.starts)
    counts, evidence = _variables(model, alone)
    groups: list[Any] = [vgroup.NDVarArray(num_states=x, shape=x.shape) for x in counts]
    graph, named = fgraph.FactorGraph(groups), dict(zip(names, groups, strict=True))
    every = [v for group in groups for v in group.variables]
    for (first, second), weights in dense.items():
        graph.add_factors(RBMFactorGroup(named[first], named[second], weights))
    for factor, own in tables:
        joined: Any = [[every[v] for v in scope] for scope, _ in own]
        potentials = np.stack([table for _, table in own])
        if isinstance(factor, Tables):
            shape = potentials.shape[1:]
            group = fgroup.EnumFactorGroup(
                variables_for_factors=joined,
                factor_configs=np.indices(shape).reshape(len(shape), -1).T,
                log_potentials=potentials.reshape(len(joined), -1),
            )
        else:
            group = fgroup.PairwiseFactorGroup(joined, potentials)
        graph.add_factors(group)
    told = model.variables.named(groups)
    return PGMaxGraph(graph, told, dict(zip(groups, evidence, strict=True)))


def _sorted(
    model: AbstractPlainModel, units: Mapping[str, AbstractUnits], starts: Mapping[str, int]
) -> tuple[dict[tuple[str, str], Array], list[tuple[AbstractFactor, list[_Table]]], list[_Table]]:
    """The weights between groups of binary units; tables of several variables, by the factor that
    has them; and those of one variable. A graph has one factor of the same variables at most.
    """
    dense: dict[tuple[str, str], Array] = {}
    homes: dict[frozenset[int], dict[frozenset[int], _Table]] = {}
    tables, alone = [], []
    for factor in model.factors():
        if isinstance(factor, Dense) and factor.first != factor.second:
            (first, second), weights = factor.groups, factor.weights
            if all(units[group].family == "binary" for group in factor.groups):
                if (second, first) in dense:
                    first, second, weights = second, first, weights.T
                if weights.size:
                    before = dense.get((first, second), jnp.zeros_like(weights))
                    dense[first, second] = before + weights
                continue
        stacks = factor.stacks(units, starts)
        if stacks is None:
            refuse(model, "have factors that are tables, or products of units, for to_pgmax")
        own: dict[frozenset[int], _Table] = {}
        for members, stack in stacks:
            for row, table in zip(np.asarray(members).tolist(), np.asarray(stack), strict=True):
                scope = tuple(row)
                if len(scope) < 2:
                    alone.append((scope, np.asarray(table)))
                elif table.any() or not isinstance(factor, Dense):
                    home = homes.setdefault(frozenset(scope), own)
                    if frozenset(scope) in home:
                        known, before = home[frozenset(scope)]
                        table = before + np.transpose(table, [scope.index(v) for v in known])
                        scope = known
                    home[frozenset(scope)] = scope, table
        tables.append((factor, own))
    return dense, [(factor, [*own.values()]) for factor, own in tables if own], alone


def _variables(
    model: AbstractPlainModel, alone: list[_Table]
) -> tuple[list[np.ndarray], list[Float[Array, "..."]]]:
    """The numbers of states of the variables of each group, and their evidence."""
    kinds: Any = model.layers
    scores = [own.scores(bias) for own, bias in zip(kinds, model.unary(), strict=True)]
    ends = model.variables.ends
    for scope, table in alone:
        # A table of no variable adds to the first.
        at = scope[0] if scope else 0
        k = int(np.searchsorted(ends, at, "right"))
        unit = at - (ends[k] - kinds[k].size)
        own = jnp.broadcast_to(jnp.asarray(table), (kinds[k].numbers[unit],))
        scores[k] = scores[k].at[unit, : len(own)].add(own)
    counts = [
        np.asarray(own.numbers).reshape(shape)
        for own, shape in zip(kinds, model.shapes, strict=True)
    ]
    pairs = zip(scores, model.shapes, strict=True)
    return counts, [x.reshape(*shape, x.shape[-1]) for x, shape in pairs]
