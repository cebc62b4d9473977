from typing import get_args

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .. import _checks
from ..models import NNBM
from ._inverse import match_covariance
from ._nnbm import AbstractNNBMInference, Inverse, Moments, Terms
from ._susceptibility import covariances, Method
from ._tap import second_order


class SusP(AbstractNNBMInference):
    """Susceptibility propagation: means and second moments by [`ebmlearn.TAP`][], covariances by
    the response of the means to the biases (Yasuda 2015, eqs. (10) to (14)).

    The diagonal of `covariance` differs from `variance`, since
    neither is exact. [`ebmlearn.ISusP`][] makes them agree.

    !!! example

        ```python
        ebmlearn.SusP()(nnbm).covariance
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

        - `iterations`: how many sweeps, at most, and how many steps of propagation.
        - `damping`: the share of their old values that all numbers keep in a sweep.
        - `tol`: stop once no mean and no variance has changed by a larger part of itself in a
          sweep; by default 2e-5 in float32 and 1e-9 in float64.
        - `method`: `"solve"`, linear equations in $O(n^3)$, which never fail to converge; or
          `"propagation"`, sums over edges in $O(n |E|)$ a step. Gradients need the first.
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
        return terms.sweep(at)

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
        return match_covariance(at, covariance, ends, False, tol, max_steps)
