from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray, PyTree

from ..inference import NUMBER
from ..models import AbstractPlainModel, batched
from ._base import AbstractChains, ladder, no_improper
from ._exchange import (
    AbstractTemperingState,
    advanced,
    exchanged,
    is_tried,
    moved,
    start_replicas,
    TemperingInfo,
)
from ._sweep import sweep


class ParallelTemperingState(AbstractTemperingState):
    """The state of the chains. `units` are the chains at inverse temperature 1, as for other
    samplers; `replicas` are those at all temperatures, `[betas, chains, n]`, hottest first.

    `walker` is the replica, numbered at the start, that is now at each place. `rising` is True if
    it visited the hot end last. `trips` counts, for each chain, the replicas that moved from the
    hot end to the cold end.

    !!! example

        ```python
        sampler = ebmlearn.ParallelTempering(jnp.linspace(0, 1, 6))
        state = sampler.init(ebmlearn.RBM.init(16, 8), num_chains=10, key=jax.random.key(0))
        state.units.visible.shape, state.replicas.visible.shape  # (10, 16), (6, 10, 16)
        ```

    **Fields:**

    - `replicas`: the states of all replicas.
    - `clamped`: which units never change, or None.
    - `steps`: the number of steps so far.
    - `walker`, `rising`, `trips`: as above.
    """


class ParallelTempering(AbstractChains):
    """Parallel tempering: each chain is a ladder of replicas at different temperatures. A step
    makes a Gibbs sweep of all replicas and then swaps neighbours, even and odd pairs in turn, which
    moves configurations along the ladder faster than random pairs (Okabe et al. 2001; Syed et al.
    2022).

    !!! example

        ```python
        sampler = ebmlearn.ParallelTempering(jnp.linspace(0, 1, 11))
        rbm = ebmlearn.RBM.init(16, 8)
        samples = ebmlearn.sample(rbm, sampler, 1000, num_chains=10, burn_in=100)
        ```

    **Arguments:**

    - `betas`: inverse temperatures that increase to 1; the last is 1.
    """

    betas: tuple[float, ...] = eqx.field(metadata=NUMBER, converter=ladder)
    has_replicas: ClassVar[bool] = True

    def _start(
        self, model: AbstractPlainModel, num_chains: int, key: PRNGKeyArray, *told: PyTree
    ) -> ParallelTemperingState:
        no_improper(model, self.betas)
        fields = start_replicas(model, len(self.betas), num_chains, key, *told)
        return ParallelTemperingState(**fields)

    def _step(
        self, model: AbstractPlainModel, state: ParallelTemperingState, key: PRNGKeyArray
    ) -> tuple[ParallelTemperingState, TemperingInfo]:
        number, chains = state.walker.shape
        one, two = jax.random.split(key)
        # All replicas of all chains are rows of one array, each with its own inverse temperature.
        flat = jax.tree.map(lambda x: x.reshape(number * chains, x.shape[-1]), state.replicas)
        layers = model.encode(flat)
        dtype = model.dtype
        betas = jnp.asarray(self.betas, dtype)
        clamp = model.variables.masks(state.clamped)
        if clamp is not None:
            clamp = [None if mask is None else jnp.tile(mask, (number, 1)) for mask in clamp]
        rows = model if model.batch_shape == () else batched(model, (number, chains))
        layers = sweep(rows, layers, one, jnp.repeat(betas, chains)[:, None], clamp=clamp)
        energies = rows.energies(layers).reshape(number, chains)

        tried = is_tried(number - 1, state.steps)
        gap = (betas[1:] - betas[:-1])[:, None]
        log_ratio = jnp.broadcast_to(gap, (number - 1, chains)) * (energies[1:] - energies[:-1])
        swapped, source = exchanged(log_ratio, tried, two)
        replicas = model.decode([moved(x.reshape(number, chains, -1), source) for x in layers])
        new = advanced(state, replicas, source)
        return new, TemperingInfo(moved(energies, source)[-1], tried, swapped, new.trips)
