from dataclasses import KW_ONLY
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..models import AbstractLayeredModel
from ._nonnegative import AbstractNonnegativeInference, Inverse, Moments, Terms


class NaiveMeanField(AbstractNonnegativeInference):
    """Naive mean field of nonnegative units: the independent ones that come closest to them. At a
    fixed point `log_partition` is a lower bound of log Z, and units have no covariance.

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
            "`inference` must have covariances to match, as `TAP()`, `SusP()` and `ISusP()` have,"
            " got NaiveMeanField()."
        )


NaiveMeanField.__init__.__doc__ = """**Arguments:**

- `iterations`: how many sweeps, at most. Another number compiles nothing anew.
- `damping`: the share of their old values that means and variances keep in a sweep.
- `tol`: stop once no mean and no variance has changed by a larger part of itself in a sweep;
  `"auto"` is 2e-5 in float32 and 1e-9 in float64. None does all sweeps.
"""
