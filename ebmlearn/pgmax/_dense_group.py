import abc
import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Shaped
from pgmax import factor, fgroup, vgroup

from .. import _checks
from .._types import AnyArray
from ..messages import hard, soft
from ..models import CRBM


# A variable of PGMax, its number and how many states it has: PGMax says `int`, and keeps integers
# of NumPy.
Variable = tuple[Any, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class AbstractShaped(factor.Wiring):
    """The wiring of groups that have shapes. What else the update needs are further fields."""

    shapes: np.ndarray

    def get_inference_arguments(self) -> dict[str, PyTree]:
        """What the update needs besides messages: all fields but the table of edges."""
        _, *own = (field.name for field in dataclasses.fields(self))
        shapes = tuple(map(tuple, np.asarray(self.shapes).tolist()))
        return {**{name: getattr(self, name) for name in own}, "shapes": shapes}

    @classmethod
    def joined(cls, wirings: Sequence[Any]) -> Any:
        """The wirings of all groups of a graph as one."""
        names = [field.name for field in dataclasses.fields(cls)]
        if not wirings:
            return cls(
                np.empty((0, 3), int), np.empty((0, 2), int), *[np.empty(0)] * len(names[2:])
            )
        first, *rest = ([np.asarray(getattr(w, name)) for w in wirings] for name in names)
        return cls(factor.concatenate_var_states_for_edges(first), *map(np.concatenate, rest))


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, eq=False)
class RBMWiring(AbstractShaped):
    """Where the messages of dense groups come from and go to. Those of a group are an array of
    shape `[visible, hidden, 2, 2]`: the last axis the state, the one before it the end of the edge.

    !!! example

        ```python
        from ebmlearn.pgmax import RBMFactor, to_pgmax

        graph = to_pgmax(ebmlearn.RBM.init(16, 8)).graph
        graph.fg_state.wiring[RBMFactor].shapes  # ((16, 8),)
        ```

    **Fields:**

    - `var_states_for_edges`: the variable state of each message.
    - `shapes`: the numbers of visible and hidden variables of each group.
    """


class Explained(type):
    """A graph that was built too early fails with a KeyError that shows the class: say why."""

    def __repr__(cls) -> str:
        return (
            f"<class 'ebmlearn.pgmax.{cls.__name__}'>: a FactorGraph that does not know it was"
            " built before `import ebmlearn.pgmax`; build it afterwards"
        )


def begins(
    name: str, variables: Sequence[Variable], starts: Mapping[Variable, Any]
) -> Int[np.ndarray, " n"]:
    """Where the states of some variables of a graph begin; an error names the argument."""
    missing = [v for v in variables if v not in starts]
    if missing:
        raise ValueError(
            f"`{name}` must be variables of the graph, got {missing[0]}, which is not."
        )
    return np.array([starts[v] for v in variables], np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class AbstractWhole(fgroup.FactorGroup):
    """A group of factors of all pairs of some variables, or of those between two sets of them. For
    PGMax it is one factor that touches all its variables; what is inside is ours.
    """

    def _fill(self, joined: list[Variable], potentials: Any, **values: Any) -> None:
        """Sets the fields of the group, which is frozen."""
        values["variables_for_factors"] = [joined]
        values["factor_configs"] = _configurations(2, int(joined[0][1]))
        values["log_potentials"] = potentials
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @abc.abstractmethod
    def _scopes(self) -> Iterator[tuple[int, ...]]:
        """The places of the variables of each factor."""

    @abc.abstractmethod
    def _table(self, *scope: int) -> np.ndarray:
        """The log-potentials of one factor."""

    @property
    def num_factors(self) -> int:  # pyright: ignore
        """The number of pairs and units."""
        return len(self.factor_sizes)

    @property
    def factor_edges_num_states(self) -> np.ndarray:  # pyright: ignore
        """The number of states of each end of each factor."""
        return np.full(self.factor_sizes.sum(), self.variables_for_factors[0][0][1])

    def _factor(self, *scope: int) -> factor.EnumFactor:
        variables, table = self.variables_for_factors[0], self._table(*scope)
        return factor.EnumFactor(
            variables=[variables[k] for k in scope],
            factor_configs=_configurations(table.ndim, len(table)),
            log_potentials=table.ravel().astype(self.log_potentials.dtype),
        )

    def compile_wiring(self, vars_to_starts: Mapping[Variable, Any]) -> Any:
        """Where the variables of the group are in the graph."""
        return self.factor_type.compile_wiring(self, vars_to_starts)

    def _get_variables_to_factors(self) -> Any:
        factors = (self._factor(*scope) for scope in self._scopes())
        return collections.OrderedDict((frozenset(x.variables), x) for x in factors)


def _configurations(ends: int, states: int) -> np.ndarray:
    """All states of one end or of two, the last changing fastest."""
    return np.indices((states,) * ends).reshape(ends, -1).T


@dataclasses.dataclass(frozen=True, eq=False)
class RBMFactor(factor.Factor, metaclass=Explained):
    """The type of the factors of [`ebmlearn.pgmax.RBMFactorGroup`][] and
    [`ebmlearn.pgmax.CRBMFactorGroup`][].

    !!! example

        ```python
        from ebmlearn.pgmax import RBMFactor, RBMFactorGroup
        from pgmax import vgroup

        one, other = (vgroup.NDVarArray(num_states=2, shape=(2,)) for _ in range(2))
        assert RBMFactorGroup(one, other, np.zeros((2, 2))).factor_type is RBMFactor
        ```

    **Fields:**

    - `variables`: the two variables that it joins.
    - `log_potentials`: its weight.
    """

    @staticmethod
    def compile_wiring(group: Any, vars_to_starts: Mapping[Variable, Any]) -> RBMWiring:
        """The wiring of one group."""
        one, two = group.begins(vars_to_starts)
        visible, hidden = group.shape
        first = np.empty((visible, hidden, 2, 2), int)
        first[:, :, 0] = one[:, None, None]
        first[:, :, 1] = two[None, :, None]
        first[..., 1] += 1
        edges = np.repeat(np.arange(2 * visible * hidden), 2)
        factors = np.repeat(np.arange(visible * hidden), 4)
        table = np.stack([first.reshape(-1), edges, factors], axis=1)
        return RBMWiring(var_states_for_edges=table, shapes=np.array([[visible, hidden]]))

    @staticmethod
    def concatenate_wirings(wirings: Sequence[RBMWiring]) -> RBMWiring:  # pyright: ignore
        """The wiring of all groups of a graph."""
        return RBMWiring.joined(wirings)

    @staticmethod
    def compute_energy(  # pyright: ignore
        edge_states_one_hot_decoding: Array,
        log_potentials: Array,
        shapes: tuple[tuple[int, int], ...],
    ) -> PyTree:
        """The energy of all groups: minus the weights whose both ends are 1."""
        ones = edge_states_one_hot_decoding.reshape(-1, 2, 2)[:, :, 1]
        return -(log_potentials * ones[:, 0] * ones[:, 1]).sum()

    # That of one edge.
    compute_factor_energy = staticmethod(factor.EnumFactor.compute_factor_energy)  # pyright: ignore


@functools.partial(jax.jit, static_argnames=("shapes", "temperature", "normalize"))
def pass_rbm_fac_to_var_messages(
    vtof_msgs: Float[Array, " states"],
    log_potentials: Float[Array, " edges"],
    shapes: tuple[tuple[int, int], ...],
    temperature: float,
    normalize: bool,
) -> Float[Array, " states"]:
    """Messages from the edges of dense groups to their ends. An edge multiplies by $e^W$ where both
    ends are 1, so that what goes to one end is, but for a constant, the log-odds
    $T \\log \\frac{1 + e^{(W + t) / T}}{1 + e^{t / T}}$ with $t$ those of the other.
    """
    # An edge needs nothing of its neighbours: one formula for all groups together.
    incoming = vtof_msgs.reshape(-1, 2, 2)
    other = incoming[:, ::-1]
    t = other[:, :, 1] - other[:, :, 0]
    w = jnp.broadcast_to(log_potentials[:, None], t.shape)
    # The formulas of one edge are those of our own belief propagation, on centred units.
    half = w / 2
    centred = t + half
    if temperature:
        rise = half + temperature * soft(half / temperature, centred / temperature)
    else:
        rise = half + hard(half, centred)
    if normalize:
        base = jnp.zeros_like(rise)
    else:
        base = other.max(-1)
        if temperature:
            base = base + temperature * jnp.log1p(jnp.exp(-jnp.abs(t) / temperature))
    return jnp.stack([base, base + rise], -1).reshape(-1)


@dataclasses.dataclass(frozen=True, eq=False)
class AbstractDenseGroup(AbstractWhole):
    """All edges between visible and hidden variables, pairwise factors that are $W_{ij}$ where both
    ends are 1, else 0.
    """

    visible_variables: Sequence[Variable]
    hidden_variables: Sequence[Variable]
    weights: Any
    factor_type: Any = dataclasses.field(init=False, default=RBMFactor)

    def _fill_dense(
        self, visible_variables: Any, hidden_variables: Any, weights: Any, **values: Any
    ) -> None:
        """Checks the arguments that all dense groups have, and fills the fields from them."""
        visible = listed("visible_variables", visible_variables, 2)
        hidden = listed("hidden_variables", hidden_variables, 2)
        known = set(hidden)
        both = [v for v in visible if v in known]
        if both:
            raise ValueError(
                f"`hidden_variables` must not be among `visible_variables`, got {both[0]} in both."
            )
        weights = _checks.parameter("weights", weights)
        shape = len(visible), len(hidden)
        _checks.exact_shape("weights", weights, shape, "as there are variables")
        _checks.finite(weights=weights)
        values.update(visible_variables=visible, hidden_variables=hidden, weights=weights)
        self._fill([*visible, *hidden], np.asarray(weights).reshape(-1), **values)

    def begins(self, starts: Mapping[Variable, Any]) -> tuple[Int[np.ndarray, " _"], ...]:
        """Where the states of the visible and of the hidden variables begin."""
        names = "visible_variables", "hidden_variables"
        return tuple(begins(name, getattr(self, name), starts) for name in names)

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of visible and hidden variables."""
        return len(self.visible_variables), len(self.hidden_variables)

    @property
    def factor_sizes(self) -> np.ndarray:  # pyright: ignore
        """Two ends of each edge."""
        return np.full(math.prod(self.shape), 2)

    def __getitem__(self, variables: Sequence[Variable]) -> factor.EnumFactor:
        """The factor of one edge, by its two variables in any order."""
        pair = set(variables)
        first = [i for i, v in enumerate(self.visible_variables) if v in pair]
        second = [j for j, v in enumerate(self.hidden_variables) if v in pair]
        if len(pair) != 2 or len(first) != 1 or len(second) != 1:
            raise ValueError(
                "`variables` must be a visible and a hidden variable of the group, got"
                f" {list(variables)}."
            )
        return self._factor(first[0], self.shape[0] + second[0])

    def _scopes(self) -> Iterator[tuple[int, ...]]:
        visible, hidden = self.shape
        return itertools.product(range(visible), range(visible, visible + hidden))

    def _table(self, *scope: int) -> np.ndarray:
        i, j = scope
        return np.array([[0, 0], [0, self.weights[i, j - self.shape[0]]]])

    def flatten(self, data: PyTree) -> Array:
        """Weights `[visible, hidden]`, or messages `[visible, hidden, 2, 2]` (end, state), as
        PGMax keeps them.
        """
        if data.shape not in (self.shape, (*self.shape, 2, 2)):
            raise ValueError(
                f"`data` must have shape {self.shape} or {(*self.shape, 2, 2)}, got"
                f" {_checks.describe(data)}."
            )
        return jnp.asarray(data).reshape(-1)

    def unflatten(self, flat_data: AnyArray) -> Array:
        """The reverse of `flatten`."""
        sizes = {self.num_factors: self.shape, 4 * self.num_factors: (*self.shape, 2, 2)}
        if flat_data.ndim != 1 or flat_data.size not in sizes:
            raise ValueError(
                f"`flat_data` must be a vector of {' or '.join(map(str, sizes))} numbers, got"
                f" {_checks.describe(flat_data)}."
            )
        return jnp.asarray(flat_data).reshape(sizes[flat_data.size])


@dataclasses.dataclass(frozen=True, eq=False)
class RBMFactorGroup(AbstractDenseGroup):
    """All edges of an RBM as one group of a PGMax graph: pairwise factors that are $W_{ij}$ if both
    ends are 1, else 0. Biases are evidence.

    It works with PGMax's belief propagation at any temperature, its dual solver and its energies,
    together with any other factors, and is built without a loop over pairs.

    !!! example

        ```python
        from ebmlearn.pgmax import RBMFactorGroup
        from pgmax import fgraph, vgroup

        visible = vgroup.NDVarArray(num_states=2, shape=(8, 8))
        hidden = vgroup.NDVarArray(num_states=2, shape=(20,))
        graph = fgraph.FactorGraph([visible, hidden])
        graph.add_factors(RBMFactorGroup(visible, hidden, np.zeros((64, 20))))
        ```
    """

    def __init__(
        self,
        visible_variables: vgroup.VarGroup | Sequence[Variable],
        hidden_variables: vgroup.VarGroup | Sequence[Variable],
        weights: Float[AnyArray, "visible hidden"],
    ):
        """**Arguments:**

        - `visible_variables`, `hidden_variables`: groups of binary variables, or lists of them.
        - `weights`: array of shape `[visible, hidden]`, in the order of the variables.
        """
        self._fill_dense(visible_variables, hidden_variables, weights)


@dataclasses.dataclass(frozen=True, eq=False)
class CRBMFactorGroup(AbstractDenseGroup):
    """All edges of a conditional RBM as one group. `evidence` computes the evidence from features:
    $b + U x$ for the visible variables, $c + V x$ for the hidden ones (Ping & Ihler 2017, eq. (2)).

    !!! example

        ```python
        from ebmlearn.pgmax import CRBMFactorGroup
        from pgmax import fgraph, infer, vgroup

        visible = vgroup.NDVarArray(num_states=2, shape=(64,))
        hidden = vgroup.NDVarArray(num_states=2, shape=(20,))
        graph = fgraph.FactorGraph([visible, hidden])
        group = CRBMFactorGroup(visible, hidden, ebmlearn.CRBM.init(64, 20, 64))
        graph.add_factors(group)
        bp = infer.build_inferer(graph.bp_state, backend="bp")
        arrays = bp.init(evidence_updates=group.evidence(np.zeros(64)))
        bp.get_beliefs(bp.run(arrays, num_iters=20, damping=0, temperature=1.0))
        ```
    """

    visible_group: Any
    hidden_group: Any
    model: CRBM

    def __init__(
        self, visible_variables: vgroup.VarGroup, hidden_variables: vgroup.VarGroup, model: CRBM
    ):
        """**Arguments:**

        - `visible_variables`, `hidden_variables`: groups of binary variables.
        - `model`: a CRBM with the same numbers of visible and hidden units.
        """
        for name, group in (("visible", visible_variables), ("hidden", hidden_variables)):
            if not isinstance(group, vgroup.VarGroup):
                got = _checks.describe(group)
                raise TypeError(f"`{name}_variables` must be a group of variables, got {got}.")
        if not isinstance(model, CRBM):
            raise TypeError(f"`model` must be a CRBM, got {_checks.describe(model)}.")
        own = {"visible_group": visible_variables, "hidden_group": hidden_variables, "model": model}
        self._fill_dense(visible_variables, hidden_variables, model.weights, **own)

    def evidence(self, features: Shaped[AnyArray, " features"]) -> dict[vgroup.VarGroup, Array]:
        """The evidence for PGMax's `evidence_updates`, for one instance. Use `jax.vmap` for a
        batch.

        **Arguments:**

        - `features`: array of shape `[features]`.
        """
        _checks.exact_shape("features", features, (self.model.num_features,), "as the CRBM has")
        biases = self.model.condition(features).unary()
        groups = self.visible_group, self.hidden_group
        return {
            group: jnp.stack([jnp.zeros_like(bias), bias], -1).reshape(*group.num_states.shape, 2)
            for group, bias in zip(groups, biases, strict=True)
        }


def listed(name: str, variables: Any, states: int) -> list[Variable]:
    """A list of distinct variables with a number of states."""
    if isinstance(variables, vgroup.VarGroup):
        variables = variables.variables
    variables = list(variables)
    if not variables:
        raise ValueError(f"`{name}` must contain at least one variable, got 0.")
    for variable in variables:
        if not isinstance(variable, tuple) or len(variable) != 2:
            got = _checks.describe(variable)
            raise TypeError(f"`{name}` must hold PGMax variables, got {got}.")
        if variable[1] != states:
            raise ValueError(f"`{name}` must have {states} states, got one of {variable[1]}.")
    if len(set(variables)) != len(variables):
        repeated, _ = collections.Counter(variables).most_common(1)[0]
        raise ValueError(f"`{name}` must hold different variables, got {repeated} twice.")
    return variables
