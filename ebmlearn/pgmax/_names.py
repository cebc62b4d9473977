from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import PyTree, UInt32

from .. import _checks
from .._types import AnyArray


class _Ids:
    """Identities of groups, all of them equal: what is compiled for one graph serves every other
    graph of its shape, and keeps none of them alive.
    """

    def __init__(self, ids: tuple[int, ...]):
        self.ids = ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ids) and len(self.ids) == len(other.ids)

    def __hash__(self) -> int:
        return hash(len(self.ids))


class Names(eqx.Module):
    """Which group of a graph is which, without holding the groups themselves. Identities are kept
    as data, so that they are right for what comes out of a compiled function too; while one is
    being traced, and in a gradient, which has no such data, they are those of the graph that it was
    called with first.
    """

    tokens: UInt32[AnyArray, "groups 2"]
    ids: _Ids = eqx.field(static=True)

    def __init__(self, groups: list[Any]):
        self.ids = _Ids(tuple(hash(group) for group in groups))
        halves = [[i >> 32, i & 0xFFFFFFFF] for i in self.ids.ids]
        self.tokens = np.array(halves, np.uint32).reshape(-1, 2)

    def index(self, group: Any, what: str) -> int:
        """The place of a group, or an error that names the argument."""
        if self.tokens is None or not _checks.is_concrete(self.tokens):
            ids = list(self.ids.ids)
        else:
            ids = [(int(a) << 32) + int(b) for a, b in np.asarray(self.tokens)]
        try:
            # A variable of PGMax begins with the number that is its group's hash.
            if isinstance(group, (int, np.integer)):
                raise TypeError
            return ids.index(hash(group))
        except (ValueError, TypeError):
            raise KeyError(
                f"{what} must be a group of the graph of this model, got {_checks.describe(group)}"
            ) from None


class Named(eqx.Module):
    """An array for each group of a graph, which `named[group]` gives."""

    values: tuple[PyTree, ...]
    names: Names
    what: str = eqx.field(static=True)

    def __getitem__(self, group: Any) -> Any:
        return self.take(group, self.what)

    def take(self, group: Any, what: str) -> Any:
        """What belongs to a group, or an error that names the argument."""
        return self.values[self.names.index(group, what)]
