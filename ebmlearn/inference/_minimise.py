"""L-BFGS. Optax's searches along the line in a loop of its own, and Optimistix's makes the gradient
itself; here one backward pass gives the gradient and the probabilities that callers want.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ._base import Limits


# How many steps the curvature is learned from.
_MEMORY = 10
# The part of the decrease along the gradient that a step must reach, and what it shrinks by if not.
_ENOUGH, _SHORTER = 1e-4, 0.3


class _State(NamedTuple):
    """A point, its value and gradient, and what else is known there; where the next step goes and
    how far; the last steps and changes of the gradient, and the number of steps.
    """

    x: Float[Array, " n"]
    value: Float[Array, ""]
    gradient: Float[Array, " n"]
    more: PyTree
    direction: Float[Array, " n"]
    length: Float[Array, ""]
    steps: Float[Array, "memory n"]
    changes: Float[Array, "memory n"]
    number: Int[Array, ""]


def minimise(
    evaluate: Callable[[Float[Array, " n"]], tuple[Float[Array, ""], Float[Array, " n"], PyTree]],
    start: Float[Array, " n"],
    limits: Limits,
) -> tuple[Float[Array, " n"], Float[Array, ""], PyTree, Int[Array, ""], Float[Array, ""]]:
    """The smallest value of a smooth function by L-BFGS, from what returns its value, its gradient
    and anything more: the point, its value, what more is known there, the number of evaluations,
    and the largest entry of the gradient.

    Each iteration evaluates the function once. A step that does not decrease it enough is made
    shorter, so that values never rise but for rounding. There are no loops inside, which `jax.vmap`
    would run until the slowest instance ends.
    """
    like = jax.eval_shape(evaluate, start)[2]
    more = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    nothing = jnp.zeros((_MEMORY, *start.shape), start.dtype)
    # The first step stays where it is, so that the function is compiled once.
    infinite, one = (jnp.asarray(x, start.dtype) for x in (jnp.inf, 1))
    none, number = jnp.zeros_like(start), jnp.zeros((), jnp.int32)
    begin = _State(start, infinite, none, more, none, one, nothing, nothing, number)
    rounding = 4 * jnp.finfo(start.dtype).eps

    def step(at: _State) -> tuple[_State, Float[Array, ""]]:
        x = at.x + at.length * at.direction
        value, gradient, more = evaluate(x)
        slope = at.gradient @ at.direction
        size = jnp.where(jnp.isfinite(at.value), jnp.abs(at.value), jnp.zeros_like(slope))
        most = at.value + _ENOUGH * at.length * slope + rounding * size
        good = value <= most
        moved, changed = x - at.x, gradient - at.gradient
        # Without curvature along the step there is nothing to learn from it.
        learned = good & (moved @ changed > 1e-10 * (changed @ changed))
        steps = _kept(learned, at.steps, moved)
        changes = _kept(learned, at.changes, changed)
        number = at.number + learned.astype(jnp.int32)
        direction = -_scaled(gradient, steps, changes, number)
        down = gradient @ direction < 0
        direction = jnp.where(down, direction, -gradient)
        fresh = 1 / jnp.maximum(jnp.abs(gradient).sum(), 1)
        length = jnp.where(down & (number > 0), jnp.ones_like(fresh), fresh)
        moved_on = _State(x, value, gradient, more, direction, length, steps, changes, number)
        # A direction along which nothing decreases is given up for the gradient.
        stuck = at.length < 1e-6
        again = at._replace(
            direction=jnp.where(stuck, -at.gradient, at.direction),
            length=jnp.where(
                stuck, 1 / jnp.maximum(jnp.abs(at.gradient).sum(), 1), _SHORTER * at.length
            ),
            number=jnp.where(stuck, 0, at.number),
        )
        new = jax.tree.map(lambda a, b: jnp.where(good, a, b), moved_on, again)
        return new, jnp.abs(new.gradient).max(initial=0)

    end, iterations, residual = limits.iterate(step, begin)
    return end.x, end.value, end.more, iterations, residual


def _kept(learned: Array, old: Float[Array, "memory n"], new: Float[Array, " n"]) -> Array:
    """The last vectors, the newest first."""
    return jnp.where(learned, jnp.concatenate([new[None], old[:-1]]), old)


def _scaled(
    gradient: Float[Array, " n"],
    steps: Float[Array, "memory n"],
    changes: Float[Array, "memory n"],
    number: Int[Array, ""],
) -> Float[Array, " n"]:
    """The gradient times the inverse curvature (Nocedal & Wright 2006, algorithm 7.4)."""
    known = jnp.arange(_MEMORY, dtype=number.dtype) < number
    product = (steps * changes).sum(1)
    inverse = jnp.where(known, 1 / jnp.where(known, product, 1), 0)

    def before(q: Array, pair: tuple[Array, ...]) -> tuple[Array, Array]:
        s, y, r = pair
        a = r * (s @ q)
        return q - a * y, a

    def after(q: Array, pair: tuple[Array, ...]) -> tuple[Array, None]:
        s, y, r, a = pair
        return q + s * (a - r * (y @ q)), None

    q, alphas = jax.lax.scan(before, gradient, (steps, changes, inverse))
    size = (changes[0] * changes[0]).sum()
    q = q * jnp.where(number > 0, product[0] / jnp.where(number > 0, size, 1), 1)
    return jax.lax.scan(after, q, (steps, changes, inverse, alphas), reverse=True)[0]
