from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PyTree

from .. import _checks
from .._types import AnyArray
from ..inference import AbstractInference
from ..models import AbstractPlainModel, AbstractProblem, require_discrete, Statistics
from ._base import Told


# From states and the truth, both of shape [batch, visible], to the cost of each unit.
Cost = Callable[[Float[Array, "batch visible"], Float[Array, "batch visible"]], AnyArray]


def hamming(
    state: Float[AnyArray, "*#batch visible"], truth: Float[AnyArray, "*#batch visible"]
) -> Float[AnyArray, "*#batch visible"]:
    """The Hamming loss: each wrong unit costs 1."""
    # Of states that have numbers, any two differ by 1 or more.
    return jnp.minimum(abs(state - truth), 1)


def check_cost(cost: Any) -> None:
    """Raises `TypeError` unless `cost` may be called."""
    if not callable(cost):
        got = _checks.describe(cost)
        raise TypeError(f"`cost` must be a function of states and the truth, got {got}.")


def with_cost(model: AbstractPlainModel, seen: PyTree, cost: Cost) -> AbstractProblem:
    """The problem whose log-potential is higher by what visible units cost that differ from those
    that are seen: for the Hamming loss of binary units, $b_i$ plus $1 - 2 v_i$ (Ping & Ihler 2017,
    eq. (7)).
    """
    (truth,) = jax.tree.leaves(seen)
    most = max(units.number for units in model.layers)  # pyright: ignore
    each = [_costs(model, jnp.full_like(truth, k), truth, cost) for k in range(most)]
    if not model.layerwise:
        graph: Any = model
        problem = graph.problem(None, None).with_outputs(truth >= 0)
        return problem.with_likelihood(graph.flattened(jnp.stack(each, -1)))
    first, *others = model.unary()
    bias = jnp.broadcast_to(first, truth.shape) + (each[1] - each[0])
    augmented = model.with_unary((bias, *others))  # pyright: ignore
    return augmented.problem(None, None)


def violation(
    learner: Any, told: Told, inference: AbstractInference
) -> tuple[Statistics, Told, Float[Array, " rows"]]:
    """What a learner with a `cost` must make less likely than the data: the statistics that its
    inference finds with the cost added; the visible states among them in the place of the data; and
    what these cost.
    """
    model = require_discrete(told.model, type(learner).__name__)
    told.one_visible(learner)
    found = inference.statistics_of(with_cost(model, told.seen, learner.cost))
    rival = _decided(model, found.units, told.seen)
    states, truth = jax.tree.leaves((rival, told.seen))
    return found, told._replace(seen=rival), _costs(model, states, truth, learner.cost).sum(-1)


def _decided(model: AbstractPlainModel, units: Any, seen: PyTree) -> PyTree:
    """The visible states that an inference decided for, from the means of its statistics, in the
    form of what is seen.
    """
    if model.layerwise:
        return (jax.tree.leaves(units)[0],)
    states = [x.argmax(-1).reshape(seen.shape[0], -1) for x in units.values]
    found = jnp.concatenate(states, -1).astype(seen.dtype)
    return jnp.where(seen >= 0, found, jnp.full_like(seen, -1))


def _costs(
    model: AbstractPlainModel,
    states: Num[Array, "rows units"],
    truth: Num[Array, "rows units"],
    cost: Cost,
) -> Float[Array, "rows units"]:
    """What each unit costs; 0 where data do not tell it."""
    found = jnp.asarray(cost(states.astype(model.dtype), truth.astype(model.dtype)))
    _checks.exact_shape("cost", found, truth.shape, "one number a visible unit")
    return jnp.where(truth >= 0, found.astype(model.dtype), jnp.zeros((), model.dtype))
