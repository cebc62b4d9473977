"""Which variables of a graph a query is about, by groups."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from .. import _checks
from ..models._graph import AbstractGraphModel
from ._answers import places_of, plain_of


def num_units(model: Any) -> int:
    """How many units can be given or asked for."""
    model = plain_of(model)
    if isinstance(model, AbstractGraphModel):
        return len(model.num_states)
    return model.unary()[0].shape[-1]


def as_groups(groups: Any) -> tuple[Any, ...] | None:
    """A list of groups, checked, or None."""
    if groups is None:
        return None
    if not isinstance(groups, (list, tuple)):
        got = _checks.describe(groups)
        raise TypeError(f"`groups` must be a list of groups of variables, got {got}.")
    if not groups:
        raise ValueError("`groups` must hold a group at least, got none.")
    return tuple(groups)


def _names(groups: tuple[Any, ...]) -> str:
    """Groups in an error."""
    names = (repr(x) if isinstance(x, str) else type(x).__name__ for x in groups)
    return f"groups {', '.join(names)}"


def places_in(
    model: Any, groups: tuple[Any, ...], name: str = "groups"
) -> list[Int[np.ndarray, " own"]]:
    """Where the variables of each group stand among all."""
    graph = plain_of(model)
    if not isinstance(graph, AbstractGraphModel):
        kind = type(graph).__name__
        wanted = "not be given" if name == "groups" else "be booleans, one a unit,"
        raise TypeError(
            f"`{name}` must {wanted} for a model that is no graph, of type {kind}, got"
            f" {_names(groups)}."
        )
    return [places_of(graph, group, name).reshape(-1) for group in groups]


def chosen(model: Any, groups: tuple[Any, ...] | None) -> Bool[np.ndarray, " variables"] | None:
    """Which variables `groups` names, None if it is not given."""
    return None if groups is None else members_of(model, groups, "groups")


def members_of(model: Any, groups: tuple[Any, ...], name: str) -> Bool[np.ndarray, " variables"]:
    """Which variables belong to some groups."""
    out = np.zeros(num_units(model), bool)
    for own in places_in(model, groups, name):
        out[own] = True
    return out
