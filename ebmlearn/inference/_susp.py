from typing import get_args

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _checks
from ._inverse import match_covariance
from ._nonnegative import (
    AbstractNonnegativeInference,
    Inverse,
    Moments,
    Responses,
    Terms,
    Wanted,
)
from ._susceptibility import alone, covariances, Method, propagated, response


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

    method: Method = eqx.field(static=True, default="solve")

    def __check_init__(self):
        _checks.choice("method", self.method, get_args(Method))

    def _covariance(self, terms: Terms, at: Moments) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
        return covariances(self.method, terms, at, *self._limits(at.mean.dtype))

    def _inverse(self, wanted: Wanted) -> Inverse:
        return match_covariance(wanted, consistent=False)


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

    method: Method = eqx.field(static=True, default="solve")

    def __check_init__(self):
        _checks.choice("method", self.method, get_args(Method))

    def _told(self, terms: Terms, start: Moments) -> Responses | None:
        return None if self.method == "solve" else alone(terms.units(start))

    def _sweep(
        self, terms: Terms, at: Moments, told: Responses | None = None
    ) -> tuple[Moments, Responses | None]:
        unit, reaction = terms.units(at), terms.reaction(at)
        if told is None:
            covariance = response(terms, unit, reaction)
        else:
            covariance, _ = told = propagated(terms, unit, reaction, told)
        # All else held, 1 / M_ii grows as Lambda_i does.
        step = 1 / unit.variance - 1 / jnp.diagonal(covariance)
        return Moments(unit.mean, unit.variance, at.correction + step), told

    def _covariance(self, terms: Terms, at: Moments) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
        return covariances(self.method, terms, at, *self._limits(at.mean.dtype))

    def _inverse(self, wanted: Wanted) -> Inverse:
        return match_covariance(wanted, consistent=True)


SusP.__init__.__doc__ = ISusP.__init__.__doc__ = """**Arguments:**

- `iterations`: the largest number of sweeps, and of propagation steps. A new number needs no
  compilation.
- `damping`: the share of their old values that means and variances keep in a sweep.
- `tol`: stop when no mean or variance changes by a larger relative amount in a sweep; `"auto"` is
  2e-5 in float32 and 1e-9 in float64. None makes all sweeps.
- `method`: `"solve"` solves linear equations in $O(n^3)$ and always converges; `"propagation"` sums
  over edges in $O(n |E|)$ per step. Gradients need `"solve"`.
"""
