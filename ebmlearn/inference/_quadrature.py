"""Exact moments of a few nonnegative units.

A configuration is $x = \\rho u$ with $u$ on the simplex. Along each $u$ the energy is quadratic in
$\\rho$, whose integral is closed; what is left is an integral over the simplex, whose domain needs
no choice and on which the integrand is smooth where the couplings are copositive.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _checks
from ..units import raw_moments, rectified
from ._base import Problem
from ._beliefs import Beliefs, Normal, Went, without_sweeps
from ._tap import real_beliefs, Terms


# Points of the Gauss-Legendre rules along each side of the simplex, by the number of units, and
# those of a smaller rule that says how far to trust them.
_POINTS = {1: (1, 1), 2: (512, 384), 3: (128, 96), 4: (48, 36)}
_TOL = {"float32": 1e-4, "float64": 1e-8}
# How much of a variance may be lost to rounding.
_LOST = {"float32": 1e-2, "float64": 1e-5}


def exact_moments(problem: Problem) -> Beliefs:
    """Moments and log Z of nonnegative units by quadrature, or by formula where no two units are
    joined.
    """
    terms = Terms.of(problem.model)
    n = terms.bias.shape[0]
    apart = terms.edges == ()
    if terms.edges is None and _checks.is_concrete(terms.weights):
        apart = not np.asarray(terms.weights).any()
    if not apart and n > max(_POINTS):
        raise ValueError(
            f"`model` must have at most {max(_POINTS)} units for quadrature, or none that are"
            f" joined, got {_checks.article(type(problem.model).__name__)} with {n}."
        )
    return _found(problem, apart)


@eqx.filter_jit
def _found(problem: Problem, apart: bool) -> Beliefs:
    terms = Terms.of(problem.model)
    if apart:
        unit = rectified(terms.bias, terms.diagonal)
        normal, value = Normal(unit.mean, unit.variance), unit.log_partition.sum()
        covariance, dtype = jnp.diag(unit.variance), terms.bias.dtype
        went = without_sweeps(jnp.isfinite(unit.variance).all(), dtype)
    else:
        normal, covariance, value, went = _integrated(terms)
    return real_beliefs(problem, normal, covariance, value, went, "Exact")


def _integrated(terms: Terms) -> tuple[Normal, Float[Array, "n n"], Float[Array, ""], Went]:
    n, dtype = terms.bias.shape[0], terms.bias.dtype
    root = jnp.sqrt(terms.diagonal)
    roots = root[:, None] * root[None, :]
    couplings = jnp.eye(n, dtype=dtype) + terms.weights / roots
    bias = terms.bias / root
    log_z, mean, products = _moments(couplings, bias, _POINTS[n][0])
    smaller, *_ = _moments(couplings, bias, _POINTS[n][1])
    residual = jnp.abs(log_z - smaller)
    covariance = products - mean[:, None] * mean[None, :]
    variance = jnp.diagonal(covariance)
    # Weights are as exact as log Z is, and variances are differences of squares.
    rounding = jnp.finfo(dtype).eps * jnp.maximum(jnp.abs(log_z), 1)
    sure = (rounding * mean**2 <= _LOST[dtype.name] * variance).all()
    normal = Normal(mean / root, variance / root**2)
    went = without_sweeps((residual <= _TOL[dtype.name]) & sure, dtype)
    went = went._replace(residual=jax.lax.stop_gradient(residual))
    return normal, covariance / roots, log_z - jnp.log(root).sum(), went


def _moments(
    couplings: Float[Array, "n n"], bias: Float[Array, " n"], points: int
) -> tuple[Float[Array, ""], Float[Array, " n"], Float[Array, "n n"]]:
    """Log Z, $E x$ and $E x x^\\top$."""
    n, dtype = bias.shape[0], bias.dtype
    nodes, log_weights = _simplex(n, points)
    u = jnp.asarray(nodes, dtype)
    q = ((u @ couplings) * u).sum(-1)
    radial = raw_moments(u @ bias / jnp.sqrt(q), n + 1)
    log_q = jnp.log(q) / 2
    base = jnp.asarray(log_weights, dtype)
    parts = [base + radial[n - 1 + k] - (n + k) * log_q for k in range(3)]
    log_z = jax.nn.logsumexp(parts[0])
    # Relative to what the weights add up to, which is 1 but for the rounding of log Z.
    mass, first, second = (jnp.exp(part - log_z) for part in parts)
    total = mass.sum()
    return log_z, first @ u / total, (u * second[:, None]).T @ u / total


def _simplex(n: int, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes on the simplex and the logarithms of their weights: a cube folded up."""
    if n == 1:
        return np.ones((1, 1)), np.zeros(1)
    x, w = np.polynomial.legendre.leggauss(points)
    x, w = (x + 1) / 2, np.log(w / 2)
    sides = np.stack(np.meshgrid(*[x] * (n - 1), indexing="ij"), -1).reshape(-1, n - 1)
    log_weights = np.sum(np.meshgrid(*[w] * (n - 1), indexing="ij"), axis=0).reshape(-1)
    left = np.ones(len(sides))
    nodes = []
    for k in range(n - 1):
        nodes.append(left * sides[:, k])
        log_weights = log_weights + np.log(left)
        left = left * (1 - sides[:, k])
    return np.stack([*nodes, left], -1), log_weights
