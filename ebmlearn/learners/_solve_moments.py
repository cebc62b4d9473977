import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from .. import _checks
from .._types import AnyArray
from ..inference import AbstractNonnegativeInference, Exact, ISusP, Moments, own_fields, Wanted
from ..models import copositivity, NNBM, Statistics
from ..units._rectified import rectified


_TOL = {"float32": 1e-4, "float64": 1e-8}


class MomentMatch(eqx.Module):
    """The result of [`ebmlearn.learners.solve_moments`][].

    !!! example

        ```python
        data = np.random.default_rng(0).exponential(size=(1000, 3)) ** 0.5
        match = ebmlearn.learners.solve_moments(data, ebmlearn.ISusP())
        match.model, match.converged, match.residual
        ```

    **Fields:**

    - `model`: the NNBM.
    - `converged`: whether the model has the requested moments under the inference.
    - `iterations`: the number of steps of Newton's method.
    - `residual`: the largest error of a correlation, or relative error of a variance.
    """

    model: NNBM
    converged: Bool[Array, ""]
    iterations: Int[Array, ""]
    residual: Float[Array, ""]


def solve_moments(
    statistics: Statistics | Num[AnyArray, "rows n"],
    inference: AbstractNonnegativeInference | Exact,
    *,
    edges: Bool[AnyArray, "n n"] | None = None,
    tol: float | None = None,
    max_steps: int = 50,
) -> MomentMatch:
    """Learns a nonnegative Boltzmann machine by solving for the parameters at which the inference
    gives the moments of the data. There the gradient of maximum likelihood is zero (Yasuda 2015,
    eq. (21)). Gradient ascent gets there slowly if units are strongly correlated.

    The means and variances of the data determine the fields of each unit. Newton's method (from
    Optimistix) then solves for the couplings, without iterating a fixed point. With
    [`ebmlearn.Exact`][] it solves for all parameters of up to four units at once.

    !!! example

        ```python
        nnbm = ebmlearn.NNBM(couplings=jnp.eye(3) + 0.5, bias=jnp.ones(3))
        data = ebmlearn.sample(nnbm, ebmlearn.Gibbs(), 10_000, burn_in=100).x
        match = ebmlearn.learners.solve_moments(data, ebmlearn.ISusP())
        match.model, match.converged
        ```

    **Arguments:**

    - `statistics`: rows of data, or `Statistics` of means (`units.x`) and means of $x x^\\top$
      (`pairwise`), as the `statistics` of an inference are.
    - `inference`: [`ebmlearn.ISusP`][], [`ebmlearn.SusP`][], [`ebmlearn.TAP`][] or
      [`ebmlearn.Exact`][].
    - `edges`: a mask of booleans, the pairs of units that are joined; all by default. Only the
      covariances of joined units are matched.
    - `tol`: the largest allowed `residual`; by default 1e-4 in float32 and 1e-8 in float64.
    - `max_steps`: the largest number of steps of Newton's method.

    **Returns:**

    A `MomentMatch`. `converged` is False if the equations have no solution, for instance if the
    variance of a unit is not below the square of its mean: no rectified Gaussian is that spread
    out. The function warns if the couplings are not copositive; `model.project()` makes them so.
    """
    wanted = "an inference for an NNBM, such as `ISusP()`"
    _checks.instance("inference", inference, (AbstractNonnegativeInference, Exact), wanted)
    _checks.count("max_steps", max_steps)
    mean, covariance = _moments(statistics)
    n, dtype = mean.shape[0], mean.dtype
    if tol is None:
        tol = _TOL[dtype.name]
    _checks.number("tol", tol, 0, float("inf"), "(0, inf)")
    like = NNBM(np.eye(n, dtype=dtype), np.zeros(n, dtype), edges)
    match = _solved(like, mean, covariance, inference, float(tol), max_steps)
    if _checks.is_concrete(match.model.couplings) and bool(match.converged):
        answer = copositivity(np.asarray(match.model.couplings))
        if not answer.holds:
            known = "not" if answer.holds is False else "not known to be"
            warnings.warn(
                f"The couplings that match `statistics` are {known} copositive: use"
                " `model.project()`.",
                stacklevel=2,
            )
    return match


def _real(x: Any) -> Float[Array, "..."]:
    """Numbers as they are, or of the default dtype where there is no tolerance for theirs."""
    x = jnp.asarray(x)
    return x if x.dtype.name in _TOL else x.astype(jnp.result_type(float))


def _moments(statistics: Any) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Means and covariances."""
    if isinstance(statistics, Statistics):
        mean = getattr(statistics.units, "x", None)
        products = statistics.pairwise
        if mean is None or jnp.ndim(products) != 2:
            raise ValueError(
                "`statistics` must be those of an NNBM, `units.x` and an array `pairwise`, got"
                f" {_checks.describe(products)}."
            )
        n = products.shape[0]
        _checks.trailing("statistics.units.x", mean, (n,), "as `pairwise` has rows")
        _checks.nonnegative_rows("statistics.units.x", mean)
        _checks.finite_rows("statistics.pairwise", products)
        mean, products = _real(mean), _real(products)
        mean = mean.reshape(-1, n).mean(0)
        covariance = products - mean[:, None] * mean[None, :]
    else:
        if not hasattr(statistics, "dtype") or not (
            jnp.issubdtype(statistics.dtype, jnp.floating)
            or jnp.issubdtype(statistics.dtype, jnp.integer)
        ):
            got = _checks.describe(statistics)
            raise TypeError(
                f"`statistics` must be rows of real numbers or a `Statistics`, got {got}."
            )
        _checks.rank("statistics", statistics, 2, "[rows, units]")
        _checks.nonnegative_rows("statistics", statistics)
        rows = _real(statistics)
        mean = rows.mean(0)
        apart = rows - jnp.broadcast_to(mean, rows.shape)
        covariance = apart.T @ apart / rows.shape[0]
    variance = jnp.diagonal(covariance)
    if _checks.is_concrete(variance) and not bool((variance > 0).all()):
        unit = int(np.argmin(np.asarray(variance)))
        raise ValueError(
            "`statistics` must have a positive variance for each unit, got"
            f" {float(variance[unit]):.3g} for unit {unit}."
        )
    return mean, covariance


@eqx.filter_jit
def _solved(
    like: NNBM,
    mean: Float[Array, " n"],
    covariance: Float[Array, "n n"],
    inference: Any,
    tol: float,
    max_steps: int,
) -> MomentMatch:
    exact = isinstance(inference, Exact)
    search = ISusP() if exact else inference
    s = jnp.diagonal(covariance)
    linear, precision = own_fields(mean, s)
    at = Moments(mean, s, jnp.zeros_like(mean))
    wanted = Wanted(at, covariance, like.pairs, tol / 10, max_steps)
    inverse = search._inverse(wanted)
    # Eqs. (16) and (17) the other way round.
    reaction = inverse.weights**2 @ s + inverse.correction
    bias = linear + inverse.weights @ mean + mean * reaction
    model = _with(like, inverse.weights + jnp.diag(precision + reaction), bias)
    apart = jnp.abs(rectified(linear, precision).variance / s - 1).max()
    residual, steps = jnp.maximum(inverse.residual, apart), inverse.steps
    if exact:
        alone = _with(like, jnp.diag(precision), linear)
        model, residual, steps = _by_parameters(model, alone, inference, wanted)
    converged = (residual <= tol) & (model.diagonal > 0).all()
    return MomentMatch(model, converged, steps, residual)


def _with(model: NNBM, couplings: Float[Array, "n n"], bias: Float[Array, " n"]) -> NNBM:
    """The model with other parameters."""
    return eqx.tree_at(lambda model: (model.couplings, model.bias), model, (couplings, bias))


def _by_parameters(
    model: NNBM, alone: NNBM, inference: Exact, wanted: Wanted
) -> tuple[NNBM, Float[Array, ""], Int[Array, ""]]:
    """Newton's method on all parameters, from those of another inference."""
    (mean, *_), covariance, (first, second), tol, max_steps = wanted
    scale = jnp.sqrt(jnp.diagonal(covariance))

    def build(y: Any) -> NNBM:
        bias, diagonal, edges = y
        upper = jnp.zeros_like(model.couplings).at[first, second].set(edges)
        couplings = upper + upper.T + jnp.diag(diagonal)
        return _with(model, couplings, bias)

    def gap(y: Any, _: None) -> Any:
        beliefs = inference(build(y))
        unit = scale[:, None] * scale[None, :]
        apart = (beliefs.covariance - covariance) / unit
        return (beliefs.mean - mean) / scale, jnp.diagonal(apart), apart[first, second]

    # Where the other inference finds nothing, from units that are joined to nobody.
    good = jnp.isfinite(model.couplings).all() & jnp.isfinite(model.bias).all()
    model = jax.tree.map(lambda x, y: jnp.where(good, x, y), model, alone)
    start = model.project()
    y = start.bias, start.diagonal, start.couplings[first, second]
    import optimistix as optx  # here, since it takes long to import

    solver = optx.LevenbergMarquardt(rtol=tol, atol=tol)
    found = optx.root_find(gap, solver, y, max_steps=max_steps, throw=False)
    left = jnp.concatenate(jax.tree.map(jnp.abs, gap(found.value, None))).max()
    return build(found.value), left, jnp.asarray(found.stats["num_steps"], jnp.int32)
