"""The instances of a model of numbered units: the scores of the states of all units, a row for each
unit.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .. import messages
from ..models import AbstractPlainModel, AbstractSampled, Statistics
from ._base import Problem
from ._beliefs import Went


class Posed(NamedTuple):
    """What may differ between instances: the unary scores of the states of all units, which states
    are possible, and over which units mixed-product maximises.
    """

    rows: Float[Array, "*batch variables most"]
    there: Bool[Array, "*batch variables most"]
    outputs: Bool[Array, "*batch variables"]


def split(model: AbstractPlainModel, x: Array, axis: int) -> list[Array]:
    """The parts of an array of all units that belong to each group."""
    return jnp.split(x, np.cumsum([units.size for units in model.layers])[:-1], axis=axis)


def posed(problem: AbstractSampled) -> Posed:
    """The instances of a problem along one leading axis."""
    own: Any = problem
    model, (rows, there) = problem.model, problem.scores()
    outputs = getattr(problem, "outputs", None)
    if outputs is None:
        chosen = own.maximised() or ()
        outputs = jnp.concatenate(
            [jnp.full(u.size, k in chosen) for k, u in enumerate(model.layers)]
        )
    return Posed(rows, there, own.flat(outputs))


def statistics_of(
    problem: Problem,
    p: Float[Array, "*batch variables most"],
    pairs: tuple[Array, ...],
    went: Went,
) -> Statistics:
    """Expected statistics from the probabilities of all states and the statistics of factors."""
    model = problem.model
    units = problem.expected(messages.probabilities(model.layers, p))
    return Statistics(units, model.by_factor(pairs), (None,) * len(model.layers), *went)
