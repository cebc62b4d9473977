"""MPLP on graphs: coordinate descent on the dual of the relaxation, all variables at once."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .. import messages
from ..messages import AbstractGraphView, GraphInstance, GraphState
from ..models import Statistics
from ..models._problem import each, each_and_mean
from ._base import chunk_of, Limits
from ._beliefs import AbstractDerived, Beliefs


class _Dual(AbstractDerived):
    """What the decoded configuration meets of each factor, and the value of the dual: an upper
    bound of the largest log-potential.
    """

    bound: Float[Array, "*batch"]

    def pairwise(self, problem: Any, log_odds: Any) -> Any:
        return problem.model.by_factor(_met(problem, log_odds))

    def log_partition(self, problem: Any, log_odds: Any) -> Float[Array, "*batch"]:
        return self.bound


def graph_beliefs(limits: Limits, problem: Any) -> Beliefs:
    """Beliefs about the variables of a graph."""
    scores, bound, converged, iterations, residual = _solved(limits, problem)
    return Beliefs(
        problem,
        _Dual(bound),
        log_odds=problem.model.units((scores,)),
        converged=converged,
        iterations=iterations,
        residual=residual,
    )


@eqx.filter_jit
def graph_statistics(limits: Limits, problem: Any) -> Statistics:
    """The statistics of the decoded configurations."""
    model, view = problem.model, _view(problem.model)

    def one(instance: GraphInstance) -> Any:
        state, iterations, residual = _run(limits, view, instance)
        found = view.statistics(view.update(state, instance), instance)
        converged = view.is_possible(state, instance) & (residual <= limits.tol)
        return (*found.units, converged, iterations, residual), found.pairs

    out = each_and_mean(one, messages.instances(problem), problem.shape, chunk_of(model))
    (units, converged, iterations, residual), pairs = out
    return Statistics(
        units=model.units((units,)),
        pairwise=model.by_factor(pairs),
        squares=(),
        converged=converged,
        iterations=iterations,
        residual=residual,
    )


@eqx.filter_jit
def _solved(limits: Limits, problem: Any) -> tuple[Array, Array, Array, Array, Array]:
    """Scores of all states, the dual bound, whether converged, sweeps, and the last change."""
    model, view = problem.model, _view(problem.model)

    def one(instance: GraphInstance) -> Any:
        state, iterations, residual = _run(limits, view, instance)
        bound = view.log_partition(state, instance)
        # The messages of `state` leave no preference: what they are answered with has one.
        (scores,) = view.beliefs(view.update(state, instance), instance)
        converged = (bound > -jnp.inf) & (residual <= limits.tol)
        return scores, bound, converged, iterations, residual

    return each(one, messages.instances(problem), problem.shape, chunk_of(model))


def _run(
    limits: Limits, view: AbstractGraphView, instance: GraphInstance
) -> tuple[GraphState, Int[Array, ""], Float[Array, ""]]:
    start = view.evened(view.start(instance, "plain"), instance)
    return limits.iterate(lambda state: view.relaxed(state, instance), start)


def _view(model: Any) -> Any:
    return messages.view(model, product="max", beta=jnp.ones((), model.dtype))


@eqx.filter_jit
def _met(problem: Any, log_odds: Any) -> Any:
    """How often the decoded configuration of each instance meets each log-potential."""
    model = problem.model
    rows = model.unnamed(problem.decode(log_odds))
    rows = rows.reshape(-1, rows.shape[-1])
    return each(lambda row: model.features(row)[1], rows, problem.shape, chunk_of(model))
