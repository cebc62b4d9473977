from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from pgmax import fgraph, fgroup, vgroup

from .. import _checks
from ..models import AbstractModel, Groups
from ..models._lattice import ends, OFFSETS
from ..models._require import require
from ._dense_group import RBMFactorGroup
from ._grid import Grid


class PGMaxGraph(NamedTuple):
    """A model as a PGMax graph.

    - `graph`: the graph, with the weights of the model.
    - `variables`: its groups of variables, named as the units of the model: `variables.visible` and
      `variables.hidden`, or `variables.x`; of a GridMRF `variables["state"]` and those of channels;
      of a TableModel `variables["x"]`; of a FactorGraphModel a tuple of groups, in the order of the
      graph that it was made of.
    - `evidence`: the biases of the model, for `evidence_updates` of PGMax or `with_evidence` of
      [`ebmlearn.pgmax.FactorGraphModel`][]. Leading axes are those of the model's biases.
    """

    graph: fgraph.FactorGraph
    variables: Any
    evidence: dict[Any, PyTree]


def to_pgmax(model: AbstractModel, grid: Grid | None = None) -> PGMaxGraph:
    """A model as a PGMax graph: blocks of weights between layers become dense groups, couplings
    inside a layer pairwise factors, where they are not zero. The tables of a grid become pairwise
    factors, a group for each in the order of its log-potentials. The tables of a
    [`ebmlearn.TableModel`][] become factors that list all configurations, a group for each shape,
    and those of one variable evidence. A [`ebmlearn.pgmax.FactorGraphModel`][], such as one from a
    file, becomes its graph again.

    !!! example

        ```python
        graph, variables, evidence = to_pgmax(rbm)
        bp = MatrixBP(graph.bp_state)
        arrays = bp.run(bp.init(evidence_updates=evidence), num_iters=50, temperature=1.0)
        bp.get_beliefs(arrays)[variables.visible]
        ```

    **Arguments:**

    - `model`: an RBM, a conditioned CRBM, a DBM, a BoltzmannMachine, a SemiRestrictedBM without
      label units, a GridMRF, a TableModel, a FactorGraphModel, or a model of nonnegative units,
      which is quantised.
    - `grid`: for nonnegative units, the values of their states; `grid_for(model)` if not given.
    """
    require(model, tuple(MAKERS), "to_pgmax")
    return MAKERS[model.kind](model, grid)


def no_grid(model: AbstractModel, grid: Grid | None) -> None:
    """Raises `ValueError` where there is a grid for units that need none."""
    if grid is not None:
        kind = _checks.article(type(model).__name__)
        raise ValueError(f"`grid` must be None unless units are nonnegative, got one for {kind}.")


def _binary(model: Any, grid: Grid | None) -> PGMaxGraph:
    no_grid(model, grid)
    unary = model.unary()
    layers = [vgroup.NDVarArray(num_states=2, shape=(bias.shape[-1],)) for bias in unary]
    graph = fgraph.FactorGraph(layers)
    for first, second, weights, _ in model.blocks():
        if 0 in weights.shape:
            continue
        if first != second:
            graph.add_factors(RBMFactorGroup(layers[first], layers[second], weights))
            continue
        couplings = np.asarray(weights)
        i, j = np.nonzero(np.triu(couplings, 1))
        if not len(i):
            continue
        tables = np.zeros((len(i), 2, 2), couplings.dtype)
        tables[:, 1, 1] = couplings[i, j]
        variables = layers[first].variables
        graph.add_factors(
            fgroup.PairwiseFactorGroup(
                variables_for_factors=[
                    [variables[a], variables[b]] for a, b in zip(i, j, strict=True)
                ],
                log_potential_matrix=tables,
            )
        )
    evidence = {
        layer: jnp.stack([jnp.zeros_like(bias), bias], -1)
        for layer, bias in zip(layers, unary, strict=True)
    }
    return PGMaxGraph(graph, model.units(tuple(layers)), evidence)


def _pixels(model: Any, grid: Grid | None) -> PGMaxGraph:
    no_grid(model, grid)
    groups = [vgroup.NDVarArray(num_states=n, shape=shape) for shape, n in model.sizes]
    graph = fgraph.FactorGraph(groups)
    state, *channels = (np.array(g.variables, object).reshape(*model.shape, 2) for g in groups)
    pairs = []
    for offset in OFFSETS:
        first, second = ends(model.shape, offset)
        pairs.append((state[first], state[second]))
    pairs += [(state, channel) for channel in channels]
    for table, (first, second) in zip(model.log_potentials, pairs, strict=True):
        joined = [
            [tuple(a), tuple(b)]
            for a, b in zip(first.reshape(-1, 2), second.reshape(-1, 2), strict=True)
        ]
        if joined:
            graph.add_factors(fgroup.PairwiseFactorGroup(joined, np.asarray(table)))
    (unary,) = model.unary()
    evidence = model.units((model.padded(unary),))
    variables = Groups(tuple(groups), evidence.names)
    return PGMaxGraph(graph, variables, dict(zip(groups, evidence.values, strict=True)))


# How each kind of model becomes a graph. Groups of our own add theirs.
MAKERS: dict[str, Callable[[Any, Grid | None], PGMaxGraph]] = {"binary": _binary, "grid": _pixels}
