"""Posteriors of parameters whose log Z is not computed, against those with it."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

import ebmlearn as ebm
from ebmlearn.numpyro import EnergyDistribution, ExchangeKernel


KEY = jax.random.key(0)
RING = jnp.roll(jnp.eye(4), 1, 0) + jnp.roll(jnp.eye(4), -1, 0)
WEIGHTS = jnp.asarray([[1.0, -1.0], [0.5, 1.0], [-1.0, 0.3]])


@pytest.fixture(autouse=True)
def as_numpyro():
    """NumPyro is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def ising(coupling, field):
    return ebm.BoltzmannMachine.from_spins(coupling * RING, field * jnp.ones(4))


def rbm(coupling, field):
    return ebm.RBM(coupling * WEIGHTS, field * jnp.ones(3), jnp.zeros(2))


def model_of(build):
    def model(data):
        coupling = numpyro.sample("coupling", dist.Normal(0.0, 1.0))
        field = numpyro.sample("field", dist.Normal(0.0, 0.5))
        with numpyro.plate("rows", len(data)):
            d = EnergyDistribution(build(coupling, field), "exchange")
            numpyro.sample("x", d, obs=data)

    return model


def exact(build, data):
    """Means and standard deviations of both parameters, by quadrature."""
    a, b = np.meshgrid(np.linspace(-3, 4, 71), np.linspace(-2, 2, 41), indexing="ij")

    def log_p(coupling, field):
        d = EnergyDistribution(build(coupling, field), "exact")
        return d.log_prob(data).sum() - coupling**2 / 2 - 2 * field**2

    found = jax.jit(jax.vmap(log_p))(jnp.asarray(a.ravel()), jnp.asarray(b.ravel()))
    p = np.exp(np.asarray(found, float) - float(found.max()))
    p /= p.sum()
    means = [(p * x.ravel()).sum() for x in (a, b)]
    spread = [np.sqrt((p * (x.ravel() - m) ** 2).sum()) for x, m in zip((a, b), means, strict=True)]
    return means, spread


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "sampler"), [(ising, None), (rbm, ebm.Gibbs())], ids=["exchange", "double"]
)
def test_the_exact_posterior(build, sampler):
    truth = EnergyDistribution(build(0.7, 0.2), "exact", steps=50)
    data = np.asarray(truth.sample(KEY, (25,)))
    kernel = ExchangeKernel(model_of(build), sampler, steps=8)
    mcmc = MCMC(
        kernel, num_warmup=400, num_samples=1500, num_chains=4, chain_method="vectorized",
        progress_bar=False,
    )  # fmt: skip
    mcmc.run(KEY, data, extra_fields=("accept_prob", "potential_energy"))
    assert 0.15 < float(mcmc.get_extra_fields()["accept_prob"].mean()) < 0.6
    chains = mcmc.get_samples(group_by_chain=True)
    for name, mean, spread in zip(("coupling", "field"), *exact(build, data), strict=True):
        x = np.asarray(chains[name], float)
        size = effective_sample_size(x)
        assert size > 200
        assert abs(x.mean() - mean) < 5 * spread / np.sqrt(size)
        assert x.std() == pytest.approx(spread, rel=0.2)


@pytest.mark.slow
def test_only_the_exchange_kernel_takes_such_sites():
    data = jnp.zeros((3, 4), jnp.int32)
    with pytest.raises(ValueError, match=r"inside an `ExchangeKernel`"):
        MCMC(NUTS(model_of(ising)), num_warmup=1, num_samples=1, progress_bar=False).run(KEY, data)
    assert "exact draws" in repr(ExchangeKernel(model_of(ising)))

    def without():
        numpyro.sample("x", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match="EnergyDistribution"):
        ExchangeKernel(without).init(KEY, 0, None, (), {})


@pytest.mark.usefixtures("as_a_user")
def test_bad_input():
    with pytest.raises(TypeError, match="`model`"):
        ExchangeKernel(cast(Any, 3))
    for sampler in (ebm.ParallelTempering([0.0, 1.0]), ebm.PMP(5)):
        with pytest.raises(TypeError, match="`sampler` must be a sampler of single chains"):
            ExchangeKernel(model_of(ising), sampler)
    with pytest.raises(ValueError, match="`sampler` must have an inverse temperature of 1"):
        ExchangeKernel(model_of(ising), ebm.Gibbs(0.5))
    with pytest.raises(ValueError, match="`steps`"):
        ExchangeKernel(model_of(ising), ebm.Gibbs(), steps=0)
    with pytest.raises(ValueError, match=r"`init_params` must be a dictionary of .*, got \['w'\]"):
        rows = jnp.zeros((3, 4), jnp.int32)
        ExchangeKernel(model_of(ising)).init(KEY, 0, {"w": jnp.zeros(())}, (rows,), {})


def test_rows_that_do_not_count_are_refused():
    def masked(data):
        coupling = numpyro.sample("coupling", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(data)), numpyro.handlers.mask(mask=jnp.arange(3) < 2):
            numpyro.sample("x", EnergyDistribution(ising(coupling, 0.0), "exchange"), obs=data)

    def repeated(data):
        coupling = numpyro.sample("coupling", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 5):
            numpyro.sample("x", EnergyDistribution(ising(coupling, 0.0), "exchange"), obs=data[:1])

    for model in (masked, repeated):
        with pytest.raises(ValueError, match="must observe all rows of site 'x'"):
            ExchangeKernel(model).init(KEY, 0, None, (jnp.zeros((3, 4), jnp.int32),), {})
