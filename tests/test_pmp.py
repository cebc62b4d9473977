# Wrong types are passed on purpose, to see the errors.
# pyright: reportArgumentType=false

"""Perturb-and-max-product on layered models: against brute force, and in distribution."""

import itertools
from typing import Any, cast

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import scipy.stats

import ebmlearn as ebm
from ebmlearn.samplers import _pmp
from ebmlearn.units import _random


KEY = jax.random.key(0)
perturbed = eqx.filter_jit(_pmp.perturbed)


def maxima(model, noise):
    """The best configurations of a perturbed model by brute force, and their scores."""
    t = oracle.truth(model)
    scores = t.scores[None] + np.concatenate([np.asarray(n) for n in noise], -1) @ t.states.T
    return t.states[scores.argmax(1)], scores.max(1)


def perturbed_scores(model, units, noise):
    """The log-potentials of some units in the perturbed model, less the centre of the noise."""
    centre = sum(np.asarray(n).sum(1) for n in noise) / 2
    pairs = zip(jax.tree.leaves(units), noise, strict=True)
    told = sum((np.asarray(x) * np.asarray(n)).sum(1) for x, n in pairs)
    return told - np.asarray(model.energy(*units), float) - centre


def flattened(units):
    return np.concatenate([np.asarray(x) for x in jax.tree.leaves(units)], -1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rbm", "boltzmann"])
def test_maxima_of_trees(name):
    """Max-product is exact on trees: every sample is the maximum of its perturbed model."""
    rng = np.random.default_rng(0)
    with oracle.x64(True):
        if name == "rbm":
            model, _ = oracle.random_tree_rbm(rng, 4, 3, dtype="float64")
        else:
            model, _ = oracle.random_tree_boltzmann(rng, 7, dtype="float64")
        noise = _pmp.perturbation(model, 200, KEY)
        sampler = ebm.PMP(60)
        state, info = perturbed(sampler, model, sampler.init(model, 200, key=KEY), noise)
        best, score = maxima(model, noise)
        np.testing.assert_array_equal(flattened(state.units), best)
        centre = sum(np.asarray(n).sum(1) for n in noise) / 2
        np.testing.assert_allclose(info.perturbed, score - centre, atol=1e-9)
        np.testing.assert_allclose(info.energy, model.energy(*state.units), atol=1e-9)
        assert info.peak.all()
        assert info.residual.max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_turns_never_lower_a_perturbed_maximum(seed):
    """In random models with loops: from the states of a plain run, towards the exact maximum."""
    rng = np.random.default_rng(seed)
    name = list(oracle.MODELS)[rng.integers(len(oracle.MODELS))]
    with oracle.x64(True):
        model = oracle.MODELS[name](rng, scale=3.0, dtype="float64")
        layers = [(x, model.variables.by_name[x].size) for x in model.names]
        # Each turn holds some units of some layers, drawn at random.
        turns = [
            {layer: rng.random(size) < 0.5 for layer, size in layers if rng.random() < 0.7}
            for _ in range(6)
        ]
        noise = _pmp.perturbation(model, 100, KEY)
        _, score = maxima(model, noise)
        centre = sum(np.asarray(n).sum(1) for n in noise) / 2
        found = []
        for sampler in (ebm.PMP(3), ebm.PMP(3, turns=[x for x in turns if x])):
            state, info = perturbed(sampler, model, sampler.init(model, 100, key=KEY), noise)
            np.testing.assert_allclose(
                info.perturbed, perturbed_scores(model, state.units, noise), atol=1e-8
            )
            found.append(np.asarray(info.perturbed))
        plain, turned = found
        assert (turned >= plain).all()
        assert (turned <= score - centre + 1e-8).all()
        assert (turned > plain + 1e-8).any()
        assert (turned > score - centre - 1e-8).sum() > (plain > score - centre - 1e-8).sum()


def test_what_is_clamped_stays_in_all_turns():
    model = oracle.random_rbm(np.random.default_rng(3), 4, 3)
    start = ebm.Layers(jnp.asarray([1, 0, 1, 1]), None)
    clamped = ebm.Layers(jnp.asarray([True, True, False, False]), None)
    sampler = ebm.PMP(5, turns=[{"hidden": True}, {"visible": True}])
    samples = ebm.sample(model, sampler, 30, key=KEY, start=start, clamped=clamped)
    np.testing.assert_array_equal(samples.visible[:, :2], np.tile([1, 0], (30, 1)))
    assert np.asarray(samples.visible[:, 2:]).std() > 0


@pytest.mark.slow
def test_all_held_changes_nothing():
    model = oracle.random_rbm(np.random.default_rng(4), 4, 3)
    turns = [{"hidden": True, "visible": np.ones(4, bool)}]
    one, two = (ebm.sample_with_info(model, ebm.PMP(5, turns=x), 20, key=KEY) for x in ((), turns))
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ({"visible": True}, r"`turns` must be a list of dictionaries .*, got a dict with"),
        ([{"visible": 1}], r"`turns` must be a list of dictionaries .* True for units"),
        ([{}], r"`turns` must be a list"),
        ([{"seen": True}], r"`turns` must hold some of 'visible', 'hidden', got 'seen'"),
        ([{"visible": np.ones(3, bool)}], r"`turns` must hold a boolean, or .* \(4,\)"),
    ],
)
def test_wrong_turns(turns, message):
    model = oracle.random_rbm(np.random.default_rng(4), 4, 3)
    with pytest.raises((TypeError, ValueError), match=message):
        ebm.sample(model, ebm.PMP(5, turns=turns), 2, key=KEY)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dbm", "semi_restricted"])
def test_diagnostics_of_models_with_loops(name):
    model = oracle.MODELS[name](np.random.default_rng(1), scale=2.0)
    noise = _pmp.perturbation(model, 100, KEY)
    sampler = ebm.PMP(3)  # Too few, so that some samples are no maxima.
    state, info = perturbed(sampler, model, sampler.init(model, 100, key=KEY), noise)
    x = flattened(state.units)
    np.testing.assert_allclose(info.energy, model.energy(*state.units), atol=1e-4)
    f = oracle.flat(model)
    bias = f.bias + np.concatenate([np.asarray(n) for n in noise], -1)
    gains = (1 - 2 * x) * (bias + x @ f.couplings)
    np.testing.assert_array_equal(info.peak, (gains <= 0).all(1))
    assert 0 < info.peak.mean() < 1


@pytest.mark.slow
def test_units_without_weights_are_sampled_exactly():
    """Chi-square against the Gibbs distribution, whatever was sampled before."""
    bias = jnp.asarray([0.5, -1.0, 1.5])
    model = ebm.BoltzmannMachine(jnp.zeros((3, 3)), bias)
    t = oracle.truth(model)
    p = np.exp(t.scores - t.log_z)
    for sampler in (ebm.PMP(2), ebm.PMP(2, renewal=0.5)):
        samples = ebm.sample(model, sampler, 20_000, key=KEY, burn_in=2)
        counts = np.bincount(np.asarray(samples.x) @ [4, 2, 1], minlength=8)
        assert scipy.stats.chisquare(counts, 20_000 * p).pvalue > 1e-3


def test_logistic_noise_is_that_of_two_gumbel_numbers():
    gumbel = np.asarray(_random.gumbels(KEY, (20_000, 2), "float32"))
    logistic = np.asarray(_random.logistics(KEY, (20_000,), "float32"))
    test = cast(Any, scipy.stats.ks_2samp(gumbel[:, 1] - gumbel[:, 0], logistic))
    assert test.pvalue > 1e-3
    assert abs(gumbel.mean()) < 5 * np.pi / np.sqrt(6 * 40_000)


def spins(theta):
    return ebm.BoltzmannMachine.from_spins(theta * (1 - jnp.eye(4)), jnp.zeros(4))


@pytest.mark.slow
def test_the_four_spins_of_the_paper():
    """Section 5.1: samples at 0.331 look like the Gibbs distribution at 0.5, not like that at
    0.331; and no state is preferred.
    """
    states = np.array(list(itertools.product((0, 1), repeat=4)))
    pairs = ((2 * states - 1).sum(1) ** 2 - 4) / 2

    def gibbs(theta):
        return np.exp(theta * pairs) / np.exp(theta * pairs).sum()

    x = np.asarray(ebm.sample(spins(0.331), ebm.PMP(50), 20_000, key=KEY).x)
    share = np.bincount(x @ [8, 4, 2, 1], minlength=16) / len(x)
    divergence = (gibbs(0.5) * np.log(gibbs(0.5) / share)).sum()
    assert divergence < 0.003
    assert abs((gibbs(0.5) * np.log(gibbs(0.5) / gibbs(0.331))).sum() - 0.119) < 0.001
    assert np.abs(x.mean(0) - 0.5).max() < 0.015


@pytest.mark.slow
def test_hidden_units_given_visible_ones():
    """Given all visible units the hidden ones of an RBM are independent, so that they are drawn
    exactly; and what is given has no noise.
    """
    model = oracle.random_rbm(np.random.default_rng(2), 4, 3)
    number = 8_000
    v = jnp.broadcast_to(jnp.asarray([1, 0, 1, 1]), (number, 4))
    start, clamped = ebm.Layers(v, None), ebm.Layers(jnp.ones((number, 4), bool), None)
    samples, info = ebm.sample_with_info(
        model, ebm.PMP(30), number, key=KEY, start=start, clamped=clamped
    )
    np.testing.assert_array_equal(samples.visible, v)
    want = np.asarray(model.hidden_given(v[0].astype("float32")))
    assert (np.abs(np.asarray(samples.hidden).mean(0) - want) < 5 * 0.5 / np.sqrt(number)).all()
    # Independent units: the mean of perturbed maxima is the log-potential of the visible units.
    error = float(info.perturbed.std()) / np.sqrt(number)
    assert abs(float(info.perturbed.mean() + model.free_energy(v[0]))) < 5 * error


@pytest.mark.slow
def test_a_sample_for_each_instance_in_any_chunk():
    crbm = ebm.CRBM.init(3, 2, 4, key=KEY, scale=1.0)
    rbms = crbm.condition(np.random.default_rng(3).normal(size=(7, 4)).astype("float32"))
    whole, parts = (ebm.sample(rbms, ebm.PMP(20, chunk=chunk), 7, key=KEY) for chunk in (None, 3))
    np.testing.assert_array_equal(flattened(whole), flattened(parts))
    assert whole.visible.shape == (7, 3)
    one = ebm.sample_with_info(rbms, ebm.PMP(20), 7, key=KEY)[1]
    assert one.energy.shape == (1, 7)


@pytest.mark.slow
def test_noise_and_messages_that_persist():
    """A share of the noise is new at each step; on a tree the messages of the last step lead to
    the same maxima as none.
    """
    model, _ = oracle.random_tree_boltzmann(np.random.default_rng(4), 7)
    sampler = ebm.PMP(60, renewal=0.25)
    state = sampler.init(model, 300, key=KEY)
    new, _ = sampler.step(model, state, key=jax.random.key(1))
    changed = (np.asarray(new.noise[0]) != np.asarray(state.noise[0])).mean()
    assert abs(changed - 0.25) < 0.05
    fresh = ebm.PMP(60)
    begin = fresh.init(model, 300, key=KEY)
    again, _ = perturbed(fresh, model, begin, new.noise)
    np.testing.assert_array_equal(new.units.x, again.units.x)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", ["sampled", "exact"])
def test_gradient_of_the_learner(hidden):
    """`sampled`: the gradient is that of the reported loss, eq. (3), by finite differences.
    `exact`: it is the difference of statistics by its definition.
    """
    rng = np.random.default_rng(5)
    with oracle.x64(True):
        model = oracle.random_rbm(rng, 4, 3, dtype="float64")
        v = jnp.asarray(rng.integers(0, 2, (6, 4)), "float64")
        sampler = ebm.PMP(20)
        learner = ebm.PMPLearner(sampler, num_chains=9, hidden=hidden)
        gradient, state, info = learner.step(model, None, v, key=KEY, epoch=0)
        assert state is None
        if hidden == "exact":
            one, two, _ = jax.random.split(KEY, 3)
            drawn, negative = sampler.step(model, sampler.init(model, 9, key=one), key=two)
            statistics = []
            for x in (v, drawn.units.visible.astype("float64")):
                h = model.hidden_given(x)
                statistics.append((x.T @ h / len(x), x.mean(0), h.mean(0)))
            for got, data, own in zip(jax.tree.leaves(gradient), *statistics, strict=True):
                np.testing.assert_allclose(got, own - data, atol=1e-12)
            want = model.free_energy(v).mean() + negative.perturbed.mean()
            np.testing.assert_allclose(info.loss, want, atol=1e-12)
            return
        flat, back = jax.flatten_util.ravel_pytree(model)
        direction = jnp.asarray(rng.normal(size=flat.shape))

        def loss(t):
            moved = back(flat + t * direction)
            return float(learner.step(moved, None, v, key=KEY, epoch=0)[2].loss)

        slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
        along = jax.flatten_util.ravel_pytree(gradient)[0] @ direction
        np.testing.assert_allclose(along, slope, atol=1e-7)


@pytest.mark.slow
def test_deep_models_and_those_without_hidden_units():
    """Hidden layers of a DBM given the data are sampled; without hidden units the data are all."""
    rng = np.random.default_rng(6)
    dbm = oracle.random_dbm(rng, (3, 2, 2))
    v = jnp.asarray(rng.integers(0, 2, (2000, 3)), "float32")
    gradient, _, _ = ebm.PMPLearner(ebm.PMP(30)).step(dbm, None, v, key=KEY, epoch=0)
    assert all(jnp.isfinite(g).all() for g in jax.tree.leaves(gradient))
    # Both sides have the visible units of the data, or of the samples: a bias sees nothing else.
    one, two, _ = jax.random.split(KEY, 3)
    drawn, _ = ebm.PMP(30).step(dbm, ebm.PMP(30).init(dbm, 2000, key=one), key=two)
    want = drawn.units.visible.mean(0) - v.mean(0)
    np.testing.assert_allclose(gradient.biases[0], want, atol=1e-5)
    boltzmann = oracle.random_boltzmann(rng, 3)
    learner = ebm.PMPLearner(ebm.PMP(30), hidden="sampled")
    gradient, _, info = learner.step(boltzmann, None, v, key=KEY, epoch=0)
    drawn, own = ebm.PMP(30).step(boltzmann, ebm.PMP(30).init(boltzmann, 2000, key=one), key=two)
    x = drawn.units.x.astype("float32")
    pairs = x.T @ x / 2000 - v.T @ v / 2000
    np.testing.assert_allclose(gradient.couplings, pairs - jnp.diag(jnp.diag(pairs)), atol=1e-5)
    want = boltzmann.energy(v).mean() + own.perturbed.mean()
    np.testing.assert_allclose(info.loss, want, rtol=1e-5)


@pytest.mark.slow
def test_what_is_learned_and_what_persists():
    """A few steps of learning with noise that persists bring samples closer to the data."""
    rng = np.random.default_rng(7)
    data = np.repeat(rng.integers(0, 2, (2, 4)), 50, 0)
    model = ebm.BoltzmannMachine(jnp.zeros((4, 4)), jnp.zeros(4))
    import optax

    fitted = ebm.fit(
        model,
        ebm.PMPLearner(ebm.PMP(20, renewal=0.5), num_chains=200),
        data,
        optimizer=optax.adam(0.05),
        epochs=60,
        batch_size=100,
        key=KEY,
        progress=False,
    )
    before, after = (
        float(ebm.estimate.mmd(ebm.sample(m, ebm.PMP(30), 500, key=KEY).x, data))
        for m in (model, fitted.last)
    )
    assert after < 0.1 * before
    assert fitted.history.epochs["converged"][-1] > 0.5


@pytest.mark.slow
def test_bound_of_log_z():
    """With exact maxima the mean is an upper bound, and without weights it is log Z; solvers get
    the same noise; the standard error is that of a mean.
    """
    rng = np.random.default_rng(8)
    model = oracle.random_boltzmann(rng, 6, scale=1.5)
    log_z = oracle.truth(model).log_z
    exact = ebm.pmp_bound(model, key=KEY, num_samples=500, solver=ebm.Exact(product="max"))
    assert exact.log_partition > log_z - 3 * exact.standard_error
    want = np.asarray(exact.values).std(ddof=1) / np.sqrt(500)
    np.testing.assert_allclose(exact.standard_error, want, rtol=1e-4)
    ours = ebm.pmp_bound(model, key=KEY, num_samples=500)
    assert (ours.values <= exact.values + 1e-3).all()
    assert np.isclose(ours.values, exact.values, atol=1e-3).mean() > 0.9
    alone = ebm.BoltzmannMachine(jnp.zeros((6, 6)), model.bias)
    free = ebm.pmp_bound(alone, key=KEY, num_samples=500)
    assert abs(free.log_partition - oracle.truth(alone).log_z) < 4 * free.standard_error


@pytest.mark.slow
def test_mplp():
    """Exact on trees; elsewhere its dual value bounds the maximum and never rises."""
    rng = np.random.default_rng(9)
    with oracle.x64(True):
        tree, _ = oracle.random_tree_boltzmann(rng, 7, dtype="float64")
        beliefs = ebm.MPLP()(tree)
        best, score = maxima(tree, [np.zeros((1, 7))])
        assert beliefs.converged
        np.testing.assert_allclose(beliefs.log_partition, score[0], atol=1e-5)
        np.testing.assert_array_equal(beliefs.decode().x, best[0])
        pairs = np.outer(best[0], best[0])
        np.testing.assert_array_equal(beliefs.pairwise, pairs)
        for name in ("boltzmann", "dbm", "semi_restricted"):
            model = oracle.MODELS[name](rng, scale=2.0, dtype="float64")
            top = oracle.truth(model).scores.max()
            values = [float(ebm.MPLP(k)(model).log_partition) for k in (1, 3, 10, 100)]
            assert values[-1] >= top - 1e-9
            assert (np.diff(values) <= 1e-9).all()
        few = ebm.MPLP(1)(model)
        assert not few.converged
        assert few.iterations == 1
        v, observed = np.array([1.0, 0.3, 0, 1, 0, 0.8, 0]), np.array([1, 1, 0, 1, 0, 0, 0], bool)
        given, exact = (f(tree, v, observed) for f in (ebm.MPLP(), ebm.Exact(product="max")))
        np.testing.assert_allclose(given.log_partition, exact.log_partition, atol=1e-5)
        np.testing.assert_array_equal(given.decode().x, exact.decode().x)
        everything = ebm.MPLP()(tree, best[0], np.ones(7, bool))
        np.testing.assert_allclose(everything.log_partition, score[0], atol=1e-9)
        statistics = ebm.MPLP(100).statistics(model)
        decoded = ebm.MPLP(100)(model).decode()
        np.testing.assert_array_equal(flattened(statistics.units), flattened(decoded))


@pytest.mark.slow
def test_tied_couplings_of_spins():
    """A gradient pulled back to one number for all couplings is the derivative by it."""
    import optax

    rng = np.random.default_rng(10)
    with oracle.x64(True):
        data = jnp.asarray(rng.integers(0, 2, (8, 4)))

        def build(free):
            couplings = free["theta"] * (1 - jnp.eye(4))
            return ebm.BoltzmannMachine.from_spins(couplings, free["field"])

        def loss(free):
            model = build(free)
            return float(model.energy(data).mean() + ebm.Exact()(model).log_partition)

        free = {"theta": jnp.asarray(0.3), "field": jnp.asarray(rng.normal(size=4))}
        fitted = ebm.fit(
            free,
            ebm.MLE(ebm.Exact()),
            data,
            build=build,
            optimizer=optax.sgd(1.0),
            epochs=1,
            batch_size=8,
            key=KEY,
            progress=False,
        )
        step = {**free, "theta": free["theta"] + 1e-5}, {**free, "theta": free["theta"] - 1e-5}
        slope = (loss(step[0]) - loss(step[1])) / 2e-5
        np.testing.assert_allclose(free["theta"] - fitted.parameters["theta"], slope, atol=1e-8)


@pytest.mark.slow
def test_chains_that_begin_anew():
    """Without persistence the chains of the step before do not matter."""
    rng = np.random.default_rng(11)
    rbm = oracle.random_rbm(rng, 4, 3)
    v = jnp.asarray(rng.integers(0, 2, (5, 4)))
    learner = ebm.SAP(num_chains=6, steps=3, persistent=False)
    one, two = (learner.init(rbm, key=jax.random.key(k)) for k in (1, 2))
    first, state, _ = learner.step(rbm, one, v, key=KEY, epoch=0)
    again, _, _ = learner.step(rbm, two, v, key=KEY, epoch=0)
    np.testing.assert_array_equal(first.weights, again.weights)
    assert (np.asarray(state.units.visible) != np.asarray(one.units.visible)).any()
    kept = ebm.SAP(num_chains=6, steps=3)
    last = kept.step(rbm, one, v, key=KEY, epoch=0)[1]
    gibbs = one
    for own in jax.random.split(KEY, 3):
        gibbs, _ = ebm.Gibbs().step(rbm, gibbs, key=own)
    np.testing.assert_array_equal(last.units.visible, gibbs.units.visible)


@pytest.mark.slow
def test_a_distribution_may_ask_for_it():
    """NumPyro: `sample` draws by PMP at once, whatever `steps` says."""
    from ebmlearn.numpyro import EnergyDistribution

    rng = np.random.default_rng(12)
    rbm = oracle.random_rbm(rng, 4, 3, scale=0.0)
    drawn = EnergyDistribution(rbm, None, sampler=ebm.PMP(2), steps=10**9).sample(KEY, (2, 3000))
    assert drawn.shape == (2, 3000, 4)
    want = np.asarray(jax.nn.sigmoid(rbm.visible_bias))
    assert (np.abs(np.asarray(drawn).mean((0, 1)) - want) < 5 * 0.5 / np.sqrt(6000)).all()


@pytest.mark.usefixtures("as_a_user")
def test_bad_input():
    rng = np.random.default_rng(13)
    rbm = oracle.random_rbm(rng)
    cases = [
        (lambda: ebm.PMP(0), r"`iterations` must be at least 1, got 0"),
        (lambda: ebm.PMP(-1), r"`iterations` must not be negative, got -1"),
        (lambda: ebm.PMP(1.5), r"`iterations` must be an integer, got"),
        (lambda: ebm.PMP(5, damping=0), r"`damping` must lie in \(0, 1\), got 0"),
        (lambda: ebm.PMP(5, damping=-0.5), r"`damping` must lie in \(0, 1\), got -0.5"),
        (lambda: ebm.PMP(5, damping=1.0), r"`damping` must lie in \(0, 1\), got 1"),
        (lambda: ebm.PMP(5, renewal=0.0), r"`renewal` must lie in \(0, 1\], got 0"),
        (lambda: ebm.PMP(5, chunk=0), r"`chunk` must be at least 1, got 0"),
        (
            lambda: ebm.sample(ebm.GaussianRBM.init(3, 2, key=KEY), ebm.PMP(5), 2, key=KEY),
            r"`model`.*got a GaussianRBM",
        ),
        (
            lambda: ebm.sample(ebm.CRBM.init(3, 2, 2, key=KEY), ebm.PMP(5), 2, key=KEY),
            r"call `model.condition\(features\)` first",
        ),
        (lambda: ebm.PMPLearner(ebm.Gibbs()), r"`sampler` must be a `PMP`, got .*Gibbs"),
        (lambda: ebm.PMPLearner(ebm.PMP(5), hidden="none"), r"`hidden` must be one of 'sampled'"),
        (lambda: ebm.PMPLearner(ebm.PMP(5), num_chains=0), r"`num_chains` must be at least 1"),
        (lambda: ebm.PMPLearner(ebm.PMP(5, renewal=0.5)), r"`num_chains` must be given"),
        (
            lambda: ebm.PMPLearner(ebm.PMP(5, renewal=0.5), num_chains=4).init(
                ebm.CRBM.init(3, 2, 2, key=KEY), key=KEY
            ),
            r"`model`.*got a CRBM",
        ),
        (lambda: ebm.SAP(persistent=1), r"`persistent` must be a boolean, got"),
        (
            lambda: ebm.pmp_bound(rbm, key=KEY, solver=ebm.BP(5)),
            r"`solver` must maximise.*got BP",
        ),
        (lambda: ebm.pmp_bound(rbm, key=KEY, solver=5), r"`solver` must be a `PMP`"),
        (lambda: ebm.pmp_bound(rbm, key=KEY, num_samples=0), r"`num_samples` must be at least 1"),
        (lambda: ebm.pmp_bound(5, key=KEY), r"`model` must be a model such as an RBM, got"),
        (lambda: ebm.pmp_bound(rbm, key="seed"), r"`key` must be an integer seed"),
        (lambda: ebm.MPLP(tol=-1.0), r"`tol` must lie in"),
    ]
    for call, message in cases:
        with pytest.raises((ValueError, TypeError), match=message):
            call()


def test_a_bound_from_maxima_needs_them():
    model = ebm.RBM(jnp.ones((1, 1)), jnp.zeros(1), jnp.zeros(1))
    with pytest.raises(ValueError, match="`solver` must maximise"):
        ebm.pmp_bound(model, key=KEY, solver=ebm.MeanField(5))


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [0, 2])
def test_dual_of_no_edges(hidden):
    model = ebm.RBM(jnp.zeros((2, hidden)), jnp.asarray([-1.0, 2.0]), jnp.ones(hidden))
    found = ebm.MPLP()(model)
    assert found.converged
    np.testing.assert_allclose(found.log_partition, 2 + hidden)
    np.testing.assert_array_equal(found.decode().visible, [0, 1])


@pytest.mark.slow
def test_dual_of_large_couplings_in_float32():
    rng = np.random.default_rng(0)
    for _ in range(10):
        w = np.triu(rng.normal(0, 50, (5, 5)), 1).astype(np.float32)
        model = ebm.BoltzmannMachine(w + w.T, rng.normal(0, 50, 5).astype(np.float32))
        found = ebm.MPLP()(model)
        assert found.converged
        best = float(ebm.Exact(product="max")(model).log_partition)
        assert found.log_partition > best - 1e-6 * float(np.abs(w).sum())
