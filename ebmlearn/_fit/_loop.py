import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from .. import _checks
from .._types import Data, Key
from ..inference._base import with_traced
from ..learners import AbstractLearner
from ..learners._base import Metric
from ..models import AbstractModel
from ._checkpoint import Checkpoint, Keeper
from ._data import Arrays, Batches, source
from ._file import checksum
from ._history import EpochReport, Fitted
from ._progress import Bar
from ._run import Run, Validation
from ._state import start, Training


@_checks.usage("fit(model, learner, data)")
def fit(
    model: PyTree,
    learner: AbstractLearner,
    data: Data | PyTree,
    *,
    optimizer: optax.GradientTransformation | None = None,
    epochs: int = 10,
    key: Key = 0,
    batch_size: int | None = None,
    validation: PyTree = None,
    metric: Metric | None = None,
    validate_every: int | None = None,
    patience: int | None = None,
    checkpoint: str | os.PathLike | Checkpoint | None = None,
    resume: bool = True,
    callbacks: Sequence[Callable[[EpochReport], object]] = (),
    mesh: jax.sharding.Mesh | None = None,
    project: Callable[[PyTree], PyTree] | None = None,
    build: Callable[[PyTree], AbstractModel] | None = None,
    augment: Callable[..., PyTree] | None = None,
    average: float | None = None,
    progress: bool = True,
) -> Fitted:
    """Trains a model. Everything random follows from `key`.

    !!! example

        ```python
        fitted = ebmlearn.fit(
            ebmlearn.CRBM.init(visible=64, hidden=32, features=64, key=jax.random.key(0)),
            ebmlearn.MLE(ebmlearn.BP(iterations=10)),
            (x, v),
            optimizer=optax.adam(1e-2),
            epochs=20,
            batch_size=50,
            validation=(x_valid, v_valid),
            checkpoint="run",
            key=jax.random.key(1),
        )
        fitted.model, fitted.history.epochs["metric"]
        ```

    **Arguments:**

    - `model`: what to train; with `build`, any pytree of free parameters.
    - `learner`: for instance [`ebmlearn.MLE`][].
    - `data`: an array of visible units `[rows, visible]`, for a CRBM the pair (features, visible),
      for a FactorGraphModel a dictionary from groups of variables to their states. Data frames,
      lists of lists, sparse matrices and arrays of other libraries do as well. NaN is a missing
      value: [`ebmlearn.MLE`][], [`ebmlearn.SAP`][] and [`ebmlearn.QueryTraining`][] take those of
      visible units as not observed. Or any iterable of batches that can be gone through once an
      epoch.
    - `optimizer`: of Optax, of those that need gradients and parameters alone; `optax.adam(1e-3)`
      by default. A schedule counts steps. A new optimizer that differs in its numbers alone
      compiles nothing.
    - `epochs`: how often to go through the data. Each time the rows are in another order, and those
      that fill no whole batch are left out.
    - `batch_size`: rows a step; 100 by default, or all rows if they are fewer. Not for data that
      come in batches.
    - `key`: a seed, or a key such as `jax.random.key(0)`.
    - `validation`: data as above, for `metric`.
    - `metric`: a function of the model, the validation data (or None) and the epoch; lower is
      better. For a
      CRBM the share of wrong units by default, predicted as suits the learner; for query training
      the cross-entropy of the same queries each time, see [`ebmlearn.query_entropy`][].
    - `validate_every`: how many steps lie between two calls of `metric`; the end of an epoch if not
      given. Without a metric, callbacks and checkpoints the device goes through epochs without
      waiting for the host.
    - `patience`: stop after so many validations without a better metric.
    - `checkpoint`: a folder, or a [`ebmlearn.Checkpoint`][], from which a run that was stopped goes
      on to the same result, bit by bit; `epochs` counts those that it has done. It refuses another
      kind of model, learner, `average`, key, or arrays of data. That iterables, the optimiser's
      settings and what functions do are the same is for you to see to.
    - `resume`: whether to do so; if not, checkpoints in the folder are replaced.
    - `callbacks`: functions of an `EpochReport`, called after each epoch; one that returns True
      ends the run.
    - `mesh`: devices to split each batch over, along the first axis of the mesh.
    - `project`: a function from the parameters to the nearest allowed ones, after each step. By
      default the model's own `project`, where it has one.
    - `build`: a function from free parameters to the model, for instance to tie some of them.
    - `augment`: a function `augment(batch, key=key)` that gives the batch to learn from. As each
      row is seen once an epoch, this draws, say, new noise for it each epoch. It is compiled: draw
      by `jax.random` from `key`, as random numbers of NumPy would be the same at every step.
    - `average`: keep a running mean of the parameters with this decay, say 0.999; it is what is
      validated and returned.
    - `progress`: show a bar.

    **Returns:**

    A [`ebmlearn.Fitted`][]. Ctrl-C ends a run early: it is saved, and what there is is returned. A
    gradient that is not finite raises `FloatingPointError`, and the last checkpoint stays.
    """
    optimizer = optax.adam(1e-3) if optimizer is None else optimizer
    check_arguments(
        learner, optimizer, epochs, key, patience, metric, validation, validate_every, average
    )
    if not isinstance(callbacks, Sequence):
        got = _checks.describe(callbacks)
        raise TypeError(f"`callbacks` must be a list of functions, got {got}.")
    built, rows = opened(model, data, batch_size, build, augment, key)
    key = _checks.as_key(key)
    order_key, step_key, init_key = jax.random.split(key, 3)
    metric = default_metric(metric, learner, built, validation)
    project = own_projection if project is None and build is None else project
    parameters, static = eqx.partition(model, eqx.is_inexact_array)
    sharding, replicated = _shardings(mesh, batch_size)
    decay = None if average is None else np.asarray(average, np.float32)
    training = Training(with_traced(learner), static, build, project, augment, decay, sharding)
    training, state = start(training, optimizer, parameters, init_key)
    if replicated is not None:
        state = jax.device_put(state, replicated)
        if isinstance(rows, Arrays):
            rows.data = jax.device_put(rows.data, replicated)
    validation = jax.tree.map(jnp.asarray, _checks.as_data("validation", validation))
    judged = Validation(metric, validation, validate_every)
    run = Run(training, state, rows, (order_key, step_key), judged, callbacks)
    if checkpoint is not None:
        settings = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        about = {"model": type(built).__name__, "learner": _described(learner), **rows.about()}
        about |= {} if average is None else {"average": float(average)}
        about["key"] = np.asarray(jax.random.key_data(key)).tolist()
        run.keep_in(Keeper(settings, about), resume)
    shown = progress and jax.process_index() == 0
    total = None if rows.steps is None else epochs * rows.steps
    bar = Bar(shown, type(learner).__name__, total, int(run.state.step))
    try:
        stopped = run.go(epochs, patience, bar)
    except KeyboardInterrupt:
        stopped = "interrupted"
    finally:
        bar.close()
    run.save()
    if stopped == "interrupted":
        print(run.interruption())
    return run.fitted(stopped)


def opened(
    model: Any,
    data: Any,
    batch_size: int | None,
    build: Callable | None,
    augment: Callable | None,
    key: Key,
) -> tuple[AbstractModel, Arrays | Batches]:
    """The model and its data, checked against each other."""
    built = model if build is None else build(model)
    if not isinstance(built, AbstractModel):
        got = _checks.describe(built)
        raise TypeError(f"`model` must be a model such as an RBM, got {got}.")
    data = _checks.as_data("data", data)
    if isinstance(data, Mapping):
        data = built.as_batch(data)
    rows = source(data, batch_size)
    if augment is not None:
        batch = augment(rows.first(), key=_checks.as_key(key))
    else:
        # All of it is looked at, if it is there.
        batch = data if isinstance(rows, Arrays) else rows.first()
    built.check(batch, "data")
    if isinstance(rows, Arrays) and augment is None:
        # This says what is missing.
        rows.data = jax.tree.map(jnp.asarray, built.as_batch(data))
    return built, rows


def _described(learner: AbstractLearner) -> str:
    """A learner in words, with a checksum of the arrays that it holds."""
    # Where an object lies in memory says nothing of it.
    text = re.sub(r" at 0x[0-9a-f]+", "", str(learner))
    arrays = [x for x in jax.tree.leaves(learner) if hasattr(x, "dtype")]
    return f"{text} with checksum {checksum(arrays)}" if arrays else text


def own_projection(model: Any) -> Any:
    return model.project()


def default_metric(
    metric: Callable | None, learner: AbstractLearner, model: Any, validation: Any
) -> Callable | None:
    if validation is None or metric is not None:
        return metric
    found = learner.metric(model)
    if found is None:
        kind = type(model).__name__
        raise ValueError(
            f"`metric` must be given with `validation` for a {kind} and this learner, got None."
        )
    model.check(validation, "validation")
    return found


def _shardings(mesh: jax.sharding.Mesh | None, batch_size: int | None) -> tuple[Any, Any]:
    """How batches are laid out over the devices, and how all else is."""
    if mesh is None:
        return None, None
    if not isinstance(mesh, jax.sharding.Mesh):
        got = _checks.describe(mesh)
        raise TypeError(f"`mesh` must be a `jax.sharding.Mesh`, got {got}.")
    axis = mesh.axis_names[0]
    if batch_size is not None and batch_size % mesh.shape[axis]:
        raise ValueError(
            f"`batch_size` must be a multiple of the {mesh.shape[axis]} devices along the axis"
            f" {axis!r} of `mesh`, got {batch_size}."
        )
    # The compiler is to decide about all that follows from the layout of a batch.
    mesh = jax.sharding.Mesh(mesh.devices, mesh.axis_names)
    spec = jax.sharding.PartitionSpec
    return jax.sharding.NamedSharding(mesh, spec(axis)), jax.sharding.NamedSharding(mesh, spec())


def check_arguments(
    learner: Any,
    optimizer: Any,
    epochs: Any,
    key: Any,
    patience: Any,
    metric: Any,
    validation: Any,
    validate_every: Any,
    average: Any,
) -> None:
    if not isinstance(learner, AbstractLearner):
        got = _checks.describe(learner)
        raise TypeError(f"`learner` must be a learner such as `MLE(BP(10))`, got {got}.")
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        got = _checks.describe(optimizer)
        raise TypeError(f"`optimizer` must be one of Optax, got {got}.")
    _checks.count("epochs", epochs)
    _checks.as_key(key)
    if metric is not None and not callable(metric):
        got = _checks.describe(metric)
        raise TypeError(f"`metric` must be a function, got {got}.")
    if patience is not None:
        _checks.count("patience", patience)
        if validation is None and metric is None:
            raise ValueError("`validation` must be given for `patience` to wait on, got None.")
    if validate_every is not None:
        _checks.count("validate_every", validate_every)
        if validation is None and metric is None:
            raise ValueError("`validation` must be given with `validate_every`, got None.")
    if average is not None:
        _checks.number("average", average, 0, 1, "(0, 1)")
