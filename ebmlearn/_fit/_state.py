import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ..inference._base import fits, in_form
from ..learners import AbstractLearner, StepInfo
from ..learners._base import only
from ..messages import Form


class Training(eqx.Module):
    """What stays the same all through a run."""

    learner: AbstractLearner
    optimizer: optax.GradientTransformation
    static: PyTree
    build: Callable | None
    project: Callable | None
    augment: Callable | None
    average: float | None = eqx.field(static=True)
    sharding: Any = eqx.field(static=True)
    form: Form | None = eqx.field(static=True, default=None)

    def free(self, parameters: PyTree) -> Any:
        return eqx.combine(parameters, self.static)

    def model(self, parameters: PyTree) -> Any:
        free = self.free(parameters)
        return free if self.build is None else self.build(free)

    def fits(self, model: Any, epoch: int | Int[Array, ""]) -> Bool[Array, ""] | None:
        """Whether messages may be sent in their fast form; None if the learner sends none whose
        form is open.
        """
        return fits(self.learner, model, epoch)

    def in_form(self, form: Form | None) -> "Training":
        """The same with the form of messages settled, so that only that one is compiled."""
        if form is None:
            return self
        learner = in_form(self.learner, form)
        return dataclasses.replace(self, learner=learner, form=form)


class TrainState(eqx.Module):
    """What changes with each step. `fault` is the first step whose gradient was not finite and the
    number of the parameter, or -1: from then on nothing changes any more. Nor does anything where
    the weights have outgrown the form of the messages: `step` then falls short.
    """

    parameters: PyTree
    average: PyTree
    optimizer: PyTree
    learner: PyTree
    step: Int[Array, ""]
    fault: Int[Array, " 2"]


def start(training: Training, parameters: PyTree, key: PRNGKeyArray) -> TrainState:
    # Copied, so that the user's own arrays are never given away.
    parameters = jax.tree.map(jnp.array, parameters)
    return TrainState(
        parameters=parameters,
        average=None if training.average is None else parameters,
        optimizer=training.optimizer.init(parameters),
        learner=training.learner.init(training.model(parameters), key=key),
        step=jnp.zeros((), jnp.int32),
        fault=jnp.full(2, -1, jnp.int32),
    )


@eqx.filter_jit
def advance(
    training: Training,
    opened: Training,
    state: TrainState,
    data: PyTree,
    order: Int[Array, " rows"],
    key: PRNGKeyArray,
    epoch: Int[Array, ""],
    first: Int[Array, ""],
    number: Int[Array, ""],
    batch_size: int,
    room: int,
) -> tuple[TrainState, Float[Array, "infos room"]]:
    """`number` steps at once, from the batch `first` of this epoch's order on. Their infos come
    back in arrays of length `room`. Neither number compiles anything anew. `opened` is the training
    whose form is open, to look whether the one of `training` still serves.
    """

    def one(i: Int[Array, ""], carry: tuple) -> tuple:
        state, infos = carry
        rows = jax.lax.dynamic_slice(order, ((first + i) * batch_size,), (batch_size,))
        batch = jax.tree.map(lambda x: x[rows], data)
        state, info = _step(training, opened, state, batch, key, epoch)
        # One array, since each that changes costs the compiler time.
        return state, infos.at[:, i].set(jnp.stack([x.astype(infos.dtype) for x in info]))

    infos = jnp.zeros((len(StepInfo._fields), room), jnp.float32)
    return jax.lax.fori_loop(0, number, one, (state, infos))


def _step(
    training: Training,
    opened: Training,
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
    # Optax mixes dtypes, which a user may have forbidden.
    with jax.numpy_dtype_promotion("standard"):
        updates, optimizer = training.optimizer.update(gradient, state.optimizer, state.parameters)
    if training.build is None:
        updates = only(training.learner.trained(model), updates)
    parameters = eqx.apply_updates(state.parameters, updates)
    if training.project is not None:
        parameters = eqx.filter(training.project(training.free(parameters)), eqx.is_inexact_array)
    average = state.average
    if training.average is not None:
        # The mean of few steps at first, so that the start is forgotten.
        t = state.step.astype(jnp.float32)
        decay = jnp.minimum((1 + t) / (10 + t), training.average)
        average = jax.tree.map(
            lambda a, p: a + (1 - decay).astype(p.dtype) * (p - a), average, parameters
        )
    finite = jnp.stack(
        [
            (jnp.isfinite(g) & jnp.isfinite(p)).all()
            for g, p in zip(jax.tree.leaves(gradient), jax.tree.leaves(parameters), strict=True)
        ]
    )
    serves = opened.fits(model, epoch) if training.form == "odds" else None
    serves = jnp.asarray(True) if serves is None else serves
    good = finite.all() & (state.fault[0] < 0) & serves
    here = jnp.stack([state.step, jnp.argmin(finite).astype(jnp.int32)])
    new = TrainState(parameters, average, optimizer, learner, state.step + 1, state.fault)
    faulty = serves & (state.fault[0] < 0)
    old = eqx.tree_at(lambda s: s.fault, state, jnp.where(faulty, here, state.fault))
    return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, old), info
