"""The groups of units of a model, and the ways between them, all units, and what users see."""

import collections
import functools
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Num, PyTree, Shaped

from .. import _checks
from .._types import AnyArray
from ..units import AbstractUnits, Binary


class Layers(NamedTuple):
    """One value for each unit of a layered model: states, probabilities or log-odds.

    `hidden` is an array, or a tuple of arrays from the lowest layer up for a [`ebmlearn.DBM`][].

    !!! example

        ```python
        samples = ebmlearn.sample(ebmlearn.RBM.init(16, 8), ebmlearn.Gibbs(), 10)
        samples.visible.shape, samples.hidden.shape  # (10, 16), (10, 8)
        ```

    **Fields:**

    - `visible`: an array, `[..., visible]`.
    - `hidden`: an array, `[..., hidden]`, or a tuple of arrays.
    """

    visible: PyTree
    hidden: PyTree


class Units(NamedTuple):
    """One value for each unit of a model without layers: states, probabilities or log-odds.

    !!! example

        ```python
        samples = ebmlearn.sample(ebmlearn.BoltzmannMachine.init(16), ebmlearn.Gibbs(), 10)
        samples.x.shape  # (10, 16)
        ```

    **Fields:**

    - `x`: an array, `[..., units]`.
    """

    x: PyTree


# The layers that data do not tell, by their names.
HIDDEN = re.compile(r"hidden(_[1-9][0-9]*)?")
# The names of most models.
TUPLES: dict[tuple[str, ...], Any] = {("visible", "hidden"): Layers, ("x",): Units}


def named(names: tuple[str, ...], values: Sequence[Any]) -> Any:
    """Values by the names of their layers. `hidden_1`, `hidden_2`, ... are a tuple, `hidden`."""
    fields: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        field = _field(name)
        fields[field] = value if field == name else (*fields.get(field, ()), value)
    return _tuple_of(tuple(fields))(**fields)


def by_layer(name: str, names: tuple[str, ...], given: Any) -> list[Any]:
    """The reverse of `named`, checked, with None where nothing is given."""
    if given is None:
        return [None] * len(names)
    like = named(names, range(len(names)))
    kind = type(like)
    if not isinstance(given, kind):
        raise TypeError(
            f"`{name}` must be `{kind.__name__}({', '.join(kind._fields)})` with an array or None"
            f" for each, got {_checks.describe(given)}."
        )
    out = []
    for part, wanted in zip(given, like, strict=True):
        number = len(jax.tree.leaves(wanted))
        parts = list(part) if isinstance(part, (tuple, list)) else [part]
        if part is None:
            parts = [None] * number
        if len(parts) != number:
            raise ValueError(f"`{name}` must hold {number} hidden layers, got {len(parts)}.")
        out += parts
    return out


def check_names(names: tuple[str, ...]) -> None:
    """Raises `ValueError` unless names can be those of layers in this order."""
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"`layers` must have names such as 'visible', got {name!r}.")
    if names and HIDDEN.fullmatch(names[0]):
        raise ValueError(f"`layers` must begin with a visible layer, got {', '.join(names)}.")
    numbered = [name for name in names if _field(name) != name]
    mixed = "hidden" in names and numbered
    if mixed or jax.tree.leaves(named(names, range(len(names)))) != list(range(len(names))):
        raise ValueError(
            "`layers` must name hidden layers `hidden`, or `hidden_1`, `hidden_2` and so on one"
            f" after the other, got {', '.join(names)}."
        )


def _field(name: str) -> str:
    return "hidden" if HIDDEN.fullmatch(name) else name


@functools.lru_cache(256)
def _tuple_of(fields: tuple[str, ...]) -> Any:
    for kind in (Layers, Units):
        if kind._fields == fields:
            return kind
    return collections.namedtuple("Named", fields)


class Groups(eqx.Module):
    """An array for each group, which `groups[name]` gives.

    !!! example

        ```python
        model = ebmlearn.TableModel([2, 3], [(0, 1)], [jnp.eye(2, 3)])
        samples = ebmlearn.sample(model, ebmlearn.Gibbs(), 10)
        samples["x"].shape  # (10, 2)
        ```

    **Fields:**

    - `values`: the arrays.
    - `names`: the names of the groups, in the same order.
    """

    values: tuple[PyTree, ...]
    names: tuple[Hashable, ...] = eqx.field(static=True)

    def __getitem__(self, name: Hashable) -> Any:
        return self.take(name, "the index")

    def take(self, name: Any, what: str) -> Any:
        """What belongs to a name, or an error that names the argument."""
        return self.values[place(self.names, name, what)]


def place(names: tuple[Hashable, ...], name: Any, what: str) -> int:
    """The place of a name, or an error that names the argument."""
    if name not in names:
        wanted = ", ".join(repr(n) for n in names)
        raise KeyError(f"{what} must be one of {wanted}, got {name!r}.")
    return names.index(name)


class Variables(NamedTuple):
    """The groups of units of a model, in order: their names, their units, and the shapes in which
    users see them. Where they are `grouped`, users name them in dictionaries.

    !!! example

        ```python
        variables = ebmlearn.RBM.init(16, 8).variables
        variables.names, variables.units, variables.shapes
        ```

    **Fields:**

    - `names`: the names of the groups.
    - `units`: the units of each group.
    - `shapes`: the shape in which users see each group.
    - `grouped`: whether users name groups in dictionaries.
    """

    names: tuple[str, ...]
    units: tuple[AbstractUnits, ...]
    shapes: tuple[tuple[int, ...], ...]
    grouped: bool

    @property
    def by_name(self) -> Mapping[str, AbstractUnits]:
        """The units of each group."""
        return dict(zip(self.names, self.units, strict=True))

    @property
    def ends(self) -> list[int]:
        """How many units the groups up to each have, all together."""
        return np.cumsum([units.size for units in self.units]).tolist()

    @property
    def starts(self) -> Mapping[str, int]:
        """The number of the first unit of each group among all."""
        return dict(zip(self.names, [0, *self.ends[:-1]], strict=True))

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of states of each unit."""
        numbered: Any = self.units
        return tuple(n for units in numbered for n in units.numbers)

    @property
    def seen(self) -> tuple[int, ...]:
        """The observed groups: all of a model whose groups are named, else those that are not
        named `hidden`, or `hidden_1`, `hidden_2` and so on.
        """
        hidden = [not self.grouped and HIDDEN.fullmatch(name) for name in self.names]
        return tuple(k for k, is_hidden in enumerate(hidden) if not is_hidden)

    @property
    def maximised(self) -> tuple[int, ...] | None:
        """The groups over which mixed-product maximises: those that are not named `hidden`, or
        `hidden_1`, `hidden_2` and so on. None if users name groups, and no group so.
        """
        found = tuple(k for k, name in enumerate(self.names) if not HIDDEN.fullmatch(name))
        return None if self.grouped and len(found) == len(self.names) else found

    @property
    def unseen(self) -> tuple[int, ...]:
        """The hidden groups."""
        return tuple(k for k in range(len(self.names)) if k not in self.seen)

    def place(self, name: Any, what: str) -> int:
        """The number of a group, or an error that names the argument."""
        return place(self.names, name, what)

    def cut(self, x: Shaped[AnyArray, "..."], axis: int = -1) -> list[Array]:
        """The parts of an array of all units that belong to each group."""
        return jnp.split(jnp.asarray(x), self.ends[:-1], axis=axis)

    def named(self, values: Sequence[PyTree]) -> PyTree:
        """Names the values of groups: [`ebmlearn.Layers`][], [`ebmlearn.models.Units`][], a tuple
        like them, or what `groups[name]` reads.
        """
        if self.grouped:
            return Groups(tuple(values), self.names)
        usual = TUPLES.get(self.names)
        return named(self.names, values) if usual is None else usual(*values)

    def states(self, layers: Sequence[Num[Array, "... _"]]) -> dict[str, Num[Array, "... _"]]:
        """Internal states by name, as factors take them: where users name groups, these have few
        states, and integers are faster.
        """
        if not self.grouped:
            return dict(zip(self.names, layers, strict=True))
        pairs = zip(self.names, self.units, layers, strict=True)
        return {name: units.decode(x) for name, units, x in pairs}

    def shown(
        self,
        values: Sequence[Any],
        lead: tuple[int, ...],
        other: Callable[[Array], Array] = jnp.zeros_like,
    ) -> list[Any]:
        """Reshapes values of internal states, one array a group with leading axes `lead`, to what
        users see: one axis for a layer; for a named group its shape and a last axis of states.
        Binary units hold the value of state 1, and `other` computes that of state 0 from it.
        """
        out = []
        for units, shape, x in zip(self.units, self.shapes, values, strict=True):
            if x is None or not self.grouped:
                wanted = (*lead, units.width)
                out.append(x if x is None or x.shape == wanted else x.reshape(wanted))
                continue
            own: Any = units
            both = jnp.stack([other(x), x], -1) if isinstance(units, Binary) else x
            out.append(both.reshape(*lead, *shape, own.number))
        return out

    def hidden_in(self, shown: PyTree) -> list[Any]:
        """The reverse of `shown`, from the arrays that users see by name."""
        if not self.grouped:
            return jax.tree.leaves(shown, is_leaf=lambda x: x is None)
        out = []
        for units, shape, x in zip(self.units, self.shapes, shown.values, strict=True):
            lead = x.shape[: x.ndim - len(shape) - 1]
            own = x[..., 1] if isinstance(units, Binary) else x
            out.append(own.reshape(*lead, units.width))
        return out

    def parts(self, states: PyTree) -> list[Any]:
        """The states of chains, or booleans, of each group, from what is named so; None where there
        are none.
        """
        if isinstance(states, tuple):
            return jax.tree.leaves(states, is_leaf=lambda x: x is None)
        return list(states.values)

    def masks(self, clamped: PyTree) -> list[Any] | None:
        """Which units of each group are held, from what chains keep of it; None if none are."""
        return None if clamped is None else self.parts(clamped)

    def unfolded(self, states: PyTree) -> list[Any]:
        """The states of chains in the shapes that users see."""
        pairs = zip(self.shapes, self.parts(states), strict=True)
        return [x.reshape(*x.shape[:-1], *shape) for shape, x in pairs]

    def folded(self, states: PyTree) -> list[Any]:
        """The reverse of `unfolded`; states of chains stay as they are."""
        out = []
        for shape, x in zip(self.shapes, self.parts(states), strict=True):
            lead = x.shape[: x.ndim - len(shape)]
            is_flat = x.shape[len(lead) :] != shape
            out.append(x if is_flat else x.reshape(*lead, _size(shape)))
        return out

    def filled(
        self, seen: Sequence[Float[Array, "rows _"] | None], dtype: DTypeLike
    ) -> list[Float[Array, "rows _"]]:
        """States of all groups, with zeros for hidden ones."""
        rows = next(x.shape[0] for x in seen if x is not None)
        pairs = zip(self.units, seen, strict=True)
        return [jnp.zeros((rows, u.width), dtype) if x is None else x for u, x in pairs]


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=int))


def two_sides(number: int, edges: Iterable[tuple[int, ...]]) -> list[int]:
    """0 or 1 for each of so many nodes, different for the two ends of every edge if there is no odd
    cycle. The first node of each connected part is on side 0.
    """
    around: list[list[int]] = [[] for _ in range(number)]
    for a, b in edges:
        around[a].append(b)
        around[b].append(a)
    side = [-1] * number
    for start in range(number):
        if side[start] < 0:
            side[start], waiting = 0, [start]
            while waiting:
                a = waiting.pop()
                for b in around[a]:
                    if side[b] < 0:
                        side[b] = 1 - side[a]
                        waiting.append(b)
    return side
