import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from .. import _checks
from ..models import AbstractLayeredModel
from ._parallel_tempering import ParallelTempering
from ._sample import sample


def adapt_ladder(
    model: AbstractLayeredModel,
    sampler: ParallelTempering,
    *,
    key: PRNGKeyArray,
    num_chains: int = 20,
    steps: int = 200,
    rounds: int = 4,
) -> ParallelTempering:
    """Parallel tempering with as many temperatures, moved so that neighbours swap equally often.

    In each round chains are run, the share of refused swaps between neighbours is added up along
    the ladder, and the temperatures are placed anew so that this sum rises by the same amount from
    each to the next (Syed et al. 2022). The first and the last stay. Each round is twice as long as
    the one before, and compiles anew.

    !!! example

        ```python
        sampler = ebmlearn.ParallelTempering(jnp.linspace(0, 1, 11))
        sampler = ebmlearn.adapt_ladder(rbm, sampler, key=key)
        ```

    **Arguments:**

    - `model`, `sampler`: what to sample, and the ladder to begin with.
    - `key`: a typed key.
    - `num_chains`: how many chains.
    - `steps`: how long the first round is.
    - `rounds`: how many.
    """
    if not isinstance(sampler, ParallelTempering):
        got = _checks.describe(sampler)
        raise TypeError(f"`sampler` must be a `ParallelTempering`, got {got}.")
    _checks.typed_key(key)
    _checks.count("num_chains", num_chains)
    _checks.count("steps", steps, 2)
    _checks.count("rounds", rounds)
    for k, own in enumerate(jax.random.split(key, rounds)):
        length = steps * 2**k
        _, info = sample(
            model,
            sampler,
            length * num_chains,
            key=own,
            num_chains=num_chains,
            burn_in=length // 4,
            with_info=True,
        )
        tried = np.asarray(info.tried).sum(0) * num_chains
        refused = 1 - np.asarray(info.swapped, np.float64).sum((0, 2)) / tried
        # Never quite zero, so that the sum rises everywhere.
        barrier = np.concatenate([[0.0], np.cumsum(np.maximum(refused, 1e-3))])
        even = np.linspace(0, barrier[-1], len(barrier))
        betas = np.interp(even, barrier, np.asarray(sampler.betas))
        betas[0], betas[-1] = sampler.betas[0], 1.0
        sampler = ParallelTempering(betas)
    return sampler
