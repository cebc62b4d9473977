"""What samplers of several replicas share: exchanges, and where replicas have been."""

import dataclasses
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ..models import AbstractPlainModel
from ..units import _random
from ._base import start_chains


State = TypeVar("State", bound="AbstractTemperingState")


class TemperingInfo(NamedTuple):
    """For each chain: the energy of the sampled model; for each pair of neighbouring replicas,
    whether a swap was tried (every second step) and accepted; and the number of round trips so far.

    !!! example

        ```python
        sampler = ebmlearn.ParallelTempering(jnp.linspace(0, 1, 6))
        _, info = ebmlearn.sample_with_info(ebmlearn.RBM.init(16, 8), sampler, 1000)
        info.swapped.mean((0, 2)) / info.tried.mean(0)  # the share of swaps, by pair
        ```

    **Fields:**

    - `energy`: the energy.
    - `tried`, `swapped`: whether a swap was tried, and accepted, `[pairs, chains]`.
    - `trips`: the number of round trips so far.
    """

    energy: Float[Array, " chains"]
    tried: Bool[Array, " pairs"]
    swapped: Float[Array, "pairs chains"]
    trips: Int[Array, " chains"]


class AbstractTemperingState(eqx.Module):
    """The state of chains that have several replicas each, `replicas` of shape
    `[places, chains, n]`. The last place is that of the sampled model.
    """

    replicas: PyTree
    clamped: PyTree
    steps: Int[Array, ""]
    walker: Int[Array, "places chains"]
    rising: Bool[Array, "places chains"]
    trips: Int[Array, " chains"]

    @property
    def units(self) -> PyTree:
        """The chains of the sampled model."""
        return jax.tree.map(lambda x: x[-1], self.replicas)


def start_replicas(
    model: AbstractPlainModel,
    number: int,
    num_chains: int,
    key: PRNGKeyArray,
    *told: PyTree,
) -> dict[str, Any]:
    """The fields of the state before the first step. All replicas of a chain begin where `init` is
    told, or each at its own draw.
    """
    keys = jax.random.split(key, number)
    states = [start_chains(model, num_chains, keys[k], *told) for k in range(number)]
    shape = (number, num_chains)
    return {
        "replicas": jax.tree.map(lambda *x: jnp.stack(x), *[state.units for state in states]),
        "clamped": states[0].clamped,
        "steps": jnp.zeros((), jnp.int32),
        "walker": jnp.broadcast_to(jnp.arange(number, dtype=jnp.int32)[:, None], shape),
        "rising": jnp.zeros(shape, bool).at[0].set(True),
        "trips": jnp.zeros(num_chains, jnp.int32),
    }


def is_tried(pairs: int, steps: Int[Array, ""]) -> Bool[Array, " pairs"]:
    """Which pairs of neighbours a step tries to swap: even and odd ones in turn."""
    return jnp.arange(pairs, dtype=jnp.int32) % 2 == steps % 2


def exchanged(
    log_ratio: Float[Array, "pairs chains"], tried: Bool[Array, " pairs"], key: PRNGKeyArray
) -> tuple[Float[Array, "pairs chains"], Int[Array, "places chains"]]:
    """Which neighbours swap, and from which place each place is then filled."""
    swapped = _random.accept(log_ratio, key) * tried[:, None].astype(log_ratio.dtype)
    up = jnp.pad(swapped, ((0, 1), (0, 0))).astype(jnp.int32)
    down = jnp.pad(swapped, ((1, 0), (0, 0))).astype(jnp.int32)
    places = jnp.arange(log_ratio.shape[0] + 1, dtype=jnp.int32)
    return swapped, places[:, None] + up - down


def moved(x: Array, source: Int[Array, "places chains"]) -> Array:
    """An array `[places, chains, ...]` after an exchange."""
    return x[source, jnp.arange(x.shape[1], dtype=source.dtype)[None, :]]


def advanced(
    state: State,
    replicas: PyTree,
    source: Int[Array, "places chains"],
    first: Int[Array, ""] | int = 0,
) -> State:
    """The state after a step that made an exchange, whose first place in use is `first`."""
    rising, arrived = risen(state.rising, source, first)
    return dataclasses.replace(
        state,
        replicas=replicas,
        steps=state.steps + 1,
        walker=moved(state.walker, source),
        rising=rising,
        trips=state.trips + arrived,
    )


def risen(
    rising: Bool[Array, "places chains"],
    source: Int[Array, "places chains"],
    first: Int[Array, ""] | int = 0,
) -> tuple[Bool[Array, "places chains"], Int[Array, " chains"]]:
    """After an exchange: which replicas visited the place `first` since they were at the last one,
    and how many of each chain have just come from there to the last one.
    """
    rising = moved(rising, source)
    arrived = rising[-1].astype(jnp.int32)
    return rising.at[-1].set(False).at[first].set(True), arrived
