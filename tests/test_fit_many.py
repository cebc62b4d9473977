"""Many runs at once: each is the run by itself."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ebmlearn as ebm
from ebmlearn.messages._edge import ODDS_LIMIT
from ebmlearn.training import _run


RATES, SEEDS = (0.3, 0.02), (0, 1, 2)
GRID = [(rate, seed) for rate in RATES for seed in SEEDS]


def rows(number, seed=0):
    x = np.random.default_rng(seed).integers(0, 2, (number, 4)).astype(np.float32)
    return x, np.stack([x[:, 0] * x[:, 1], 1 - x[:, 3], x[:, 2]], 1)


def close(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-5)


def both(models, learner, data, optimizers, **options):
    """All at once, and one after the other."""
    options = {"epochs": 6, "batch_size": 5, "progress": False, **options}
    keys = [seed for _, seed in GRID]
    many = ebm.fit_many(models, learner, data, optimizer=optimizers, key=keys, **options)
    single = [
        ebm.fit(model, learner, data, optimizer=optimizer, key=key, **options)
        for model, optimizer, key in zip(models, optimizers, keys, strict=True)
    ]
    for a, b in zip(many, single, strict=True):
        close((a.model, a.last, a.parameters), (b.model, b.last, b.parameters))
        assert (a.best_epoch, a.best_step, a.stopped) == (b.best_epoch, b.best_step, b.stopped)
        for name in ("steps", "epochs", "validations"):
            one, other = getattr(a.history, name), getattr(b.history, name)
            assert one.keys() == other.keys()
            for key in set(one) - {"seconds"}:
                np.testing.assert_allclose(one[key], other[key], atol=1e-4)
    return many


@pytest.mark.slow
def test_each_lane_is_a_run_by_itself():
    models = [ebm.CRBM.init(3, 2, 4, key=seed, scale=0.3) for _, seed in GRID]
    optimizers = [optax.adam(optax.cosine_decay_schedule(rate, 30)) for rate, _ in GRID]
    many = both(
        models,
        ebm.MLE(lambda epoch: ebm.BP(2 + epoch)),
        rows(23),
        optimizers,
        validation=ebm.Validation(rows(9, 1), every=3, patience=2),
        average=0.8,
        epochs=8,
    )
    # Not all of them stop at the same step.
    assert len({len(x.history.steps["gap"]) for x in many}) > 1


@pytest.mark.slow
def test_lanes_with_a_state_and_without_a_metric():
    models = [ebm.RBM.init(4, 3, key=seed) for _, seed in GRID]
    learner = ebm.SAP(num_chains=6, weight_decay=0.01)
    many = both(models, learner, rows(20)[0], [optax.sgd(rate) for rate, _ in GRID])
    assert all(len(x.history.steps["gap"]) == 24 for x in many)
    assert all(len(x.history.validations["metric"]) == 0 for x in many)


@pytest.mark.slow
def test_patience_that_ends_with_the_last_epoch():
    models = [ebm.RBM.init(4, 3, key=seed) for _, seed in GRID]
    optimizers = [optax.sgd(rate) for rate, _ in GRID]
    options: Any = dict(
        validation=ebm.Validation(metric=lambda model, valid, epoch: jnp.ones(()), patience=1),
        epochs=2,
    )
    many = both(models, ebm.CD(1), rows(20)[0], optimizers, **options)
    assert {x.stopped for x in many} == {"epochs"}


@pytest.mark.slow
def test_lanes_outgrow_the_program_for_moderate_weights_together(monkeypatch):
    """One lane outgrows the fast form, and all others follow."""
    models = [ebm.RBM.init(4, 3, key=seed, scale=1.0 + seed) for _, seed in GRID]
    growing = [
        optax.chain(optax.scale(-rate), optax.add_decayed_weights(rate / 3)) for rate, _ in GRID
    ]
    compiled = []

    def run(training, *rest):
        if training.many:
            compiled.append(training.moderate)
        return advance(training, *rest)

    advance = _run.advance
    monkeypatch.setattr(_run, "advance", run)
    many = both(models, ebm.MLE(ebm.BP(5)), rows(20)[0], growing)
    assert compiled == [True, False]
    largest = [float(abs(x.last.weights).max()) for x in many]
    assert min(largest) < ODDS_LIMIT < max(largest)


@pytest.mark.slow
def test_query_training_in_lanes():
    models = [ebm.QueryModel(ebm.RBM.init(4, 3, key=seed), iterations=4) for _, seed in GRID]
    optimizers = [optax.adam(rate) for rate, _ in GRID]
    data, valid = rows(20)[0], rows(9, 1)[0]
    many = both(models, ebm.QueryTraining(), data, optimizers, validation=valid, epochs=3)
    assert all(len(x.history.validations["metric"]) == 3 for x in many)


@pytest.mark.slow
def test_a_lane_that_diverges_leaves_the_others_alone():
    def metric(model, validation, epoch):
        return jnp.abs(model.weights).sum()

    def rate(last):
        return optax.sgd(optax.piecewise_constant_schedule(0.1, {5: last}))

    options: dict[str, Any] = dict(
        epochs=3, batch_size=5, validation=ebm.Validation(metric=metric), progress=False
    )
    model, learner, data = ebm.RBM.init(4, 3, key=0), ebm.CD(1), rows(20)[0]
    bad, good = ebm.fit_many(
        model, learner, data, optimizer=[rate(np.inf), rate(1.0)], key=[0, 1], **options
    )
    assert (bad.stopped, good.stopped) == ("diverged", "epochs")
    assert len(bad.history.steps["gap"]) < len(good.history.steps["gap"]) == 12
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((bad.model, bad.last)))
    close(good.last, ebm.fit(model, learner, data, optimizer=rate(1.0), key=1, **options).last)


def test_lanes_that_diverge_are_named():
    rates = [0.1, 1e4, 2e4]
    with pytest.warns(UserWarning, match="by step 1 in runs 1, 2, counted from 0") as told:
        ebm.fit_many(
            ebm.RBM.init(4, 3, key=0),
            ebm.CD(1),
            rows(20)[0],
            optimizer=[optax.sgd(rate) for rate in rates],
            key=[0, 1, 2],
            epochs=3,
            batch_size=5,
            progress=False,
        )
    assert len(told) == 1


@pytest.mark.usefixtures("slow_clock")
def test_runs_stop_when_their_time_is_over():
    def run(**options: Any):
        return ebm.fit_many(
            ebm.RBM.init(4, 3, key=0),
            ebm.CD(1),
            rows(20)[0],
            optimizer=optax.sgd(0.1),
            key=[0, 1],
            epochs=6,
            batch_size=5,
            validation=rows(20)[0],
            progress=False,
            **options,
        )

    whole, timely, early = run(), run(seconds=1e6), run(seconds=4)
    for one, other, cut in zip(whole, timely, early, strict=True):
        assert eqx.tree_equal(one.last, other.last)
        assert (one.stopped, other.stopped, cut.stopped) == ("epochs", "epochs", "seconds")
        steps = len(cut.history.steps["gap"])
        assert 0 < steps < len(one.history.steps["gap"])
        assert cut.history.validations["step"][-1] == steps
        np.testing.assert_array_equal(cut.history.steps["gap"], one.history.steps["gap"][:steps])


@pytest.mark.slow
def test_what_lanes_need():
    model, learner, data = ebm.RBM.init(4, 3, key=0), ebm.CD(1), rows(20)[0]
    options: dict[str, Any] = dict(epochs=1, batch_size=5, progress=False)

    sgd = optax.sgd(0.1)

    def run(model: Any = model, optimizer: Any = sgd, key: Any = (0, 1), **more: Any):
        return ebm.fit_many(model, learner, data, optimizer=optimizer, key=key, **options, **more)

    with pytest.raises(TypeError, match="`metric` must be traceable in `fit_many`"):
        run(
            validation=ebm.Validation(
                metric=lambda model, validation, epoch: float(model.weights.sum())
            )
        )
    with pytest.raises(ValueError, match="differ only in their numbers"):
        run(optimizer=[optax.sgd(0.1), optax.adam(0.1)])
    with pytest.raises(ValueError, match="`optimizer` must be one for all runs, or a list"):
        run(optimizer=[optax.sgd(0.1)])
    with pytest.raises(ValueError, match="`model` must hold models of the same kind and shape"):
        run(model=[model, ebm.RBM.init(4, 2, key=0)])
    with pytest.raises(TypeError, match="`key` must be a list"):
        run(key=[])
    with pytest.raises(TypeError, match="`data` must be an array or a tuple of arrays"):
        ebm.fit_many(model, learner, [data], optimizer=sgd, key=[0], **options)


@pytest.mark.slow
def test_free_parameters_that_are_a_tuple_are_one_model():
    model = ebm.RBM.init(3, 2, key=0, scale=0.3)
    parts = model.weights, model.visible_bias, model.hidden_bias
    options: Any = dict(
        optimizer=optax.sgd(0.1), epochs=2, batch_size=5, build=lambda x: ebm.RBM(*x)
    )
    _, data = rows(10)
    found = ebm.fit_many(parts, ebm.MLE(ebm.BP(2)), data, key=[0, 1, 2], progress=False, **options)
    one = ebm.fit(parts, ebm.MLE(ebm.BP(2)), data, key=2, progress=False, **options)
    close(found[2].parameters, one.parameters)


@pytest.mark.slow
def test_trajectories_and_metrics_are_as_of_fit():
    _, data = rows(10)
    model = ebm.RBM.init(3, 2, key=0, scale=0.3)
    start = ebm.Trajectory.start(model, data, capacity=4)
    learner = ebm.SAP(ebm.TrajectoryTempering(start), num_chains=5)
    options: Any = dict(optimizer=optax.sgd(0.1), epochs=2, batch_size=5, progress=False)
    many = ebm.fit_many(model, learner, data, key=[0, 1], **options)
    for seed, found in enumerate(many):
        one = ebm.fit(model, learner, data, key=seed, **options).trajectory
        assert found.trajectory is not None and one is not None
        assert len(found.trajectory) == len(one)
        close(found.trajectory[-1], found.last)
    learner = ebm.CD(1)
    with pytest.raises(TypeError, match="`metric` must return a number, got an array"):
        ebm.fit_many(
            model,
            learner,
            data,
            key=[0, 1],
            validation=ebm.Validation(metric=lambda m, x, e: m.hidden_bias),
            **options,
        )
    with pytest.warns(UserWarning, match="`metric` must return a number, got NaN in epoch 0"):
        ebm.fit_many(
            model,
            learner,
            data,
            key=[0],
            validation=ebm.Validation(metric=lambda m, x, e: jnp.asarray(jnp.nan)),
            **options | {"epochs": 1},
        )
