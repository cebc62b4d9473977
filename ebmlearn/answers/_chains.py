"""Means of all units by short parallel tempering, to judge other answers by."""

import math
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ..inference import Beliefs, Found
from ..models._problem import AbstractSampled
from ..samplers import ParallelTempering
from ..samplers._adaptation import ladder_of, with_ladder


_RUNGS = 24
_CHAINS = 16  # in all, if there are few instances
_STEPS = 20  # that one call of a compiled function makes
_PLACED = 320  # steps in which temperatures move
ENOUGH = 5e-3  # an error for which no more steps are made
_TRIPS = 2  # of a chain, from the hot end to the cold one, without which it is not trusted


class Sampled(NamedTuple):
    """What draws say of all units, and its standard error, the root mean square of all units, for
    each instance.
    """

    name: str
    beliefs: Beliefs
    error: Float[Array, "*batch"]


def sampled(problem: AbstractSampled, key: PRNGKeyArray, seconds: float | int) -> Sampled | None:
    """Means by chains from random starts. The first steps are left out, and a third of the others;
    of the rest the mean counts, over the steps and chains, of what a unit is given all other units.
    None if the model cannot be sampled, or if replicas moved too little between temperatures within
    the time, so that chains may have stayed where they began.
    """
    deadline = time.perf_counter() + seconds
    model, shape = problem.model, problem.shape
    rows = math.prod(shape)
    number = 2 * max(1, _CHAINS // 2 // max(rows, 1))
    fill, first, key = jax.random.split(key, 3)
    chained = problem.repeated(number, fill)
    if chained is None or model.no_chains() is not None:
        return None
    sampler = ParallelTempering(np.linspace(0, 1, _RUNGS).tolist())
    state = sampler.init(
        chained.model, number * rows, key=first, start=chained.start, clamped=chained.clamped
    )
    ladder = ladder_of(sampler, _PLACED, model.dtype)
    ends: list[_End] = []
    found = None
    while time.perf_counter() < deadline and (found is None or float(found.error.max()) > ENOUGH):
        key, own = jax.random.split(key)
        end = _advanced(sampler, chained.model, problem, state, ladder, own)
        state, ladder = end.state, end.ladder
        ends.append(jax.block_until_ready(end._replace(state=state.trips)))
        found = _told(ends[_PLACED // _STEPS :], number, problem)
    return found


def _told(ends: "list[_End]", number: int, problem: AbstractSampled) -> Sampled | None:
    """What chains say after some steps, without the first third of them."""
    kept = ends[len(ends) // 3 :]
    if not kept or float((kept[-1].state - kept[0].state).mean()) < _TRIPS:
        return None
    mean = jax.tree.map(lambda *x: sum(x) / len(x), *[x.means for x in kept])
    shape = problem.shape
    chains = jax.tree.map(lambda x: x.reshape(number, *shape, *x.shape[1:]), mean)
    means = jax.tree.map(lambda x: x.mean(0), chains)
    # Chains are independent, whatever the time is that each of them needs to forget a state.
    off = jnp.stack([apart(_chain(chains, k), means, len(shape)) for k in range(number)])
    error = jnp.sqrt((off**2).sum(0) / (number * (number - 1)))
    beliefs = Beliefs(
        problem,
        Found(None, None, "Auto"),
        log_odds=problem.log_odds(means),
        converged=jnp.ones(shape, bool),
        iterations=jnp.full(shape, len(kept) * _STEPS, jnp.int32),
        residual=error,
    )
    return Sampled("parallel tempering", beliefs, error)


def _chain(chains: PyTree, k: int) -> PyTree:
    return jax.tree.map(lambda x: x[k], chains)


class _End(NamedTuple):
    """Where some steps led to, and the mean over them of what units are given all others."""

    state: Any
    ladder: Any
    means: PyTree


@eqx.filter_jit
def _advanced(
    sampler: ParallelTempering,
    model: Any,
    problem: AbstractSampled,
    state: Any,
    ladder: Any,
    key: PRNGKeyArray,
) -> _End:
    def told(state: Any) -> PyTree:
        return problem.given_others(model, state.units, state.clamped)

    def step(k: Array, end: _End) -> _End:
        own = with_ladder(sampler, end.ladder)
        state, info = own.step(model, end.state, key=jax.random.fold_in(key, k))
        means = jax.tree.map(jnp.add, end.means, told(state))
        return _End(state, end.ladder.counted(info), means)

    zero = jax.tree.map(jnp.zeros_like, told(state))
    end = jax.lax.fori_loop(0, _STEPS, step, _End(state, ladder, zero))
    return end._replace(means=jax.tree.map(lambda x: x / _STEPS, end.means))


def apart(one: PyTree, other: PyTree, batch: int) -> Float[Array, "*batch"]:
    """The root of the mean square difference of all means of each instance."""
    total, size = jnp.zeros(()), 0
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if not jnp.issubdtype(a.dtype, jnp.floating):
            continue
        total = total + ((a - b) ** 2).sum(tuple(range(batch, a.ndim)))
        size += math.prod(a.shape[batch:])
    return jnp.sqrt(total / max(size, 1))
