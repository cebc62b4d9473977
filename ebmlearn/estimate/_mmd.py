import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from .. import _checks
from .._types import AnyArray


def mmd(x: Shaped[AnyArray, "rows units"], y: Shaped[AnyArray, "others units"]) -> Float[Array, ""]:
    """The squared maximum mean discrepancy between two sets of binary configurations
    (Lázaro-Gredilla et al. 2021, section 5; the formula printed there is always zero). It is the
    mean of $k(x, x')$ plus the mean of $k(y, y')$ minus twice the mean of $k(x, y)$, over all
    pairs, with $k(x, y) = e^{-d(x, y)}$ and $d$ the share of units that differ.

    !!! example

        ```python
        from ebmlearn import datasets

        digits = datasets.digits()
        samples = ebmlearn.sample(ebmlearn.RBM.init(64, 8), ebmlearn.Gibbs(), 300)
        ebmlearn.estimate.mmd(samples.visible, digits.test.x)
        ```

    **Arguments:**

    - `x`, `y`: 0 and 1, of shapes `[rows, units]`.
    """
    for name, a in (("x", x), ("y", y)):
        _checks.rank(name, a, 2, "[rows, units]")
        _checks.binary_rows(name, a)
        if 0 in a.shape:
            raise ValueError(f"`{name}` must contain at least one row and one unit, got {a.shape}.")
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"`x` and `y` must have the same number of units, got {x.shape[1]} and {y.shape[1]}."
        )
    a, b = (jnp.asarray(z).astype(jnp.result_type(float)) for z in (x, y))

    def kernel(a: Array, b: Array) -> Float[Array, ""]:
        same = a @ b.T + (1 - a) @ (1 - b).T
        return jnp.exp(same / a.shape[1] - 1).mean()

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)
