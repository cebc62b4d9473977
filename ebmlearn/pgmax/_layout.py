import dataclasses
import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped
from pgmax import factor, fgraph, fgroup, vgroup

from .. import _checks
from .._types import AnyArray
from ._compat import all_groups
from ._dense_group import AbstractDenseGroup, RBMFactor
from ._flat import as_flat, as_rows, cut_units
from ._kinds import NORMALISERS


# Factors of one shape: the variables of each, the states of its configurations, the numbers of
# their log-potentials, and the numbers of states of the variables.
Lists = tuple[
    Int[np.ndarray, "_ _"], Int[np.ndarray, "_ _ _"], Int[np.ndarray, "_ _"], tuple[int, ...]
]


@dataclasses.dataclass(frozen=True)
class Constants:
    """Numbers that are no parameters, though not integers: kept apart from what can be trained."""

    values: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Kind:
    """All factors of one type, but for dense groups: where their messages are, which groups of
    log-potentials they own, and the numbers that their update takes besides arrays.
    """

    type: type
    messages: tuple[int, int]
    owned: tuple[int, ...]
    numbers: tuple[tuple[str, Any], ...]

    def arguments(self) -> dict[str, Any]:
        """What the update takes besides the arrays of the wires."""
        return {k: np.array(x.values) if isinstance(x, Constants) else x for k, x in self.numbers}


@dataclasses.dataclass(frozen=True)
class Layout:
    """The shape of a graph. Graphs of one shape are equal here, and share what was compiled.
    `labels` are the names of the variables of each group that has them.
    """

    variables: tuple[tuple[tuple[int, ...], int], ...]
    labels: tuple[tuple[Hashable, ...] | None, ...]
    groups: tuple[tuple[tuple[int, ...], bool], ...]
    kinds: tuple[Kind, ...]
    counts: tuple[int, ...] | int
    max_states: int
    num_edges: int

    @property
    def num_variables(self) -> int:
        return sum(math.prod(shape) for shape, _ in self.variables)

    @property
    def every_count(self) -> tuple[int, ...]:
        """The number of states of each variable."""
        return (self.counts,) * self.num_variables if isinstance(self.counts, int) else self.counts

    @property
    def names(self) -> tuple[str, ...]:
        """`x`, or a number for each group of variables, as `x_0`."""
        number = len(self.variables)
        return ("x",) if number == 1 else tuple(f"x_{k}" for k in range(number))

    @property
    def dense(self) -> tuple[int, ...]:
        """Which groups of log-potentials are the weights of dense groups."""
        return tuple(k for k, (_, dense) in enumerate(self.groups) if dense)

    def flat(self, parts: Sequence[Shaped[Array, "... _ _"]]) -> Shaped[Array, "... states"]:
        """Values of the states of the variables of each group, as those of all variables."""
        pads = [((0, 0),) * (x.ndim - 1) + ((0, self.max_states - x.shape[-1]),) for x in parts]
        rows = jnp.concatenate([jnp.pad(x, pad) for x, pad in zip(parts, pads, strict=True)], -2)
        return as_flat(rows, self.every_count)

    def by_group(self, flat: Shaped[Array, "... states"]) -> tuple[Shaped[Array, "..."], ...]:
        """Values of the states of all variables by group, `[..., *shape, states]`."""
        return cut_units(as_rows(flat, self.every_count), self.variables)


class Wires(eqx.Module):
    """Which edge joins what, as arrays."""

    states: Int[AnyArray, " edge_states"]
    edges: Int[AnyArray, " edge_states"]
    factors: Int[AnyArray, " edge_states"]
    ends: tuple[tuple[Int[AnyArray, " _"], Int[AnyArray, " _"]], ...]
    arguments: tuple[dict[str, AnyArray], ...]
    variable: Int[AnyArray, " states"]
    local: Int[AnyArray, " states"]


def lay_out(
    variable_groups: Sequence[vgroup.VarGroup],
    factor_groups: Mapping[Any, Sequence[fgroup.FactorGroup]],
    starts: Mapping[Any, Any],
    wirings: Mapping[Any, Any] | None = None,
) -> tuple[Layout, Wires, list[fgroup.FactorGroup]]:
    """Reads a graph: its shape, its wires, and the groups that have log-potentials, in PGMax's own
    order. Dense groups are never spelled out edge by edge.
    """
    sizes = [np.asarray(group.num_states) for group in variable_groups]
    counts = np.concatenate([size.reshape(-1) for size in sizes]).astype(np.int32)
    variable = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    local = np.arange(len(variable), dtype=np.int32) - (np.cumsum(counts) - counts)[variable]
    most = int(counts.max())

    kinds, owners, shapes, pairs = [], [], [], []
    tables, arguments, messages = [np.zeros((0, 3), np.int32)], [], 0
    before = np.zeros(3, np.int32)
    for kind, groups in factor_groups.items():
        if kind is RBMFactor:
            for group in groups:
                assert isinstance(group, AbstractDenseGroup)
                pairs.append(group.begins(starts))
                owners.append(group)
                shapes.append((group.shape, True))
            continue
        if not groups:
            continue
        if kind not in NORMALISERS:
            raise TypeError(
                f"`graph` must be made of factors with a log Z of their own, got {kind.__name__}."
            )
        first_owned = len(owners)
        owners += [group for group in groups if math.prod(_shape(group))]
        shapes += [(_shape(group), False) for group in owners[first_owned:]]
        if wirings is None:
            wiring = kind.concatenate_wirings([group.compile_wiring(starts) for group in groups])
        else:
            wiring = wirings[kind]
        table = np.asarray(wiring.var_states_for_edges)
        arrays, numbers = {}, []
        for name, x in wiring.get_inference_arguments().items():
            if isinstance(x, np.ndarray) and np.issubdtype(x.dtype, np.floating):
                numbers.append((name, Constants(tuple(x.tolist()))))
            elif hasattr(x, "shape") and np.ndim(x):
                arrays[name] = np.asarray(x, np.int32)
            else:
                numbers.append((name, int(x) if hasattr(x, "shape") else x))
        if kind is factor.EnumFactor:
            # Which factor each listed configuration belongs to.
            each = np.unique(arrays["factor_configs_indices"], return_index=True)[1]
            arrays["factors"] = table[arrays["factor_configs_edge_states"][each], 2].astype(
                np.int32
            )
        owned = tuple(range(first_owned, len(owners)))
        kinds.append(Kind(kind, (messages, messages + len(table)), owned, tuple(numbers)))
        arguments.append(arrays)
        tables.append((table + before).astype(np.int32))
        messages += len(table)
        # Edges and factors are numbered on.
        before[1:] += table[-1, 1:] + 1
    table = np.concatenate(tables)
    layout = Layout(
        variables=tuple((size.shape, int(size.max(initial=1))) for size in sizes),
        labels=tuple(getattr(group, "variable_names", None) for group in variable_groups),
        groups=tuple(shapes),
        kinds=tuple(kinds),
        counts=most if (counts == most).all() else tuple(counts.tolist()),
        max_states=most,
        num_edges=int(before[1]),
    )
    wires = Wires(
        states=table[:, 0],
        edges=table[:, 1],
        factors=table[:, 2],
        ends=tuple(pairs),
        arguments=tuple(arguments),
        variable=variable,
        local=local.astype(np.int32),
    )
    return layout, wires, owners


def configurations(
    layout: Layout, wires: Wires, k: int
) -> Iterator[Int[np.ndarray, "factors configurations _"]]:
    """For each group of a kind whose factors list their configurations, the states of these, among
    those of all variables. Wires must be known.
    """
    kind, arguments, first = layout.kinds[k], wires.arguments[k], 0
    states = np.asarray(wires.states)[slice(*kind.messages)]
    states = states[np.asarray(arguments["factor_configs_edge_states"])]
    for group in kind.owned:
        shape, _ = layout.groups[group]
        last = first + math.prod(shape)
        own = slice(*np.searchsorted(arguments["factor_configs_indices"], [first, last]))
        number = 1 if len(shape) == 1 else shape[0]
        yield states[own].reshape(number, math.prod(shape) // number, -1)
        first = last


def listings(layout: Layout, wires: Wires, k: int) -> Iterator[Lists]:
    """The factors of a kind that list their configurations, those of a group whose variables have
    the same numbers of states together. Wires must be known.
    """
    variable, local, first = np.asarray(wires.variable), np.asarray(wires.local), 0
    for states in configurations(layout, wires, k):
        scopes, (size, width, _) = variable[states[:, 0]], states.shape
        numbers = np.arange(first, first + size * width).reshape(size, width)
        first += numbers.size
        sizes = np.asarray(layout.every_count)[scopes]
        for shape in np.unique(sizes, axis=0):
            same = (sizes == shape).all(-1)
            yield scopes[same], local[states[same]], numbers[same], tuple(shape.tolist())


def initial(group: fgroup.FactorGroup) -> Float[Array, "..."]:
    """The log-potentials of a group in the shape that models keep them in. Those that forbid a
    configuration are made finite, as PGMax does before it runs.
    """
    values = np.asarray(group.log_potentials).reshape(_shape(group))
    return _checks.log_potentials("graph", jnp.asarray(values, float))


def _shape(group: fgroup.FactorGroup) -> tuple[int, ...]:
    potentials = np.asarray(group.log_potentials)
    if isinstance(group, AbstractDenseGroup):
        return group.shape
    if isinstance(group, fgroup.PairwiseFactorGroup):
        matrix: Any = group.log_potential_matrix
        return (potentials.shape[0], *matrix.shape[-2:])
    if isinstance(group, fgroup.SingleFactorGroup) and potentials.ndim == 2:
        return potentials.shape[1:]
    return potentials.shape


def check_graph(graph: fgraph.FactorGraph) -> None:
    """Raises unless a graph was built after our factor types were made known to PGMax, and its
    factors list each configuration once.
    """
    if RBMFactor not in all_groups(graph):
        raise ValueError(
            "`graph` must be built after `import ebmlearn.pgmax`, got one that was built before."
        )
    for group in graph.factor_groups.get(factor.EnumFactor, []):
        listed = getattr(getattr(group, "single_factor", group), "factor_configs", ())
        for often, number in Counter(map(tuple, np.asarray(listed).tolist())).most_common(1):
            if number > 1:
                raise ValueError(
                    "`graph` must list each configuration of a factor once, got"
                    f" {often} {number} times: add up its potentials."
                )
