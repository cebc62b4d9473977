"""Sweeps that go by how much messages change: damping that rises until they settle, and messages
that are sent only if they change most.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ..messages import Engine
from ._base import Limits


# Sweeps without progress after which damping rises, what counts as progress, and the most damping.
_PATIENCE, _PROGRESS, _MOST = 10, 0.99, 31 / 32
# Messages are sent whose change is at least this part of the largest.
_HOT = 0.5


class _Pace(NamedTuple):
    """Messages, the share of its old value that each keeps, the smallest change with that damping,
    and the number of sweeps since then.
    """

    state: Any
    damping: Float[Array, ""]
    least: Float[Array, ""]
    since: Int[Array, ""]


def paced(
    view: Engine, instance: Any, start: Any, limits: Limits, *, damped: bool, hottest: bool
) -> tuple[Any, Int[Array, ""], Float[Array, ""]]:
    """Passes messages from a state on: the last state, the number of sweeps, and the change that
    another sweep without damping would bring.

    With `damped`, damping starts at none and goes half of the way to 1 whenever sweeps bring no
    progress. With `hottest`, only those messages are sent that change most (Elidan, McGraw & Koller
    2006, for all such messages at once).
    """
    dtype = limits.tol.dtype

    def sweep(at: _Pace) -> tuple[_Pace, Float[Array, ""]]:
        new = view.update(at.state, instance)
        change = view.change(at.state, new, instance)
        old, told = at.state._replace(fields=None), new._replace(fields=None)
        part = jax.tree.map(lambda x: jnp.broadcast_to(1 - at.damping, x.shape), old)
        if hottest:
            part = jax.tree.map(jnp.multiply, part, _hottest(old, told))
        # Where a message is sent whole, nothing is lost to rounding.
        sent = jax.tree.map(
            lambda a, b, p: jnp.where(p == 1, b, (1 - p) * a + p * b), old, told, part
        )
        state = view.resume(sent._replace(fields=new.fields), instance)
        if not damped:
            return at._replace(state=state), change
        better = change < _PROGRESS * at.least
        since = jnp.where(better, 0, at.since + 1)
        raised = since >= _PATIENCE
        damping = jnp.minimum((1 + at.damping) / 2, jnp.asarray(_MOST, dtype))
        return _Pace(
            state,
            jnp.where(raised, damping, at.damping),
            jnp.where(raised, jnp.asarray(jnp.inf, dtype), jnp.minimum(at.least, change)),
            jnp.where(raised, 0, since),
        ), change

    infinite, nothing = jnp.asarray(jnp.inf, dtype), jnp.zeros((), dtype)
    begin = _Pace(start, nothing, infinite, jnp.zeros((), jnp.int32))
    ended, iterations, change = limits.iterate(sweep, begin)
    return ended.state, iterations, change


def _hottest(old: PyTree, new: PyTree) -> PyTree:
    """1 for the messages that change most, else 0."""

    # Those that say that a state is excluded are so large that their rounding is a change.
    def far(a: Array, b: Array) -> Array:
        return jnp.abs(b - a) / jnp.maximum(jnp.abs(b), 1)

    changes = jax.tree.map(far, old, new)
    tops = [x.max(initial=0) for x in jax.tree.leaves(changes)]
    if not tops:
        return changes
    cut = _HOT * jnp.stack(tops).max()
    return jax.tree.map(lambda x: (x >= cut).astype(x.dtype), changes)
