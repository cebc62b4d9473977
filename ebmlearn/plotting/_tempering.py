import itertools
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Int, Real
from matplotlib.axes import Axes

from .. import _checks
from .._types import AnyArray
from ..samplers import TemperingInfo
from ._axes import below, instance, labelled, numbers, on, several


def swaps(
    info: TemperingInfo,
    betas: Real[AnyArray, " betas"] | Sequence[float | int] | None = None,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draws the share of accepted swaps between each two neighbouring replicas of parallel or
    trajectory tempering. The lowest share limits how fast replicas move.

    !!! example

        ```python
        from ebmlearn import plotting

        sampler = ebmlearn.ParallelTempering(jnp.linspace(0, 1, 6))
        rbm = ebmlearn.RBM.init(16, 8, scale=1.0)
        _, info = ebmlearn.sample_with_info(rbm, sampler, 1000, num_chains=10)
        plotting.swaps(info, sampler.betas)
        plotting.round_trips(info)
        ```

    **Arguments:**

    - `info`: the info of the steps of [`ebmlearn.ParallelTempering`][] or
      [`ebmlearn.TrajectoryTempering`][], stacked along a leading axis, as `jax.lax.scan` returns
      it.
    - `betas`: the inverse temperatures, as labels; by default the pairs are numbered.
    - `ax`: the axes to draw on; a new figure by default.

    **Returns:**

    The axes, with a bar for each pair of neighbours.
    """
    tried, swapped = _steps(info)
    pairs = tried.shape[1]
    with np.errstate(invalid="ignore"):  # pairs that were never tried
        shares = (swapped.mean(2) * tried).sum(0) / tried.sum(0)
    labels = [str(k + 1) for k in range(pairs)]
    if betas is not None:
        ladder = several("betas", betas, pairs + 1)
        labels = [f"{a:.3g}–{b:.3g}" for a, b in itertools.pairwise(ladder)]
    ax = on(ax)
    ax.bar(np.arange(pairs), shares, width=0.8)
    # Not more words than there is room for.
    every = -(-pairs // 12)
    ax.set_xticks(np.arange(pairs)[::every], labels[::every])
    if betas is not None:
        ax.tick_params("x", labelrotation=60)
    ax.set_ylim(0, 1)
    what = "neighbours" if betas is None else "inverse temperatures"
    return labelled(ax, what, "share of swaps accepted")


def walkers(
    walker: Int[AnyArray, "steps places *chains"],
    *,
    chain: int = 0,
    follow: Sequence[int] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws the path of each replica along the ladder or the trajectory.

    !!! example

        ```python
        from ebmlearn import plotting

        sampler = ebmlearn.ParallelTempering(jnp.linspace(0, 1, 6))
        rbm, keys = ebmlearn.RBM.init(16, 8, scale=1.0), jax.random.split(jax.random.key(0), 100)

        def step(state, key):
            state, info = sampler.step(rbm, state, key=key)
            return state, state.walker

        _, walker = jax.lax.scan(step, sampler.init(rbm, num_chains=1, key=keys[0]), keys)
        plotting.walkers(walker)
        ```

    **Arguments:**

    - `walker`: the `walker` of the state of the sampler after each step, `[steps, places]` or
      `[steps, places, chains]`.
    - `chain`: the index of the chain, if there are several.
    - `follow`: the replicas to draw in full colour, by their place at the start; all by default.
    - `ax`: the axes to draw on; a new figure by default.

    **Returns:**

    The axes, with a line for each replica: 0 is the hottest place.
    """
    array = numbers("walker", walker, 2, 3)
    if array.ndim == 3:
        below("chain", chain, array.shape[2])
        array = array[:, :, chain]
    number = array.shape[1]
    if (np.sort(array, axis=1) != np.arange(number)).any():
        raise ValueError(f"`walker` must hold each of 0 to {number - 1} once at each step.")
    chosen = set(range(number)) if follow is None else set(follow)
    if not chosen <= set(range(number)):
        raise ValueError(f"`follow` must hold numbers from 0 to {number - 1}, got {follow}.")
    # The place of each replica, from the replica of each place.
    place = np.argsort(array, axis=1)
    ax = on(ax, (7.0, 3.0))
    colours = matplotlib.colormaps["coolwarm_r"](np.linspace(0, 1, number))
    steps = np.arange(1, len(place) + 1)
    for k in sorted(range(number), key=lambda k: k in chosen):
        full = k in chosen
        ax.plot(
            steps,
            place[:, k],
            color=colours[k] if full else "0.85",
            linewidth=1.2 if full else 0.6,
            label=f"replica {k}" if full and follow is not None else None,
        )
    return labelled(ax, "step", "place, hot to cold", "y")


def round_trips(info: TemperingInfo, *, ax: Axes | None = None) -> Axes:
    """Draws the number of replicas that have moved from the hot end to the cold end.

    !!! example

        ```python
        from ebmlearn import plotting

        sampler = ebmlearn.ParallelTempering(jnp.linspace(0, 1, 6))
        rbm = ebmlearn.RBM.init(16, 8, scale=1.0)
        _, info = ebmlearn.sample_with_info(rbm, sampler, 1000, num_chains=10)
        plotting.round_trips(info)
        ```

    **Arguments:**

    - `info`: as for [`ebmlearn.plotting.swaps`][].
    - `ax`: the axes to draw on; a new figure by default.

    **Returns:**

    The axes: a thin line for each chain, a thick one for their mean.
    """
    _steps(info)
    trips = numbers("info.trips", info.trips, 2)
    ax = on(ax)
    steps = np.arange(1, len(trips) + 1)
    if trips.shape[1] > 1:
        ax.plot(steps, trips, color="0.8", linewidth=0.8)
    ax.plot(steps, trips.mean(1), linewidth=2)
    return labelled(ax, "step", "round trips")


def _steps(info: Any) -> tuple[np.ndarray, np.ndarray]:
    """Which pairs were tried, `[steps, pairs]`, and swapped, `[steps, pairs, chains]`."""
    instance("info", info, TemperingInfo, "be that of parallel or trajectory tempering")
    if np.ndim(info.tried) != 2:
        got = _checks.describe(np.asarray(info.tried))
        raise ValueError(f"`info` must hold several steps, `tried` [steps, pairs], got {got}.")
    return numbers("info.tried", info.tried, 2), numbers("info.swapped", info.swapped, 3)
