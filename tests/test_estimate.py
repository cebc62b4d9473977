"""Estimates against enumeration."""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest

import ebmlearn as ebm
from ebmlearn import _watch, datasets


KEY = jax.random.key(0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dbm", "semi_restricted"])
def test_ais_brackets_log_z(name):
    """Forward from the base, and in reverse from exact samples."""
    rng = np.random.default_rng(0)
    model = oracle.MODELS[name](rng)
    truth = oracle.truth(model)
    units = oracle.flat(model).sizes[0]
    base = jnp.asarray(rng.normal(size=units), jnp.float32)
    found = ebm.ais(model, key=KEY, betas=50, num_chains=2000, base=base)
    assert abs(float(found.log_partition) - truth.log_z) < 5 * float(found.standard_error)
    assert 0 < float(found.standard_error) < 0.05
    assert 1 < float(found.effective_chains) <= 2000
    p = np.exp(truth.scores - truth.log_z)
    drawn = truth.states[rng.choice(len(p), size=2000, p=p / p.sum())].astype(np.int32)
    layers = tuple(jnp.asarray(x) for x in oracle.flat(model).cut(drawn))
    back = ebm.reverse_ais(model, model.named(layers), key=KEY, betas=50, base=base)
    assert abs(float(back.log_partition) - truth.log_z) < 5 * float(back.standard_error)


@pytest.mark.slow
def test_ais_with_one_step_is_importance_sampling():
    model = oracle.random_rbm(np.random.default_rng(1), 3, 2)
    found = ebm.ais(model, key=KEY, betas=1, num_chains=20_000)
    assert abs(float(found.log_partition) - oracle.truth(model).log_z) < 5 * float(
        found.standard_error
    )
    path = jnp.asarray([0.0, 0.3, 1.0])
    again = ebm.ais(model, key=KEY, betas=path, num_chains=20_000)
    assert float(again.standard_error) < float(found.standard_error)


@pytest.mark.usefixtures("slow_clock")
def test_ais_passes_the_rest_of_the_path_in_longer_steps_when_time_is_short():
    model = oracle.random_rbm(np.random.default_rng(1), 3, 2)

    def run(seconds):
        return ebm.ais(model, key=KEY, betas=420, num_chains=500, seconds=seconds)

    whole, timely, cut, hurried = (run(x) for x in (None, 1e6, 14, 0.5))
    np.testing.assert_array_equal(whole.log_weights, timely.log_weights)
    assert [x.steps for x in (whole, timely, hurried)] == [420, 420, 100]
    assert 100 < cut.steps < 420
    assert float(hurried.standard_error) > float(whole.standard_error)
    truth = oracle.truth(model).log_z
    for found in (cut, hurried):
        assert abs(float(found.log_partition) - truth) < 5 * float(found.standard_error)
    start = ebm.sample(model, ebm.Gibbs(), 500, key=KEY, burn_in=50)
    back = ebm.reverse_ais(model, start, key=KEY, betas=420, seconds=0.5)
    assert back.steps == 100
    assert abs(float(back.log_partition) - truth) < 5 * float(back.standard_error)


@pytest.mark.parametrize(
    ("terminal", "progress", "short", "shown"),
    [
        (True, True, 0.0, True),
        (True, True, 1e3, False),
        (True, False, 0.0, False),
        (False, True, 0.0, False),
    ],
)
def test_a_bar_is_shown_in_terminals_for_long_calls(
    terminal, progress, short, shown, monkeypatch, capsys
):
    monkeypatch.setattr(_watch, "_SHORT", short)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    model = oracle.random_rbm(np.random.default_rng(1), 3, 2)
    ebm.ais(model, key=KEY, betas=420, num_chains=500, progress=progress)
    told = capsys.readouterr().err
    assert ("ais: 100%" in told and "420/420" in told) == shown
    assert shown or not told


@pytest.mark.slow
def test_ais_of_a_trained_rbm():
    """A 64×10 RBM of digits, trained: both directions within 0.05 of exact."""
    data = datasets.digits().train.x
    fitted = ebm.fit(
        ebm.RBM.init(64, 10, key=KEY),
        ebm.SAP(num_chains=50),
        data,
        optimizer=optax.adam(1e-2),
        epochs=12,
        batch_size=57,
        key=KEY,
        progress=False,
    )
    model = fitted.model
    exact = float(ebm.Exact()(model).log_partition)
    base = ebm.estimate.base_rate(data)
    forward = ebm.ais(model, key=KEY, betas=500, num_chains=150, base=base)
    assert abs(float(forward.log_partition) - exact) < 0.05
    start = ebm.sample(
        model,
        ebm.ParallelTempering(np.linspace(0, 1, 10)),
        150,
        key=KEY,
        num_chains=150,
        burn_in=150,
    )
    back = ebm.reverse_ais(model, start, key=KEY, betas=500, base=base)
    assert abs(float(back.log_partition) - exact) < 0.05
    before = ebm.RBM.init(64, 10, key=KEY)
    gained = (
        ebm.log_likelihood(model, data, exact).mean()
        - ebm.log_likelihood(before, data, ebm.Exact()(before).log_partition).mean()
    )
    assert gained > 15


def test_base_rate():
    data = np.array([[0, 1], [0, 1], [1, 1]])
    np.testing.assert_allclose(
        ebm.estimate.base_rate(data), [np.log(2 / 3), np.log(4 / 1)], rtol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rbm", "boltzmann", "semi_restricted"])
def test_likelihoods(name):
    with oracle.x64(True):
        model = oracle.MODELS[name](np.random.default_rng(2), dtype="float64")
        truth = oracle.truth(model)
        n = oracle.flat(model).sizes[0]
        every = np.array(list(itertools.product((0, 1), repeat=n)))
        p = np.exp(truth.scores - truth.log_z)
        marginal = np.array([p[(truth.states[:, :n] == v).all(1)].sum() for v in every])
        got = ebm.log_likelihood(model, every, truth.log_z)
        np.testing.assert_allclose(got, np.log(marginal), atol=1e-10)
        powers = 2 ** np.arange(n)[::-1]
        want = np.zeros(len(every))
        for i in range(n):
            flipped = every.copy()
            flipped[:, i] = 1 - flipped[:, i]
            want += np.log(marginal / (marginal + marginal[flipped @ powers]))
        np.testing.assert_allclose(ebm.pseudo_log_likelihood(model, every), want, atol=1e-10)


def test_mmd():
    rng = np.random.default_rng(3)
    x, y = rng.integers(0, 2, (5, 4)), rng.integers(0, 2, (7, 4))

    def kernel(a, b):
        return np.mean([[np.exp(-np.mean(p != q)) for q in b] for p in a])

    want = kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)
    np.testing.assert_allclose(ebm.estimate.mmd(x, y), want, atol=1e-6)
    np.testing.assert_allclose(ebm.estimate.mmd(x, x), 0, atol=1e-6)


@pytest.mark.slow
def test_many_chains_of_ais():
    model = ebm.RBM(jnp.ones((1, 1)), jnp.zeros(1), jnp.zeros(1))
    found = ebm.ais(model, key=KEY, betas=2, num_chains=50_000)
    assert 1 < found.effective_chains <= 50_000


@pytest.mark.slow
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


def test_what_would_be_no_bound_is_refused():
    solver = ebm.PMP(20, perturb=["visible"])
    with pytest.raises(ValueError, match="`solver` must perturb all units"):
        ebm.pmp_bound(ebm.RBM.init(3, 2, key=0), key=0, solver=solver)


@pytest.mark.slow
def test_likelihoods_take_estimates():
    model, rows = ebm.RBM.init(3, 2, key=0), np.ones((2, 3), int)
    found = ebm.ais(model, key=0, betas=5, num_chains=3)
    np.testing.assert_array_equal(
        ebm.log_likelihood(model, rows, found),
        ebm.log_likelihood(model, rows, found.log_partition),
    )


@pytest.mark.usefixtures("as_a_user")
def test_units_of_a_classification_are_checked():
    model = ebm.RBM.init(4, 2, key=0)
    for wrong in (255.0, np.nan):
        with pytest.raises(ValueError, match="`visible`"):
            ebm.classify(model, np.array([[wrong, 0.0]]), labels=2)
    with pytest.raises(TypeError, match="`where` must hold booleans"):
        ebm.error_rate(np.ones((1, 2)), np.zeros((1, 2)), np.full((1, 2), 2))
