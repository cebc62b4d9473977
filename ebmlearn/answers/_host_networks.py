"""Models as networks of tables on the host and back, and what weighted draws say of them."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..elimination import Estimate, estimated, find_order, Impossible, Network, Reduced, reduced
from ..factors import Stacks
from ..inference import Beliefs, Found, networks_of
from ..models import AbstractPlainModel, Problem, Refused, TableModel, told, whole_stacks


# Orders of more tables than these take too long to find.
_TABLES = 20_000
# The standard error of log Z above which one set of draws outweighs all others.
_LARGEST = 0.5
# Greedy orders of wider networks take too long to find: the one from end to end has to do.
_HOPELESS = 60


def tables_of(model: AbstractPlainModel) -> Stacks | None:
    """The tables of a model; None if its factors are not tables."""
    try:
        found = whole_stacks(model)
        return None if found is None else told(found)
    except Refused:
        return None


class Asked(NamedTuple):
    """Beliefs of all instances; log Z, or the value of the likeliest states, and a bound of it."""

    beliefs: Beliefs
    value: Float[Array, "*batch"]
    bound: Float[Array, "*batch"]


def asked(
    problem: Problem,
    stacks: Stacks,
    deadline: float,
    ask: Callable[[Network, float, int], Estimate | None],
) -> Asked | None:
    """What a function says of the network of each instance, from the time when it must end and the
    number of the instance. None if it does not answer for one of them.
    """
    shape, dtype = problem.shape, problem.model.dtype
    networks, found = networks_of(problem, stacks), []
    for k, network in enumerate(networks):
        now = time.perf_counter()
        own = ask(network, now + (deadline - now) / (len(networks) - k), k)
        if own is None:
            return None
        found.append(own)
    value, bound, spread, sets = (
        jnp.asarray([getattr(x, name) for x in found]).reshape(shape)
        for name in ("value", "bound", "spread", "sets")
    )
    most = max(problem.counts)
    p = [[np.pad(x, (0, most - len(x))) for x in own.marginals] for own in found]
    scores = jnp.log(jnp.asarray(p, dtype).reshape(*shape, len(problem.counts), most))
    beliefs = Beliefs(
        problem,
        Found(value.astype(dtype), None, "Auto"),
        log_odds=problem.named(scores),
        # Evidence may leave no configuration.
        converged=jnp.isfinite(value),
        iterations=sets.astype(jnp.int32),
        residual=spread.astype(dtype),
    )
    return Asked(beliefs, value.astype(dtype), bound.astype(dtype))


def tabled(network: Network) -> tuple[TableModel, float]:
    """The model of a network, and the sum of the largest entries of tables, which are kept apart
    because messages are in float32.
    """
    tops = [float(x.max()) for x in network.tables]
    shifted = [np.asarray(x - top) for x, top in zip(network.tables, tops, strict=True)]
    return TableModel(network.counts, network.scopes, shifted), sum(tops)


def marginals_of(beliefs: Beliefs, small: Reduced) -> list[np.ndarray]:
    """The probabilities of the states of each variable of a network that is a model."""
    rows = np.asarray(beliefs["x"], np.float64)
    own = [row[:n] for row, n in zip(rows, small.network.counts, strict=True)]
    return [p / p.sum() for p in own]


def drawn(
    problem: Problem, stacks: Stacks | None, deadline: float, key: PRNGKeyArray
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
