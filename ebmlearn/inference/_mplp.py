from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from .. import messages
from .._sentinels import EXCLUDED
from ..messages import Engine, State
from ..models import AbstractModel, Statistics
from ._base import (
    AbstractInference,
    check_limits,
    chunk_of,
    each,
    each_and_mean,
    Instance,
    limited,
    Limits,
    Problem,
)
from ._beliefs import Beliefs, Found, Went


class MPLP(AbstractInference):
    """Max-product linear programming (Globerson & Jaakkola 2007): coordinate descent on the dual of
    the linear relaxation of the MAP problem.

    Unlike max-product it always converges, and up to rounding `log_partition` is an upper bound of
    the largest log-potential, which no sweep raises. If the relaxation is not tight, beliefs are
    ties and `decode` may be poor.

    All units are updated at once, each a part of the way: one divided by the number of units in its
    largest factor. A sweep costs as much as one of max-product, and OR, AND or pool factors of many
    variables need many sweeps.

    !!! example

        ```python
        beliefs = ebmlearn.MPLP()(ebmlearn.BoltzmannMachine.init(8, scale=1.0))
        beliefs.decode().x, beliefs.log_partition
        ```

    **Arguments:**

    - `iterations`: the largest number of sweeps.
    - `tol`: stop when no message is further than this from where it moves, relative to its size if
      that is above 1. None makes all sweeps.
    """

    iterations: int | Int[Array, ""] = 1000
    _: KW_ONLY
    tol: float | Float[Array, ""] | None = 1e-6
    takes = ("binary", "categorical")
    product: ClassVar[str] = "max"

    def __check_init__(self):
        check_limits(self.iterations, 0.0, self.tol)

    def accepts(self, model: AbstractModel) -> bool:
        """Whether there are messages, of units with a few states each."""
        return messages.serves(model) and model.numbered  # pyright: ignore

    def _beliefs(self, problem: Problem) -> Beliefs:
        limits = limited(self.iterations, self.tol, problem.model.dtype)
        told, bound, went = _solved(limits, problem)
        # The statistics of the decoded configuration, and the dual value: an upper bound of the
        # largest log-potential.
        found = Found(bound + problem.offset, jax.tree_util.Partial(_met, limits), "MPLP")
        return Beliefs(problem, found, log_odds=problem.told(told), **went._asdict())

    def _statistics(self, problem: Problem) -> Statistics:
        return _statistics(limited(self.iterations, self.tol, problem.model.dtype), problem)


def _relaxed(engine: Engine, state: State, instance: Instance) -> tuple[State, Float[Array, ""]]:
    """One sweep of coordinate descent on the dual of the relaxation, from messages that are evened,
    and how far they were from where it leads.

    Messages are evened if an equal share of what they and the unary scores of a unit add up to is
    taken from each: all its states then have the same score, but for excluded ones, and the log Z
    of max-product is a value of the dual. New messages to one unit, evened, minimise the dual while
    all others stay. All units do that at once, each a part of the way: one divided by the number of
    units in its largest factor. The new dual is at most a mean of those that each unit would reach
    by itself, because it is convex, so that it never rises.
    """
    heard = engine.update(state, instance)
    shares, excluded = _shares(engine, heard.fields, instance)
    steps = []
    for group, (share, out) in enumerate(zip(shares, excluded, strict=True)):
        width = _counts(engine, group, len(share))[1].astype(share.dtype)
        # What is excluded is said at once.
        step = jnp.where(out, 1.0, jnp.broadcast_to(1 / width[:, None], out.shape))
        steps.append(step if share.ndim > 1 else step.max(-1))
    new = _less(heard.messages, [part.spread(shares) for part in engine.parts])
    step = tuple(part.spread(steps, jnp.maximum) for part in engine.parts)
    moved = jax.tree.map(lambda a, b, part: (1 - part) * a + part * b, state.messages, new, step)
    far = jax.tree.map(
        lambda a, b: (jnp.abs(b - a) / jnp.maximum(jnp.abs(b), 1)).max(initial=0),
        state.messages,
        new,
    )
    change = jnp.stack([jnp.zeros((), shares[0].dtype), *jax.tree.leaves(far)]).max()
    return _even(engine, moved, instance), change


def _less(messages: Any, share: Any) -> Any:
    return jax.tree.map(jnp.subtract, tuple(messages), tuple(share))


def _even(engine: Engine, edges: Any, instance: Instance) -> State:
    """A state with messages that are evened: scores are equal without rounding errors."""
    state = engine.resume(State(tuple(edges), instance.unary), instance)
    fields = []
    for form, *own in zip(engine.numbered, state.fields, instance.clamp, strict=True):
        rows = form.shifted(*own)[0].rows
        even = jnp.where(rows < EXCLUDED / 2, rows, jnp.zeros_like(rows))
        fields.append(form.message(even))
    return state._replace(fields=tuple(fields))


def _counts(engine: Engine, group: int, size: int) -> tuple[Array, Array]:
    """How many factors each unit of a group is in, and the number of units of the largest."""
    degree, width = jnp.zeros(size, jnp.int32), jnp.ones(size, jnp.int32)
    for part in engine.parts:
        if group in part.ends:
            found = part.counts(group, size)
            degree, width = degree + found[0], jnp.maximum(width, found[1])
    return jnp.maximum(degree, 1), width


def _shares(
    engine: Engine, fields: Sequence[Any], instance: Instance
) -> tuple[list[Float[Array, "..."]], list[Bool[Array, "n states"]]]:
    """Scores less the largest of each unit, divided by the number of its factors, zero for states
    that are excluded; and which are. By group.
    """
    shares, excluded = [], []
    for group, (form, *own) in enumerate(zip(engine.numbered, fields, instance.clamp, strict=True)):
        rows = form.shifted(*own)[0].rows
        degree = _counts(engine, group, len(rows))[0].astype(rows.dtype)
        out = rows < EXCLUDED / 2
        shares.append(form.message(jnp.where(out, jnp.zeros_like(rows), rows / degree[:, None])))
        excluded.append(out)
    return shares, excluded


def _engine(model: AbstractModel) -> Engine:
    one = np.ones((), model.dtype)
    return messages.engine(model, product="max", temperature=one, leaves=False)


def _ended(
    limits: Limits, engine: Engine, instance: Instance
) -> tuple[State, Instance, Float[Array, ""], Went]:
    """The messages that those at the end are answered with: these leave no preference. With them,
    the instance as messages take it, the dual bound, and how it went.
    """
    instance = engine.posed(instance)
    start = engine.start(instance, "plain")
    shares, _ = _shares(engine, start.fields, instance)
    edges = _less(start.messages, [part.spread(shares) for part in engine.parts])
    state, iterations, residual = limits.iterate(
        lambda state: _relaxed(engine, state, instance), _even(engine, edges, instance)
    )
    bound = messages.log_partition(engine, state, instance)
    converged = (bound > -jnp.inf) & (residual <= limits.tol)
    went = Went(converged, iterations, residual)
    return engine.update(state, instance), instance, bound, went


@eqx.filter_jit
def _solved(limits: Limits, problem: Problem) -> tuple[Any, Float[Array, "*batch"], Went]:
    """What is known of all units, the dual bound, and how it went."""
    engine = _engine(problem.model)

    def one(instance: Instance) -> tuple[Any, Float[Array, ""], Went]:
        state, posed, bound, went = _ended(limits, engine, instance)
        return engine.beliefs(state, posed), bound, went

    return each(one, problem.instances(), problem.shape, chunk_of(problem.model))


@eqx.filter_jit
def _statistics(limits: Limits, problem: Problem) -> Statistics:
    """The statistics of the decoded configurations."""
    model, one = problem.model, _decoded(limits, problem.model)
    (units, went), pairs = each_and_mean(one, problem.instances(), problem.shape, chunk_of(model))
    squares = (None,) * len(model.layers)
    return Statistics(problem.expected(units), model.by_factor(pairs), squares, *went)


@eqx.filter_jit
def _met(limits: Limits, problem: Problem) -> PyTree:
    """The statistics of the decoded configuration of each instance."""
    model, one = problem.model, _decoded(limits, problem.model)
    found = each(lambda at: one(at)[1], problem.instances(), problem.shape, chunk_of(model))
    return model.by_factor(found)


def _decoded(limits: Limits, model: AbstractModel) -> Callable[[Instance], tuple[Any, PyTree]]:
    """A function from an instance to its decoded states, how it went and their statistics."""
    engine = _engine(model)

    def one(instance: Instance) -> tuple[tuple[Any, Went], PyTree]:
        state, posed, _, went = _ended(limits, engine, instance)
        found = messages.statistics(engine, state, posed)
        return (found.units, went), found.pairs

    return one
