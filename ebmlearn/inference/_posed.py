"""The instances of a model of numbered units: the scores of the states of all units, a row for each
unit; and what is found in this form, by the names of the model.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from .. import messages
from .._sentinels import CLAMPED, EXCLUDED
from ..models import Statistics


class Posed(NamedTuple):
    """What may differ between instances: the unary scores of the states of all units, which states
    are possible, and over which units mixed-product maximises.
    """

    rows: Float[Array, "*batch variables most"]
    there: Bool[Array, "*batch variables most"]
    outputs: Bool[Array, "*batch variables"]


def is_graph(model: Any) -> bool:
    return model.kind in messages.graph_kinds()


def group_names(model: Any) -> tuple[str, ...]:
    """The names of the groups of units, as factors have them."""
    return model.group_names if is_graph(model) else model.names


def split(model: Any, x: Array, axis: int) -> list[Array]:
    """The parts of an array of all units that belong to each group."""
    return jnp.split(x, np.cumsum([units.size for units in model.layers])[:-1], axis=axis)


def posed(problem: Any) -> Posed:
    """The instances of a problem along one leading axis."""
    model = problem.model
    if is_graph(model):
        return _of_graph(problem)
    unary, given, masks = list(model.unary()), problem.given(), []
    if given is not None:
        evidence, observed = given
        sure = observed & ((evidence == 0) | (evidence == 1))
        likely = jnp.where(observed & ~sure, evidence, jnp.full_like(evidence, 0.5))
        first = jnp.broadcast_to(unary[0], evidence.shape)
        unary[0] = first + jax.scipy.special.logit(likely)
        states = jnp.stack([evidence == 0, evidence == 1], -1)
        shape = (math.prod(problem.shape), *states.shape[-2:])
        masks.append((states | ~sure[..., None]).reshape(shape))
    most = max(units.number for units in model.layers)
    rows, there = [], []
    for units, bias in zip(model.layers, unary, strict=True):
        own = units.scores(problem.flat(bias))
        wide = ((0, 0), (0, 0), (0, most - units.number))
        rows.append(jnp.pad(own, wide))
        has = masks.pop() if masks else jnp.ones(own.shape, bool)
        there.append(jnp.pad(has, wide))
    seen = [jnp.full(u.size, k in model.seen) for k, u in enumerate(model.layers)]
    both = jnp.concatenate(rows, 1), jnp.concatenate(there, 1)
    return Posed(*both, jnp.broadcast_to(jnp.concatenate(seen), both[0].shape[:-1]))


def _of_graph(problem: Any) -> Posed:
    model = problem.model
    (unary,), soft = model.unary(), problem.log_likelihood
    flat = problem.flat(unary)
    if soft is not None:
        flat = flat + problem.flat(soft.astype(flat.dtype))
    rows, there = model.padded(flat), model.padded(jnp.ones_like(flat)) > 0
    held = problem.flat(problem.rows)[..., None]
    states = jnp.arange(rows.shape[-1], dtype=held.dtype)
    chosen = jnp.broadcast_to(states, rows.shape) == jnp.broadcast_to(held, rows.shape)
    there = there & (chosen | jnp.broadcast_to(held < 0, rows.shape)) & (rows > EXCLUDED / 2)
    outputs = problem.outputs
    outputs = jnp.zeros(rows.shape[:-1], bool) if outputs is None else problem.flat(outputs)
    return Posed(rows, there, outputs)


def named_scores(model: Any, scores: Float[Array, "*batch variables most"]) -> PyTree:
    """The log-odds of binary units and the log-probabilities of others, by name, from the scores of
    all states.
    """
    if is_graph(model):
        return model.units((jax.nn.log_softmax(scores, axis=-1),))
    out = []
    for units, own in zip(model.layers, split(model, scores, -2), strict=True):
        if units.width == units.size:
            difference = own[..., 1] - own[..., 0]
            out.append(jnp.clip(difference, -CLAMPED, CLAMPED))
        else:
            flat = jax.nn.log_softmax(own[..., : units.number], axis=-1)
            out.append(flat.reshape(*flat.shape[:-2], units.width))
    return model.units(out)


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
        squares=() if is_graph(model) else (None,) * len(model.layers),
        **went,
    )
