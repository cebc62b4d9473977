import dataclasses
import math
import sys
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree, UInt32
from pgmax import vgroup

from .. import _checks
from .._types import AnyArray


@dataclasses.dataclass(frozen=True, eq=False)
class Ids:
    """Identities of groups, all of them equal: what is compiled for one graph serves every other
    graph of its shape, and keeps none of them alive.
    """

    ids: tuple[int, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ids) and len(self.ids) == len(other.ids)

    def __hash__(self) -> int:
        return hash(len(self.ids))


class Names(eqx.Module):
    """Which group of a graph is which, without holding the groups themselves. Identities are kept
    as data, so that they are right for what comes out of a compiled function too; while one is
    being traced, and in a gradient, which has no such data, they are those of the graph that it was
    called with first.
    """

    tokens: UInt32[AnyArray, "groups 2"]
    ids: Ids = eqx.field(static=True)

    def __init__(self, groups: list[Any]):
        self.ids = Ids(tuple(hash(group) for group in groups))
        halves = [[i >> 32, i & 0xFFFFFFFF] for i in self.ids.ids]
        self.tokens = np.array(halves, np.uint32).reshape(-1, 2)

    def index(self, group: Any, what: str, kind: str = "group") -> int:
        """The place of a group, or an error that names the argument."""
        try:
            # A variable of PGMax begins with the number that is its group's hash.
            if isinstance(group, (int, np.integer)):
                raise TypeError
            return self._now().index(hash(group))
        except (ValueError, TypeError):
            raise KeyError(
                f"{what} must be a {kind} of the graph of this model, got {_checks.describe(group)}"
            ) from None

    def place(
        self, variable: tuple[Any, Any], shapes: tuple[tuple[int, ...], ...], what: str
    ) -> tuple[int, int]:
        """The place of the group of a variable, and that of the variable in it. PGMax numbers the
        variables of a group from the hash of the group on.
        """
        number = hash(int(variable[0]))
        for k, (own, shape) in enumerate(zip(self._now(), shapes, strict=True)):
            offset = (number - own) % sys.hash_info.modulus
            if offset < math.prod(shape):
                return k, offset
        raise KeyError(f"{what} must be a variable of the graph of this model, got {variable}")

    def _now(self) -> list[int]:
        if self.tokens is None or not _checks.is_concrete(self.tokens):
            return list(self.ids.ids)
        return [(int(a) << 32) + int(b) for a, b in np.asarray(self.tokens)]


def is_variable(x: Any) -> bool:
    """Whether this is how PGMax writes a variable: its number, and that of its states."""
    return isinstance(x, tuple) and len(x) == 2 and all(isinstance(k, (int, np.integer)) for k in x)


class Named(eqx.Module):
    """An array for each group of a graph, which `named[group]` gives; for a `VarDict`, a dictionary
    of the names of its variables, as in PGMax. `named[variable]` is what belongs to one variable.
    """

    values: tuple[PyTree, ...]
    names: Names
    # Those of groups of variables; of factor groups there are none.
    shapes: tuple[tuple[int, ...], ...] | None = eqx.field(static=True)

    def __getitem__(self, group: Any) -> Any:
        found = self.take(group, "the index")
        if not isinstance(group, vgroup.VarDict):
            return found
        states: Any = group.num_states
        pairs = zip(group.variable_names, states, strict=True)
        return {name: self._one(found, 1, at, int(n)) for at, (name, n) in enumerate(pairs)}

    def take(self, group: Any, what: str) -> Any:
        """The array of a group or of a variable, or an error that names the argument."""
        if self.shapes is not None and is_variable(group):
            k, at = self.names.place(group, self.shapes, what)
            return self._one(self.values[k], len(self.shapes[k]), at, int(group[1]))
        return self.values[self.names.index(group, what)]

    def _one(self, x: Any, rank: int, at: int, states: int) -> Any:
        """What belongs to one variable of a group of so many axes: a state, which is an integer, or
        a number for each state, along a last axis.
        """
        per_state = not jnp.issubdtype(x.dtype, jnp.integer)
        first = x.ndim - rank - per_state
        index = np.unravel_index(at, x.shape[first : first + rank])
        return x[(slice(None),) * first + index + (slice(states),) * per_state]
