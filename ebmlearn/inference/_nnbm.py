"""What the mean-field inferences of nonnegative Boltzmann machines share: the fixed point, its
derivative, and the free energy.
"""

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .. import _checks
from ..models import NNBM, Units
from ..models._rectified import Rectified, rectified
from ._base import AbstractInference, Statistics
from ._iterate import check_limits, Limits, traced


# While it iterates, no unit's precision is taken to be less than this part of its own coupling.
_FLOOR = 1e-3
_TOL = {"float32": 2e-5, "float64": 1e-9}


class NNBMBeliefs(eqx.Module):
    """What an inference says about the units of a nonnegative Boltzmann machine. Whether it
    converged is never hidden: see `converged`, `iterations`, `residual`.

    - `mean`, `variance`: $E x_i$ and $E x_i^2 - (E x_i)^2$.
    - `covariance`: of each two units. For [`ebmlearn.SusP`][] its diagonal need not agree with
      `variance`.
    - `log_partition`: the estimate of log Z, minus the free energy.
    - `residual`: the largest relative change of a mean or a variance in the last sweep.
    """

    mean: Float[Array, " n"]
    variance: Float[Array, " n"]
    covariance: Float[Array, "n n"]
    log_partition: Float[Array, ""]
    converged: Bool[Array, ""]
    iterations: Int[Array, ""]
    residual: Float[Array, ""]

    @property
    def second_moment(self) -> Float[Array, " n"]:
        """$E x_i^2$."""
        return self.variance + self.mean**2

    def decode(self) -> Units:
        """The means, which are the guess of least squared error."""
        return Units(self.mean)

    def statistics(self) -> Statistics:
        """The same as learners need it: means, and the means of $x x^\\top$."""
        products = self.covariance + self.mean[:, None] * self.mean[None, :]
        own = jnp.eye(self.mean.shape[0], dtype=bool)
        return Statistics(
            units=Units(self.mean),
            pairwise=jnp.where(own, jnp.diag(self.second_moment), products),
            converged=self.converged,
            iterations=self.iterations,
            residual=self.residual,
        )


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


class Terms(NamedTuple):
    """The parameters of a model in the form that the equations need. Without `squares` they are
    those of naive mean field.
    """

    bias: Float[Array, " n"]
    diagonal: Float[Array, " n"]
    weights: Float[Array, "n n"]
    squares: Float[Array, "n n"]

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

    def sweep(self, at: Moments) -> Moments:
        """The moments of all units in the fields of the others, without a correction."""
        unit = self.units(at)
        return Moments(unit.mean, unit.variance, jnp.zeros_like(at.correction))

    def log_partition(self, at: Moments) -> Float[Array, ""]:
        """Minus the free energy, eq. (4), with $\\Lambda$ (15)."""
        linear, precision = self.fields(at)
        unit = rectified(linear, jnp.maximum(precision, _FLOOR * self.diagonal))
        m, s = at.mean, at.variance
        v = s + m**2
        alone = (linear - self.bias) * m - (precision - self.diagonal) * v / 2
        pairs = m @ self.weights @ m / 2 - s @ self.squares @ s / 4
        return (unit.log_partition - alone + at.correction * s / 2).sum() - pairs


class AbstractNNBMInference(AbstractInference):
    """Mean field for nonnegative Boltzmann machines: sweeps that update all units at once, with
    damping, up to a fixed point. Beliefs are differentiable by the parameters, through the fixed
    point by the implicit function theorem.
    """

    iterations: eqx.AbstractVar[int | Int[Array, ""]]
    damping: eqx.AbstractVar[float | Float[Array, ""]]
    tol: eqx.AbstractVar[float | Float[Array, ""] | None]
    on_nonnegative: ClassVar[bool] = True

    def __check_init__(self):
        check_limits(self.iterations, self.damping, self.tol)

    @abc.abstractmethod
    def _terms(self, model: NNBM) -> Terms:
        """The parameters, as far as this inference takes them into account."""

    @abc.abstractmethod
    def _sweep(self, terms: Terms, at: Moments) -> Moments:
        """One undamped sweep."""

    @abc.abstractmethod
    def _covariance(
        self, model: NNBM, terms: Terms, at: Moments
    ) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
        """Covariances at the fixed point, and whether they were found."""

    @abc.abstractmethod
    def _inverse(
        self,
        at: Moments,
        covariance: Float[Array, "n n"],
        ends: tuple[np.ndarray, np.ndarray],
        tol: float,
        max_steps: int,
    ) -> "Inverse":
        """The couplings between units, joined at their `ends`, that give these covariances."""

    def _solve(self, model: NNBM, terms: Terms, start: Moments) -> tuple[Moments, Any]:
        """The fixed point, the number of sweeps and the last change."""
        limits, damping = self._limits(start.mean.dtype)

        def step(at: Moments) -> tuple[Moments, Float[Array, ""]]:
            new = self._sweep(terms, at)
            return damped(new, at, damping), change(new, at)

        at, number, residual = limits.iterate(step, start)
        return at, (number, residual)

    def _limits(self, dtype: Any) -> tuple[Limits, Float[Array, ""]]:
        return Limits(self.iterations, self.tol, dtype), jnp.asarray(traced(self.damping, dtype))

    def _beliefs(self, problem: Any) -> NNBMBeliefs:
        model = nnbm_only(problem, type(self).__name__)
        dtype = model.bias.dtype
        tol = _TOL[dtype.name] if self.tol is None else self.tol
        # As arrays, so that new values compile nothing.
        numbers = (
            traced(self.iterations, jnp.int32),
            traced(self.damping, dtype),
            traced(tol, dtype),
        )
        settings = eqx.tree_at(
            lambda x: (x.iterations, x.damping, x.tol), self, numbers, is_leaf=lambda x: x is None
        )
        return _solved(settings, model)

    def _statistics(self, problem: Any) -> Statistics:
        return self._beliefs(problem).statistics()


@eqx.filter_jit
def _solved(inference: AbstractNNBMInference, model: NNBM) -> NNBMBeliefs:
    terms = inference._terms(model)
    start = alone(terms)
    at, (number, residual) = fixed_point(inference, model, terms, start)
    covariance, found = inference._covariance(model, terms, at)
    _, precision = terms.fields(at)
    limits, _ = inference._limits(start.mean.dtype)
    positive = (precision > _FLOOR * terms.diagonal).all()
    return NNBMBeliefs(
        mean=at.mean,
        variance=at.variance,
        covariance=covariance,
        log_partition=terms.log_partition(at),
        # A precision that is not positive belongs to no distribution. NaN is never converged.
        converged=(residual <= limits.tol) & positive & found & jnp.isfinite(covariance).all(),
        iterations=number,
        residual=residual,
    )


def alone(terms: Terms) -> Moments:
    """Units that are joined to nobody."""
    unit = rectified(terms.bias, terms.diagonal)
    return Moments(unit.mean, unit.variance, jnp.zeros_like(unit.mean))


def fixed_point(
    inference: AbstractNNBMInference, model: NNBM, terms: Terms, start: Moments
) -> tuple[Moments, Any]:
    """The fixed point of the sweeps, whose derivative is that of the equation it solves."""

    def residual(at: Moments) -> Moments:
        return jax.tree.map(jnp.subtract, inference._sweep(terms, at), at)

    def solve(_: Any, start: Moments) -> tuple[Moments, Any]:
        at, (number, size) = inference._solve(model, terms, start)
        # What has no tangent comes along as a real number.
        return at, (number.astype(size.dtype), size)

    def tangent(linear: Any, right: Moments) -> Moments:
        flat, unflat = jax.flatten_util.ravel_pytree(right)
        columns = jax.vmap(
            lambda x: jax.flatten_util.ravel_pytree(linear(unflat(x)))[0], out_axes=1
        )(jnp.eye(flat.size, dtype=flat.dtype))
        return unflat(jnp.linalg.solve(columns, flat))

    at, aux = jax.lax.custom_root(residual, start, solve, tangent, has_aux=True)
    number, size = jax.lax.stop_gradient(aux)
    return at, (number.astype(jnp.int32), size)


def damped(new: Any, old: Any, damping: Float[Array, ""]) -> Any:
    return jax.tree.map(lambda x, y: x + damping * (y - x), new, old)


def change(new: Moments, old: Moments) -> Float[Array, ""]:
    """The largest relative change of a mean or a variance, or of a correction against the variance
    of its unit. None of it depends on the scale of the units.
    """
    parts = [
        new.mean / old.mean - 1,
        new.variance / old.variance - 1,
        (new.correction - old.correction) * old.variance,
    ]
    return jnp.abs(jnp.stack(parts)).max()


def nnbm_only(problem: Any, name: str) -> NNBM:
    """Raises `TypeError` unless the model of a problem is one for an inference of this name."""
    if isinstance(problem, NNBM):
        return problem
    got = _checks.describe(problem) if not hasattr(problem, "model") else type(problem.model)
    got = got.__name__ if isinstance(got, type) else got
    raise TypeError(f"`model` must be an NNBM for {name}, got a {got}.")
