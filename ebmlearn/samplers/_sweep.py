"""Gibbs sampling of layered models, a layer at a time. Layers without couplings inside are drawn
at once, the others a unit at a time.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..models import AbstractLayeredModel, NNBM
from . import _random
from ._colours import classes


# Units of a layer with couplings inside are drawn in blocks: what the other units send to a block
# is one product of matrices, and only what its units send to each other is added a unit at a time.
_BLOCK = 28

Layers = Sequence[Float[Array, "chains _"]]
Clamp = Sequence[Bool[Array, "chains _"] | None] | None
Beta = Float[Array, "#chains 1"] | float


def sweep(
    model: AbstractLayeredModel,
    layers: Layers,
    key: PRNGKeyArray,
    beta: Beta = 1.0,
    reverse: bool = False,
    clamp: Clamp = None,
) -> list[Float[Array, "chains _"]]:
    """Draws every layer once given all others: the odd layers, then the even ones, the visible one
    among them. In reverse, all of it the other way round: the two are each other's reversal with
    respect to the distribution of the model at inverse temperature `beta`.
    """
    layers = list(layers)
    keys = jax.random.split(key, len(layers))
    order = [*range(1, len(layers), 2), *range(0, len(layers), 2)]
    for layer in reversed(order) if reverse else order:
        held = None if clamp is None else clamp[layer]
        layers[layer] = drawn(model, layers, layer, keys[layer], beta, reverse, held)
    return layers


def _normal(
    model: Any, field: Float[Array, "chains n"], key: PRNGKeyArray, beta: Beta
) -> Float[Array, "chains n"]:
    """Draws Gaussian units, whose mean is their variance times the field."""
    sigma = jnp.broadcast_to(model.sigma, field.shape)
    noise = sigma * _random.normals(key, field.shape, field.dtype)
    if not (isinstance(beta, float) and beta == 1.0):
        noise = noise / jnp.broadcast_to(jnp.sqrt(jnp.asarray(beta, field.dtype)), field.shape)
    return sigma**2 * field + noise


def start_even(
    model: AbstractLayeredModel, probabilities: Layers, key: PRNGKeyArray
) -> list[Float[Array, "chains _"]]:
    """Draws the even layers independently; the odd layers are zero, since a sweep begins with them.
    `probabilities` are those of all layers; of Gaussian units they are the states themselves.
    """
    if not model.is_bipartite:
        raise ValueError(
            "`model` must be an RBM, a CRBM, a DBM or a GaussianRBM for block Gibbs sampling, got a"
            f" {type(model).__name__}."
        )
    keys = jax.random.split(key, len(probabilities))
    layers = []
    for k, p in enumerate(probabilities):
        if k % 2:
            layers.append(jnp.zeros_like(p))
        elif model.kinds()[k] == "gaussian":
            layers.append(p)
        else:
            layers.append(jax.random.bernoulli(keys[k], p).astype(p.dtype))
    return layers


def at_random(
    model: AbstractLayeredModel, layer: int, number: int, key: PRNGKeyArray
) -> Float[Array, "chains _"]:
    """States of a layer that owe nothing to the others: each equally likely, or Gaussian and
    nonnegative units as they are where all others are 0.
    """
    bias = model.unary()[layer]
    shape = (number, bias.shape[-1])
    kind = model.kinds()[layer]
    if kind == "gaussian":
        return _normal(model, jnp.broadcast_to(bias, shape), key, 1.0)
    if kind == "nonnegative":
        uniform = _random.uniforms(key, shape, bias.dtype)
        precision = jnp.broadcast_to(model.diagonal, shape)  # pyright: ignore
        return _random.rectify(jnp.broadcast_to(bias, shape), precision, uniform)
    if kind == "softmax":
        units = jax.random.randint(key, (number,), 0, shape[1])
        return jax.nn.one_hot(units, shape[1], dtype=bias.dtype)
    return jax.random.bernoulli(key, 0.5, shape).astype(bias.dtype)


def given_even(model: AbstractLayeredModel, layers: Layers) -> tuple[Float[Array, "chains _"], ...]:
    """The even layers as they are, the odd layers as probabilities given them."""
    return tuple(
        jax.nn.sigmoid(field(model, layers, k)) if k % 2 else layer
        for k, layer in enumerate(layers)
    )


def field(
    model: AbstractLayeredModel, layers: Layers, layer: int, inside: bool = True
) -> Float[Array, "chains _"]:
    """The log-odds of each unit of a layer given all other units, with or without the couplings
    inside the layer.
    """
    out = jnp.broadcast_to(model.unary()[layer], layers[layer].shape)
    for first, second, weights in model.blocks():
        if second == layer and (inside or first != layer):
            out = out + layers[first] @ weights
        elif first == layer and second != layer:
            out = out + layers[second] @ weights.T
    return out


def energy(model: AbstractLayeredModel, layers: Layers) -> Float[Array, " chains"]:
    """The energy of each chain."""
    out = jnp.zeros(layers[0].shape[0], layers[0].dtype)
    for bias, x in zip(model.unary(), layers, strict=True):
        out = out - (jnp.broadcast_to(bias, x.shape) * x).sum(-1)
    for first, second, weights in model.blocks():
        share = 0.5 if first == second else 1.0
        out = out - share * ((layers[first] @ weights) * layers[second]).sum(-1)
    return out + _spread(model, layers)


def _spread(model: Any, layers: Layers) -> Float[Array, " chains"]:
    """What Gaussian and nonnegative units add to the energy besides what is linear in them."""
    if isinstance(model, NNBM):
        return (layers[0] ** 2 * jnp.broadcast_to(model.diagonal, layers[0].shape)).sum(-1) / 2
    if model.kinds()[0] != "gaussian":
        return jnp.zeros(layers[0].shape[0], layers[0].dtype)
    sigma = jnp.broadcast_to(model.sigma, layers[0].shape)
    bias = jnp.broadcast_to(model.visible_bias, layers[0].shape)
    return ((layers[0] / sigma) ** 2 + (bias / sigma) ** 2).sum(-1) / 2


def drawn(
    model: AbstractLayeredModel,
    layers: Layers,
    layer: int,
    key: PRNGKeyArray,
    beta: Beta,
    reverse: bool,
    held: Bool[Array, "chains _"] | None,
) -> Float[Array, "chains _"]:
    old = layers[layer]
    kind = model.kinds()[layer]
    if isinstance(model, NNBM):
        uniform = _random.uniforms(key, old.shape, old.dtype)
        return _by_colour(model, old, uniform, beta, reverse, held)
    if kind != "binary":
        outside = field(model, layers, layer)
        if kind == "softmax":
            unit = _random.choose(_times(beta, outside), key)
            new = jax.nn.one_hot(unit, old.shape[-1], dtype=old.dtype)
        else:
            new = _normal(model, outside, key, beta)
        return new if held is None else jnp.where(held, old, new)
    uniform = _random.uniforms(key, old.shape, old.dtype)
    outside = field(model, layers, layer, inside=False)
    inner = [weights for first, second, weights in model.blocks() if first == second == layer]
    if not inner:
        new = _random.decide(_times(beta, outside), uniform)
        return new if held is None else jnp.where(held, old, new)
    arrays = old, outside, uniform, inner[0], jnp.zeros(old.shape, bool) if held is None else held
    if reverse:
        old, outside, uniform, couplings, held = (x[..., ::-1] for x in arrays)
        return _one_by_one(old, outside, uniform, couplings[::-1], held, beta)[:, ::-1]
    return _one_by_one(*arrays, beta)


def _one_by_one(
    x: Float[Array, "chains n"],
    outside: Float[Array, "chains n"],
    uniform: Float[Array, "chains n"],
    couplings: Float[Array, "n n"],
    held: Bool[Array, "chains n"],
    beta: Beta,
) -> Float[Array, "chains n"]:
    """Draws the units of a layer in turn, each given all others."""
    n = x.shape[-1]
    size = min(_BLOCK, n)
    blocks = -(-n // size)
    extra = blocks * size - n
    # Units are added that are joined to nobody and held, so that all blocks have one size.
    wide = ((0, 0), (0, extra))
    x, outside, uniform = (jnp.pad(a, wide) for a in (x, outside, uniform))
    held = jnp.pad(held, wide, constant_values=True)
    couplings = jnp.pad(couplings, ((0, extra), (0, extra)))

    def block(b: Array | int, x: Float[Array, "chains m"]) -> Float[Array, "chains m"]:
        def cut(a: Array, axis: int = 1) -> Array:
            return jax.lax.dynamic_slice_in_dim(a, b * size, size, axis)

        columns = cut(couplings)
        fields = cut(outside) + x @ columns
        inner, old, u, fixed = cut(columns, 0), cut(x), cut(uniform), cut(held)
        new = []
        for i in range(size):
            drawn = _random.decide(_times(beta, fields[:, i : i + 1]), u[:, i : i + 1])
            drawn = jnp.where(fixed[:, i : i + 1], old[:, i : i + 1], drawn)
            fields = fields + (drawn - old[:, i : i + 1]) * inner[i : i + 1]
            new.append(drawn)
        return jax.lax.dynamic_update_slice_in_dim(x, jnp.concatenate(new, 1), b * size, 1)

    return jax.lax.fori_loop(0, blocks, block, x)[:, :n]


def _by_colour(
    model: NNBM,
    x: Float[Array, "chains n"],
    uniform: Float[Array, "chains n"],
    beta: Beta,
    reverse: bool,
    held: Bool[Array, "chains n"] | None,
) -> Float[Array, "chains n"]:
    """Draws nonnegative units, all those of one colour at once."""
    colours = classes(model)
    number, width = colours.shape
    # Units of one colour side by side, and a chain in each column: a colour is then a slice. Places
    # that are left over hold a copy of unit 0 that is joined to nobody.
    units = colours.reshape(-1)
    real = units < model.num_units
    units = np.where(real, units, 0)
    place = np.argsort(np.where(real, units, model.num_units), kind="stable")[: model.num_units]
    weights = model.off_diagonal[units][:, units]
    weights = jnp.where(real[:, None] & real[None, :], weights, jnp.zeros_like(weights))
    bias, precision = model.bias[units], model.diagonal[units]
    columns, uniform = x.T[units], uniform.T[units]
    fixed = None if held is None else held.T[units]

    def tempered(a: Float[Array, "width chains"]) -> Float[Array, "width chains"]:
        return _times(beta, a.T).T

    def one(k: Array, x: Float[Array, "m chains"]) -> Float[Array, "m chains"]:
        def cut(a: Array) -> Array:
            begin = (number - 1 - k if reverse else k) * width
            return jax.lax.dynamic_slice_in_dim(a, begin, width)

        shape = (width, x.shape[1])
        field = jnp.broadcast_to(cut(bias)[:, None], shape) - cut(weights) @ x
        own = jnp.broadcast_to(cut(precision)[:, None], shape)
        new = _random.rectify(tempered(field), tempered(own), cut(uniform))
        if fixed is not None:
            new = jnp.where(cut(fixed), cut(x), new)
        begin = (number - 1 - k if reverse else k) * width
        return jax.lax.dynamic_update_slice_in_dim(x, new, begin, 0)

    return jax.lax.fori_loop(0, number, one, columns)[place].T


def _times(beta: Beta, field: Float[Array, "chains n"]) -> Float[Array, "chains n"]:
    if isinstance(beta, float):
        return field if beta == 1.0 else beta * field
    return jnp.broadcast_to(beta, field.shape) * field


def marginal_energy(model: AbstractLayeredModel, layers: Layers) -> Float[Array, " chains"]:
    """Minus the log-potential of the even layers, the odd ones summed out."""
    out = jnp.zeros(layers[0].shape[0], layers[0].dtype)
    for k, x in enumerate(layers):
        if k % 2:
            out = out - jax.nn.softplus(field(model, layers, k)).sum(-1)
        else:
            out = out - (jnp.broadcast_to(model.unary()[k], x.shape) * x).sum(-1)
    for first, second, weights in model.blocks():
        if first == second:
            out = out - ((layers[first] @ weights) * layers[first]).sum(-1) / 2
    return out + _spread(model, layers)
