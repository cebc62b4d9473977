"""The response of the means of a TAP fixed point to the biases: by linear solves, or propagated
along the edges.

With $y_i = x_i - m_i$, and all moments those of unit $i$ in its fields, the derivatives of (6) and
(7) are

$dm = s\\,dl' - \\tfrac12 \\kappa\\,dr$ and $ds = \\kappa\\,dl' - \\tfrac12 \\omega\\,dr$, where
$s = E y^2$, $\\kappa = E y^3$, $\\omega = \\mathrm{Var}\\,y^2$ and $dl' = dl - m\\,dr$,

and those of (8) and (9) are $dl' = db - (w + D)\\,dm$ and $dr = -w^2 ds$ with
$D = \\mathrm{diag}(w^2 s + \\Lambda)$. These are eqs. (11) to (14) and (18), $V$ being
$ds + 2 m\\,dm$.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..units import Rectified
from ._base import Limits
from ._nonnegative import damped, Moments, response_change, Responses, Terms


Method = Literal["solve", "propagation"]


def covariances(
    method: Method, terms: Terms, at: Moments, limits: Limits, damping: Float[Array, ""]
) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
    """$dm / db$ at a fixed point, and whether it was found: propagated, until nothing changes by
    more than a part of the variances of the two units, or by linear solves.
    """
    unit, reaction = terms.units(at), terms.reaction(at)
    if method == "solve":
        return response(terms, unit, reaction), jnp.asarray(True)

    def step(old: Responses) -> tuple[Responses, Float[Array, ""]]:
        new = propagated(terms, unit, reaction, old)
        return damped(new, old, damping), response_change(new, old, unit.variance)

    (mean, _), _, residual = limits.iterate(step, alone(unit))
    return mean, residual <= limits.tol


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
    terms: Terms,
    unit: Rectified,
    reaction: Float[Array, " n"],
    old: Responses,
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
