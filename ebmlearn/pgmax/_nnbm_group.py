import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PyTree
from pgmax import factor, vgroup

from .. import _checks
from .._types import AnyArray
from ..models import check_couplings
from ._dense_group import AbstractShaped, AbstractWhole, begins, Explained, listed, Variable
from ._grid import check_grid, Grid


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, eq=False)
class NNBMWiring(AbstractShaped):
    """Where the messages of groups of quantised nonnegative units come from and go to. Those of a
    group of `n` units and `P` pairs are an array of shape `[P, 2, K]` (pair, end, state), then one
    of shape `[n, K]`. Its `shapes` are `(n, K)`; the grids of all groups come one after the other.

    !!! example

        ```python
        from ebmlearn.pgmax import NNBMFactor, to_pgmax

        nnbm = ebmlearn.NNBM(couplings=jnp.eye(3) + 0.5, bias=jnp.ones(3))
        to_pgmax(nnbm).graph.fg_state.wiring[NNBMFactor].nodes
        ```

    **Fields:**

    - `var_states_for_edges`: the variable state of each message.
    - `shapes`: the number of units and of states of each group.
    - `nodes`, `log_weights`: the grids.
    """

    nodes: np.ndarray
    log_weights: np.ndarray


class _Section(NamedTuple):
    """What belongs to one group."""

    pairs: Float[Array, "P 2 K"]
    units: Float[Array, "n K"]
    couplings: Float[Array, " P"]
    unit_potentials: Float[Array, "n K"]
    nodes: Float[Array, " K"]
    log_weights: Float[Array, " K"]

    @property
    def pair_potentials(self) -> Float[Array, "P K K"]:
        return -self.couplings[:, None, None] * jnp.outer(self.nodes, self.nodes)[None]


def _sections(
    states: Array,
    log_potentials: Array,
    shapes: tuple[tuple[int, int], ...],
    nodes: AnyArray,
    log_weights: AnyArray,
) -> Iterator[_Section]:
    """Cuts the arrays of all groups into those of each."""
    start = parameter = node = 0
    for n, k in shapes:
        pairs = n * (n - 1) // 2
        middle = start + 2 * pairs * k
        stop = middle + n * k
        x, log_w = (jnp.asarray(g[node : node + k], states.dtype) for g in (nodes, log_weights))
        w, curvature, bias = jnp.split(
            log_potentials[parameter : parameter + pairs + 2 * n], [pairs, pairs + n]
        )
        yield _Section(
            states[start:middle].reshape(pairs, 2, k),
            states[middle:stop].reshape(n, k),
            w,
            bias[:, None] * x[None] - curvature[:, None] * (x**2 / 2)[None],
            x,
            log_w,
        )
        start, parameter, node = stop, parameter + pairs + 2 * n, node + k


def _total(scores: Array, axis: int | tuple[int, ...], temperature: float) -> Array:
    """The soft maximum at a temperature: the maximum at 0."""
    if temperature:
        return temperature * logsumexp(scores / temperature, axis)
    return scores.max(axis)


@dataclasses.dataclass(frozen=True, eq=False)
class NNBMFactor(factor.Factor, metaclass=Explained):
    """The type of the factors of a [`ebmlearn.pgmax.NNBMFactorGroup`][].

    !!! example

        ```python
        from ebmlearn.pgmax import NNBMFactor, to_pgmax

        nnbm = ebmlearn.NNBM(couplings=jnp.eye(3) + 0.5, bias=jnp.ones(3))
        groups = to_pgmax(nnbm).graph.factor_groups[NNBMFactor]
        ```

    **Fields:**

    - `variables`: the variables that it joins.
    - `log_potentials`: its parameters.
    """

    @staticmethod
    def compile_wiring(group: Any, vars_to_starts: Mapping[Variable, Any]) -> NNBMWiring:
        """The wiring of one group."""
        starts, grid = begins("variables", group.variables, vars_to_starts), group.grid
        n, k = len(starts), len(grid.nodes)
        ends = np.stack(np.triu_indices(n, 1), axis=1)
        first = np.append(starts[ends], starts)
        factors = np.append(np.repeat(np.arange(len(ends)), 2), len(ends) + np.arange(n))
        states = first[:, None] + np.arange(k)
        table = [states.ravel(), np.repeat(np.arange(len(first)), k), np.repeat(factors, k)]
        return NNBMWiring(
            var_states_for_edges=np.stack(table, axis=1),
            shapes=np.array([[n, k]]),
            nodes=grid.nodes.copy(),
            log_weights=grid.log_weights.copy(),
        )

    @staticmethod
    def concatenate_wirings(wirings: Sequence[NNBMWiring]) -> NNBMWiring:  # pyright: ignore
        """The wiring of all groups of a graph."""
        return NNBMWiring.joined(wirings)

    @staticmethod
    def compute_energy(  # pyright: ignore
        edge_states_one_hot_decoding: Array,
        log_potentials: Array,
        shapes: tuple[tuple[int, int], ...],
        nodes: AnyArray,
        log_weights: AnyArray,
    ) -> PyTree:
        """The energy of all groups, $\\tfrac12 x^\\top W x - b^\\top x$ of each."""
        one_hot = edge_states_one_hot_decoding.astype(log_potentials.dtype)
        energy = jnp.zeros((), one_hot.dtype)
        for s in _sections(one_hot, log_potentials, shapes, nodes, log_weights):
            x = (s.pairs * s.nodes[None, None]).sum(-1)
            energy += (s.couplings * x[:, 0] * x[:, 1]).sum() - (s.units * s.unit_potentials).sum()
        return energy

    @staticmethod
    def compute_factor_energy(  # pyright: ignore
        variables: Sequence[Variable],
        vars_to_map_states: Mapping[Variable, PyTree],
        factor_configs: PyTree,
        log_potentials: PyTree,
    ) -> PyTree:
        """The energy of one pair or one unit."""
        # The configurations are always all of them, in order, of two variables or of one.
        states = [int(vars_to_map_states[v]) for v in variables]
        return -float(np.reshape(log_potentials, [v[1] for v in variables])[tuple(states)])


@functools.partial(jax.jit, static_argnames=("shapes", "temperature", "normalize"))
def pass_nnbm_fac_to_var_messages(
    vtof_msgs: Float[Array, " states"],
    log_potentials: Float[Array, " parameters"],
    shapes: tuple[tuple[int, int], ...],
    nodes: Float[AnyArray, " nodes"],
    log_weights: Float[AnyArray, " nodes"],
    temperature: float,
    normalize: bool,
) -> Float[Array, " states"]:
    """Messages from pairs, $T \\log \\sum_y e^{(m(y) - w x y) / T}$ with $m$ what came from the
    other end, and from units, $b x - \\tfrac12 w x^2 + T \\log (\\text{weight of } x)$.
    """
    # Not normalised: the dual solver needs the constants, and belief propagation removes them.
    out = []
    for s in _sections(vtof_msgs, log_potentials, shapes, nodes, log_weights):
        # A potential is symmetric in its ends, so that one table serves both directions.
        scores = s.pair_potentials[:, None] + s.pairs[:, ::-1, None, :]
        out.append(_total(scores, -1, temperature).ravel())
        out.append((s.unit_potentials + temperature * s.log_weights[None]).ravel())
    return jnp.concatenate(out)


@functools.partial(jax.jit, static_argnames=("shapes", "product"))
def log_normalisers(
    vtof_msgs: Float[Array, " states"],
    log_potentials: Float[Array, " parameters"],
    product: Literal["sum", "max"] = "sum",
    *,
    shapes: tuple[tuple[int, int], ...],
    nodes: Float[AnyArray, " nodes"],
    log_weights: Float[AnyArray, " nodes"],
) -> Float[Array, " factors"]:
    """The logarithm of what normalises the beliefs of each factor: potential times incoming
    messages. The gradient of their sum with respect to `log_potentials` is the expected statistics
    under these beliefs: $-E[x_i x_j]$, $-\\tfrac12 E[x_i^2]$, $E[x_i]$.

    **Arguments:**

    - `vtof_msgs`: messages from variables to factors, of all groups.
    - `log_potentials`: those of all groups.
    - `product`: `"sum"`, or `"max"` for maxima, in which the weights of the grid have no part.
    - `shapes`, `nodes`, `log_weights`: the inference arguments of [`ebmlearn.pgmax.NNBMWiring`][].
    """
    _checks.choice("product", product, ("sum", "max"))
    temperature = 1.0 if product == "sum" else 0.0
    out = []
    for s in _sections(vtof_msgs, log_potentials, shapes, nodes, log_weights):
        pairs = s.pair_potentials + s.pairs[:, 0, :, None] + s.pairs[:, 1, None, :]
        units = s.unit_potentials + s.units + temperature * s.log_weights[None]
        out += [_total(pairs, (1, 2), temperature), _total(units, 1, temperature)]
    return jnp.concatenate(out)


@dataclasses.dataclass(frozen=True, eq=False)
class NNBMFactorGroup(AbstractWhole):
    """A nonnegative Boltzmann machine on a grid, as one group of a PGMax graph: factors
    $-W_{ij} x_i x_j$ of all pairs and $b_i x_i - \\tfrac12 W_{ii} x_i^2$ of all units, with $x$ the
    node of a variable's state. At a positive temperature, sums over states are integrals with the
    weights of the grid; maxima and energies do not use the weights.

    It works with PGMax's belief propagation at any temperature, its dual solver and its energies,
    together with any other factors, and is built without a loop over pairs. Its log-potentials are
    the parameters themselves: $W_{ij}$ for $i < j$, then $W_{ii}$, then $b_i$.

    !!! example

        ```python
        from ebmlearn.pgmax import grid_for, NNBMFactorGroup
        from pgmax import fgraph, vgroup

        nnbm = ebmlearn.NNBM(couplings=jnp.eye(3) + 0.5, bias=jnp.ones(3))
        x = vgroup.NDVarArray(num_states=32, shape=(3,))
        graph = fgraph.FactorGraph([x])
        grid = grid_for(nnbm, points=32)
        graph.add_factors(NNBMFactorGroup(x, nnbm.couplings, grid, nnbm.bias))
        ```
    """

    variables: Sequence[Variable]
    couplings: Any
    grid: Grid
    bias: Any
    factor_type: Any = dataclasses.field(init=False, default=NNBMFactor)

    def __init__(
        self,
        variables: vgroup.VarGroup | Sequence[Variable],
        couplings: Float[AnyArray, "n n"],
        grid: Grid,
        bias: Float[AnyArray, " n"] | None = None,
    ):
        """**Arguments:**

        - `variables`: a group of variables with a state for each node of the grid, or a list.
        - `couplings`: $W$, of shape `[n, n]`, symmetric, positive on the diagonal.
        - `grid`: the values of the states, a [`ebmlearn.pgmax.Grid`][].
        - `bias`: $b$, of shape `[n]`; zero by default.
        """
        check_grid(grid)
        variables = listed("variables", variables, len(grid.nodes))
        couplings = _checks.parameter("couplings", couplings)
        n = len(variables)
        _checks.exact_shape("couplings", couplings, (n, n), "as there are variables")
        bias = jnp.zeros(n, couplings.dtype) if bias is None else _checks.parameter("bias", bias)
        _checks.exact_shape("bias", bias, (n,), "as there are variables")
        _checks.one_dtype(couplings=couplings, bias=bias)
        _checks.finite(couplings=couplings, bias=bias)
        check_couplings(couplings)
        w, b = np.asarray(couplings), np.asarray(bias)
        potentials = np.concatenate([w[np.triu_indices(n, 1)], np.diagonal(w), b])
        own = {"variables": variables, "couplings": couplings, "grid": grid, "bias": bias}
        self._fill(variables, potentials, **own)

    @property
    def num_units(self) -> int:
        """The number of variables."""
        return len(self.variables)

    @property
    def factor_sizes(self) -> np.ndarray:  # pyright: ignore
        """Two ends of each pair, then one of each unit."""
        n = self.num_units
        return np.repeat([2, 1], [n * (n - 1) // 2, n])

    def _scopes(self) -> Iterator[tuple[int, ...]]:
        units = range(self.num_units)
        return itertools.chain(itertools.combinations(units, 2), ((i,) for i in units))

    def _table(self, *scope: int) -> np.ndarray:
        x, w, i = self.grid.nodes, np.asarray(self.couplings), scope[0]
        if len(scope) == 2:
            return -w[scope] * np.outer(x, x)
        return self.bias[i].item() * x - w[i, i] * x**2 / 2

    def flatten(self, data: PyTree) -> Array:
        """Couplings beside the bias, `[n, n + 1]`, as PGMax keeps them."""
        n = self.num_units
        _checks.exact_shape("data", data, (n, n + 1), "couplings beside the bias")
        data = jnp.asarray(data)
        couplings = (data[:, :n] + data[:, :n].T) / 2
        upper = couplings[np.triu_indices(n, 1)]
        return jnp.concatenate([upper, jnp.diagonal(couplings), data[:, n]])

    def unflatten(self, flat_data: AnyArray) -> Array:
        """The reverse of `flatten`."""
        n = self.num_units
        size = n * (n + 3) // 2
        _checks.exact_shape("flat_data", flat_data, (size,), "as the group has log-potentials")
        couplings, bias = from_flat(jnp.asarray(flat_data), n)
        return jnp.concatenate([couplings, bias[:, None]], axis=1)

    def moments(
        self, marginals: Float[AnyArray, "*units K"]
    ) -> tuple[Float[Array, "*units"], Float[Array, "*units"]]:
        """The means $E[x_i]$ and second moments $E[x_i^2]$ of units.

        **Arguments:**

        - `marginals`: probabilities of the states, as `pgmax.infer.get_marginals` gives them.
        """
        _checks.trailing("marginals", marginals, self.grid.nodes.shape, "as the grid has nodes")
        marginals = jnp.asarray(marginals)
        x = jnp.asarray(self.grid.nodes, marginals.dtype)
        # In full precision also where products of float32 matrices are rounded by default.
        mean, second = (jnp.matmul(marginals, y, precision="highest") for y in (x, x**2))
        return mean, second


def from_flat(
    flat: Float[AnyArray, " parameters"], n: int
) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
    """The couplings and the bias of so many units, from the log-potentials of their group."""
    upper, diagonal, bias = jnp.split(jnp.asarray(flat), [flat.size - 2 * n, flat.size - n])
    half = jnp.zeros((n, n), upper.dtype).at[np.triu_indices(n, 1)].set(upper)
    return half + half.T + jnp.diag(diagonal), bias
