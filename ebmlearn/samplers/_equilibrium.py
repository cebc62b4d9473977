from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from .. import _checks
from .._types import Batch, Key
from ..models import AbstractPlainModel, held_states, require_chains, require_single
from ._base import AbstractSampler, require_sampler
from ._diagnostics import autocorrelation_time, r_hat
from ._modes import ERRORS, gaps, MODES, on_modes
from ._sample import sample


# Chains whose R-hat is larger than this have not mixed.
_MIXED = 1.1


class Equilibrium(eqx.Module):
    """What [`ebmlearn.equilibrium`][] finds about chains, for each of some slow modes of a model.

    !!! example

        ```python
        from ebmlearn import datasets

        data = datasets.digits().train.x
        found = ebmlearn.equilibrium(ebmlearn.RBM.init(64, 8), ebmlearn.Gibbs(), data)
        found.reached, found.gaps
        ```

    **Fields:**

    - `autocorrelation_times`: the number of steps that are worth one independent draw.
    - `r_hat`: R-hat over all chains; 1 if they have mixed.
    - `gaps`: how far the mean of the chains from data is from that of the chains from noise, in
      standard errors.
    """

    autocorrelation_times: Float[Array, " modes"]
    r_hat: Float[Array, " modes"]
    gaps: Float[Array, " modes"]

    @property
    def reached(self) -> bool:
        """Whether chains from data and from noise agree: each R-hat is below 1.1, and each gap is
        below 4.5 standard errors.
        """
        return bool((self.r_hat < _MIXED).all() & (self.gaps < ERRORS).all())


def equilibrium(
    model: AbstractPlainModel,
    sampler: AbstractSampler,
    data: Batch,
    *,
    key: Key = 0,
    num_chains: int = 50,
    burn_in: int = 200,
    steps: int = 500,
    modes: int = MODES,
) -> Equilibrium:
    """Asks whether chains reach the equilibrium of a model: runs chains from rows of data and
    chains from random states, and compares them along slow modes. These are projections of the
    visible units on the leading singular vectors of the weights, or on the principal components of
    the draws for models without weights.

    !!! example

        ```python
        from ebmlearn import datasets

        data = datasets.digits().train.x
        found = ebmlearn.equilibrium(ebmlearn.RBM.init(64, 8), ebmlearn.Gibbs(), data)
        found.reached, found.autocorrelation_times, found.r_hat
        ```

    **Arguments:**

    - `model`: a single model.
    - `sampler`: for instance [`ebmlearn.Gibbs`][].
    - `data`: as [`ebmlearn.fit`][] takes it, without missing values.
    - `key`: a seed, or a key such as `jax.random.key(0)`.
    - `num_chains`: the number of chains from data, and of those from noise.
    - `burn_in`, `steps`: the number of steps of each chain that do not count, and that do.
    - `modes`: the largest number of modes.
    """
    require_chains(model, "`equilibrium`")
    require_single(model)
    _checks.count("num_chains", num_chains, 2)
    _checks.count("burn_in", burn_in, 0)
    _checks.count("steps", steps, 4)
    _checks.count("modes", modes)
    require_sampler(sampler)
    pick, one, two = jax.random.split(_checks.as_key(key), 3)
    _, seen, observed = model.observe(_checks.as_data("data", data), "data")
    if observed is not None and not model.grouped:
        raise ValueError("`data` must hold no missing values for `equilibrium`, got NaN.")
    units, _ = held_states(model, seen, observed)
    rows = jax.tree.leaves(units)[0].shape[0]
    chosen = jax.random.choice(pick, rows, (num_chains,), rows < num_chains)
    start = model.named([x[chosen] for x in model.variables.unfolded(units)])

    def samples(begin: Any, key: PRNGKeyArray) -> PyTree:
        options = {"num_chains": num_chains, "burn_in": burn_in, "start": begin}
        return sample(model, sampler, steps * num_chains, key=key, progress=False, **options)

    return _compared(model, samples(start, one), samples(None, two), num_chains, modes)


@eqx.filter_jit
def _compared(
    model: AbstractPlainModel, one: PyTree, other: PyTree, num_chains: int, modes: int
) -> Equilibrium:
    groups = on_modes(model, (one, other), num_chains, modes)
    both = jnp.concatenate(groups, axis=1)
    return Equilibrium(
        jax.vmap(autocorrelation_time, in_axes=2)(both),
        jax.vmap(r_hat, in_axes=2)(both),
        gaps(*groups),
    )
