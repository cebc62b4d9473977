"""Converts data and evidence from users to arrays for each group."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, Int, Num, PyTree

from .. import _checks
from .._types import AnyArray, Batch
from ..units import AbstractUnits
from ._problem import Evidence, inside, wanted
from ._variables import by_layer


if TYPE_CHECKING:
    from ._base import AbstractPlainModel

# The internal states of each group, None for those that are hidden; and which units of a group are
# observed, None for a group of which all are.
Told = tuple[Float[Array, "rows _"] | None, ...]
Masks = tuple[Bool[Array, "rows _"] | None, ...] | None


class Partial(NamedTuple):
    """Rows, with zeros for what is missing, and which values are there."""

    states: Num[AnyArray, "rows units"]
    observed: Bool[AnyArray, "rows units"]


def told_by(model: "AbstractPlainModel", batch: Batch, name: str) -> tuple[Told, Masks]:
    """What a batch tells of each group, checked; None for the masks if nothing is missing that
    should be there.
    """
    variables = model.variables
    if not model.grouped:
        return _layers_told(model, batch, name)
    rows = asked_rows(model, batch, name)
    parts = variables.cut(rows)
    states = tuple(
        units.encode(jnp.maximum(x, 0), model.dtype)
        for units, x in zip(variables.units, parts, strict=True)
    )
    return states, tuple(x >= 0 for x in parts)


def seen_states(model: "AbstractPlainModel", batch: Batch, name: str) -> Told:
    """The same of data in which nothing is missing."""
    states, masks = told_by(model, batch, name)
    if model.grouped and masks is not None:
        there = [mask for mask in masks if mask is not None]
        if _checks.is_concrete(there) and not all(bool(mask.all()) for mask in there):
            raise ValueError(f"`{name}` must tell the states of all variables, got some of them.")
    elif masks is not None:
        raise ValueError(f"`{name}` must hold no missing values here, got NaN.")
    return states


def batch_of(model: "AbstractPlainModel", batch: Batch) -> PyTree:
    """A batch as arrays alone, so that compiled code keeps no group of a graph alive; with a mask
    of missing values if there are any.
    """
    if model.grouped:
        return jnp.asarray(rows_by_group(model, batch, "batch"))
    if isinstance(batch, (tuple, list)) and not isinstance(batch, Partial):
        return type(batch)(map(_marked, batch))
    return _marked(batch)


def evidence_of(
    model: "AbstractPlainModel", evidence: Any, observed: Any
) -> tuple[Evidence | None, ...]:
    """What evidence tells of each group, checked as far as values are known."""
    if model.grouped:
        return _groups_told(model, evidence, observed)
    evidence, observed = _without_gaps(evidence, observed)
    units = model.layers[0]
    _check_form(evidence, observed, units.size)
    if evidence is None or observed is None:
        return ()
    if units.evidence is None:
        names = ", ".join(f"`{name}`" for name in model.names)
        kind = _checks.article(type(model).__name__)
        raise ValueError(
            f"`evidence` must be None for {kind}: fix units {names} with"
            " `sample(..., clamped=...)` instead."
        )
    shapes = {"model": model.batch_shape}
    shapes |= {"evidence": evidence.shape[:-1], "observed": observed.shape[:-1]}
    shape = (*_checks.broadcastable(**shapes), units.size)
    if _checks.is_concrete((evidence, observed)):
        given = np.broadcast_to(evidence, shape)
        wrong = np.broadcast_to(observed, shape) & ~inside(given, units.evidence, np)
        if wrong.any():
            needed = wanted(units.evidence)
            raise ValueError(f"`evidence` must {needed} where observed, got {given[wrong][0]}.")
    return Evidence(evidence, observed), *(None,) * (len(model.layers) - 1)


def asked_rows(model: "AbstractPlainModel", data: Batch, name: str) -> Array:
    """Checked rows of data that queries are about: of groups the states of all variables, -1 where
    missing, else any evidence that inferences take of the first layer, NaN where missing.
    """
    if model.grouped:
        rows = jnp.asarray(rows_by_group(model, data, name))
        _checks.rank(name, rows, 2, "[rows, variables], or groups of them with a leading axis")
        return rows
    units, (x, there) = model.layers[0], apart(data)
    x = array_of(name, x, "[rows, visible]")
    _checks.rank(name, x, 2, "[rows, visible]")
    _checks.trailing(name, x, (units.size,), "one value a unit")
    _checks.finite_rows(name, x)
    if units.evidence is not None and _checks.is_concrete(x):
        wrong = ~inside(np.asarray(x), units.evidence, np)
        if wrong.any():
            got = np.asarray(x)[wrong].flat[0]
            raise ValueError(f"`{name}` must {wanted(units.evidence)}, got {got}.")
    x = jnp.asarray(x).astype(model.dtype)
    return x if there is None else jnp.where(there, x, jnp.full_like(x, jnp.nan))


def rows_by_group(
    model: "AbstractPlainModel", data: Any, name: str
) -> Int[AnyArray, "*batch variables"]:
    """States of all variables as one array, -1 where not known, from a dictionary of groups to
    states `[*batch, *shape]`; checked. Such an array may be given too, or samples.
    """
    variables = model.variables
    if isinstance(data, named_types(model)):
        return jnp.concatenate(variables.folded(data), -1)
    if not isinstance(data, Mapping):
        if not hasattr(data, "shape") or not hasattr(data, "dtype"):
            raise TypeError(
                f"`{name}` must be a dictionary of groups of variables, or an array of all states,"
                f" got {_checks.describe(data)}."
            )
        _checks.trailing(name, data, (len(variables.counts),), "one state a variable")
        if not (np.issubdtype(data.dtype, np.integer) or data.dtype == np.bool_):
            raise TypeError(f"`{name}` must hold integers, got {_checks.describe(data)}.")
        _check_states(name, data, np.asarray(variables.counts))
        return data.astype(np.int32)
    given = _states_by_group(model, model.places(data, name, False), name)
    batch = _checks.broadcastable(**{f"{name}[{k}]": x.shape[:-1] for k, x in given.items()})
    parts = []
    for k, units in enumerate(variables.units):
        states = given.get(k, jnp.full(units.size, -1, jnp.int32))
        parts.append(jnp.broadcast_to(states, (*batch, units.size)))
    return jnp.concatenate(parts, -1)


def chosen_units(
    model: "AbstractPlainModel", given: Any, name: str
) -> Bool[AnyArray, "*#batch units"]:
    """Which of all units a user chooses: none of those that are left out. For a graph, a dictionary
    from groups to booleans `[*batch, *shape]`, else booleans `[*batch, units]` by layer, None for a
    layer of which none are.
    """
    if model.grouped:
        _check_booleans(given, name)
        return rows_by_group(model, given, name) > 0
    parts = {}
    told = zip(model.names, model.layers, by_layer(name, model.names, given), strict=True)
    for layer, units, x in told:
        parts[layer] = x = np.zeros(units.size, bool) if x is None else x
        _check_booleans(x, name)
        _checks.trailing(name, x, (units.size,), "one value a unit")
    shape = _checks.broadcastable(**{f"{name}.{k}": x.shape[:-1] for k, x in parts.items()})
    wide = [jnp.broadcast_to(x, (*shape, x.shape[-1])) for x in parts.values()]
    return jnp.concatenate(wide, -1)


def _check_booleans(x: Any, name: str) -> None:
    if isinstance(x, Mapping):
        for own in x.values():
            _check_booleans(own, name)
    elif getattr(x, "dtype", None) != np.bool_:
        raise TypeError(f"`{name}` must hold booleans, got {_checks.describe(x)}.")


def named_types(model: "AbstractPlainModel") -> tuple[type, ...]:
    """The types of samples and of states of chains, which have values by group."""
    none = [None] * len(model.names)
    return type(model.named(none)), type(model.variables.named(none))


def masked(evidence: Any, observed: Any, name: str, mask_name: str) -> Any:
    """Evidence in which only what is observed counts; errors name both arguments."""
    if not isinstance(evidence, Mapping) or not isinstance(observed, Mapping):
        raise TypeError(
            f"`{name}` and `{mask_name}` must be dictionaries of groups of variables, got types"
            f" {type(evidence).__name__} and {type(observed).__name__}."
        )
    out = dict(evidence)
    for group, mask in observed.items():
        if group not in out:
            raise ValueError(f"`{mask_name}` must hold groups of `{name}` only, got another one.")
        if isinstance(out[group], Mapping):
            # By the names of variables; one mask may be for all of them.
            own = mask if isinstance(mask, Mapping) else dict.fromkeys(out[group], mask)
            out[group] = masked(out[group], own, name, mask_name)
            continue
        mask = mask if hasattr(mask, "dtype") else np.asarray(mask)
        if getattr(mask, "dtype", None) != jnp.bool_:
            raise TypeError(f"`{mask_name}` must hold booleans, got {_checks.describe(mask)}.")
        if not hasattr(out[group], "dtype") and not isinstance(out[group], int):
            got = _checks.describe(out[group])
            raise TypeError(f"`{name}` must hold arrays, got {got}.")
        given, mask = jnp.asarray(out[group]), jnp.asarray(mask)
        if jnp.issubdtype(given.dtype, jnp.floating):
            mask, nothing = mask[..., None], jnp.ones((), given.dtype)
        else:
            given = given.astype(jnp.int32)
            nothing = jnp.asarray(-1, jnp.int32)
        try:
            np.broadcast_shapes(mask.shape, given.shape)
        except ValueError:
            raise ValueError(
                f"`{mask_name}` must have the shape of the states of a group, {given.shape}, got"
                f" {_checks.describe(mask)}."
            ) from None
        with jax.numpy_rank_promotion("allow"):
            out[group] = jnp.where(mask, given, nothing)
    return out


def apart(x: Any) -> tuple[Any, Any]:
    """Rows, and which of their values are there; None if all are. NaN is a missing value, where
    values can be looked at.
    """
    if isinstance(x, Partial):
        return x
    if not has_nan(x):
        return x, None
    there = ~np.isnan(x)
    return np.where(there, x, np.zeros_like(x)), there


def has_nan(x: Any) -> bool:
    """Whether an array, whose values can be looked at, holds NaN."""
    if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.floating):
        return False
    return _checks.is_concrete(x) and bool(np.isnan(x).any())


def states_of(units: AbstractUnits, name: str, x: Any, dtype: DTypeLike) -> Float[Array, "rows _"]:
    """Rows of states as they are inside, checked."""
    if getattr(x, "ndim", None) == 1 and units.size == 1:
        x = x[:, None]
    x = rows_of(name, x, units.size, "[rows, units]")
    units.check(name, x)
    return units.encode(x, dtype)


def rows_of(name: str, x: Any, columns: int, meaning: str) -> AnyArray:
    """Rows of real numbers, checked."""
    x = array_of(name, x, meaning)
    _checks.rank(name, x, 2, meaning)
    _checks.trailing(name, x, (columns,), "one value per unit")
    if x.shape[0] == 0:
        raise ValueError(f"`{name}` must contain at least one row, got {_checks.describe(x)}.")
    _checks.real_numbers(name, x)
    return x


def array_of(name: str, x: Any, meaning: str) -> AnyArray:
    """What has the shape and the dtype of an array, or `TypeError`."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise TypeError(f"`{name}` must be an array {meaning}, got {_checks.describe(x)}.")
    return x


def _layers_told(model: "AbstractPlainModel", batch: Batch, name: str) -> tuple[Told, Masks]:
    seen, layers = model.variables.seen, model.layers
    several = isinstance(batch, (tuple, list)) and not isinstance(batch, Partial)
    parts: Any = batch if several else (batch,)
    if len(parts) != len(seen):
        what = " and ".join(f"`{model.names[k]}`" for k in seen)
        needed = f"{len(seen)} arrays, {what}," if len(seen) > 1 else "one array of visible units"
        kind = _checks.article(type(model).__name__)
        hint = "" if len(seen) > 1 else ": a CRBM takes features, a SemiRestrictedBM labels"
        raise ValueError(f"`{name}` must be {needed} for {kind}, got {len(parts)}{hint}.")
    states: list[Any] = [None] * len(layers)
    masks: list[Any] = [None] * len(layers)
    for at, (k, x) in enumerate(zip(seen, parts, strict=True)):
        label = f"{name}[{at}]" if len(seen) > 1 else name
        # Units that take no evidence must all be there.
        x, masks[k] = (x, None) if layers[k].evidence is None else apart(x)
        if masks[k] is not None and len(seen) > 1:
            raise ValueError(f"`{label}` must hold no missing values if there are labels, got NaN.")
        states[k] = states_of(layers[k], label, x, model.dtype)
    rows = [states[k].shape[0] for k in seen]
    if len(set(rows)) > 1:
        got = " and ".join(map(str, rows))
        raise ValueError(f"`{name}` must hold arrays with the same number of rows, got {got}.")
    if all(mask is None for mask in masks):
        return tuple(states), None
    return tuple(states), tuple(None if x is None else jnp.asarray(x) for x in masks)


def _groups_told(
    model: "AbstractPlainModel", evidence: Any, observed: Any
) -> tuple[Evidence | None, ...]:
    if observed is not None and evidence is None:
        raise ValueError("`evidence` and `observed` go together, got no `evidence`.")
    if evidence is None:
        return ()
    if observed is not None:
        evidence = masked(evidence, observed, "evidence", "observed")
    out: list[Any] = [None] * len(model.layers)
    if not isinstance(evidence, Mapping):
        rows = rows_by_group(model, evidence, "evidence")
        return tuple(Evidence(x) for x in model.variables.cut(rows))
    soft, hard = _kinds_apart(evidence)
    if hard:
        for k, x in _states_by_group(
            model, model.places(hard, "evidence", False), "evidence"
        ).items():
            out[k] = Evidence(x)
    if soft:
        for k, x in model.places(soft, "evidence", True).items():
            out[k] = (out[k] or Evidence())._replace(likelihood=_likelihoods(model, k, x))
    return tuple(out)


def _kinds_apart(data: Mapping[Any, Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Likelihoods, and states."""
    soft, hard = {}, {}
    for key, x in data.items():
        if isinstance(x, Mapping):
            own = _kinds_apart(x)
            for out, part in zip((soft, hard), own, strict=True):
                if part:
                    out[key] = part
        elif hasattr(x, "dtype") or isinstance(x, (int, np.integer)):
            is_soft = jnp.issubdtype(getattr(x, "dtype", np.int32), jnp.floating)
            (soft if is_soft else hard)[key] = x
        else:
            raise TypeError(f"`evidence` must hold arrays, got {_checks.describe(x)}.")
    return soft, hard


def _states_by_group(
    model: "AbstractPlainModel", given: Mapping[int, Any], name: str
) -> dict[int, Int[AnyArray, "*batch size"]]:
    """Checked states `[*batch, size]` of groups, by their numbers, from those that users give."""
    if not given:
        raise ValueError(f"`{name}` must contain at least one group of variables, got 0.")
    variables, out = model.variables, {}
    for k, states in given.items():
        shape, units = variables.shapes[k], variables.units[k]
        if not hasattr(states, "shape") or not hasattr(states, "dtype"):
            raise TypeError(f"`{name}` must hold arrays, got {_checks.describe(states)}.")
        _checks.trailing(name, states, shape, "as the group of variables has")
        if not (np.issubdtype(states.dtype, np.integer) or states.dtype == np.bool_):
            raise TypeError(
                f"`{name}` must hold states, integers or booleans, got {_checks.describe(states)}."
            )
        own: Any = units
        _check_states(name, states, np.asarray(own.numbers).reshape(shape))
        flat = states.reshape(*states.shape[: states.ndim - len(shape)], math.prod(shape))
        out[k] = flat.astype(np.int32)
    return out


def _likelihoods(model: "AbstractPlainModel", k: int, x: Any) -> Float[AnyArray, "..."]:
    """Checked likelihoods `[*batch, size, states]` of a group."""
    units: Any = model.layers[k]
    shape = model.shapes[k]
    _checks.trailing("evidence", x, (*shape, units.number), "a likelihood for each state")
    x = x.reshape(*x.shape[: x.ndim - len(shape) - 1], units.size, units.number)
    if _checks.is_concrete(x):
        values = np.asarray(x)
        wrong = ~(np.isfinite(values) & (values >= 0))
        if wrong.any():
            got = values[wrong][0]
            raise ValueError(f"`evidence` must hold finite likelihoods >= 0, got {got}.")
        there = np.arange(units.number) < np.asarray(units.numbers)[:, None]
        if not (values * there).any(-1).all():
            raise ValueError(
                "`evidence` must allow a state of each variable, got all likelihoods 0."
            )
    return x


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


def _check_form(evidence: Any, observed: Any, units: int) -> None:
    """Raises unless there is no evidence, or some of the right form for so many units, whatever its
    values.
    """
    if evidence is None and observed is None:
        return
    if evidence is None or observed is None:
        missing, what = ("evidence", "states") if evidence is None else ("observed", "booleans")
        raise ValueError(
            f"`evidence` and `observed` go together, got no `{missing}`: give {what} for all units."
        )
    for name, x in (("evidence", evidence), ("observed", observed)):
        if not hasattr(x, "shape"):
            raise TypeError(f"`{name}` must be an array, got {_checks.describe(x)}.")
        _checks.trailing(name, x, (units,), "one value a unit")
    _checks.real_numbers("evidence", evidence)
    if observed.dtype != jnp.bool_:
        got = _checks.describe(observed)
        raise TypeError(f"`observed` must be a mask of booleans, got {got}.")


def _without_gaps(evidence: Any, observed: Any) -> tuple[Any, Any]:
    """Evidence in which NaN is a unit that is not observed."""
    found, there = apart(evidence)
    if there is None:
        return evidence, observed
    if observed is None:
        return found, there
    with jax.numpy_rank_promotion("allow"):
        return found, jnp.asarray(observed) & there


def _marked(x: PyTree) -> PyTree:
    """Rows as `Partial`, if some of their values are missing."""
    states, observed = apart(x)
    return x if observed is None else Partial(states, observed)
