from dataclasses import KW_ONLY

from jaxtyping import Array, Float, Int

from ._dual import AbstractDual
from ._power_sums import minimised


class TRBP(AbstractDual):
    """Tree-reweighted belief propagation in its dual form: an upper bound of log Z (Wainwright,
    Jaakkola & Willsky 2005; Globerson & Jaakkola 2007; Ping, Liu & Ihler 2015).

    `log_partition` is an upper bound at any messages, so it holds whether or not the iterations
    converge. They minimise it over messages and over the weights of tables, which is a smooth
    convex problem, by L-BFGS. With [`ebmlearn.MeanField`][], which gives a lower bound, log Z is
    bracketed. On trees the bound is exact but for rounding.

    Beliefs are the gradient of the bound. They are unique and change smoothly with the model, but
    where couplings are strong and of both signs they are closer to uniform than the truth, and
    [`ebmlearn.BP`][] is more accurate if it converges.

    !!! example

        ```python
        above = ebmlearn.TRBP()(model).log_partition
        below = ebmlearn.MeanField(iterations=100)(model).log_partition
        ```
    """

    iterations: int | Int[Array, ""] = 1000
    _: KW_ONLY
    tol: float | Float[Array, ""] | None = 1e-3
    search = staticmethod(minimised)


TRBP.__init__.__doc__ = """**Arguments:**

- `iterations`: the largest number of steps. A new number needs no compilation.
- `tol`: stop when no entry of the gradient is larger than this: tables then agree about all
  probabilities up to this number. None makes all steps, and `converged` uses 1e-3.
"""
