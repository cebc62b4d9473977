"""Legal arguments at the edge of what there is."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from scipy.special import expit

import ebmlearn as ebm
from ebmlearn.models import Statistics
from ebmlearn.numpyro import EnergyDistribution


KEY = jax.random.key(0)
ROWS = np.random.default_rng(0).integers(0, 2, (10, 4))


@pytest.mark.parametrize("learner", [ebm.MLE(ebm.BP(3)), ebm.SAP(num_chains=5)])
def test_models_without_hidden_units_are_trained(learner):
    model = ebm.RBM(jnp.zeros((4, 0)), jnp.asarray([-1.0, 0.0, 1.0, 2.0]), jnp.zeros(0))
    state = learner.init(model, key=KEY)
    gradient, _, _ = learner.step(model, state, ROWS, key=KEY, epoch=0)
    assert gradient.weights.shape == (4, 0)
    if isinstance(learner, ebm.MLE):
        want = expit(model.visible_bias) - ROWS.mean(0)
        np.testing.assert_allclose(gradient.visible_bias, want, atol=1e-6)


def test_many_chains_of_ais():
    model = ebm.RBM(jnp.ones((1, 1)), jnp.zeros(1), jnp.zeros(1))
    found = ebm.ais(model, key=KEY, betas=2, num_chains=50_000)
    assert 1 < found.effective_chains <= 50_000


def test_a_bound_from_maxima_needs_them():
    model = ebm.RBM(jnp.ones((1, 1)), jnp.zeros(1), jnp.zeros(1))
    with pytest.raises(ValueError, match="`solver` must maximise"):
        ebm.pmp_bound(model, key=KEY, solver=ebm.MeanField(5))


def test_replicas_where_biases_broadcast():
    one = oracle.random_rbm(np.random.default_rng(1), 4, 3, dtype="float32")
    bias = jnp.broadcast_to(one.visible_bias, (5, 4))
    tempering = ebm.ParallelTempering([0.0, 1.0])
    options = {"key": KEY, "num_chains": 5}
    model = ebm.RBM(one.weights, bias, one.hidden_bias[None])
    drawn = ebm.sample(model, tempering, 3, **options)
    # The same instance five times is five chains of it.
    np.testing.assert_array_equal(drawn.visible, ebm.sample(one, tempering, 3, **options).visible)


def test_swaps_that_were_not_tried_have_no_share():
    model = oracle.random_rbm(np.random.default_rng(4), 3, 2, dtype="float32")
    learner = ebm.SAP(ebm.ParallelTempering([0.9, 1.0]), num_chains=4)
    state, shares = learner.init(model, key=KEY), []
    for key in jax.random.split(KEY, 4):
        _, state, info = learner.step(model, state, ROWS[:, :3], key=key, epoch=0)
        shares.append(float(info.accepted))
    # Of two replicas a swap is tried in every other step.
    assert np.isnan(shares).tolist() in ([True, False] * 2, [False, True] * 2)
    assert np.nanmin(shares) >= 0 and np.nanmax(shares) > 0


def test_autocorrelation_of_chains_that_swing():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(20_000, 40))
    for k in range(1, len(x)):
        x[k] -= 0.9 * x[k - 1]
    assert float(ebm.autocorrelation_time(x[100:])) == pytest.approx(0.1 / 1.9, rel=0.2)


def test_marginals_at_another_temperature():
    couplings = jnp.asarray([[0.0, 4.0], [4.0, 0.0]])
    model = ebm.BoltzmannMachine(couplings, jnp.asarray([-1.0, -2.0]))
    found = ebm.sampled_marginals(
        model,
        jnp.zeros(2),
        jnp.zeros(2, bool),
        key=KEY,
        sampler=ebm.Gibbs(0.5),
        steps=20_000,
    )
    np.testing.assert_allclose(found, ebm.Exact()(model.tempered(0.5)).x, atol=0.02)


def test_moments_of_any_kind_of_numbers():
    units, products = ebm.Units(np.asarray([1.0, 1.0])), np.asarray([[1.5, 1.1], [1.1, 1.5]])
    rest = (None,), jnp.asarray(True), jnp.asarray(1), jnp.asarray(0.0)
    given = Statistics(units, products, *rest)
    assert bool(ebm.solve_moments(given, ebm.ISusP()).converged)
    rows = np.random.default_rng(3).poisson(3.0, (500, 2))
    whole = ebm.solve_moments(rows, ebm.ISusP())
    np.testing.assert_array_equal(
        whole.model.couplings,
        ebm.solve_moments(rows.astype(np.float32), ebm.ISusP()).model.couplings,
    )


def test_queries_of_nonnegative_units():
    couplings = jnp.asarray([[1.0, 0.3], [0.3, 1.2]])
    model = ebm.NNBM(couplings, jnp.asarray([0.5, -0.2]))
    for inference in (ebm.TAP(), ebm.SusP(), ebm.Exact()):
        answer, info = ebm.query(model, None, None, inference, with_info=True)
        beliefs = inference(model)
        np.testing.assert_array_equal(answer.mean, beliefs.x)
        np.testing.assert_array_equal(answer.variance, beliefs.variance)
        np.testing.assert_allclose(answer.mean, ebm.Exact()(model).mean, atol=0.05)
        assert bool(info.converged) and bool((answer.variance > 0).all())
    one = ebm.query(model, None, None, ebm.TAP(), targets=[1])
    np.testing.assert_array_equal(one.mean, ebm.TAP()(model).mean[1:])


def test_what_lies_outside_the_support():
    model = ebm.RBM(jnp.ones((2, 1)), jnp.zeros(2), jnp.zeros(1))
    distribution = EnergyDistribution(model, "exact", validate_args=True)
    with pytest.warns(UserWarning, match="Out-of-support"):
        found = distribution.log_prob(jnp.asarray([3, 0]))
    assert found == -jnp.inf


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


@pytest.mark.parametrize("hidden", [0, 2])
def test_dual_of_no_edges(hidden):
    model = ebm.RBM(jnp.zeros((2, hidden)), jnp.asarray([-1.0, 2.0]), jnp.ones(hidden))
    found = ebm.MPLP()(model)
    assert found.converged
    np.testing.assert_allclose(found.log_partition, 2 + hidden)
    np.testing.assert_array_equal(found.decode().visible, [0, 1])


def test_dual_of_large_couplings_in_float32():
    rng = np.random.default_rng(0)
    for _ in range(10):
        w = np.triu(rng.normal(0, 50, (5, 5)), 1).astype(np.float32)
        model = ebm.BoltzmannMachine(w + w.T, rng.normal(0, 50, 5).astype(np.float32))
        found = ebm.MPLP()(model)
        assert found.converged
        best = float(ebm.Exact("max")(model).log_partition)
        assert found.log_partition > best - 1e-6 * abs(best)


def test_mean_energies_where_batches_broadcast():
    rng = np.random.default_rng(7)
    weights, visible, hidden = (rng.normal(size=s) for s in ((4, 3), (1, 4), (5, 3)))
    model = ebm.RBM(*(jnp.asarray(x, jnp.float32) for x in (weights, visible, hidden)))
    found = ebm.Exact().statistics(model)
    each = []
    for k in range(5):
        one = ebm.RBM(model.weights, model.visible_bias[0], model.hidden_bias[k])
        own = ebm.Exact().statistics(one)
        each.append(float(one.expected_energy(own)))
    energy = model.expected_energy(found)
    np.testing.assert_allclose(energy, np.mean(each), rtol=1e-5)


def test_states_that_do_not_fit_into_32_bits():
    zero = jnp.zeros((2, 2))
    model = ebm.GridMRF(zero, zero, zero, zero, shape=(1, 2))
    for wrong in (np.array([[2**32 + 1, 0]]), np.array([[2**32 - 1, 0]], np.uint32)):
        with pytest.raises(ValueError, match=r"states from 0 to 1, .* got 429496729\d"):
            ebm.Exact()(model, {"state": wrong})


def test_what_is_impossible_has_no_conditional():
    zero = jnp.zeros((3, 3))
    never = jnp.full((3, 3), -jnp.inf)
    right = never.at[0, 0].set(0.0).at[0, 1].set(1.0).at[1, 2].set(2.0)
    model = ebm.GridMRF(zero, right, zero, zero, shape=(1, 2))
    nothing = {"state": np.full((1, 2), -1)}
    targets = [("state", (0, 0)), ("state", (0, 1))]
    found = ebm.joint_query(model, nothing, None, ebm.Exact(), targets)
    p = np.where(np.isfinite(right), np.exp(np.asarray(right)), 0)
    np.testing.assert_allclose(found, p / p.sum(), atol=1e-6)
    assert not ebm.Exact()(model, {"state": np.array([[2, -1]])}).converged
