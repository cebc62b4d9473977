"""What the mean-field inferences of nonnegative units share: the fixed point, its derivative, and
the free energy.
"""

import abc
from typing import Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..models import AbstractLayeredModel, Statistics
from ..units._rectified import Rectified, rectified
from ._base import AbstractInference, check_limits, limited, Limits, traced
from ._beliefs import Beliefs, Found, Normal


# While it iterates, no unit's precision is taken to be less than this part of its own coupling.
_FLOOR = 1e-3
# What `tol="auto"` means.
_TOL = {"float32": 2e-5, "float64": 1e-9}


Inference = TypeVar("Inference", bound="AbstractNonnegativeInference")
State = TypeVar("State")


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
    def of(cls, model: AbstractLayeredModel, second_order: bool = True) -> "Terms":
        """Those of a model of one layer."""
        (bias,), (units,), n = model.unary(), model.layers, model.layers[0].size
        diagonal = units.precision  # pyright: ignore
        weights, edges = jnp.zeros((n, n), bias.dtype), ()
        for block in model.blocks():
            weights, edges = -block.weights, block.edges
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


class AbstractNonnegativeInference(AbstractInference):
    """Mean field for nonnegative units: damped sweeps over all units at once, up to a fixed point.
    Beliefs can be differentiated with respect to the parameters, by the implicit function theorem.
    """

    iterations: eqx.AbstractVar[int | Int[Array, ""]]
    damping: eqx.AbstractVar[float | Float[Array, ""]]
    tol: eqx.AbstractVar[float | Float[Array, ""] | Literal["auto"] | None]

    @property
    def takes(self) -> tuple[str, ...]:
        """Nonnegative units."""
        return ("nonnegative",)

    @property
    def maximises(self) -> Literal["nothing"]:
        """Nothing."""
        return "nothing"

    def __check_init__(self):
        check_limits(self.iterations, self.damping, None if self.tol == "auto" else self.tol)

    @abc.abstractmethod
    def _terms(self, model: AbstractLayeredModel) -> Terms:
        """The parameters, as far as this inference takes them into account."""

    @abc.abstractmethod
    def _sweep(self, terms: Terms, at: Moments) -> Moments:
        """One undamped sweep."""

    @abc.abstractmethod
    def _covariance(self, terms: Terms, at: Moments) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
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

    def _solve(self, terms: Terms, start: Moments) -> tuple[Moments, Any]:
        """The fixed point, the number of sweeps and the last change."""
        limits, damping = self._limits(start.mean.dtype)

        def step(at: Moments) -> tuple[Moments, Float[Array, ""]]:
            new = self._sweep(terms, at)
            return guarded(damped(new, at, damping), at, change(new, at))

        at, number, residual = limits.iterate(step, start)
        return at, (number, residual)

    def _limits(self, dtype: Any) -> tuple[Limits, Float[Array, ""]]:
        return limited(self.iterations, self.tol, dtype), jnp.asarray(traced(self.damping, dtype))

    def _beliefs(self, problem: Any) -> Beliefs:
        return _solved(self._traced(problem.model.dtype), problem)

    def _statistics(self, problem: Any) -> Statistics:
        return moment_statistics(self._beliefs(problem))

    def _traced(self: Inference, dtype: Any) -> Inference:
        """The same with its numbers as arrays, so that new values compile nothing."""
        tol = _TOL[dtype.name] if self.tol == "auto" else self.tol
        numbers = (
            traced(self.iterations, jnp.int32),
            traced(self.damping, dtype),
            None if tol is None else traced(tol, dtype),
        )
        return eqx.tree_at(
            lambda x: (x.iterations, x.damping, x.tol), self, numbers, is_leaf=lambda x: x is None
        )


@eqx.filter_jit
def _solved(inference: AbstractNonnegativeInference, problem: Any) -> Beliefs:
    terms = inference._terms(problem.model)
    start = alone(terms)
    at, (number, residual) = fixed_point(inference, terms, start)
    covariance, found = inference._covariance(terms, at)
    _, precision = terms.fields(at)
    limits, _ = inference._limits(start.mean.dtype)
    positive = (precision > _FLOOR * terms.diagonal).all()
    # A precision that is not positive belongs to no distribution. NaN is never converged.
    good = (residual <= limits.tol) & positive & found & jnp.isfinite(covariance).all()
    return real_beliefs(
        problem,
        at.mean,
        at.variance,
        covariance,
        terms.log_partition(at),
        converged=good,
        iterations=number,
        residual=residual,
        name=type(inference).__name__,
    )


def real_beliefs(
    problem: Any,
    mean: Float[Array, " n"],
    variance: Float[Array, " n"],
    covariance: Float[Array, "n n"],
    log_partition: Float[Array, ""],
    *,
    name: str,
    **went: Any,
) -> Beliefs:
    """Beliefs about real units from their moments."""
    model = problem.model
    products = covariance + mean[:, None] * mean[None, :]
    own = jnp.eye(mean.shape[0], dtype=bool)
    products = jnp.where(own, jnp.diag(variance + mean**2), products)
    return Beliefs(
        problem,
        # There is one block, or none.
        Found(log_partition, model.by_factor(tuple(products for _ in model.blocks())), name),
        log_odds=model.units([None]),
        normal=Normal(mean, variance),
        covariance=covariance,
        **went,
    )


def moment_statistics(beliefs: Beliefs) -> Statistics:
    """Beliefs about real units as learners need them: means, and the means of $x x^\\top$."""
    return Statistics(
        units=beliefs.means,
        pairwise=beliefs.pairwise,
        squares=(beliefs.second_moment,),
        converged=beliefs.converged,
        iterations=beliefs.iterations,
        residual=beliefs.residual,
    )


def alone(terms: Terms) -> Moments:
    """Units that are joined to nobody."""
    unit = rectified(terms.bias, terms.diagonal)
    return Moments(unit.mean, unit.variance, jnp.zeros_like(unit.mean))


def fixed_point(
    inference: AbstractNonnegativeInference, terms: Terms, start: Moments
) -> tuple[Moments, Any]:
    """The fixed point of the sweeps, whose derivative is that of the equation it solves."""

    def residual(at: Moments) -> Moments:
        return jax.tree.map(jnp.subtract, inference._sweep(terms, at), at)

    def solve(_: Any, start: Moments) -> tuple[Moments, Any]:
        at, (number, size) = inference._solve(terms, start)
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


def guarded(new: State, old: State, size: Float[Array, ""]) -> tuple[State, Float[Array, ""]]:
    """The new state and how much changed; or the old one and infinity, if any number of the new
    one is not finite: what diverges stands still at the last numbers that can be held.
    """
    good = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(new)]).all()
    kept = jax.tree.map(lambda x, y: jnp.where(good, x, y), new, old)
    return kept, jnp.where(good, size, jnp.asarray(jnp.inf, size.dtype))


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
