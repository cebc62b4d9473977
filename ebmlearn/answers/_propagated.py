import dataclasses
import time

from jaxtyping import PRNGKeyArray

from ..inference import Beliefs, BP
from ..messages import Product
from ..models import AbstractProblem


_STARTS = 4
_TOLERANCE = 1e-5
# Sweeps, and those of a second try.
_SWEEPS, _MORE = 300, 3000


def propagated(
    problem: AbstractProblem, product: Product, deadline: float, key: PRNGKeyArray
) -> Beliefs:
    """Beliefs of messages that converged, or of those of more sweeps if there is time for them."""
    bp = BP(
        _SWEEPS,
        product=product,
        damping="auto",
        tol=_TOLERANCE,
        starts=_STARTS if product == "sum" else 1,
        key=key,
    )
    began = time.perf_counter()
    beliefs = bp.beliefs_of(problem)
    now = time.perf_counter()
    if bool(beliefs.converged.all()) or now + _MORE / _SWEEPS * (now - began) > deadline:
        return beliefs
    return dataclasses.replace(bp, iterations=_MORE).beliefs_of(problem)
