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
from ..models import AbstractPlainModel, fields_of, Problem
from ..samplers import Ladder, ladder_of, ParallelTempering, with_ladder


_RUNGS = 24
_CHAINS = 16  # in all, if there are few instances
_STEPS = 20  # that one call of a compiled function makes
_PLACED = 320  # steps in which temperatures move
ENOUGH = 5e-3  # an error for which no more steps are made
_TRIPS = 2  # of a chain, from the hot end to the cold one, without which it is not trusted


class Judged(NamedTuple):
    """How beliefs were found, the beliefs, and their standard error, the root mean square of all
    units, for each instance.
    """

    name: str
    beliefs: Beliefs
    error: Float[Array, "*batch"]


def sampled(problem: Problem, key: PRNGKeyArray, seconds: float | int) -> Judged | None:
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
    chained = _repeated(problem, number, fill)
    if chained is None or (model.turns is not None and model.turns.no_chains() is not None):
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
        end = _advanced(sampler, chained.model, state, ladder, own)
        state, ladder = end.state, end.ladder
        ends.append(jax.block_until_ready(end._replace(state=state.trips)))
        found = _told(ends[_PLACED // _STEPS :], number, problem)
    return found


def _told(ends: "list[_End]", number: int, problem: Problem) -> Judged | None:
    """What chains say after some steps, without the first third of them."""
    kept = ends[len(ends) // 3 :]
    if not kept or float((kept[-1].state - kept[0].state).mean()) < _TRIPS:
        return None
    mean = jax.tree.map(lambda *x: sum(x) / len(x), *[x.means for x in kept])
    shape = problem.shape
    chains = jax.tree.map(lambda x: x.reshape(number, *shape, *x.shape[1:]), mean)
    means = jax.tree.map(lambda x: x.mean(0), chains)
    # Chains are independent, whatever the time is that each of them needs to forget a state.
    off = jax.vmap(lambda one: apart(one, means, len(shape)))(chains)
    error = jnp.sqrt((off**2).sum(0) / (number * (number - 1)))
    beliefs = Beliefs(
        problem,
        Found(None, None, "Auto"),
        log_odds=_log_odds(problem, means),
        converged=jnp.ones(shape, bool),
        iterations=jnp.full(shape, len(kept) * _STEPS, jnp.int32),
        residual=error,
    )
    return Judged("parallel tempering", beliefs, error)


class _End(NamedTuple):
    """Where some steps led to, and the mean over them of what units are given all others."""

    state: Any
    ladder: Any
    means: PyTree


@eqx.filter_jit
def _advanced(
    sampler: ParallelTempering,
    model: AbstractPlainModel,
    state: Any,
    ladder: Ladder | None,
    key: PRNGKeyArray,
) -> _End:
    def told(state: Any) -> PyTree:
        return _given_others(model, state.units, state.clamped)

    def step(k: Array, end: _End) -> _End:
        own = with_ladder(sampler, end.ladder)
        state, info = own.step(model, end.state, key=jax.random.fold_in(key, k))
        means = jax.tree.map(jnp.add, end.means, told(state))
        return _End(state, end.ladder.counted(info), means)

    zero = jax.tree.map(jnp.zeros_like, told(state))
    end = jax.lax.fori_loop(0, _STEPS, step, _End(state, ladder, zero))
    return end._replace(means=jax.tree.map(lambda x: x / _STEPS, end.means))


class _Chained(NamedTuple):
    """A model with an instance for each chain, states to start from, and which of them are held."""

    model: AbstractPlainModel
    start: PyTree
    clamped: PyTree


def _repeated(problem: Problem, number: int, key: PRNGKeyArray) -> _Chained | None:
    """What samplers need for so many chains of each instance, those of one instance `shape` apart:
    evidence that is certain is held, likelihoods are added to biases. None if the model has no
    biases to add them to.
    """
    model, size, rows = problem.model, math.prod(problem.shape), []
    for units, (own, mask, scores) in zip(model.layers, problem.held(), strict=True):
        if model.grouped and scores is not None:
            return None
        known = jnp.full((size, units.size), -1, jnp.int32)
        if own is not None and mask is not None:
            known = jnp.where(mask, own.astype(jnp.int32), -1)
        rows.append(jnp.tile(known, (number, 1)))
    chained = model
    if not model.grouped:
        unary = [x.reshape(size, -1) for x in problem.instances().unary]
        chained = model.with_unary(tuple(jnp.tile(x, (number, 1)) for x in unary))
    if all(x is None for x in problem.evidence):
        return _Chained(chained, None, None)
    if model.grouped:
        return _Chained(model, jnp.concatenate(rows, -1), model.named([x >= 0 for x in rows]))
    # Evidence is about the first layer.
    seen, none = rows[0], [None] * (len(rows) - 1)
    drawn = jax.random.bernoulli(key, 0.5, seen.shape).astype(jnp.int32)
    start = jnp.where(seen >= 0, seen, drawn)
    return _Chained(chained, model.named([start, *none]), model.named([seen >= 0, *none]))


def _given_others(model: AbstractPlainModel, units: PyTree, clamped: PyTree) -> PyTree:
    """The means of all units given the states of all others, by name; what is clamped keeps its
    state.
    """
    layers, held = model.encode(units), model.variables.masks(clamped)
    means = [own.mean(x) for own, x in zip(model.layers, fields_of(model, layers), strict=True)]
    if held is not None:
        for k, (x, mask) in enumerate(zip(layers, held, strict=True)):
            if mask is not None:
                each = jnp.repeat(mask, x.shape[-1] // mask.shape[-1], axis=-1)
                means[k] = jnp.where(each, x, means[k])
    shown = model.variables.shown(means, means[0].shape[:1], lambda p: 1 - p)
    return model.variables.named(shown)


def _log_odds(problem: Problem, means: PyTree) -> PyTree:
    """The log-odds of binary units, or the log-probabilities of states, by name."""
    log = jnp.log if problem.model.grouped else lambda p: jnp.log(p) - jnp.log1p(-p)
    return problem.model.named([log(x) for x in problem.model.variables.parts(means)])


def apart(one: PyTree, other: PyTree, batch: int) -> Float[Array, "*batch"]:
    """The root of the mean square difference of all means of each instance."""
    total, size = jnp.zeros(()), 0
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if not jnp.issubdtype(a.dtype, jnp.floating):
            continue
        total = total + ((a - b) ** 2).sum(tuple(range(batch, a.ndim)))
        size += math.prod(a.shape[batch:])
    return jnp.sqrt(total / max(size, 1))
