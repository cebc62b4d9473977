"""Which variables of a graph a query is about, by groups."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from .. import _checks


def as_groups(groups: Any) -> tuple[Any, ...] | None:
    """A list of groups, checked, or None."""
    if groups is None:
        return None
    if not isinstance(groups, (list, tuple)):
        got = _checks.describe(groups)
        raise TypeError(f"`groups` must be a list of groups of variables, got {got}.")
    if not groups:
        raise ValueError("`groups` must contain at least one group, got 0.")
    return tuple(groups)


def places_in(
    model: Any, groups: tuple[Any, ...], name: str = "groups"
) -> list[Int[np.ndarray, " own"]]:
    """The indices of the variables of each group."""
    return [model.places(group, name).reshape(-1) for group in groups]


def chosen(model: Any, groups: tuple[Any, ...] | None) -> Bool[np.ndarray, " variables"] | None:
    """Which variables `groups` names, None if it is not given."""
    return None if groups is None else members_of(model, groups, "groups")


def members_of(model: Any, groups: tuple[Any, ...], name: str) -> Bool[np.ndarray, " variables"]:
    """Which variables belong to some groups."""
    out = np.zeros(model.num_asked, bool)
    for own in places_in(model, groups, name):
        out[own] = True
    return out
