from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Int, PRNGKeyArray

from .. import _checks
from .._types import Key
from ..models import AbstractPlainModel
from ._base import AbstractSampler
from ._parallel_tempering import ParallelTempering
from ._trajectory_tempering import TrajectoryTempering


def adapt_ladder(
    model: AbstractPlainModel,
    sampler: ParallelTempering,
    *,
    key: Key = 0,
    num_chains: int = 20,
    steps: int = 200,
    rounds: int = 4,
) -> ParallelTempering:
    """Adapts the temperatures of parallel tempering so that all neighbours swap equally often.

    Each round runs chains, adds up the share of rejected swaps along the ladder, and moves the
    temperatures so that this sum grows by the same amount from each to the next (Syed et al. 2022).
    The number of temperatures, the first and the last stay the same. Each round is twice as long as
    the one before and compiles again.

    !!! example

        ```python
        sampler = ebmlearn.ParallelTempering(jnp.linspace(0, 1, 6))
        sampler = ebmlearn.adapt_ladder(ebmlearn.RBM.init(16, 8, scale=1.0), sampler)
        ```

    **Arguments:**

    - `model`, `sampler`: the model, and the sampler with the initial ladder.
    - `key`: a seed, or a key such as `jax.random.key(0)`.
    - `num_chains`: the number of chains.
    - `steps`: the number of steps of the first round.
    - `rounds`: the number of rounds.
    """
    if not isinstance(sampler, ParallelTempering):
        got = _checks.describe(sampler)
        raise TypeError(f"`sampler` must be a `ParallelTempering`, got {got}.")
    key = _checks.as_key(key)
    _checks.count("num_chains", num_chains)
    _checks.count("steps", steps, 2)
    _checks.count("rounds", rounds)
    for k, own in enumerate(jax.random.split(key, rounds)):
        one, two = jax.random.split(own)
        state = sampler.init(model, num_chains, key=one)
        length = jnp.asarray(steps * 2**k)
        tried, swapped = _count(sampler, model, state, two, length // 4, length)
        refused = 1 - np.asarray(swapped, np.float64) / (np.asarray(tried) * num_chains)
        betas = respaced(np.asarray(sampler.betas), np.maximum(refused, _LEAST), len(refused) + 1)
        sampler = ParallelTempering(betas)
    return sampler


# Never quite zero, so that sums of refused swaps rise everywhere.
_LEAST = 1e-3


def respaced(places: Any, lengths: Any, number: int, xp: Any = np) -> Any:
    """So many places from the first to the last, equally far from each other where `lengths` are
    the distances between neighbours. `xp` is NumPy, or JAX's where these are traced.
    """
    sums = xp.cumsum(lengths)
    sums = xp.concatenate([xp.zeros(1, sums.dtype), sums])
    inner = xp.interp(xp.linspace(0, sums[-1], number), sums, places)[1:-1]
    return xp.concatenate([places[:1], inner, places[-1:]])


class Ladder(eqx.Module):
    """The inverse temperatures of chains, adapted while they run: how often swaps of each pair were
    tried and made since they were last placed, and how many steps are done of those in which they
    move. Without temperatures, only swaps are counted.
    """

    betas: Float[Array, " betas"] | None
    tried: Float[Array, " pairs"]
    swapped: Float[Array, " pairs"]
    step: Int[Array, ""]
    length: Int[Array, ""]

    @property
    def rates(self) -> Float[Array, " pairs"]:
        """The share of swaps that were made, of each pair; NaN where none was tried."""
        return jnp.where(self.tried > 0, self.swapped / jnp.maximum(self.tried, 1), jnp.nan)

    def counted(self, info: Any) -> "Ladder":
        """After a step. The temperatures are placed anew after an eighth, a quarter, half and all
        of the steps in which they may move, so that each round is as long as all before.
        """
        dtype = self.tried.dtype
        tried = self.tried + info.tried.astype(dtype) * info.swapped.shape[1]
        swapped = self.swapped + info.swapped.sum(1).astype(dtype)
        new = Ladder(self.betas, tried, swapped, self.step + 1, self.length)
        if self.betas is None:
            return new
        ends = jnp.stack([self.length // 8, self.length // 4, self.length // 2, self.length])
        due = (jnp.broadcast_to(new.step, (4,)) == ends).any() & (self.length >= _SHORTEST)
        placed = new._placed(self.betas)
        return jax.tree.map(lambda a, b: jnp.where(due, a, b), placed, new)

    def _placed(self, old: Float[Array, " betas"]) -> "Ladder":
        refused = 1 - self.swapped / jnp.maximum(self.tried, 1)
        betas = respaced(old, jnp.maximum(refused, _LEAST), len(old), jnp)
        none = jnp.zeros_like(self.tried)
        return Ladder(betas, none, none, self.step, self.length)


# In fewer steps too few swaps are tried to place temperatures by them.
_SHORTEST = 80


def ladder_of(sampler: AbstractSampler, length: int, dtype: DTypeLike) -> Ladder | None:
    """The ladder of a sampler whose replicas swap, to be adapted in so many steps; None of any
    other.
    """
    if isinstance(sampler, ParallelTempering):
        number, betas = len(sampler.betas), jnp.asarray(sampler.betas, dtype)
    elif isinstance(sampler, TrajectoryTempering):
        number, betas = sampler.trajectory.capacity, None
    else:
        return None
    none = jnp.zeros(number - 1, dtype)
    steps = jnp.zeros((), jnp.int32)
    return Ladder(betas, none, none, steps, jnp.asarray(length, jnp.int32))


def with_ladder(sampler: AbstractSampler, ladder: Ladder | None) -> AbstractSampler:
    """The sampler with the inverse temperatures of a ladder."""
    if ladder is None or ladder.betas is None:
        return sampler
    return eqx.tree_at(lambda s: s.betas, sampler, tuple(ladder.betas))


@eqx.filter_jit
def _count(
    sampler: ParallelTempering,
    model: AbstractPlainModel,
    state: Any,
    key: PRNGKeyArray,
    burn_in: Int[Array, ""],
    steps: Int[Array, ""],
) -> tuple[Float[Array, " pairs"], Float[Array, " pairs"]]:
    """How often swaps were tried and made, after a burn-in."""
    none = jnp.zeros(len(sampler.betas) - 1, model.dtype)

    def step(i: Any, carry: Any) -> Any:
        state, tried, swapped = carry
        state, info = sampler.step(model, state, key=jax.random.fold_in(key, i))
        counts = (i >= burn_in).astype(none.dtype)
        tried = tried + counts * info.tried.astype(none.dtype)
        return state, tried, swapped + counts * info.swapped.sum(1)

    _, tried, swapped = jax.lax.fori_loop(0, burn_in + steps, step, (state, none, none))
    return tried, swapped
