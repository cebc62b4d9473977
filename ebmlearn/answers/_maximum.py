"""The most likely configuration, by a search, and a bound of what it can be."""

import math
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from ..elimination import Estimate, Impossible, likely_states, Network, reduced
from ..inference import Beliefs, MPLP, Report
from ..models import Problem, refuse
from ._auto_bp import propagated
from ._host_networks import asked, marginals_of, tabled, tables_of


class Maximum(NamedTuple):
    """Likely states, their log-potential, and an upper bound of the log-potential of all states."""

    states: Int[np.ndarray, " variables"]
    value: float
    bound: float


def maximised(problem: Problem, deadline: float, key: PRNGKeyArray) -> Beliefs:
    """Beliefs about the most likely configurations that a search finds."""
    model = problem.model
    stacks = tables_of(model)
    if stacks is None:
        hint = "write it as tables by `uai.to_tables`"
        refuse(model, "let all factors list their configurations, or be dense", hint)

    def ask(network: Network, end: float, k: int) -> Estimate:
        own = maximum(network, end, jax.random.fold_in(key, k))
        sure = [np.eye(n)[s] for n, s in zip(network.counts, own.states, strict=True)]
        return Estimate(own.bound, own.value, 0.0, sure, 0.0, 0)

    found = asked(problem, stacks, deadline, ask)
    assert found is not None
    gap = jnp.where(jnp.isfinite(found.value), found.bound - found.value, jnp.nan)
    return found.beliefs.with_report(Report("search", False, gap, found.value, found.bound))


def maximum(network: Network, deadline: float, key: PRNGKeyArray) -> Maximum:
    """Likely states of a network. Messages are passed first, for a third of the time at most."""
    try:
        small = reduced(network)
    except Impossible:
        return Maximum(np.zeros(len(network.counts), np.int64), -math.inf, -math.inf)
    model, constant = tabled(small.network)
    problem = model.problem(None, None)
    now = time.perf_counter()
    both = []
    for share, product in ((0.15, "sum"), (0.3, "max")):
        beliefs = propagated(problem, product, now + share * (deadline - now), key)  # pyright: ignore
        both.append(marginals_of(beliefs, small))
    mean = [(p + q) / 2 for p, q in zip(*both, strict=True)]
    bound = math.inf
    if time.perf_counter() < now + 0.3 * (deadline - now):
        bound = float(MPLP(200).beliefs_of(problem).log_partition) + constant
    seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
    left = deadline - time.perf_counter()
    # The bound is in float32.
    near = bound - 1e-6 * (1 + abs(bound)) if math.isfinite(bound) else bound
    found = likely_states(small.network, mean, max(left, 0.5), seed, near)
    return Maximum(small.restored(found.states), found.value, max(bound, found.value))
