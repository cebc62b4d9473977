"""Means of all units by short parallel tempering, to judge other answers by."""

import math
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ..models import AbstractProblem
from ..samplers import ParallelTempering
from ..samplers._adaptation import ladder_of, with_ladder


_RUNGS = 24
_CHAINS = 16  # in all, if there are few instances
_STEPS = 20  # that one call of a compiled function makes
_PLACED = 320  # steps in which temperatures move
_TRIPS = 2  # of a chain, from the hot end to the cold one, without which it is not trusted


class Sampled(NamedTuple):
    """Means of all units by name, for each instance: of all chains, and half the root mean square
    difference between two halves of them, which is about their error.
    """

    means: PyTree
    error: Float[Array, "*batch"]
    steps: int


def sampled(problem: AbstractProblem, key: PRNGKeyArray, seconds: float) -> Sampled | None:
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
    while len(ends) * _STEPS < _PLACED or time.perf_counter() < deadline:
        if time.perf_counter() > deadline:
            return None
        key, own = jax.random.split(key)
        end = _advanced(sampler, chained.model, problem, state, ladder, own)
        state, ladder = end.state, end.ladder
        ends.append(jax.block_until_ready(end._replace(state=state.trips)))
    settled = ends[_PLACED // _STEPS :]
    kept = settled[len(settled) // 3 :]
    if not kept or float((kept[-1].state - kept[0].state).mean()) < _TRIPS:
        return None
    mean = jax.tree.map(lambda *x: sum(x) / len(x), *[x.means for x in kept])

    def halves(x: Array) -> Array:
        """The means of both halves of the chains of each instance."""
        return x.reshape(2, number // 2, *shape, *x.shape[1:]).mean(1)

    two = jax.tree.map(halves, mean)
    one, other = jax.tree.map(lambda x: x[0], two), jax.tree.map(lambda x: x[1], two)
    means = jax.tree.map(lambda a, b: (a + b) / 2, one, other)
    error = apart(one, other, len(shape)) / 2
    return Sampled(means, error, len(kept) * _STEPS)


class _End(NamedTuple):
    """Where some steps led to, and the mean over them of what units are given all others."""

    state: Any
    ladder: Any
    means: PyTree


@eqx.filter_jit
def _advanced(
    sampler: ParallelTempering,
    model: Any,
    problem: AbstractProblem,
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
