"""Models as tables, and tables as models."""

from typing import Any, NamedTuple, TYPE_CHECKING

import numpy as np

from .._sentinels import EXCLUDED
from ..elimination import Network
from ..factors import ends, OFFSETS
from ..inference import networks_of
from ..models import (
    AbstractModel,
    AbstractPlainModel,
    GridMRF,
    RBM,
    refuse,
    require_model,
    require_single,
    TableModel,
    two_sides,
    whole_stacks,
)


if TYPE_CHECKING:
    from ..pgmax import FactorGraphModel


def to_tables(model: AbstractModel) -> TableModel:
    """A model of discrete units as tables. Configurations have the same energy, and variables come
    in the order of the layers or groups: those of an RBM are the visible units, then the hidden
    ones. Tables of zeros are left out.

    !!! example

        ```python
        from ebmlearn import uai

        model = uai.to_tables(ebmlearn.RBM.init(4, 3))  # a TableModel
        ```

    **Arguments:**

    - `model`: an RBM, a conditioned CRBM, a DBM, a BoltzmannMachine, a SemiRestrictedBM, a GridMRF,
      a FactorModel, a FactorGraphModel, or a LayeredModel of binary or categorical units.
    """
    require_model(model)
    if isinstance(model, TableModel):
        return model
    require_single(model)
    plain = model if isinstance(model, AbstractPlainModel) and model.numbered else None
    stacks = None if plain is None else whole_stacks(plain)
    if stacks is None:
        refuse(model, "have binary or categorical units joined by tables for uai.to_tables")
    problem: Any = model.problem(None, None)
    ((counts, scopes, tables),) = networks_of(problem, stacks)
    kept = [k for k, table in enumerate(tables) if table.any()]
    log_tables = [tables[k].astype(model.dtype) for k in kept]
    return TableModel(counts, [scopes[k] for k in kept], log_tables)


def to_network(model: AbstractModel | Network) -> Network:
    """The tables of a model in float64, on the host.

    !!! example

        ```python
        from ebmlearn import uai

        network = uai.to_network(ebmlearn.RBM.init(4, 3))
        network.counts, network.scopes
        ```

    **Arguments:**

    - `model`: a model that [`ebmlearn.uai.to_tables`][] takes.
    """
    if isinstance(model, Network):
        return model
    tables = to_tables(model)
    arrays = [np.asarray(x, np.float64) for x in tables.log_tables]
    excluded = tuple(np.asarray(np.where(x < EXCLUDED / 2, -np.inf, x)) for x in arrays)
    return Network(tables.counts, tables.scopes, excluded)


class AsRBM(NamedTuple):
    """A network as an RBM.

    !!! example

        ```python
        from ebmlearn import uai

        found = uai.to_rbm(uai.to_tables(ebmlearn.RBM.init(4, 3)))
        found.rbm, found.visible, found.constant
        ```

    **Fields:**

    - `rbm`: the RBM.
    - `visible`: the variables of the network that are its visible units, in their order.
    - `hidden`: those that are its hidden units.
    - `constant`: the log-potential of a configuration is `constant - rbm.energy(visible, hidden)`,
      so log Z of the network is `constant` plus that of the RBM.
    """

    rbm: RBM
    visible: tuple[int, ...]
    hidden: tuple[int, ...]
    constant: float


def to_rbm(model: AbstractModel | Network) -> AsRBM:
    """A network of binary variables as an RBM, if its tables join no more than two variables and
    these have two sides. Pairs without a table get a weight of 0.

    !!! example

        ```python
        from ebmlearn import uai

        rbm, visible, hidden, constant = uai.to_rbm(uai.to_tables(ebmlearn.RBM.init(4, 3)))
        ```

    **Arguments:**

    - `model`: a model that [`ebmlearn.uai.to_tables`][] takes, or a network as
      [`ebmlearn.uai.read_network`][] returns it.

    **Returns:**

    The RBM, which variables are its units, and a constant. Variable 0 is visible.
    """
    network = to_network(model)
    for v, states in enumerate(network.counts):
        if states != 2:
            _refuse("an RBM", f"two states of each variable, got {states} of variable {v}")
    for k, table in enumerate(network.tables):
        if not np.isfinite(table).all():
            _refuse("an RBM", f"tables that exclude nothing, got a zero in table {k}")
    joined, number = _joined(network, "an RBM"), len(network.counts)
    pairs = [scope for scope in joined if len(scope) == 2]
    # What is joined to nothing is on side 0.
    side = np.array(two_sides(number, pairs))
    for u, w in pairs:
        if side[u] == side[w]:
            _refuse("an RBM", f"two sides, got an odd cycle through variables {u} and {w}")
    bias, weights, constant = np.zeros(number), np.zeros((number, number)), 0.0
    for scope, table in joined.items():
        constant += float(table.flat[0])
        if len(scope) == 1:
            bias[scope[0]] += table[1] - table[0]
        elif scope:
            first, second = scope
            bias[first] += table[1, 0] - table[0, 0]
            bias[second] += table[0, 1] - table[0, 0]
            mixed = table[1, 1] - table[1, 0] - table[0, 1] + table[0, 0]
            weights[first, second] += mixed
            weights[second, first] += mixed
    visible, hidden = np.flatnonzero(side == 0), np.flatnonzero(side == 1)
    # As JAX reads numbers of Python: in its default dtype.
    arrays = (weights[np.ix_(visible, hidden)], bias[visible], bias[hidden])
    return AsRBM(RBM(*arrays), tuple(visible.tolist()), tuple(hidden.tolist()), constant)


def to_grid_mrf(model: AbstractModel | Network, shape: tuple[int, int]) -> GridMRF:
    """A network as a grid of pixels without channels, if pixels are joined to their eight
    neighbours at most and all pairs of one direction have the same table.

    !!! example

        ```python
        from ebmlearn import uai

        tables = ebmlearn.TableModel([2, 2], [(0, 1)], [jnp.eye(2)])
        grid = uai.to_grid_mrf(tables, (1, 2))
        ```

    **Arguments:**

    - `model`: a model that [`ebmlearn.uai.to_tables`][] takes, or a network as
      [`ebmlearn.uai.read_network`][] returns it. Its variables are the pixels, row by row.
    - `shape`: the height and the width of the grid.
    """
    network = to_network(model)
    pixels = np.arange(len(network.counts))
    states = network.counts[0]
    if pixels.size != shape[0] * shape[1]:
        _refuse("a GridMRF", f"as many variables as `shape` has pixels, got {pixels.size}")
    if set(network.counts) != {states}:
        _refuse("a GridMRF", f"one number of states, got {sorted(set(network.counts))}")
    pairs = _joined(network, "a GridMRF")
    biases = np.stack([pairs.pop((v,), np.zeros(states)) for v in range(pixels.size)])
    if not _all_close(biases):
        _refuse("a GridMRF", "the same table for each variable alone, got different ones")
    grid, tables = pixels.reshape(shape), []
    for offset in OFFSETS:
        first, second = (grid[at].reshape(-1).tolist() for at in ends(shape, offset))
        nothing = np.zeros((states, states))
        met = [pairs.pop(pair, nothing) for pair in zip(first, second, strict=True)]
        if not _all_close(met):
            _refuse("a GridMRF", f"one table for all pixels and those {offset} away, got different")
        tables.append(met[0] if met else nothing)
    if pairs:
        _refuse("a GridMRF", f"tables of neighbours, got one of variables {next(iter(pairs))}")
    return GridMRF(*tables, shape=shape, bias=biases[0])


def to_factor_graph(model: AbstractModel) -> "FactorGraphModel":
    """A model as a graph of PGMax, whose factors list all configurations. Its variables are one
    group, in the order of [`ebmlearn.uai.to_tables`][]. Tables of one variable become evidence.

    !!! example

        ```python
        from ebmlearn import uai

        graph = uai.to_factor_graph(ebmlearn.RBM.init(4, 3))  # a FactorGraphModel
        ```

    **Arguments:**

    - `model`: a model that [`ebmlearn.uai.to_tables`][] takes.
    """
    from ..pgmax import FactorGraphModel, to_pgmax

    graph, _, evidence = to_pgmax(to_tables(model))
    return FactorGraphModel(graph).with_evidence(evidence)


def _joined(network: Network, what: str) -> dict[tuple[int, ...], np.ndarray]:
    """The sum of the tables of the same one or two variables, or of none, by these in order."""
    out: dict[tuple[int, ...], np.ndarray] = {}
    for k, (scope, table) in enumerate(zip(network.scopes, network.tables, strict=True)):
        if len(scope) > 2:
            _refuse(what, f"tables of one or two variables, got {len(scope)} in table {k}")
        ordered = tuple(sorted(scope))
        own = table if ordered == scope else table.T
        out[ordered] = np.asarray(out.get(ordered, 0) + own)
    return out


def _all_close(tables: Any) -> bool:
    """Whether tables are the same but for rounding."""
    return not len(tables) or np.allclose(tables, np.asarray(tables)[:1], rtol=1e-5, atol=1e-6)


def _refuse(what: str, wanted: str) -> None:
    raise ValueError(f"`model` must have {wanted.replace(', got', f' to become {what}, got', 1)}.")
