"""The edge updates of belief propagation, in centred form.

An edge of weight W between the binary units i and j sends to i a message that is one number, a
log-odds. In ±1 form the edge is W/4 · s_i s_j and its remaining W/2 of log-odds belongs to the two
units, so that with w = W/2 and the sender's cavity log-odds t the messages are

    sum-product   log((1 + exp(t + w)) / (exp(t) + exp(w)))      `soft`
    max-product   sign(t w) · min(|t|, |w|)                      `hard`

`soft` is `hard` plus a correction of at most log 2, which is exact for all |W|. Where |W| is
moderate the odds themselves can be sent, exp(message): `odds` needs neither exponential nor
logarithm, and its terms are positive, so that nothing cancels. Log-odds are then added as
logarithms of products (`log_product`).
"""

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from .._checks import is_concrete
from .._sentinels import HUGE
from .._types import AnyArray


# Products of 16 odds between exp(-W / 2) and exp(W / 2) stay inside the range of float32, that is
# within exp(±87), while |W| / T is at most this.
ODDS_LIMIT = 10.0
_GROUP = 16
# Up to here NumPy finds the largest weight sooner than a compiled program is called.
_FEW = 2**15
# 2 artanh(z) / z in powers of z², for |z| <= 1/3. For float32 it is interpolated at Chebyshev's
# points, and off by 4e-9.
_SERIES = tuple(2 / (2 * k + 1) for k in range(16))
_SHORT = (2.0, 0.666663216, 0.400245952, 0.279651578, 0.281577783)
# Sums of log-odds keep multiples of 1/64 apart from the rest: the former add without any rounding,
# so that large messages which cancel leave the small ones exact.
_QUANTUM = 64.0


def odds_serve(
    weights: tuple[Float[Array, "_ _"], ...], temperature: Float[AnyArray, ""]
) -> bool | Bool[AnyArray, ""]:
    """Whether messages as odds are exact enough for the weights, as an array: a plain False says
    that there is no choice, since there are no weights.
    """
    if not weights:
        return False
    if not _is_small((weights, temperature)):
        return _within(weights, temperature)
    known = [np.asarray(w) for w in weights]
    peaks = [max(w.max(initial=0), -w.min(initial=0)) for w in known]
    return np.asarray(max(peaks) <= ODDS_LIMIT * temperature)


def _is_small(x: PyTree) -> bool:
    """Whether values are known, and so few that NumPy sees them sooner than a compiled program."""
    return sum(a.size for a in jax.tree.leaves(x)) <= _FEW and is_concrete(x)


@jax.jit
def _within(
    weights: tuple[Float[Array, "_ _"], ...], temperature: Float[AnyArray, ""]
) -> Bool[Array, ""]:
    peaks = [jnp.maximum(w.max(initial=0), -w.min(initial=0)) for w in weights]
    return jnp.stack(peaks).max() <= ODDS_LIMIT * temperature


@jax.custom_jvp
def hard(w: Float[Array, "..."], t: Float[Array, "..."]) -> Float[Array, "..."]:
    """The max-product message."""
    return jnp.maximum(jnp.minimum(t, w), -jnp.maximum(t, w))


@hard.defjvp
def _(primals, tangents):
    # Automatic differentiation of the clip is wrong at w = 0, where learning often starts.
    (w, t), (dw, dt) = primals, tangents
    through = jnp.abs(t) < jnp.abs(w)
    zero = jnp.zeros((), w.dtype)
    return hard(w, t), jnp.where(through, jnp.sign(w), zero) * dt + jnp.where(
        through, zero, jnp.sign(t)
    ) * dw


@jax.custom_jvp
def soft(w: Float[Array, "..."], t: Float[Array, "..."]) -> Float[Array, "..."]:
    """The sum-product message, Ping & Ihler 2017, eq. (13)-(14) in log-odds, for all |w|."""
    return soft_by(jnp.exp, jnp.divide, w, t)


def soft_by(
    exp: Callable[[Array], Array], divide: Callable[[Array, Array], Array], w: Array, t: Array
) -> Array:
    """`soft` by functions of a machine."""
    same, other = exp(-jnp.abs(t + w)), exp(-jnp.abs(t - w))
    # log((1 + a) / (1 + b)) = 2 artanh(z) by its series, which needs no logarithm: |z| <= 1/3.
    z = divide(same - other, 2 + same + other)
    *lower, series = _SERIES if z.dtype == jnp.float64 else _SHORT
    for coefficient in reversed(lower):
        series = series * (z * z) + coefficient
    return hard(w, t) + z * series


@soft.defjvp
def _(primals, tangents):
    (w, t), (dw, dt) = primals, tangents
    both, one = jax.nn.sigmoid(t + w), jax.nn.sigmoid(t - w)
    return soft(w, t), (both - one) * dt + (both + one - 1) * dw


def odds(
    k: Float[Array, "..."], belief: Float[Array, "..."], message: Float[Array, "..."]
) -> Float[Array, "..."]:
    """The sum-product message as odds, from k = exp(W / 2), the log-odds of the sender, and the
    message that came to it, as odds too.
    """
    one, zero = _ratio(belief)
    zero = zero * message
    return (zero + k * one) / (one + k * zero)


def _ratio(log_odds: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Odds as a ratio, of which neither part can overflow."""
    return jnp.exp(jnp.minimum(log_odds, 0)), jnp.exp(jnp.minimum(-log_odds, 0))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def log_product(x: Float[Array, "a b"], axis: int) -> Float[Array, " n"]:
    """The sum of log(x) over an axis, with one logarithm for sixteen entries."""

    def grouped(x: Array) -> Array:
        out = jnp.zeros(x.shape[1 - axis], x.dtype)
        for slabs in _slabs(x, axis):
            out = out + jnp.log(functools.reduce(jnp.multiply, slabs)).sum(axis)
        return out

    # Elsewhere than on the CPU memory is slower than logarithms, and reductions are fused.
    return jax.lax.platform_dependent(x, cpu=grouped, default=lambda x: jnp.log(x).sum(axis))


@log_product.defjvp
def _(axis, primals, tangents):
    (x,), (dx,) = primals, tangents
    return log_product(x, axis), (dx / x).sum(axis)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def total(
    x: Float[Array, "a b"], axis: int, clipped: bool = False
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """The sum over an axis in two parts: of multiples of 1/64, which is exact, and of the rest.

    Elsewhere than on the CPU, where memory is what a sweep waits for, the messages of max-product
    (`clipped`) are added without that: only their signs decide anything in the end.
    """

    def exact(x: Array) -> tuple[Array, Array]:
        coarse = rest = jnp.zeros(x.shape[1 - axis], x.dtype)
        for slabs in _slabs(x, axis):
            first, second = zip(*map(_split, slabs), strict=True)
            coarse = coarse + functools.reduce(jnp.add, first).sum(axis)
            rest = rest + functools.reduce(jnp.add, second).sum(axis)
        return coarse, rest

    def by_rows(x: Array) -> tuple[Array, Array]:
        coarse, rest = _split(x)
        return coarse.sum(axis), rest.sum(axis)

    def quick(x: Array) -> tuple[Array, Array]:
        zero = jnp.zeros(x.shape[1 - axis], x.dtype)
        if axis == 1:
            return zero, x.sum(axis)
        parts = (functools.reduce(jnp.add, s).sum(axis) for s in _slabs(x, axis, 32))
        return zero, functools.reduce(jnp.add, parts, zero)

    other = quick if clipped else (by_rows if axis == 1 else exact)
    return jax.lax.platform_dependent(x, cpu=exact, default=other)


@total.defjvp
def _(axis, clipped, primals, tangents):
    (x,), (dx,) = primals, tangents
    tangent = dx.sum(axis)
    return total(x, axis, clipped), (jnp.zeros_like(tangent), tangent)


def summed(x: Float[Array, "a b"], axis: int) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """The same as `total` for what is added up once: slower, but a few operations to compile."""
    coarse, rest = _split(x)
    return coarse.sum(axis), rest.sum(axis)


def split(x: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Numbers as multiples of 1/64 and the rest, which add up to them exactly."""
    # Numbers as large as these are multiples of 1/64, and might overflow on the way.
    large = jnp.abs(x) > HUGE
    coarse, rest = _split(jnp.where(large, jnp.zeros_like(x), x))
    return jnp.where(large, x, coarse), rest


def _split(x: Array) -> tuple[Array, Array]:
    nearest = jax.lax.round(x * _QUANTUM, jax.lax.RoundingMethod.TO_NEAREST_EVEN)
    coarse = jax.lax.stop_gradient(nearest / _QUANTUM)
    return coarse, x - coarse


def _slabs(x: Array, axis: int, number: int = _GROUP) -> Iterator[list[Array]]:
    """Cuts an array along an axis into equal slabs, and what is left into slices.

    Reductions are written as arithmetic on slabs, which compilers make one loop of; they would
    first write the terms of a plain reduction to memory.
    """
    length, rest = divmod(x.shape[axis], number)
    piece = functools.partial(jax.lax.slice_in_dim, x, axis=axis)
    if length:
        yield [piece(k * length, (k + 1) * length) for k in range(number)]
    if rest:
        yield [piece(k, k + 1) for k in range(number * length, x.shape[axis])]
