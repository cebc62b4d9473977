# %% [markdown]
# # Is my sampler lying to me?
#
# Chains that never leave one part of a distribution look fine: pictures are sharp, energies are
# steady, averages settle. They are averages of the wrong distribution. This tutorial shows how to
# find out, what to use instead, and how to tell the same during training.
#
# The model is small enough to be solved exactly, so that we can see who is right.

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import datasets, plotting


digits = datasets.digits().train
chosen = digits.y < 2
images, labels = np.asarray(digits.x)[chosen], np.asarray(digits.y)[chosen]
centres = np.stack([images[labels == k].mean(0) for k in (0, 1)])
plotting.images(np.concatenate([images[:14], centres]), (8, 8), columns=16)

# %% [markdown]
# An RBM with eight hidden units learns zeros and ones, by its exact gradient. `trajectory=16` keeps
# models along the way, from independent pixels to the result. We need them later.

# %%
start = ebm.RBM.init(visible=64, hidden=8, key=0)
fitted = ebm.fit(
    start,
    ebm.MLE(ebm.Exact()),
    images,
    optimizer=optax.adam(0.02),
    epochs=150,
    batch_size=60,
    trajectory=16,
    progress=False,
)
rbm = fitted.model
exact = ebm.Exact()(rbm)
print(f"{len(fitted.trajectory)} models, log Z = {exact.log_partition:.3f}")

# %% [markdown]
# ## Gibbs sampling
#
# Twenty chains start from zeros, twenty from ones, and twenty from noise. `jumps` counts how often
# a chain moves to the other digit and stays there for ten sweeps.

# %%
CHAINS, STEPS = 20, 1000
zeros, ones = (images[labels == k][:CHAINS] for k in (0, 1))


def states(sampler, begin):
    """Visible units along chains, `[steps, chains, pixels]`."""
    drawn = ebm.sample(
        rbm,
        sampler,
        CHAINS * STEPS,
        key=1,
        num_chains=CHAINS,
        start=None if begin is None else ebm.Layers(begin, None),
    )
    return np.asarray(drawn.visible).reshape(STEPS, CHAINS, 64)


def report(name, x):
    """Returns the jumps of a chain, and how far the means of pixels are from the exact ones."""
    jumps = float(ebm.samplers.jumps(x, centres).mean())
    error = np.abs(x[STEPS // 5 :].mean((0, 1)) - exact.visible).max()
    print(f"{name:<32} {jumps:6.2f} jumps a chain, largest error of a pixel {error:.3f}")
    return jumps, error


gibbs = {
    name: states(ebm.Gibbs(), begin)
    for name, begin in (("zeros", zeros), ("ones", ones), ("noise", None))
}
stuck = {name: report(f"Gibbs from {name}", x) for name, x in gibbs.items()}
plotting.images(np.concatenate([x[::100, 0] for x in gibbs.values()]), (8, 8), columns=10)

# %% [markdown]
# Each row of the picture is one chain, a hundred sweeps apart. Every image is a fine digit, and
# yet chains from zeros and from ones describe two different models. One start alone would not tell.
# So give `sample` rows of data as `start`, and ask it to check: it runs as many chains from noise,
# and warns if the two disagree.

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    ebm.sample(
        rbm,
        ebm.Gibbs(),
        2000,
        key=2,
        num_chains=100,
        burn_in=100,
        start=ebm.Layers(images[labels == 0][:100], None),
        check=True,
    )
print(caught[0].message)
assert "still disagree" in str(caught[0].message)

# %% [markdown]
# ## Samplers that cross
#
# **Parallel tempering** runs replicas at higher temperatures and swaps neighbours. **Trajectory
# tempering** runs them on the models of the trajectory: there the two digits grow out of one cloud,
# as they did in training. `adapt_trajectory` keeps only the models that are needed.

# %%
trajectory = ebm.samplers.adapt_trajectory(rbm, fitted.trajectory, key=3)
samplers = {
    "parallel tempering": ebm.ParallelTempering(np.linspace(0, 1, len(trajectory))),
    "trajectory tempering": ebm.TrajectoryTempering(trajectory),
}
print(f"{len(trajectory)} replicas each")
crossing = {name: report(f"{name} from zeros", states(s, zeros)) for name, s in samplers.items()}
assert crossing["trajectory tempering"][0] > 20 * (stuck["zeros"][0] + 0.05)
assert crossing["trajectory tempering"][1] < 0.1 < stuck["zeros"][1]

# %% [markdown]
# `equilibrium` says the same in numbers, without a solution at hand. It runs chains from data and
# from noise and projects them on slow modes, the leading singular vectors of the weights: the
# **autocorrelation time** is the number of steps that are worth one independent draw, **R-hat** is
# 1 for chains that have mixed, and the **gap** is the distance between the means of the two groups
# in standard errors.

# %%
print(f"{'':<22} {'steps a draw':>12} {'R-hat':>8} {'gap':>6}")
found = {}
for name, sampler in {"Gibbs": ebm.Gibbs(), **samplers}.items():
    found[name] = ebm.equilibrium(rbm, sampler, images[labels == 0], key=4, modes=3)
    parts = (found[name].autocorrelation_times, found[name].r_hat, found[name].gaps)
    time, r_hat, gap = (float(x.max()) for x in parts)
    print(f"{name:<22} {time:12.1f} {r_hat:8.2f} {gap:6.1f}   reached: {found[name].reached}")
assert not found["Gibbs"].reached
assert found["trajectory tempering"].reached

# %% [markdown]
# ## Log Z
#
# Likelihoods need log Z, and an estimate of it can lie in the same way. `log_partition` runs
# replicas from independent units to the model, adds up the ratios of neighbours by Bennett's
# acceptance ratio, and doubles its work until the interval of 95% is within 0.05 nats. Annealing in
# both directions and MBAR check it.

# %%
log_z = ebm.log_partition(rbm, key=5, within=0.05, beside=False)
print(f"exact {exact.log_partition:.3f}, interval {np.round(log_z.interval, 3)}, {log_z.stopped}")
for name, estimate in log_z.estimates.items():
    print(f"  {name:<12} {estimate.log_partition:.3f} ± {estimate.standard_error:.3f}")
print(f"log-likelihood {ebm.log_likelihood(rbm, images, log_z).mean():.2f} nats")
assert abs(log_z.log_partition - exact.log_partition) < 0.1
assert log_z.stopped == "within"

# %% [markdown]
# ## During training
#
# Learners with chains, such as persistent contrastive divergence (PCD), need chains that follow the
# model. With `Validation(equilibrium=True)`, `fit` compares chains from data with chains from noise
# at each validation. Here the metric is the exact log-likelihood, so that we see what PCD makes of
# it.


# %%
def loss(model, rows, epoch):
    """The exact negative log-likelihood."""
    return -ebm.log_likelihood(model, rows, ebm.Exact()(model).log_partition).mean()


pcd = ebm.fit(
    start,
    ebm.PCD(num_chains=100),
    np.tile(images, (6, 1)),
    optimizer=optax.adam(0.02),
    epochs=30,
    batch_size=60,
    validation=ebm.Validation(images, loss, equilibrium=True),
    progress=False,
)
told = pcd.history.validations
fig, axes = plt.subplots(1, 3, figsize=(11, 2.6))
names = {"autocorrelation_time": "steps a draw", "r_hat": "R-hat", "metric": "loss, nats"}
for ax, (name, label) in zip(axes, names.items(), strict=True):
    ax.plot(told["step"], told[name])
    ax.set(xlabel="step", ylabel=label, yscale="linear" if name == "metric" else "log")
fig.tight_layout()
metric, r_hat = told["metric"], told["r_hat"]
apart = np.median(metric[r_hat > 2])
print(f"exact gradient {loss(rbm, images, 0):.2f} nats")
print(f"PCD {metric[0]:.2f} at first, {metric.max():.2f} at worst, {apart:.2f} if R-hat is above 2")
assert told["autocorrelation_time"].max() > 20 * told["autocorrelation_time"][0]
assert apart < np.median(metric)
assert metric.max() > metric[0] + 2 and r_hat[metric.argmax()] < 1.5

# %% [markdown]
# The three curves belong together. Where R-hat peaks the model has both digits: its loss is mostly
# low, and chains do not cross. The chains of PCD are then in the wrong proportion, the gradient
# moves the model away from the digit with too many of them, and it falls into the other one. Such a
# model is worse than the first one and easy to sample, so R-hat is 1 again.
#
# An R-hat of 1 therefore says that chains agree, not that the model is good. Peaks during training
# say that the gradient is that of chains that remember where they came from. To let chains cross
# while the model learns, write `SAP(TrajectoryTempering(Trajectory.start(rbm, images)))`: its
# trajectory grows with training.
