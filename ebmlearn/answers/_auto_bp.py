import dataclasses
import time
from typing import Any

from jaxtyping import PRNGKeyArray

from ..inference import Beliefs, BP
from ..messages import Product
from ..models import AbstractProblem


_STARTS = 4
_TOLERANCE = 1e-5
# Iterations of a first try, and the most of any.
_FIRST, _MOST = 50, 3200


def propagated(
    problem: AbstractProblem, product: Product, deadline: float, key: PRNGKeyArray
) -> Beliefs:
    """Beliefs of messages with automatic damping."""
    bp = BP(
        _FIRST,
        product=product,
        damping="auto",
        tol=_TOLERANCE,
        starts=_STARTS if product == "sum" else 1,
        key=key,
    )
    return iterated(bp, problem, deadline)


def iterated(inference: Any, problem: AbstractProblem, deadline: float) -> Beliefs:
    """Beliefs of an iterative inference: with twice as many iterations each time, until it
    converges or more would take longer than there is time. It is asked once in any case.
    """
    iterations = _FIRST
    while True:
        began = time.perf_counter()
        beliefs = dataclasses.replace(inference, iterations=iterations).beliefs_of(problem)
        done = bool(beliefs.converged.all()) or iterations >= _MOST
        now = time.perf_counter()
        if done or now + 2 * (now - began) > deadline:
            return beliefs
        iterations *= 2
