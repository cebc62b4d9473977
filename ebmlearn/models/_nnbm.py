import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, Shaped

from .. import _checks
from .._types import AnyArray
from ._base import gaussian, instancewise, states


class NNBM(eqx.Module):
    """A nonnegative Boltzmann machine:

    $E(x) = \\tfrac12 x^\\top W x - b^\\top x$ with $x \\ge 0$,

    where $W$ is symmetric with positive diagonal. It is a distribution if $W$ is strictly
    copositive, that is $x^\\top W x > 0$ wherever $x \\ge 0$ is not zero; beside positive definite
    matrices, that allows some whose density has many peaks.

    !!! example

        ```python
        nnbm = NNBM(couplings=jnp.eye(3) + 0.5, bias=jnp.ones(3))
        ```
    """

    couplings: Float[Array, "n n"]
    bias: Float[Array, " n"]

    def __init__(self, couplings: Float[AnyArray, "n n"], bias: Float[AnyArray, " n"]):
        """**Arguments:**

        - `couplings`: $W$, of shape `[n, n]`, symmetric, positive on the diagonal.
        - `bias`: $b$, of shape `[n]`.
        """
        self.couplings = _checks.parameter("couplings", couplings)
        self.bias = _checks.parameter("bias", bias)

    def __check_init__(self):
        _checks.finite(**vars(self))
        check_couplings(self.couplings)
        _checks.exact_shape("bias", self.bias, self.couplings.shape[:1], "as `couplings` has rows")
        _checks.one_dtype(**vars(self))

    @classmethod
    def init(
        cls,
        units: int,
        *,
        key: PRNGKeyArray,
        scale: float = 0.01,
        dtype: DTypeLike | None = None,
    ) -> "NNBM":
        """A random nonnegative Boltzmann machine, close to independent units of $W_{ii} = 1$.

        **Arguments:**

        - `units`: the number of units.
        - `key`: a typed key, from `jax.random.key(seed)`.
        - `scale`: standard deviation of the couplings off the diagonal. Biases are zero.
        - `dtype`: float32 or float64; the default dtype of JAX if not given.
        """
        _checks.count("units", units)
        upper = jnp.triu(gaussian((units, units), scale, dtype, key), 1)
        couplings = jnp.eye(units, dtype=upper.dtype) + upper + upper.T
        return cls(couplings, jnp.zeros(units, upper.dtype))

    @property
    def num_units(self) -> int:
        return self.couplings.shape[0]

    def energy(self, x: Shaped[AnyArray, "*batch n"]) -> Float[Array, "*batch"]:
        """The energy $E(x)$ of nonnegative configurations; any leading axes."""

        @instancewise
        def energy(x):
            return x @ self.couplings @ x / 2 - x @ self.bias

        return energy(states("x", x, self.num_units, self.couplings.dtype))


def check_couplings(couplings: Array) -> None:
    """Raises `ValueError` unless `couplings` is square and, if its values are known, symmetric with
    positive diagonal.
    """
    outside, least = couplings, float("inf")
    square = couplings.ndim == 2 and couplings.shape[0] == couplings.shape[1]
    if square and _checks.is_concrete(couplings):
        # In NumPy, which compiles nothing for a new size.
        diagonal = np.diagonal(np.asarray(couplings))
        least = float(diagonal.min(initial=np.inf))
        with jax.ensure_compile_time_eval():
            outside = jnp.asarray(np.asarray(couplings) - np.diag(diagonal))
    _checks.symmetric("couplings", outside)
    if least <= 0:
        raise ValueError(
            "`couplings` must have a positive diagonal, got"
            f" {_checks.describe(couplings)} with a diagonal entry of {least:.3g}."
        )
