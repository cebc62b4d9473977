"""The samplers as NumPyro kernels."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import extending
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import programs
import pytest
from numpyro.diagnostics import effective_sample_size, gelman_rubin
from numpyro.infer import Gibbs, MCMC, NUTS

import ebmlearn as ebm
from ebmlearn.numpyro import (
    GibbsKernel,
    GibbsWithGradientsKernel,
    ParallelTemperingKernel,
    SamplerKernel,
    TemperedTransitionsKernel,
)


ROOT = Path(__file__).parents[1]
KEY = jax.random.key(0)
KERNELS = {
    "gibbs": lambda: GibbsKernel(),
    "gwg": lambda: GibbsWithGradientsKernel(flips=5),
    "tempered": lambda: TemperedTransitionsKernel([0.5, 0.8, 1.0]),
    "parallel": lambda: ParallelTemperingKernel([0.3, 0.6, 1.0]),
}
CONFORMANCE = """
import itertools, os, sys
os.environ.pop("CI", None)
os.environ.pop("PYTEST_XDIST_WORKER", None)
import jax, numpy as np
import ebmlearn as ebm
from ebmlearn.numpyro import GibbsKernel
from numpyro.infer import MCMC

rbm = ebm.RBM.init(4, 3, key=jax.random.key(0), scale=1.0)
assert len(jax.devices()) == 2
results = {"vectorized": [], "sequential": [], "parallel": []}
for method, bar in itertools.product(("sequential", "parallel", "vectorized"), (True, False)):
    def mcmc(samples):
        return MCMC(GibbsKernel(), num_warmup=20, num_samples=samples, num_chains=2,
                    chain_method=method, progress_bar=bar)
    run = mcmc(60)
    run.run(jax.random.key(1), rbm, extra_fields=("potential_energy",))
    samples = run.get_samples(group_by_chain=True)
    assert samples["visible"].shape == (2, 60, 4)
    assert run.get_extra_fields(group_by_chain=True)["potential_energy"].shape == (2, 60)
    # Half of it, and the rest from where that ended.
    half = mcmc(30)
    half.run(jax.random.key(1), rbm)
    first = half.get_samples(group_by_chain=True)
    half.post_warmup_state = half.last_state
    half.run(half.post_warmup_state.rng_key, rbm)
    second = half.get_samples(group_by_chain=True)
    for name, values in samples.items():
        joined = np.concatenate([first[name], second[name]], 1)
        np.testing.assert_array_equal(values, joined)
    results[method].append(np.asarray(samples["visible"]))
# Vectorised chains step together, and have other draws.
for same in (results["vectorized"], results["sequential"] + results["parallel"]):
    for other in same[1:]:
        np.testing.assert_array_equal(same[0], other)
print("all agree")
"""


@pytest.mark.slow
def test_chain_methods_bars_and_resuming():
    """The same draws with a bar and without, in one go or in two, one chain after the other or on
    several devices.
    """
    out = subprocess.run(
        [sys.executable, "-c", CONFORMANCE],
        env=programs.quickly(xla_force_host_platform_device_count=2),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stderr[-2000:]
    assert "all agree" in out.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_marginals(name):
    """Within five standard errors of enumeration, by NumPyro's own effective sample size."""
    model = oracle.random_rbm(np.random.default_rng(0), 4, 3)
    mcmc = MCMC(
        KERNELS[name](),
        num_warmup=50,
        num_samples=1000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(KEY, model, extra_fields=("potential_energy", "accept_prob"))
    chains = mcmc.get_samples(group_by_chain=True)
    truth = oracle.truth(model)
    for site, want in zip(("visible", "hidden"), truth.marginals, strict=True):
        x = np.asarray(chains[site])
        assert x.shape == (4, 1000, len(want))
        assert np.issubdtype(x.dtype, np.integer)
        error = np.sqrt(want * (1 - want) / effective_sample_size(x.astype(float)))
        assert (np.abs(x.mean((0, 1)) - want) < 5 * error).all()
        assert (gelman_rubin(x.astype(float)) < 1.05).all()
    energy = np.asarray(mcmc.get_extra_fields()["potential_energy"])
    samples = mcmc.get_samples()
    np.testing.assert_allclose(
        model.energy(samples["visible"], samples["hidden"]), energy, atol=1e-4
    )
    accepted = np.asarray(mcmc.get_extra_fields()["accept_prob"])
    assert np.isnan(accepted).all() if name == "gibbs" else 0 < accepted.mean() <= 1


@pytest.mark.slow
def test_summary_thinning_start_and_clamped_units(capsys):
    model = oracle.random_rbm(np.random.default_rng(1), 4, 3)
    mcmc = MCMC(GibbsKernel(), num_warmup=10, num_samples=900, thinning=3, progress_bar=False)
    start = {"visible": jnp.asarray([1, 0, 1, 0]), "hidden": jnp.asarray([0, 1, 0])}
    clamped = ebm.Layers(jnp.asarray([True, True, False, False]), None)
    mcmc.run(KEY, model, clamped=clamped, init_params=start)
    x = np.asarray(mcmc.get_samples()["visible"])
    assert x.shape == (300, 4)
    assert (x[:, :2] == [1, 0]).all()
    want = oracle.truth(model, clamped={0: 1, 1: 0}).marginals[0]
    assert (np.abs(x.mean(0) - want) < 0.12).all()
    with np.errstate(invalid="ignore"):  # of units that never move
        mcmc.print_summary()
    assert "visible[3]" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sites"),
    [("dbm", {"visible", "hidden_1", "hidden_2", "hidden_3"}), ("boltzmann", {"x"})],
)
def test_sites_of_other_models(name, sites):
    model = oracle.MODELS[name](np.random.default_rng(2))
    mcmc = MCMC(GibbsKernel(), num_warmup=0, num_samples=5, progress_bar=False)
    start = None if name == "dbm" else {"x": jnp.ones(7, jnp.int32)}
    # Keys of the old kind are what most models of NumPyro are run with.
    mcmc.run(jax.random.PRNGKey(0), model, init_params=start)
    assert set(mcmc.get_samples()) == sites


@pytest.mark.usefixtures("as_a_user")
def test_bad_input():
    model = oracle.random_rbm(np.random.default_rng(3), 4, 3)
    mcmc = MCMC(GibbsKernel(), num_warmup=0, num_samples=5, progress_bar=False)
    with pytest.raises(TypeError, match="a key, the model, and at most `clamped`, got 0"):
        mcmc.run(KEY)
    with pytest.raises(ValueError, match=r"`init_params` .*\['visible', 'hidden'\], got \['v'\]"):
        mcmc.run(KEY, model, init_params={"v": jnp.ones(4, jnp.int32)})
    with pytest.raises(ValueError, match=r"`init_params\['visible'\]` must hold integers, got 0.5"):
        mcmc.run(KEY, model, init_params={"visible": jnp.full(4, 0.5)})
    with pytest.raises(TypeError, match="`sampler` must be a sampler"):
        SamplerKernel(cast(Any, GibbsKernel()))
    with pytest.raises(ValueError, match="`extra_fields` must not hold 'swap_rates'"):
        mcmc.run(KEY, model, extra_fields=("swap_rates",))
    with pytest.raises(ValueError, match=r"`init_params` must hold 'visible', where .*'hidden'\]"):
        hidden = {"hidden": jnp.ones(3, jnp.int32)}
        mcmc.run(KEY, model, init_params=hidden, clamped=ebm.Layers(jnp.ones(4, bool), None))
    # Of several chains too, where NumPyro maps over them.
    with pytest.raises(
        ValueError, match=r"`init_params\['hidden'\]` must hold 0 and 1 only, got 2"
    ):
        GibbsKernel().init(
            jax.random.split(KEY, 2), 0, {"hidden": jnp.full((2, 3), 2)}, (model,), {}
        )


@pytest.mark.slow
def test_every_sampler_is_a_kernel():
    """The named kernels are faces of one class, which says what it holds."""
    sampler = ebm.TemperedTransitions([0.5, 0.8, 1.0])
    kernels = SamplerKernel(sampler), TemperedTransitionsKernel([0.5, 0.8, 1.0])
    assert repr(kernels[0]) == repr(kernels[1])
    assert "TemperedTransitions" in repr(kernels[0])
    assert repr(ParallelTemperingKernel([0.0, 1.0], adapt=False)).endswith("adapt=False)")
    assert repr(pickle.loads(pickle.dumps(kernels[0]))) == repr(kernels[0])
    model = oracle.random_rbm(np.random.default_rng(4), 4, 3)
    states = [k.sample(k.init(KEY, 0, None, (model,), {}), (model,), {}) for k in kernels]
    np.testing.assert_array_equal(states[0].z["visible"], states[1].z["visible"])
    assert "accepted" in kernels[0].get_diagnostics_str(states[0])
    assert (
        GibbsKernel()
        .get_diagnostics_str(
            GibbsKernel().sample(GibbsKernel().init(KEY, 0, None, (model,), {}), (model,), {})
        )
        .startswith("energy")
    )


@pytest.mark.slow
def test_a_sampler_of_a_user_needs_no_info():
    """The potential energy is that of the model, whatever the sampler says of its steps."""
    model = oracle.random_rbm(np.random.default_rng(4), 3, 2)
    metropolis = extending.page()["Metropolis"]()
    along = ebm.Trajectory([model.tempered(0.5), model])
    f = oracle.flat(model)
    for sampler in (metropolis, ebm.TrajectoryTempering(along, sampler=metropolis)):
        mcmc = MCMC(
            SamplerKernel(sampler), num_warmup=50, num_samples=1500, num_chains=4,
            chain_method="vectorized", progress_bar=False,
        )  # fmt: skip
        mcmc.run(KEY, model, extra_fields=("potential_energy",))
        x = np.concatenate([mcmc.get_samples()[name] for name in model.names], 1).astype(float)
        want = -(x @ f.bias) - ((x @ f.couplings) * x).sum(1) / 2
        np.testing.assert_allclose(mcmc.get_extra_fields()["potential_energy"], want, atol=1e-5)
        np.testing.assert_allclose(
            x.mean(0), np.concatenate(oracle.truth(model).marginals), atol=0.07
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "start",
    [[1, 0, 1, 0], jnp.asarray([True, False, True, False]), jnp.asarray([1.0, 0.0, 1.0, 0.0])],
    ids=["list", "booleans", "floats"],
)
def test_forms_of_init_params(start):
    model = oracle.random_rbm(np.random.default_rng(5), 4, 3)
    mcmc = MCMC(GibbsKernel(), num_warmup=0, num_samples=3, progress_bar=False)
    clamped = ebm.Layers(jnp.ones(4, bool), None)
    mcmc.run(KEY, model, clamped=clamped, init_params={"visible": start})
    np.testing.assert_array_equal(mcmc.get_samples()["visible"], np.tile([1, 0, 1, 0], (3, 1)))


@pytest.mark.slow
def test_warm_up_moves_the_ladder():
    """From temperatures that are badly placed to such between which as many swaps are made; and
    the draws after it are still those of the model.
    """
    model = oracle.random_rbm(np.random.default_rng(6), 8, 6, scale=2.0)
    betas = [0.0, 0.02, 0.04, 0.06, 1.0]
    rates, found = {}, {}
    for adapt in (False, True):
        mcmc = MCMC(
            ParallelTemperingKernel(betas, adapt),
            num_warmup=800,
            num_samples=1000,
            num_chains=2,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(KEY, model, extra_fields=("swap_rates", "betas"))
        fields = mcmc.get_extra_fields(group_by_chain=True)
        rates[adapt], found[adapt] = fields["swap_rates"][:, -1], fields["betas"]
    np.testing.assert_allclose(found[False], np.broadcast_to(betas, found[False].shape), atol=1e-6)
    assert np.ptp(np.asarray(rates[False]), axis=1).min() > 0.5
    assert np.ptp(np.asarray(rates[True]), axis=1).max() < 0.25
    # They stay where they are once the warm-up is over.
    assert np.ptp(np.asarray(found[True]), axis=1).max() == 0
    ladder = np.asarray(found[True], float)
    assert (ladder[..., 1:] > ladder[..., :-1]).all()
    x = np.asarray(mcmc.get_samples(group_by_chain=True)["visible"], float)
    np.testing.assert_allclose(x.mean((0, 1)), oracle.truth(model).marginals[0], atol=0.07)


def test_a_kernel_is_no_block():
    with pytest.raises(AttributeError, match=r"write `SamplerBlock\(sampler, build, model\)`"):
        Gibbs([(GibbsKernel(), ["z"]), (NUTS(lambda: None), None)])
