# Wrong types are passed on purpose, to see the errors.
# pyright: reportArgumentType=false

"""Chains on a trajectory of models: transition matrices, draws in bulk, and diagnostics."""

from typing import Any

import equinox as eqx
import errors
import jax
import jax.numpy as jnp
import nonnegative
import numpy as np
import optax
import oracle
import pytest
from transitions import draws_of, drift, looped, probabilities, SMALL, transition_matrix

import ebmlearn as ebm
from ebmlearn.samplers import _trajectory_tempering
from ebmlearn.samplers._trajectory_tempering import followed


KEY = jax.random.key(0)


def matrix_of(monkeypatch, first, model, choices, **options):
    """The transition matrix of both replicas of a trajectory of two models."""

    def on_each(function, models, shape, *arrays):
        return looped(lambda own, *x: function(eqx.combine(own, shape), *x), models, *arrays)

    monkeypatch.setattr(_trajectory_tempering, "on_each", on_each)
    sampler = ebm.TrajectoryTempering(ebm.Trajectory([first, model]), **options)
    matrix = transition_matrix(monkeypatch, model, sampler, choices, replicas=2)
    return matrix, np.outer(probabilities(first), probabilities(model)).ravel()


def conditioned(rng):
    crbm = ebm.CRBM(*(rng.normal(size=s) for s in ((2, 1), (2, 3), (1, 3), (2,), (1,))))
    return crbm.condition(np.asarray([1.0, -0.5, 0.3]))


NAMES = ["rbm", "boltzmann", "dbm", "labelled", "categorical", "joined_mixed", "crbm"]


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", NAMES)
def test_all_distributions_stay_as_they_are(monkeypatch, name):
    make = conditioned if name == "crbm" else SMALL[name]
    first, model = make(np.random.default_rng(1)), make(np.random.default_rng(2))
    choices = [2, *draws_of(model) * 2]
    matrix, p = matrix_of(monkeypatch, first, model, choices)
    assert drift(matrix, p) < 1e-12
    assert (np.linalg.matrix_power(matrix, 4) > 0).all()
    # Without the exchange, replicas do not meet.
    monkeypatch.setattr(_trajectory_tempering, "is_tried", lambda pairs, _: jnp.zeros(pairs, bool))
    alone, _ = matrix_of(monkeypatch, first, model, choices)
    assert drift(alone, p) < 1e-12
    assert np.abs(alone - matrix).max() > 0.01


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
def test_samplers_that_keep_hidden_units_draw_them_anew(monkeypatch):
    """Hidden units are swapped as if they did not matter, so that they must be drawn after it."""
    rng = np.random.default_rng(3)
    first, model = (oracle.random_rbm(rng, 1, 1, dtype="float64") for _ in range(2))
    sampler = ebm.GibbsWithGradients()
    matrix, p = matrix_of(monkeypatch, first, model, [2, *[2, 2, 2] * 2], sampler=sampler)
    assert drift(matrix, p) < 1e-12
    monkeypatch.setattr(ebm.GibbsWithGradients, "renews", True)
    matrix, p = matrix_of(monkeypatch, first, model, [2, *[2, 2] * 2], sampler=sampler)
    assert drift(matrix, p) > 1e-3


def bimodal(strength):
    """Twelve visible and three hidden units that all agree, up or down; up is more likely."""
    return ebm.RBM.from_spins(jnp.full((12, 3), strength), jnp.full(12, 0.02), jnp.zeros(3))


def trajectory(capacity=None):
    return ebm.Trajectory([bimodal(x) for x in np.linspace(0, 0.7, 8)], capacity)


ONES = ebm.Layers(jnp.ones(12, jnp.int32), jnp.ones(3, jnp.int32))


@pytest.mark.slow
def test_draws_have_no_bias_where_gibbs_never_crosses():
    model = bimodal(0.7)
    options: dict[str, Any] = dict(key=KEY, num_chains=2000, start=ONES)
    exact = ebm.Exact()(model)
    stuck = ebm.sample(model, ebm.Gibbs(), 2000, burn_in=100, **options).visible.mean(0)
    assert (stuck - exact.visible > 0.2).all()
    sampler = ebm.TrajectoryTempering(trajectory(10))
    drawn, info = ebm.sample_with_info(model, sampler, 2000, burn_in=150, **options)
    for x, p in ((drawn.visible, exact.visible), (drawn.hidden, exact.hidden)):
        gap = np.abs(np.asarray(x).mean(0) - p) / np.sqrt(p * (1 - p) / 2000)
        assert gap.max() < 4.5
    energies = model.energy(drawn.visible, drawn.hidden)
    np.testing.assert_allclose(energies, info.energy[0], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_diagnostics_of_a_trajectory():
    model, steps = bimodal(0.7), 400
    sampler = ebm.TrajectoryTempering(trajectory(10))
    state = sampler.init(model, 50, key=KEY)

    @eqx.filter_jit
    def run(state):
        def step(state, key):
            state, info = sampler.step(model, state, key=key)
            return state, (info, state.walker)

        return jax.lax.scan(step, state, jax.random.split(KEY, steps))

    state, (info, walker) = run(state)
    tried, swapped = np.asarray(info.tried), np.asarray(info.swapped)
    assert not tried[:, :2].any()
    assert (tried[:, 2:].sum(0) == steps / 2).all()
    assert not swapped[~tried].any()
    shares = swapped[:, 2:].sum((0, 2)) / tried[:, 2:].sum(0) / 50
    np.testing.assert_allclose(state.rates[2:], shares, atol=0.15)
    assert (np.sort(np.asarray(walker), axis=1) == np.arange(10)[:, None]).all()
    assert (np.asarray(walker)[:, :2] == np.arange(2)[:, None]).all()
    trips = np.asarray(info.trips)
    assert (np.diff(trips, axis=0) >= 0).all()
    assert trips[-1].min() >= 1
    assert np.asarray(state.rising)[2].all()


@pytest.mark.slow
def test_a_trajectory_compiles_once_for_all_its_models():
    model, traces = bimodal(0.7), 0

    @eqx.filter_jit
    def step(sampler, state, key):
        nonlocal traces
        traces += 1
        return sampler.step(model, state, key=key)

    for number in (2, 5, 8):
        sampler = ebm.TrajectoryTempering(ebm.Trajectory([*trajectory()][-number:], 8))
        state = sampler.init(model, 5, key=KEY)
        step(sampler, state, KEY)
    assert traces == 1


@pytest.mark.slow
def test_summing_out_swaps_more_often():
    model = ebm.RBM.init(6, 60, key=0, scale=0.7)
    sampler = ebm.TrajectoryTempering(ebm.Trajectory([model.tempered(0.5), model]))
    start = ebm.Layers(jnp.zeros(6, jnp.int32), jnp.zeros(60, jnp.int32))
    rates = []
    # Where hidden units are held, even if none is, nothing can be summed out.
    for clamped in (None, ebm.Layers(None, jnp.zeros(60, bool))):
        _, info = ebm.sample_with_info(model, sampler, 4000, key=KEY, start=start, clamped=clamped)
        rates.append(np.asarray(info.swapped).sum() / np.asarray(info.tried).sum() / 100)
    assert rates[0] > rates[1] + 0.1


@pytest.mark.slow
def test_held_units_stay_and_the_others_are_conditioned():
    models = [oracle.random_rbm(np.random.default_rng(k), 4, 3) for k in (6, 7)]
    start = ebm.Layers(jnp.asarray([1, 0, 1, 1]), jnp.asarray([0, 1, 0]))
    clamped = ebm.Layers(jnp.asarray([True, False, False, True]), jnp.asarray([False, True, False]))
    options: dict[str, Any] = dict(num_chains=4000, burn_in=20, start=start, clamped=clamped)
    sampler = ebm.TrajectoryTempering(ebm.Trajectory(models))
    drawn = ebm.sample(models[1], sampler, 4000, key=KEY, **options)
    truth = oracle.truth(models[1], clamped={0: 1, 3: 1, 5: 1})
    for x, p in zip((drawn.visible, drawn.hidden), truth.marginals, strict=True):
        error = 5 * np.sqrt(np.maximum(p * (1 - p), 0) / 4000) + 1e-3
        assert (np.abs(np.asarray(x).mean(0) - p) <= error).all()


@pytest.mark.slow
def test_a_chain_for_each_instance():
    rng = np.random.default_rng(8)
    crbms = [ebm.CRBM.init(3, 2, 4, key=k, scale=1.0) for k in range(3)]
    x = rng.normal(size=(5, 4)).astype(np.float32)
    features = np.repeat(x, 1000, 0)
    sampler = ebm.TrajectoryTempering(ebm.Trajectory(crbms).condition(features))
    rbms = crbms[-1].condition(features)
    drawn = ebm.sample(rbms, sampler, 5000, key=KEY, num_chains=5000, burn_in=20)
    means = np.asarray(drawn.visible).reshape(5, 1000, 3).mean(1)
    want = np.stack([oracle.truth(crbms[-1].condition(row)).marginals[0] for row in x])
    assert (np.abs(means - want) < 5 * np.sqrt(want * (1 - want) / 1000) + 1e-3).all()


@pytest.mark.slow
def test_nonnegative_units():
    """Of a model with two peaks, from one of them."""
    couplings, bias = nonnegative.case("indefinite", 2)
    _, mean, products = nonnegative.moments(4 * couplings, 4 * bias)
    models = [
        ebm.NNBM(jnp.float32(a * couplings), jnp.float32(a * bias)) for a in (1.0, 2.0, 3.0, 4.0)
    ]
    sampler = ebm.TrajectoryTempering(ebm.Trajectory(models))
    options: dict[str, Any] = dict(num_chains=2000, burn_in=60)
    start = ebm.models.Units(jnp.asarray([0.1, 2.0]))
    x = np.asarray(ebm.sample(models[-1], sampler, 2000, key=KEY, start=start, **options).x)
    assert x.min() >= 0
    gap = np.abs(x.mean(0) - mean) / np.sqrt((np.diagonal(products) - mean**2) / 2000)
    assert gap.max() < 5


class Pairs(eqx.Module):
    """An energy of five units in a ring."""

    weights: jax.Array

    def __call__(self, x):
        return -jnp.sum(self.weights * x * jnp.roll(x, 1)) + x.sum() * 0.3


@pytest.mark.slow
def test_any_energy():
    models = [ebm.EnergyModel(Pairs(jnp.full(5, a)), ebm.Binary(5)) for a in (0.5, 2.0)]
    sampler = ebm.TrajectoryTempering(ebm.Trajectory(models), sampler=ebm.DMALA(0.5))
    drawn = ebm.sample(models[1], sampler, 6000, key=KEY, num_chains=6000, burn_in=60)
    rows = np.array([*np.ndindex(*[2] * 5)])
    p = np.exp(-np.asarray(models[1].energy(jnp.asarray(rows))))
    want = (p / p.sum()) @ rows
    gap = np.asarray(drawn.x).mean(0) - want
    assert (np.abs(gap) < 5 * np.sqrt(want * (1 - want) / 6000)).all()


def test_models_of_a_trajectory():
    models = [bimodal(x) for x in (0.1, 0.2, 0.3)]
    found = ebm.Trajectory(models, capacity=5)
    assert (len(found), found.capacity) == (3, 5)
    for a, b in zip(found, models, strict=True):
        assert eqx.tree_equal(a, b)
    assert eqx.tree_equal(found[-1], models[-1])
    assert eqx.tree_equal(found.ending(bimodal(0.4))[2], bimodal(0.4))
    with pytest.raises(IndexError, match="-3 to 2"):
        found[3]


RBM = ebm.RBM.init(3, 2, key=0)
BAD = {
    "one model": (lambda: ebm.Trajectory(RBM), TypeError, "`models`", "list"),
    "no models": (lambda: ebm.Trajectory([]), TypeError, "`models`", "list"),
    "shapes": (
        lambda: ebm.Trajectory([RBM, ebm.RBM.init(4, 2, key=0)]),
        ValueError,
        "`models`",
        r"3, 2",
        r"4, 2",
    ),
    "capacity": (lambda: ebm.Trajectory([RBM, RBM], 1), ValueError, "`capacity`", "2", "1"),
    "no parameters": (
        lambda: ebm.Trajectory([ebm.EnergyModel(lambda x: x.sum(), ebm.Binary(3))]),
        ValueError,
        "`models`",
        "without",
    ),
    "a list": (lambda: ebm.TrajectoryTempering([RBM]), TypeError, "`trajectory`", "Trajectory"),
    "replicas": (
        lambda: ebm.TrajectoryTempering(
            ebm.Trajectory([RBM]), sampler=ebm.ParallelTempering([0.5, 1.0])
        ),
        TypeError,
        "`sampler`",
        "single chains",
    ),
    "temperature": (
        lambda: ebm.TrajectoryTempering(ebm.Trajectory([RBM]), sampler=ebm.Gibbs(0.5)),
        ValueError,
        "`sampler`",
        "0.5",
    ),
    "another model": (
        lambda: ebm.TrajectoryTempering(ebm.Trajectory([RBM])).init(
            ebm.RBM.init(4, 2, key=0), 2, key=0
        ),
        ValueError,
        "`trajectory`",
        "one shape",
        r"4, 2",
    ),
    "no features": (
        lambda: ebm.TrajectoryTempering(ebm.Trajectory([ebm.CRBM.init(3, 2, 2, key=0)])).init(
            RBM, 2, key=0
        ),
        ValueError,
        "`trajectory`",
        "condition",
    ),
}


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("name", BAD)
def test_errors(name):
    errors.check(BAD[name])


def clusters(rows=400):
    """Four patterns of ten units with a little noise."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 2, (4, 10))
    noise = rng.random((rows, 10)) < 0.03
    return (patterns[rng.integers(0, 4, rows)] ^ noise).astype(np.float32)


def swap_rates(model, trajectory):
    sampler = ebm.TrajectoryTempering(trajectory)
    options: dict[str, Any] = dict(key=KEY, num_chains=50, burn_in=100)
    _, info = ebm.sample_with_info(model, sampler, 10_000, **options)
    tried = np.asarray(info.tried).sum(0)
    return np.asarray(info.swapped).sum((0, 2))[tried > 0] / tried[tried > 0] / 50


def trained(learner, folder=None, epochs=40, **options):
    return ebm.fit(
        ebm.RBM.init(10, 6, key=1),
        learner,
        clusters(),
        optimizer=optax.adam(0.02),
        epochs=epochs,
        batch_size=50,
        checkpoint=folder,
        progress=False,
        **options,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rbm", "dbm", "boltzmann", "semi_restricted"])
def test_the_base_rate_model_has_the_means_of_the_data(name):
    model = oracle.MODELS[name](np.random.default_rng(3))
    size = model.layers[0].size
    x = (np.random.default_rng(4).random((50, size)) < np.linspace(0, 1, size)).astype(np.float32)
    base, last = ebm.Trajectory.start(model, x, capacity=4)
    assert eqx.tree_equal(last, model)
    truth = np.concatenate(oracle.truth(base).marginals)[:size]
    np.testing.assert_allclose(truth, (x.sum(0) + 1) / 52, atol=1e-5)


@pytest.mark.parametrize(
    "units", [ebm.Binary(3), ebm.Categorical(1, 3), ebm.Gaussian(3), ebm.Nonnegative(3)]
)
def test_fields_of_means(units):
    field = jnp.asarray([-2.0, 0.3, 4.0])
    found = units.mean(units.natural(units.mean(field)))
    np.testing.assert_allclose(found, units.mean(field), rtol=1e-4)


@pytest.mark.slow
def test_fit_records_a_trajectory(tmp_path):
    """From the base-rate model to the last, neighbours swapping at about the same rate; bit for bit
    the same after a stop.
    """
    whole = trained(ebm.CD(1), trajectory=12)
    found = whole.trajectory
    assert found is not None and 3 <= len(found) < 12
    assert not np.asarray(found[0].weights).any()
    assert eqx.tree_equal(found[-1], whole.last)
    rates = swap_rates(whole.last, found)
    assert (rates[:-1] > 0.1).all() and (rates[:-1] < 0.6).all()
    # It changes nothing else.
    assert eqx.tree_equal(trained(ebm.CD(1)).last, whole.last)
    folder = str(tmp_path / "run")
    trained(ebm.CD(1), folder, epochs=13, trajectory=12)
    again = trained(ebm.CD(1), folder, trajectory=12).trajectory
    assert eqx.tree_equal(again, found)
    with pytest.raises(ValueError, match="`trajectory` 12, got 13"):
        trained(ebm.CD(1), folder, trajectory=13)


def test_a_trajectory_is_trimmed_and_refined():
    """Models that crowd at the start, and a gap before the last."""
    given = ebm.Trajectory([bimodal(x) for x in (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.7)], 10)
    found = ebm.samplers.adapt_trajectory(given[-1], given, key=KEY, steps=100)
    assert found.capacity == len(found) and 4 <= len(found) <= 8
    assert eqx.tree_equal(found[0], given[0])
    assert eqx.tree_equal(found[-1], given[-1])
    strengths = np.asarray([model.weights[0, 0] for model in found]) / 4
    assert (np.diff(strengths) > 0.04).all() and (np.diff(strengths) < 0.4).all()
    rates = swap_rates(found[-1], found)
    assert (rates > 0.15).all() and rates.min() < 0.7


@pytest.mark.slow
def test_a_full_trajectory_is_told():
    with pytest.warns(UserWarning, match="trajectory is full"):
        found = trained(ebm.CD(1), trajectory=2).trajectory
    assert found is not None and len(found) == 2


@pytest.mark.slow
def test_learning_grows_the_trajectory(tmp_path):
    model = ebm.RBM.init(10, 6, key=1)

    def learner():
        start = ebm.Trajectory.start(model, clusters(), capacity=10)
        return ebm.SAP(ebm.TrajectoryTempering(start), num_chains=50)

    fitted = trained(learner())
    found = fitted.trajectory
    assert found is not None and 3 <= len(found) <= 10
    assert eqx.tree_equal(found[-1], fitted.last)
    rates = swap_rates(fitted.last, found)
    assert (rates[:-1] > 0.1).all() and (rates[:-1] < 0.6).all()
    exact = ebm.Exact()

    def likelihood(model):
        return float(ebm.log_likelihood(model, clusters(), exact(model).log_partition).mean())

    assert likelihood(fitted.last) > likelihood(found[0]) + 1
    folder = str(tmp_path / "run")
    trained(learner(), folder, epochs=13)
    assert eqx.tree_equal(trained(learner(), folder).trajectory, found)
    with pytest.raises(ValueError, match="`trajectory` must be None"):
        trained(learner(), trajectory=5)


@pytest.mark.slow
def test_growing_keeps_replicas_and_their_numbers():
    models = [bimodal(x) for x in (0.0, 0.6)]
    sampler = ebm.TrajectoryTempering(ebm.Trajectory(models, 4))
    state = sampler.init(models[1], 3, key=KEY)
    # Nothing is known of swaps at first.
    assert np.isnan(state.rates).all()
    assert len(followed(state, models[1]).trajectory) == 2
    state = eqx.tree_at(lambda s: s.rates, state, jnp.full(3, 0.9))
    assert eqx.tree_equal(followed(state, models[1]), state)
    low = eqx.tree_at(lambda s: s.rates, state, jnp.full(3, 0.1))
    new = followed(low, models[1])
    assert len(new.trajectory) == 3
    for k, x in enumerate((0.0, 0.6, 0.6)):
        assert eqx.tree_equal(new.trajectory[k], bimodal(x))
    old, now = state.replicas.visible, new.replicas.visible
    np.testing.assert_array_equal(now[1:3], old[2:4])
    np.testing.assert_array_equal(now[3], np.roll(old[3], 1, axis=0))
    np.testing.assert_array_equal(np.sort(new.walker, axis=0), np.arange(4)[:, None] * [1, 1, 1])
    full = eqx.tree_at(lambda s: s.trajectory.count, low, jnp.asarray(4, jnp.int32))
    assert eqx.tree_equal(followed(full, models[1]), full)


def test_kernel_for_numpyro():
    from numpyro.infer import MCMC

    from ebmlearn.numpyro import TrajectoryTemperingKernel

    model = bimodal(0.5)
    kernel = TrajectoryTemperingKernel(ebm.Trajectory([bimodal(0.0), bimodal(0.25), model], 4))
    options: dict[str, Any] = dict(num_warmup=50, num_samples=500, num_chains=20)
    mcmc = MCMC(kernel, **options, chain_method="vectorized", progress_bar=False)
    mcmc.run(KEY, model, extra_fields=("swap_rates", "potential_energy"))
    rates = np.asarray(mcmc.get_extra_fields()["swap_rates"])[-1]
    assert np.isnan(rates[0]) and (rates[1:] > 0.05).all() and (rates[1:] < 1).all()
    x = np.asarray(mcmc.get_samples()["visible"])
    np.testing.assert_allclose(x.mean(), ebm.Exact()(model).visible.mean(), atol=0.05)
    with pytest.raises(ValueError, match="'betas'"):
        mcmc.run(KEY, model, extra_fields=("betas",))
