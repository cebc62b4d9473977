from dataclasses import KW_ONLY

from jaxtyping import Array, Float, Int

from ._dual import AbstractDual, Search
from ._power_sums import settled


class ConvergentBP(AbstractDual):
    """Belief propagation that always settles: a double loop that minimises Bethe's free energy
    (Yuille 2002; Heskes 2006).

    A fixed point of [`ebmlearn.BP`][] is a place where Bethe's free energy does not change. If
    couplings are strong and contradict each other, messages may run around it for ever, with any
    damping. Here a step of the outer loop replaces the concave part of the free energy by its
    tangent, and the inner loop minimises the convex function that this makes. So `log_partition`
    rises with each step, up to Bethe's approximation at a local minimum of the free energy.

    It takes much longer than `BP` where that converges; they then often agree.

    !!! example

        ```python
        beliefs = ebmlearn.BP(1000, damping="auto", tol=1e-4)(model)
        if not beliefs.converged:
            beliefs = ebmlearn.ConvergentBP()(model)
        ```
    """

    iterations: int | Int[Array, ""] = 1000
    _: KW_ONLY
    tol: float | Float[Array, ""] | None = 1e-4

    def _search(self) -> Search:
        return settled


ConvergentBP.__init__.__doc__ = """**Arguments:**

- `iterations`: the largest number of steps of the outer loop. A new number needs no compilation.
- `tol`: stop when a step changes no probability by more than this, and tables agree about all
  probabilities up to this number. None makes all steps, and `converged` uses 1e-3.
"""
