"""Estimates of log Z and of all means by weighted draws, where a model is made of tables."""

import math
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..elimination import Estimate, estimated, find_order, Impossible, Network, reduced
from ..factors import Stacks
from ..inference import Beliefs
from ..inference._beliefs import Found
from ..models._listed import networks_of
from ._chains import Sampled
from ._networks import beliefs_of


# Orders of more tables than these take too long to find.
_TABLES = 20_000
# The standard error of log Z above which one set of draws outweighs all others.
_LARGEST = 0.5
# Greedy orders of wider networks take too long to find: the one from end to end has to do.
_HOPELESS = 60


class Drawn(NamedTuple):
    """What draws say of all units; an estimate of log Z, and an upper bound."""

    sampled: Sampled
    value: Float[Array, "*batch"]
    bound: Float[Array, "*batch"]


def drawn(problem: Any, stacks: Stacks | None, deadline: float, key: PRNGKeyArray) -> Drawn | None:
    """Beliefs by draws from mini-buckets. None if the model is not made of few tables, if there was
    too little time, or if the answer would rest on a few of the draws.
    """
    if stacks is None or sum(len(members) for members, _ in stacks) > _TABLES:
        return None
    networks = networks_of(problem, stacks)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    found: list[Estimate] = []
    for k, network in enumerate(networks):
        now = time.perf_counter()
        own = _estimated(network, (deadline - now) / (len(networks) - k), rng)
        if own is None or own.error > _LARGEST:
            return None
        found.append(own)
    shape, dtype = problem.shape, problem.model.dtype
    value, bound, spread = (
        jnp.asarray([getattr(x, name) for x in found], dtype).reshape(shape)
        for name in ("value", "bound", "spread")
    )
    beliefs = Beliefs(
        problem,
        Found(None, None, "Auto"),
        log_odds=beliefs_of(problem, [x.marginals for x in found]),
        # Evidence may leave no configuration.
        converged=jnp.isfinite(value),
        iterations=jnp.asarray([x.sets for x in found], jnp.int32).reshape(shape),
        residual=spread,
    )
    return Drawn(Sampled("mini-buckets", beliefs, spread), value, bound)


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
