"""Models as NumPyro distributions, and samplers as blocks beside NUTS."""

import contextlib
import io
import itertools
import warnings
from typing import Any, cast

import extending
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import oracle
import pytest
from numpyro.contrib.module import random_eqx_module
from numpyro.distributions.batch_util import promote_batch_shape
from numpyro.infer import Gibbs, MCMC, NUTS

import ebmlearn as ebm
from ebmlearn.numpyro import _events, EnergyDistribution, GibbsKernel, SamplerBlock


KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def as_numpyro():
    """NumPyro is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def every(n):
    return np.array(list(itertools.product((0, 1), repeat=n)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rbm", "dbm", "boltzmann"])
def test_probabilities_and_draws(name):
    model = oracle.MODELS[name](np.random.default_rng(0), scale=0.7)
    d = EnergyDistribution(model, "exact", steps=30)
    x = every(d.event_shape[0])
    p = np.exp(np.asarray(d.log_prob(x), float))
    assert p.sum() == pytest.approx(1, abs=1e-5)
    t = oracle.truth(model)
    here = np.exp(t.scores - t.log_z)
    codes = t.states[:, : x.shape[1]] @ 2 ** np.arange(x.shape[1])
    want = np.bincount(codes.astype(int), here)[x @ 2 ** np.arange(x.shape[1])]
    np.testing.assert_allclose(p, want, atol=1e-5)
    given = EnergyDistribution(model, t.log_z)
    none = EnergyDistribution(model, None)
    np.testing.assert_allclose(given.log_prob(x), d.log_prob(x), atol=1e-4)
    np.testing.assert_allclose(none.log_prob(x) - t.log_z, d.log_prob(x), atol=1e-4)
    drawn = np.asarray(d.sample(KEY, (8_000,)))
    assert drawn.shape == (8_000, *d.event_shape)
    assert d.support(drawn).all()
    mean = p @ x
    assert (np.abs(drawn.mean(0) - mean) < 5 * np.sqrt(mean * (1 - mean) / 8_000) + 1e-3).all()


@pytest.mark.slow
def test_a_gaussian_site():
    rng = np.random.default_rng(1)
    w, b, c = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((2, 3), 2, 3))
    model = ebm.GaussianRBM(w, b, c, jnp.asarray([0.3, -0.2]))
    d = EnergyDistribution(model, "exact", steps=30)
    log_z = ebm.Exact()(model.hidden_marginal()).log_partition + model.log_volume
    x = rng.normal(size=(5, 2)).astype(np.float32)
    np.testing.assert_allclose(d.log_prob(x), ebm.log_likelihood(model, x, log_z), atol=1e-5)
    assert not d.support.is_discrete
    # A latent site, found by NUTS; its density needs no normaliser, as the parameters are constant.
    mcmc = MCMC(
        NUTS(lambda: numpyro.sample("v", EnergyDistribution(model, None))),
        num_warmup=300, num_samples=4000, progress_bar=False,
    )  # fmt: skip
    mcmc.run(KEY)
    v = np.asarray(mcmc.get_samples()["v"])
    chains = np.asarray(d.sample(KEY, (20_000,)))
    np.testing.assert_allclose(v.mean(0), chains.mean(0), atol=0.25)
    np.testing.assert_allclose(v.std(0), chains.std(0), rtol=0.15)


@pytest.mark.slow
def test_shapes():
    crbm = ebm.CRBM.init(3, 2, 4, key=KEY, scale=1.0)
    x = np.random.default_rng(2).normal(size=(5, 4)).astype(np.float32)
    d = EnergyDistribution(crbm.condition(x), "exact", steps=20)
    assert d.batch_shape == (5,)
    assert d.event_shape == (3,)
    drawn = d.sample(KEY, (2_000,))
    assert drawn.shape == (2_000, 5, 3)
    assert d.log_prob(drawn).shape == (2_000, 5)
    for k in range(5):
        want = oracle.truth(crbm.condition(x[k])).marginals[0]
        error = 5 * np.sqrt(want * (1 - want) / 2_000) + 1e-3
        assert (np.abs(np.asarray(drawn)[:, k].mean(0) - want) < error).all()
    assert d.to_event(1).event_shape == (5, 3)
    value = drawn[0]
    np.testing.assert_allclose(d.to_event(1).log_prob(value), d.log_prob(value).sum(), rtol=1e-5)
    mask = jnp.asarray([True, False, True, True, False])
    masked = d.mask(mask).log_prob(value)
    np.testing.assert_allclose(masked, np.where(mask, d.log_prob(value), 0), rtol=1e-5)
    single = EnergyDistribution(crbm.condition(x[0]), "exact", steps=20)
    wide = single.expand((4,))
    assert wide.sample(KEY, (3,)).shape == (3, 4, 3)
    np.testing.assert_allclose(wide.log_prob(value[0]), np.full(4, single.log_prob(value[0])))
    again = jax.tree.unflatten(*jax.tree.flatten(d)[::-1])
    np.testing.assert_array_equal(again.log_prob(value), d.log_prob(value))


def bayesian(log_partition):
    start = ebm.RBM.init(3, 1, key=KEY)

    def model(data):
        rbm = random_eqx_module("rbm", start, prior=dist.Normal(0.0, 2.0))
        with numpyro.plate("rows", len(data)):
            numpyro.sample("v", EnergyDistribution(rbm, log_partition), obs=data)

    return model


@pytest.mark.slow
def test_a_posterior_of_parameters():
    """NUTS on the parameters of an RBM, exact log Z: the truth lies where the posterior does."""
    truth = ebm.RBM(jnp.asarray([[3.0], [-2.5], [2.0]]), jnp.asarray([-1.0, 1.0, -0.5]),
                    jnp.asarray([-0.3]))  # fmt: skip
    x = every(3)
    p = np.exp(np.asarray(EnergyDistribution(truth, "exact").log_prob(x), float))
    data = x[np.random.default_rng(3).choice(8, size=2_000, p=p / p.sum())]
    mcmc = MCMC(NUTS(bayesian("exact")), num_warmup=200, num_samples=300, progress_bar=False)
    mcmc.run(KEY, data)
    draws = mcmc.get_samples()
    w, b, c = (
        np.asarray(draws[f"rbm/{name}"]).reshape(300, -1)
        for name in ("weights", "visible_bias", "hidden_bias")
    )
    # The hidden unit may be called 1 or 0.
    flip = w[:, :1] < 0
    w, b, c = np.where(flip, -w, w), np.where(flip, b + w, b), np.where(flip, -c, c)
    for got, want in ((w, truth.weights[:, 0]), (b, truth.visible_bias), (c, truth.hidden_bias)):
        assert (np.abs(got.mean(0) - np.asarray(want)) < 4 * got.std(0)).all()
        assert (got.std(0) < 1).all()
    mean = np.mean(
        [
            np.exp(EnergyDistribution(
                ebm.RBM(*map(jnp.asarray, (w[k, :, None], b[k], c[k]))), "exact"
            ).log_prob(x))
            for k in range(0, 300, 15)
        ],
        axis=0,
    )  # fmt: skip
    assert np.abs(mean - p).sum() / 2 < 0.05


def test_latent_parameters_need_a_normaliser():
    data = every(3)
    for log_partition in (None, 3.0):
        mcmc = MCMC(NUTS(bayesian(log_partition)), num_warmup=2, num_samples=2, progress_bar=False)
        with pytest.raises(ValueError, match="`log_partition` must be given"):
            mcmc.run(KEY, data)
    rbm = oracle.random_rbm(np.random.default_rng(4), 3, 2)
    with pytest.raises(ValueError, match="`log_partition` must be given"):
        jax.jit(lambda rbm: EnergyDistribution(rbm, None).log_prob(data))(rbm)

    def density(rbm, v):
        return EnergyDistribution(rbm, None, fixed=True).log_prob(v)

    v = jnp.asarray([0.0, 1.0, 0.0])
    np.testing.assert_allclose(jax.jit(density)(rbm, v), -rbm.free_energy(v), atol=1e-5)
    assert jax.jit(jax.grad(density, 1))(rbm, v).shape == (3,)
    with pytest.raises(ValueError, match="gradient by the parameters"):
        jax.grad(density)(rbm, v)


@pytest.mark.slow
def test_a_block_beside_nuts():
    """Bits of an RBM seen through a channel of unknown strength, against enumeration of the bits
    and quadrature over the strength.
    """
    rbm = oracle.random_rbm(np.random.default_rng(5), 3, 2)
    seen = np.array([1, 1, 0])
    signs = jnp.asarray(2.0 * seen - 1)

    def model():
        x = numpyro.sample("x", EnergyDistribution(rbm, None))
        strength = numpyro.sample("strength", dist.Normal(1.0, 1.0))
        logits = strength * (2.0 * x - 1)
        numpyro.sample("seen", dist.Bernoulli(logits=logits).to_event(1), obs=seen)

    def build(sites):
        return rbm.with_unary((rbm.visible_bias + sites["strength"] * signs, rbm.hidden_bias))

    block = SamplerBlock(ebm.TemperedTransitions([0.5, 1.0]), build, model)
    kernel = Gibbs([(block, ["x"]), (NUTS(model), None)])
    mcmc = MCMC(kernel, num_warmup=300, num_samples=6000, progress_bar=False)
    mcmc.run(jax.random.PRNGKey(0))  # the old kind, as most NumPyro code has
    draws = {name: np.asarray(x) for name, x in mcmc.get_samples().items()}
    assert set(np.unique(draws["x"])) == {0, 1}
    x = every(3)
    s = np.linspace(-6, 8, 4001)
    prior = -np.asarray(rbm.free_energy(x), float)[:, None] - 0.5 * (s - 1) ** 2
    agree = (2 * x - 1) @ (2 * seen - 1)
    wrong = (3 - agree) / 2
    log_p = prior - np.logaddexp(0, -s) * (3 - wrong)[:, None] - np.logaddexp(0, s) * wrong[:, None]
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    np.testing.assert_allclose(draws["x"].mean(0), p.sum(1) @ x, atol=0.04)
    assert draws["strength"].mean() == pytest.approx(p.sum(0) @ s, abs=0.08)


@pytest.mark.slow
def test_a_build_that_forgets_the_likelihood():
    rbm = oracle.random_rbm(np.random.default_rng(13), 3, 2)
    seen = jnp.asarray([1, 1, 0])

    def model():
        x = numpyro.sample("x", EnergyDistribution(rbm, None))
        strength = numpyro.sample("strength", dist.Normal(1.0, 1.0))
        numpyro.sample(
            "seen", dist.Bernoulli(logits=strength * (2.0 * x - 1)).to_event(1), obs=seen
        )

    def build(sites):
        return rbm.with_unary(
            (rbm.visible_bias + sites["strength"] * (2.0 * seen - 1), rbm.hidden_bias)
        )

    def run(build, chains, method):
        block = SamplerBlock(ebm.Gibbs(), build, model)
        mcmc = MCMC(
            Gibbs([(block, ["x"]), (NUTS(model), None)]), num_warmup=5, num_samples=5,
            num_chains=chains, chain_method=method, progress_bar=False,
        )  # fmt: skip
        mcmc.run(KEY)
        return mcmc.get_samples(group_by_chain=True)["x"]

    with pytest.raises(
        ValueError, match=r"prior and likelihood together: .* log density of `model`"
    ):
        run(lambda sites: rbm, 1, "sequential")
    # Chains together, as the documentation says.
    assert run(build, 2, jax.vmap).shape == (2, 5, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dbm", "boltzmann"])
def test_blocks_keep_the_distribution(name):
    """Draws of a block alone, from exact states, do not drift."""
    rng = np.random.default_rng(6)
    model = oracle.MODELS[name](rng)
    t = oracle.truth(model)
    p = np.exp(t.scores - t.log_z)
    x = t.states[rng.choice(len(p), size=20_000, p=p / p.sum())].astype(np.int32)
    site = EnergyDistribution(model, None)
    block = SamplerBlock(
        ebm.GibbsWithGradients(flips=3),
        lambda sites: model,
        lambda: numpyro.sample("x", site.expand((20_000,))),
        steps=2,
    )
    state = block.init(KEY, 0, {"x": x}, (), {})
    state = block.sample(state, (), {})
    new = np.asarray(state.z["x"])
    assert new.shape == x.shape
    assert (new != x).any()
    truth = np.concatenate(t.marginals)
    assert (np.abs(new.mean(0) - truth) < 5 * np.sqrt(truth * (1 - truth) / 20_000) + 1e-3).all()


@pytest.mark.slow
def test_arviz():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz
    rbm = oracle.random_rbm(np.random.default_rng(7), 3, 2)
    mcmc = MCMC(
        GibbsKernel(), num_warmup=20, num_samples=300, num_chains=2, chain_method="vectorized",
        progress_bar=False,
    )  # fmt: skip
    mcmc.run(KEY, rbm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        summary = cast(Any, arviz.summary(arviz.from_numpyro(mcmc)))
    assert set(summary.index) == {*(f"visible[{k}]" for k in range(3)), "hidden[0]", "hidden[1]"}
    truth = np.concatenate(oracle.truth(rbm).marginals)
    order = [f"visible[{k}]" for k in range(3)] + ["hidden[0]", "hidden[1]"]
    np.testing.assert_allclose(summary.loc[order, "mean"], truth, atol=0.15)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        mcmc.print_summary()
    assert "visible[2]" in text.getvalue()


@pytest.mark.usefixtures("as_a_user")
def test_bad_input():
    rbm = oracle.random_rbm(np.random.default_rng(8), 3, 2)
    crbm = ebm.CRBM.init(3, 2, 4, key=KEY)
    cases = [
        (lambda: EnergyDistribution(crbm, None), TypeError, "condition"),
        (lambda: EnergyDistribution(3, None), TypeError, "`model`"),
        (lambda: EnergyDistribution(rbm, "bethe"), ValueError, "`log_partition`"),
        (lambda: EnergyDistribution(rbm, ebm.Exact()), TypeError, "`log_partition`.*got an Exact"),
        (lambda: EnergyDistribution(rbm, None).sample("a"), TypeError, "`key` must be an integer"),
        (
            lambda: EnergyDistribution(rbm, None).log_prob(ebm.Layers(jnp.zeros(3), jnp.zeros(2))),
            TypeError,
            "`value` must be one array, visible layers .* got a Layers",
        ),
        (lambda: EnergyDistribution(rbm, jnp.zeros(3)), ValueError, r"batch of \(\), got .*\(3,\)"),
        (lambda: EnergyDistribution(rbm, None, steps=0), ValueError, "`steps`"),
        (lambda: EnergyDistribution(rbm, None, sampler="gibbs"), TypeError, "`sampler`"),
        (
            lambda: SamplerBlock(ebm.ParallelTempering([0, 1]), lambda s: rbm, every),
            TypeError,
            "single chains",
        ),
        (lambda: SamplerBlock(ebm.Gibbs(), cast(Any, rbm), every), TypeError, "`build`"),
        (lambda: SamplerBlock(ebm.Gibbs(), lambda s: rbm, cast(Any, 3)), TypeError, "`model`"),
        (lambda: EnergyDistribution(rbm, 1.0).mean, NotImplementedError, "'exact'"),
        (lambda: EnergyDistribution(rbm, 1.0).entropy(), NotImplementedError, "'exact'"),
        (
            lambda: EnergyDistribution(ebm.RBM.init(30, 2, key=KEY), "exact").enumerate_support(),
            NotImplementedError,
            "1048576 events",
        ),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
    block = SamplerBlock(ebm.Gibbs(), lambda sites: rbm, every)
    with pytest.raises(ValueError, match="one site"):
        block.init(KEY, 0, None, (), {})
    with pytest.raises(ValueError, match=r"site 'x', of shape \(4,\)"):
        block.init(KEY, 0, {"x": jnp.zeros(4, jnp.int32)}, (), {})
    for made, message in (
        (None, "`build` must return a model of its site: .*got None"),
        (crbm, "`build` must return a model of its site: .*got a CRBM"),
        (
            rbm.with_unary((jnp.zeros((2, 3)), rbm.hidden_bias)),
            r"`build` .* each of the 1 rows of site 'x'.*\(2,\)",
        ),
    ):
        block = SamplerBlock(ebm.Gibbs(), lambda sites, made=made: made, every)  # pyright: ignore
        with pytest.raises((TypeError, ValueError), match=message):
            block.init(KEY, 0, {"x": jnp.zeros(3, jnp.int32)}, (), {})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rbm", "dbm", "boltzmann", "labelled"])
def test_events_moments_and_entropy(name):
    if name == "labelled":
        model = oracle.random_labelled(np.random.default_rng(9))
    else:
        model = oracle.MODELS[name](np.random.default_rng(9), scale=0.7)
    d = EnergyDistribution(model, "exact", validate_args=True)
    x = np.asarray(d.enumerate_support())
    assert d.support(x).all()
    assert len(np.unique(x, axis=0)) == len(x)
    p = np.exp(np.asarray(d.log_prob(x), float))
    assert p.sum() == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(d.mean, p @ x, atol=1e-4)
    np.testing.assert_allclose(d.variance, p @ x**2 - (p @ x) ** 2, atol=1e-4)
    assert float(d.entropy()) == pytest.approx(-(p * np.log(p)).sum(), abs=1e-4)
    drawn = d.sample(KEY, (6,))
    assert drawn.shape == (6, x.shape[1])
    assert d.support(drawn).all()


@pytest.mark.slow
def test_events_are_the_states_of_the_units():
    rng = np.random.default_rng(5)
    w, u, b, c = (rng.normal(size=s).astype(np.float32) for s in ((2, 3), (3, 3), 2, 3))
    model = ebm.LayeredModel(
        {
            "visible": extending.page()["Spin"](2),
            "hidden": ebm.Binary(3),
            "label": ebm.Categorical(1, 3),
        },
        {("visible", "hidden"): w, ("hidden", "label"): u},
        {"visible": b, "label": c},
    )
    x = np.array(list(itertools.product((-1, 0, 1), (-1, 0, 1), (0, 1, 2))))
    v, y = x[:, :2], np.eye(3)[x[:, 2]]
    scores = v @ b + y @ c + np.logaddexp(0, v @ w + y @ u.T).sum(1)
    log_p = scores - np.log(np.exp(scores).sum())
    d = EnergyDistribution(model, "exact", steps=20)
    np.testing.assert_array_equal(d.enumerate_support(), x)
    np.testing.assert_allclose(d.log_prob(x), log_p, atol=1e-5)
    np.testing.assert_allclose(d.mean, np.exp(log_p) @ x, atol=1e-5)
    np.testing.assert_allclose(d.entropy(), -np.exp(log_p) @ log_p, atol=1e-5)
    assert d.support(x).all() and not d.support(x + np.array([0, 0, 1])).all()
    assert d.support(d.sample(KEY, (100,))).all()


@pytest.mark.slow
def test_numpyro_does_not_enumerate_events():
    """It would take the number of an event for its states."""
    rbm = oracle.random_rbm(np.random.default_rng(10), 2, 1)
    d = EnergyDistribution(rbm, "exact")
    assert not d.has_enumerate_support
    assert d.enumerate_support(expand=False).shape == (4, 2)

    def model():
        x = cast(Any, numpyro.sample("x", d, infer={"enumerate": "parallel"}))
        numpyro.sample("y", dist.Normal(x.sum(-1), 1.0), obs=0.5)

    with pytest.raises(Exception, match=r"enumerat|discrete|Discrete"):
        MCMC(NUTS(model), num_warmup=1, num_samples=1, progress_bar=False).run(KEY)


@pytest.mark.slow
def test_vmap_keeps_the_batch():
    rbm = oracle.random_rbm(np.random.default_rng(11), 3, 2)
    biases = jnp.asarray(np.random.default_rng(12).normal(size=(3, 3)), jnp.float32)

    def made(bias):
        return EnergyDistribution(rbm.with_unary((bias, rbm.hidden_bias)), "exact", steps=20)

    d = promote_batch_shape(jax.vmap(made)(biases))
    assert d.batch_shape == (3,)
    assert promote_batch_shape(d).batch_shape == (3,)
    x = every(3)
    want = np.stack([made(bias).log_prob(x) for bias in biases], 1)
    np.testing.assert_allclose(d.log_prob(x[:, None]), want, atol=1e-5)
    np.testing.assert_allclose(d.log_prob(x[3]), want[3], atol=1e-5)
    np.testing.assert_allclose(d.mean, np.exp(want.T) @ x, atol=1e-5)
    assert d.entropy().shape == (3,)
    drawn = np.asarray(d.sample(KEY, (400, 2)))
    assert drawn.shape == (400, 2, 3, 3)
    np.testing.assert_allclose(drawn.mean((0, 1)), d.mean, atol=0.1)
    twice = jax.vmap(jax.vmap(made))(jnp.stack([biases, -biases]))
    twice = promote_batch_shape(twice)
    assert twice.batch_shape == (2, 3)
    np.testing.assert_allclose(twice.log_prob(x[5])[0], want[5], atol=1e-5)


def test_what_lies_outside_the_support():
    model = ebm.RBM(jnp.ones((2, 1)), jnp.zeros(2), jnp.zeros(1))
    distribution = EnergyDistribution(model, "exact", validate_args=True)
    with pytest.warns(UserWarning, match="Out-of-support"):
        found = distribution.log_prob(jnp.asarray([3, 0]))
    assert found == -jnp.inf


def test_hidden_layers_are_drawn_independently():
    layers = {"visible": ebm.Binary(1), "hidden_1": ebm.Binary(50), "hidden_2": ebm.Binary(50)}
    ends = (("visible", "hidden_1"), ("visible", "hidden_2"))
    model = ebm.LayeredModel(layers, {end: jnp.zeros((1, 50)) for end in ends})
    found = _events.units(model, jnp.zeros((20, 1), jnp.int32), KEY)
    _, one, two = jax.tree.leaves(found)
    assert 0.4 < float((one == two).mean()) < 0.6


def test_values_of_another_length_are_refused():
    d = EnergyDistribution(ebm.RBM.init(4, 2, key=0), "exact")
    for length in (3, 6):
        with pytest.raises(ValueError, match=r"`value` must have shape \(\.\.\., 4\)"):
            d.log_prob(jnp.zeros(length, jnp.int32))


@pytest.mark.slow
def test_an_energy_without_parameters():
    d = EnergyDistribution(ebm.EnergyModel(lambda x: -jnp.sum(x), ebm.Binary(3)), "exact")
    np.testing.assert_allclose(d.log_prob(jnp.ones(3, int)), 3 - 3 * np.log1p(np.e), rtol=1e-5)
    assert d.sample(KEY, (5,)).shape == (5, 3)


def test_tempered_samplers_are_refused():
    rbm = ebm.RBM.init(4, 2, key=0)
    with pytest.raises(ValueError, match="`sampler` must have an inverse temperature of 1"):
        EnergyDistribution(rbm, "exact", sampler=ebm.Gibbs(0.5))
