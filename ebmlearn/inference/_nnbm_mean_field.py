import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..models import NNBM
from ._nnbm import AbstractNNBMInference, Inverse, Moments, Terms


class NaiveMeanField(AbstractNNBMInference):
    """Naive mean field of a nonnegative Boltzmann machine: the independent units that come closest
    to it. At a fixed point `log_partition` is a lower bound of log Z, and units have no covariance.

    !!! example

        ```python
        ebmlearn.NaiveMeanField()(nnbm).mean
        ```
    """

    iterations: int | Int[Array, ""] = 1000
    damping: float | Float[Array, ""] = 0.5
    tol: float | Float[Array, ""] | None = None

    def __init__(
        self,
        iterations: int | Int[Array, ""] = 1000,
        damping: float | Float[Array, ""] = 0.5,
        tol: float | Float[Array, ""] | None = None,
    ):
        """**Arguments:**

        - `iterations`: how many sweeps, at most. Another number compiles nothing anew.
        - `damping`: the share of their old values that means and variances keep in a sweep.
        - `tol`: stop once no mean and no variance has changed by a larger part of itself in a
          sweep; by default 2e-5 in float32 and 1e-9 in float64.
        """
        self.iterations = iterations
        self.damping = damping
        self.tol = tol

    def _terms(self, model: NNBM) -> Terms:
        weights = model.off_diagonal
        return Terms(model.bias, model.diagonal, weights, jnp.zeros_like(weights))

    def _sweep(self, terms: Terms, at: Moments) -> Moments:
        return terms.sweep(at)

    def _covariance(
        self, model: NNBM, terms: Terms, at: Moments
    ) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
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
