# %% [markdown]
# # Nonnegative data: a Boltzmann machine of concentrations
#
# Concentrations, counts per second, firing rates: many measurements cannot be negative, and pile up
# near zero. A **nonnegative Boltzmann machine** (NNBM) is a quadratic energy on numbers that are
# zero or more, $E(x) = \frac12 x^\top W x - b^\top x$. It looks like a Gaussian, yet has no closed
# normaliser, may have several modes, and $W$ need not even be positive definite: copositive is
# enough.
#
# We learn one of 178 wines of three growers, 13 measurements each, by **improved susceptibility
# propagation** (I-SusP), and check it by sampling.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

import ebmlearn as ebm


jax.config.update("jax_enable_x64", True)
wine = load_wine()
rows = wine.data / wine.data.std(0)  # each measurement in units of its spread
print(rows.shape, "least value", rows.min().round(3))

# %% [markdown]
# ## First, a model that we can solve
#
# With two units the integrals can be done by quadrature, and `Exact` does them. Four approximations
# stand beside it: naive mean field, TAP, and susceptibility propagation in two forms. The last one
# asks that variances found in two ways agree, and so corrects the first order.

# %%
pair = ebm.NNBM(jnp.asarray([[1.0, 0.6], [0.6, 1.2]]), jnp.asarray([0.8, 0.5]))
exact = ebm.Exact()(pair)
print(f"{'exact':16} mean {np.round(exact.mean, 4)}, covariance {exact.covariance[0, 1]:.4f}")
for name, inference in {
    "naive mean field": ebm.NaiveMeanField(),
    "TAP": ebm.TAP(),
    "SusP": ebm.SusP(),
    "I-SusP": ebm.ISusP(),
}.items():
    beliefs = inference(pair)
    covariance = beliefs.covariance[0, 1]
    print(f"{name:16} mean {np.round(beliefs.mean, 4)}, covariance {covariance:.4f}")
    assert beliefs.converged
error = np.abs(np.asarray(ebm.ISusP()(pair).mean - exact.mean)).max()
assert error < np.abs(np.asarray(ebm.NaiveMeanField()(pair).mean - exact.mean)).max()

# %% [markdown]
# ## Learning is solving
#
# At a maximum of the likelihood the model's means and second moments are those of the data.
# `solve_moments` solves these equations directly, as the inference sees them; gradient ascent would
# crawl, since couplings of correlated data pull against each other.

# %%
match = ebm.solve_moments(rows, ebm.ISusP())
print("converged", bool(match.converged))
model = match.model.project()  # copositive for certain
assert match.converged

# %% [markdown]
# ## Does it hold?
#
# Gibbs sampling draws each unit from a truncated normal distribution given the others. Its samples
# know nothing of the approximation that the model was learned by, so that they are a fair judge.

# %%
samples = ebm.sample(
    model, ebm.Gibbs(), 4000, key=jax.random.key(0), num_chains=500, burn_in=2000, thin=50
)
x = np.asarray(samples.x)
apart = np.abs(np.corrcoef(x.T) - np.corrcoef(rows.T))
print(f"means are off by {np.abs(x.mean(0) - rows.mean(0)).max():.3f} spreads at most,")
print(f"correlations by {apart.max():.3f}")
assert (x >= 0).all()
assert apart.max() < 0.1

# %%
pairs = [(0, 12), (5, 6), (6, 11)]
shown = {"data": rows, "samples": x[: len(rows)]}
figure, axes = plt.subplots(2, 3, figsize=(8, 5), layout="constrained", sharex="col", sharey="col")
for column, (i, j) in enumerate(pairs):
    for ax, (name, points) in zip(axes[:, column], shown.items(), strict=True):
        ax.scatter(points[:, i], points[:, j], s=6)
        ax.set_title(name, fontsize=9)
    axes[1, column].set_xlabel(wine.feature_names[i])
    axes[0, column].set_ylabel(wine.feature_names[j][:20])

# %% [markdown]
# The correlations are there; the three growers, which are three clouds in the data, have become
# one: a single quadratic form has no way to keep them apart. That is what a model of second moments
# can and cannot say.
#
# ## The same model elsewhere
#
# - `ebmlearn.numpyro.NNBMGibbsKernel` runs inside `numpyro.infer.MCMC`, and `EnergyDistribution`
#   gives the model to NUTS with nonnegative support.
# - `fit(nnbm, MLE(ISusP()), ...)` and `SAP()` follow gradients where data stream in.
# - `ebmlearn.pgmax.NNBMFactorGroup` puts units on a grid into a graph of PGMax.
