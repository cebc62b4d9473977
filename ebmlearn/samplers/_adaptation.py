from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .. import _checks
from ..models import AbstractPlainModel
from ._parallel_tempering import ParallelTempering


def adapt_ladder(
    model: AbstractPlainModel,
    sampler: ParallelTempering,
    *,
    key: PRNGKeyArray,
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
        sampler = ebmlearn.ParallelTempering(jnp.linspace(0, 1, 11))
        sampler = ebmlearn.adapt_ladder(rbm, sampler, key=key)
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
        # Never quite zero, so that the sum rises everywhere.
        barrier = np.concatenate([[0.0], np.cumsum(np.maximum(refused, 1e-3))])
        even = np.linspace(0, barrier[-1], len(barrier))
        betas = np.interp(even, barrier, np.asarray(sampler.betas))
        betas[0], betas[-1] = sampler.betas[0], 1.0
        sampler = ParallelTempering(betas)
    return sampler


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
