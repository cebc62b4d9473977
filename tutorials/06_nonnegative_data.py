# %% [markdown]
# # Nonnegative data: a Boltzmann machine of concentrations
#
# Concentrations, counts per second, firing rates: many measurements cannot be negative and are
# often close to zero. A **nonnegative Boltzmann machine** (NNBM) has a quadratic energy on
# nonnegative numbers, $E(x) = \frac12 x^\top W x - b^\top x$. Unlike a Gaussian, it has no closed
# form for its normaliser, it may have several modes, and $W$ need not be positive definite: it is
# enough if $W$ is copositive.
#
# We fit an NNBM to 13 measurements of 178 wines from three growers by **improved susceptibility
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
# With two units, `Exact` computes the integrals by quadrature. We compare it with four
# approximations: naive mean field, TAP, and two forms of susceptibility propagation. The last one,
# I-SusP, is more accurate because it makes two estimates of each variance agree.

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
# ## Learning
#
# At a maximum of the likelihood, the means and second moments of the model equal those of the data.
# `solve_moments` solves these equations directly, with the moments of the inference. Gradient
# ascent would be slow, because the data are strongly correlated.

# %%
match = ebm.learners.solve_moments(rows, ebm.ISusP())
print("converged", bool(match.converged))
model = match.model.project()  # copositive for certain
assert match.converged

# %% [markdown]
# ## Checking the model
#
# Gibbs sampling draws each unit from a truncated normal distribution given the others. It does not
# use the approximation that the model was learned with, so its samples are a fair test.

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
# The samples have the correlations of the data. The three growers are three clouds in the data but
# only one in the samples: this model matches means and second moments, and here these do not
# separate the clouds.
#
# ## The same model elsewhere
#
# - `ebmlearn.numpyro.NNBMGibbsKernel` runs in `numpyro.infer.MCMC`, and NUTS can sample an
#   `EnergyDistribution` of the model.
# - `fit` trains an NNBM with `MLE(ISusP())` or `SAP()` by gradients, also from batches of data.
# - `ebmlearn.pgmax.NNBMFactorGroup` puts quantised units into a PGMax graph.
