import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..models import NNBM
from ._nnbm import AbstractNNBMInference, Inverse, Moments, Terms


class TAP(AbstractNNBMInference):
    """The Thouless-Anderson-Palmer equations of a nonnegative Boltzmann machine: the free energy to
    second order in the couplings (Yasuda 2015, eqs. (4) and (6) to (9)).

    `covariance` is what the same free energy says of two units, its derivative by their coupling:
    $-w_{ij} s_i s_j$ with $s$ the variances. [`ebmlearn.SusP`][] finds better ones.

    !!! example

        ```python
        beliefs = ebmlearn.TAP()(nnbm)
        beliefs.mean, beliefs.log_partition, beliefs.converged
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
        return second_order(model)

    def _sweep(self, terms: Terms, at: Moments) -> Moments:
        return terms.sweep(at)

    def _covariance(
        self, model: NNBM, terms: Terms, at: Moments
    ) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
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


def second_order(model: NNBM) -> Terms:
    """The parameters with the second-order reaction of units on themselves."""
    weights = model.off_diagonal
    return Terms(model.bias, model.diagonal, weights, weights**2)
