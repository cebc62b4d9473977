from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ..inference._base import NUMBER
from ..models import AbstractPlainModel
from ..units import _random
from ._base import AbstractChains, ladder, no_improper, start_chains
from ._sweep import sweep


class ParallelTemperingState(eqx.Module):
    """The state of the chains. `units` are the chains at inverse temperature 1, as for other
    samplers; `replicas` are those at all temperatures, `[betas, chains, n]`, hottest first.

    `walker` is the replica, numbered at the start, that is now at each place. `rising` is True if
    it visited the hot end last. `trips` counts, for each chain, the replicas that moved from the
    hot end to the cold end.
    """

    replicas: PyTree
    clamped: PyTree
    steps: Int[Array, ""]
    walker: Int[Array, "betas chains"]
    rising: Bool[Array, "betas chains"]
    trips: Int[Array, " chains"]

    @property
    def units(self) -> PyTree:
        """The chains at inverse temperature 1."""
        return jax.tree.map(lambda x: x[-1], self.replicas)


class ParallelTemperingInfo(NamedTuple):
    """For each chain: the energy at inverse temperature 1; for each pair of neighbouring
    temperatures, whether a swap was tried (every second step) and accepted; and the number of round
    trips so far.
    """

    energy: Float[Array, " chains"]
    tried: Bool[Array, " pairs"]
    swapped: Float[Array, "pairs chains"]
    trips: Int[Array, " chains"]


class ParallelTempering(AbstractChains):
    """Parallel tempering: each chain is a ladder of replicas at different temperatures. A step
    makes a Gibbs sweep of all replicas and then swaps neighbours, even and odd pairs in turn, which
    moves configurations along the ladder faster than random pairs (Okabe et al. 2001; Syed et al.
    2022).

    !!! example

        ```python
        sampler = ebmlearn.ParallelTempering(jnp.linspace(0, 1, 11))
        samples = ebmlearn.sample(rbm, sampler, 1000, key=key, num_chains=10, burn_in=100)
        ```
    """

    betas: tuple[float, ...] = eqx.field(metadata=NUMBER, converter=ladder)

    def _start(
        self,
        model: AbstractPlainModel,
        num_chains: int,
        key: PRNGKeyArray,
        start: Any,
        clamped: Any,
    ) -> ParallelTemperingState:
        no_improper(model, self.betas)
        # All replicas of a chain begin at `start`, or each at its own draw.
        number = len(self.betas)
        keys = jax.random.split(key, number)
        states = [start_chains(model, num_chains, keys[k], start, clamped) for k in range(number)]
        shape = (number, num_chains)
        return ParallelTemperingState(
            replicas=jax.tree.map(lambda *x: jnp.stack(x), *[state.units for state in states]),
            clamped=states[0].clamped,
            steps=jnp.zeros((), jnp.int32),
            walker=jnp.broadcast_to(jnp.arange(number, dtype=jnp.int32)[:, None], shape),
            rising=jnp.zeros(shape, bool).at[0].set(True),
            trips=jnp.zeros(num_chains, jnp.int32),
        )

    def _step(
        self, model: AbstractPlainModel, state: ParallelTemperingState, key: PRNGKeyArray
    ) -> tuple[ParallelTemperingState, ParallelTemperingInfo]:
        number, chains = state.walker.shape
        one, two = jax.random.split(key)
        # All replicas of all chains are rows of one array, each with its own inverse temperature.
        flat = jax.tree.map(lambda x: x.reshape(number * chains, x.shape[-1]), state.replicas)
        layers = model.encode(flat)
        dtype = model.dtype
        betas = jnp.asarray(self.betas, dtype)
        clamp = model.masks(state.clamped)
        if clamp is not None:
            clamp = [None if mask is None else jnp.tile(mask, (number, 1)) for mask in clamp]
        rows = _repeated(model, number, chains)
        layers = sweep(rows, layers, one, jnp.repeat(betas, chains)[:, None], clamp=clamp)
        energies = rows.energies(layers).reshape(number, chains)

        pairs = jnp.arange(number - 1, dtype=jnp.int32)
        tried = pairs % 2 == state.steps % 2
        gap = (betas[1:] - betas[:-1])[:, None]
        log_ratio = jnp.broadcast_to(gap, (number - 1, chains)) * (energies[1:] - energies[:-1])
        swapped = _random.accept(log_ratio, two) * tried[:, None].astype(dtype)
        # From which place each place is filled.
        up = jnp.pad(swapped, ((0, 1), (0, 0))).astype(jnp.int32)
        down = jnp.pad(swapped, ((1, 0), (0, 0))).astype(jnp.int32)
        source = jnp.arange(number, dtype=jnp.int32)[:, None] + up - down

        def moved(x: Array) -> Array:
            index = source.reshape(*source.shape, *[1] * (x.ndim - 2))
            return jnp.take_along_axis(x, jnp.broadcast_to(index, x.shape), axis=0)

        replicas = model.decode([moved(x.reshape(number, chains, -1)) for x in layers])
        rising = moved(state.rising)
        trips = state.trips + rising[-1].astype(jnp.int32)
        rising = rising.at[-1].set(False).at[0].set(True)
        new = ParallelTemperingState(
            replicas, state.clamped, state.steps + 1, moved(state.walker), rising, trips
        )
        return new, ParallelTemperingInfo(moved(energies)[-1], tried, swapped, trips)


def _repeated(model: AbstractPlainModel, number: int, chains: int) -> AbstractPlainModel:
    """The model with an instance for each row, where it has a batch axis."""
    if model.batch_shape == ():
        return model
    return model.batched((number, chains))


ParallelTempering.__init__.__doc__ = """**Arguments:**

- `betas`: inverse temperatures that increase to 1; the last is 1.
"""
