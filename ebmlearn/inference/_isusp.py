from dataclasses import KW_ONLY
from typing import Any, get_args, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .. import _checks
from ..models import AbstractLayeredModel
from ._inverse import match_covariance
from ._nonnegative import (
    AbstractNonnegativeInference,
    change,
    damped,
    guarded,
    Inverse,
    Moments,
    Terms,
)
from ._susceptibility import covariances, Method, propagated, response


class ISusP(AbstractNonnegativeInference):
    """Improved susceptibility propagation: TAP with means and responses made consistent (Yasuda
    2015, eqs. (15) to (20)).

    An additional parameter $\\Lambda_i$ of each unit makes its variance equal to the response of
    its mean to its own bias: $M_{ii} = v_i - m_i^2$.

    !!! example

        ```python
        beliefs = ebmlearn.ISusP()(nnbm)
        beliefs.mean, beliefs.second_moment, beliefs.covariance
        ```
    """

    iterations: int | Int[Array, ""] = 1000
    _: KW_ONLY
    damping: float | Float[Array, ""] = 0.5
    tol: float | Float[Array, ""] | Literal["auto"] | None = "auto"
    method: Method = eqx.field(static=True, default="solve")

    def __check_init__(self):
        _checks.choice("method", self.method, get_args(Method))

    def _terms(self, model: AbstractLayeredModel) -> Terms:
        return Terms.of(model)

    def _sweep(self, terms: Terms, at: Moments) -> Moments:
        unit = terms.units(at)
        covariance = response(terms, unit, terms.reaction(at))
        # All else held, 1 / M_ii grows as Lambda_i does.
        step = 1 / unit.variance - 1 / jnp.diagonal(covariance)
        return Moments(unit.mean, unit.variance, at.correction + step)

    def _solve(self, terms: Terms, start: Moments) -> tuple[Moments, Any]:
        limits, damping = self._limits(start.mean.dtype)

        def solved(at: Moments) -> tuple[Moments, Float[Array, ""]]:
            new = self._sweep(terms, at)
            return guarded(damped(new, at, damping), at, change(new, at))

        def swept(state: Any) -> tuple[Any, Float[Array, ""]]:
            at, old = state
            unit, reaction = terms.units(at), terms.reaction(at)
            new = propagated(terms, unit, reaction, old)
            own = jnp.diagonal(new[0])
            moments = Moments(unit.mean, unit.variance, at.correction + 1 / unit.variance - 1 / own)
            scale = jnp.sqrt(unit.variance[:, None] * unit.variance[None, :])
            size = jnp.maximum(change(moments, at), jnp.abs((new[0] - old[0]) / scale).max())
            return guarded(damped((moments, new), state, damping), state, size)

        if self.method == "solve":
            at, number, residual = limits.iterate(solved, start)
        else:
            unit = terms.units(start)
            both = start, (jnp.diag(unit.variance), jnp.diag(unit.third))
            (at, _), number, residual = limits.iterate(swept, both)
        return at, (number, residual)

    def _covariance(self, terms: Terms, at: Moments) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
        return covariances(self.method, terms, at, *self._limits(at.mean.dtype))

    def _inverse(
        self,
        at: Moments,
        covariance: Float[Array, "n n"],
        ends: tuple[np.ndarray, np.ndarray],
        tol: float,
        max_steps: int,
    ) -> Inverse:
        return match_covariance(at, covariance, ends, True, tol, max_steps)


ISusP.__init__.__doc__ = """**Arguments:**

- `iterations`: the largest number of sweeps, and of propagation steps. A new number needs no
  compilation.
- `damping`: the share of their old values that means and variances keep in a sweep.
- `tol`: stop when no mean or variance changes by a larger relative amount in a sweep; `"auto"` is
  2e-5 in float32 and 1e-9 in float64. None makes all sweeps.
- `method`: `"solve"` solves linear equations in $O(n^3)$ and always converges; `"propagation"` sums
  over edges in $O(n |E|)$ per step. Gradients need `"solve"`.
"""
