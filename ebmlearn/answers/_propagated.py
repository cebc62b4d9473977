import time

from jaxtyping import PRNGKeyArray

from ..inference import Beliefs, BP
from ..messages import Product
from ..models import AbstractProblem


# Dampings to try, one after the other until messages converge.
_DAMPINGS = (0.2, 0.6, 0.9)
_STARTS = 4
_TOLERANCE = 1e-5


def propagated(
    problem: AbstractProblem, product: Product, deadline: float, key: PRNGKeyArray
) -> Beliefs:
    """Beliefs of messages that converged, or of those that changed least, until a deadline; one
    damping is always tried.
    """
    best: Beliefs | None = None
    iterations = 200
    for damping in _DAMPINGS:
        began = time.perf_counter()
        bp = BP(
            iterations,
            product=product,
            damping=damping,
            tol=_TOLERANCE,
            starts=_STARTS if product == "sum" else 1,
            key=key,
        )
        beliefs = bp.beliefs_of(problem)
        if best is None or float(beliefs.residual.max()) < float(best.residual.max()):
            best = beliefs
        now = time.perf_counter()
        if bool(beliefs.converged.all()) or now + 2 * (now - began) > deadline:
            break
        iterations *= 2
    assert best is not None
    return best
