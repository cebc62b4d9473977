"""The training loop: it does what a loop by hand does, and loses nothing when it stops."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import programs
import pytest

import ebmlearn as ebm
from ebmlearn.learners import StepInfo
from ebmlearn.messages._edge import ODDS_LIMIT
from ebmlearn.training import _file, _run


ROOT = Path(__file__).parents[1]
KEY = jax.random.key(0)
LEARNER = ebm.MLE(lambda epoch: ebm.MeanField(1 + epoch))
OPTIMIZER = optax.adam(0.05)


def crbm(visible=3):
    return ebm.CRBM.init(visible, 2, 4, key=jax.random.key(1), scale=0.3)


def data(rows=22, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2, (rows, 4)).astype(np.uint8)
    return x, np.stack([x[:, 0] & x[:, 1], x[:, 1] ^ x[:, 2], 1 - x[:, 3]], 1)


def fit(model: Any = None, learner: Any = LEARNER, given: Any = None, **options: Any):
    defaults: dict[str, Any]
    defaults = dict(optimizer=OPTIMIZER, epochs=4, batch_size=5, key=KEY, progress=False)
    given = data() if given is None else given
    return ebm.fit(crbm() if model is None else model, learner, given, **{**defaults, **options})


def assert_equal(a, b):
    """Bit by bit."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def differs(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return any((np.asarray(x) != np.asarray(y)).any() for x, y in pairs)


def by_hand(model, batches, learner=LEARNER, optimizer=OPTIMIZER):
    """The loop that everybody writes: `batches` are lists of batches, one an epoch."""
    state, models = optimizer.init(model), []
    for epoch, epoch_batches in enumerate(batches):
        for batch in epoch_batches:
            gradient, _, _ = learner.step(model, None, batch, key=KEY, epoch=epoch)
            with jax.numpy_dtype_promotion("standard"):
                updates, state = optimizer.update(gradient, state, model)
            model = eqx.apply_updates(model, updates)
            models.append(model)
    return models


@pytest.mark.slow
def test_is_the_loop_by_hand():
    x, v = data()
    batches = [(x[k : k + 5], v[k : k + 5]) for k in range(0, 20, 5)]
    fitted = fit(given=batches, batch_size=None, epochs=3)
    last = by_hand(crbm(), [batches] * 3)[-1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), fitted.last, last)
    assert fitted.history.steps["gap"].shape == (12,)
    assert fitted.history.epochs["gap"].shape == (3,)
    np.testing.assert_allclose(
        fitted.history.epochs["iterations"], [1, 2, 3], err_msg="the epoch reaches the learner"
    )


@pytest.mark.slow
def test_arrays_are_shuffled_batches():
    """In each epoch every row is seen once, but for those that fill no batch."""
    seen = []

    class Spy(ebm.learners.AbstractLearner):
        def init(self, model, *, key):
            return jnp.zeros((8, 5), jnp.int32), jnp.zeros((), jnp.int32)

        def step(self, model, state, batch, *, key, epoch):
            rows, n = state
            zero = jnp.zeros(())
            info = StepInfo(zero, zero, zero, zero, zero)
            rows = rows.at[n].set(jnp.asarray(batch[0])[:, 0].astype(jnp.int32))
            jax.debug.callback(lambda r: seen.append(np.asarray(r)), rows[n], ordered=True)
            return jax.tree.map(jnp.zeros_like, model), (rows, n + 1), info

        def trained(self, model):
            return model.trained()

        def decoder(self, epoch=0):
            return ebm.MeanField(1)

        def metric(self, model):
            return None

    numbers = np.repeat(np.arange(22, dtype=np.float32)[:, None], 4, 1)
    fit(learner=Spy(), given=(numbers, data()[1]), epochs=2)
    jax.effects_barrier()
    first, second = np.concatenate(seen[:4]), np.concatenate(seen[4:])
    for epoch in (first, second):
        assert len(set(epoch.tolist())) == 20
    assert first.tolist() != second.tolist()
    assert sorted(first.tolist()) != first.tolist()


@pytest.mark.slow
def test_determined_by_the_key(tmp_path):
    one = fit()
    assert_equal(one.last, fit().last)
    assert differs(one.last, fit(key=jax.random.key(7)).last)
    # However the steps are cut into calls of the device.
    cut = fit(checkpoint=ebm.Checkpoint(tmp_path, every=3))
    assert_equal(one.last, cut.last)
    np.testing.assert_array_equal(one.history.steps["gap"], cut.history.steps["gap"])


@pytest.mark.slow
def test_programs_for_moderate_weights_serve_until_these_outgrow_it(tmp_path):
    """Steps are in the fast form while it serves and in the general one from then on, wherever the
    run is cut.
    """
    growing = optax.chain(optax.scale(-0.1), optax.add_decayed_weights(0.1))
    options: dict[str, Any] = dict(
        model=ebm.RBM.init(4, 3, key=1, scale=2.0),
        learner=ebm.MLE(ebm.BP(5)),
        given=data()[0],
        optimizer=growing,
        epochs=6,
    )
    whole = fit(**options)
    settings = ebm.Checkpoint(tmp_path, every=1, keep=100)
    assert_equal(whole.last, fit(**options, checkpoint=settings).last)
    paths = sorted(tmp_path.glob("step-*"))
    facts = [_file.read(path)[0]["info"]["facts"] for path in paths]
    largest = [np.abs(_file.read(p)[1]["['state'].parameters.weights"]).max() for p in paths]
    outgrown = np.maximum.accumulate(np.array(largest) > ODDS_LIMIT)
    assert 2 < outgrown.argmax() < len(paths) - 3
    # A checkpoint is written before the next step finds its weights too large.
    moderate = [not x for x in [False, *outgrown[:-1]]]
    assert [x["moderate"] for x in facts] == moderate
    for kept in (outgrown.argmax(), outgrown.argmax() + 2):
        for path in sorted(tmp_path.glob("step-*"))[kept:]:
            path.unlink()
        assert_equal(whole.last, fit(**options, checkpoint=settings).last)


@pytest.mark.slow
def test_compiles_once():
    """One program serves all steps of all epochs, whatever the schedule of the epoch."""
    traces = 0

    def augment(batch, *, key):
        nonlocal traces
        traces += isinstance(key, jax.core.Tracer)
        return batch

    options: dict[str, Any] = dict(optimizer=optax.adam(0.01), augment=augment)
    fit(**options, given=data(5), epochs=1)
    first = traces
    assert first > 0
    fit(**options, epochs=1)  # other data: another program
    second = traces
    assert second > first
    fit(**options, epochs=5)
    assert traces == second


@pytest.mark.slow
def test_learns_by_exact_maximum_likelihood():
    """At the optimum of a fully observed model the moments agree with the data's."""
    rng = np.random.default_rng(0)
    x = (rng.random((40, 3)) < 0.5).astype(np.uint8)
    x[:, 1] |= x[:, 0]
    fitted = ebm.fit(
        ebm.BoltzmannMachine.init(3, key=KEY),
        ebm.MLE(ebm.Exact(), loss=True),
        x,
        optimizer=optax.adam(optax.cosine_decay_schedule(0.3, 300)),
        epochs=300,
        batch_size=40,
        key=KEY,
        progress=False,
    )
    weak = np.abs(np.asarray(fitted.last.couplings)) < 4  # one pair never is (1, 0)
    truth = oracle.truth(fitted.last)
    np.testing.assert_allclose(truth.marginals[0], x.mean(0), atol=0.02)
    empirical = x.T.astype(float) @ x / 40
    np.testing.assert_allclose(np.where(weak, truth.pairwise - empirical, 0), 0, atol=0.02)
    losses = fitted.history.epochs["loss"]
    assert losses[-1] < losses[0]
    couplings = np.asarray(fitted.last.couplings)
    np.testing.assert_array_equal(couplings, couplings.T)


@pytest.mark.slow
def test_own_projection_keeps_couplings_symmetric():
    x = data()[1]
    optimizer = optax.chain(optax.sgd(0.1), optax.add_noise(0.1, 0.5, jax.random.key(3)))
    fitted = ebm.fit(
        ebm.BoltzmannMachine.init(3, key=KEY),
        ebm.MLE(ebm.MeanField(2)),
        x,
        optimizer=optimizer,
        epochs=2,
        batch_size=5,
        key=KEY,
        progress=False,
    )
    couplings = np.asarray(fitted.last.couplings)
    np.testing.assert_array_equal(couplings, couplings.T)
    assert not np.diagonal(couplings).any()


@pytest.mark.slow
def test_projection_is_applied_after_each_step():
    def positive(model):
        return jax.tree.map(lambda x: jnp.maximum(x, jnp.zeros_like(x)), model)

    fitted = fit(project=positive)
    assert min(leaf.min() for leaf in jax.tree.leaves(fitted.last)) == 0


@pytest.mark.slow
def test_tied_parameters():
    """One number for all weights: its gradient is the sum of theirs."""
    template = crbm()

    def build(free):
        weights = free["scale"] * jnp.ones_like(template.weights)
        return eqx.tree_at(lambda m: (m.weights, m.visible_bias), template, (weights, free["bias"]))

    free = {"scale": jnp.asarray(0.3), "bias": jnp.zeros(3)}
    x, v = data(5)
    fitted = fit(free, given=(x, v), build=build, optimizer=optax.sgd(1.0), epochs=1)
    gradient, _, _ = LEARNER.step(build(free), None, (x, v), key=KEY, epoch=0)
    np.testing.assert_allclose(fitted.parameters["scale"], 0.3 - gradient.weights.sum(), atol=1e-6)
    np.testing.assert_allclose(fitted.parameters["bias"], -gradient.visible_bias, atol=1e-6)
    np.testing.assert_array_equal(fitted.model.hidden_features, template.hidden_features)


@pytest.mark.slow
def test_augmentation_is_new_each_time():
    seen = []

    def noisy(v, *, key):
        x = jax.random.bernoulli(key, 0.5, (v.shape[0], 4))
        jax.debug.callback(lambda x: seen.append(np.asarray(x)), x, ordered=True)
        return x, v

    fit(given=data(5)[1], augment=noisy, epochs=3)
    jax.effects_barrier()
    assert len({x.tobytes() for x in seen[1:]}) == 3
    assert_equal(fit(given=data()[1], augment=noisy).last, fit(given=data()[1], augment=noisy).last)


@pytest.mark.slow
def test_running_mean_of_the_parameters():
    x, v = data()
    batches = [(x[k : k + 5], v[k : k + 5]) for k in range(0, 20, 5)]
    fitted = fit(given=batches, batch_size=None, epochs=2, average=0.5)
    mean = crbm()
    for t, model in enumerate(by_hand(crbm(), [batches] * 2)):
        decay = min((1 + t) / (10 + t), 0.5)
        mean = jax.tree.map(lambda a, p, decay=decay: decay * a + (1 - decay) * p, mean, model)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), fitted.last, mean)


def test_best_epoch_patience_and_callbacks():
    values = [5.0, 3.0, 4.0, 4.0, 1.0, 1.0]
    models = {}

    def metric(model, validation, epoch):
        models[epoch] = model
        return values[epoch]

    fitted = fit(validation=ebm.Validation(data(6), metric, patience=2), epochs=6)
    assert (fitted.stopped, fitted.best_epoch) == ("patience", 1)
    assert fitted.history.epochs["metric"].tolist() == values[:4]
    assert_equal(fitted.model, models[1])
    assert_equal(fitted.last, models[3])
    reports = []

    def callback(report):
        reports.append(report)
        # What is computed from the model or by NumPy is no Python boolean.
        return jnp.asarray(report.step) > 8

    fitted = fit(validation=data(6), epochs=6, callbacks=[callback])
    assert fitted.stopped == "callback"
    assert [r.step for r in reports] == [4, 8, 12]
    assert reports[-1].metric == fitted.history.epochs["metric"][-1]
    x, v = data(6)
    error = ebm.error_rate(LEARNER.predict(fitted.last, x, epoch=2), v)
    np.testing.assert_allclose(fitted.history.epochs["metric"][-1], error)


def test_goes_through_epochs_at_once():
    """Where the host has nothing to do, many epochs are one call, and no bit depends on that."""
    calls = []
    compiled = _run.compiled

    def counted(function):
        def call(*arguments):
            calls.append(int(arguments[-2]))
            return compiled(function)(*arguments)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_run, "compiled", counted)
        at_once = fit(epochs=60)
        assert sum(calls) == 240
        assert len(calls) < 30
        calls.clear()
        stopping = fit(epochs=60, callbacks=[lambda report: None])
        assert sum(calls) == 240
        assert len(calls) >= 60
    assert_equal(at_once.last, stopping.last)
    assert_equal(at_once.history.steps, stopping.history.steps)
    assert (at_once.best_epoch, at_once.best_step) == (59, 240)
    for name, values in at_once.history.epochs.items():
        assert values.shape == (60,)
        if name != "seconds":
            np.testing.assert_array_equal(values, stopping.history.epochs[name])
    means = at_once.history.steps["gap"].reshape(60, 4).mean(1)
    np.testing.assert_allclose(at_once.history.epochs["gap"], means, rtol=1e-5, atol=1e-7)


def test_validates_every_so_many_steps(tmp_path):
    seen = []

    def metric(model, validation, epoch):
        seen.append((epoch, model))
        return abs(len(seen) - 3.0)

    def judged(every, patience=None, **options):
        validation = ebm.Validation(metric=metric, every=every, patience=patience)
        return fit(validation=validation, epochs=4, **options)

    often = judged(3)  # four steps an epoch
    assert [epoch for epoch, _ in seen] == [0, 1, 2, 2, 3]
    assert often.history.validations["step"].tolist() == [3, 6, 9, 12, 15]
    assert often.history.validations["metric"].tolist() == [2, 1, 0, 1, 2]
    assert often.history.epochs["metric"].tolist() == [2, 1, 1, 2]
    assert (often.best_epoch, often.best_step) == (2, 9)
    assert_equal(often.model, seen[2][1])
    assert_equal(often.last, fit().last)
    seen.clear()
    seldom = judged(8)
    np.testing.assert_array_equal(seldom.history.epochs["metric"], [np.nan, 2, np.nan, 1])
    seen.clear()
    stopped = judged(1, patience=2)
    assert (stopped.stopped, stopped.best_step) == ("patience", 3)
    assert len(stopped.history.steps["gap"]) == 5
    # In the middle of an epoch, from a checkpoint.
    seen.clear()
    judged(3, checkpoint=ebm.Checkpoint(tmp_path, every=5, keep=9))
    for path in sorted(tmp_path.glob("step-*"))[2:]:
        path.unlink()
    seen = seen[:3]
    again = judged(3, checkpoint=ebm.Checkpoint(tmp_path, every=5))
    assert_equal((again.model, again.last), (often.model, often.last))
    assert again.history.validations["metric"].tolist() == [2, 1, 0, 1, 2]
    assert again.history.epochs["metric"].tolist() == [2, 1, 1, 2]
    with pytest.raises(ValueError, match="`data` must be given with `every`, got None"):
        ebm.Validation(every=2)


def test_interrupted_run_returns_what_it_has_and_goes_on(tmp_path):
    def interrupt(report):
        if report.epoch == 1:
            raise KeyboardInterrupt

    options: dict[str, Any] = dict(epochs=4, validation=data(6))
    whole = fit(**options)
    part = fit(**options, checkpoint=tmp_path, callbacks=[interrupt])
    assert part.stopped == "interrupted"
    assert len(part.history.epochs["metric"]) == 2
    rest = fit(**options, checkpoint=tmp_path)
    assert rest.stopped == "epochs"
    assert_equal((whole.model, whole.last), (rest.model, rest.last))
    for name, values in whole.history.epochs.items():
        if name != "seconds":
            np.testing.assert_array_equal(values, rest.history.epochs[name])
    np.testing.assert_array_equal(whole.history.steps["gap"], rest.history.steps["gap"])
    # A run that is done is only read.
    again = fit(**options, checkpoint=tmp_path)
    assert_equal(whole.last, again.last)


@pytest.mark.slow
@pytest.mark.parametrize("batches", [False, True])
def test_resumes_in_the_middle_of_an_epoch(tmp_path, batches):
    x, v = data()
    given = [(x[k : k + 5], v[k : k + 5]) for k in range(0, 20, 5)] if batches else (x, v)
    options: dict[str, Any] = dict(
        given=given, batch_size=None if batches else 5, epochs=3, average=0.9
    )
    whole = fit(**options)
    settings = ebm.Checkpoint(tmp_path, every=3, keep=10)
    fit(**options, checkpoint=settings)
    for path in sorted(tmp_path.glob("step-*"))[2:]:
        path.unlink()
    assert max(p.name for p in tmp_path.glob("step-*")) == "step-000000006.ebm"
    assert_equal(whole.last, fit(**options, checkpoint=settings).last)


def test_checkpoints_kept_and_best(tmp_path):
    values = [3.0, 1.0, 2.0, 2.0]
    models = []

    def metric(model, validation, epoch):
        models.append(model)
        return values[epoch]

    fitted = fit(
        validation=ebm.Validation(data(6), metric), checkpoint=ebm.Checkpoint(tmp_path, keep=2)
    )
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["best.ebm", "step-000000012.ebm", "step-000000016.ebm"]
    assert_equal(ebm.load(tmp_path / "best.ebm", like=crbm()), models[1])
    assert_equal(fitted.model, models[1])
    # The best are written even if no checkpoint followed their epoch.
    odd = tmp_path / "odd"
    values[:] = [3.0, 1.0, 2.0, 2.0]
    fit(validation=ebm.Validation(data(6), metric), checkpoint=ebm.Checkpoint(odd, every=6))
    assert_equal(ebm.load(odd / "best.ebm", like=crbm()), models[1])
    # Longer than was planned at first.
    values += [0.5]
    longer = fit(validation=ebm.Validation(data(6), metric), checkpoint=tmp_path, epochs=5)
    assert longer.best_epoch == 4
    header, _ = _file.read(tmp_path / "best.ebm")
    run = header["info"]["run"]
    assert run["batch_size"] == 5
    assert "MeanField" in run["learner"] or "lambda" in run["learner"]
    assert header["versions"]["ebmlearn"] == ebm.__version__


def test_starting_anew_replaces_checkpoints(tmp_path):
    fit(checkpoint=tmp_path, epochs=3)
    other = fit(checkpoint=ebm.Checkpoint(tmp_path, resume=False), epochs=2, key=jax.random.key(5))
    assert max(p.name for p in tmp_path.glob("step-*")) == "step-000000008.ebm"
    assert_equal(other.last, fit(epochs=2, key=jax.random.key(5)).last)
    resumed = fit(checkpoint=tmp_path, epochs=2, key=jax.random.key(5))
    assert_equal(other.last, resumed.last)


@pytest.mark.slow
def test_a_gradient_that_is_not_finite(tmp_path):
    optimizer = optax.sgd(lambda step: jnp.where(step == 6, jnp.nan, 0.1))
    with pytest.raises(FloatingPointError) as error:
        fit(optimizer=optimizer, checkpoint=tmp_path)
    text = str(error.value)
    assert "`weights`" in text
    assert "epoch 1, step 6" in text
    assert "step-000000004.ebm" in text
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["best.ebm", "step-000000004.ebm"]
    good = fit(optimizer=optax.sgd(0.1), epochs=1)
    assert_equal(ebm.load(tmp_path / "best.ebm", like=crbm()), good.last)


def test_save_and_load(tmp_path):
    path = tmp_path / "tree.ebm"
    tree = {
        "model": crbm(),
        "key": jax.random.key(3),
        "half": jnp.arange(3, dtype=jnp.bfloat16),
        "empty": jnp.zeros((0, 2)),
        "number": np.float64(1.5) * np.ones(()),
        "name": "kept from like",
    }
    ebm.save(path, tree, {"note": 1})
    like = jax.tree.map(lambda x: x if isinstance(x, str) else x[...], tree)
    back = ebm.load(path, like)
    assert_equal(
        {k: v for k, v in back.items() if k not in ("key", "name")},
        {k: v for k, v in tree.items() if k not in ("key", "name")},
    )
    assert back["name"] == "kept from like"
    assert jax.random.key_data(back["key"]).tolist() == jax.random.key_data(tree["key"]).tolist()
    assert back["half"].dtype == jnp.bfloat16
    assert b"pickle" not in path.read_bytes()
    assert ebm.training.load_info(path) == {"note": 1}
    shapes = eqx.filter_eval_shape(crbm)
    ebm.save(path, crbm())
    assert_equal(ebm.load(path, shapes), crbm())


def test_settings_of_modules_are_those_of_the_file(tmp_path):
    path = tmp_path / "model.ebm"
    rbm = ebm.RBM.init(2, 1, key=KEY)
    ebm.save(path, {"a": [ebm.QueryModel(rbm, iterations=7)]})
    with pytest.raises(ValueError, match=r"must hold .*iterations. = 10, as `like` does, got 7"):
        ebm.load(path, {"a": [ebm.QueryModel(rbm)]})
    assert ebm.load(path, {"a": [ebm.QueryModel(rbm, 7)]})["a"][0].iterations == 7
    # Tuples too, short and long ones.
    for units in (3, 40):
        mask = np.eye(units, k=1, dtype=bool) | np.eye(units, k=-1, dtype=bool)
        chain = ebm.NNBM(np.eye(units), np.zeros(units), mask)
        ebm.save(path, chain)
        assert ebm.load(path, chain).edges == chain.edges
        mask[:, 0] = mask[0] = False
        for other in (mask, None):
            with pytest.raises(ValueError, match=r"must hold '.edges' = .* as `like` does, got"):
                ebm.load(path, ebm.NNBM(np.eye(units), np.zeros(units), other))


@pytest.mark.slow
def test_arrays_of_a_learner_are_those_of_the_checkpoint(tmp_path):
    def ask(unit, **options):
        one = np.arange(3) == unit
        learner = ebm.QueryTraining(ebm.queries.FixedTargets(~one, one))
        model = ebm.QueryModel(ebm.RBM.init(3, 2, key=KEY), iterations=2)
        return fit(model, learner, data()[1], checkpoint=tmp_path, epochs=1, **options)

    first = ask(0)
    assert_equal(ask(0).model, first.model)
    with pytest.raises(ValueError, match=r"the same run.*`learner`"):
        ask(1)
    with pytest.raises(ValueError, match=r"the same run.*`average` None, got 0\.9"):
        ask(0, average=0.9)


@pytest.mark.slow
def test_functions_of_a_learner_may_lie_elsewhere_in_memory(tmp_path):
    class Sweeps:
        def __call__(self, epoch):
            return ebm.MeanField(1)

    one, two = Sweeps(), Sweeps()
    whole = fit(learner=ebm.MLE(one))
    fit(learner=ebm.MLE(one), epochs=2, checkpoint=tmp_path)
    assert_equal(fit(learner=ebm.MLE(two), checkpoint=tmp_path).model, whole.model)


@pytest.mark.slow
def test_progress_is_shown(capfd, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    fit(progress=True, validation=data(6))
    shown = capfd.readouterr().err
    for word in ("16/16", "steps/s", "gap=", "metric=", "converged="):
        assert word in shown


SCRIPT = """
import sys
import jax, numpy as np, optax
import ebmlearn as ebm
rng = np.random.default_rng(0)
x = rng.integers(0, 2, (40, 6)).astype(np.uint8)
fitted = ebm.fit(
    ebm.CRBM.init(6, 3, 6, key=jax.random.key(0), scale=0.1), ebm.CD(1), (x, 1 - x),
    optimizer=optax.adam(0.01), epochs=60, batch_size=4, key=jax.random.key(1), progress=False,
    checkpoint=ebm.Checkpoint(sys.argv[1], every=7), validation=(x, 1 - x),
)
ebm.save(sys.argv[2], (fitted.model, fitted.last))
"""


@pytest.mark.slow
def test_killed_runs_resume_bit_by_bit(tmp_path):
    """`python -m benchmarks resume` does this twenty times."""
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    # A folder of their own, as what is killed may leave half of a compiled program.
    environment = {**programs.quickly(), programs.COMPILED: str(tmp_path / "compiled")}

    def start(name):
        arguments = [
            sys.executable,
            str(script),
            str(tmp_path / name),
            str(tmp_path / f"{name}.ebm"),
        ]
        return subprocess.Popen(arguments, cwd=ROOT, env=environment)

    assert start("whole").wait() == 0
    rng = np.random.default_rng(0)
    process, kills = start("killed"), 0
    while kills < 1:
        while process.poll() is None and not list((tmp_path / "killed").glob("step-*")):
            time.sleep(0.01)
        time.sleep(float(rng.uniform(0, 0.3)))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        process = start("killed")
    assert process.wait() == 0
    assert kills
    content = [(tmp_path / f"{name}.ebm").read_bytes() for name in ("whole", "killed")]
    assert content[0] == content[1]


@pytest.mark.slow
def test_many_devices_agree_with_one(tmp_path):
    """Eight virtual devices, each with two rows of a batch."""
    code = """
import sys
import jax, numpy as np, optax
import ebmlearn as ebm
rng = np.random.default_rng(0)
x = rng.integers(0, 2, (64, 5)).astype(np.uint8)
mesh = jax.make_mesh((8,), ("data",)) if len(jax.devices()) == 8 else None
out = [
    ebm.fit(
        ebm.CRBM.init(5, 3, 5, key=jax.random.key(0), scale=0.3), learner, (x, x[:, ::-1]),
        optimizer=optax.adam(0.05), epochs=2, batch_size=16, key=jax.random.key(1),
        validation=(x, x[:, ::-1]), progress=False, mesh=mesh,
    ).last
    for learner in (ebm.MLE(ebm.BP(5, tol=1e-3)),)
]
ebm.save(sys.argv[1], out)
for size in (12, None) if mesh is not None else ():
    try:
        ebm.fit(out[0], ebm.CD(1), (x[:60], x[:60]), epochs=1, batch_size=size, mesh=mesh)
    except ValueError as error:
        assert "`batch_size` must be a multiple of the 8 devices" in str(error)
    else:
        raise AssertionError
print(len(jax.devices()))
"""
    paths = []
    for devices in (1, 8):
        paths.append(tmp_path / f"{devices}.ebm")
        out = subprocess.run(
            [sys.executable, "-c", code, str(paths[-1])],
            env=programs.quickly(xla_force_host_platform_device_count=devices),
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        assert out.stdout.strip() == str(devices)
    like = [ebm.CRBM.init(5, 3, 5, key=KEY)]
    one, many = (ebm.load(path, like) for path in paths)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), one, many)
    assert differs(one, like)


def test_default_metrics():
    """Minus the pseudo-likelihood, or the likelihood by the inference, of rows that are whole."""
    rows = np.random.default_rng(0).integers(0, 2, (12, 4)).astype(np.float32)
    holes = rows.copy()
    holes[0, 1] = np.nan
    options: Any = dict(epochs=2, progress=False)
    fitted = ebm.fit(ebm.RBM.init(4, 3), ebm.SAP(num_chains=6), rows, validation=holes, **options)
    own = -ebm.pseudo_log_likelihood(fitted.last, rows[1:]).mean()
    np.testing.assert_allclose(fitted.history.epochs["metric"][-1], own, rtol=1e-5)
    fitted = ebm.fit(ebm.NNBM.init(4), ebm.MLE(ebm.TAP()), rows, validation=rows, **options)
    own = fitted.last.energy(rows).mean() + ebm.TAP()(fitted.last).log_partition
    np.testing.assert_allclose(fitted.history.epochs["metric"][-1], own, rtol=1e-5)
    with pytest.raises(
        ValueError, match="`metric` must be given for a GaussianRBM and this learner"
    ):
        ebm.fit(ebm.GaussianRBM.init(4, 3), ebm.CD(), rows, validation=rows, **options)
