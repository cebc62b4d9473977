from dataclasses import KW_ONLY
from typing import get_args, Literal

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .. import _checks
from ..models import AbstractLayeredModel
from ._inverse import match_covariance
from ._nonnegative import AbstractNonnegativeInference, Inverse, Moments, Terms
from ._susceptibility import covariances, Method


class SusP(AbstractNonnegativeInference):
    """Susceptibility propagation: means and second moments by [`ebmlearn.TAP`][], covariances by
    the response of the means to the biases (Yasuda 2015, eqs. (10) to (14)).

    Both are approximate, so the diagonal of `covariance` differs from `variance`.
    [`ebmlearn.ISusP`][] makes them equal.

    !!! example

        ```python
        ebmlearn.SusP()(nnbm).covariance
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
        return terms.sweep(at)

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
        return match_covariance(at, covariance, ends, False, tol, max_steps)


SusP.__init__.__doc__ = """**Arguments:**

- `iterations`: the largest number of sweeps, and of propagation steps. A new number needs no
  compilation.
- `damping`: the share of their old values that means and variances keep in a sweep.
- `tol`: stop when no mean or variance changes by a larger relative amount in a sweep; `"auto"` is
  2e-5 in float32 and 1e-9 in float64. None makes all sweeps.
- `method`: `"solve"` solves linear equations in $O(n^3)$ and always converges; `"propagation"` sums
  over edges in $O(n |E|)$ per step. Gradients need `"solve"`.
"""
