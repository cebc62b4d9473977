from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.special
from jaxtyping import Array, Float, Float64
from numpy.typing import ArrayLike

from .. import _checks
from ..factors import inner
from ..models import AbstractPlainModel, is_nonnegative, refuse, require_model, require_single


# Of each unit, a part of at most exp(-12.5), that is 4e-6, may lie beyond the end of its grid.
_EXPONENT = 12.5
# Weights of Gauss-Laguerre rules of more points are not numbers in float64.
_LAGUERRE_POINTS = 180


class Grid(eqx.Module):
    """The values that quantised nonnegative units take, and how much of $[0, \\infty)$ each stands
    for: $\\int_0^\\infty f(x)\\,dx \\approx \\sum_k e^{\\ell_k} f(x_k)$.

    !!! example

        ```python
        from ebmlearn.pgmax import uniform_grid

        grid = uniform_grid(11, upper=5.0)
        grid.nodes, jnp.exp(grid.log_weights).sum()  # 0 to 5, and 5.0
        ```
    """

    nodes: Float64[np.ndarray, " K"]
    log_weights: Float64[np.ndarray, " K"]

    def __init__(self, nodes: ArrayLike, log_weights: ArrayLike):
        """**Arguments:**

        - `nodes`: $x_k$, at least two, nonnegative and increasing.
        - `log_weights`: $\\ell_k$, the logarithms of the weights of a quadrature.
        """
        self.nodes = np.array(nodes, np.float64)
        self.log_weights = np.array(log_weights, np.float64)

    def __check_init__(self):
        nodes = self.nodes
        if nodes.ndim != 1 or nodes.size < 2:
            raise ValueError(
                f"`nodes` must hold at least two numbers, got {_checks.describe(nodes)}."
            )
        _checks.exact_shape("log_weights", self.log_weights, nodes.shape, "as there are nodes")
        for name, x in vars(self).items():
            if not np.isfinite(x).all():
                raise ValueError(f"`{name}` must be finite, got {x[~np.isfinite(x)][0]}.")
        if nodes[0] < 0:
            raise ValueError(f"`nodes` must not be negative, got {nodes[0]:.6g}.")
        falls = np.flatnonzero(np.diff(nodes) <= 0)
        if falls.size:
            pair = nodes[falls[0] : falls[0] + 2]
            raise ValueError(f"`nodes` must increase, got {pair[1]:.6g} after {pair[0]:.6g}.")


def uniform_grid(points: int, upper: float) -> Grid:
    """Equal steps from 0 to `upper`, with the weights of the trapezoidal rule.

    !!! example

        ```python
        from ebmlearn.pgmax import uniform_grid

        uniform_grid(11, upper=5.0).nodes  # 0.0, 0.5, ..., 5.0
        ```

    **Arguments:**

    - `points`: the number of nodes, 2 or more.
    - `upper`: the last node.
    """
    _checks.count("points", points, 2)
    _checks.number("upper", upper, 0, float("inf"), "(0, inf)")
    return _trapezoidal(np.linspace(0, float(upper), points))


def geometric_grid(points: int, upper: float, lower: float) -> Grid:
    """Zero, then equal ratios from `lower` to `upper`, with the weights of the trapezoidal rule:
    for units of different scales.

    !!! example

        ```python
        from ebmlearn.pgmax import geometric_grid

        geometric_grid(5, upper=8.0, lower=1.0).nodes  # 0, 1, 2, 4, 8
        ```

    **Arguments:**

    - `points`: the number of nodes, 3 or more.
    - `upper`: the last node.
    - `lower`: the first node after 0.
    """
    _checks.count("points", points, 3)
    _checks.number("upper", upper, 0, float("inf"), "(0, inf)")
    _checks.number("lower", lower, 0, float(upper), "(0, `upper`)")
    return _trapezoidal(np.append(0, np.geomspace(float(lower), float(upper), points - 1)))


def laguerre_grid(points: int, scale: float) -> Grid:
    """The nodes of Gauss-Laguerre quadrature times `scale`: exact for polynomials of a degree below
    twice `points`, times $e^{-x / \\text{scale}}$.

    !!! example

        ```python
        from ebmlearn.pgmax import laguerre_grid

        laguerre_grid(16, scale=0.5).nodes
        ```

    **Arguments:**

    - `points`: the number of nodes, 2 or more.
    - `scale`: the length over which the densities fall by about $e$.
    """
    _checks.count("points", points, 2)
    if points > _LAGUERRE_POINTS:
        raise ValueError(f"`points` must be at most {_LAGUERRE_POINTS}, got {points}.")
    _checks.number("scale", scale, 0, float("inf"), "(0, inf)")
    x, weights = np.polynomial.laguerre.laggauss(points)
    return Grid(x * float(scale), np.log(weights) + x + np.log(float(scale)))


def grid_for(
    model: AbstractPlainModel,
    points: int = 32,
    kind: Literal["uniform", "geometric", "laguerre"] = "laguerre",
) -> Grid:
    """A grid that covers the mass of every unit of a model up to 4e-6.

    !!! example

        ```python
        from ebmlearn.pgmax import grid_for

        nnbm = ebmlearn.NNBM(couplings=jnp.eye(3) + 0.5, bias=jnp.ones(3))
        grid_for(nnbm, points=16).nodes
        ```

    **Arguments:**

    - `model`: a model of nonnegative units, whose couplings must be positive definite, or become so
      when positive ones off the diagonal are set to zero.
    - `points`: the number of nodes.
    - `kind`: `"uniform"`, `"geometric"` or `"laguerre"`, which needs the fewest points where units
      are of similar scales.
    """
    _checks.choice("kind", kind, ("uniform", "geometric", "laguerre"))
    require_model(model)
    if not is_nonnegative(model):
        refuse(model, "be of a kind that grid_for takes, nonnegative units")
    reach = _reach(*(np.asarray(x, float) for x in quadratic(model)))
    upper = float(reach.max())
    if kind == "uniform":
        return uniform_grid(points, upper)
    if kind == "geometric":
        # About the first step that a uniform grid for the narrowest unit would have.
        return geometric_grid(points, upper, float(reach.min()) / max(points, 1))
    unit = laguerre_grid(points, 1.0)
    return laguerre_grid(points, upper / unit.nodes[-1])


def quadratic(
    model: AbstractPlainModel,
) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
    """$W$ and $b$ of one layer of nonnegative units: $E = \\tfrac12 x^\\top W x - b^\\top x$."""
    require_single(model)
    (units,), (bias,) = model.layers, model.unary()
    precision = units.precision  # pyright: ignore[reportAttributeAccessIssue]
    couplings = jnp.diag(precision.astype(bias.dtype))
    for factor in inner(model.factors()):
        couplings = couplings - factor.weights
    return couplings, bias


def check_grid(grid: Any) -> None:
    """Raises `TypeError` unless this is a grid."""
    if not isinstance(grid, Grid):
        got = _checks.describe(grid)
        raise TypeError(
            f"`grid` must be a `Grid`, such as `geometric_grid(16, 4.0, 0.1)`, got {got}."
        )


def _trapezoidal(nodes: np.ndarray) -> Grid:
    steps = np.pad(np.diff(nodes), 1)
    return Grid(nodes, np.log((steps[1:] + steps[:-1]) / 2))


def _reach(couplings: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """For each unit, a value beyond which at most exp(-`_EXPONENT`) of its mass lies.

    A quadratic energy with positive definite $A$ has log-concave marginals on $x \\ge 0$, of
    variance proxy $(A^{-1})_{ii}$ and with the tails of an exponential distribution of the same
    mean or lighter. That leaves the means to be bounded.
    """
    diagonal = np.diagonal(couplings)
    bounds = []
    # Without its positive couplings a model has units at least as large (the FKG inequality), and
    # its mean m satisfies A m = b + q with q the marginal densities at 0. Units only help each
    # other there, so that these are at most those of lone units: A m <= A_ii (mean of unit i
    # alone), and the inverse of A has no negative entry.
    helpful = np.minimum(couplings, 0) + np.diag(diagonal)
    if _positive_definite(helpful):
        inverse = np.linalg.inv(helpful)
        bounds.append((inverse @ (diagonal * _mean_alone(diagonal, bias)), inverse))
    # Else the mean is near the mode: (m - mode)' A (m - mode) is at most the number of units.
    if _positive_definite(couplings):
        inverse = np.linalg.inv(couplings)
        root = np.linalg.cholesky(couplings)
        mode, _ = scipy.optimize.nnls(root.T, np.linalg.solve(root, bias))
        bounds.append((mode + np.sqrt(len(bias) * np.diagonal(inverse)), inverse))
    if not bounds:
        raise ValueError(
            "`model` must have couplings that are positive definite, or become so when positive"
            " ones off the diagonal are set to zero, got others in"
            f" {_checks.describe(couplings)}: pass a grid, such as `uniform_grid(points, upper)`."
        )
    return np.min(
        [
            np.minimum(mean + np.sqrt(2 * _EXPONENT * np.diagonal(inverse)), _EXPONENT * mean)
            for mean, inverse in bounds
        ],
        axis=0,
    )


def _positive_definite(matrix: np.ndarray) -> bool:
    values = np.linalg.eigvalsh(matrix)
    return bool(values[0] > 1e-12 * values[-1])


def _mean_alone(precision: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The means of normal distributions cut off below zero."""
    a = bias / np.sqrt(precision)
    mean = a + np.sqrt(2 / np.pi) / scipy.special.erfcx(-a / np.sqrt(2))
    # Far below zero the sum cancels; that of the exponential distribution is a close bound.
    return np.where(a < -20, 1 / np.maximum(-a, 20), mean) / np.sqrt(precision)
