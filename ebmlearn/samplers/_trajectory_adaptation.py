from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from .. import _checks
from .._types import Key
from ..models import AbstractModel, AbstractPlainModel, marginal_energies
from ._base import after_steps
from ._trajectory import on_each, parameters, Trajectory
from ._trajectory_tempering import RATE, TrajectoryTempering


# Models that swap at less than this share of the wanted rate are too far apart.
_TOLERANCE = 2 / 3
# After how many steps of the chains swaps of all pairs are looked at.
_THIN = 10


def adapt_trajectory(
    model: AbstractPlainModel,
    trajectory: Trajectory,
    *,
    key: Key = 0,
    rate: float = RATE,
    num_chains: int = 20,
    steps: int = 200,
    rounds: int = 4,
) -> Trajectory:
    """Adapts a trajectory to sample a model: no more models than necessary, and neighbours that
    swap at about the same rate.

    Each round runs chains and measures how often any two models would swap. It then goes back from
    the sampled model, each time to the earliest model that still swaps often enough, and leaves out
    all between. Where even neighbours swap too rarely, the model halfway between their parameters
    is added. It ends when nothing changes.

    !!! example

        ```python
        models = [ebmlearn.RBM.init(16, 8, scale=scale) for scale in (0.0, 0.3, 0.6, 1.0)]
        trajectory = ebmlearn.Trajectory(models)
        trajectory = ebmlearn.samplers.adapt_trajectory(models[-1], trajectory)
        sampler = ebmlearn.TrajectoryTempering(trajectory)
        ```

    **Arguments:**

    - `model`: the model to sample, which takes the place of the last.
    - `trajectory`: the initial trajectory.
    - `key`: a seed, or a key such as `jax.random.key(0)`.
    - `rate`: the share of swaps that neighbours should at least accept.
    - `num_chains`: the number of chains.
    - `steps`: the number of steps of each round that count, after half as many that do not.
    - `rounds`: the largest number of rounds.

    **Returns:**

    A trajectory that ends at `model`, without room for more.
    """
    if not isinstance(trajectory, Trajectory):
        got = _checks.describe(trajectory)
        raise TypeError(f"`trajectory` must be a `Trajectory`, got {got}.")
    _checks.number("rate", rate, 0, 1, "(0, 1)")
    _checks.count("num_chains", num_chains)
    _checks.count("steps", steps, _THIN)
    _checks.count("rounds", rounds)
    models, room = [*trajectory.ending(model)], trajectory.capacity
    for own in jax.random.split(_checks.as_key(key), rounds):
        room = room if len(models) <= room else 2 * len(models)
        sampler = TrajectoryTempering(Trajectory(models, room))
        one, two = jax.random.split(own)
        state = sampler.init(model, num_chains, key=one)
        lengths = jnp.asarray(steps // 2), jnp.asarray(steps // _THIN)
        found = np.asarray(_rates(sampler, model, state, two, *lengths))[-len(models) :]
        path = _path(found[:, -len(models) :], rate)
        new = [models[path[0][0]]]
        for before, k, near in path[1:]:
            new += [models[k]] if near else [_halfway(models[before], models[k]), models[k]]
        done, models = len(new) == len(models) and all(near for *_, near in path), new
        if done:
            break
    return Trajectory(models)


def _path(rates: Float[np.ndarray, "n n"], rate: float) -> list[tuple[int, int, bool]]:
    """From the first model to the last, where each step comes from and leads to, and whether swaps
    over it are frequent enough; the first step leads from the first model to itself.
    """
    out, k = [], len(rates) - 1
    while k > 0:
        before = [j for j in range(k) if rates[j, k] >= rate]
        start = before[0] if before else k - 1
        out.append((start, k, bool(rates[start, k] >= _TOLERANCE * rate)))
        k = start
    return [(0, 0, True), *out[::-1]]


def _halfway(one: AbstractModel, other: AbstractModel) -> AbstractModel:
    middle = jax.tree.map(lambda a, b: (a + b) / 2, parameters(one), parameters(other))
    return eqx.combine(middle, one)


@eqx.filter_jit
def _rates(
    sampler: TrajectoryTempering,
    model: AbstractPlainModel,
    state: Any,
    key: PRNGKeyArray,
    burn_in: Int[Array, ""],
    times: Int[Array, ""],
) -> Float[Array, "places places"]:
    """The mean probability of a swap between any two places, after a burn-in."""
    models = parameters(state.trajectory.ending(model).models)
    number = state.trajectory.capacity

    def energies(replicas: PyTree) -> Float[Array, "places places chains"]:
        """Those of the replicas of a place, the first axis, under the models of all places."""

        def of_place(units: PyTree) -> Float[Array, "places chains"]:
            return on_each(lambda own: marginal_energies(own, own.encode(units)), models, model)

        return jax.lax.map(of_place, replicas)

    def look(i: Any, carry: Any) -> Any:
        state, total = carry
        own = jax.random.fold_in(main, i)
        state = after_steps(sampler, model, state, own, _THIN)
        found = energies(state.replicas)
        gain = jnp.diagonal(found).T[:, None] - found.swapaxes(0, 1)
        ratio = gain + gain.swapaxes(0, 1)
        return state, total + jnp.exp(jnp.minimum(jnp.nan_to_num(ratio, nan=-jnp.inf), 0)).mean(-1)

    warm, main = jax.random.split(key)
    state = after_steps(sampler, model, state, warm, burn_in)
    none = jnp.zeros((number, number), model.dtype)
    _, total = jax.lax.fori_loop(0, times, look, (state, none))
    return total / times.astype(total.dtype)
