import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ebmlearn as ebm
from benchmarks import _sap_modes
from benchmarks.equilibrium import centres, count_jumps, measured, nearest, start


def test_count_jumps_wants_a_chain_to_stay():
    there = [0] * 12 + [1] * 9 + [0] * 12
    stays = [0] * 12 + [1] * 10 + [0] * 11
    thrice = [0] * 5 + [1] * 10 + [2] * 10 + [1] * 8
    near = np.asarray([there, stays, thrice]).T
    assert count_jumps(near).tolist() == [0, 2, 2]


def test_centres_finds_separate_clusters():
    rng = np.random.default_rng(0)
    means = np.repeat(rng.integers(0, 2, (3, 4)), 10, axis=1)
    means[:, :6] = np.repeat(np.eye(3), 2, axis=1)
    x = np.repeat(means, 50, axis=0)
    noise = rng.random(x.shape) < 0.02
    found = centres(np.abs(x - noise).astype(np.float32), None, 3)
    distance = np.abs(found[:, None] - means).max(-1)
    assert sorted(distance.argmin(1)) == [0, 1, 2]
    assert distance.min(1).max() < 0.2


def _share(model, means):
    """The probability of the first cluster, by a sum over all states of the hidden units."""
    w, b, c = (np.asarray(x, np.float64) for x in jax.tree.leaves(model))
    h = np.asarray(list(itertools.product([0, 1], repeat=w.shape[1])))
    field = h @ w.T + b
    log_p = np.logaddexp(0, field).sum(1) + h @ c
    p = np.exp(log_p - log_p.max())
    return (p / p.sum())[nearest(1 / (1 + np.exp(-field)), means) == 0].sum()


@pytest.mark.slow
def test_tempered_learning_keeps_the_shares_of_clusters_that_gibbs_never_leaves():
    rng = np.random.default_rng(0)
    means = np.repeat([[1.0, 0.0], [0.0, 1.0]], 40, axis=1)
    y = (rng.random(600) < 0.7).astype(int)
    x = jnp.asarray(rng.random((600, 80)) < 0.05 + 0.9 * means[y], jnp.float32)
    model = start(x, 5, jax.random.key(0))
    tempering = ebm.TrajectoryTempering(ebm.Trajectory.start(model, x, capacity=12))
    trained = ebm.fit(
        model,
        ebm.SAP(tempering, num_chains=50, centred=True),
        x,
        optimizer=optax.sgd(0.03),
        epochs=100,
        batch_size=100,
        key=1,
        progress=False,
    )
    found, trajectory = trained.last, trained.trajectory
    assert trajectory is not None
    assert abs(_share(found, means) - 0.3) < 0.1
    run = {"watched": 10, "sweeps": 1000}
    key = jax.random.key(2)
    gibbs = measured(ebm.Gibbs(), found, run, jnp.asarray(means, jnp.float32), key)
    sampler = ebm.TrajectoryTempering(trajectory)
    tempered = measured(sampler, found, run, jnp.asarray(means, jnp.float32), key)
    assert gibbs["jumps"] == 0
    assert tempered["jumps"] > 50
    assert abs(tempered["shares"][0] - _share(found, means)) < 0.15


@pytest.mark.slow
def test_exact_draws():
    rng = np.random.default_rng(0)
    shapes = ((7, 4), 7, 4)
    model = ebm.RBM(*(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes))
    units = _sap_modes.drawn_exactly(model, jax.random.key(0)).units
    visible, hidden = (np.asarray(x, np.float64) for x in model.encode(units))
    exact = ebm.Exact()(model)
    error = 4.5 * 0.5 / np.sqrt(_sap_modes.DRAWS)
    np.testing.assert_allclose(visible.mean(0), exact.visible, atol=error)
    np.testing.assert_allclose(hidden.mean(0), exact.hidden, atol=error)
    both = visible.T @ hidden / len(visible)
    np.testing.assert_allclose(both, exact.pairwise, atol=error)


def test_methods_of_far_modes_make_equally_many_gibbs_steps():
    updates, chains = 20_000, 100
    for method, (betas, every, _) in _sap_modes.LADDERS.items():
        run = {"method": method, "chains": chains, "updates": updates, "centred": False}
        learner, own = _sap_modes.learner(run, ebm.RBM.init(3, 2, key=jax.random.key(0)))
        assert isinstance(learner, ebm.TransSAP)
        transitions = (own - learner.begin) // every
        sweeps = own + transitions * 2 * (len(betas) - 1)
        assert updates - 2 * len(betas) < sweeps <= updates
