import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from .. import _checks
from .._types import AnyArray


def mmd(x: Shaped[AnyArray, "rows units"], y: Shaped[AnyArray, "others units"]) -> Float[Array, ""]:
    """The squared maximum mean discrepancy between two sets of binary configurations, with the
    kernel $k(x, y) = e^{-d(x, y)}$ of the share $d$ of units in which they differ (Lázaro-Gredilla
    et al. 2021, section 5, where the formula as printed is zero): mean $k(x, x')$ plus mean $k(y,
    y')$ less twice the mean of $k(x, y)$, each over all pairs.

    **Arguments:**

    - `x`, `y`: 0 and 1, of shapes `[rows, units]`.
    """
    for name, a in (("x", x), ("y", y)):
        _checks.rank(name, a, 2, "[rows, units]")
        _checks.binary_rows(name, a)
        if 0 in a.shape:
            raise ValueError(f"`{name}` must hold a row and a unit at least, got {a.shape}.")
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"`x` and `y` must have as many units, got {x.shape[1]} and {y.shape[1]}.")
    a, b = (jnp.asarray(z).astype(jnp.result_type(float)) for z in (x, y))

    def kernel(a: Array, b: Array) -> Float[Array, ""]:
        same = a @ b.T + (1 - a) @ (1 - b).T
        return jnp.exp(same / a.shape[1] - 1).mean()

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)
