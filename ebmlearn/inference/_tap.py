from dataclasses import KW_ONLY
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..models import AbstractLayeredModel
from ._nonnegative import AbstractNonnegativeInference, Inverse, Moments, Terms


class TAP(AbstractNonnegativeInference):
    """The Thouless-Anderson-Palmer equations for nonnegative units, from the free energy to second
    order in the couplings (Yasuda 2015, eqs. (4) and (6) to (9)).

    `covariance` is the derivative of that free energy with respect to the couplings:
    $-w_{ij} s_i s_j$ with variances $s$. [`ebmlearn.SusP`][] gives better covariances.

    !!! example

        ```python
        beliefs = ebmlearn.TAP()(nnbm)
        beliefs.mean, beliefs.log_partition, beliefs.converged
        ```
    """

    iterations: int | Int[Array, ""] = 1000
    _: KW_ONLY
    damping: float | Float[Array, ""] = 0.5
    tol: float | Float[Array, ""] | Literal["auto"] | None = "auto"

    def _terms(self, model: AbstractLayeredModel) -> Terms:
        return Terms.of(model)

    def _sweep(self, terms: Terms, at: Moments) -> Moments:
        return terms.sweep(at)

    def _covariance(self, terms: Terms, at: Moments) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
        s = at.variance
        return jnp.diag(s) - terms.weights * s[:, None] * s[None, :], jnp.asarray(True)

    def _inverse(
        self,
        at: Moments,
        covariance: Float[Array, "n n"],
        ends: tuple[np.ndarray, np.ndarray],
        tol: float,
        max_steps: int,
    ) -> Inverse:
        s = at.variance
        first, second = ends
        edges = -covariance[first, second] / (s[first] * s[second])
        weights = jnp.zeros_like(covariance).at[first, second].set(edges)
        zero = jnp.zeros((), s.dtype)
        return Inverse(weights + weights.T, jnp.zeros_like(s), zero, jnp.zeros((), jnp.int32))


TAP.__init__.__doc__ = """**Arguments:**

- `iterations`: the largest number of sweeps. A new number needs no compilation.
- `damping`: the share of their old values that means and variances keep in a sweep.
- `tol`: stop when no mean or variance changes by a larger relative amount in a sweep; `"auto"` is
  2e-5 in float32 and 1e-9 in float64. None makes all sweeps.
"""
