import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._types import AnyArray
from ..models import AbstractPairwiseModel
from ..models._view import change, CLAMPED, Instance
from ._base import AbstractBeliefs, AbstractInference, most_likely, Statistics
from ._graph import GraphProblem, layered
from ._instances import chunk_of, each, each_and_mean, Problem
from ._iterate import check_limits, Limits, traced


class MeanField(AbstractInference):
    """Naive mean field: the independent units that come closest to the model, found by coordinate
    ascent on a lower bound of log Z.

    A sweep updates a layer at a time, from the uppermost down to the visible one, and inside a
    layer whose units are joined to each other a unit at a time. So the bound, `log_partition`,
    never falls.

    !!! example

        ```python
        beliefs = ebmlearn.MeanField(iterations=100, tol=1e-6)(rbm)
        beliefs.visible, beliefs.log_partition
        ```
    """

    iterations: int | Int[Array, ""]
    damping: float | Float[Array, ""] = 0.0
    tol: float | Float[Array, ""] | None = None

    def __init__(
        self,
        iterations: int | Int[Array, ""],
        damping: float | Float[Array, ""] = 0.0,
        tol: float | Float[Array, ""] | None = None,
    ):
        """**Arguments:**

        - `iterations`: how many sweeps, at most. Another number compiles nothing anew.
        - `damping`: the share of its old value that a log-odds keeps, from 0 up to but not 1.
        - `tol`: stop an instance once no probability has changed by more in a sweep. Without it
          all sweeps are done, and `converged` is judged by 1e-3.
        """
        self.iterations = iterations
        self.damping = damping
        self.tol = tol

    def __check_init__(self):
        check_limits(self.iterations, self.damping, self.tol)

    def _beliefs(self, problem: Problem | GraphProblem) -> "MeanFieldBeliefs":
        problem = layered(problem, "MeanField")
        log_odds, converged, iterations, residual = _solved(self._settings(problem.model), problem)
        return MeanFieldBeliefs(
            log_odds=problem.model.units(tuple(log_odds)),
            converged=converged,
            iterations=iterations,
            residual=residual,
            _problem=problem,
        )

    def _statistics(self, problem: Problem | GraphProblem) -> Statistics:
        problem = layered(problem, "MeanField")
        return _statistics(self._settings(problem.model), problem)

    def _settings(self, model: AbstractPairwiseModel) -> "_Settings":
        dtype = model.unary()[0].dtype
        limits = Limits(self.iterations, self.tol, dtype)
        return _Settings(limits, traced(self.damping, dtype))


class MeanFieldBeliefs(AbstractBeliefs):
    """The beliefs that [`ebmlearn.MeanField`][] returns."""

    log_odds: Any
    converged: Bool[Array, "*batch"]
    iterations: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]
    _problem: Problem

    @property
    def pairwise(self) -> Any:
        """Products of the probabilities of the two ends of an edge, shaped as for
        [`ebmlearn.BP`][].
        """
        return self._problem.model.factors(_derived(self, _pairwise))

    @property
    def log_partition(self) -> Float[Array, "*batch"]:
        """The lower bound of log Z: minus the expected energy, plus the entropy."""
        return _derived(self, _bound)

    def decode(self) -> Any:
        return most_likely(self.log_odds)


class _Settings(eqx.Module):
    limits: Limits
    damping: Float[AnyArray, ""]

    def run(
        self, model: AbstractPairwiseModel, instance: Instance
    ) -> tuple[list[Float[Array, " _"]], Int[Array, ""], Float[Array, ""]]:
        layers = range(len(instance.unary))

        def sweep(old: list[Array]) -> tuple[list[Array], Float[Array, ""]]:
            new = list(old)
            for layer in reversed(layers):
                new[layer] = self._updated(model, instance, layer, new)
            return new, change(old, new)

        # The start is one update of every unit from probabilities of one half, so that
        # exchanging 0 and 1 changes nothing.
        half = [jnp.zeros_like(u) for u in instance.unary]
        fields = [_field(model, instance, layer, half) for layer in layers]
        start = [_held(*unit) for unit in zip(fields, instance.clamp, strict=True)]
        return self.limits.iterate(sweep, start)

    def _updated(
        self, model: AbstractPairwiseModel, instance: Instance, layer: int, log_odds: list[Array]
    ) -> Array:
        field, clamp = _field(model, instance, layer, log_odds, inside=False), instance.clamp[layer]
        inner = _inner(model, layer)
        if inner is None:
            return _held(self._damped(log_odds[layer], field), clamp)

        def unit(i, values):
            new = self._damped(values[i], field[i] + inner[i] @ jax.nn.sigmoid(values))
            return values.at[i].set(_held(new, None if clamp is None else clamp[i]))

        return jax.lax.fori_loop(0, field.shape[0], unit, log_odds[layer])

    def _damped(self, old: Array, new: Array) -> Array:
        return old + jnp.asarray(1 - self.damping) * (new - old)


def _inner(model: AbstractPairwiseModel, layer: int) -> Float[Array, "n n"] | None:
    """The couplings inside a layer, if there are any."""
    for block in model.blocks():
        if block.first == block.second == layer:
            return block.weights
    return None


def _field(
    model: AbstractPairwiseModel,
    instance: Instance,
    layer: int,
    log_odds: list[Array],
    inside: bool = True,
) -> Float[Array, " _"]:
    """The mean log-odds of a layer, with or without the couplings inside it."""
    out = instance.unary[layer]
    for block in model.blocks():
        if block.first == layer and (inside or block.second != layer):
            out = out + block.weights @ jax.nn.sigmoid(log_odds[block.second])
        elif block.second == layer and block.first != layer:
            out = out + jax.nn.sigmoid(log_odds[block.first]) @ block.weights
    return out


def _held(log_odds: Array, clamp: Array | None) -> Array:
    """Log-odds, those of clamped units beyond all others."""
    return log_odds if clamp is None else jnp.where(clamp == 0, log_odds, clamp * CLAMPED)


def _pairwise(model: AbstractPairwiseModel, log_odds: list[Array], instance: Instance) -> PyTree:
    q = [jax.nn.sigmoid(x) for x in log_odds]
    out = []
    for block in model.blocks():
        both = q[block.first][:, None] * q[block.second][None, :]
        if block.first == block.second:
            alone = jnp.broadcast_to(q[block.first][:, None], both.shape)
            both = jnp.where(jnp.eye(both.shape[0], dtype=bool), alone, both)
        out.append(both)
    return tuple(out)


def _bound(
    model: AbstractPairwiseModel, log_odds: list[Array], instance: Instance
) -> Float[Array, ""]:
    # The bound is stationary in the probabilities once they have converged, so its gradient needs
    # none through them.
    log_odds = jax.lax.stop_gradient(log_odds)
    q = [jax.nn.sigmoid(x) for x in log_odds]
    out = sum(u @ p for u, p in zip(instance.unary, q, strict=True))
    for block in model.blocks():
        share = 0.5 if block.first == block.second else 1.0
        out = out + share * (q[block.first] @ block.weights @ q[block.second])
    for x in log_odds:
        entropy = jax.nn.softplus(-jnp.abs(x)) + jnp.abs(x) * jax.nn.sigmoid(-jnp.abs(x))
        out = out + entropy.sum()
    return jnp.asarray(out)


@eqx.filter_jit
def _solved(settings: _Settings, problem: Problem) -> tuple[PyTree, Array, Array, Array]:
    """Log-odds, whether converged, sweeps, last change."""
    model = problem.model

    def one(instance: Instance) -> PyTree:
        return settings.run(model, instance)

    out = each(one, problem.instances(), problem.shape, chunk_of(model))
    log_odds, iterations, residual = out
    return log_odds, residual <= settings.limits.tol, iterations, residual


@eqx.filter_jit
def _derived(beliefs: MeanFieldBeliefs, what: Callable) -> PyTree:
    """Applies `what(model, log_odds, instance)` to every instance."""
    problem = beliefs._problem

    def one(args: tuple[Instance, list[Array]]) -> PyTree:
        instance, log_odds = args
        return what(problem.model, log_odds, instance)

    size = math.prod(problem.shape)
    flat = [x.reshape(size, x.shape[-1]) for x in jax.tree.leaves(beliefs.log_odds)]
    return each(one, (problem.instances(), flat), problem.shape, chunk_of(problem.model))


@eqx.filter_jit
def _statistics(settings: _Settings, problem: Problem) -> Statistics:
    model = problem.model

    def one(instance: Instance) -> PyTree:
        log_odds, iterations, residual = settings.run(model, instance)
        units = tuple(jax.nn.sigmoid(x) for x in log_odds)
        return (units, iterations, residual), _pairwise(model, log_odds, instance)

    out = each_and_mean(one, problem.instances(), problem.shape, chunk_of(model))
    (units, iterations, residual), pairs = out
    return Statistics(
        units=model.units(units),
        pairwise=model.factors(pairs),
        converged=residual <= settings.limits.tol,
        iterations=iterations,
        residual=residual,
    )
