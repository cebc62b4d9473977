from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Int, PyTree

from .. import _checks
from .._types import AnyArray


# Without a tolerance of its own, a run is judged by that of Ping & Ihler 2017, section 6.
_JUDGED_BY = 1e-3


def check_limits(iterations: Any, damping: Any, tol: Any) -> None:
    """Validates the arguments that all iterative inferences share."""
    _checks.steps("iterations", iterations)
    _checks.number("damping", damping, 0, 1, "[0, 1)")
    if tol is not None:
        _checks.number("tol", tol, 0, float("inf"), "[0, inf)")


def traced(x: Any, dtype: DTypeLike) -> AnyArray:
    """A number as an array, so that a new value compiles nothing. Arrays of NumPy are cheaper to
    make than those of JAX.
    """
    return jnp.asarray(x, dtype) if isinstance(x, Array) else np.asarray(x, dtype)


class Limits(eqx.Module):
    """When to stop: after a number of sweeps, or earlier once a sweep changes little. The numbers
    are arrays, so that new values compile nothing; with `length` it is a loop that can be
    differentiated in reverse mode, recomputing each sweep instead of keeping it.
    """

    iterations: Int[AnyArray, ""]
    tol: Float[AnyArray, ""]
    early: bool = eqx.field(static=True)
    length: int | None = eqx.field(static=True)

    def __init__(self, iterations: Any, tol: Any, dtype: DTypeLike, unroll: bool = False):
        self.iterations = traced(iterations, jnp.int32)
        self.length = int(iterations) if unroll else None
        self.tol = traced(_JUDGED_BY if tol is None else tol, dtype)
        self.early = tol is not None

    def iterate(
        self, sweep: Callable[[PyTree], tuple[PyTree, Float[Array, ""]]], start: PyTree
    ) -> tuple[PyTree, Int[Array, ""], Float[Array, ""]]:
        """Repeats `sweep`, which returns the new state and how much changed. Returns the last
        state, the number of sweeps and the last change.
        """
        residual = jnp.asarray(jnp.inf, self.tol.dtype)
        if self.length is not None:

            @jax.checkpoint
            def step(carry, _):
                return sweep(carry[0]), None

            carry, _ = jax.lax.scan(step, (start, residual), length=self.length)
            return carry[0], jnp.asarray(self.length, jnp.int32), carry[1]

        def unfinished(carry):
            _, residual, i = carry
            more = i < self.iterations
            # Written so that a NaN is never converged.
            return more & ~(residual <= self.tol) if self.early else more

        def body(carry):
            state, _, i = carry
            return *sweep(state), i + 1

        carry = start, residual, jnp.zeros((), jnp.int32)
        state, residual, i = jax.lax.while_loop(unfinished, body, carry)
        return state, i, residual
