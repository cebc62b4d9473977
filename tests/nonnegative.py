"""Nonnegative Boltzmann machines, and what is true of them by quadrature in float64 NumPy.

Nothing here uses the library beyond its face.
"""

import itertools
from typing import Any

import numpy as np
from scipy import optimize, special


# Couplings and biases of three units: the smaller models are their corners.
CASES = {
    "weak": ([[1.0, 0.1, -0.05], [0.1, 1.3, 0.08], [-0.05, 0.08, 0.8]], [0.3, -0.2, 0.5]),
    "strong": ([[1.0, 0.8, 0.7], [0.8, 1.2, 0.6], [0.7, 0.6, 0.9]], [1.5, 1.0, 2.0]),
    "negative": ([[1.0, -0.4, -0.3], [-0.4, 1.2, -0.2], [-0.3, -0.2, 0.9]], [-0.5, 0.2, -1.0]),
    # Two peaks: only one of the first two units is large.
    "indefinite": ([[1.0, 1.5, 0.2], [1.5, 1.2, -0.6], [0.2, -0.6, 0.9]], [2.5, 2.4, 0.8]),
}


def case(name, n=3):
    couplings, bias = (np.array(x, float) for x in CASES[name])
    return couplings[:n, :n], bias[:n]


def moments(couplings, bias, points=120, reach=14.0):
    """Log Z, E x and E x x', by Gauss-Legendre quadrature on a box."""
    x, w = np.polynomial.legendre.leggauss(points)
    x, w = (x + 1) * reach / 2, w * reach / 2
    n = len(bias)
    nodes = np.stack(np.meshgrid(*[x] * n, indexing="ij"), -1).reshape(-1, n)
    weights = np.prod(np.stack(np.meshgrid(*[w] * n, indexing="ij")), axis=0).reshape(-1)
    p = weights * np.exp(nodes @ bias - np.einsum("si,ij,sj->s", nodes, couplings, nodes) / 2)
    z = p.sum()
    return np.log(z), p @ nodes / z, np.einsum("s,si,sj->ij", p, nodes, nodes) / z


def unit(a):
    """Mean, variance, E y^3 and Var y^2 with y = t - E t of the density exp(a t - t^2 / 2)."""
    peak, width = max(a, 0.0), 1 / max(1.0, -a)
    low, high = max(0.0, peak - 12), peak + min(12, 60 * width)
    x, w = np.polynomial.legendre.leggauss(200)
    t, w = low + (x + 1) * (high - low) / 2, w * (high - low) / 2
    p = w * np.exp((t - peak) * (a - (t + peak) / 2))
    p /= p.sum()
    mean = p @ t
    s, third, fourth = (p @ (t - mean) ** k for k in (2, 3, 4))
    return mean, s, third, fourth - s**2


def log_alone(linear, precision):
    """log of the integral of exp(l x - r x^2 / 2) over x >= 0."""
    z = -linear / np.sqrt(2 * precision)
    return np.log(special.erfcx(z)) + np.log(np.pi / (2 * precision)) / 2


def own_fields(mean, second_moment):
    """l and r of one rectified Gaussian of these moments, eq. (5)."""

    def gap(y):
        linear, precision = y[0], np.exp(y[1])
        z = -linear / np.sqrt(2 * precision)
        m = linear / precision + np.sqrt(2 / (np.pi * precision)) / special.erfcx(z)
        return m - mean, (1 + linear * m) / precision - second_moment

    spread = second_moment - mean**2
    found = optimize.root(gap, [mean / spread, -np.log(spread)], tol=1e-13, method="lm")
    assert np.abs(found.fun).max() < 1e-10
    return found.x[0], np.exp(found.x[1])


def free_energy(couplings, bias, m, v):
    """Eq. (4)."""
    l, r = np.array([own_fields(*x) for x in zip(m, v, strict=True)]).T  # noqa: E741
    out = -bias @ m + np.diagonal(couplings) @ v / 2
    out += (l * m - r * v / 2 - log_alone(l, r)).sum()
    s = v - m**2
    for i, j in itertools.combinations(range(len(m)), 2):
        w = couplings[i, j]
        out += w * m[i] * m[j] - w**2 * s[i] * s[j] / 2
    return out


def tap(couplings, bias, correction: Any = 0.0):
    """m, v, l and r by eqs. (6) to (9), with a correction as (16) and (17) should read."""
    d = np.diagonal(couplings)
    w = couplings - np.diag(d)
    m, v = np.ones_like(bias) / 2, np.ones_like(bias) / 2
    l, r = bias, d  # noqa: E741
    for _ in range(3000):
        reaction = w**2 @ (v - m**2) + correction
        l, r = bias - w @ m - m * reaction, d - reaction  # noqa: E741
        new = l / r + np.sqrt(2 / (np.pi * r)) / special.erfcx(-l / np.sqrt(2 * r))
        m, v = (m + new) / 2, (v + (1 + l * new) / r) / 2
    return m, v, l, r


def susceptibilities(couplings, bias, correction: Any = 0.0):
    """M by eqs. (11) to (14) and (18): one linear system of 2n unknowns for each bias."""
    m, v, l, r = tap(couplings, bias, correction)  # noqa: E741
    n = len(m)
    w = couplings - np.diag(np.diagonal(couplings))
    s = v - m**2
    one = np.eye(n)
    # L = 1 - A M - B V and R = -w^2 V + 2 w^2 m M.
    right = 2 * w**2 * m
    a = w + np.diag(w**2 @ s + correction) - m[:, None] * right
    b = m[:, None] * w**2
    c = ((l * v - m**2 * l + m) / (2 * r))[:, None]
    first = np.hstack([one + s[:, None] * a + c * right, s[:, None] * b - c * w**2])
    # r V = m L + l M - v R
    second = np.hstack(
        [
            m[:, None] * a - np.diag(l) + v[:, None] * right,
            np.diag(r) + m[:, None] * b - v[:, None] * w**2,
        ]
    )
    whole = np.linalg.solve(np.vstack([first, second]), np.vstack([np.diag(s), np.diag(m)]))
    return whole[:n]
