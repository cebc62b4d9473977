"""The trajectory that `fit` records."""

from typing import Any

import jax
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from .. import _checks
from .._types import Batch
from ..models import AbstractModel, AbstractPlainModel
from ..samplers import Trajectory, TrajectoryTempering, TrajectoryTemperingState
from ..samplers._trajectory_tempering import followed, RATE


# Chains that measure how often neighbours swap, and how many steps of training lie between their
# steps.
CHAINS = 20
EVERY = 10


def recorder(
    trajectory: int | Trajectory, model: AbstractPlainModel, batch: Batch, key: PRNGKeyArray
) -> TrajectoryTemperingState:
    """Chains on a trajectory that starts at the base-rate model, or on one that goes on."""
    if not isinstance(trajectory, Trajectory):
        if not isinstance(trajectory, int) or isinstance(trajectory, bool):
            got = _checks.describe(trajectory)
            raise TypeError(
                "`trajectory` must be the number of models there is room for, or a `Trajectory`,"
                f" got {got}."
            )
        _checks.count("trajectory", trajectory, 2)
        trajectory = Trajectory.start(model, batch, trajectory)
    return TrajectoryTempering(trajectory).init(model, CHAINS, key=key)


def recorded(
    state: TrajectoryTemperingState, model: PyTree, step: Int[Array, ""], key: PRNGKeyArray
) -> TrajectoryTemperingState:
    """After a step of training. Every few steps, two steps of the chains try all pairs once."""
    sampler = TrajectoryTempering(state.trajectory)

    def run(state: TrajectoryTemperingState) -> TrajectoryTemperingState:
        for own in jax.random.split(key):
            state, _ = sampler.step(model, state, key=own)
        return followed(state, model)

    return jax.lax.cond(step % EVERY == 0, run, lambda state: state, state)


def trajectory_in(tree: PyTree, model: AbstractModel) -> Trajectory | None:
    """The trajectory of a sampler's state that a pytree holds, ending at a model; None if it holds
    none.
    """
    found = states_in(tree)
    return found[0].trajectory.ending(model) if found else None


def is_full(states: list[TrajectoryTemperingState]) -> bool:
    """Whether one of the trajectories of these states had no room to grow."""
    return any(
        len(state.trajectory) == state.trajectory.capacity and bool(state.rates[-1] < RATE)
        for state in states
    )


def states_in(tree: PyTree) -> list[TrajectoryTemperingState]:
    """The states of trajectories that a pytree holds."""

    def is_state(x: Any) -> bool:
        return isinstance(x, TrajectoryTemperingState)

    return [x for x in jax.tree.leaves(tree, is_leaf=is_state) if is_state(x)]
