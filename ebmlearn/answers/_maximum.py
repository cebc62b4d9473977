"""The most likely configuration, by a search, and a bound of what it can be."""

import math
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from .._sentinels import EXCLUDED
from ..elimination import likely_states, Network, Reduced, reduced
from ..inference import Beliefs, MPLP, Report
from ..inference._beliefs import Found
from ..messages import MAKERS
from ..models import TableModel
from ._propagated import propagated


class Maximum(NamedTuple):
    """Likely states, their log-potential, and an upper bound of the log-potential of all states."""

    states: Int[np.ndarray, " variables"]
    value: float
    bound: float


def maximised(problem: Any, deadline: float, key: PRNGKeyArray) -> Beliefs:
    """Beliefs about the most likely configurations that a search finds."""
    model, shape = problem.model, problem.shape
    maker = MAKERS[model.kind]
    instances = maker.instances(problem)
    networks = _networks(problem)
    found = []
    for k, network in enumerate(networks):
        now = time.perf_counter()
        end = now + (deadline - now) / (len(networks) - k)
        found.append(maximum(network, end, jax.random.fold_in(key, k)))
    states = jnp.asarray(np.stack([x.states for x in found]), jnp.int32)
    value, bound = (
        jnp.asarray([getattr(x, name) for x in found], model.dtype).reshape(shape)
        for name in ("value", "bound")
    )
    most = max(network.counts[0] for network in networks)
    scores = jnp.log(jax.nn.one_hot(states, most, dtype=model.dtype))
    beliefs = jax.vmap(maker.scored)(scores, instances)
    beliefs = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), beliefs)
    told = maker.told(problem, beliefs, jnp.ones((), model.dtype))
    report = Report("search", False, bound - value, value, bound)
    return Beliefs(
        problem,
        Found(value, None, "Auto"),
        log_odds=told.log_odds,
        converged=jnp.isfinite(value),
        iterations=jnp.zeros(shape, jnp.int32),
        residual=jnp.zeros(shape, model.dtype),
    ).with_report(report)


def maximum(network: Network, deadline: float, key: PRNGKeyArray) -> Maximum:
    """Likely states of a network. Messages are passed first, for a third of the time at most."""
    small = reduced(network)
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


def _networks(problem: Any) -> list[Network]:
    """A network for each instance. Evidence is in the tables of single variables; all variables
    have as many states as the one that has most, of which those that do not exist are excluded.
    """
    model, maker = problem.model, MAKERS[problem.model.kind]
    unary, there = jax.vmap(lambda x: maker.rows(model, x))(maker.instances(problem))
    rows = np.where(np.asarray(there), np.asarray(unary, np.float64), -np.inf)
    _, variables, most = rows.shape
    scopes, tables = [], []
    for members, stack in maker.tables(model):
        for own, table in zip(np.asarray(members).tolist(), np.asarray(stack), strict=True):
            scopes.append(tuple(own))
            tables.append(_padded(np.asarray(table, np.float64), most))
    scopes += [(v,) for v in range(variables)]
    counts = (most,) * variables
    return [Network(counts, tuple(scopes), (*tables, *own)) for own in rows]


def _padded(table: np.ndarray, most: int) -> np.ndarray:
    """A table with as many states for all variables; those beyond its own are excluded."""
    excluded = np.where(table < EXCLUDED / 2, -np.inf, table)
    return np.pad(excluded, [(0, most - n) for n in table.shape], constant_values=-np.inf)
