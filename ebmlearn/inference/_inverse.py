"""From moments to the couplings that have them: what the equations of TAP and its relatives are
when means, variances and covariances are known and the parameters are not.

With the moments known, each unit's own fields are known: those of the rectified Gaussian that has
its mean and variance. What is left are the couplings between units, and for I-SusP $\\Lambda$,
which have to give the known covariances; biases and diagonal couplings follow by (16) and (17).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array, Float

from ..units import rectified
from ._nonnegative import Inverse, Terms, Wanted
from ._susceptibility import response


# Beyond, a unit is as good as exponential or as Gaussian.
_LARGEST = 1e4
_BISECTIONS = 64


def own_fields(
    mean: Float[Array, " n"], variance: Float[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """$l$ and $r$ of the rectified Gaussians of these moments. There is one only where the variance
    is below the square of the mean; else what comes back is as close as it gets.
    """
    target = variance / mean**2
    one = jnp.ones_like(mean)

    def middle(low: Array, high: Array) -> tuple[Array, Array]:
        guess = (low + high) / 2
        return guess, jnp.sinh(guess)

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        guess, a = middle(low, high)
        unit = rectified(a, one)
        # The ratio falls from 1, of an exponential unit, to 0.
        above = unit.variance / unit.mean**2 > target
        return jnp.where(above, guess, low), jnp.where(above, high, guess)

    end = jnp.full_like(mean, np.arcsinh(_LARGEST))
    _, a = middle(*jax.lax.fori_loop(0, _BISECTIONS, halve, (-end, end)))
    root = rectified(a, one).mean / mean
    return a * root, root**2


def match_covariance(wanted: Wanted, consistent: bool) -> Inverse:
    """Newton's method on the covariances of joined units and, if `consistent`, on the responses of
    units to their own biases.
    """
    at, covariance, (first, second), tol, max_steps = wanted
    n, dtype = at.mean.shape[0], at.mean.dtype
    unit = rectified(*own_fields(at.mean, at.variance))
    scale = jnp.sqrt(at.variance)
    scales = scale[:, None] * scale[None, :]
    correlation = covariance / scales

    def matrix(edges: Float[Array, " edges"]) -> Float[Array, "n n"]:
        out = jnp.zeros((n, n), dtype).at[first, second].set(edges)
        return out + out.T

    def unpack(y: Any) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
        edges, own = y
        # In units of the standard deviations, whatever the scale of the data.
        weights = matrix(edges) / scales
        return weights, own / at.variance if consistent else jnp.zeros_like(at.mean)

    def gap(y: Any, _: None) -> Any:
        weights, correction = unpack(y)
        zero = jnp.zeros_like(at.mean)
        terms = Terms(zero, zero, weights, weights**2, None)
        reaction = terms.reaction(at._replace(correction=correction))
        got = response(terms, unit, reaction) / scales
        own = jnp.diagonal(got) - 1 if consistent else y[1]
        return got[first, second] - correlation[first, second], own

    # Gaussian units, of which the couplings are the inverse of the covariances, and what is left of
    # its diagonal belongs to Lambda.
    precision = jnp.linalg.inv(correlation)
    edges = precision[first, second]
    own = jnp.diagonal(precision) - 1 - (matrix(edges) ** 2).sum(1)
    start = edges, own if consistent else jnp.zeros_like(own)
    found = optx.root_find(
        gap, optx.Newton(rtol=tol, atol=tol), start, max_steps=max_steps, throw=False
    )
    weights, correction = unpack(found.value)
    left = jnp.concatenate([jnp.abs(x) for x in gap(found.value, None)]).max(initial=0)
    return Inverse(weights, correction, left, jnp.asarray(found.stats["num_steps"], jnp.int32))
