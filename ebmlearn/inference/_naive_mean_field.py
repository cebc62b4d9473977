from dataclasses import KW_ONLY
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..models import AbstractLayeredModel
from ._nonnegative import AbstractNonnegativeInference, Inverse, Moments, Terms


class NaiveMeanField(AbstractNonnegativeInference):
    """Naive mean field for nonnegative units: the distribution of independent units that is closest
    to the model. At a fixed point `log_partition` is a lower bound of log Z. Covariances are zero.

    !!! example

        ```python
        ebmlearn.NaiveMeanField()(nnbm).mean
        ```
    """

    iterations: int | Int[Array, ""] = 1000
    _: KW_ONLY
    damping: float | Float[Array, ""] = 0.5
    tol: float | Float[Array, ""] | Literal["auto"] | None = "auto"

    def _terms(self, model: AbstractLayeredModel) -> Terms:
        return Terms.of(model, second_order=False)

    def _sweep(self, terms: Terms, at: Moments) -> Moments:
        return terms.sweep(at)

    def _covariance(self, terms: Terms, at: Moments) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
        return jnp.diag(at.variance), jnp.asarray(True)

    def _inverse(
        self,
        at: Moments,
        covariance: Float[Array, "n n"],
        ends: tuple[np.ndarray, np.ndarray],
        tol: float,
        max_steps: int,
    ) -> Inverse:
        raise ValueError(
            "`inference` must give covariances, as `TAP()`, `SusP()` and `ISusP()` do, got"
            " NaiveMeanField()."
        )


NaiveMeanField.__init__.__doc__ = """**Arguments:**

- `iterations`: the largest number of sweeps. A new number needs no compilation.
- `damping`: the share of their old values that means and variances keep in a sweep.
- `tol`: stop when no mean or variance changes by a larger relative amount in a sweep; `"auto"` is
  2e-5 in float32 and 1e-9 in float64. None makes all sweeps.
"""
