# %% [markdown]
# # NumPyro: sampling a model with several modes, and a Bayesian RBM
#
# The samplers of ebmlearn are kernels of NumPyro's `MCMC`, and its models are distributions. So
# NumPyro's diagnostics, chains and warm-up work on Boltzmann machines, and a Boltzmann machine may
# be a part of a larger probabilistic program.
#
# We build an RBM whose modes Gibbs sampling cannot leave, see the diagnostics say so, and leave
# them with two tempered samplers. Then the weights themselves become random.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

import ebmlearn as ebm
from ebmlearn.numpyro import (
    EnergyDistribution,
    GibbsKernel,
    ParallelTemperingKernel,
    TemperedTransitionsKernel,
)


# %% [markdown]
# ## Two modes
#
# Two groups of visible units; each hidden unit likes one group lit and the other dark. All lit
# left, or all lit right: between these two lies a desert.

# %%
VISIBLE, HIDDEN = 12, 6
side = np.where(np.arange(VISIBLE) < VISIBLE // 2, 1.0, -1.0)
likes = np.where(np.arange(HIDDEN) < HIDDEN // 2, 1.0, -1.0)
weights = 2.2 * np.outer(side, likes)
bias = -weights.sum(1) / 2, -weights.sum(0) / 2 + 0.15 * likes  # the left one is the likelier
rbm = ebm.RBM(*(jnp.asarray(x, jnp.float32) for x in (weights, *bias)))

exact = ebm.Exact()(rbm)
print("P(v = 1), exactly:", np.round(exact.visible, 3))

# %% [markdown]
# ## Three kernels
#
# The model is an argument of the run: `mcmc.run(key, rbm)`. The sites are its units, `visible` and
# `hidden`. Tempered transitions heat a chain up and cool it down again within one step; parallel
# tempering keeps replicas at all temperatures and exchanges them.

# %%
kernels = {
    "Gibbs": GibbsKernel(),
    "tempered transitions": TemperedTransitionsKernel(np.linspace(0.1, 1, 40)),
    "parallel tempering": ParallelTemperingKernel(np.linspace(0, 1, 8)),
}
chains = {}
for name, kernel in kernels.items():
    mcmc = MCMC(
        kernel,
        num_warmup=200,
        num_samples=1000,
        num_chains=8,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), rbm)
    chains[name] = np.asarray(mcmc.get_samples(group_by_chain=True)["visible"])

# %% [markdown]
# The share of lit units on the left less that on the right says which mode a chain is in. $\hat R$
# near 1 means that chains agree with each other; the effective sample size, how many independent
# draws these 8,000 are worth.

# %%
truth = float((exact.visible * side).sum() / (VISIBLE // 2))
print(f"the mean is {truth:+.3f}")
figure, axes = plt.subplots(1, 3, figsize=(9, 2.6), layout="constrained", sharey=True)
found = {}
for ax, (name, x) in zip(axes, chains.items(), strict=True):
    place = (x * side).sum(-1) / (VISIBLE // 2)
    r_hat, size = split_gelman_rubin(place), effective_sample_size(place)
    found[name] = r_hat, place.mean()
    print(f"{name:22} R̂ {r_hat:6.2f}, worth {size:6.0f} draws, mean {place.mean():+.3f}")
    ax.plot(place[:4, :300].T, linewidth=0.7)
    ax.set_title(name, fontsize=10)
    ax.set_xlabel("step")
axes[0].set_ylabel("left less right")
assert found["Gibbs"][0] > 1.5
for name in ("tempered transitions", "parallel tempering"):
    assert found[name][0] < 1.1
    assert abs(found[name][1] - truth) < 0.15

# %% [markdown]
# Gibbs stays where it started, and $\hat R$ shows it. Where all chains start in one mode it would
# not: then only samplers that travel can tell.
#
# ## A model as a distribution
#
# `EnergyDistribution` hands a model to `numpyro.sample`. The normaliser has to be named: exact by
# enumeration here. An unnormalised density of latent parameters would be wrong without any sign of
# it, and is refused.

# %%
true = ebm.RBM(
    jnp.asarray([[3.0], [3.0], [-3.0], [0.0], [0.0]]),
    jnp.asarray([-1.5, -1.5, 1.5, 0.5, -0.5]),
    jnp.zeros(1),
)
data = EnergyDistribution(true, "exact", steps=200).sample(jax.random.key(1), (150,))
print("rows", data.shape, "means", np.round(data.mean(0), 2))


def bayesian(data):
    """An RBM with one hidden unit and normal priors; which sign it has is fixed by the first
    weight.
    """
    first = numpyro.sample("first", dist.HalfNormal(2.0))
    rest = numpyro.sample("rest", dist.Normal(0, 2.0).expand([4]).to_event(1))
    bias = numpyro.sample("bias", dist.Normal(0, 1.0).expand([5]).to_event(1))
    model = ebm.RBM(jnp.concatenate([first[None], rest])[:, None], bias, jnp.zeros(1))
    with numpyro.plate("rows", len(data)):
        numpyro.sample("v", EnergyDistribution(model, "exact"), obs=data)


mcmc = MCMC(NUTS(bayesian), num_warmup=300, num_samples=500, progress_bar=False)
mcmc.run(jax.random.key(2), data)
drawn = mcmc.get_samples()

# %%
weights = np.concatenate([drawn["first"][:, None], drawn["rest"]], 1)
plt.figure(figsize=(6, 2.6))
plt.violinplot(weights, showmedians=True)
plt.axhline(0, color="0.7", linewidth=0.8)
plt.xlabel("visible unit")
plt.ylabel("weight")
plt.title("Posterior of the weights of one hidden unit", fontsize=10)
low, high = np.quantile(weights, [0.05, 0.95], axis=0)
for unit, (a, b) in enumerate(zip(low, high, strict=True), 1):
    print(f"unit {unit}: 90% of the posterior between {a:+.1f} and {b:+.1f}")
assert low[0] > 0 and low[1] > 0 and high[2] < 0
assert (low[3:] < 0).all() and (high[3:] > 0).all()

# %% [markdown]
# The first three units hang together, and how firmly is known only so well from 150 rows; of the
# last two, which nothing joins to the others, the intervals include zero. For sites inside larger
# models there is `SamplerBlock`, which updates the units of a Boltzmann machine next to NUTS in
# `numpyro.infer.Gibbs`.
