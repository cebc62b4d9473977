"""Ratios of normalisers from draws of two models, or of many."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


_ROUNDS = 100
# A step of Newton's method changes no logarithm by more than this.
_STEP = 4.0

Work = Float[Array, "records pairs chains"]
Works = Sequence[tuple[Work, Work]]
Ratios = Float[np.ndarray, " pairs"]
Moves = Float[np.ndarray, "pairs chains"]
Energies = Float[np.ndarray, "models draws places chains"]
Logs = Float[np.ndarray, " models"]


def bennett(works: Works, start: Ratios | None = None) -> tuple[Ratios, Moves]:
    """The logarithms of the ratios of the normalisers of neighbours by Bennett's acceptance ratio
    (1976), the best estimate from as many draws of both: the $r$ at which
    $\\sum_x \\sigma(-a(x) - r)$ over draws of the first is
    $\\sum_x \\sigma(a(x) + r)$ over draws of the second.

    **Arguments:**

    - `works`: for each pair $a(x)$, the energy of the second model minus that of the first, for
      draws of the first and for draws of the second; any number of arrays of one shape.
    - `start`: log-ratios to start from.

    **Returns:**

    The log-ratios, and how much each chain moves them, to first order: see `standard_error`.
    """
    if start is None:
        means = jax.device_get([[x.mean((0, 2)) for x in both] for both in works])
        start = -np.asarray(means, np.float64).mean((0, 1))
    ratios = np.asarray(start)
    low, high = np.full_like(ratios, -np.inf), np.full_like(ratios, np.inf)
    for _ in range(_ROUNDS):
        gap, slope = _added(works, ratios)
        total = gap.sum(1)
        low, high = np.where(total > 0, ratios, low), np.where(total < 0, ratios, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = np.clip(total / slope.sum(1), -_STEP, _STEP)
        # If two models share no draws, their ratio stays where it is.
        step = np.where(total == 0, 0, step)
        new = ratios + step
        with np.errstate(invalid="ignore"):
            middle = (low + high) / 2
        new = np.where((new < low) | (new > high), middle, new)
        done = np.abs(new - ratios).max() < 1e-5
        ratios = new
        if done:
            break
    gap, slope = _added(works, ratios)
    return ratios, gap.shape[1] * gap / np.maximum(slope.sum(1), 1e-30)[:, None]


def _added(works: Works, ratios: Ratios) -> tuple[Moves, Moves]:
    # Fetched together, so that a device does not wait for the host between two of them.
    parts = np.asarray(jax.device_get([_sums(*both, ratios) for both in works]), np.float64)
    return parts[:, 0].sum(0), parts[:, 1].sum(0)


@jax.jit
def _sums(first: Work, second: Work, ratios: Array) -> Float[Array, "2 pairs chains"]:
    """What both sides of the equation differ by for each chain, and minus its derivative."""
    r = jnp.asarray(ratios, first.dtype)[None, :, None]
    one, other = jax.nn.sigmoid(-first - r), jax.nn.sigmoid(second + r)
    slope = one * (1 - one) + other * (1 - other)
    return jnp.stack([(one - other).sum(0), slope.sum(0)])


def mbar(energies: Energies, start: Logs) -> tuple[Logs, Float[np.ndarray, "models chains"]]:
    """The log-normalisers of many models from draws of all of them, that of the first being 0: the
    multistate Bennett acceptance ratio (Shirts & Chodera 2008). It uses the energies of each draw
    under all models, and is the maximum of a concave function, found by Newton's method.

    **Arguments:**

    - `energies`: of each draw under each model; as many draws of each model.
    - `start`: log-normalisers to start from.

    **Returns:**

    The log-normalisers, and how much each chain moves them, to first order.
    """
    number, draws, _, chains = energies.shape
    u = energies.astype(np.float64)
    f = start - start[0]
    value, shares = _shares(u, f)
    inverse = np.zeros((number, number))
    for _ in range(_ROUNDS):
        flat = shares.reshape(number, -1)
        # A thousandth of a draw keeps the matrix regular where models share no draws.
        hessian = np.diag(flat.sum(1) + 1e-3) - flat @ flat.T
        inverse[1:, 1:] = np.linalg.inv(hessian[1:, 1:])
        step = inverse @ (flat.sum(1) - draws * chains)
        new, found = _shares(u, f + step)
        while new < value - 1e-9 * abs(value):
            step = step / 2
            new, found = _shares(u, f + step)
        f, value, shares = f + step, new, found
        if np.abs(step).max() < 1e-6:
            break
    return f, chains * inverse @ (shares.sum((1, 2)) - draws)


def _shares(u: Energies, f: Logs) -> tuple[float, Energies]:
    """The function to maximise, and the probability that a draw is one of each model."""
    score = -u - f[:, None, None, None]
    top = score.max(0)
    weight = np.exp(score - top)
    total = weight.sum(0)
    value = -(np.log(total) + top).sum() - u.shape[1] * u.shape[3] * f.sum()
    return float(value), weight / total


def standard_error(influences: Float[np.ndarray, " chains"]) -> float:
    """That of an estimate, from how much each of some independent chains moves it."""
    number = len(influences)
    return float(np.sqrt((influences**2).sum() / (number * (number - 1))))
