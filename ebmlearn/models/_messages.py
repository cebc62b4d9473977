"""
The edge updates of belief propagation, in centred form.

An edge of weight W between the binary units i and j sends to i a message that is one number, a
log-odds. In ±1 form the edge is W/4 · s_i s_j and its remaining W/2 of log-odds belongs to the two
units, so that with w = W/2 and the sender's cavity log-odds t the messages are

    sum-product   log((1 + exp(t + w)) / (exp(t) + exp(w)))      `soft`
    max-product   sign(t w) · min(|t|, |w|)                      `hard`

`soft` is `hard` plus a correction of at most log 2, which is exact for all |W|. Where |W| is
moderate, tanh(message / 2) = tanh(W / 4) · tanh(t / 2) needs no exponential at all: `rational`,
whose log-odds are added as logarithms of products (`log_odds_total`).
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


# Largest |W| / T at which `rational` holds 1e-5 of accuracy in float32: tanh(8 / 4) = 0.964. A
# product of 16 factors is then at least 0.036**16 = 8e-24, far above the smallest float32.
RATIONAL_LIMIT = 8.0
_GROUP = 16
# Sums of log-odds keep multiples of 1/64 apart from the rest: the former add without any rounding,
# so that large messages which cancel leave the small ones exact.
_QUANTUM = 64.0


@jax.custom_jvp
def hard(w: Float[Array, "..."], t: Float[Array, "..."]) -> Float[Array, "..."]:
    """The max-product message."""
    size = jnp.abs(w)
    return jnp.sign(w) * jnp.clip(t, -size, size)


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
    ratio = (1 + jnp.exp(-jnp.abs(t + w))) / (1 + jnp.exp(-jnp.abs(t - w)))
    return hard(w, t) + jnp.log(ratio)


@soft.defjvp
def _(primals, tangents):
    (w, t), (dw, dt) = primals, tangents
    both, one = jax.nn.sigmoid(t + w), jax.nn.sigmoid(t - w)
    return soft(w, t), (both - one) * dt + (both + one - 1) * dw


def rational(
    w: Float[Array, "..."], belief: Float[Array, "..."], x: Float[Array, "..."]
) -> Float[Array, "..."]:
    """
    The sum-product message as tanh(message / 2), from w = tanh(W / 4), tanh(belief / 2) and the
    incoming message x in the same form.
    """
    return w * (belief - x) / (1 - belief * x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def log_odds_total(x: Float[Array, "a b"], axis: int) -> Float[Array, "2 n"]:
    """The sum over `axis` of log((1 + x) / (1 - x)), one logarithm for sixteen entries."""
    length, rest = divmod(x.shape[axis], _GROUP)
    slices = functools.partial(jax.lax.slice_in_dim, x, axis=axis)

    def grouped(parts: list[Array]) -> Array:
        above = functools.reduce(jnp.multiply, [1 + part for part in parts])
        below = functools.reduce(jnp.multiply, [1 - part for part in parts])
        return total(jnp.log(above / below), axis)

    out = jnp.zeros((2, x.shape[1 - axis]), x.dtype)
    if length:
        out = out + grouped([slices(k * length, (k + 1) * length) for k in range(_GROUP)])
    if rest:
        out = out + grouped([slices(k, k + 1) for k in range(_GROUP * length, x.shape[axis])])
    return out


@log_odds_total.defjvp
def _(axis, primals, tangents):
    (x,), (dx,) = primals, tangents
    tangent = (2 / (1 - x * x) * dx).sum(axis)
    return log_odds_total(x, axis), jnp.stack([jnp.zeros_like(tangent), tangent])


def _coarse(x: Array) -> Array:
    nearest = jax.lax.round(x * _QUANTUM, jax.lax.RoundingMethod.TO_NEAREST_EVEN)
    return jax.lax.stop_gradient(nearest / _QUANTUM)


def split(x: Float[Array, "*shape"]) -> Float[Array, "2 *shape"]:
    """Splits numbers into multiples of 1/64 and the rest. The two add up to `x` exactly."""
    coarse = _coarse(x)
    return jnp.stack([coarse, x - coarse])


def total(x: Float[Array, "*shape"], axis: int) -> Float[Array, "2 *rest"]:
    """The sum over `axis`, split as `split` splits single numbers."""
    coarse = _coarse(x)
    return jnp.stack([coarse.sum(axis), (x - coarse).sum(axis)])
