"""Which variables of a graph are drawn together, and which follow others."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int
from pgmax import factor

from .._types import AnyArray
from ..models import coloured
from ._layout import configurations, Layout, Wires


# From the type of a factor with a variable that the others determine to the names of its arguments:
# the factors and the messages of what determines it, and its own messages.
_LOGICAL = ("parents_factor_indices", "parents_msg_indices", "children_edge_states")
_POOL = (
    "pool_choices_factor_indices",
    "pool_choices_msg_indices",
    "pool_indicators_edge_states",
)
_DETERMINING: dict[type, tuple[str, str, str]] = {
    factor.ORFactor: _LOGICAL,
    factor.ANDFactor: _LOGICAL,
    factor.PoolFactor: _POOL,
}


class Sites(eqx.Module):
    """How the variables of a graph are drawn.

    Without OR, AND and pool factors, in `turns` of variables that share no factor. With them, the
    variables that none of them determines are drawn one by one, and `children` follow: each is 1
    where at least `needed` of its parents are.
    """

    turns: Int[AnyArray, "turns width"]
    parents: Int[AnyArray, " parents"]
    of: Int[AnyArray, " parents"]
    children: Int[AnyArray, " factors"]
    needed: Int[AnyArray, " factors"]
    choices: Int[AnyArray, " choices"]
    depth: int = eqx.field(static=True)
    pools: tuple[int, ...] = eqx.field(static=True)
    problem: str | None = eqx.field(static=True)

    def followed(
        self, rows: Int[Array, "rows variables"], held: Bool[Array, "rows variables"] | None = None
    ) -> Int[Array, "rows variables"]:
        """Configurations in which children that are not held have followed their parents."""
        parents, children, of = (jnp.asarray(x) for x in (self.parents, self.children, self.of))
        for _ in range(self.depth):
            ones = jax.ops.segment_sum(rows[:, parents].T, of, children.shape[0]).T
            on = ones >= jnp.broadcast_to(jnp.asarray(self.needed, ones.dtype), ones.shape)
            new = on.astype(rows.dtype)
            if held is not None:
                new = jnp.where(held[:, children], rows[:, children], new)
            rows = rows.at[:, children].set(new)
        return rows


def sites_of(layout: Layout, wires: Wires) -> Sites:
    """How the variables of a graph are drawn, found when a model is made of it."""
    variable, number = np.asarray(wires.variable), layout.num_variables
    found: dict[str, list[np.ndarray]] = {
        name: [] for name in ("parents", "of", "children", "needed", "choices")
    }
    pools = []
    for k, kind in enumerate(layout.kinds):
        if kind.type not in _DETERMINING:
            continue
        owner, above, below = related(layout, wires, k)
        counts = np.bincount(owner, minlength=len(below))
        found["parents"].append(above)
        found["of"].append(owner + sum(map(len, found["children"])))
        found["children"].append(below)
        found["needed"].append(counts if kind.type is factor.ANDFactor else np.ones_like(counts))
        if kind.type is factor.PoolFactor:
            found["choices"].append(above)
            pools += counts.tolist()
    flat = {
        name: np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32)
        for name, parts in found.items()
    }
    depth, problem = _depth(flat["parents"], flat["of"], flat["children"], flat["choices"])
    if depth:
        free = np.setdiff1d(np.arange(number, dtype=np.int32), flat["children"])
        turns = free[:, None]
    else:
        turns = _coloured(layout, wires, variable, number)
    return Sites(turns=turns, depth=depth, pools=tuple(pools), problem=problem, **flat)


def related(
    layout: Layout, wires: Wires, k: int
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], Int[np.ndarray, " factors"]]:
    """The variables that determine others by factors of a kind, with the number of the factor of
    each, and those others.
    """
    kind, variable = layout.kinds[k], np.asarray(wires.variable)
    names = _DETERMINING[kind.type]
    owner, first, last = (np.asarray(wires.arguments[k][name]) for name in names)
    states = np.asarray(wires.states)[slice(*kind.messages)]
    return owner, variable[states[first]], variable[states[last]]


def _depth(
    parents: np.ndarray, of: np.ndarray, children: np.ndarray, choices: np.ndarray
) -> tuple[int, str | None]:
    """After how many rounds all children have followed, and why chains would not do, if so."""
    if not len(children):
        return 0, None
    if len(np.unique(children)) < len(children):
        return 1, "a variable is determined by two factors, which chains cannot change together"
    if np.isin(choices, children).any():
        return (
            1,
            "a choice of a pool is determined by other variables, which pools exclude at times",
        )
    level = np.full(max(parents.max(), children.max()) + 1, -1)
    level[children] = 0
    for depth in range(1, len(children) + 1):
        deepest = np.full(len(children), -1)
        np.maximum.at(deepest, of, level[parents])
        if (deepest + 1 == level[children]).all():
            return depth, None
        level[children] = deepest + 1
    return 1, "variables determine each other in a circle"


def _coloured(
    layout: Layout, wires: Wires, variable: np.ndarray, number: int
) -> Int[np.ndarray, "turns width"]:
    """Variables in classes of which no two share a factor."""
    factors: list[list[tuple[int, int]]] = [[] for _ in range(number)]
    size = 0
    for k, kind in enumerate(layout.kinds):
        if kind.type is factor.EnumFactor:
            found = configurations(layout, wires, k)
            scopes = [row for states in found for row in variable[states[:, 0]]]
        else:
            # Of other kinds, all variables may depend on each other.
            scopes = [np.unique(variable[np.asarray(wires.states)[slice(*kind.messages)]])]
        for scope in scopes:
            for v in scope.tolist():
                factors[v].append((size, size))
            size += 1
    for first, second in wires.ends:
        # What lies at one end of a dense group depends on all that lies at the other.
        for end, own in ((first, 0), (second, 1)):
            for v in variable[np.asarray(end)].tolist():
                factors[v].append((size + own, size + 1 - own))
        size += 2
    return coloured(factors)
