import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key as PRNGKeys, PRNGKeyArray, PyTree

from .. import _checks, messages
from .._types import AnyArray, Batch
from ..inference import sends_messages
from ..learners import AbstractLearner, only, StepInfo
from ..models import AbstractModel, AbstractPlainModel
from ..samplers import Trajectory, TrajectoryTempering, TrajectoryTemperingState
from ..samplers._trajectory_tempering import followed, RATE
from ._program import Program


# Chains that measure how often neighbours of a recorded trajectory swap, and how many steps of
# training lie between their steps.
CHAINS = 20
EVERY = 10
Keys = PRNGKeys[Array, "*lanes"]
Optimizers = Sequence[optax.GradientTransformation]


class Feed(eqx.Module):
    """The source of batches on the device: all rows, shuffled in each epoch, or one batch."""

    data: PyTree
    steps: int = eqx.field(static=True)  # of an epoch
    batch_size: int | None = eqx.field(static=True)  # None if `data` is a batch

    @property
    def rows(self) -> int:
        return jax.tree.leaves(self.data)[0].shape[0]

    def order(self, key: PRNGKeyArray, epoch: Int[Array, ""]) -> Int[Array, " rows"]:
        """The order of the rows in an epoch."""
        if self.batch_size is None:
            return jnp.zeros(0, jnp.int32)
        own = jax.random.fold_in(key, epoch)
        return jax.random.permutation(own, self.rows).astype(jnp.int32)

    def batch(self, order: Int[Array, " rows"], k: Int[Array, ""]) -> PyTree:
        """The `k`-th batch in an order."""
        if self.batch_size is None:
            return self.data
        rows = jax.lax.dynamic_slice(order, (k * self.batch_size,), (self.batch_size,))
        return jax.tree.map(lambda x: x.at[rows].get(mode="promise_in_bounds"), self.data)

    def first(self) -> PyTree:
        """Rows to check the model against."""
        return jax.tree.map(lambda x: x[: self.batch_size], self.data)


class Training(eqx.Module):
    """The constants of a run. If there are `many` lanes, each array of the state of the run, of its
    keys and of the numbers of `update` has a leading axis for them; a run of `fit` is one lane
    without that axis.
    """

    learner: AbstractLearner
    static: PyTree
    build: Callable | None
    project: Callable | None
    augment: Callable | None
    average: Float[AnyArray, ""] | None
    sharding: Any = eqx.field(static=True)
    many: bool = eqx.field(static=True)
    # Whether it is compiled for moderate parameters, or for any; None if that is the same.
    moderate: bool | None = eqx.field(static=True, default=None)
    update: Program | None = None

    def free(self, parameters: PyTree) -> Any:
        return eqx.combine(parameters, self.static)

    def model(self, parameters: PyTree) -> Any:
        free = self.free(parameters)
        return free if self.build is None else self.build(free)

    def counted(self, state: "TrainState") -> PyTree:
        """The running mean of the parameters if there is one, else the parameters."""
        return state.parameters if self.average is None else state.average

    def each(self, function: Callable) -> Callable:
        """A function of one lane as one of all lanes."""
        return jax.vmap(function) if self.many else function

    def apart(self, tree: PyTree, number: int) -> list[PyTree]:
        """A pytree of all lanes as one for each."""
        if not self.many:
            return [tree]
        # Moved all together, since each array that is moved by itself takes time.
        tree = jax.tree.map(np.asarray, tree)
        return jax.device_put([jax.tree.map(lambda x: x[k], tree) for k in range(number)])  # noqa: B023

    def are_moderate(self, tree: Any, parameters: PyTree) -> Bool[AnyArray, "*lanes"] | None:
        """Whether the parameters of each lane are moderate; None if that makes no difference to a
        learner or a metric.
        """
        if not sends_messages(tree):
            return None
        return self.each(lambda own: messages.moderate(self.model(own).bare()))(parameters)


class TrainState(eqx.Module):
    """What changes with each step. `fault` is the first step whose gradient was not finite and the
    number of the parameter, or -1: the device stops after it. It stops before a step whose
    parameters are no longer moderate, if it is compiled for those that are.
    """

    parameters: PyTree
    average: PyTree
    optimizer: PyTree
    learner: PyTree
    step: Int[Array, "*lanes"]
    fault: Int[Array, "*lanes 2"]
    recorder: TrajectoryTemperingState | None = None

    @property
    def chains(self) -> list[TrajectoryTemperingState]:
        """The states of trajectories that `fit` or a sampler of the learner follows."""

        def is_chains(x: Any) -> bool:
            return isinstance(x, TrajectoryTemperingState)

        own = self.recorder, self.learner
        return [x for x in jax.tree.leaves(own, is_leaf=is_chains) if is_chains(x)]


def trajectory_of(
    chains: list[TrajectoryTemperingState], model: AbstractModel
) -> Trajectory | None:
    """The trajectory that chains follow, ending at a model; None if there are none."""
    return chains[0].trajectory.ending(model) if chains else None


def is_full(chains: list[TrajectoryTemperingState]) -> bool:
    """Whether a trajectory that chains follow had no room to grow."""
    return any(
        len(x.trajectory) == x.trajectory.capacity and bool(x.rates[-1] < RATE) for x in chains
    )


def start(
    training: Training, optimizers: Optimizers, parameters: PyTree, keys: Keys
) -> tuple[Training, TrainState]:
    """The state before the first step, and the training with its optimizers, compiled for the
    parameters of all lanes.
    """
    # Optax mixes dtypes, which the user may have disabled.
    with jax.numpy_dtype_promotion("standard"):
        init = _together(training, optimizers, "init", parameters)
        run = _IN_LANES if training.many else Program.__call__
        begun = compiled(run, 0)(init, parameters)
        update = _together(training, optimizers, "update", parameters, begun, parameters)
    # Many lanes are compiled, since each operation of its own would be compiled for them.
    first = compiled(_first) if training.many else _first
    state = first(training, parameters, begun, keys)
    found = training.are_moderate(training.learner, parameters)
    moderate = None if found is None else bool(np.asarray(found).all())
    return dataclasses.replace(training, update=update, moderate=moderate), state


def _first(training: Training, parameters: PyTree, optimizer: PyTree, keys: Keys) -> TrainState:
    def one(parameters: PyTree, optimizer: PyTree, key: PRNGKeyArray) -> TrainState:
        return TrainState(
            parameters=parameters,
            average=None if training.average is None else parameters,
            optimizer=optimizer,
            learner=training.learner.init(training.model(parameters), key=key),
            step=jnp.asarray(np.zeros((), np.int32)),
            fault=jnp.asarray(np.full(2, -1, np.int32)),
        )

    return training.each(one)(parameters, optimizer, keys)


_IN_LANES = jax.vmap(Program.__call__)


def _together(training: Training, optimizers: Optimizers, name: str, *arguments: PyTree) -> Program:
    """A function of optimizers that differ only in their numbers, as one program."""
    lanes = int(training.many)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[lanes:], x.dtype), arguments)
    # An optimiser that serves several lanes is traced once.
    owners = {id(one): one for one in optimizers}
    known = {k: Program(getattr(one, name), *shapes) for k, one in owners.items()}
    programs = [known[id(one)] for one in optimizers]
    if not training.many:
        return programs[0]
    # Their structures hold all operations, but no numbers.
    if len({jax.tree.structure(one) for one in programs}) > 1:
        raise ValueError(
            "`optimizer` must hold optimizers that differ only in their numbers, got others."
        )
    return jax.tree.map(lambda *x: np.stack(x), *programs)


@functools.cache
def compiled(function: Callable, level: int = 2) -> Callable:
    """The function, compiled as suits the device: at a level from 0 to 3 on CPUs, where the highest
    takes a quarter longer than that before it and gains nothing measurable in training.
    """
    cpu = jax.default_backend() == "cpu"
    options = {"xla_backend_optimization_level": level} if cpu else None
    return eqx.filter_jit(function, compiler_options=options)  # pyright: ignore


def advance(
    training: Training,
    state: TrainState,
    feed: Feed,
    keys: tuple[Keys, Keys],
    active: Bool[AnyArray, "*lanes"],
    epoch: Int[AnyArray, ""],
    done: Int[AnyArray, ""],
    number: Int[AnyArray, ""],
    room: int,
) -> tuple[TrainState, Float[Array, "*lanes infos room"], Float[Array, "*lanes"]]:
    """`number` steps at once of all active lanes, through as many epochs as that takes, after
    `done` steps of `epoch`. Their infos come back in arrays of length `room`, and then the largest
    absolute parameter of each lane. New numbers need no compilation. The first of the keys is for
    the orders of rows, the second for the steps.

    Of many lanes, those that are not active or have met a gradient that is not finite stay as they
    are. A single one is not held there, which costs time: it is not used after such a gradient.
    """

    def place(i: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        position = i + done
        return position // feed.steps + epoch, position % feed.steps

    def order(epoch: Int[Array, ""]) -> Int[Array, "*lanes rows"]:
        return training.each(lambda key: feed.order(key, epoch))(keys[0])

    def on(state: TrainState) -> Bool[Array, "*lanes"]:
        return jnp.asarray(active) & (state.fault[..., 0] < 0)

    def unfinished(carry: tuple) -> Bool[Array, ""]:
        i, state, _, _ = carry
        now = on(state)
        more = (i < number) & now.any()
        if not training.moderate:
            return more
        still = training.are_moderate(training.learner, state.parameters)
        return more if still is None else more & (still | ~now).all()

    def body(carry: tuple) -> tuple:
        i, state, rows, infos = carry
        epoch, k = place(i)
        rows = jax.lax.cond((i == 0) | (k == 0), lambda: order(epoch), lambda: rows)

        def lane(update: Program, old: TrainState, order: Array, key: Array, on: Array) -> tuple:
            own = dataclasses.replace(training, update=update)
            with messages.assuming(training.moderate):
                new, info = step(own, old, feed.batch(order, k), key, epoch)
            if training.many:
                good = on & (new.fault[0] < 0)
                kept = jax.tree.map(lambda a, b: jnp.where(good, a, b), new, old)
                fault = jnp.where(on, new.fault, old.fault)
                new = dataclasses.replace(kept, fault=fault)
            # One array, since each that changes costs the compiler time.
            return new, jnp.stack([x.astype(jnp.float32) for x in info])

        state, new = training.each(lane)(training.update, state, rows, keys[1], on(state))
        infos = jax.lax.dynamic_update_slice_in_dim(infos, new[..., None], i, infos.ndim - 1)
        return i + 1, state, rows, infos

    none = jnp.zeros((), jnp.int32)
    rows = jax.tree.map(jnp.zeros_like, jax.eval_shape(order, none))
    infos = jnp.zeros((*active.shape, len(StepInfo._fields), room), jnp.float32)
    _, state, _, infos = jax.lax.while_loop(unfinished, body, (none, state, rows, infos))
    return state, infos, training.each(largest)(state.parameters)


def largest(parameters: PyTree) -> Float[Array, ""]:
    """The largest absolute value of all parameters; 0 if there are none."""
    sizes = [jnp.abs(x).max(initial=0).astype(jnp.float32) for x in jax.tree.leaves(parameters)]
    return jnp.stack([jnp.zeros((), jnp.float32), *sizes]).max()


def step(
    training: Training, state: TrainState, batch: PyTree, key: PRNGKeyArray, epoch: Int[Array, ""]
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


def recorder(
    trajectory: int | Trajectory, model: AbstractPlainModel, batch: Batch, key: PRNGKeyArray
) -> TrajectoryTemperingState:
    """Chains on a trajectory from the base-rate model, or on a given one."""
    if not isinstance(trajectory, Trajectory):
        if not isinstance(trajectory, int) or isinstance(trajectory, bool):
            got = _checks.describe(trajectory)
            raise TypeError(
                "`trajectory` must be the number of models there is room for, or a `Trajectory`,"
                f" got {got}."
            )
        _checks.count("trajectory", trajectory, 2)
        trajectory = Trajectory.start(model, batch, trajectory)
    return TrajectoryTempering(trajectory).init(model, CHAINS, key=key)


def recorded(
    state: TrajectoryTemperingState, model: PyTree, step: Int[Array, ""], key: PRNGKeyArray
) -> TrajectoryTemperingState:
    """After a step of training. Every few steps, two steps of the chains try all pairs once."""
    sampler = TrajectoryTempering(state.trajectory)

    def run(state: TrajectoryTemperingState) -> TrajectoryTemperingState:
        for own in jax.random.split(key):
            state, _ = sampler.step(model, state, key=own)
        return followed(state, model)

    return jax.lax.cond(step % EVERY == 0, run, lambda state: state, state)
