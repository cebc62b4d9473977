import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .._types import AnyArray
from ..inference._base import fits, in_form
from ..learners import AbstractLearner, StepInfo
from ..learners._base import only
from ..messages import Form
from ._data import Feed
from ._program import Program
from ._recorder import recorded


class Training(eqx.Module):
    """The constants of a run."""

    learner: AbstractLearner
    static: PyTree
    build: Callable | None
    project: Callable | None
    augment: Callable | None
    average: Float[AnyArray, ""] | None
    sharding: Any = eqx.field(static=True)
    form: Form | None = eqx.field(static=True, default=None)
    update: Program | None = None

    def free(self, parameters: PyTree) -> Any:
        return eqx.combine(parameters, self.static)

    def model(self, parameters: PyTree) -> Any:
        free = self.free(parameters)
        return free if self.build is None else self.build(free)

    def fits(self, model: Any, epoch: int | Int[Array, ""]) -> Bool[Array, ""] | None:
        """Whether the fast form of messages is accurate enough; None if there is no choice."""
        return fits(self.learner, model, epoch)

    def in_form(self, form: Form | None) -> "Training":
        """The same with a fixed form of messages, so that only that one is compiled."""
        if form is None:
            return self
        learner = in_form(self.learner, form)
        return dataclasses.replace(self, learner=learner, form=form)


class TrainState(eqx.Module):
    """What changes with each step. `fault` is the first step whose gradient was not finite and the
    number of the parameter, or -1: the device stops after it. It stops before a step whose weights
    have outgrown the form of the messages.
    """

    parameters: PyTree
    average: PyTree
    optimizer: PyTree
    learner: PyTree
    step: Int[Array, ""]
    fault: Int[Array, " 2"]
    recorder: PyTree = None


def start(
    training: Training, optimizer: optax.GradientTransformation, parameters: PyTree, key: Any
) -> tuple[Training, TrainState]:
    """The state before the first step, and the training with its optimizer."""
    parameters = jax.tree.map(jnp.asarray, parameters)
    # Optax mixes dtypes, which the user may have disabled.
    with jax.numpy_dtype_promotion("standard"):
        begun = compiled(Program.__call__, 0)(Program(optimizer.init, parameters), parameters)
        update = Program(optimizer.update, parameters, begun, parameters)
    return dataclasses.replace(training, update=update), first(training, parameters, begun, key)


def first(training: Training, parameters: PyTree, optimizer: PyTree, key: Any) -> TrainState:
    """The state before the first step, given that of the optimiser."""
    return TrainState(
        parameters=parameters,
        average=None if training.average is None else parameters,
        optimizer=optimizer,
        learner=training.learner.init(training.model(parameters), key=key),
        step=jnp.asarray(np.zeros((), np.int32)),
        fault=jnp.asarray(np.full(2, -1, np.int32)),
    )


def compiled(function: Callable, level: int = 2) -> Callable:
    """The function, compiled as suits the device: at a level from 0 to 3 on CPUs, where the highest
    takes a quarter longer than that before it and gains nothing measurable in training.
    """
    return _compiled(function, level, jax.default_backend())


@functools.cache
def _compiled(function: Callable, level: int, platform: str) -> Callable:
    options = {"xla_backend_optimization_level": level} if platform == "cpu" else None
    return eqx.filter_jit(function, compiler_options=options)  # pyright: ignore


def advance(
    training: Training,
    opened: Training,
    state: TrainState,
    feed: Feed,
    keys: tuple[PRNGKeyArray, PRNGKeyArray],
    epoch: Int[AnyArray, ""],
    done: Int[AnyArray, ""],
    number: Int[AnyArray, ""],
    room: int,
) -> tuple[TrainState, Float[Array, "infos room"]]:
    """`number` steps at once, through as many epochs as that takes, after `done` steps of `epoch`.
    Their infos come back in arrays of length `room`. New numbers need no compilation.
    `opened` is the training whose form is open, to look whether the one of `training` still serves.
    The first of the keys is for the orders of rows, the second for the steps.
    """

    def order(epoch: Int[Array, ""]) -> Int[Array, " rows"]:
        return feed.order(keys[0], epoch)

    def more(state: TrainState, epoch: Int[Array, ""]) -> Bool[Array, ""]:
        good = state.fault[0] < 0
        if training.form != "odds":
            return good
        serves = opened.fits(training.model(state.parameters), epoch)
        return good if serves is None else good & serves

    def one(state: TrainState, rows: Any, k: Any, epoch: Any) -> tuple[TrainState, Array]:
        state, info = step(training, state, feed.batch(rows, k), keys[1], epoch)
        return state, column(info)

    infos = jnp.zeros((len(StepInfo._fields), room), jnp.float32)
    _, state, infos = walk(feed, (epoch, done), number, state, infos, order, more, one)
    return state, infos


def column(info: StepInfo) -> Float[Array, " infos"]:
    """One array, since each that changes costs the compiler time."""
    return jnp.stack([x.astype(jnp.float32) for x in info])


def walk(
    feed: Feed,
    start: tuple[Int[AnyArray, ""], Int[AnyArray, ""]],
    number: Int[AnyArray, ""],
    state: TrainState,
    infos: Float[Array, "*lanes infos room"],
    order: Callable[[Array], Array],
    more: Callable[[TrainState, Array], Array],
    one: Callable[[TrainState, Array, Array, Array], tuple[TrainState, Array]],
) -> tuple[Int[Array, ""], TrainState, Float[Array, "*lanes infos room"]]:
    """`number` steps from a place on, an epoch and how many of its steps are done, through the
    epochs that follow: as long as `more(state, epoch)`. `order(epoch)` is that of the rows, and
    `one(state, order, k, epoch)` makes step `k`. Returns how many steps were made as well.
    """

    def place(i: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        position = i + start[1]
        return position // feed.steps + start[0], position % feed.steps

    def unfinished(carry: tuple) -> Bool[Array, ""]:
        i, state, _, _ = carry
        return (i < number) & more(state, place(i)[0])

    def body(carry: tuple) -> tuple:
        i, state, rows, infos = carry
        epoch, k = place(i)
        rows = jax.lax.cond((i == 0) | (k == 0), lambda: order(epoch), lambda: rows)
        state, new = one(state, rows, k, epoch)
        infos = jax.lax.dynamic_update_slice_in_dim(infos, new[..., None], i, infos.ndim - 1)
        return i + 1, state, rows, infos

    none = jnp.zeros((), jnp.int32)
    rows = jax.tree.map(jnp.zeros_like, jax.eval_shape(order, none))
    made, state, _, infos = jax.lax.while_loop(unfinished, body, (none, state, rows, infos))
    return made, state, infos


def step(
    training: Training,
    state: TrainState,
    batch: PyTree,
    key: PRNGKeyArray,
    epoch: Int[Array, ""],
) -> tuple[TrainState, StepInfo]:
    noise, own = jax.random.split(jax.random.fold_in(key, state.step))
    if training.augment is not None:
        batch = training.augment(batch, key=noise)
    if training.sharding is not None:
        batch = jax.lax.with_sharding_constraint(batch, training.sharding)
    model, pull = eqx.filter_vjp(training.model, state.parameters)
    gradient, learner, info = training.learner.step(
        model, state.learner, batch, key=own, epoch=epoch
    )
    (gradient,) = pull(gradient if training.build is None else gradient.by_entries())
    assert training.update is not None
    updates, optimizer = training.update(gradient, state.optimizer, state.parameters)
    if training.build is None:
        updates = only(training.learner.trained(model), updates)
    parameters = eqx.apply_updates(state.parameters, updates)
    if training.project is not None:
        parameters = eqx.filter(training.project(training.free(parameters)), eqx.is_inexact_array)
    average = state.average
    if training.average is not None:
        # The mean of few steps at first, so that the start is forgotten.
        t = state.step.astype(jnp.float32)
        decay = jnp.minimum((1 + t) / (10 + t), jnp.asarray(training.average))
        average = jax.tree.map(
            lambda a, p: a + (1 - decay).astype(p.dtype) * (p - a), average, parameters
        )
    recorder = state.recorder
    if recorder is not None:
        # The two keys above are those of 0 and 1.
        extra = jax.random.fold_in(jax.random.fold_in(key, state.step), 2)
        recorder = recorded(recorder, model, state.step, extra)
    # Zero times a number that is not finite is NaN, and all other sums are 0.
    pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(parameters), strict=True)
    finite = jnp.stack([jnp.isfinite((0 * g + 0 * p).sum()) for g, p in pairs])
    here = jnp.stack([state.step, jnp.argmin(finite).astype(jnp.int32)])
    fault = jnp.where(finite.all(), state.fault, here)
    new = TrainState(parameters, average, optimizer, learner, state.step + 1, fault, recorder)
    return new, info
