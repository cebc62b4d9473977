from typing import Any, get_args

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .. import _checks
from ..models import NNBM
from ._inverse import match_covariance
from ._nnbm import AbstractNNBMInference, change, damped, Inverse, Moments, Terms
from ._susceptibility import covariances, Method, propagated, response
from ._tap import second_order


class ISusP(AbstractNNBMInference):
    """Improved susceptibility propagation: TAP and the response of its means, made consistent
    (Yasuda 2015, eqs. (15) to (20)).

    Each unit has a further parameter $\\Lambda_i$, for which the variance of the unit and its
    response to its own bias agree: $M_{ii} = v_i - m_i^2$.

    !!! example

        ```python
        beliefs = ebmlearn.ISusP()(nnbm)
        beliefs.mean, beliefs.second_moment, beliefs.covariance
        ```
    """

    iterations: int | Int[Array, ""] = 1000
    damping: float | Float[Array, ""] = 0.5
    tol: float | Float[Array, ""] | None = None
    method: Method = eqx.field(static=True, default="solve")

    def __init__(
        self,
        iterations: int | Int[Array, ""] = 1000,
        damping: float | Float[Array, ""] = 0.5,
        tol: float | Float[Array, ""] | None = None,
        method: Method = "solve",
    ):
        """**Arguments:**

        - `iterations`: how many sweeps, at most.
        - `damping`: the share of their old values that all numbers keep in a sweep.
        - `tol`: stop once no mean, no variance and no response of a unit to its own bias has
          changed by a larger part of itself in a sweep; by default 2e-5 in float32 and 1e-9 in
          float64.
        - `method`: `"solve"`, linear equations in $O(n^3)$ a sweep; or `"propagation"`, sums over
          edges in $O(n |E|)$, all equations in the same sweep as in the paper. Gradients need the
          first.
        """
        self.iterations = iterations
        self.damping = damping
        self.tol = tol
        self.method = method

    def __check_init__(self):
        _checks.choice("method", self.method, get_args(Method))

    def _terms(self, model: NNBM) -> Terms:
        return second_order(model)

    def _sweep(self, terms: Terms, at: Moments) -> Moments:
        unit = terms.units(at)
        covariance = response(terms, unit, terms.reaction(at))
        # All else held, 1 / M_ii grows as Lambda_i does.
        step = 1 / unit.variance - 1 / jnp.diagonal(covariance)
        return Moments(unit.mean, unit.variance, at.correction + step)

    def _solve(self, model: NNBM, terms: Terms, start: Moments) -> tuple[Moments, Any]:
        limits, damping = self._limits(start.mean.dtype)

        def solved(at: Moments) -> tuple[Moments, Float[Array, ""]]:
            new = self._sweep(terms, at)
            return damped(new, at, damping), change(new, at)

        def swept(state: Any) -> tuple[Any, Float[Array, ""]]:
            at, old = state
            unit, reaction = terms.units(at), terms.reaction(at)
            new = propagated(model, terms, unit, reaction, old)
            own = jnp.diagonal(new[0])
            moments = Moments(unit.mean, unit.variance, at.correction + 1 / unit.variance - 1 / own)
            scale = jnp.sqrt(unit.variance[:, None] * unit.variance[None, :])
            size = jnp.maximum(change(moments, at), jnp.abs((new[0] - old[0]) / scale).max())
            return damped((moments, new), state, damping), size

        if self.method == "solve":
            at, number, residual = limits.iterate(solved, start)
        else:
            unit = terms.units(start)
            both = start, (jnp.diag(unit.variance), jnp.diag(unit.third))
            (at, _), number, residual = limits.iterate(swept, both)
        return at, (number, residual)

    def _covariance(
        self, model: NNBM, terms: Terms, at: Moments
    ) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
        return covariances(self.method, model, terms, at, *self._limits(at.mean.dtype))

    def _inverse(
        self,
        at: Moments,
        covariance: Float[Array, "n n"],
        ends: tuple[np.ndarray, np.ndarray],
        tol: float,
        max_steps: int,
    ) -> Inverse:
        return match_covariance(at, covariance, ends, True, tol, max_steps)
