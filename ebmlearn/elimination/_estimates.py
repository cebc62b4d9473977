"""Estimates of log Z and of marginals by draws, where whole buckets would be too large."""

import math
import time
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ._buckets import bucketed, Solution
from ._orders import Order
from ._table_network import Network


_DRAWS = 1000  # of a set
_SETS = 4  # without which nothing is said
_ENOUGH = 3e-3  # standard errors for which no more draws are made
# A number of a table takes so long to sum, in seconds.
_PER_NUMBER = 6e-8
_NARROWEST, _WIDEST = 8, 22
_MEMORY = 27  # the logarithm to base 2 of the size of all messages


class Estimate(NamedTuple):
    """What draws say of a network.

    !!! example

        ```python
        from ebmlearn.elimination import estimated, find_order, Network

        chain = Network((2, 3), ((0, 1),), (np.eye(2, 3),))
        order = find_order(chain.counts, chain.scopes)
        found = estimated(chain, order, 1.0, np.random.default_rng(0))
        found.value, found.error, found.bound
        ```

    **Fields:**

    - `bound`: an upper bound of log Z.
    - `value`: the logarithm of an estimate of Z without bias.
    - `error`: the standard error of `value`.
    - `marginals`: the probabilities of the states of each variable.
    - `spread`: their standard error, the root mean square of all of them.
    - `sets`: how many independent sets of draws it rests on.
    """

    bound: float
    value: float
    error: float
    marginals: list[Float[np.ndarray, " _"]]
    spread: float
    sets: int


def estimated(
    network: Network, order: Order, seconds: float | int, rng: np.random.Generator
) -> Estimate | None:
    """An estimate of log Z with the largest mini-buckets for which half of the time suffices, or
    None if there is no time for small ones.

    !!! example

        ```python
        from ebmlearn.elimination import estimated, find_order, Network

        chain = Network((2, 3), ((0, 1),), (np.eye(2, 3),))
        order = find_order(chain.counts, chain.scopes)
        estimated(chain, order, 1.0, np.random.default_rng(0)).value
        ```

    **Arguments:**

    - `network`: the tables.
    - `order`: the order of elimination.
    - `seconds`: how long it may take.
    - `rng`: the random numbers of the draws.
    """
    began = time.perf_counter()
    most = min(_MEMORY, math.log2(max(seconds / 2 / _PER_NUMBER, 1.0)))
    chosen = None
    for width in range(_NARROWEST, _WIDEST + 1):
        plan = bucketed(network.counts, network.scopes, order, most=width)
        if plan.work > most:
            break
        chosen = plan
        if plan.is_whole:
            break
    if chosen is None:
        return None
    solution = Solution(network, chosen)
    return estimate(solution, began + seconds - time.perf_counter(), rng)


def estimate(solution: Solution, seconds: float | int, rng: np.random.Generator) -> Estimate | None:
    """Estimates from independent sets of draws, until the time is over or the errors are small.
    None if there was no time for some sets, or no draw was possible.
    """
    deadline = time.perf_counter() + seconds
    counts = solution.network.counts
    ends = np.cumsum(counts)
    values, marginals, found = [], [], None
    while True:
        began = time.perf_counter()
        states, value = solution.draw(_DRAWS, rng)
        values.append(value)
        # How often each state of each variable was drawn, one variable after the other.
        drawn = np.bincount((states + (ends - counts)).ravel(), minlength=ends[-1])
        marginals.append(drawn / len(states))
        if len(values) >= _SETS and np.isfinite(max(values)):
            found = _combined(solution, np.array(values), np.array(marginals))
        now = time.perf_counter()
        done = found is not None and max(found.error, found.spread) < _ENOUGH
        if done or 2 * now - began > deadline:
            return found


def _combined(solution: Solution, values: np.ndarray, marginals: np.ndarray) -> Estimate:
    """The mean of sets of draws, each by its estimate of Z."""
    sets, top = len(values), values.max()
    ratios = np.exp(values - top)
    share = ratios / ratios.sum()
    mean = share @ marginals
    # The error of a ratio of two means.
    scale = sets / (sets - 1)
    off = np.sqrt(scale * (share**2 @ (marginals - mean) ** 2))
    error = math.sqrt(scale * float(((share - 1 / sets) ** 2).sum()))
    value = float(top + np.log(ratios.mean()))
    cut = np.split(mean, np.cumsum(solution.network.counts)[:-1])
    spread = float(np.sqrt((off**2).mean()))
    return Estimate(solution.value, value, error, cut, spread, sets)
