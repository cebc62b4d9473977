"""Naive mean field on graphs: the independent variables that come closest to the model."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .. import messages
from ..messages import GraphInstance, MAKERS
from ..models import Statistics
from ..models._problem import each, each_and_mean
from ._base import chunk_of, Limits, undamped
from ._beliefs import AbstractDerived, Beliefs


class _Independent(AbstractDerived):
    """Products of the probabilities of the variables of a factor, and the lower bound of log Z."""

    def pairwise(self, problem: Any, log_odds: Any) -> Any:
        return problem.model.factors(_derived(problem, log_odds, _factors))

    def log_partition(self, problem: Any, log_odds: Any) -> Float[Array, "*batch"]:
        return _derived(problem, log_odds, _bound)


class GraphSettings(eqx.Module):
    """When to stop, and how much of its old score a state keeps."""

    limits: Limits
    damping: Any

    def run(
        self, model: Any, instance: GraphInstance
    ) -> tuple[Float[Array, "variables most"], Int[Array, ""], Float[Array, ""]]:
        """Log-probabilities of all states, sweeps and the last change, by coordinate ascent: the
        variables of a class, of which no two share a factor, at once.
        """
        unary, there = MAKERS[model.kind].rows(model, instance)
        classes = jnp.asarray(model.classes())

        def updated(k: Any, scores: Array) -> Array:
            members = classes[k]
            told = unary + jax.grad(model.expected_potential)(jax.nn.softmax(scores, axis=-1))
            told = jnp.where(there, told, -jnp.inf)
            kept = jnp.where(there, scores, jnp.zeros_like(scores))
            new = self.damping * kept + (1 - self.damping) * jax.nn.log_softmax(told, axis=-1)
            new = jnp.where(there, new, -jnp.inf)
            return scores.at[members].set(new.at[members].get(mode="clip"), mode="drop")

        def sweep(scores: Array) -> tuple[Array, Float[Array, ""]]:
            new = jax.lax.fori_loop(0, classes.shape[0], updated, scores)
            before, after = (jnp.where(there, x, jnp.zeros_like(x)) for x in (scores, new))
            aim = jnp.where(there, undamped(before, after, self.damping), -jnp.inf)
            change = jax.nn.softmax(aim, axis=-1) - jax.nn.softmax(scores, axis=-1)
            return new, jnp.abs(change).max(initial=0)

        even = jnp.where(there, jnp.zeros_like(unary), -jnp.inf)
        return self.limits.iterate(sweep, jax.nn.log_softmax(even, axis=-1))


def graph_beliefs(settings: GraphSettings, problem: Any) -> Beliefs:
    """Beliefs about the variables of a graph."""
    scores, iterations, residual = _solved(settings, problem)
    return Beliefs(
        problem,
        _Independent(),
        log_odds=problem.model.units((scores,)),
        converged=residual <= settings.limits.tol,
        iterations=iterations,
        residual=residual,
    )


@eqx.filter_jit
def _solved(settings: GraphSettings, problem: Any) -> tuple[Array, Array, Array]:
    model = problem.model
    instances = messages.instances(problem)
    return each(lambda x: settings.run(model, x), instances, problem.shape, chunk_of(model))


@eqx.filter_jit
def graph_statistics(settings: GraphSettings, problem: Any) -> Statistics:
    """Expected statistics of the independent variables."""
    model = problem.model

    def one(instance: GraphInstance) -> Any:
        scores, iterations, residual = settings.run(model, instance)
        q = jax.nn.softmax(scores, axis=-1)
        return (q, iterations, residual), _factors(model, q, instance)

    out = each_and_mean(one, messages.instances(problem), problem.shape, chunk_of(model))
    (units, iterations, residual), pairs = out
    return Statistics(
        units=model.units((units,)),
        pairwise=model.factors(pairs),
        squares=(),
        converged=residual <= settings.limits.tol,
        iterations=iterations,
        residual=residual,
    )


@eqx.filter_jit
def _derived(problem: Any, log_odds: Any, what: Any) -> Any:
    """Applies `what(model, probabilities, instance)` to every instance."""
    model = problem.model
    size, most = math.prod(problem.shape), max(x.shape[-1] for x in log_odds.values)
    flat = [x.reshape(size, -1, x.shape[-1]) for x in log_odds.values]
    wide = [
        jnp.pad(x, ((0, 0), (0, 0), (0, most - x.shape[-1])), constant_values=-jnp.inf)
        for x in flat
    ]
    q = jax.nn.softmax(jnp.concatenate(wide, 1), axis=-1)

    def one(args: Any) -> Any:
        return what(model, *args)

    return each(one, (q, messages.instances(problem)), problem.shape, chunk_of(model))


def _factors(model: Any, q: Array, instance: GraphInstance) -> Any:
    """The mean of what each log-potential is multiplied by."""

    def value(potentials: Any) -> Float[Array, ""]:
        own = eqx.tree_at(lambda m: m.log_potentials, model, potentials)
        return own.expected_potential(q)

    return jax.grad(value)(model.log_potentials)


def _bound(model: Any, q: Array, instance: GraphInstance) -> Float[Array, ""]:
    # Stationary in the probabilities once they have converged.
    q = jax.lax.stop_gradient(q)
    unary, there = MAKERS[model.kind].rows(model, instance)
    entropy = -jnp.where(q > 0, q * jnp.log(jnp.where(q > 0, q, 1.0)), 0.0).sum()
    linear = jnp.where(there & (q > 0), q * unary, 0.0).sum()
    return model.expected_potential(q) + linear + entropy
