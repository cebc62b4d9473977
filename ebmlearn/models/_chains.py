"""States that chains start from, checked."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Num, PRNGKeyArray, PyTree

from .. import _checks
from ..units import AbstractUnits
from ._base import AbstractPlainModel
from ._observed import masked, Masks, named_types, rows_by_group, Told
from ._variables import by_layer


_ARRAYS = (jax.Array, np.ndarray)


def chains(
    model: AbstractPlainModel, num_chains: int, key: PRNGKeyArray, start: Any, clamped: Any
) -> tuple[PyTree, PyTree]:
    """States of all units by name, drawn where `start` does not tell them, and which of them are
    held, or None.
    """
    if model.grouped:
        return _of_groups(model, num_chains, key, start, clamped)
    if math.prod(model.batch_shape) not in (1, num_chains) or len(model.batch_shape) > 1:
        raise ValueError(
            "`num_chains` must be the number of instances of a model with batch axes,"
            f" {model.batch_shape}, got {num_chains}."
        )
    given = by_layer("start", model.names, start)
    masks = by_layer("clamped", model.names, clamped)
    drawn = _at_random(model, num_chains, key, tuple(x is None for x in given))
    states, held = [], []
    for name, units, x, mask, other in zip(
        model.names, model.layers, given, masks, drawn, strict=True
    ):
        if x is not None:
            x = chain_states(f"start ({name})", x, num_chains, units, model.dtype)
        if mask is not None:
            mask = _as_mask(f"clamped ({name})", mask, (num_chains, units.size))
            if x is None:
                raise ValueError(f"`start` must hold states for clamped units ({name}), got None.")
        states.append(other if x is None else x)
        held.append(mask)
    named = model.variables.named
    return named(states), None if clamped is None else named(held)


def held_states(model: AbstractPlainModel, seen: Told, masks: Masks) -> tuple[PyTree, PyTree]:
    """States for samplers to start from, zeros where data tell none, and booleans for those that
    the data fix.
    """
    layers = model.variables.filled(seen, model.dtype)
    states = [u.decode(x) for u, x in zip(model.layers, layers, strict=True)]
    there = masks or (None,) * len(states)
    held = [
        None if x is None else jnp.ones(state.shape, bool) if mask is None else mask
        for x, state, mask in zip(seen, states, there, strict=True)
    ]
    return model.variables.named(states), model.variables.named(held)


def told_of(
    model: AbstractPlainModel, num_chains: int, start: PyTree, clamped: PyTree
) -> PyTree | None:
    """Which units keep their start while others are drawn from what is possible; None if every
    start is possible. Raises `ValueError` if a unit is held that never moves by itself.
    """
    if not model.grouped or model.turns is None:
        return None
    found = model.turns.determined
    if clamped is not None and _checks.is_concrete((found, clamped)):
        held = np.concatenate([np.asarray(x) for x in model.variables.parts(clamped)], -1)
        if held[:, np.asarray(found)].any():
            raise ValueError(
                "`clamped` must not hold variables that OR, AND or pool factors, or lists of"
                " configurations, determine, got some: hold the variables that determine them, or"
                " take `PMP`."
            )
    told = model.variables.cut(_started(model, num_chains, start) >= 0)
    return model.variables.named(told)


def _of_groups(
    model: AbstractPlainModel, num_chains: int, key: PRNGKeyArray, start: Any, clamped: Any
) -> tuple[PyTree, PyTree]:
    variables, samples = model.variables, named_types(model)
    size = len(variables.counts)
    for name, x in (("start", start), ("clamped", clamped)):
        if x is not None and not isinstance(x, (Mapping, *samples, *_ARRAYS)):
            got = _checks.describe(x)
            raise TypeError(
                f"`{name}` must be a dictionary of groups of variables for a graph, got {got}."
            )
    given = _started(model, num_chains, start)
    drawn = jax.random.uniform(key, (num_chains, size))
    counts = jnp.broadcast_to(jnp.asarray(variables.counts, drawn.dtype), drawn.shape)
    rows = jnp.where(given >= 0, given, (drawn * counts).astype(jnp.int32))
    if model.turns is not None:
        rows = model.turns.completed(rows, given >= 0, jax.random.fold_in(key, 2))

    def by_group(x: Array) -> PyTree:
        return variables.named(variables.cut(x))

    if clamped is None:
        return by_group(rows), None
    if isinstance(clamped, samples):
        held = jnp.concatenate(variables.parts(clamped), -1)
        return by_group(rows), by_group(held & (given >= 0))
    if not isinstance(clamped, Mapping):
        held = _as_mask("clamped", clamped, (num_chains, size))
        return by_group(rows), by_group(held & (given >= 0))
    if isinstance(start, (*samples, *_ARRAYS)):
        whole = jnp.asarray(rows_by_group(model, start, "start"))
        unfolded = model.named(variables.unfolded(model.named(variables.cut(whole))))
        start = {group: unfolded.take(group, "`clamped`") for group in clamped}
    if start is None or any(group not in start for group in clamped):
        raise ValueError("`start` must hold the states of all groups that are `clamped`.")
    evidence = {group: start[group] for group in clamped}
    held = _fitted_rows(model, masked(evidence, clamped, "start", "clamped"), num_chains)
    return by_group(jnp.where(held >= 0, held, rows)), by_group(held >= 0)


def _started(
    model: AbstractPlainModel, num_chains: int, start: PyTree
) -> Int[Array, "chains variables"]:
    """The states that `start` tells, -1 where it does not."""
    if start is None:
        return jnp.full((num_chains, len(model.variables.counts)), -1, jnp.int32)
    return _fitted_rows(model, start, num_chains)


def _fitted_rows(
    model: AbstractPlainModel, start: Any, num_chains: int
) -> Int[Array, "chains variables"]:
    """States for each chain."""
    held, size = rows_by_group(model, start, "start"), len(model.variables.counts)
    if held.shape not in ((size,), (num_chains, size)):
        raise ValueError(
            f"`start` must hold one configuration, or one for each of {num_chains} samples,"
            f" got leading axes of shape {held.shape[:-1]}."
        )
    return jnp.broadcast_to(jnp.asarray(held), (num_chains, size)).astype(jnp.int32)


@eqx.filter_jit
def _at_random(
    model: AbstractPlainModel, num_chains: int, key: PRNGKeyArray, wanted: tuple[bool, ...]
) -> Sequence[Num[Array, "chains _"] | None]:
    """Random states of the layers that are wanted, drawn in one program."""
    keys = jax.random.split(key, len(model.names))
    fields = [jnp.broadcast_to(b, (num_chains, b.shape[-1])) for b in model.unary()]
    parts = zip(model.layers, fields, keys, wanted, strict=True)
    return [u.decode(u.at_random(f, own)) if want else None for u, f, own, want in parts]


def chain_states(
    name: str, x: Any, num_chains: int, units: AbstractUnits, dtype: Any
) -> Num[Array, "chains n"]:
    """States of the units of a layer, checked, for each chain."""
    wanted = jnp.integer if units.finite else jnp.floating
    if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, wanted):
        what = "integers" if units.finite else "real numbers"
        raise TypeError(f"`{name}` must hold {what}, got {_checks.describe(x)}.")
    x = _fitted(name, x, (num_chains, units.size))
    units.check(name, x)
    return x.astype(jnp.int32 if units.finite else dtype)


def _as_mask(name: str, x: Any, shape: tuple[int, int]) -> Bool[Array, "chains n"]:
    """Booleans for all chains, checked."""
    if not hasattr(x, "dtype") or x.dtype != jnp.bool_:
        raise TypeError(f"`{name}` must be a mask of booleans, got {_checks.describe(x)}.")
    return _fitted(name, x, shape)


def _fitted(name: str, x: Any, shape: tuple[int, int]) -> Array:
    if x.shape not in (shape, shape[1:]):
        raise ValueError(
            f"`{name}` must have shape {shape}, [chains, units], or {shape[1:]}, got"
            f" {_checks.describe(x)}."
        )
    return jnp.broadcast_to(jnp.asarray(x), shape)
