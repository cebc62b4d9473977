import dataclasses
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from .. import _checks
from ..models import AbstractModel, AbstractPlainModel, marginal_energies, summed as summed_in
from ._base import AbstractSampler, ChainState, require_chain
from ._exchange import (
    AbstractTemperingState,
    advanced,
    exchanged,
    is_tried,
    moved,
    start_replicas,
    TemperingInfo,
)
from ._gibbs import Gibbs
from ._sweep import drawn
from ._trajectory import on_each, parameters, require_shape, Trajectory


class TrajectoryTemperingState(AbstractTemperingState):
    """The state of the chains. `units` are the chains of the sampled model, as for other samplers;
    `replicas` are those of all models of the `trajectory`, `[capacity, chains, n]`. The last place
    is that of the sampled model. Places before the first model are not in use.

    `walker`, `rising` and `trips` are as for
    [`ParallelTemperingState`][ebmlearn.samplers.ParallelTemperingState]; the hot end is the first
    model. The mean of `rising` over chains and steps is the flow along the trajectory. `rates` is
    a running mean of the probability with which each pair of neighbours swaps, NaN at first.

    !!! example

        ```python
        models = [ebmlearn.RBM.init(16, 8, scale=scale) for scale in (0.1, 1.0)]
        sampler = ebmlearn.TrajectoryTempering(ebmlearn.Trajectory(models))
        state = sampler.init(models[-1], num_chains=10, key=jax.random.key(0))
        state.units.visible.shape, state.rates
        ```

    **Fields:**

    - `replicas`: the states of all replicas.
    - `clamped`: which units never change, or None.
    - `steps`: the number of steps so far.
    - `walker`, `rising`, `trips`, `rates`: as above.
    - `trajectory`: the models.
    """

    trajectory: Trajectory
    rates: Float[Array, " pairs"]


class TrajectoryTempering(AbstractSampler):
    """Parallel trajectory tempering (Béreux et al. 2024): each chain has a replica on every model
    of a trajectory, such as models saved during training. The sampled model takes the place of the
    last. A step swaps neighbours, even and odd pairs in turn, and then makes a step of `sampler` on
    every replica.

    Neighbours swap states $x$ and $y$ with probability
    $\\min(1, e^{E_t(x) - E_t(y) + E_{t+1}(y) - E_{t+1}(x)})$. Where layers can be summed out, as
    the hidden units of an RBM, $E$ is the free energy of the others, so that swaps are accepted
    more often. A step costs about two sweeps for each place of the trajectory.

    Models along training often mix better than tempered ones: their modes appear one after the
    other, where a model at other temperatures may lose them all at once.

    !!! example

        ```python
        models = [ebmlearn.RBM.init(16, 8, scale=scale) for scale in (0.1, 0.5, 1.0)]
        sampler = ebmlearn.TrajectoryTempering(ebmlearn.Trajectory(models))
        samples = ebmlearn.sample(models[-1], sampler, 1000, num_chains=10, burn_in=100)
        ```

    **Arguments:**

    - `trajectory`: a [`ebmlearn.Trajectory`][] of models that have the shape of the sampled one.
      For a conditioned CRBM write `trajectory.condition(features)`.
    - `sampler`: the sampler that every replica makes a step of, Gibbs by default.
    """

    trajectory: Trajectory
    _: KW_ONLY
    sampler: AbstractSampler = eqx.field(default_factory=Gibbs)
    has_replicas: ClassVar[bool] = True

    def __check_init__(self):
        if not isinstance(self.trajectory, Trajectory):
            got = _checks.describe(self.trajectory)
            raise TypeError(
                f"`trajectory` must be a `Trajectory`, got {got}: write"
                " `TrajectoryTempering(Trajectory([first, second, third]))`."
            )
        require_chain(self.sampler)

    def _check(self, model: AbstractModel) -> None:
        self.sampler._check(model)
        require_shape("trajectory", self.trajectory.shape, model)

    def _start(
        self, model: AbstractPlainModel, num_chains: int, key: PRNGKeyArray, *told: PyTree
    ) -> TrajectoryTemperingState:
        number, first = self.trajectory.capacity, self.trajectory.first
        fields = start_replicas(model, number, num_chains, key, *told)
        fields["rising"] = jnp.zeros((number, num_chains), bool).at[first].set(True)
        rates = jnp.full(number - 1, jnp.nan, model.dtype)
        return TrajectoryTemperingState(**fields, trajectory=self.trajectory, rates=rates)

    def _step(
        self, model: AbstractPlainModel, state: TrajectoryTemperingState, key: PRNGKeyArray
    ) -> tuple[TrajectoryTemperingState, TemperingInfo]:
        one, two = jax.random.split(key)
        models = parameters(state.trajectory.ending(model).models)
        number, first = state.trajectory.capacity, state.trajectory.first
        clamp = model.variables.masks(state.clamped)
        summed = _summed(model, clamp)

        used = jnp.arange(number - 1, dtype=jnp.int32) >= first
        tried = is_tried(number - 1, state.steps) & used

        def gain(model: AbstractPlainModel, own: PyTree, other: PyTree) -> Float[Array, " chains"]:
            if summed is None:
                return model.energies(model.encode(own)) - model.energies(model.encode(other))
            one, two = (marginal_energies(model, model.encode(x)) for x in (own, other))
            return one - two

        # Each replica has one partner in a step, itself if none: each model is evaluated twice.
        places = jnp.arange(number, dtype=jnp.int32)
        up, down = jnp.pad(tried, (0, 1)), jnp.pad(tried, (1, 0))
        partner = places + up.astype(jnp.int32) - down.astype(jnp.int32)
        others = jax.tree.map(lambda x: x[partner], state.replicas)
        gains = on_each(gain, models, model, state.replicas, others)
        log_ratio = gains[:-1] + gains[1:]
        swapped, source = exchanged(log_ratio, tried, one)
        replicas = jax.tree.map(lambda x: moved(x, source), state.replicas)

        def stepped(model: AbstractPlainModel, units: PyTree, key: PRNGKeyArray) -> PyTree:
            again, own = jax.random.split(key)
            if summed and not self.sampler.renews:
                # What is summed out has been swapped as if it did not matter.
                layers = model.encode(units)
                for k in summed:
                    own_key = jax.random.fold_in(again, k)
                    layers[k] = drawn(model, layers, k, own_key)  # pyright: ignore
                units = model.decode(layers)
            after, _ = self.sampler._step(model, ChainState(units, state.clamped), own)
            return after.units

        replicas = on_each(stepped, models, model, replicas, jax.random.split(two, number))
        new = advanced(state, replicas, source, first)
        new = dataclasses.replace(new, rates=_measured(state.rates, log_ratio, tried))
        energies = model.energies(model.encode(new.units))
        return new, TemperingInfo(energies, tried, swapped, new.trips)


def _summed(model: AbstractPlainModel, clamp: Any) -> tuple[int, ...] | None:
    """The layers that an exchange sums out: those that can be; None if some of them are held."""
    summed = summed_in(model)
    held = clamp is not None and any(clamp[k] is not None for k in summed)
    return None if held else summed


# How much a step counts in the running mean of the rates of swaps.
_SHARE = 0.5


def _measured(
    rates: Float[Array, " pairs"],
    log_ratio: Float[Array, "pairs chains"],
    tried: Bool[Array, " pairs"],
) -> Float[Array, " pairs"]:
    """The running means of the probability of a swap after a step."""
    now = jnp.nan_to_num(jnp.exp(jnp.minimum(log_ratio, 0)), nan=0.0).mean(1)
    mean = jnp.where(jnp.isnan(rates), now, rates + _SHARE * (now - rates))
    return jnp.where(tried, mean, rates)


# Neighbours of a trajectory should swap about so often.
RATE = 0.3


def followed(state: PyTree, model: AbstractPlainModel) -> PyTree:
    """The state of a sampler after a step, for a single model that changes. That of a trajectory
    grows by the model when it swaps too rarely with the one before, as long as there is room: the
    replicas of the new place are those of the model, each of another chain, so that a swap of
    neighbours is not one of equal states. All other states stay as they are.
    """
    if not isinstance(state, TrajectoryTemperingState):
        return state

    def grown(state: TrajectoryTemperingState) -> TrajectoryTemperingState:
        def shifted(x: Array) -> Array:
            return jnp.roll(x, -1, axis=0)

        def copied(x: Array) -> Array:
            return shifted(x).at[-1].set(jnp.roll(x[-1], 1, axis=0))

        return dataclasses.replace(
            state,
            replicas=jax.tree.map(copied, state.replicas),
            # The number of a place that was not in use.
            walker=shifted(state.walker),
            rising=shifted(state.rising).at[-1].set(False),
            trajectory=state.trajectory.extended(model),
            rates=shifted(state.rates).at[-1].set(jnp.nan),
        )

    due = (state.rates[-1] < RATE) & (state.trajectory.count < state.trajectory.capacity)
    return jax.lax.cond(due, grown, lambda state: state, state)
