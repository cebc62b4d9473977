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


_RUNGS = 12
_CHAINS = 16  # in all, if there are few instances
_STEPS = 20  # that one call of a compiled function makes


class Sampled(NamedTuple):
    """Means of all units by name, for each instance: of all chains, and half the root mean square
    difference between two halves of them, which is about their error.
    """

    means: PyTree
    error: Float[Array, "*batch"]
    steps: int


def sampled(problem: AbstractProblem, key: PRNGKeyArray, seconds: float) -> Sampled | None:
    """Means by chains from random starts. The first third of the steps is left out; of the others
    the mean counts, over the steps and chains, of what a unit is given all other units. None if the
    model cannot be sampled, or not within the time.
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
    totals: list[Any] = []
    while not totals or time.perf_counter() < deadline:
        key, own = jax.random.split(key)
        state, total = _advanced(sampler, chained.model, problem, state, own)
        totals.append(jax.block_until_ready(total))
    kept = totals[len(totals) // 3 :]
    mean = jax.tree.map(lambda *x: sum(x) / len(x), *kept)

    def halves(x: Array) -> Array:
        """The means of both halves of the chains of each instance."""
        return x.reshape(2, number // 2, *shape, *x.shape[1:]).mean(1)

    two = jax.tree.map(halves, mean)
    one, other = jax.tree.map(lambda x: x[0], two), jax.tree.map(lambda x: x[1], two)
    means = jax.tree.map(lambda a, b: (a + b) / 2, one, other)
    error = apart(one, other, len(shape)) / 2
    return Sampled(means, error, len(kept) * _STEPS)


@eqx.filter_jit
def _advanced(
    sampler: ParallelTempering, model: Any, problem: AbstractProblem, state: Any, key: PRNGKeyArray
) -> tuple[Any, PyTree]:
    """Some steps, and the mean over them of what units are given all others."""

    def told(state: Any) -> PyTree:
        return problem.given_others(model, state.units, state.clamped)

    def step(k: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        state, total = carry
        state, _ = sampler.step(model, state, key=jax.random.fold_in(key, k))
        return state, jax.tree.map(jnp.add, total, told(state))

    zero = jax.tree.map(jnp.zeros_like, told(state))
    state, total = jax.lax.fori_loop(0, _STEPS, step, (state, zero))
    return state, jax.tree.map(lambda x: x / _STEPS, total)


def apart(one: PyTree, other: PyTree, batch: int) -> Float[Array, "*batch"]:
    """The root of the mean square difference of all means of each instance."""
    total, size = jnp.zeros(()), 0
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if not jnp.issubdtype(a.dtype, jnp.floating):
            continue
        total = total + ((a - b) ** 2).sum(tuple(range(batch, a.ndim)))
        size += math.prod(a.shape[batch:])
    return jnp.sqrt(total / max(size, 1))
