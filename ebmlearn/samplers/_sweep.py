"""Gibbs sampling. Of layered models a layer at a time: layers without couplings inside are drawn
at once, the others a unit at a time, or a class of units of which no two are joined. Of all other
models in turns, by the scores of the states of their units.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..factors import inner as inner_of
from ..models import AbstractPlainModel, AbstractTurns, in_order, summed
from ..units import AbstractUnits, Categorical


# Units of a layer with couplings inside are drawn in blocks: what the other units send to a block
# is one product of matrices, and only what its units send to each other is added a unit at a time.
_BLOCK = 28

Layers = Sequence[Float[Array, "chains _"]]
Clamp = Sequence[Bool[Array, "chains _"] | None] | None
Beta = Float[Array, "#chains 1"] | float


def sweep(
    model: AbstractPlainModel,
    layers: Layers,
    key: PRNGKeyArray,
    beta: Beta = 1.0,
    reverse: bool = False,
    clamp: Clamp = None,
    metropolised: bool = False,
) -> list[Float[Array, "chains _"]]:
    """Draws every layer once given all others: those that can be summed out, then the rest, the
    visible one among them. In reverse, all of it the other way round: the two are each other's
    reversal with respect to the distribution of the model at inverse temperature `beta`. With
    `metropolised`, units that are drawn in turns are drawn by Metropolised Gibbs.
    """
    if model.turns is not None:
        return _in_turns(model.turns, layers, key, beta, reverse, clamp, metropolised)
    layers = list(layers)
    keys = jax.random.split(key, len(layers))
    first = summed(model)
    order = [*first, *(k for k in range(len(layers)) if k not in first)]
    for layer in reversed(order) if reverse else order:
        held = None if clamp is None else clamp[layer]
        layers[layer] = drawn(model, layers, layer, keys[layer], beta, reverse, held, metropolised)
    return layers


def _in_turns(
    turns: AbstractTurns,
    layers: Layers,
    key: PRNGKeyArray,
    beta: Beta,
    reverse: bool,
    clamp: Clamp,
    metropolised: bool,
) -> list[Float[Array, "chains _"]]:
    """Draws the sites of a model in its turns."""
    rows, order = turns.rows(layers), jnp.asarray(turns.order)
    number, width = order.shape
    counts = turns.site_states
    size, most = len(counts), int(max(counts, default=1))
    units = Categorical(width, most)
    held = joined(turns.model, clamp, rows.shape[0])

    def one(k: Array | int, rows: Array) -> Array:
        turn = number - 1 - k if reverse else k
        members = order[turn]
        scores = turns.scores(rows, members, held)
        scale = beta if isinstance(beta, (int, float)) else beta[..., None]
        scale = jnp.broadcast_to(scale, scores.shape)
        # What is impossible stays so at all temperatures.
        scores = jnp.where(scores == -jnp.inf, scores, scale.astype(scores.dtype) * scores)
        # Places that are left over have one state.
        over = members == size
        first = jnp.where(jnp.arange(most) == 0, 0.0, -jnp.inf).astype(scores.dtype)
        everywhere = jnp.broadcast_to(over[None, :, None], scores.shape)
        scores = jnp.where(everywhere, jnp.broadcast_to(first, scores.shape), scores)
        field = scores.reshape(rows.shape[0], width * most)
        noise = units.noise(jax.random.fold_in(key, turn), field.shape, field.dtype)
        if metropolised:
            old = turns.chosen(rows, members)
            old = jnp.where(jnp.broadcast_to(over, old.shape), 0, old)
            new = units.redraw(units.encode(old, field.dtype), field, noise)
        else:
            new = units.draw(field, noise)
        return turns.placed(rows, members, units.decode(new).astype(rows.dtype))

    return turns.layers(jax.lax.fori_loop(0, number, one, rows))


def joined(
    model: AbstractPlainModel, clamp: Clamp, chains: int
) -> Bool[Array, "chains units"] | None:
    """Which units are held, all layers beside each other."""
    if clamp is None:
        return None
    parts = [
        jnp.zeros((chains, units.size), bool) if mask is None else mask
        for units, mask in zip(model.layers, clamp, strict=True)
    ]
    return jnp.concatenate(parts, -1)


def drawn(
    model: AbstractPlainModel,
    layers: Layers,
    layer: int,
    key: PRNGKeyArray,
    beta: Beta = 1.0,
    reverse: bool = False,
    held: Bool[Array, "chains _"] | None = None,
    metropolised: bool = False,
) -> Float[Array, "chains _"]:
    """Draws one layer given all others. `held` are the units that keep their states."""
    old, units = layers[layer], model.layers[layer]
    outside = model.field(layers, layer, inside=False)
    if not (isinstance(beta, float) and beta == 1.0):
        units = units.tempered(beta)
    inner = [f for f in inner_of(model.factors()) if f.first == model.names[layer]]
    step = old.shape[-1] // max(units.size, 1)
    if held is not None and step > 1:
        held = jnp.repeat(held, step, axis=-1)
    if not inner:
        new = units.sample(_times(beta, outside), key)
        return new if held is None else jnp.where(held, old, new)
    noise = units.noise(key, old.shape, old.dtype)
    couplings, edges = inner[0].weights, inner[0].edges
    redrawn = metropolised and units.numbered
    held = jnp.zeros(old.shape, bool) if held is None else held
    own = _Layer(units, old, outside, noise, held)

    def draw(units: Any, old: Array, field: Array, noise: Array) -> Array:
        field = _times(beta, field)
        return units.redraw(old, field, noise) if redrawn else units.draw(field, noise)

    if edges is not None:
        return _by_colour(own, couplings, edges, draw, reverse)
    if not reverse:
        return _one_by_one(own, couplings, draw, step)
    own = jax.tree.map(lambda x: _flipped(x, step), own)
    couplings = _flipped(_flipped(couplings, step).T, step).T
    return _flipped(_one_by_one(own, couplings, draw, step), step)


class _Layer(NamedTuple):
    """What a layer is drawn with: its units and their states, what other layers send, random
    numbers, and which units keep their states.
    """

    units: AbstractUnits
    old: Float[Array, "chains n"]
    outside: Float[Array, "chains n"]
    noise: Float[Array, "chains n"]
    held: Bool[Array, "chains n"]

    def cut(self, first: Array | int, size: int) -> "_Layer":
        """Some columns."""

        def part(x: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(x, first, size, x.ndim - 1)

        return jax.tree.map(part, self)


def _one_by_one(
    own: _Layer, couplings: Float[Array, "n n"], draw: Callable[..., Array], step: int
) -> Float[Array, "chains n"]:
    """Draws the units of a layer in turn, each given all others. A unit is `step` columns."""
    n = own.old.shape[-1]
    size = min(_BLOCK * step, n)
    blocks = -(-n // size)
    extra = blocks * size - n
    # Units are added that are joined to nobody and held, so that all blocks have one size.
    own = jax.tree.map(
        lambda a: jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, extra)], mode="edge"), own
    )
    own = own._replace(held=own.held | (jnp.arange(n + extra) >= n)[None])
    couplings = jnp.pad(couplings, ((0, extra), (0, extra)))

    def block(b: Array | int, x: Float[Array, "chains m"]) -> Float[Array, "chains m"]:
        columns = jax.lax.dynamic_slice_in_dim(couplings, b * size, size, 1)
        inner = jax.lax.dynamic_slice_in_dim(columns, b * size, size, 0)
        units, old, outside, u, held = own._replace(old=x).cut(b * size, size)
        fields = outside + x @ columns
        new = []
        for i in range(0, size, step):
            at = slice(i, i + step)
            drawn = draw(units.take(at), old[:, at], fields[:, at], u[:, at])
            drawn = jnp.where(held[:, at], old[:, at], drawn)
            change = drawn - old[:, at]
            # One number is not worth a product of matrices.
            sent = change * inner[at] if step == 1 else change @ inner[at]
            fields = fields + sent
            new.append(drawn)
        return jax.lax.dynamic_update_slice_in_dim(x, jnp.concatenate(new, 1), b * size, 1)

    return jax.lax.fori_loop(0, blocks, block, own.old)[:, :n]


def _by_colour(
    own: _Layer,
    couplings: Float[Array, "n n"],
    edges: tuple[tuple[int, int], ...],
    draw: Callable[..., Array],
    reverse: bool,
) -> Float[Array, "chains n"]:
    """Draws all units of one colour at once. Units are one column each."""
    units, x, outside, noise, held = own
    n = x.shape[-1]
    colours = in_order(((np.array(edges).reshape(-1, 2), jnp.zeros(0)),), n)
    number, width = colours.shape
    # Units of one colour side by side, and a chain in each column: a colour is then a slice. Places
    # that are left over hold a copy of unit 0 that is joined to nobody.
    order = colours.reshape(-1)
    real = order < n
    order = np.where(real, order, 0)
    place = np.argsort(np.where(real, order, n), kind="stable")[:n]
    weights = couplings[order][:, order]
    weights = jnp.where(real[:, None] & real[None, :], weights, jnp.zeros_like(weights))
    columns, outside, noise, held = (a.T[order] for a in (x, outside, noise, held))
    units = units.take(order)

    def one(k: Array, x: Float[Array, "m chains"]) -> Float[Array, "m chains"]:
        begin = (number - 1 - k if reverse else k) * width

        def cut(a: Array, axis: int = 0) -> Array:
            return jax.lax.dynamic_slice_in_dim(a, begin, width, axis)

        field = cut(outside) + cut(weights) @ x
        own = jax.tree.map(lambda a: cut(a, a.ndim - 1), units)
        new = draw(own, cut(x).T, field.T, cut(noise).T).T
        new = jnp.where(cut(held), cut(x), new)
        return jax.lax.dynamic_update_slice_in_dim(x, new, begin, 0)

    return jax.lax.fori_loop(0, number, one, columns)[place].T


def _flipped(x: Array, step: int) -> Array:
    """An array whose last axis is units of `step` columns, these in the opposite order."""
    by_unit = x.reshape(*x.shape[:-1], x.shape[-1] // step, step)
    return by_unit[..., ::-1, :].reshape(x.shape)


def _times(beta: Beta, field: Float[Array, "chains n"]) -> Float[Array, "chains n"]:
    if isinstance(beta, float):
        return field if beta == 1.0 else beta * field
    return jnp.broadcast_to(beta, field.shape) * field
