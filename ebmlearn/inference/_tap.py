"""Mean field of nonnegative units, naive and by the TAP equations: the fixed point, its derivative,
and the free energy.
"""

import abc
import dataclasses
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from ..factors import inner
from ..models import AbstractModel, AbstractPlainModel, is_nonnegative, Statistics
from ..units import Rectified, rectified
from ._base import AbstractInference, check_limits, limited, Limits, Problem, traced
from ._beliefs import Beliefs, Found, Normal, Went


# While it iterates, no unit's precision is taken to be less than this part of its own coupling.
_FLOOR = 1e-3
# What `tol="auto"` means.
_TOL = {"float32": 2e-5, "float64": 1e-9}


class Moments(NamedTuple):
    """Where a fixed point is: means, variances, and the $\\Lambda$ of diagonal consistency, zero
    but for I-SusP.
    """

    mean: Float[Array, " n"]
    variance: Float[Array, " n"]
    correction: Float[Array, " n"]


class Inverse(NamedTuple):
    """Couplings between units, $\\Lambda$, the largest error of a correlation that is left, and how
    many steps it took.
    """

    weights: Float[Array, "n n"]
    correction: Float[Array, " n"]
    residual: Float[Array, ""]
    steps: Int[Array, ""]


class Wanted(NamedTuple):
    """Moments and covariances that couplings have to give, the `ends` of those that may not be
    zero, and how exactly and in how many steps at most.
    """

    at: Moments
    covariance: Float[Array, "n n"]
    ends: tuple[np.ndarray, np.ndarray]
    tol: float
    max_steps: int


# The derivatives of means and of variances in the biases.
Responses: TypeAlias = tuple[Float[Array, "n n"], Float[Array, "n n"]]
# Moments, and responses where sweeps propagate these too.
State: TypeAlias = tuple[Moments, Responses | None]
# Covariances, and whether they were found.
Covariance: TypeAlias = tuple[Float[Array, "n n"], Bool[Array, ""]]


class Sweeps(NamedTuple):
    """How sweeps are repeated, and the share of old values that they keep."""

    limits: Limits
    damping: Float[Array, ""]

    def repeated(
        self, sweep: Callable[[Any], Any], change: Callable[[Any, Any], Array], start: Any
    ) -> tuple[Any, Int[Array, ""], Float[Array, ""]]:
        """The last state, the number of sweeps, and the last `change` from one state to the next
        without damping. What diverges stands still at the last numbers that can be held, and its
        change is infinite.
        """

        def step(old: Any) -> tuple[Any, Float[Array, ""]]:
            new = sweep(old)
            moved = jax.tree.map(lambda x, y: x + self.damping * (y - x), new, old)
            size = change(new, old)
            good = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(moved)]).all()
            kept = jax.tree.map(lambda x, y: jnp.where(good, x, y), moved, old)
            return kept, jnp.where(good, size, jnp.asarray(jnp.inf, size.dtype))

        return self.limits.iterate(step, start)


class Terms(eqx.Module):
    """The parameters of a model in the form that the equations need, and its edges, or None if all
    units are joined. Without `squares` they are those of naive mean field.
    """

    bias: Float[Array, " n"]
    diagonal: Float[Array, " n"]
    weights: Float[Array, "n n"]
    squares: Float[Array, "n n"]
    edges: tuple[tuple[int, int], ...] | None = eqx.field(static=True)

    @classmethod
    def of(cls, model: AbstractPlainModel, second_order: bool = True) -> "Terms":
        """Those of a model of one layer."""
        (bias,), (units,), n = model.unary(), model.layers, model.layers[0].size
        diagonal = units.precision  # pyright: ignore
        weights, edges = jnp.zeros((n, n), bias.dtype), ()
        for factor in inner(model.factors()):
            weights, edges = -factor.weights, factor.edges
        squares = weights**2 if second_order else jnp.zeros_like(weights)
        return cls(bias, diagonal, weights, squares, edges)

    def reaction(self, at: Moments) -> Float[Array, " n"]:
        """$\\sum_j w_{ij}^2 (v_j - m_j^2) + \\Lambda_i$."""
        return self.squares @ at.variance + at.correction

    def fields(self, at: Moments) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """$l^*$ and $r^*$: eqs. (8) and (9), with $\\Lambda$ (16) and (17) as they should read."""
        reaction = self.reaction(at)
        linear = self.bias - self.weights @ at.mean - at.mean * reaction
        return linear, self.diagonal - reaction

    def units(self, at: Moments) -> Rectified:
        """All units in the fields of the others, eqs. (6) and (7)."""
        linear, precision = self.fields(at)
        return rectified(linear, jnp.maximum(precision, _FLOOR * self.diagonal))

    def log_partition(self, at: Moments) -> Float[Array, ""]:
        """Minus the free energy, eq. (4), with $\\Lambda$ (15)."""
        (linear, precision), unit = self.fields(at), self.units(at)
        m, s = at.mean, at.variance
        v = s + m**2
        alone = (linear - self.bias) * m - (precision - self.diagonal) * v / 2
        pairs = m @ self.weights @ m / 2 - s @ self.squares @ s / 4
        return (unit.log_partition - alone + at.correction * s / 2).sum() - pairs


class AbstractNonnegativeInference(AbstractInference):
    """Mean field for nonnegative units: damped sweeps over all units at once, up to a fixed point.
    Beliefs can be differentiated with respect to the parameters, by the implicit function theorem.
    `second_order` says whether the free energy has terms of that order in the couplings.

    **Arguments:**

    - `iterations`: the largest number of sweeps.
    - `damping`: the share of their old values that means and variances keep in a sweep.
    - `tol`: stop when no mean or variance changes by a larger relative amount in a sweep.
    """

    iterations: int | Int[Array, ""] = 1000
    _: KW_ONLY
    damping: float | Float[Array, ""] = 0.5
    tol: float | Float[Array, ""] | Literal["auto"] | None = "auto"
    takes = ("nonnegative",)
    second_order: ClassVar[bool] = True

    def __check_init__(self):
        check_limits(self.iterations, self.damping, None if self.tol == "auto" else self.tol)

    def accepts(self, model: AbstractModel) -> bool:
        """Whether it is one group of nonnegative units."""
        return is_nonnegative(model)

    def _told(self, terms: Terms, start: Moments) -> Responses | None:
        """The first responses, if sweeps propagate them."""
        return None

    def _sweep(self, terms: Terms, at: Moments, told: Responses | None = None) -> State:
        """One undamped sweep, of the responses too if these are propagated."""
        unit = terms.units(at)
        return Moments(unit.mean, unit.variance, jnp.zeros_like(at.correction)), told

    @abc.abstractmethod
    def _covariance(self, terms: Terms, at: Moments, sweeps: Sweeps) -> Covariance:
        """Covariances at the fixed point."""

    @abc.abstractmethod
    def _inverse(self, wanted: Wanted) -> Inverse:
        """The couplings between units that give these covariances."""

    def _beliefs(self, problem: Problem) -> Beliefs:
        dtype = problem.model.dtype
        tol = _TOL[dtype.name] if self.tol == "auto" else self.tol
        limits = limited(self.iterations, tol, dtype)
        sweeps = Sweeps(limits, jnp.asarray(traced(self.damping, dtype)))
        # Numbers are in `sweeps`, so that new values compile nothing.
        own = dataclasses.replace(self, iterations=0, damping=0.0, tol=None)
        return _solved(own, sweeps, problem)

    def _statistics(self, problem: Problem) -> Statistics:
        return moment_statistics(self._beliefs(problem))


class NaiveMeanField(AbstractNonnegativeInference):
    """Naive mean field for nonnegative units: the distribution of independent units that is closest
    to the model. At a fixed point `log_partition` is a lower bound of log Z. Covariances are zero.

    !!! example

        ```python
        nnbm = ebmlearn.NNBM(couplings=jnp.eye(3) + 0.5, bias=jnp.ones(3))
        ebmlearn.NaiveMeanField()(nnbm).mean
        ```

    **Arguments:**

    - `iterations`: the largest number of sweeps. A new number needs no compilation.
    - `damping`: the share of their old values that means and variances keep in a sweep.
    - `tol`: stop when no mean or variance changes by a larger relative amount in a sweep; `"auto"`
      is 2e-5 in float32 and 1e-9 in float64. None makes all sweeps.
    """

    second_order = False

    def _covariance(self, terms: Terms, at: Moments, sweeps: Sweeps) -> Covariance:
        return jnp.diag(at.variance), jnp.asarray(True)

    def _inverse(self, wanted: Wanted) -> Inverse:
        raise ValueError(
            "`inference` must give covariances, as `TAP()`, `SusP()` and `ISusP()` do, got"
            " NaiveMeanField()."
        )


class TAP(AbstractNonnegativeInference):
    """The Thouless-Anderson-Palmer equations for nonnegative units, from the free energy to second
    order in the couplings (Yasuda 2015, eqs. (4) and (6) to (9)).

    `covariance` is the derivative of that free energy with respect to the couplings:
    $-w_{ij} s_i s_j$ with variances $s$. [`ebmlearn.SusP`][] gives better covariances.

    !!! example

        ```python
        nnbm = ebmlearn.NNBM(couplings=jnp.eye(3) + 0.5, bias=jnp.ones(3))
        beliefs = ebmlearn.TAP()(nnbm)
        beliefs.mean, beliefs.log_partition, beliefs.converged
        ```

    **Arguments:**

    - `iterations`: the largest number of sweeps. A new number needs no compilation.
    - `damping`: the share of their old values that means and variances keep in a sweep.
    - `tol`: stop when no mean or variance changes by a larger relative amount in a sweep; `"auto"`
      is 2e-5 in float32 and 1e-9 in float64. None makes all sweeps.
    """

    def _covariance(self, terms: Terms, at: Moments, sweeps: Sweeps) -> Covariance:
        s = at.variance
        return jnp.diag(s) - terms.weights * s[:, None] * s[None, :], jnp.asarray(True)

    def _inverse(self, wanted: Wanted) -> Inverse:
        s, (first, second) = wanted.at.variance, wanted.ends
        edges = -wanted.covariance[first, second] / (s[first] * s[second])
        weights = jnp.zeros_like(wanted.covariance).at[first, second].set(edges)
        zero = jnp.zeros((), s.dtype)
        return Inverse(weights + weights.T, jnp.zeros_like(s), zero, jnp.zeros((), jnp.int32))


@eqx.filter_jit
def _solved(inference: AbstractNonnegativeInference, sweeps: Sweeps, problem: Problem) -> Beliefs:
    terms = Terms.of(problem.model, inference.second_order)
    # Units that are joined to nobody.
    unit = rectified(terms.bias, terms.diagonal)
    start = Moments(unit.mean, unit.variance, jnp.zeros_like(unit.mean))
    at, (number, residual) = _fixed_point(inference, sweeps, terms, start)
    covariance, found = inference._covariance(terms, at, sweeps)
    _, precision = terms.fields(at)
    positive = (precision > _FLOOR * terms.diagonal).all()
    answer = Normal(at.mean, at.variance), covariance, terms.log_partition(at)
    # Where sweeps diverge, the answer is that of the start: training can go on from it.
    apart = Normal(start.mean, start.variance), jnp.diag(start.variance), unit.log_partition.sum()
    finite = jnp.stack([jnp.isfinite(x).all() for x in (at.mean**2, *jax.tree.leaves(answer))])
    usable = finite.all()
    normal, covariance, value = jax.tree.map(lambda x, y: jnp.where(usable, x, y), answer, apart)
    # A precision that is not positive belongs to no distribution.
    good = (residual <= sweeps.limits.tol) & positive & found & usable
    went = Went(good, number, residual)
    return real_beliefs(problem, normal, covariance, value, went, type(inference).__name__)


def real_beliefs(
    problem: Problem,
    normal: Normal,
    covariance: Float[Array, "n n"],
    log_partition: Float[Array, ""],
    went: Went,
    name: str,
) -> Beliefs:
    """Beliefs about real units from their moments."""
    model, (mean, variance) = problem.model, normal
    products = covariance + mean[:, None] * mean[None, :]
    own = jnp.eye(mean.shape[0], dtype=bool)
    products = jnp.where(own, jnp.diag(variance + mean**2), products)
    return Beliefs(
        problem,
        # There is one block, or none.
        Found(log_partition, model.by_factor(tuple(products for _ in model.factors())), name),
        log_odds=model.named([None]),
        normal=normal,
        covariance=covariance,
        **went._asdict(),
    )


def moment_statistics(beliefs: Beliefs) -> Statistics:
    """Beliefs about real units as learners need them: means, and the means of $x x^\\top$."""
    went = beliefs.converged, beliefs.iterations, beliefs.residual
    return Statistics(beliefs.means, beliefs.pairwise, (beliefs.second_moment,), *went)


def _fixed_point(
    inference: AbstractNonnegativeInference, sweeps: Sweeps, terms: Terms, start: Moments
) -> tuple[Moments, Any]:
    """The fixed point of the sweeps, whose derivative is that of the equation it solves; the number
    of sweeps, and the last change.
    """

    def residual(at: Moments) -> Moments:
        return jax.tree.map(jnp.subtract, inference._sweep(terms, at)[0], at)

    def solve(_: Any, start: Moments) -> tuple[Moments, Any]:
        (at, _), number, size = sweeps.repeated(
            lambda old: inference._sweep(terms, *old),
            _change,
            (start, inference._told(terms, start)),
        )
        # What has no tangent comes along as a real number.
        return at, (number.astype(size.dtype), size)

    def tangent(linear: Any, right: Moments) -> Moments:
        flat, unflat = ravel_pytree(right)
        matrix = jax.jacfwd(lambda x: ravel_pytree(linear(unflat(x)))[0])(jnp.zeros_like(flat))
        return unflat(jnp.linalg.solve(matrix, flat))

    at, aux = jax.lax.custom_root(residual, start, solve, tangent, has_aux=True)
    number, size = jax.lax.stop_gradient(aux)
    return at, (number.astype(jnp.int32), size)


def _change(new: State, old: State) -> Float[Array, ""]:
    """The largest relative change of a mean or a variance, or of a correction against the variance
    of its unit, or of a response. None of it depends on the scale of the units.
    """
    (at, told), (before, heard) = new, old
    parts = [
        at.mean / before.mean - 1,
        at.variance / before.variance - 1,
        (at.correction - before.correction) * before.variance,
    ]
    size = jnp.abs(jnp.stack(parts)).max()
    if told is None or heard is None:
        return size
    return jnp.maximum(size, response_change(told, heard, at.variance))


def response_change(
    new: Responses, old: Responses, variance: Float[Array, " n"]
) -> Float[Array, ""]:
    """The largest change of a response of the means, in units of the standard deviations."""
    return jnp.abs((new[0] - old[0]) / jnp.sqrt(variance[:, None] * variance[None, :])).max()
