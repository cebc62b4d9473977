"""What `fit` makes of its epochs: metrics, callbacks, loaders."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ebmlearn as ebm


KEY = jax.random.key(0)
ROWS = np.random.default_rng(0).integers(0, 2, (10, 4))


def fit(**options):
    model = ebm.RBM(jnp.zeros((4, 1)), jnp.zeros(4), jnp.zeros(1))
    defaults = dict(optimizer=optax.sgd(0.1), epochs=2, batch_size=5, key=KEY, progress=False)
    data = options.pop("data", ROWS)
    return ebm.fit(model, ebm.PseudoLikelihood(), data, **{**defaults, **options})


def test_metrics():
    told = []
    found = fit(metric=lambda model, data, epoch: told.append((data, epoch)) or 1.0 - epoch)
    assert told == [(None, 0), (None, 1)] and found.best_epoch == 1
    with pytest.warns(UserWarning, match="`metric` must give a number, got NaN in epoch 0"):
        found = fit(metric=lambda model, data, epoch: np.nan, epochs=1)
    np.testing.assert_array_equal(found.model.visible_bias, found.last.visible_bias)
    with pytest.raises(TypeError, match="`metric` must give a number, got an array"):
        fit(metric=lambda model, data, epoch: np.ones(2))


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
    with pytest.raises(ValueError, match="`data` must give a batch in each epoch, got none"):
        fit(data=Batches(1, 1, 0), batch_size=None, checkpoint=keep, resume=False)
    # What was there is replaced.
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-000000001.ebm"]
