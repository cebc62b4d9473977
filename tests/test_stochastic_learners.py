"""Learners with chains of their own, and pseudo-likelihood."""

import operator
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest

import ebmlearn as ebm


KEY = jax.random.key(0)


def bits(rng, rows, columns):
    return rng.integers(0, 2, (rows, columns)).astype(np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "learner"),
    [
        ("semi_restricted", ebm.SAP(num_chains=20_000, inference=ebm.Exact())),
        (
            "dbm",
            ebm.TransSAP([0.5, 0.8, 1.0], every=3, num_chains=20_000, inference=ebm.Exact()),
        ),
    ],
    ids=["sap", "trans-sap"],
)
def test_many_chains_give_the_gradient_of_the_likelihood(name, learner):
    """While the model stands still the chains forget their start."""
    rng = np.random.default_rng(0)
    model = oracle.MODELS[name](rng, scale=0.7)
    v = bits(rng, 4, oracle.flat(model).sizes[0])
    state = learner.init(model, key=KEY)
    step = eqx.filter_jit(lambda state, key: learner.step(model, state, v, key=key, epoch=0))
    accepted, gradient = [], None
    for k in range(18):
        gradient, state, info = step(state, jax.random.key(k))
        accepted.append(float(info.accepted))
    exact, _, _ = ebm.MLE(ebm.Exact()).step(model, None, v, key=KEY, epoch=0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=0.02), gradient, exact)
    runs = np.flatnonzero(np.isfinite(accepted))
    if isinstance(learner, ebm.TransSAP):
        assert runs.tolist() == [2, 5, 8, 11, 14, 17]
        assert all(0 < accepted[k] <= 1 for k in runs)
    else:
        assert not len(runs)


@pytest.mark.slow
def test_weighted_configurations_stand_for_another_model():
    """Drawn from one model, weighted for another, they give that one's gradient; drawn anew, they
    count all the same.
    """
    rng = np.random.default_rng(4)
    first = oracle.random_rbm(rng, 4, 3, scale=0.7)
    second = jax.tree.map(lambda x: x + jnp.asarray(0.5 * rng.normal(size=x.shape), x.dtype), first)
    v = bits(rng, 5, 4)
    learner = ebm.MCMCMLE(num_chains=40_000, steps=30, refresh=3)
    state = learner.init(first, key=KEY)
    shares = []
    for k, model in enumerate([first, second, second, second]):
        gradient, state, info = learner.step(model, state, v, key=jax.random.key(k), epoch=0)
        exact, _, _ = ebm.MLE(ebm.Exact()).step(model, None, v, key=KEY, epoch=0)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=0.02), gradient, exact)
        shares.append(float(info.accepted))
    assert shares[0] == pytest.approx(1, abs=1e-4)
    assert shares[3] == pytest.approx(1, abs=1e-4)
    assert 0.3 < shares[1] < 0.95
    assert shares[1] == pytest.approx(shares[2], abs=1e-6)


@pytest.mark.slow
def test_chains_go_on_from_step_to_step():
    """One step of SAP is one step of its sampler, from where the last one ended."""
    rng = np.random.default_rng(1)
    model = oracle.random_rbm(rng, 4, 3)
    learner = ebm.SAP(ebm.Gibbs(), num_chains=6)
    state = learner.init(model, key=KEY)
    v = bits(rng, 5, 4)
    chains, gradient = ebm.Gibbs().init(model, 6, key=KEY), None
    for k in range(3):
        gradient, state, _ = learner.step(model, state, v, key=jax.random.key(k), epoch=0)
        own = jax.random.split(jax.random.key(k), 1)[0]
        chains, _ = ebm.Gibbs().step(model, chains, key=own)
        np.testing.assert_array_equal(state.units.visible, chains.units.visible)
    assert gradient is not None
    visible = np.asarray(chains.units.visible)
    hidden = np.asarray(model.hidden_given(visible))
    want = visible.T @ hidden / 6 - v.T @ np.asarray(model.hidden_given(v)) / 5
    np.testing.assert_allclose(gradient.weights, want, atol=1e-5)


@pytest.mark.slow
def test_any_sampler_serves():
    rng = np.random.default_rng(2)
    model = oracle.random_rbm(rng, 4, 3)
    for sampler in (ebm.ParallelTempering([0.3, 1.0]), ebm.GibbsWithGradients(3)):
        learner = ebm.SAP(sampler, num_chains=6, steps=2)
        state = learner.init(model, key=KEY)
        gradient, state, info = learner.step(model, state, bits(rng, 5, 4), key=KEY, epoch=0)
        assert jnp.isfinite(gradient.weights).all()
    assert 0 <= info.accepted <= 1


@pytest.mark.slow
def test_trans_sap_in_fit_resumes_bit_by_bit(tmp_path):
    v = bits(np.random.default_rng(3), 40, 4)
    options: dict[str, Any] = dict(
        optimizer=optax.sgd(ebm.learners.robbins_monro(0.05, 10, 10.0, 1000.0)),
        epochs=4,
        batch_size=10,
        key=KEY,
        progress=False,
    )
    learner = ebm.TransSAP(np.linspace(0.8, 1, 3), every=4, begin=4, num_chains=5)
    model = ebm.RBM.init(4, 3, key=KEY)
    whole = ebm.fit(model, learner, v, **options)
    ebm.fit(model, learner, v, **{**options, "epochs": 2}, checkpoint=tmp_path)
    rest = ebm.fit(model, learner, v, **options, checkpoint=tmp_path)
    for a, b in zip(jax.tree.leaves(whole.last), jax.tree.leaves(rest.last), strict=True):
        np.testing.assert_array_equal(a, b)
    accepted = whole.history.steps["accepted"]
    assert np.flatnonzero(np.isfinite(accepted)).tolist() == [7, 11, 15]
    assert np.isfinite(whole.history.epochs["accepted"][1:]).all()


def test_persistent_chains_are_not_for_conditional_models():
    crbm = ebm.CRBM.init(3, 2, 4, key=KEY)
    for learner in (ebm.SAP(), ebm.TransSAP([0.5, 1.0])):
        with pytest.raises(TypeError, match=r"`model` must .*CRBM: call.*`MLE` or `CD`"):
            learner.init(crbm, key=KEY)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rbm", "boltzmann", "semi_restricted", "crbm"])
def test_pseudo_likelihood(name):
    """Against finite differences; of couplings, both places of an edge move together."""
    with oracle.x64(True):
        rng = np.random.default_rng(4)
        if name == "crbm":
            shapes = (3, 2), (3, 4), (2, 4), (3,), (2,)
            model = ebm.CRBM(*(jnp.asarray(rng.normal(size=shape)) for shape in shapes))
            batch = cast(Any, (rng.normal(size=(5, 4)), bits(rng, 5, 3)))
        else:
            model = oracle.MODELS[name](rng, dtype="float64")
            batch = bits(rng, 5, oracle.flat(model).sizes[0])
        learner = ebm.PseudoLikelihood()
        gradient, _, info = learner.step(model, None, batch, key=KEY, epoch=0)

        @eqx.filter_jit
        def loss(model):
            plain, v = (model.condition(batch[0]), batch[1]) if name == "crbm" else (model, batch)
            return -ebm.pseudo_log_likelihood(plain, v).mean()

        np.testing.assert_allclose(info.loss, loss(model), atol=1e-12)
        for field in (k for k, x in vars(model).items() if x is not None and x.size):
            value = np.asarray(getattr(model, field))
            where = (0, 1) if value.ndim == 2 else (1,)
            moved = []
            for step in (1e-5, -1e-5):
                new = value.copy()
                new[where] += step
                if field == "couplings":
                    new[where[::-1]] += step
                get = operator.attrgetter(field)
                moved.append(loss(eqx.tree_at(get, model, jnp.asarray(new))))
            slope = (moved[0] - moved[1]) / 2e-5
            np.testing.assert_allclose(getattr(gradient, field)[where], slope, atol=1e-7)


def test_robbins_monro():
    schedule = cast(Any, ebm.learners.robbins_monro(0.01, hold=100, a=10.0, b=1000.0))
    assert float(schedule(0)) == pytest.approx(0.01)
    assert float(schedule(99)) == pytest.approx(0.01)
    assert float(schedule(100)) == pytest.approx(10 / 1000)
    assert float(schedule(1100)) == pytest.approx(10 / 2000)


@pytest.mark.slow
def test_models_trained_side_by_side_are_those_trained_alone(tmp_path):
    """Also where the time is over after each slice, and they go on from a file."""
    from benchmarks import _twins
    from benchmarks._slices import Deadline
    from benchmarks.pmp import BATCH, ising

    rows = bits(np.random.default_rng(0), 2 * BATCH, 5)
    run = {"sweeps": 2, "updates": 3, "seed": 1}
    both, slices = None, 0
    while both is None:
        both = _twins.trained(run, rows, 0.1, 7, BATCH, tmp_path / "both.npz", Deadline(0))
        slices += 1
    assert slices == 2
    for method, (model, updates) in both.items():
        alone = ising({**run, "method": method}, rows, 0.1, 7, None, Deadline(1e6))
        assert updates == len(alone.history.steps["gap"]) == 4
        np.testing.assert_allclose(model.couplings, alone.last.couplings, atol=1e-5)
        np.testing.assert_allclose(model.bias, alone.last.bias, atol=1e-5)


def test_pcd_is_another_name_of_sap():
    assert ebm.PCD is ebm.SAP
