"""Estimates of log Z and of all means by weighted draws, where a model is made of tables."""

import math
import time

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from ..elimination import Estimate, estimated, find_order, Impossible, Network, reduced
from ..factors import Stacks
from ..models import AbstractSampled
from ._asked import Asked, asked


# Orders of more tables than these take too long to find.
_TABLES = 20_000
# The standard error of log Z above which one set of draws outweighs all others.
_LARGEST = 0.5
# Greedy orders of wider networks take too long to find: the one from end to end has to do.
_HOPELESS = 60


def drawn(
    problem: AbstractSampled, stacks: Stacks | None, deadline: float, key: PRNGKeyArray
) -> Asked | None:
    """Beliefs by draws from mini-buckets. None if the model is not made of few tables, if there was
    too little time, or if the answer would rest on a few of the draws.
    """
    if stacks is None or sum(len(members) for members, _ in stacks) > _TABLES:
        return None
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))

    def ask(network: Network, end: float, _: int) -> Estimate | None:
        own = _estimated(network, end - time.perf_counter(), rng)
        return None if own is None or own.error > _LARGEST else own

    return asked(problem, stacks, deadline, ask)


def _estimated(network: Network, seconds: float, rng: np.random.Generator) -> Estimate | None:
    began = time.perf_counter()
    try:
        small = reduced(network)
        order = find_order(
            small.network.counts, small.network.scopes, most=_HOPELESS, seconds=seconds / 10
        )
        found = estimated(small.network, order, began + seconds - time.perf_counter(), rng)
    except Impossible:
        even = [np.full(n, 1 / n) for n in network.counts]
        return Estimate(-math.inf, -math.inf, 0.0, even, 0.0, 0)
    if found is None:
        return None
    return found._replace(marginals=small.whole(found.marginals, network.counts))
