import equinox as eqx
from jaxtyping import Array, Bool, Float, Int, PyTree


class Statistics(eqx.Module):
    """Expected statistics of a batch, as learners need them.

    - `units`: the means of all units, for each instance, by name.
    - `pairwise`: the means of the products of units that are joined, averaged over the batch.
    - `squares`: for each layer the means of what its units' own energy is linear in ($x^2$ of real
      units), for each instance; None for layers without such an energy.

    They are the gradient of `log_partition`. Units over which an inference maximises are 0 or 1.
    """

    units: PyTree
    pairwise: PyTree
    squares: tuple[Float[Array, "..."] | None, ...]
    converged: Bool[Array, "*batch"]
    iterations: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]
