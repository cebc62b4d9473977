"""Data and evidence for the variables of a graph, in all forms that PGMax takes: for whole groups,
for the variables of a `VarDict` by name, and for single variables.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from .. import _checks
from ._flat import Sizes
from ._identities import is_variable, Names


# Values of whole groups, and of single variables: by group and place in it.
Parts = tuple[dict[int, Any], dict[int, dict[int, Any]]]


def by_group(x: Any, name: str) -> Mapping[Any, Any]:
    """The mapping itself, or `TypeError`."""
    if not isinstance(x, Mapping):
        raise TypeError(f"`{name}` must be a dictionary of groups, got {_checks.describe(x)}.")
    return x


def parts_of(data: Mapping[Any, Any], names: Names, sizes: Sizes, name: str) -> Parts:
    """Says where each value belongs."""
    shapes = tuple(shape for shape, _ in sizes)
    whole: dict[int, Any] = {}
    single: dict[int, dict[int, Any]] = {}
    for key, x in by_group(data, name).items():
        if is_variable(key):
            k, at = names.place(key, shapes, f"`{name}`")
            single.setdefault(k, {})[at] = x
            continue
        k = names.index(key, f"`{name}`")
        if not isinstance(x, Mapping):
            whole[k] = x
            continue
        known = getattr(key, "variable_names", None)
        if known is None:
            raise TypeError(
                f"`{name}` must hold an array for a group whose variables have no names, got"
                f" {_checks.describe(x)}."
            )
        for own, value in x.items():
            if own not in known:
                raise KeyError(f"`{name}` must name variables of {known}, got {own!r}")
            single.setdefault(k, {})[known.index(own)] = value
    return whole, single


def joined(
    parts: Parts, sizes: Sizes, counts: Int[np.ndarray, " variables"], soft: bool, name: str
) -> dict[int, Any]:
    """One array for each group: where nothing is said of a variable, -1 for its state, or as
    likely a state as another.
    """
    whole, single = parts
    out = dict(whole)
    first = np.cumsum([0, *(math.prod(shape) for shape, _ in sizes)])
    for k, columns in single.items():
        shape, most = sizes[k]
        size = math.prod(shape)
        own = counts[first[k] : first[k] + size]
        tail = (most,) if soft else ()
        found = {
            at: _likelihood(x, int(own[at]), most, name) if soft else _state(x, name)
            for at, x in columns.items()
        }
        dtype = next(iter(found.values())).dtype
        base = out.get(k, jnp.full((*shape, *tail), 1 if soft else -1, dtype))
        base = jnp.asarray(base) if soft else _state(base, name)
        _checks.trailing(name, base, (*shape, *tail), "as the group of variables has")
        batches = {f"{name}[{at}]": x.shape[: x.ndim - soft] for at, x in found.items()}
        batches[name] = base.shape[: base.ndim - len(shape) - soft]
        batch = _checks.broadcastable(**batches)
        base = jnp.broadcast_to(base, (*batch, *shape, *tail))
        base = base.reshape(*batch, size, *tail).astype(dtype)
        rows = [jnp.broadcast_to(x, (*batch, *tail)) for x in found.values()]
        places = (slice(None),) * len(batch) + (np.array(list(found)),)
        filled = base.at[places].set(jnp.stack(rows, len(batch)).astype(dtype))
        out[k] = filled.reshape(*batch, *shape, *tail)
    return out


def _state(x: Any, name: str) -> Int[Array, "*batch"]:
    x = jnp.asarray(x)
    if not (jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == jnp.bool_):
        raise TypeError(
            f"`{name}` must hold states, integers or booleans, got {_checks.describe(x)}."
        )
    return x.astype(jnp.int32)


def _likelihood(x: Any, states: int, most: int, name: str) -> Array:
    x = jnp.asarray(x)
    _checks.trailing(name, x, (states,), "a likelihood for each state")
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, most - states)])
