"""Samplers: whole transition matrices of the code itself, then what the chains do in bulk."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from scipy import stats
from transitions import draws_of, drift, layered, probabilities, SMALL, transition_matrix

import ebmlearn as ebm
from ebmlearn.samplers import _sample, _sweep, _tempered, ChainState
from ebmlearn.samplers._base import AbstractChains
from ebmlearn.units import _random


KEY = jax.random.key(0)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(
    ("name", "beta"),
    [
        *((name, 1.0) for name in SMALL),
        ("dbm", 0.4),
        ("labelled", 0.4),
        ("joined_categorical", 0.4),
        ("mixed", 0.4),
    ],
)
def test_gibbs_leaves_the_distribution_as_it_is(monkeypatch, name, beta):
    model = SMALL[name](np.random.default_rng(0))
    matrix = transition_matrix(monkeypatch, model, ebm.Gibbs(beta), draws_of(model))
    assert drift(matrix, probabilities(model, beta)) < 1e-12
    assert (matrix > 0).all()


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", ["dbm", "semi_restricted", "boltzmann"])
def test_gibbs_with_gradients_leaves_the_distribution_as_it_is(monkeypatch, name):
    model = SMALL[name](np.random.default_rng(1))
    beta = 1.0 if name == "dbm" else 0.4
    sampler = ebm.GibbsWithGradients(beta=beta)
    matrix = transition_matrix(monkeypatch, model, sampler, [3, 2])
    p = probabilities(model, beta)
    flow = p[:, None] * matrix
    np.testing.assert_allclose(flow, flow.T, atol=1e-12, err_msg="detailed balance")
    # Of a single layer, fields are changed and not found anew.
    if name != "semi_restricted":
        two = transition_matrix(
            monkeypatch, model, ebm.GibbsWithGradients(2, beta=beta), [3, 2, 3, 2]
        )
        np.testing.assert_allclose(two, matrix @ matrix, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", SMALL)
def test_tempered_transitions_leave_the_distribution_as_it_is(monkeypatch, name):
    model = SMALL[name](np.random.default_rng(2))
    sampler = ebm.TemperedTransitions([0.2, 0.5, 1.0])
    choices = [*draws_of(model, sweeps=2), *draws_of(model, sweeps=2, reverse=True), 2]
    matrix = transition_matrix(monkeypatch, model, sampler, choices)
    p = probabilities(model)
    assert drift(matrix, p) < 1e-12
    flow = p[:, None] * matrix
    np.testing.assert_allclose(flow, flow.T, atol=1e-12, err_msg="detailed balance")


@pytest.mark.usefixtures("in_float64")
def test_tempered_transitions_need_the_reverse_order(monkeypatch):
    """The same test fails if both directions draw the layers in the same order."""
    model = SMALL["rbm"](np.random.default_rng(2))

    def forward(model, layers, key, beta=1.0, reverse=False, clamp=None):
        return _sweep.sweep(model, layers, key, beta, False, clamp)

    monkeypatch.setattr(_tempered, "sweep", forward)
    with monkeypatch.context() as context:
        sampler = ebm.TemperedTransitions([0.2, 0.5, 1.0])
        wrong = transition_matrix(context, model, sampler, [2] * 13)
    assert drift(wrong, probabilities(model)) > 1e-4


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", SMALL)
def test_reversed_sweeps_are_reversals(name, monkeypatch):
    """p(x) T(x, y) = p(y) R(y, x)."""
    model = SMALL[name](np.random.default_rng(3))

    class Reversed(AbstractChains):
        def _start(self, model, num_chains, key, *told):
            return ebm.Gibbs()._start(model, num_chains, key, *told)

        def _step(self, model, state, key):
            layers = _sweep.sweep(model, model.encode(state.units), key, reverse=True)
            return ChainState(model.decode(layers), None), None

    p = probabilities(model)
    there = transition_matrix(monkeypatch, model, ebm.Gibbs(), draws_of(model))
    back = transition_matrix(monkeypatch, model, Reversed(), draws_of(model, reverse=True))
    np.testing.assert_allclose(p[:, None] * there, (p[:, None] * back).T, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(
    "name", ["rbm", "boltzmann", "labelled", "categorical", "joined_categorical", "joined_mixed"]
)
def test_parallel_tempering_leaves_all_distributions_as_they_are(monkeypatch, name):
    model = SMALL[name](np.random.default_rng(4))
    betas = (0.3, 1.0)
    sampler = ebm.ParallelTempering(betas)
    choices = [*draws_of(model, replicas=2), 2]
    matrix = transition_matrix(monkeypatch, model, sampler, choices, replicas=2)
    p = np.outer(probabilities(model, betas[0]), probabilities(model, betas[1])).ravel()
    assert drift(matrix, p) < 1e-12


class Real:
    """A model of real hidden units and few visible states: what its distribution is, and exact
    draws, from units that are independent given the visible states. Moments of single units are
    those of normal distributions, cut off below 0 if `least` is 0.
    """

    def __init__(self, visible, hidden, scale, least, rng):
        self.model = layered(rng, {"visible": visible, "hidden": hidden}, dtype="float32")
        states = getattr(visible, "states", 2)
        self.states = np.array(list(itertools.product(range(states), repeat=visible.size)))
        inside = self.states
        if isinstance(visible, ebm.Categorical):
            inside = np.eye(states)[self.states].reshape(len(self.states), -1)
        (weights,), biases = self.model.weights, self.model.biases
        weights, bias, own = (np.asarray(x, float) for x in (weights, *biases))
        field = own + inside @ weights
        loc = field * scale**2
        self.units = stats.truncnorm((least - loc) / scale, np.inf, loc, scale)
        # The integral of exp(f x - x^2 / 2 s^2) over what is allowed.
        mass = np.log(scale) + stats.norm.logsf(least, loc, scale) + (loc / scale) ** 2 / 2
        score = inside @ bias + mass.sum(1) + field.shape[1] * np.log(2 * np.pi) / 2
        self.log_z = np.logaddexp.reduce(score)
        self.score, self.p = score, np.exp(score - self.log_z)

    def draw(self, rng, number):
        which = rng.choice(len(self.p), number, p=self.p)
        return which, self.units.rvs((number, *self.units.mean().shape), random_state=rng)[
            np.arange(number), which
        ]


REAL = {
    "gaussian": lambda rng: Real(
        ebm.Binary(2),
        ebm.Gaussian(2, jnp.log(jnp.asarray([0.8, 1.3]))),
        np.array([0.8, 1.3]),
        -np.inf,
        rng,
    ),
    "nonnegative": lambda rng: Real(
        ebm.Categorical(1, 3),
        ebm.Nonnegative(2, jnp.asarray([0.7, 1.6])),
        np.array([0.7, 1.6]) ** -0.5,
        0.0,
        rng,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["gibbs", "tempered", "parallel"])
@pytest.mark.parametrize("name", REAL)
def test_real_hidden_units_stay_as_they_are_distributed(name, sampler):
    """Chains that start exactly at the distribution are there afterwards, too."""
    rng = np.random.default_rng(7)
    real = REAL[name](rng)
    model, number = real.model, 20_000
    which, hidden = real.draw(rng, number)
    start = model.named([jnp.asarray(real.states[which]), jnp.float32(hidden)])
    samples = ebm.sample(
        model, SAMPLERS[sampler], number, key=KEY, num_chains=number, burn_in=9, start=start
    )
    visible, hidden = np.asarray(samples.visible), np.asarray(samples.hidden)
    assert (hidden != np.asarray(start.hidden)).any(1).mean() > 0.5
    found = (visible[:, None] == real.states).all(-1)  # [chains, states]
    assert (np.abs(found.mean(0) - real.p) < 5 * np.sqrt(real.p * (1 - real.p) / number)).all()
    # First and second moments of hidden units, in each visible state.
    for power in (1, 2):
        moments = hidden[:, None] ** power * found[..., None]
        want = real.p[:, None] * (
            real.units.mean() if power == 1 else real.units.var() + real.units.mean() ** 2
        )
        error = moments.std(0) / np.sqrt(number)
        assert (np.abs(moments.mean(0) - want) < 5 * error).all()


@pytest.mark.parametrize("name", REAL)
def test_real_hidden_units_are_integrated_out(name):
    real = REAL[name](np.random.default_rng(8))
    free = real.model.free_energy(jnp.asarray(real.states))
    np.testing.assert_allclose(-np.asarray(free), real.score, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
def test_units_in_blocks_are_units_one_by_one(monkeypatch):
    """Blocks of any size, with a rest or without, in both directions, give the same bits."""
    rng = np.random.default_rng(5)
    model = oracle.random_boltzmann(rng, 11, dtype="float64")
    layers = [jnp.asarray(rng.integers(0, 2, (6, 11)), jnp.float64)]
    clamp = [jnp.asarray(rng.random((6, 11)) < 0.3)]
    for reverse in (False, True):
        outs = []
        for size in (1, 4, 11, 28):
            monkeypatch.setattr(_sweep, "_BLOCK", size)
            outs.append(_sweep.sweep(model, layers, KEY, 0.7, reverse, clamp)[0])
        for out in outs[1:]:
            np.testing.assert_array_equal(out, outs[0])
        changed = np.asarray(outs[0] != layers[0])
        assert changed.any()
        assert not (changed & np.asarray(clamp[0])).any()


@pytest.mark.slow
def test_uniform_numbers():
    """The cipher is JAX's own, and no two numbers come from the same half of a block."""
    counts = jnp.arange(10, dtype=jnp.uint32)
    data, zeros = jax.random.key_data(KEY), jnp.zeros_like(counts)
    own = jnp.concatenate(_random._threefry((data[0], data[1]), counts, zeros))
    known = jax.extend.random.threefry_2x32(data, jnp.concatenate([counts, zeros]))
    np.testing.assert_array_equal(own, known)
    for key in (KEY, jax.random.key(0, impl="rbg")):
        u = np.asarray(_random.uniforms(key, (401, 500), "float32"))
        assert u.shape == (401, 500)
        # Never 0 nor 1, and exact: odd multiples of half a step.
        assert set(np.unique(u.astype(float) * 2**24 % 2)) == {1}
        assert u.max() < 1
        assert len(np.unique(u)) > 0.98 * u.size  # As 2**23 values allow.
        expected = u.size / 50
        chi2 = ((np.histogram(u, 50, (0, 1))[0] - expected) ** 2).sum() / expected
        assert 15 < chi2 < 100
        assert abs(np.corrcoef(u[:200].ravel(), u[201:].ravel())[0, 1]) < 5 / np.sqrt(100_000)


SAMPLERS = {
    "gibbs": ebm.Gibbs(),
    "gwg": ebm.GibbsWithGradients(flips=5),
    "tempered": ebm.TemperedTransitions(np.linspace(0.5, 1, 4)),
    "parallel": ebm.ParallelTempering(np.linspace(0.2, 1, 3)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "name"),
    [*((key, "semi_restricted") for key in SAMPLERS), ("parallel", "dbm")],
)
def test_marginals_of_samples(sampler, name):
    """Compiled, in bulk: means of units within Monte-Carlo error of the truth."""
    model = oracle.MODELS[name](np.random.default_rng(6), scale=0.7)
    number = 8_000
    samples = ebm.sample(model, SAMPLERS[sampler], number, key=KEY, num_chains=number, burn_in=20)
    truth = np.concatenate(oracle.truth(model).marginals)
    got = np.concatenate([np.asarray(x).mean(0) for x in jax.tree.leaves(samples)])
    assert (np.abs(got - truth) < 5 * np.sqrt(truth * (1 - truth) / number) + 1e-3).all()
    assert all(x.dtype == jnp.int32 for x in jax.tree.leaves(samples))


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_clamped_units_stay_and_the_others_are_conditioned(sampler):
    model = oracle.random_rbm(np.random.default_rng(7), 4, 3)
    start = ebm.Layers(jnp.asarray([1, 0, 1, 1]), jnp.asarray([0, 1, 0]))
    clamped = ebm.Layers(jnp.asarray([True, False, False, True]), jnp.asarray([False, True, False]))
    number = 8_000
    samples = ebm.sample(
        model, sampler, number, key=KEY, num_chains=number, burn_in=20, start=start, clamped=clamped
    )
    truth = oracle.truth(model, clamped={0: 1, 3: 1, 5: 1})
    for got, want in zip((samples.visible, samples.hidden), truth.marginals, strict=True):
        error = 5 * np.sqrt(np.maximum(want * (1 - want), 0) / number)
        got = np.asarray(got)
        assert (np.abs(got.mean(0) - want) <= error + 1e-3).all()
    held = [samples.visible[:, 0], samples.visible[:, 3], samples.hidden[:, 1]]
    assert all((np.asarray(x) == 1).all() for x in held)


@pytest.mark.slow
def test_a_chain_for_each_instance():
    rng = np.random.default_rng(8)
    crbm = ebm.CRBM.init(3, 2, 4, key=KEY, scale=1.0)
    x = rng.normal(size=(5, 4)).astype(np.float32)
    rbms = crbm.condition(np.repeat(x, 4000, 0))
    for sampler in (ebm.Gibbs(), ebm.ParallelTempering([0.5, 1.0])):
        samples = ebm.sample(rbms, sampler, 20_000, key=KEY, num_chains=20_000, burn_in=20)
        means = np.asarray(samples.visible).reshape(5, 4000, 3).mean(1)
        for k in range(5):
            want = oracle.truth(crbm.condition(x[k])).marginals[0]
            assert (np.abs(means[k] - want) < 5 * np.sqrt(want * (1 - want) / 4000) + 1e-3).all()


@pytest.mark.slow
def test_shapes_and_order_of_samples():
    model = oracle.random_rbm(np.random.default_rng(9), 4, 3)
    options: dict[str, Any] = dict(key=KEY, num_chains=3, burn_in=2, thin=2)
    samples, info = ebm.sample_with_info(model, ebm.Gibbs(), 8, **options)
    assert samples.visible.shape == (8, 4)
    assert samples.hidden.shape == (8, 3)
    assert info.energy.shape == (3, 3)
    energies = model.energy(samples.visible, samples.hidden)
    np.testing.assert_allclose(energies, info.energy.reshape(-1)[:8], atol=1e-5)
    again = ebm.sample(model, ebm.Gibbs(), 8, **options)
    np.testing.assert_array_equal(samples.visible, again.visible)
    assert ebm.sample(model, ebm.Gibbs(), 7, key=KEY).visible.shape == (7, 4)


@pytest.mark.usefixtures("slow_clock")
def test_samples_are_those_so_far_when_the_time_is_over():
    model = oracle.random_rbm(np.random.default_rng(9), 4, 3)

    def run(seconds, **options):
        found: dict[str, Any] = dict(key=KEY, num_chains=2, burn_in=600) | options
        return ebm.sample_with_info(model, ebm.Gibbs(), 1500, **found, seconds=seconds)

    (whole, info), (timely, _) = run(None), run(1e6)
    np.testing.assert_array_equal(whole.visible, timely.visible)
    assert whole.visible.shape == (1500, 4) and info.energy.shape == (750, 2)
    # There are two calls of burn-in before, and three looks at the clock.
    wanted = "The time was over after 600 of 600 steps of burn-in and 500 of 1500 samples: raise"
    with pytest.warns(UserWarning, match=wanted):
        cut, info = run(3.5)
    np.testing.assert_array_equal(cut.visible, whole.visible[:500])
    assert info.energy.shape == (250, 2)
    with pytest.warns(UserWarning, match="after 256 of 600 steps of burn-in and 500 of 1500"):
        assert run(1.5)[0].visible.shape == (500, 4)


@pytest.mark.parametrize("options", [{"burn_in": 600}, {"thin": 300}, {"num_chains": 1}])
def test_samples_in_several_calls_are_those_of_one(options, monkeypatch):
    model = oracle.random_rbm(np.random.default_rng(9), 4, 3)
    many = ebm.sample(model, ebm.Gibbs(), 300, key=KEY, **options)
    monkeypatch.setattr(_sample, "_SLICE", 10**6)
    one = ebm.sample(model, ebm.Gibbs(), 300, key=KEY, **options)
    np.testing.assert_array_equal(one.hidden, many.hidden)


def bimodal():
    """Twelve visible and three hidden units that all agree, up or down."""
    return ebm.RBM.from_spins(jnp.full((12, 3), 0.6), jnp.zeros(12), jnp.zeros(3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "cost", "low", "high"),
    [
        (ebm.Gibbs(), 1, 0.0, 0.02),
        (ebm.TemperedTransitions(np.linspace(0.1, 1, 51)), 100, 0.4, 0.6),
        (ebm.ParallelTempering(np.linspace(0.1, 1, 10)), 10, 0.4, 0.6),
    ],
)
def test_tempering_reaches_the_other_mode(sampler, cost, low, high):
    """200 chains from one mode, 3000 sweeps each."""
    model = bimodal()
    assert float(model.weights[0, 0]) == pytest.approx(2.4)
    ones = ebm.Layers(jnp.ones(12, jnp.int32), jnp.ones(3, jnp.int32))
    samples = ebm.sample(
        model, sampler, 200, key=KEY, num_chains=200, burn_in=3000 // cost - 1, start=ones
    )
    assert low <= (np.asarray(samples.visible).mean(1) < 0.5).mean() <= high


@pytest.mark.slow
def test_diagnostics_of_tempering():
    model = bimodal()
    sampler = ebm.ParallelTempering(np.linspace(0, 1, 8))
    _, info = ebm.sample_with_info(model, sampler, 8_000, key=KEY, num_chains=20)
    tried = np.asarray(info.tried)
    assert (tried[0] == [True, False] * 3 + [True]).all()
    assert (tried[:2].sum(0) == 1).all()
    rates = np.asarray(info.swapped).sum((0, 2)) / tried.sum(0) / 20
    assert ((rates > 0.1) & (rates < 1)).all()
    assert not np.asarray(info.swapped)[~tried].any()
    trips = np.asarray(info.trips)
    assert (np.diff(trips, axis=0) >= 0).all()
    assert trips[-1].min() >= 1
    _, info = ebm.sample_with_info(
        model, ebm.TemperedTransitions([0.5, 1.0]), 500, key=KEY, num_chains=50
    )
    share = np.minimum(np.exp(np.asarray(info.log_ratio)), 1).mean()
    assert abs(np.asarray(info.accepted).mean() - share) < 0.1


@pytest.mark.slow
def test_a_ladder_is_adapted():
    """From temperatures that crowd at one end to swaps that are equally frequent."""
    model = bimodal()

    def rates(sampler):
        _, info = ebm.sample_with_info(model, sampler, 8_000, key=KEY, num_chains=20)
        tried = np.asarray(info.tried).sum(0) * 20
        return np.asarray(info.swapped).sum((0, 2)) / tried

    first = ebm.ParallelTempering([0.0, 0.02, 0.04, 0.06, 0.08, 1.0])
    before = rates(first)
    adapted = ebm.adapt_ladder(model, first, key=KEY, rounds=3)
    after = rates(adapted)
    assert (adapted.betas[0], adapted.betas[-1], len(adapted.betas)) == (0.0, 1.0, 6)
    assert before.max() - before.min() > 0.8
    assert after.max() - after.min() < 0.3
    assert after.min() > before.min()


@pytest.mark.slow
def test_walkers_carry_their_configurations():
    """Without a sweep's changes (all units clamped but one), labels follow what they label."""
    model = bimodal()
    sampler = ebm.ParallelTempering([0.0, 0.5, 1.0])
    state = sampler.init(model, 4, key=KEY)
    for k in range(20):
        state, _ = sampler.step(model, state, key=jax.random.key(k))
        assert (np.sort(np.asarray(state.walker), axis=0) == np.arange(3)[:, None]).all()
        np.testing.assert_array_equal(state.units.visible, state.replicas.visible[-1])


@pytest.mark.slow
def test_autocorrelation_time():
    """Of an autoregressive process it is (1 + a) / (1 - a); of independent numbers 1."""
    rng = np.random.default_rng(10)
    for a in (0.0, 0.5, 0.9):
        x = np.zeros((20_000, 20))
        noise = rng.normal(size=x.shape)
        for t in range(1, len(x)):
            x[t] = a * x[t - 1] + noise[t]
        assert float(ebm.samplers.autocorrelation_time(x)) == pytest.approx(
            (1 + a) / (1 - a), rel=0.1
        )
    assert ebm.samplers.autocorrelation_time(np.ones((100, 3))) == np.inf


def test_singular_values():
    model = oracle.random_semi(np.random.default_rng(11))
    weights, couplings = ebm.samplers.singular_values(model)
    np.testing.assert_allclose(weights, np.linalg.svd(model.weights)[1], rtol=1e-5)
    np.testing.assert_allclose(couplings, np.linalg.svd(model.couplings)[1], rtol=1e-5)
    (weights,) = ebm.samplers.singular_values(ebm.CRBM.init(4, 3, 2, key=KEY))
    assert weights.shape == (3,)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [*SAMPLERS.values(), ebm.PMP(5), ebm.PMP(5, renewal=0.5)])
def test_steps_compile_once(sampler):
    model = oracle.random_rbm(np.random.default_rng(12), 4, 3)
    traces = 0

    @eqx.filter_jit
    def step(model, state, key):
        nonlocal traces
        traces += 1
        return sampler.step(model, state, key=key)

    state = sampler.init(model, 5, key=KEY)
    for k in range(3):
        state, _ = step(model, state, jax.random.key(k))
        model = jax.tree.map(lambda x: x * 0.9, model)
    assert traces == 1


@pytest.mark.slow
def test_replicas_where_biases_broadcast():
    one = oracle.random_rbm(np.random.default_rng(1), 4, 3, dtype="float32")
    bias = jnp.broadcast_to(one.visible_bias, (5, 4))
    tempering = ebm.ParallelTempering([0.0, 1.0])
    options = {"key": KEY, "num_chains": 5}
    model = ebm.RBM(one.weights, bias, one.hidden_bias[None])
    drawn = ebm.sample(model, tempering, 3, **options)
    # The same instance five times is five chains of it.
    np.testing.assert_array_equal(drawn.visible, ebm.sample(one, tempering, 3, **options).visible)


@pytest.mark.slow
def test_swaps_that_were_not_tried_have_no_share():
    model = oracle.random_rbm(np.random.default_rng(4), 3, 2, dtype="float32")
    learner = ebm.SAP(ebm.ParallelTempering([0.9, 1.0]), num_chains=4)
    state, shares = learner.init(model, key=KEY), []
    rows = np.random.default_rng(0).integers(0, 2, (10, 3))
    for key in jax.random.split(KEY, 4):
        _, state, info = learner.step(model, state, rows, key=key, epoch=0)
        shares.append(float(info.accepted))
    # Of two replicas a swap is tried in every other step.
    assert np.isnan(shares).tolist() in ([True, False] * 2, [False, True] * 2)
    assert np.nanmin(shares) >= 0 and np.nanmax(shares) > 0


@pytest.mark.slow
def test_autocorrelation_of_chains_that_swing():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(20_000, 40))
    for k in range(1, len(x)):
        x[k] -= 0.9 * x[k - 1]
    assert float(ebm.samplers.autocorrelation_time(x[100:])) == pytest.approx(0.1 / 1.9, rel=0.2)
