import abc
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from .. import _checks
from .._types import AnyArray, Key
from ..models import AbstractModel, AbstractPlainModel, chains, require_chains, told_of
from ._sweep import sweep


class ChainState(eqx.Module):
    """The state of chains. `units` holds arrays of shape `[chains, n]`, named as the units of the
    model ([`ebmlearn.Layers`][] or [`ebmlearn.models.Units`][], for instance): integers, or real
    numbers if the units are real. `clamped` holds booleans in the same places, True for units that
    never change, or None.

    !!! example

        ```python
        sampler, key = ebmlearn.Gibbs(), jax.random.key(0)
        state = sampler.init(ebmlearn.RBM.init(16, 8), num_chains=10, key=key)
        state.units.visible.shape  # (10, 16)
        ```

    **Fields:**

    - `units`: the states of all units.
    - `clamped`: which units never change, or None.
    """

    units: PyTree
    clamped: PyTree


class AbstractSampler(eqx.Module):
    """Draws configurations of a model: with chains that leave its distribution invariant or, if
    `independent` is True, with independent draws.

    !!! example

        ```python
        state = sampler.init(rbm, num_chains=100, key=key)
        state, info = sampler.step(rbm, state, key=key)
        state.units.visible  # integers of shape [100, visible]
        ```

    [`ebmlearn.sample`][] does this in a loop.

    A sampler that `has_replicas` keeps other chains beside those of the model. A step of one that
    `renews` begins by drawing the layers that can be summed out, so that their old states do not
    matter.
    """

    independent: ClassVar[bool] = False
    has_replicas: ClassVar[bool] = False
    renews: ClassVar[bool] = False

    def init(
        self,
        model: AbstractModel,
        num_chains: int,
        *,
        key: Key,
        start: PyTree = None,
        clamped: PyTree = None,
    ) -> PyTree:
        """Starts chains.

        **Arguments:**

        - `model`: any model of layers, such as an RBM or a conditioned CRBM, an
          [`ebmlearn.EnergyModel`][], or a graph. If it has a batch axis, there must be as many
          chains as instances.
        - `num_chains`: how many.
        - `key`: a seed, or a key such as `jax.random.key(0)`.
        - `start`: states named as the units of the model, `Layers(v, None)` for instance, of shape
          `[num_chains, n]` or `[n]`: integers, or real numbers if the units are real. Units
          that are None are drawn uniformly. For a graph, a dictionary from groups of variables to
          states `[num_chains, *shape]` or `[*shape]`.
        - `clamped`: booleans in the same places, True for units that keep their start; None for no
          units. For a graph, a dictionary from groups to booleans: `{group: True}`.
        """
        self._check(model)
        _checks.count("num_chains", num_chains)
        own = _checks.as_key(key)
        return self._start(model, num_chains, own, start, clamped)  # pyright: ignore

    def step(self, model: AbstractModel, state: PyTree, *, key: Key) -> tuple[PyTree, PyTree]:
        """One transition of every chain: the new state, and diagnostics."""
        self._check(model)
        return _compiled(self, model, state, _checks.as_key(key))  # pyright: ignore

    @abc.abstractmethod
    def _check(self, model: AbstractModel) -> None:
        """Raises `TypeError` if it cannot sample this model."""

    @abc.abstractmethod
    def _start(
        self, model: AbstractPlainModel, num_chains: int, key: PRNGKeyArray, *told: PyTree
    ) -> PyTree:
        """Does the work of `init`, where `told` are `start` and `clamped`."""

    @abc.abstractmethod
    def _step(self, model: AbstractPlainModel, state: Any, key: PRNGKeyArray) -> tuple[Any, Any]:
        """Does the work of `step`."""


@eqx.filter_jit
def _compiled(
    sampler: AbstractSampler, model: AbstractPlainModel, state: PyTree, key: PRNGKeyArray
) -> tuple[Any, Any]:
    return sampler._step(model, state, key)


class AbstractSingle(AbstractSampler):
    """A sampler whose state is a single chain for each that is asked for."""

    def _start(
        self, model: AbstractPlainModel, num_chains: int, key: PRNGKeyArray, *told: PyTree
    ) -> ChainState:
        return start_chains(model, num_chains, key, *told)


class AbstractChains(AbstractSampler):
    """A sampler of chains that draws units given all others."""

    def _check(self, model: AbstractModel) -> None:
        require_chains(model, type(self).__name__)


def require_sampler(sampler: Any, hint: str = "") -> None:
    """Raises `TypeError` unless this is a sampler."""
    if not isinstance(sampler, AbstractSampler):
        got = _checks.describe(sampler)
        raise TypeError(f"`sampler` must be a sampler such as `Gibbs()`, got {got}{hint}.")


def require_beta(sampler: Any) -> None:
    """Raises `ValueError` if a sampler draws from a tempered model."""
    beta = getattr(sampler, "beta", 1.0)
    if _checks.is_concrete(beta) and beta != 1:
        raise ValueError(f"`sampler` must have an inverse temperature of 1, got {beta}.")


def require_chain(sampler: Any) -> None:
    """Raises an error unless this is a sampler of single chains of the model itself."""
    wrong = not isinstance(sampler, AbstractSampler) or sampler.has_replicas or sampler.independent
    if wrong:
        got = _checks.describe(sampler)
        raise TypeError(
            f"`sampler` must be a sampler of single chains such as `Gibbs()`, got {got}."
        )
    require_beta(sampler)


def start_chains(
    model: AbstractPlainModel, num_chains: int, key: PRNGKeyArray, start: Any, clamped: Any
) -> ChainState:
    """The start of chains, checked. Of a graph that excludes configurations, what is drawn at
    random is drawn from those that it allows.

    !!! example

        ```python
        rbm, key = ebmlearn.RBM.init(16, 8), jax.random.key(0)
        state = ebmlearn.samplers.start_chains(rbm, 10, key, None, None)
        ```

    **Arguments:**

    - `model`: the model.
    - `num_chains`: the number of chains.
    - `key`: a key.
    - `start`: states of some units, or None; the others are drawn at random.
    - `clamped`: which units never change, or None.
    """
    units, held = chains(model, num_chains, key, start, clamped)
    told = told_of(model, num_chains, start, held)
    if told is not None:
        units = _possible(model, units, told, jax.random.fold_in(key, 1))
    return ChainState(units, held)


@eqx.filter_jit
def _possible(model: AbstractPlainModel, units: PyTree, told: PyTree, key: PRNGKeyArray) -> PyTree:
    """Units that are not told, drawn anew: at an infinite temperature, all that is possible is as
    likely.
    """
    layers = sweep(model, model.encode(units), key, 0.0, clamp=model.variables.masks(told))
    return model.decode(layers)


def share_accepted(info: Any) -> Float[Array, ""] | None:
    """The share of proposals that a step of all chains accepted: NaN if it made none, None if the
    sampler never does.
    """
    if hasattr(info, "swapped"):
        tried = info.tried.sum().astype(info.swapped.dtype) * info.swapped.shape[-1]
        return jnp.where(tried > 0, info.swapped.sum() / jnp.maximum(tried, 1), jnp.nan)
    return info.accepted.mean() if hasattr(info, "accepted") else None


def no_improper(model: AbstractPlainModel, betas: Sequence[float] | AnyArray) -> None:
    """Raises `ValueError` if a ladder begins where real units would have no distribution."""
    if not model.finite and _checks.is_concrete(betas) and betas[0] == 0:
        raise ValueError(
            "`betas` must be positive for real units, which have no distribution at 0, got"
            f" {_shortened(betas)}."
        )


def ladder(betas: Sequence[float] | Float[AnyArray, " betas"]) -> tuple[float, ...]:
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
            "`betas` must hold at least two numbers that increase from 0 or above to 1, got"
            f" {_shortened(values)}."
        )
    return values


def _shortened(values: Sequence[float] | AnyArray) -> str:
    if len(values) <= 6:
        return str(list(values))
    return f"[{values[0]}, {values[1]}, ..., {values[-2]}, {values[-1]}]"


def after_steps(
    sampler: AbstractSampler,
    model: AbstractModel,
    state: PyTree,
    key: PRNGKeyArray,
    times: int | Int[Array, ""],
) -> PyTree:
    """The state after some steps, whose diagnostics nobody wants."""

    def step(i: Int[Array, ""], state: PyTree) -> PyTree:
        return sampler.step(model, state, key=jax.random.fold_in(key, i))[0]

    return jax.lax.fori_loop(0, times, step, state)


def tree_where(mask: Float[Array, " chains"], a: PyTree, b: PyTree) -> PyTree:
    """Rows of `a` where `mask` is 1, else of `b`."""
    return jax.tree.map(
        lambda x, y: jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)) > 0, x, y), a, b
    )
