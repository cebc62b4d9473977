import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._nonnegative import AbstractNonnegativeInference, Inverse, Moments, Terms, Wanted


class NaiveMeanField(AbstractNonnegativeInference):
    """Naive mean field for nonnegative units: the distribution of independent units that is closest
    to the model. At a fixed point `log_partition` is a lower bound of log Z. Covariances are zero.

    !!! example

        ```python
        ebmlearn.NaiveMeanField()(nnbm).mean
        ```
    """

    second_order = False

    def _covariance(self, terms: Terms, at: Moments) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
        return jnp.diag(at.variance), jnp.asarray(True)

    def _inverse(self, wanted: Wanted) -> Inverse:
        raise ValueError(
            "`inference` must give covariances, as `TAP()`, `SusP()` and `ISusP()` do, got"
            " NaiveMeanField()."
        )


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

    def _covariance(self, terms: Terms, at: Moments) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
        s = at.variance
        return jnp.diag(s) - terms.weights * s[:, None] * s[None, :], jnp.asarray(True)

    def _inverse(self, wanted: Wanted) -> Inverse:
        s, (first, second) = wanted.at.variance, wanted.ends
        edges = -wanted.covariance[first, second] / (s[first] * s[second])
        weights = jnp.zeros_like(wanted.covariance).at[first, second].set(edges)
        zero = jnp.zeros((), s.dtype)
        return Inverse(weights + weights.T, jnp.zeros_like(s), zero, jnp.zeros((), jnp.int32))


NaiveMeanField.__init__.__doc__ = TAP.__init__.__doc__ = """**Arguments:**

- `iterations`: the largest number of sweeps. A new number needs no compilation.
- `damping`: the share of their old values that means and variances keep in a sweep.
- `tol`: stop when no mean or variance changes by a larger relative amount in a sweep; `"auto"` is
  2e-5 in float32 and 1e-9 in float64. None makes all sweeps.
"""
