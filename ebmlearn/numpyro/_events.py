"""Configurations of a model as one vector, which is what a NumPyro site holds: the units that data
tell, where hidden ones can be summed out, else all units, a layer after another.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray
from numpyro.distributions import constraints

from .. import _checks
from ..inference import Beliefs
from ..models import (
    AbstractPlainModel,
    batched,
    is_closed,
    refuse,
    require_layers,
    without,
)
from ..samplers import AbstractSampler, after_steps, drawn


Events = Num[Array, "*chains n"]
# How many events are listed at most.
_MOST = 2**20


def typed(key: Array) -> Array:
    """A key, or several, as typed ones: NumPyro allows others."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    return jax.random.wrap_key_data(key)


def check(model: object) -> None:
    """Raises `TypeError` unless `model` can be the distribution of a site."""
    model = require_layers(model, "a distribution")
    layers = [model.layers[k] for k in _held(model)]
    if len({layer.support for layer in layers}) > 1 and not all(u.finite for u in layers):
        wanted = "have visible units that are all real, or all of finitely many states"
        refuse(model, f"{wanted}, for a distribution")


def support(model: AbstractPlainModel) -> Any:
    """The constraint of a site. Units of several kinds, such as labels beside binary ones, are
    integers from the first to the last state of each.
    """
    kinds = {model.layers[k].support for k in _held(model)}
    if len(kinds) > 1:
        return constraints.independent(constraints.integer_interval(*_interval(model)), 1)
    ((name, *arguments),) = kinds
    one = getattr(constraints, name)
    return constraints.independent(one(*arguments) if arguments else one, 1)


def is_finite(model: AbstractPlainModel) -> bool:
    """Whether a site has finitely many states."""
    return all(model.layers[k].finite for k in _held(model))


def _interval(model: AbstractPlainModel) -> Int[np.ndarray, "2 n"]:
    """The first and the last state of each unit of a site, where these are finitely many."""
    ends = []
    for k in _held(model):
        # An interval of integers, or else both states of a binary unit.
        _, *interval = model.layers[k].support
        ends.append(np.tile(np.array(interval or (0, 1))[:, None], model.layers[k].size))
    return np.concatenate(ends, 1)


def moments(
    model: AbstractPlainModel, beliefs: Beliefs
) -> tuple[Float[Array, "*batch n"], Float[Array, "*batch n"]]:
    """The means and the variances of the units of a site."""
    parts = []
    for k in _held(model):
        layer, x = model.layers[k], jax.tree.leaves(beliefs.means)[k]
        if not layer.finite:
            parts.append((x, beliefs.variance))
        elif layer.width > layer.size:
            # A probability for each state.
            at = jnp.arange(layer.width // layer.size).astype(x.dtype)
            mean = x @ at
            parts.append((mean, x @ at**2 - mean**2))
        else:
            parts.append((x, x * (1 - x)))
    means, variances = zip(*parts, strict=True)
    return jnp.concatenate(means, -1), jnp.concatenate(variances, -1)


def size(model: AbstractPlainModel) -> int:
    """How many units a site holds."""
    return sum(model.layers[k].size for k in _held(model))


def log_potential(model: AbstractPlainModel, event: Num[Array, "*batch n"]) -> Array:
    """The log-probability of an event, up to log Z. Leading axes broadcast with the model's."""
    _checks.trailing("value", event, (size(model),), "one state a unit")
    shape = jnp.broadcast_shapes(event.shape[:-1], model.batch_shape)
    rows = batched(model, shape)
    flat = jnp.broadcast_to(event, (*shape, event.shape[-1])).reshape(-1, event.shape[-1])
    layers = _layers(rows, flat)
    hidden = [k for k in range(len(layers)) if k not in _held(rows)]
    return -without(rows, hidden, layers).reshape(shape)


def units(model: AbstractPlainModel, event: Num[Array, "chains n"], key: PRNGKeyArray) -> Any:
    """States of all units, the hidden ones drawn given the visible ones where these are all that
    the event tells.
    """
    layers, held = _layers(model, event), _held(model)
    for k in range(len(layers)):
        if k not in held:  # Only models of layers leave units out.
            own = jax.random.fold_in(key, k)
            layers[k] = drawn(model, layers, k, own)  # pyright: ignore
    return model.decode(layers)


def event(model: AbstractPlainModel, units: Any) -> Num[Array, "chains n"]:
    """What a site holds of a configuration."""
    leaves = jax.tree.leaves(units)
    return jnp.concatenate([leaves[k] for k in _held(model)], -1)


def moved(
    model: AbstractPlainModel, sampler: AbstractSampler, events: Events, steps: int, key: Array
) -> Events:
    """Events after so many steps of chains that start from others."""
    rows = events.reshape(math.prod(events.shape[:-1]), events.shape[-1])
    rows = rows.astype(jnp.int32) if is_finite(model) else rows
    one, two, three = jax.random.split(key, 3)
    chain = sampler.init(model, len(rows), key=two, start=units(model, rows, one))
    chain = after_steps(sampler, model, chain, three, steps)
    return event(model, chain.units).reshape(events.shape).astype(events.dtype)


def _held(model: AbstractPlainModel) -> tuple[int, ...]:
    """The layers that a site holds."""
    return model.variables.seen if is_closed(model) else tuple(range(len(model.names)))


def _layers(
    model: AbstractPlainModel, event: Num[Array, "chains n"]
) -> list[Float[Array, "chains _"]]:
    """States of all layers as they are inside, zero where the event does not tell them."""
    out, at = [], 0
    for k, layer in enumerate(model.layers):
        if k in _held(model):
            out.append(layer.encode(event[:, at : at + layer.size], model.dtype))
            at += layer.size
        else:
            out.append(jnp.zeros((event.shape[0], layer.width), model.dtype))
    return out


def listed(model: AbstractPlainModel) -> Int[Array, "..."]:
    """All events, along an axis before those of the batch of the model, which are of length 1."""
    if not is_finite(model):
        raise NotImplementedError("events can be listed only if units have finitely many states.")
    first, last = _interval(model)
    counts = (last - first + 1).tolist()
    number = math.prod(counts)
    if number > _MOST:
        raise NotImplementedError(
            f"at most {_MOST} events can be listed, got {number}: give `log_partition` as a number,"
            " or a `sampler` to `ExchangeKernel`."
        )
    events = first + np.indices(counts).reshape(len(counts), number).T
    return jnp.asarray(events, jnp.int32).reshape(
        number, *[1] * len(model.batch_shape), len(counts)
    )
