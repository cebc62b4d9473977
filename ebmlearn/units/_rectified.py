"""One rectified Gaussian unit, of density $e^{l x - r x^2 / 2}$ on $x \\ge 0$, and the special
functions that it needs, without loss of digits in either tail.

With $t = \\sqrt r x$ and $a = l / \\sqrt r$ the density is $e^{a t - t^2 / 2}$. Two forms:

- $a$ above some -1: with $\\delta = \\varphi(a) / \\Phi(a)$ each cumulant follows from the last
  one by differentiating, as $\\delta' = -\\delta \\mu$ and $\\mu = a + \\delta$.
- below: ratios of moments $c_k = E t^k / E t^{k-1}$ satisfy $c_k = k / (c_{k+1} - a)$, a continued
  fraction of positive terms.

Each cumulant being the derivative of the one before, derivatives cost nothing.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import erfc, ndtr, ndtri
from jaxtyping import Array, Float


# Where the continued fraction takes over, and how many terms it needs there.
_TAIL = {"float32": (-1.5, 22), "float64": (-4.0, 24)}
# The same for quantiles, where it need not begin so early.
_QUANTILE_TAIL, _QUANTILE_TERMS = -5.0, 14


class Rectified(NamedTuple):
    """Of a rectified Gaussian variable: the logarithm of the integral of its density, its mean, and
    its second moments about zero and about the mean; of $y = x - m$, $E y^3$ and the variance of
    $y^2$.
    """

    log_partition: Float[Array, "..."]
    mean: Float[Array, "..."]
    second_moment: Float[Array, "..."]
    variance: Float[Array, "..."]
    third: Float[Array, "..."]
    spread: Float[Array, "..."]


@jax.jit
def rectified(l: Float[Array, "..."], r: Float[Array, "..."]) -> Rectified:  # noqa: E741
    """A unit of density $e^{l x - r x^2 / 2}$, eqs. (6) and (7) of Yasuda 2015.

    **Arguments:**

    - `l`: any numbers.
    - `r`: positive ones.
    """
    root = jnp.sqrt(r)
    a = l / root
    log_g, mean, second, variance, third, spread = _moments(a)
    return Rectified(
        log_g - jnp.log(root),
        mean / root,
        second / r,
        variance / r,
        third / (r * root),
        spread / r**2,
    )


def raw_moments(a: Float[Array, "..."], number: int) -> list[Float[Array, "..."]]:
    """The logarithms of $\\int_0^\\infty t^k e^{a t - t^2 / 2} dt$ for $k$ from 0 to `number`."""
    tail = a < _TAIL[a.dtype.name][0]
    near, far = _above(a), _ratios(_below(a), number + 1)
    delta = _delta(near)
    mean = near + delta
    # Upwards: E t^(k+1) = a E t^k + k E t^(k-1).
    moments = [jnp.ones_like(mean), mean]
    for k in range(1, number):
        moments.append(near * moments[k] + k * moments[k - 1])
    out = [jnp.where(tail, _log_g_far(_below(a), far[1]), _log_g_near(near))]
    for k in range(1, number + 1):
        step = jnp.where(tail, far[k], moments[k] / moments[k - 1])
        out.append(out[-1] + jnp.log(step))
    return out


@jax.jit
def erfcx(z: Float[Array, "..."]) -> Float[Array, "..."]:
    """$e^{z^2} \\mathrm{erfc}(z)$, with all digits in both tails, also of its derivative. Infinite
    where it is beyond the largest number.

    !!! example

        ```python
        ebmlearn.units.erfcx(jnp.array([0.0, 100.0]))  # 1.0, 0.0056
        ```

    **Arguments:**

    - `z`: any numbers.
    """
    return math.sqrt(2 / math.pi) * jnp.exp(_log_g(-math.sqrt(2) * z))


@jax.jit
def log_ndtr(a: Float[Array, "..."]) -> Float[Array, "..."]:
    """The logarithm of the normal distribution function, with all digits in both tails, also of
    its derivative.

    !!! example

        ```python
        ebmlearn.units.log_ndtr(jnp.array([0.0, -100.0]))  # -0.69, -5005.5
        ```

    **Arguments:**

    - `a`: any numbers.
    """
    near, far = _above(a), _below(a)
    half = math.log(2 * math.pi) / 2
    zero = jnp.zeros_like(a)
    upper, lower = jnp.where(near > 0, near, zero), jnp.where(near > 0, zero, near)
    return jnp.where(
        a < _TAIL[a.dtype.name][0],
        _log_g_far(far, _ratios(far, 1)[1]) - far**2 / 2 - half,
        # Of a probability near 1 what is missing counts.
        jnp.where(
            near > 0,
            jnp.log1p(-erfc(upper / math.sqrt(2)) / 2),
            jnp.log(erfc(-lower / math.sqrt(2)) / 2),
        ),
    )


@jax.jit
def rectified_quantile(
    a: Float[Array, "..."], survival: Float[Array, "..."]
) -> Float[Array, "..."]:
    """The $t$ with $P(T > t)$ equal to `survival`, in (0, 1), where $T$ has the density
    $e^{a t - t^2 / 2}$ on $t \\ge 0$.
    """
    tail = a < _QUANTILE_TAIL
    near = jnp.maximum(a, _QUANTILE_TAIL)
    x = -jnp.minimum(a, _QUANTILE_TAIL)
    middle = near - ndtri(survival * ndtr(near))
    # Far out, P(T > t) = R(x + t) / R(x) exp(-x t - t^2 / 2), R = 1 / (x + c_1) being the ratio of
    # Mills. Without R it is a quadratic equation for t; then Newton's steps on the logarithm.
    start = x + _few_terms(x)
    log_survival = jnp.log(survival)
    t = -2 * log_survival / (x + jnp.sqrt(x**2 - 2 * log_survival))
    for _ in range(2 if a.dtype == jnp.float32 else 3):
        slope = x + t + _few_terms(x + t)
        t = t - (x * t + t**2 / 2 + jnp.log(slope / start) + log_survival) / slope
    return jnp.maximum(jnp.where(tail, t, middle), 0)


def _few_terms(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """$c_1$ for $x = -a$ that is not small."""
    out = (jnp.sqrt(x**2 + 4 * _QUANTILE_TERMS) - x) / 2
    for k in range(_QUANTILE_TERMS - 1, 0, -1):
        out = k / (x + out)
    return out


def _above(a: Float[Array, "..."]) -> Float[Array, "..."]:
    # Not by a maximum, whose derivative at the edge is a half.
    edge = jnp.full_like(a, _TAIL[a.dtype.name][0])
    return jnp.where(a < edge, edge, a)


def _below(a: Float[Array, "..."]) -> Float[Array, "..."]:
    edge = jnp.full_like(a, _TAIL[a.dtype.name][0])
    return jnp.where(a < edge, a, edge)


def _delta(a: Float[Array, "..."]) -> Float[Array, "..."]:
    return math.sqrt(2 / math.pi) * jnp.exp(-(a**2) / 2) / erfc(-a / math.sqrt(2))


def _log_g_near(a: Float[Array, "..."]) -> Float[Array, "..."]:
    return a**2 / 2 + jnp.log(erfc(-a / math.sqrt(2))) + math.log(math.pi / 2) / 2


def _log_g_far(a: Float[Array, "..."], mean: Float[Array, "..."]) -> Float[Array, "..."]:
    return -jnp.log(mean - a)


def _log_g(a: Float[Array, "..."]) -> Float[Array, "..."]:
    far = _below(a)
    tail = a < _TAIL[a.dtype.name][0]
    return jnp.where(tail, _log_g_far(far, _ratios(far, 1)[1]), _log_g_near(_above(a)))


@jax.custom_jvp
def _moments(a: Float[Array, "..."]) -> tuple[Float[Array, "..."], ...]:
    """Those of `Rectified` for $r = 1$."""
    tail = a < _TAIL[a.dtype.name][0]
    near, far = _near(_above(a)), _far(_below(a))
    return tuple(jnp.where(tail, y, x) for x, y in zip(near, far, strict=True))


@_moments.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (a,), (da,) = primals, tangents
    out = _moments(a)
    _, mean, _, variance, third, spread = out
    derivatives = (
        mean,
        variance,
        third + 2 * mean * variance,
        third,
        spread - 2 * variance**2,
        _fifth(a) + 4 * variance * third,
    )
    return out, tuple(x * da for x in derivatives)


def _near(a: Float[Array, "..."]) -> tuple[Float[Array, "..."], ...]:
    delta = _delta(a)
    mean = a + delta
    variance = 1 - delta * mean
    third = delta * (mean**2 - variance)
    fourth = delta * (2 * mean * variance - third - mean * (mean**2 - variance))
    return _log_g_near(a), mean, 1 + a * mean, variance, third, fourth + 2 * variance**2


def _far(a: Float[Array, "..."]) -> tuple[Float[Array, "..."], ...]:
    _, one, two, three, four = _ratios(a, 4)
    third = one * (two * (three - 3 * one) + 2 * one**2)
    spread = one * (two * (three * four - 4 * one * three + 6 * one**2) - 3 * one**3)
    variance = one * (two - one)
    return _log_g_far(a, one), one, one * two, variance, third, spread - variance**2


def _fifth(a: Float[Array, "..."]) -> Float[Array, "..."]:
    """The fifth cumulant for $r = 1$."""
    near, far = _above(a), _below(a)
    delta = _delta(near)
    _, mean, _, variance, third, spread = _near(near)
    p, q = mean**2 - variance, 2 * mean * variance - third
    above = delta * (4 * variance**2 + 2 * mean * third - spread - 2 * mean * q + p**2)
    _, one, two, three, four, five = _ratios(far, 5)
    moment = two * (three * (four * (five - 5 * one) + 10 * one**2) - 10 * one**3) + 4 * one**4
    third = one * (two * (three - 3 * one) + 2 * one**2)
    below = one * moment - 10 * third * one * (two - one)
    return jnp.where(a < _TAIL[a.dtype.name][0], below, above)


def _ratios(a: Float[Array, "..."], number: int) -> list[Float[Array, "..."]]:
    """$c_0$, which is not defined, to $c_\\text{number}$."""
    terms = _TAIL[a.dtype.name][1] + number
    # It begins where the terms would stay the same.
    out = [(a + jnp.sqrt(a**2 + 4 * terms)) / 2]
    for k in range(terms, 0, -1):
        out.append(k / (out[-1] - a))
    return [a, *out[: -number - 1 : -1]]
