import dataclasses
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import PyTree

from .. import _checks
from .._types import Data, Key
from ..inference import with_traced
from ..learners import AbstractComparedMetric, AbstractLearner
from ..models import AbstractModel, has_nan
from ..samplers import Trajectory
from ._checkpoint import Checkpoint, Keeper
from ._file import checksum
from ._growth import Growth
from ._history import EpochReport, Fitted
from ._run import Batches, Run
from ._state import Feed, recorder, start, Training
from ._validation import as_validation, chain_check, Judge, metric_of, Validation


_own_projection = operator.methodcaller("project")


# Arguments of earlier versions and of other libraries, and what to write instead.
MOVED = {
    "metric": "validation=Validation(data, metric)",
    "validate_every": "validation=Validation(data, every=steps)",
    "patience": "validation=Validation(data, patience=5)",
    "equilibrium": "validation=Validation(equilibrium=True)",
    "resume": "checkpoint=Checkpoint(folder, resume=False)",
    "learning_rate": "optimizer=optax.adam(1e-3)",
    "lr": "optimizer=optax.adam(1e-3)",
}


@_checks.usage("fit(model, learner, data)", **MOVED)
def fit(
    model: PyTree,
    learner: AbstractLearner,
    data: Data | PyTree,
    *,
    optimizer: optax.GradientTransformation | None = None,
    epochs: int = 10,
    batch_size: int | None = None,
    key: Key = 0,
    validation: PyTree | Validation = None,
    checkpoint: str | os.PathLike | Checkpoint | None = None,
    augment: Callable[..., PyTree] | None = None,
    average: float | None = None,
    build: Callable[[PyTree], AbstractModel] | None = None,
    project: Callable[[PyTree], PyTree] | None = None,
    trajectory: int | Trajectory | None = None,
    callbacks: Sequence[Callable[[EpochReport], object]] = (),
    mesh: jax.sharding.Mesh | None = None,
    progress: bool = True,
) -> Fitted:
    """Trains a model. All randomness comes from `key`, so the same call gives the same result.

    !!! example

        ```python
        from ebmlearn import datasets

        digits = datasets.digits()
        fitted = ebmlearn.fit(
            ebmlearn.RBM.init(visible=64, hidden=32),
            ebmlearn.SAP(),
            digits.train.x,
            optimizer=optax.adam(1e-2),
            epochs=5,
            validation=digits.valid.x,
            checkpoint="run",
        )
        fitted.model, fitted.history.epochs["metric"]
        ```

    **Arguments:**

    - `model`: the model to train; with `build`, any pytree of free parameters.
    - `learner`: for instance [`ebmlearn.MLE`][].
    - `data`: an array of visible units `[rows, visible]`; for a CRBM the pair (features, visible);
      for a FactorGraphModel a dictionary from groups of variables to their states. Data frames,
      lists of lists, sparse matrices and arrays of other libraries work too. NaN is a missing
      value: [`ebmlearn.MLE`][], [`ebmlearn.SAP`][] and [`ebmlearn.QueryTraining`][] treat a visible
      unit that is NaN as unobserved. `data` may also be an iterable of batches that can be iterated
      once in each epoch.
    - `optimizer`: any Optax optimizer that needs only gradients and parameters; `optax.adam(1e-3)`
      by default. Schedules count steps. If only the numbers of an optimizer change, nothing is
      compiled again.
    - `epochs`: the number of passes over the data. Each pass shuffles the rows and leaves out the
      rows that do not fill a batch.
    - `batch_size`: rows per step; by default 100, or all rows if there are fewer. Leave it out if
      `data` yields batches.
    - `key`: a seed, or a key such as `jax.random.key(0)`.
    - `validation`: data to judge the model by after each epoch, in the same form as `data`, or a
      [`ebmlearn.Validation`][], which also says by what, how often, and when to stop.
    - `checkpoint`: a folder or a [`ebmlearn.Checkpoint`][]. If it holds a stopped run, `fit`
      resumes it bit for bit; `epochs` includes the epochs already done. `fit` raises an error if
      the kind of model, the learner, `average`, the key or the arrays of data have changed.
      Iterables, optimizer settings and callbacks are not checked; keep them unchanged.
    - `augment`: a function `augment(batch, key=key)` that returns the batch to learn from, for
      instance with new noise in each epoch. It is compiled: draw from `key` with `jax.random`,
      because NumPy's random numbers would be the same at every step.
    - `average`: the decay of a running mean of the parameters, for instance 0.999. `fit` then
      validates and returns the mean.
    - `build`: a function from free parameters to the model, for instance to tie parameters.
    - `project`: a function that maps the parameters to allowed ones after each step. By default the
      `project` of the model; none with `build`.
    - `trajectory`: the number of models there is room for in a [`ebmlearn.Trajectory`][] that is
      recorded for [`ebmlearn.TrajectoryTempering`][], or a trajectory that training continues. It
      starts at the base-rate model of the data. A model is added when it swaps with the last one in
      less than 0.3 of all cases, as 20 chains on the trajectory measure every 10 steps. They cost
      about 8 sweeps of one row for each step and each model there is room for. Checkpoints hold the
      trajectory, and `fitted.trajectory` is the result.
    - `callbacks`: functions of an `EpochReport`, called after each epoch; one that returns True
      stops the run.
    - `mesh`: devices to split each batch over, along the first axis of the mesh.
    - `progress`: whether to show a progress bar.

    **Returns:**

    A [`ebmlearn.Fitted`][]. Ctrl-C stops the run, saves it if there is a checkpoint and returns the
    result so far. A gradient that is not finite raises `FloatingPointError` and leaves the last
    checkpoint in place.
    """
    _checks.instance("callbacks", callbacks, Sequence, "a list of functions")
    optimizer = optax.adam(1e-3) if optimizer is None else optimizer
    judging = as_validation(validation)
    asked = Asked(learner, epochs, batch_size, judging, project, build, augment, average)
    asked = asked._replace(mesh=mesh, trajectory=trajectory)
    run = prepared(asked, [model], data, [optimizer], [key])
    run.callbacks = callbacks
    if checkpoint is not None:
        settings = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        kind = type(run.training.model(run.now.state.parameters)).__name__
        about = {"model": kind, "learner": _described(learner), **_about(run.rows)}
        about |= {} if average is None else {"average": float(average)}
        if trajectory is not None:
            about["trajectory"] = getattr(trajectory, "capacity", trajectory)
        about["key"] = np.asarray(jax.random.key_data(_checks.as_key(key))).tolist()
        run.keep_in(Keeper(settings, about))
    (fitted,) = run.to_end(epochs, judging.patience, progress)
    if fitted.stopped == "interrupted":
        print(run.interruption())
    return fitted


class Asked(NamedTuple):
    """The arguments that mean the same in `fit` and in `fit_many`."""

    learner: AbstractLearner
    epochs: int
    batch_size: int | None
    validation: Validation
    project: Callable | None
    build: Callable | None
    augment: Callable | None
    average: float | None
    # Those of `fit` alone.
    mesh: jax.sharding.Mesh | None = None
    trajectory: int | Trajectory | None = None


def prepared(
    asked: Asked,
    models: Sequence[PyTree],
    data: Data | PyTree,
    optimizers: Sequence[optax.GradientTransformation],
    keys: Sequence[Key],
    many: bool = False,
) -> Run:
    """A run of arguments that are checked, before its first step."""
    _check_arguments(asked, optimizers)
    learner, augment, mesh = asked.learner, asked.augment, asked.mesh
    own = [_checks.as_key(key) for key in keys]
    built, rows = _opened(asked, models[0], data, own[0])
    validation = _checks.as_data("validation", asked.validation.data)
    metric = metric_of(asked.validation.metric, learner, built, validation)
    project = asked.project
    if project is None and asked.build is None:
        project = _own_projection
    average = None if asked.average is None else np.asarray(asked.average, np.float32)
    parts = [eqx.partition(model, eqx.is_inexact_array) for model in models]
    # Free parameters that a model is built from have a scale of their own, as real units do.
    bounded = asked.build is None and getattr(built.bare(), "finite", False)
    growth = Growth([x for x, _ in parts], bounded, many)
    parameters, static = parts[0]
    orders, steps, inits = jax.random.split(own[0], 3)
    if many:
        shapes = [(jax.eval_shape(lambda x: x, x), static) for x, static in parts]
        if not eqx.tree_equal(*shapes, shapes[0]):
            raise ValueError(
                "`model` must hold models of the same kind and shape, got different ones."
            )
        # By NumPy, since each array that is moved by itself takes time.
        parameters = jax.tree.map(lambda *x: np.stack(x), *jax.device_get([x for x, _ in parts]))
        split = jax.vmap(lambda key: jax.random.split(key, 3), out_axes=1)
        orders, steps, inits = split(jnp.stack(own))
    fixed = static, asked.build, project, augment, average
    training = Training(with_traced(learner), *fixed, _sharding(mesh, rows.batch_size), many)
    parameters = jax.tree.map(jnp.asarray, parameters)
    training, state = start(training, optimizers, parameters, inits)
    judged = Judge(metric, jax.tree.map(jnp.asarray, validation), asked.validation.every)
    if isinstance(metric, AbstractComparedMetric):
        judged.simple = metric.simple(built, all_rows(rows, augment, own[0]), judged.data)
    if asked.trajectory is not None:
        if state.chains:
            raise ValueError(
                "`trajectory` must be None for a learner whose sampler has a trajectory, got"
                f" {_checks.describe(asked.trajectory)}: `fitted.trajectory` is that of the"
                " sampler."
            )
        batch, its_key = all_rows(rows, augment, own[0]), jax.random.fold_in(inits, 1)
        begun = recorder(asked.trajectory, training.model(parameters), batch, its_key)
        state = dataclasses.replace(state, recorder=begun)
    if training.sharding is not None:
        everywhere = NamedSharding(training.sharding.mesh, PartitionSpec())
        state = jax.device_put(state, everywhere)
        rows = jax.device_put(rows, everywhere) if isinstance(rows, Feed) else rows
    if asked.validation.equilibrium:
        batch, its_key = all_rows(rows, augment, own[0]), jax.random.fold_in(inits, 2)
        judged.chains = chain_check(learner, batch, its_key)
    return Run(training, state, rows, (orders, steps), judged, growth)


def _opened(
    asked: Asked, model: PyTree, data: Any, key: Key
) -> tuple[AbstractModel, Feed | Batches]:
    """The model and its data, checked against each other."""
    built = model if asked.build is None else asked.build(model)
    _checks.instance("model", built, AbstractModel, "a model such as an RBM")
    data = _checks.as_data("data", data)
    if isinstance(data, Mapping):
        built.check(data, "data")
        data = built.as_batch(data)
    in_memory = is_in_memory(data)
    rows = _in_memory(data, asked.batch_size) if in_memory else Batches(data, asked.batch_size)
    if asked.augment is not None:
        batch = asked.augment(rows.first(), key=key)
        if any(map(has_nan, jax.tree.leaves(batch))):
            raise ValueError(
                "`augment` must return a batch without missing values, got NaN: fill them in, or"
                " leave `augment` out."
            )
        built.check(batch, "data")
    elif isinstance(rows, Feed):
        # Check all of it, since it is in memory.
        built.check(data, "data")
        # This says what is missing.
        rows = dataclasses.replace(rows, data=jax.tree.map(jnp.asarray, built.as_batch(data)))
    else:
        built.check(rows.first(), "data")
    return built, rows


def _in_memory(data: PyTree, batch_size: int | None) -> Feed:
    """Arrays of rows as a source of batches, checked."""
    leaves = jax.tree.leaves(data)
    if not leaves:
        raise ValueError(f"`data` must contain at least one array, got {_checks.describe(data)}.")
    for leaf in leaves:
        if not hasattr(leaf, "shape") or not leaf.shape:
            got = _checks.describe(leaf)
            raise TypeError(f"`data` must hold arrays of shape [rows, ...], got {got}.")
    lengths = [leaf.shape[0] for leaf in leaves]
    rows = lengths[0]
    if len(set(lengths)) > 1:
        got = ", ".join(map(str, lengths))
        raise ValueError(f"`data` must hold arrays of the same length, got {got} rows.")
    if rows == 0:
        raise ValueError("`data` must contain at least one row, got 0.")
    batch_size = min(100, rows) if batch_size is None else batch_size
    _checks.count("batch_size", batch_size)
    if batch_size > rows:
        raise ValueError(
            f"`batch_size` must be at most the {rows} rows of `data`, got {batch_size}."
        )
    return Feed(jax.tree.map(jnp.asarray, data), rows // batch_size, batch_size)


def is_in_memory(data: Any) -> bool:
    """Whether data are arrays, or tuples and dictionaries of them."""
    return isinstance(data, (tuple, dict, np.ndarray, jax.Array))


def all_rows(rows: Feed | Batches, augment: Callable | None, key: Key) -> Any:
    """All rows, or the first batch if they come in batches."""
    if isinstance(rows, Feed) and augment is None:
        return rows.data
    batch = rows.first()
    return batch if augment is None else augment(batch, key=key)


def _about(rows: Feed | Batches) -> dict[str, Any]:
    """A description of data, with a checksum of those in memory."""
    if isinstance(rows, Batches):
        return {"rows": None, "batch_size": None}
    data = checksum(jax.tree.leaves(rows.data))
    return {"rows": rows.rows, "batch_size": rows.batch_size, "data": data}


def _described(learner: AbstractLearner) -> str:
    """A description of a learner, with a checksum of its arrays."""
    # The address of an object does not identify it.
    text = re.sub(r" at 0x[0-9a-f]+", "", str(learner))
    arrays = [x for x in jax.tree.leaves(learner) if hasattr(x, "dtype")]
    return f"{text} with checksum {checksum(arrays)}" if arrays else text


def _sharding(mesh: jax.sharding.Mesh | None, batch_size: int | None) -> NamedSharding | None:
    """The sharding of batches."""
    if mesh is None:
        return None
    _checks.instance("mesh", mesh, jax.sharding.Mesh, "a `jax.sharding.Mesh`")
    axis = mesh.axis_names[0]
    if batch_size is not None and batch_size % mesh.shape[axis]:
        raise ValueError(
            f"`batch_size` must be a multiple of the {mesh.shape[axis]} devices along the axis"
            f" {axis!r} of `mesh`, got {batch_size}."
        )
    # The compiler decides the layout of everything that depends on a batch.
    mesh = jax.sharding.Mesh(mesh.devices, mesh.axis_names)
    return NamedSharding(mesh, PartitionSpec(axis))


def _check_arguments(asked: Asked, optimizers: Sequence[Any]) -> None:
    wanted = "a learner such as `MLE(BP(10))`"
    _checks.instance("learner", asked.learner, AbstractLearner, wanted)
    for optimizer in optimizers:
        if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
            got = _checks.describe(optimizer)
            raise TypeError(
                f"`optimizer` must be an Optax optimizer such as `optax.adam(1e-3)`, got {got}."
            )
    _checks.count("epochs", asked.epochs)
    if asked.average is not None:
        _checks.number("average", asked.average, 0, 1, "(0, 1)")
