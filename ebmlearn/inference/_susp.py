"""The response of the means of a TAP fixed point to the biases: by linear solves, or propagated
along the edges.

With $y_i = x_i - m_i$, and all moments those of unit $i$ in its fields, the derivatives of (6) and
(7) are

$dm = s\\,dl' - \\tfrac12 \\kappa\\,dr$ and $ds = \\kappa\\,dl' - \\tfrac12 \\omega\\,dr$, where
$s = E y^2$, $\\kappa = E y^3$, $\\omega = \\mathrm{Var}\\,y^2$ and $dl' = dl - m\\,dr$,

and those of (8) and (9) are $dl' = db - (w + D)\\,dm$ and $dr = -w^2 ds$ with
$D = \\mathrm{diag}(w^2 s + \\Lambda)$. These are eqs. (11) to (14) and (18), $V$ being
$ds + 2 m\\,dm$.

From moments to the couplings that have them, the equations are the same with the parameters
unknown. Each unit's own fields are then those of the rectified Gaussian that has its mean and
variance. What is left are the couplings between units, and for I-SusP $\\Lambda$, which have to
give the known covariances; biases and diagonal couplings follow by (16) and (17).
"""

from typing import Any, get_args, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _checks
from ..units import Rectified, rectified
from ._tap import (
    AbstractNonnegativeInference,
    Covariance,
    Inverse,
    Moments,
    response_change,
    Responses,
    State,
    Sweeps,
    Terms,
    Wanted,
)


Method = Literal["solve", "propagation"]
# Beyond, a unit is as good as exponential or as Gaussian.
_LARGEST = 1e4
_BISECTIONS = 64


class SusP(AbstractNonnegativeInference):
    """Susceptibility propagation: means and second moments by [`ebmlearn.TAP`][], covariances by
    the response of the means to the biases (Yasuda 2015, eqs. (10) to (14)).

    Both are approximate, so the diagonal of `covariance` differs from `variance`.
    [`ebmlearn.ISusP`][] makes them equal.

    !!! example

        ```python
        nnbm = ebmlearn.NNBM(couplings=jnp.eye(3) + 0.5, bias=jnp.ones(3))
        ebmlearn.SusP()(nnbm).covariance
        ```

    **Arguments:**

    - `iterations`: the largest number of sweeps, and of propagation steps. A new number needs no
      compilation.
    - `damping`: the share of their old values that means and variances keep in a sweep.
    - `tol`: stop when no mean or variance changes by a larger relative amount in a sweep; `"auto"`
      is 2e-5 in float32 and 1e-9 in float64. None makes all sweeps.
    - `method`: `"solve"` solves linear equations in $O(n^3)$ and always converges; `"propagation"`
      sums over edges in $O(n |E|)$ per step. Gradients need `"solve"`.
    """

    method: Method = eqx.field(static=True, default="solve")

    def __check_init__(self):
        _checks.choice("method", self.method, get_args(Method))

    def _covariance(self, terms: Terms, at: Moments, sweeps: Sweeps) -> Covariance:
        return _responses(self.method, terms, at, sweeps)

    def _inverse(self, wanted: Wanted) -> Inverse:
        return _with_covariance(wanted, consistent=False)


class ISusP(AbstractNonnegativeInference):
    """Improved susceptibility propagation: TAP with means and responses made consistent (Yasuda
    2015, eqs. (15) to (20)).

    An additional parameter $\\Lambda_i$ of each unit makes its variance equal to the response of
    its mean to its own bias: $M_{ii} = v_i - m_i^2$.

    !!! example

        ```python
        nnbm = ebmlearn.NNBM(couplings=jnp.eye(3) + 0.5, bias=jnp.ones(3))
        beliefs = ebmlearn.ISusP()(nnbm)
        beliefs.mean, beliefs.second_moment, beliefs.covariance
        ```

    **Arguments:**

    - `iterations`: the largest number of sweeps, and of propagation steps. A new number needs no
      compilation.
    - `damping`: the share of their old values that means and variances keep in a sweep.
    - `tol`: stop when no mean or variance changes by a larger relative amount in a sweep; `"auto"`
      is 2e-5 in float32 and 1e-9 in float64. None makes all sweeps.
    - `method`: `"solve"` solves linear equations in $O(n^3)$ and always converges; `"propagation"`
      sums over edges in $O(n |E|)$ per step. Gradients need `"solve"`.
    """

    method: Method = eqx.field(static=True, default="solve")

    def __check_init__(self):
        _checks.choice("method", self.method, get_args(Method))

    def _told(self, terms: Terms, start: Moments) -> Responses | None:
        return None if self.method == "solve" else alone(terms.units(start))

    def _sweep(self, terms: Terms, at: Moments, told: Responses | None = None) -> State:
        unit, reaction = terms.units(at), terms.reaction(at)
        if told is None:
            covariance = response(terms, unit, reaction)
        else:
            covariance, _ = told = propagated(terms, unit, reaction, told)
        # All else held, 1 / M_ii grows as Lambda_i does.
        step = 1 / unit.variance - 1 / jnp.diagonal(covariance)
        return Moments(unit.mean, unit.variance, at.correction + step), told

    def _covariance(self, terms: Terms, at: Moments, sweeps: Sweeps) -> Covariance:
        return _responses(self.method, terms, at, sweeps)

    def _inverse(self, wanted: Wanted) -> Inverse:
        return _with_covariance(wanted, consistent=True)


def _responses(method: Method, terms: Terms, at: Moments, sweeps: Sweeps) -> Covariance:
    """$dm / db$ at the fixed point, by linear solves or propagated until nothing changes by more
    than a part of the variances of the two units.
    """
    unit, reaction = terms.units(at), terms.reaction(at)
    if method == "solve":
        return response(terms, unit, reaction), jnp.asarray(True)
    (mean, _), _, residual = sweeps.repeated(
        lambda old: propagated(terms, unit, reaction, old),
        lambda new, old: response_change(new, old, unit.variance),
        alone(unit),
    )
    return mean, residual <= sweeps.limits.tol


def alone(unit: Rectified) -> Responses:
    """The responses of units that are joined to nobody."""
    return jnp.diag(unit.variance), jnp.diag(unit.third)


def response(terms: Terms, unit: Rectified, reaction: Float[Array, " n"]) -> Float[Array, "n n"]:
    """$M = dm / db$ by linear solves. The equations are linear in $(M, V)$, $2n$ unknowns for each
    bias; eliminating $ds = (1 - \\tfrac12 \\omega w^2)^{-1} \\kappa\\,dl'$ leaves

    $M = (1 + S (w + D))^{-1} S$ with
    $S = s + \\tfrac12 \\kappa w^2 (1 - \\tfrac12 \\omega w^2)^{-1} \\kappa$.
    """
    one = jnp.eye(unit.mean.shape[0], dtype=unit.mean.dtype)
    inner = one - terms.squares * unit.spread[:, None] / 2
    moved = jnp.linalg.solve(inner, jnp.diag(unit.third))
    own = jnp.diag(unit.variance) + unit.third[:, None] * (terms.squares @ moved) / 2
    return jnp.linalg.solve(one + own @ (terms.weights + jnp.diag(reaction)), own)


def propagated(
    terms: Terms, unit: Rectified, reaction: Float[Array, " n"], old: Responses
) -> Responses:
    """One step of propagation from $dm / db$ and $ds / db$ to new ones: a sum over the neighbours
    of each unit, in time $O(n |E|)$. What a unit says of itself is solved for at once.
    """
    mean, variance = old
    one = jnp.eye(mean.shape[0], dtype=mean.dtype)
    sent, spread = along_edges(terms, mean, variance)
    outer = unit.variance[:, None] * (one - sent) + unit.third[:, None] * spread / 2
    mean = outer / (1 + unit.variance * reaction)[:, None]
    linear = one - sent - reaction[:, None] * mean
    return mean, unit.third[:, None] * linear + unit.spread[:, None] * spread / 2


def along_edges(
    terms: Terms, mean: Float[Array, "n n"], variance: Float[Array, "n n"]
) -> tuple[Float[Array, "n n"], Float[Array, "n n"]]:
    """$w\\,dm$ and $w^2 ds$."""
    if terms.edges is None:
        return terms.weights @ mean, terms.squares @ variance
    first, second = np.array(terms.edges, np.int32).reshape(-1, 2).T
    rows, columns = np.concatenate([first, second]), np.concatenate([second, first])
    order = np.argsort(rows, kind="stable")
    rows, columns = rows[order], columns[order]
    weights = terms.weights[rows, columns][:, None]

    def summed(x: Float[Array, "edges n"]) -> Float[Array, "n n"]:
        return jax.ops.segment_sum(x, rows, terms.bias.shape[0], indices_are_sorted=True)

    return summed(weights * mean[columns]), summed(weights**2 * variance[columns])


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


def _with_covariance(wanted: Wanted, consistent: bool) -> Inverse:
    """Couplings by Newton's method on the covariances of joined units and, if `consistent`, on
    the responses of units to their own biases.
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
    import optimistix as optx  # here, since it takes long to import

    found = optx.root_find(
        gap, optx.Newton(rtol=tol, atol=tol), start, max_steps=max_steps, throw=False
    )
    weights, correction = unpack(found.value)
    left = jnp.concatenate([jnp.abs(x) for x in gap(found.value, None)]).max(initial=0)
    return Inverse(weights, correction, left, jnp.asarray(found.stats["num_steps"], jnp.int32))
