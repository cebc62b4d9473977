"""Variables of a graph by groups: from what a user says of each to rows of all, and back."""

import functools
import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from .. import _checks
from .._sentinels import LIMIT
from .._types import AnyArray


# The shape of each group, and the number of states of its variables.
Sizes = tuple[tuple[tuple[int, ...], int], ...]
# From a group and the name of an argument to the place of the group, or an error.
Index = Callable[[Any, str], int]


class Groups(eqx.Module):
    """An array for each group, which `groups[name]` gives."""

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


def rows_of(
    data: Any, name: str, sizes: Sizes, counts: Int[np.ndarray, " variables"], index: Index
) -> Int[AnyArray, "*batch variables"]:
    """States of all variables as one array, -1 where not known, from a mapping of groups to states
    `[*batch, *shape]`; checked. Such an array may be given too.
    """
    if not isinstance(data, Mapping):
        if not hasattr(data, "shape") or not hasattr(data, "dtype"):
            raise TypeError(
                f"`{name}` must be a dictionary of groups of variables, or an array of all states,"
                f" got {_checks.describe(data)}."
            )
        _checks.trailing(name, data, (len(counts),), "one state a variable")
        if not (np.issubdtype(data.dtype, np.integer) or data.dtype == np.bool_):
            raise TypeError(f"`{name}` must hold integers, got {_checks.describe(data)}.")
        _check_states(name, data, counts)
        return data.astype(np.int32)
    if not data:
        raise ValueError(f"`{name}` must contain at least one group of variables, got 0.")
    given, shapes = {}, {}
    for group, states in data.items():
        k = index(group, f"`{name}`")
        shape = sizes[k][0]
        if not hasattr(states, "shape") or not hasattr(states, "dtype"):
            raise TypeError(f"`{name}` must hold arrays, got {_checks.describe(states)}.")
        _checks.trailing(name, states, shape, "as the group of variables has")
        if not (np.issubdtype(states.dtype, np.integer) or states.dtype == np.bool_):
            raise TypeError(
                f"`{name}` must hold states, integers or booleans, got {_checks.describe(states)}."
            )
        given[k], shapes[k] = states, states.shape[: states.ndim - len(shape)]
    batch = _checks.broadcastable(**{f"{name}[{k}]": s for k, s in shapes.items()})
    parts, at = [], 0
    for k, (shape, _) in enumerate(sizes):
        size = math.prod(shape)
        own, at = counts[at : at + size].reshape(shape), at + size
        if k in given:
            _check_states(name, given[k], own)
            states = jnp.asarray(given[k]).astype(jnp.int32)
            states = jnp.broadcast_to(states, (*batch, *shape)).reshape(*batch, size)
        else:
            states = jnp.full((*batch, size), -1, jnp.int32)
        parts.append(states)
    return jnp.concatenate(parts, -1)


def likelihoods_of(
    data: Any, sizes: Sizes, counts: Int[np.ndarray, " variables"], index: Index
) -> tuple[Any, list[Float[Array, "..."]] | None]:
    """Takes floating-point likelihoods `[*batch, *shape, states]` from a mapping of groups: the
    rest of it, and their logarithms `[*batch, variables, states]` by group.
    """
    if not isinstance(data, Mapping):
        return data, None
    for x in data.values():
        if not hasattr(x, "shape") or not hasattr(x, "dtype"):
            raise TypeError(f"`evidence` must hold arrays, got {_checks.describe(x)}.")
    soft = {g: x for g, x in data.items() if jnp.issubdtype(jnp.asarray(x).dtype, jnp.floating)}
    if not soft:
        return data, None
    given, shapes = {}, {}
    ends = np.cumsum([math.prod(shape) for shape, _ in sizes])
    for group, x in soft.items():
        k = index(group, "`evidence`")
        shape, states = sizes[k]
        _checks.trailing("evidence", x, (*shape, states), "a likelihood for each state")
        if _checks.is_concrete(x):
            values = np.asarray(x)
            wrong = ~(np.isfinite(values) & (values >= 0))
            if wrong.any():
                got = values[wrong][0]
                raise ValueError(f"`evidence` must hold finite likelihoods >= 0, got {got}.")
            own = counts[ends[k] - math.prod(shape) : ends[k]].reshape(*shape, 1)
            if not (values * (np.arange(states) < own)).any(-1).all():
                raise ValueError(
                    "`evidence` must allow a state of each variable, got all likelihoods 0."
                )
        given[k] = jnp.log(jnp.asarray(x))
        shapes[f"evidence[{k}]"] = x.shape[: x.ndim - len(shape) - 1]
    batch = _checks.broadcastable(**shapes)
    parts = []
    for k, (shape, states) in enumerate(sizes):
        part = given.get(k, jnp.zeros((*shape, states)))
        part = jnp.broadcast_to(part, (*batch, *shape, states))
        parts.append(jnp.maximum(part.reshape(*batch, math.prod(shape), states), -LIMIT))
    return {g: x for g, x in data.items() if g not in soft}, parts


def cut_units(
    padded: Shaped[Array, "*batch variables most"], sizes: Sizes
) -> tuple[Shaped[Array, "..."], ...]:
    """A value for each state of each variable, by group."""
    out, at = [], 0
    for shape, states in sizes:
        part = padded[..., at : at + math.prod(shape), :states]
        out.append(part.reshape(*part.shape[:-2], *shape, states))
        at += math.prod(shape)
    return tuple(out)


def cut_states(
    states: Int[AnyArray, "*batch variables"] | Bool[AnyArray, "*batch variables"], sizes: Sizes
) -> tuple[AnyArray, ...]:
    """A state for each variable, or a boolean, by group."""
    out, at = [], 0
    for shape, _ in sizes:
        part = states[..., at : at + math.prod(shape)]
        out.append(part.reshape(*part.shape[:-1], *shape))
        at += math.prod(shape)
    return tuple(out)


def as_rows(
    flat: Shaped[Array, "*batch states"], counts: tuple[int, ...], missing: float = 0.0
) -> Shaped[Array, "*batch variables most"]:
    """The states of all variables, one after the other, as a row for each variable: `missing` where
    it has no more states.
    """
    shape = *flat.shape[:-1], len(counts), max(counts)
    if min(counts) == max(counts):
        return flat.reshape(shape)
    variable, local = _by_state(counts)
    return jnp.full(shape, missing).astype(flat.dtype).at[..., variable, local].set(flat)


def as_flat(
    rows: Shaped[Array, "*batch variables most"], counts: tuple[int, ...]
) -> Shaped[Array, "*batch states"]:
    """The reverse of `as_rows`."""
    if min(counts) == max(counts):
        return rows.reshape(*rows.shape[:-2], math.prod(rows.shape[-2:]))
    variable, local = _by_state(counts)
    return rows[..., variable, local]


@functools.lru_cache(maxsize=64)
def _by_state(counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Of each state of each variable, the variable and its number there."""
    variable = np.repeat(np.arange(len(counts)), counts)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    local = np.arange(len(variable)) - first[variable]
    return variable.astype(np.int32), local.astype(np.int32)


def joined_states(
    values: tuple[Int[Array, "..."], ...], sizes: Sizes
) -> Int[Array, "*batch variables"]:
    """The reverse of `cut_states`."""
    parts = []
    for x, (shape, _) in zip(values, sizes, strict=True):
        parts.append(x.reshape(*x.shape[: x.ndim - len(shape)], math.prod(shape)))
    return jnp.concatenate(parts, -1)


def _check_states(name: str, rows: Any, counts: Int[np.ndarray, "*variables"]) -> None:
    """Raises an error if a known value is not a state of its variable."""
    if not _checks.is_concrete(rows):
        return
    rows = np.asarray(rows)
    wrong = (rows < -1) | (rows >= counts)
    if wrong.any():
        most = np.broadcast_to(counts, rows.shape)[wrong][0] - 1
        raise ValueError(
            f"`{name}` must hold states from 0 to {most}, or -1 where not known, got"
            f" {rows[wrong][0]}."
        )
