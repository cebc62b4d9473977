# Wrong types are passed on purpose, to see the errors.
# pyright: reportArgumentType=false

"""Whether chains have reached equilibrium: against chains whose answers are known."""

import errors
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpyro.diagnostics import split_gelman_rubin

import ebmlearn as ebm
from ebmlearn.samplers._modes import gaps


KEY = jax.random.key(0)


def bimodal(strength):
    """Twelve visible and three hidden units that all agree, up or down; up is more likely."""
    return ebm.RBM.from_spins(jnp.full((12, 3), strength), jnp.full(12, 0.02), jnp.zeros(3))


DATA = np.ones((50, 12), np.int32)
LADDER = ebm.TrajectoryTempering(ebm.Trajectory([bimodal(x) for x in np.linspace(0, 0.7, 8)]))


def test_r_hat_is_that_of_numpyro():
    rng = np.random.default_rng(0)
    for steps in (4, 51, 200):
        x = rng.normal(size=(steps, 6)) + 0.5 * rng.normal(size=6)
        np.testing.assert_allclose(ebm.r_hat(x), split_gelman_rubin(x.T), rtol=1e-4)
    assert ebm.r_hat(np.ones((10, 3))) == 1
    assert ebm.r_hat(np.broadcast_to(np.arange(3), (10, 3))) == np.inf


def jumps_one_by_one(nearest, stay):
    home, count = nearest[0], 0
    for t in range(len(nearest)):
        last = nearest[max(0, t - stay + 1) : t + 1]
        if len(last) == stay and (last == last[0]).all() and last[0] != home:
            home, count = last[0], count + 1
    return count


def test_jumps_are_those_of_a_chain_that_is_followed_one_by_one():
    rng = np.random.default_rng(1)
    centres = np.asarray([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    # Each step leaves the cluster with probability 0.15.
    moves = rng.random((600, 8)) < 0.15
    clusters = np.cumsum(moves * rng.integers(1, 3, moves.shape), axis=0) % 3
    states = centres[clusters] + 0.3 * rng.normal(size=(600, 8, 2))
    for stay in (1, 3, 10):
        found = ebm.samplers.jumps(states, centres, stay)
        assert found.tolist() == [jumps_one_by_one(clusters[:, c], stay) for c in range(8)]
    assert (
        ebm.samplers.jumps(states, centres).tolist()
        == ebm.samplers.jumps(states, centres, 10).tolist()
    )
    changes = (np.diff(clusters, axis=0) != 0).sum(0)
    assert ebm.samplers.jumps(states, centres, 1).tolist() == changes.tolist()


@pytest.mark.slow
def test_autocorrelation_time_is_that_of_the_two_state_chain():
    """The visible unit of an RBM with one hidden unit is a Markov chain of two states."""
    w, b, c = 4.0, -2.0, -2.0
    rbm = ebm.RBM(jnp.asarray([[w]]), jnp.asarray([b]), jnp.asarray([c]))
    up = [1 / (1 + np.exp(-(c + w * v))) for v in (0, 1)]
    to_one = [p / (1 + np.exp(-(b + w))) + (1 - p) / (1 + np.exp(-b)) for p in up]
    second = to_one[1] - to_one[0]
    data = np.asarray([[0], [1]])
    found = ebm.equilibrium(rbm, ebm.Gibbs(), data, key=KEY, steps=4000, burn_in=50)
    assert found.reached
    assert found.r_hat.shape == (1,)
    expected = (1 + second) / (1 - second)
    np.testing.assert_allclose(found.autocorrelation_times, [expected], rtol=0.05)


@pytest.mark.slow
def test_chains_that_do_not_cross_are_told():
    model = bimodal(0.7)
    options = dict(key=KEY, burn_in=150, steps=200, modes=3)
    stuck = ebm.equilibrium(model, ebm.Gibbs(), DATA, **options)
    assert not stuck.reached
    assert stuck.gaps[0] > 4.5
    assert stuck.r_hat[0] > 1.5
    assert stuck.autocorrelation_times[0] > 50
    crossing = ebm.equilibrium(model, LADDER, DATA, **options)
    assert crossing.reached
    assert crossing.autocorrelation_times[0] < 50


@pytest.mark.slow
def test_models_without_weights_have_principal_components_as_modes():
    rng = np.random.default_rng(2)
    scopes = [(0, 1), (1, 2)]
    graph = ebm.TableModel([2, 3, 2], scopes, [rng.normal(size=s) for s in ((2, 3), (3, 2))])
    found = ebm.equilibrium(graph, ebm.Gibbs(), np.zeros((4, 3), int), key=KEY, modes=2)
    assert found.reached
    assert found.r_hat.shape == (2,)


@pytest.mark.slow
def test_sample_warns_if_chains_from_data_and_from_noise_disagree(recwarn):
    start = ebm.Layers(DATA, None)
    options = dict(key=KEY, num_chains=50, burn_in=150, start=start)
    with pytest.warns(UserWarning, match="from random states still disagree.*Raise `burn_in`"):
        drawn = ebm.sample(bimodal(0.7), ebm.Gibbs(), 1000, check=True, **options)
    ebm.sample(bimodal(0.7), LADDER, 1000, check=True, **options)
    assert not recwarn.list
    # The samples are the same without.
    again = ebm.sample(bimodal(0.7), ebm.Gibbs(), 1000, **options)
    np.testing.assert_array_equal(drawn.visible, again.visible)


@pytest.mark.slow
def test_training_out_of_equilibrium_is_seen_in_the_history(tmp_path):
    rows = np.concatenate([np.ones((50, 12), int), np.zeros((50, 12), int)])

    def fitted(epochs, **options):
        return ebm.fit(
            bimodal(0.01),
            ebm.SAP(num_chains=20),
            rows,
            optimizer=optax.adam(0.3),
            epochs=epochs,
            batch_size=50,
            progress=False,
            validation=ebm.Validation(equilibrium=True),
            **options,
        )

    found = fitted(22).history.validations
    assert found["step"].tolist() == [2 * k for k in range(1, 23)]
    assert found["r_hat"][0] < 1.1
    assert found["r_hat"][-1] > 1.5
    assert found["autocorrelation_time"][-1] > 10 * found["autocorrelation_time"][0]
    # A run that was stopped is resumed bit for bit.
    fitted(4, checkpoint=tmp_path)
    again = fitted(22, checkpoint=tmp_path).history.validations
    for name in ("autocorrelation_time", "r_hat", "gap"):
        np.testing.assert_array_equal(again[name], found[name])


RBM = ebm.RBM.init(visible=2, hidden=2, key=0)


@pytest.mark.parametrize(
    "case",
    [
        (lambda: ebm.r_hat(np.zeros((3, 2))), ValueError, "`x`", "four steps"),
        (
            lambda: ebm.samplers.jumps(np.zeros((3, 2)), np.zeros((2, 2))),
            (ValueError, TypeError),
            "states",
        ),
        (
            lambda: ebm.samplers.jumps(np.zeros((3, 2, 4)), np.zeros((2, 3))),
            (ValueError, TypeError),
            "centres",
        ),
        (
            lambda: ebm.sample(RBM, ebm.Gibbs(), 10, key=0, check=True),
            ValueError,
            "`check` must be False without a `start`",
        ),
        (
            lambda: ebm.sample(
                RBM, ebm.Gibbs(), 1, key=0, check=True, start=ebm.Layers(np.ones((1, 2)), None)
            ),
            ValueError,
            "less than two chains",
        ),
    ],
)
def test_wrong_arguments_are_told(case):
    errors.check(case)


def test_what_is_not_finite_has_not_mixed():
    x = jnp.zeros((20, 3)).at[:, 0].set(jnp.nan)
    assert not ebm.r_hat(x) < 2
    assert not (gaps(x[..., None], x[..., None]) < 4).all()


@pytest.mark.slow
def test_gaps_in_data_are_refused_and_modes_are_found_without_weights():
    rows = np.array([[np.nan, 1, 0], [0, 1, 1]])
    with pytest.raises(ValueError, match="`data` must hold no missing values for `equilibrium`"):
        ebm.equilibrium(ebm.RBM.init(3, 2, key=0), ebm.Gibbs(), rows, key=0)
    alone = ebm.RBM.init(visible=3, hidden=0, key=0)
    found = ebm.equilibrium(alone, ebm.Gibbs(), rows[1:], key=0, num_chains=4, steps=20)
    assert found.r_hat.shape == (3,)
