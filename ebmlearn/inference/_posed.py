"""The instances of a model of numbered units: the scores of the states of all units, a row for each
unit; and what is found in this form, by the names of the model.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ..models import Statistics


class Posed(NamedTuple):
    """What may differ between instances: the unary scores of the states of all units, which states
    are possible, and over which units mixed-product maximises.
    """

    rows: Float[Array, "*batch variables most"]
    there: Bool[Array, "*batch variables most"]
    outputs: Bool[Array, "*batch variables"]


def is_graph(model: Any) -> bool:
    return hasattr(model, "group_names")


def split(model: Any, x: Array, axis: int) -> list[Array]:
    """The parts of an array of all units that belong to each group."""
    return jnp.split(x, np.cumsum([units.size for units in model.layers])[:-1], axis=axis)


def posed(problem: Any) -> Posed:
    """The instances of a problem along one leading axis."""
    model, (rows, there) = problem.model, problem.scores()
    if is_graph(model):
        outputs = problem.outputs
        outputs = jnp.zeros(rows.shape[:-1], bool) if outputs is None else problem.flat(outputs)
        return Posed(rows, there, outputs)
    seen = [jnp.full(u.size, k in model.seen) for k, u in enumerate(model.layers)]
    return Posed(rows, there, jnp.broadcast_to(jnp.concatenate(seen), rows.shape[:-1]))


def named_means(model: Any, p: Float[Array, "*batch variables most"]) -> PyTree:
    """The means of the internal states, by name, from probabilities of states."""
    if is_graph(model):
        return model.units((p,))
    out = []
    for units, own in zip(model.layers, split(model, p, -2), strict=True):
        part = own[..., 1:2] if units.width == units.size else own[..., : units.number]
        out.append(part.reshape(*part.shape[:-2], units.width))
    return model.units(out)


def statistics_of(
    model: Any, p: Float[Array, "*batch variables most"], pairs: tuple[Array, ...], **went: Any
) -> Statistics:
    """Expected statistics from the probabilities of all states and the statistics of factors."""
    return Statistics(
        units=named_means(model, p),
        pairwise=model.by_factor(pairs),
        squares=(None,) * len(model.layers),
        **went,
    )
