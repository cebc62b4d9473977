"""What `fit` makes of its epochs: metrics, callbacks, loaders."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ebmlearn as ebm


KEY = jax.random.key(0)
ROWS = np.random.default_rng(0).integers(0, 2, (10, 4))


def fit(**options):
    model = options.pop("model", ebm.RBM(jnp.zeros((4, 1)), jnp.zeros(4), jnp.zeros(1)))
    defaults = dict(optimizer=optax.sgd(0.1), epochs=2, batch_size=5, key=KEY, progress=False)
    data = options.pop("data", ROWS)
    learner = options.pop("learner", ebm.PseudoLikelihood())
    return ebm.fit(model, learner, data, **{**defaults, **options})


@pytest.mark.slow
def test_metrics():
    told = []
    found = fit(
        validation=ebm.Validation(
            metric=lambda model, data, epoch: told.append((data, epoch)) or 1.0 - epoch
        )
    )
    assert told == [(None, 0), (None, 1)] and found.best_epoch == 1
    with pytest.warns(UserWarning, match="`metric` must return a number, got NaN in epoch 0"):
        found = fit(validation=ebm.Validation(metric=lambda model, data, epoch: np.nan), epochs=1)
    np.testing.assert_array_equal(found.model.visible_bias, found.last.visible_bias)
    with pytest.raises(TypeError, match="`metric` must return a number, got an array"):
        fit(validation=ebm.Validation(metric=lambda model, data, epoch: np.ones(2)))


@pytest.mark.usefixtures("as_a_user")
def test_callbacks_are_checked_before_the_first_epoch():
    with pytest.raises(TypeError, match="`callbacks` must be a list"):
        fit(callbacks=print)


def test_without_a_metric_the_last_model_counts():
    steps = []

    def data():
        for _ in range(2):
            steps.append(1)
            if len(steps) > 2:
                raise KeyboardInterrupt
            yield ROWS[:5]

    class Batches:
        def __iter__(self):
            return data()

    found = fit(data=Batches(), batch_size=None)
    assert found.stopped == "interrupted"
    np.testing.assert_array_equal(found.model.visible_bias, found.last.visible_bias)


def test_epochs_of_different_length(tmp_path):
    class Batches:
        def __init__(self, *lengths):
            self.lengths, self.epoch = lengths, -1

        def __iter__(self):
            self.epoch += 1
            return iter([ROWS[:5]] * self.lengths[self.epoch])

    keep = ebm.Checkpoint(tmp_path, keep=10)
    # The first batch is looked at before.
    fit(data=Batches(1, 3, 2, 5), batch_size=None, epochs=3, checkpoint=keep)
    names = sorted(path.name for path in tmp_path.glob("step-*"))
    assert names == [f"step-{step:09d}.ebm" for step in (3, 5, 10)]
    with pytest.raises(ValueError, match="at least one batch in each epoch, got 0"):
        fit(
            data=Batches(1, 1, 0),
            batch_size=None,
            checkpoint=ebm.Checkpoint(tmp_path, keep=10, resume=False),
        )
    # What was there is replaced.
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-000000001.ebm"]


def test_a_history_holds_what_was_said():
    found = fit()
    assert "metric" not in found.history.epochs and "accepted" not in found.history.epochs
    assert not any(np.isnan(x).all() for x in found.history.epochs.values())
    assert (
        "metric"
        in fit(validation=ebm.Validation(metric=lambda model, data, epoch: 1.0)).history.epochs
    )


def test_a_run_that_diverges_says_so_once():
    wanted = r"The largest parameter has grown from .* by step 1: training diverges\. Try a smaller"
    with pytest.warns(UserWarning, match=wanted) as told:
        fit(learner=ebm.SAP(num_chains=5), optimizer=optax.sgd(1e4))
    assert len(told) == 1


def test_a_gap_that_grows_is_told_where_parameters_have_no_known_scale():
    def build(free):
        return ebm.RBM(1000 * free, jnp.zeros(4), jnp.zeros(2))

    with pytest.warns(UserWarning, match=r"The gap has grown from .*: training diverges\."):
        fit(
            model=jnp.zeros((4, 2)),
            learner=ebm.SAP(num_chains=5),
            optimizer=optax.sgd(1.0),
            build=build,
        )


@pytest.mark.slow
def test_large_parameters_of_real_units_are_no_divergence():
    def project(model):
        zeros = jnp.zeros((4, 2)), jnp.zeros(4)
        return eqx.tree_at(lambda m: (m.weights, m.log_sigma), model, zeros)

    found = fit(
        model=ebm.GaussianRBM.init(4, 2, key=0),
        learner=ebm.CD(1),
        data=300.0 + ROWS,
        optimizer=optax.sgd(0.5),
        epochs=5,
        project=project,
    )
    assert float(abs(found.model.visible_bias).max()) > 200


@pytest.mark.parametrize(
    ("learner", "judges"),
    [
        (ebm.CD(1), False),
        (ebm.PseudoLikelihood(), False),
        (ebm.MLE(ebm.BP(5)), True),
    ],
    ids=["CD", "PseudoLikelihood", "MLE"],
)
def test_convergence_is_shown_for_learners_that_judge_it(learner, judges, capsys):
    found = fit(learner=learner, progress=True)
    assert ("converged" in found.history.epochs) == judges
    assert ("converged=" in capsys.readouterr().err) == judges


def test_an_interrupted_run_says_how_to_go_on(capsys, tmp_path):
    def stop(report):
        raise KeyboardInterrupt

    fit(callbacks=[stop])
    assert "The run is not saved: pass `checkpoint=folder` to `fit`." in capsys.readouterr().out
    fit(callbacks=[stop], checkpoint=tmp_path)
    told = capsys.readouterr().out
    assert f"Interrupted in epoch 1 after step 2. The run is saved in {str(tmp_path)!r}: " in told
    assert "call `fit` again with the same arguments to resume." in told


def test_the_bar_is_named_after_the_learner(capsys):
    fit(progress=True)
    told = capsys.readouterr().err
    assert "PseudoLikelihood, compiling ..." in told and "steps/s" in told


def test_a_validation_that_is_interrupted_is_done_again(tmp_path):
    """The run goes on as if nothing had happened."""
    calls = []

    def metric(model, data, epoch):
        calls.append(epoch)
        if len(calls) == 2 and data["stop"]:
            raise KeyboardInterrupt
        return float(jnp.abs(model.visible_bias).sum())

    def run(stop, **options):
        calls.clear()
        return fit(validation=ebm.Validation({"stop": stop}, metric, every=1), **options)

    whole = run(np.False_)
    assert run(np.True_, checkpoint=tmp_path).stopped == "interrupted"
    again = run(np.False_, checkpoint=tmp_path)
    for name in ("step", "metric"):
        one, other = (x.history.validations[name] for x in (again, whole))
        np.testing.assert_array_equal(one, other)
    assert (again.best_step, again.best_epoch) == (whole.best_step, whole.best_epoch)
