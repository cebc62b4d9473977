"""One vocabulary for the units of all models: `visible`, `hidden`, `label` or `x`."""

import collections
import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jaxtyping import PyTree

from .. import _checks


class Layers(NamedTuple):
    """One value for each unit of a layered model: states, probabilities or log-odds.

    `hidden` is an array, or a tuple of arrays from the lowest layer up for a [`ebmlearn.DBM`][].
    """

    visible: PyTree
    hidden: PyTree


class Units(NamedTuple):
    """One value for each unit of a model without layers: states, probabilities or log-odds."""

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
