"""All that samplers draw. Tests replace these by all outcomes with their probabilities."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Int, PRNGKeyArray, UInt32

from .._pallas import has_gpu, triton
from ._rectified import rectified_quantile


# Below this a kernel of its own costs more than it saves.
_MANY = 2**17
_ROWS, _COLUMNS = 4, 256


def serves(x: Array) -> bool:
    """Whether there is a GPU that may run the kernel, and enough to draw."""
    return x.ndim == 2 and x.size >= _MANY and x.dtype == jnp.float32 and has_gpu()


def by_halves(
    function: Callable[..., list[Array]],
    x: Float[Array, "rows n"],
    data: UInt32[Array, "2"],
    interpret: bool = False,
) -> Float[Array, "rows n"]:
    """Applies `function(data, counts, first, second)` to the first and the second half of the rows
    together. `counts` are the places in the first half, numbered by rows.
    """
    from jax.experimental import pallas as pl

    rows, columns = x.shape
    half = -(-rows // 2)
    load, store = triton().load, triton().store

    def kernel(x_ref: Any, data_ref: Any, out_ref: Any) -> None:
        i = pl.program_id(0) * _ROWS + jnp.arange(_ROWS)[:, None]
        j = pl.program_id(1) * _COLUMNS + jnp.arange(_COLUMNS)[None, :]
        inside = (i < half) & (j < columns)
        masks = inside, inside & (i + half < rows)
        places = (i, j), (i + half, j)
        halves = [
            load(x_ref.at[at], mask=mask, other=0.0) for at, mask in zip(places, masks, strict=True)
        ]
        counts = (i * columns + j).astype(jnp.uint32)
        drawn = function((data_ref[0], data_ref[1]), counts, *halves)
        for at, mask, new in zip(places, masks, drawn, strict=True):
            store(out_ref.at[at], new, mask=mask)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(-(-half // _ROWS), -(-columns // _COLUMNS)),
        compiler_params=triton().CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="draws",
    )(x, data)


def uniforms(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """Numbers to `decide` by, between 0 and 1 and never either: odd multiples of half a step, so
    that what is all but impossible does not happen, nor the contrary.

    With JAX's usual keys they come from the same cipher as `jax.random.uniform`, which gives away
    half of what each of its blocks yields; here each gives two numbers. Random numbers are the
    larger part of a sweep after its matrix products.
    """
    usual = str(jax.random.key_impl(key)) == "threefry2x32"
    if not usual or jnp.dtype(dtype) != jnp.float32 or shape[0] < 2:
        return _middles(jax.random.uniform(key, shape, dtype))
    half = -(-shape[0] // 2)
    counts = jax.lax.iota(jnp.uint32, half * shape[1]).reshape(half, shape[1])
    bits = jnp.concatenate(_threefry(jax.random.key_data(key), counts, jnp.zeros_like(counts)))
    return _from_bits(bits)[: shape[0]]


def _from_bits(bits: UInt32[Array, "..."]) -> Float[Array, "..."]:
    # The bits of a number between 1 and 2.
    ones = jnp.uint32(0x3F800000)
    return _middles(jax.lax.bitcast_convert_type((bits >> 9) | ones, jnp.float32) - 1)


def _middles(uniform: Float[Array, "..."]) -> Float[Array, "..."]:
    """Multiples of a step, from 0 on, moved by half of it."""
    return uniform + jnp.finfo(uniform.dtype).eps / 2


def _threefry(
    key: UInt32[Array, "2"] | tuple[UInt32[Array, ""], UInt32[Array, ""]],
    x: UInt32[Array, "..."],
    y: UInt32[Array, "..."],
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """The block cipher Threefry-2x32 with 20 rounds (Salmon et al. 2011)."""
    keys = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA)
    x, y = x + keys[0], y + keys[1]
    for k in range(5):
        for turn in (13, 15, 26, 6) if k % 2 == 0 else (17, 29, 16, 24):
            x = x + y
            y = ((y << turn) | (y >> (32 - turn))) ^ x
        x = x + keys[(k + 1) % 3]
        y = y + keys[(k + 2) % 3] + jnp.uint32(k + 1)
    return x, y


def decide(log_odds: Float[Array, "..."], uniform: Float[Array, "..."]) -> Float[Array, "..."]:
    """1 with the probability that log-odds mean, else 0."""
    return (uniform < jax.nn.sigmoid(log_odds)).astype(log_odds.dtype)


def decided(log_odds: Float[Array, "rows n"], key: PRNGKeyArray) -> Float[Array, "rows n"]:
    """1 with the probability that log-odds mean, else 0: `decide` with the `uniforms` of a key.

    GPUs draw many by a kernel, which uses both numbers of a block of the cipher without storing
    any; the draws are the same.
    """

    def plain(log_odds: Array, key: PRNGKeyArray) -> Array:
        return decide(log_odds, uniforms(key, log_odds.shape, log_odds.dtype))

    usual = str(jax.random.key_impl(key)) == "threefry2x32"
    if not usual or not serves(log_odds):
        return plain(log_odds, key)
    data = jax.random.key_data(key)

    def other(log_odds: Array, data: UInt32[Array, "2"]) -> Array:
        return plain(log_odds, jax.random.wrap_key_data(data, impl="threefry2x32"))

    return jax.lax.platform_dependent(log_odds, data, cuda=_by_kernel, default=other)


def rectify(
    field: Float[Array, "..."], precision: Float[Array, "..."], uniform: Float[Array, "..."]
) -> Float[Array, "..."]:
    """A number $x \\ge 0$ of density $e^{l x - r x^2 / 2}$, where $l$ is the field and $r$ the
    precision.
    """
    root = jnp.sqrt(precision)
    return rectified_quantile(field / root, uniform) / root


def _by_kernel(
    log_odds: Float[Array, "rows n"], data: UInt32[Array, "2"], interpret: bool = False
) -> Float[Array, "rows n"]:
    """The draws of `decide`, two for each block of the cipher."""

    def drawn(key: Any, counts: Array, *halves: Array) -> list[Array]:
        bits = _threefry(key, counts, jnp.zeros_like(counts))
        return [decide(x, _from_bits(b)) for x, b in zip(halves, bits, strict=True)]

    return by_halves(drawn, log_odds, data, interpret)


def accept(log_ratio: Float[Array, "..."], key: PRNGKeyArray) -> Float[Array, "..."]:
    """1 with probability min(1, ratio), else 0. A ratio that is NaN is refused."""
    uniform = _middles(jax.random.uniform(key, log_ratio.shape, log_ratio.dtype))
    return (jnp.log(uniform) < log_ratio).astype(log_ratio.dtype)


def accept_by(log_ratio: Float[Array, "..."], uniform: Float[Array, "..."]) -> Float[Array, "..."]:
    """As `accept`, by numbers that were drawn before."""
    return (jnp.log(uniform) < log_ratio).astype(log_ratio.dtype)


def accept_by_gumbel(
    log_ratio: Float[Array, "..."], gumbel: Float[Array, "..."]
) -> Float[Array, "..."]:
    """The same by Gumbel numbers: minus the exponential of minus one is the logarithm of a uniform
    number.
    """
    return (-jnp.exp(-gumbel) < log_ratio).astype(log_ratio.dtype)


def choices(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """Numbers to `choose` by: Gumbel ones."""
    return jax.random.gumbel(key, shape, dtype)


def choose(
    logits: Float[Array, "*shape n"], noise: Float[Array, "*shape n"]
) -> Int[Array, "*shape"]:
    """One of n with the probabilities that logits mean."""
    return jnp.argmax(logits + noise, axis=-1)


def choose_several(
    logits: Float[Array, "rows n"], noise: Float[Array, "rows n"], number: int
) -> Int[Array, "rows number"]:
    """So many of n, one after the other, each with the probabilities that the logits of those left
    mean: with the same Gumbel numbers, the largest of what is left is a draw from what is left.
    """
    return jax.lax.top_k(logits + noise, number)[1]


def logistics(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """Standard logistic numbers: differences of two Gumbel ones."""
    return jax.random.logistic(key, shape, dtype)


def gumbels(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """Gumbel numbers of mean zero."""
    return jax.random.gumbel(key, shape, dtype) - jnp.asarray(np.euler_gamma, dtype)


def normals(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """Standard normal numbers."""
    return jax.random.normal(key, shape, dtype)
