import abc
import itertools
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num, PRNGKeyArray, PyTree

from .. import _checks
from ..models import AbstractLayeredModel, CRBM
from ..models._base import Kind
from ..models._graph import AbstractGraphModel
from ._sweep import at_random


# Kinds of units whose states are real numbers.
REAL = ("gaussian", "nonnegative")


class ChainState(eqx.Module):
    """Where chains are: `units` are named as the units of the model ([`ebmlearn.Layers`][],
    [`ebmlearn.LabelledLayers`][] or [`ebmlearn.Units`][]), each array of shape `[chains, n]`:
    integers, 0 or 1, or real numbers if they are Gaussian or nonnegative. `clamped` holds booleans
    in the same places, or None, for units that never change.
    """

    units: Any
    clamped: Any


class AbstractSampler(eqx.Module):
    """Turns a model into configurations: by chains that leave its distribution as it is, or, if it
    is `independent`, by draws that owe nothing to each other.

    !!! example

        ```python
        state = sampler.init(rbm, num_chains=100, key=key)
        state, info = sampler.step(rbm, state, key=key)
        state.units.visible  # integers of shape [100, visible]
        ```

    [`ebmlearn.sample`][] does this in a loop.
    """

    on_graphs: ClassVar[bool] = False
    independent: ClassVar[bool] = False

    def init(
        self,
        model: AbstractLayeredModel | AbstractGraphModel,
        num_chains: int,
        *,
        key: PRNGKeyArray,
        start: Any = None,
        clamped: Any = None,
    ) -> Any:
        """Chains at their start.

        **Arguments:**

        - `model`: an RBM, a conditioned CRBM, a DBM, a BoltzmannMachine, a SemiRestrictedBM, a
          GaussianRBM or an NNBM. If it has a batch axis, there must be as many chains as instances.
          For [`ebmlearn.PMP`][], whose units are binary, also a
          [`ebmlearn.pgmax.FactorGraphModel`][].
        - `num_chains`: how many.
        - `key`: a typed key.
        - `start`: integers 0 and 1 named as the units of the model, `Layers(v, None)` for instance,
          of shape `[num_chains, n]` or `[n]`. Where it is None, units are drawn, each state as
          likely as another. Label units are one-hot, Gaussian and nonnegative ones real numbers.
          Of a graph, a dictionary from groups of variables to states `[num_chains, *shape]` or
          `[*shape]`.
        - `clamped`: booleans in the same places, which units keep their start. None is none. Of a
          graph, a dictionary from groups to booleans: `{group: True}`.
        """
        check_model(model, self)
        _checks.count("num_chains", num_chains)
        _checks.typed_key(key)
        return self._start(model, num_chains, key, start, clamped)

    def step(
        self, model: AbstractLayeredModel | AbstractGraphModel, state: Any, *, key: PRNGKeyArray
    ) -> tuple[Any, Any]:
        """One transition of every chain: the new state, and diagnostics."""
        check_model(model, self)
        _checks.typed_key(key)
        return _compiled(self, model, state, key)

    @abc.abstractmethod
    def _start(
        self,
        model: Any,
        num_chains: int,
        key: PRNGKeyArray,
        start: Any,
        clamped: Any,
    ) -> Any:
        """Does the work of `init`."""

    @abc.abstractmethod
    def _step(self, model: Any, state: Any, key: PRNGKeyArray) -> tuple[Any, Any]:
        """Does the work of `step`."""


@eqx.filter_jit
def _compiled(
    sampler: AbstractSampler, model: Any, state: Any, key: PRNGKeyArray
) -> tuple[Any, Any]:
    return sampler._step(model, state, key)


def check_model(model: Any, sampler: AbstractSampler | None = None) -> None:
    """Raises `TypeError` unless `model` can be sampled, by this sampler if one is given."""
    if isinstance(model, AbstractGraphModel):
        if sampler is None or not sampler.on_graphs:
            name = "this" if sampler is None else type(sampler).__name__
            raise TypeError(
                f"`model` must not be a {type(model).__name__} for {name}; `PMP` samples it."
            )
        return
    if isinstance(model, CRBM):
        raise TypeError(
            "`model` must be an RBM: call `crbm.condition(features)` first, got a CRBM."
        )
    if not isinstance(model, AbstractLayeredModel):
        raise TypeError(
            "`model` must be an RBM, a DBM, a BoltzmannMachine, a SemiRestrictedBM, a GaussianRBM"
            f" or an NNBM, got {_checks.describe(model)}."
        )


def binary_only(model: AbstractLayeredModel, what: str) -> None:
    """Raises `TypeError` unless all units of `model` are 0 or 1 each."""
    other = set(model.kinds()) - {"binary"}
    if other:
        raise TypeError(
            f"`model` must have binary units alone for {what}, got a {type(model).__name__} with"
            f" {' and '.join(sorted(other))} units."
        )


def start_chains(
    model: AbstractLayeredModel, num_chains: int, key: PRNGKeyArray, start: Any, clamped: Any
) -> ChainState:
    """The start of chains, checked."""
    if math.prod(model.batch_shape) not in (1, num_chains) or len(model.batch_shape) > 1:
        raise ValueError(
            "`num_chains` must be the number of instances of a model with batch axes,"
            f" {model.batch_shape}, got {num_chains}."
        )
    sizes = [bias.shape[-1] for bias in model.unary()]
    given, masks = by_layer("start", model, start), by_layer("clamped", model, clamped)
    keys = jax.random.split(key, len(sizes))
    units, held = [], []
    for k, size in enumerate(sizes):
        name = f"layer {k}"
        shape = (num_chains, size)
        kind = model.kinds()[k]
        drawn = _as_kind(at_random(model, k, num_chains, keys[k]), kind)
        x, mask = given[k], masks[k]
        if x is not None:
            x = chain_states(f"start ({name})", x, shape, kind, model.unary()[k].dtype)
        if mask is not None:
            mask = _mask(f"clamped ({name})", mask, shape, kind)
            if x is None:
                raise ValueError(
                    f"`start` must be given where units are clamped ({name}), got None."
                )
        units.append(drawn if x is None else x)
        held.append(mask)
    return ChainState(
        model.units(tuple(units)), None if clamped is None else model.units(tuple(held))
    )


def share_accepted(info: Any) -> Float[Array, ""] | None:
    """The share of proposals that a step of all chains accepted: NaN if it made none, None if the
    sampler never does.
    """
    if hasattr(info, "swapped"):
        tried = info.tried.sum().astype(info.swapped.dtype) * info.swapped.shape[-1]
        return jnp.where(tried > 0, info.swapped.sum() / jnp.maximum(tried, 1), jnp.nan)
    return info.accepted.mean() if hasattr(info, "accepted") else None


def as_layers(model: AbstractLayeredModel, units: Any) -> list[Float[Array, "chains _"]]:
    """Integers, by name, as floats, by number."""
    dtype = model.unary()[0].dtype
    return [x.astype(dtype) for x in jax.tree.leaves(units)]


def as_units(model: AbstractLayeredModel, layers: Any) -> Any:
    """Floats, by number, as states, by name."""
    return model.units(tuple(map(_as_kind, layers, model.kinds())))


def _as_kind(x: Float[Array, "..."], kind: Kind) -> Num[Array, "..."]:
    return x if kind in REAL else x.astype(jnp.int32)


def masks(units: Any) -> list[Bool[Array, "chains _"] | None] | None:
    """The masks of clamped units, by number."""
    if units is None:
        return None
    return jax.tree.leaves(units, is_leaf=lambda x: x is None)


def by_layer(name: str, model: AbstractLayeredModel, given: Any) -> list[Any]:
    """What is given of the units of a model, by number, with None where nothing is."""
    like = model.units(tuple(range(len(model.unary()))))
    count = len(jax.tree.leaves(like))
    if given is None:
        return [None] * count
    kind = type(like)
    if not isinstance(given, kind):
        raise TypeError(
            f"`{name}` must be `{kind.__name__}({', '.join(kind._fields)})` with an array or None"
            f" for each, got {_checks.describe(given)}."
        )
    leaves = []
    for part, wanted in zip(given, like, strict=True):
        number = len(jax.tree.leaves(wanted))
        parts = list(part) if isinstance(part, (tuple, list)) else [part]
        if part is None:
            parts = [None] * number
        if len(parts) != number:
            raise ValueError(f"`{name}` must hold {number} hidden layers, got {len(parts)}.")
        leaves += parts
    return leaves


def chain_states(
    name: str, x: Any, shape: tuple[int, int], kind: Kind, dtype: Any
) -> Num[Array, "chains n"]:
    """States of the units of a layer, checked, for each chain."""
    if kind in REAL:
        if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(f"`{name}` must hold real numbers, got {_checks.describe(x)}.")
        (_checks.nonnegative_rows if kind == "nonnegative" else _checks.finite_rows)(name, x)
        return _fitted(name, x, shape).astype(dtype)
    if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"`{name}` must hold integers 0 and 1, got {_checks.describe(x)}.")
    x = _fitted(name, x, shape)
    if _checks.is_concrete(x):
        values = np.asarray(x)
        wrong = (values != 0) & (values != 1)
        if wrong.any():
            raise ValueError(f"`{name}` must hold 0 and 1 only, got {values[wrong][0]}.")
        if kind == "softmax" and (values.sum(-1) != 1).any():
            got = values.sum(-1)[values.sum(-1) != 1][0]
            raise ValueError(f"`{name}` must hold one 1 in each row of labels, got {got}.")
    return x.astype(jnp.int32)


def _mask(name: str, x: Any, shape: tuple[int, int], kind: Kind) -> Bool[Array, "chains n"]:
    if not hasattr(x, "dtype") or x.dtype != jnp.bool_:
        raise TypeError(f"`{name}` must be a mask of booleans, got {_checks.describe(x)}.")
    x = _fitted(name, x, shape)
    if kind == "softmax" and _checks.is_concrete(x):
        values = np.asarray(x)
        if (values.any(-1) != values.all(-1)).any():
            raise ValueError(f"`{name}` must clamp all label units of a chain or none, got some.")
    return x


def _fitted(name: str, x: Any, shape: tuple[int, int]) -> Array:
    if x.shape not in (shape, shape[1:]):
        raise ValueError(
            f"`{name}` must have shape {shape}, [chains, units], or {shape[1:]}, got"
            f" {_checks.describe(x)}."
        )
    return jnp.broadcast_to(jnp.asarray(x), shape)


def no_improper(model: AbstractLayeredModel, betas: tuple[float, ...]) -> None:
    """Raises `ValueError` if a ladder begins where real units would have no distribution."""
    if betas[0] == 0 and set(REAL) & set(model.kinds()):
        raise ValueError(
            "`betas` must be positive for Gaussian and nonnegative units, which have no"
            f" distribution at 0, got {_shortened(betas)}."
        )


def ladder(betas: Any) -> tuple[float, ...]:
    """Inverse temperatures that increase to 1, as a tuple."""
    try:
        values = tuple(float(x) for x in np.asarray(betas, np.float64).reshape(-1))
        flat = np.ndim(betas) == 1
    except (TypeError, ValueError) as error:
        got = _checks.describe(betas)
        raise TypeError(f"`betas` must be a sequence of numbers, got {got}.") from error
    rising = all(a < b for a, b in itertools.pairwise(values))
    if not flat or len(values) < 2 or not rising or values[-1] != 1 or not values[0] >= 0:
        raise ValueError(
            "`betas` must be two or more numbers that increase from 0 or above to 1, got"
            f" {_shortened(values)}."
        )
    return values


def _shortened(values: tuple[float, ...]) -> str:
    if len(values) <= 6:
        return str(list(values))
    return f"[{values[0]}, {values[1]}, ..., {values[-2]}, {values[-1]}]"


def tree_where(mask: Float[Array, " chains"], a: PyTree, b: PyTree) -> PyTree:
    """Rows of `a` where `mask` is 1, else of `b`."""
    return jax.tree.map(
        lambda x, y: jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)) > 0, x, y), a, b
    )
