from dataclasses import KW_ONLY

from jaxtyping import Array, Float, Int

from ._dual import AbstractDual
from ._power_sums import settled


class ConvergentBP(AbstractDual):
    """Belief propagation for models on which messages do not converge: a double loop that minimises
    the Bethe free energy (Yuille 2002; Heskes 2006).

    The fixed points of [`ebmlearn.BP`][] are the stationary points of the Bethe free energy. If
    couplings are strong and contradict each other, messages may oscillate forever, whatever the
    damping. Here, each step of the outer loop replaces the concave part of the free energy by its
    tangent, and an inner loop minimises the convex function that is left. `log_partition` rises
    with each step, up to the accuracy of the inner loop, and ends at a local minimum of the free
    energy. That minimum may be far from the truth: look at `converged`, and compare with a sampler.

    It takes much longer than `BP`. Where `BP` converges, both often agree.

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
    search = staticmethod(settled)


ConvergentBP.__init__.__doc__ = """**Arguments:**

- `iterations`: the largest number of steps of the outer loop. A new number needs no compilation.
- `tol`: stop when a step changes no probability by more than this, and tables agree about all
  probabilities up to this number. None makes all steps, and `converged` uses 1e-3.
"""
