# %% [markdown]
# # NumPyro: sampling a model with several modes, and a Bayesian RBM
#
# The samplers of ebmlearn are kernels for NumPyro's `MCMC`, and its models are NumPyro
# distributions. NumPyro's diagnostics, chains and warm-up therefore work on Boltzmann machines, and
# a Boltzmann machine can be part of a larger probabilistic program.
#
# We build an RBM with two modes that Gibbs sampling cannot leave, and see it in the diagnostics.
# Two tempered samplers do leave them. Then we infer the weights of an RBM from data.

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
# There are two groups of visible units. Each hidden unit prefers one group lit and the other dark.
# So either all units on the left are lit, or all on the right; everything between is unlikely.

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
# `hidden`. Tempered transitions heat a chain and cool it again within one step. Parallel tempering
# keeps replicas at all temperatures and swaps them.

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
# The share of lit units on the left minus that on the right says which mode a chain is in. $\hat R$
# near 1 means that the chains agree with each other. The effective sample size is the number of
# independent draws that these 8,000 are worth.

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
# Gibbs sampling stays in the mode where it started, and $\hat R$ shows it. If all chains started in
# the same mode, $\hat R$ would not show it; only samplers that move between modes would.
#
# ## A model as a distribution
#
# `EnergyDistribution` makes a model a distribution for `numpyro.sample`. You must say how to
# normalise it; here `"exact"` enumerates. Without a normaliser the density of latent parameters
# would be wrong, so `EnergyDistribution` raises an error.

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
# The first three units are coupled; the intervals show how well 150 rows determine the strength.
# The last two units are coupled to nothing, and their intervals include zero. For sites inside
# larger models, `SamplerBlock` updates the units of a Boltzmann machine next to NUTS in
# `numpyro.infer.Gibbs`.
