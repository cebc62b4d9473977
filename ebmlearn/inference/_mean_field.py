import math
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .. import messages
from .._sentinels import CLAMPED
from .._types import AnyArray
from ..messages import change, Instance
from ..models import AbstractLayeredModel, Statistics
from ..models._problem import each, each_and_mean
from ..models._require import require_possible
from ._base import AbstractInference, check_limits, chunk_of, limited, Limits, traced, undamped
from ._beliefs import AbstractDerived, Beliefs
from ._graph_mean_field import graph_beliefs, graph_statistics, GraphSettings


class MeanField(AbstractInference):
    """Naive mean field: the distribution of independent units that is closest to the model, found
    by coordinate ascent on a lower bound of log Z.

    A sweep updates a layer at a time, from the uppermost down to the visible one, and inside a
    layer whose units are joined to each other a unit at a time; in a graph, all variables at a time
    of which no two share a factor. So the bound, `log_partition`, never falls.

    !!! example

        ```python
        beliefs = ebmlearn.MeanField(iterations=100, tol=1e-6)(rbm)
        beliefs.visible, beliefs.log_partition
        ```
    """

    iterations: int | Int[Array, ""]
    _: KW_ONLY
    damping: float | Float[Array, ""] = 0.0
    tol: float | Float[Array, ""] | None = None

    def __check_init__(self):
        check_limits(self.iterations, self.damping, self.tol)

    @property
    def takes(self) -> tuple[str, ...]:
        """Binary units, and graphs of which no factor excludes configurations."""
        return ("binary", *messages.graph_kinds())

    @property
    def maximises(self) -> Literal["nothing"]:
        """Nothing."""
        return "nothing"

    def _beliefs(self, problem: Any) -> Beliefs:
        if problem.model.kind != "binary":
            return graph_beliefs(self._on_graph(problem.model), problem)
        log_odds, converged, iterations, residual = _solved(self._settings(problem.model), problem)
        return Beliefs(
            problem,
            _Independent(),
            log_odds=problem.model.units(tuple(log_odds)),
            converged=converged,
            iterations=iterations,
            residual=residual,
        )

    def _statistics(self, problem: Any) -> Statistics:
        if problem.model.kind != "binary":
            return graph_statistics(self._on_graph(problem.model), problem)
        return _statistics(self._settings(problem.model), problem)

    def _on_graph(self, model: Any) -> GraphSettings:
        require_possible(model, "MeanField")
        limits = limited(self.iterations, self.tol, model.dtype)
        return GraphSettings(limits, traced(self.damping, model.dtype))

    def _settings(self, model: AbstractLayeredModel) -> "_Settings":
        dtype = model.unary()[0].dtype
        limits = limited(self.iterations, self.tol, dtype)
        return _Settings(limits, traced(self.damping, dtype))


class _Independent(AbstractDerived):
    """Products of the probabilities of the two ends of an edge, and the lower bound of log Z: minus
    the expected energy, plus the entropy.
    """

    def pairwise(self, problem: Any, log_odds: Any) -> Any:
        return problem.model.by_factor(_derived(problem, log_odds, _pairwise))

    def log_partition(self, problem: Any, log_odds: Any) -> Float[Array, "*batch"]:
        return _derived(problem, log_odds, _bound)


class _Settings(eqx.Module):
    limits: Limits
    damping: Float[AnyArray, ""]

    def run(
        self, model: AbstractLayeredModel, instance: Instance
    ) -> tuple[list[Float[Array, " _"]], Int[Array, ""], Float[Array, ""]]:
        layers = range(len(instance.unary))

        def sweep(old: list[Array]) -> tuple[list[Array], Float[Array, ""]]:
            new = list(old)
            for layer in reversed(layers):
                new[layer] = self._updated(model, instance, layer, new)
            aims = [undamped(*pair, self.damping) for pair in zip(old, new, strict=True)]
            return new, change(old, aims)

        # The start is one update of every unit from probabilities of one half, so that
        # exchanging 0 and 1 changes nothing.
        half = [jnp.zeros_like(u) for u in instance.unary]
        fields = [_field(model, instance, layer, half) for layer in layers]
        start = [_held(*unit) for unit in zip(fields, instance.clamp, strict=True)]
        return self.limits.iterate(sweep, start)

    def _updated(
        self, model: AbstractLayeredModel, instance: Instance, layer: int, log_odds: list[Array]
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


def _inner(model: AbstractLayeredModel, layer: int) -> Float[Array, "n n"] | None:
    """The couplings inside a layer, if there are any."""
    for block in model.blocks():
        if block.first == block.second == layer:
            return block.weights
    return None


def _field(
    model: AbstractLayeredModel,
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


def _pairwise(model: AbstractLayeredModel, log_odds: list[Array], instance: Instance) -> PyTree:
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
    model: AbstractLayeredModel, log_odds: list[Array], instance: Instance
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
def _solved(settings: _Settings, problem: Any) -> tuple[PyTree, Array, Array, Array]:
    """Log-odds, whether converged, sweeps, last change."""
    model = problem.model

    def one(instance: Instance) -> PyTree:
        return settings.run(model, instance)

    out = each(one, messages.instances(problem), problem.shape, chunk_of(model))
    log_odds, iterations, residual = out
    return log_odds, residual <= settings.limits.tol, iterations, residual


@eqx.filter_jit
def _derived(problem: Any, log_odds: Any, what: Callable) -> PyTree:
    """Applies `what(model, log_odds, instance)` to every instance."""

    def one(args: tuple[Instance, list[Array]]) -> PyTree:
        instance, log_odds = args
        return what(problem.model, log_odds, instance)

    size = math.prod(problem.shape)
    flat = [x.reshape(size, x.shape[-1]) for x in jax.tree.leaves(log_odds)]
    return each(one, (messages.instances(problem), flat), problem.shape, chunk_of(problem.model))


@eqx.filter_jit
def _statistics(settings: _Settings, problem: Any) -> Statistics:
    model = problem.model

    def one(instance: Instance) -> PyTree:
        log_odds, iterations, residual = settings.run(model, instance)
        units = tuple(jax.nn.sigmoid(x) for x in log_odds)
        return (units, iterations, residual), _pairwise(model, log_odds, instance)

    out = each_and_mean(one, messages.instances(problem), problem.shape, chunk_of(model))
    (units, iterations, residual), pairs = out
    return Statistics(
        units=model.units(units),
        pairwise=model.by_factor(pairs),
        squares=(None,) * len(model.names),
        converged=residual <= settings.limits.tol,
        iterations=iterations,
        residual=residual,
    )


MeanField.__init__.__doc__ = """**Arguments:**

- `iterations`: the largest number of sweeps. A new number needs no compilation.
- `damping`: the share of its old value that a log-odds keeps, in [0, 1).
- `tol`: stop an instance when no probability would change by more than this in a sweep without
  damping. Without it all sweeps are made, and `converged` uses a tolerance of 1e-3.
"""
