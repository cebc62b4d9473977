# %% [markdown]
# # Quick start: clean noisy digits with a conditional RBM
#
# A **conditional restricted Boltzmann machine** (CRBM) predicts many binary outputs at once, here
# the pixels of a clean digit, from inputs, here a noisy copy. Hidden units connect the outputs, so
# that the model predicts whole strokes. This tutorial trains a CRBM by maximum likelihood with
# belief propagation (Ping & Ihler 2017), measures its errors, and looks at its beliefs.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import datasets, plotting


data = datasets.digits()  # 8x8 binary images, which come with scikit-learn
NOISE = 0.15


def noisy(clean, *, key):
    """Pairs of noisy and clean digits, with new noise at each call."""
    return datasets.flip(clean, NOISE, key=key), clean


valid = noisy(jnp.asarray(data.valid.x), key=jax.random.key(1))
x, v = noisy(jnp.asarray(data.test.x), key=jax.random.key(2))
print("train", data.train.x.shape, "valid", data.valid.x.shape, "test", v.shape)

# %% [markdown]
# ## Model, learner, fit
#
# A **model** is an Equinox module whose fields are its parameters. A **learner** turns a model and
# a batch into a gradient; `MLE(BP(iterations=10))` estimates the gradient of the likelihood by ten
# sweeps of belief propagation. **`fit`** passes that gradient to any Optax optimizer. `augment`
# draws new noise for every batch, `average` keeps a running mean of the parameters.

# %%
learner = ebm.MLE(ebm.BP(iterations=10))
crbm = ebm.CRBM.init(visible=64, hidden=64, features=64, key=jax.random.key(0))
steps = 30 * (len(data.train.x) // 50)
fitted = ebm.fit(
    crbm,
    learner,
    data.train.x,
    augment=noisy,
    optimizer=optax.adam(optax.cosine_decay_schedule(1e-2, steps)),
    average=0.99,
    epochs=30,
    batch_size=50,
    validation=valid,
    key=jax.random.key(3),
    progress=False,
)

# %% [markdown]
# ## How well does it do?
#
# The error is the share of wrong pixels. The second column counts only the pixels that the noise
# flipped. Logistic regression is the same model without hidden units.

# %%
regression = ebm.fit(
    ebm.CRBM.init(visible=64, hidden=0, features=64, key=jax.random.key(0)),
    ebm.MLE(ebm.BP(iterations=1)),
    data.train.x,
    augment=noisy,
    optimizer=optax.adam(optax.cosine_decay_schedule(1e-2, steps)),
    average=0.99,
    epochs=30,
    batch_size=50,
    validation=valid,
    key=jax.random.key(3),
    progress=False,
)
found = {
    "noisy": np.asarray(x),
    "logistic regression": np.asarray(
        ebm.predict(regression.model, x, inference=ebm.BP(iterations=1))
    ),
    "CRBM": np.asarray(learner.predict(fitted.model, x)),
}
errors = {}
for name, guess in found.items():
    errors[name] = float(ebm.error_rate(guess, v))
    changed = float(ebm.error_rate(guess, v, where=x != v))
    print(f"{name:20} {errors[name]:7.2%} of all pixels, {changed:7.2%} of the flipped ones")
assert errors["CRBM"] < errors["logistic regression"] < errors["noisy"]

# %%
figure, axes = plt.subplots(4, figsize=(9, 4), layout="constrained")
for ax, (name, images) in zip(axes, {"original": np.asarray(v), **found}.items(), strict=True):
    plotting.images(images[:12], (8, 8), columns=12, ax=ax)
    ax.set_title(name, fontsize=9)

# %% [markdown]
# ## Beliefs
#
# `condition` turns a CRBM and some inputs into plain RBMs, one for each row. An **inference** turns
# these into beliefs: the probabilities of all units, log Z, and whether the messages converged.

# %%
beliefs = ebm.BP(iterations=100, tol=1e-4)(fitted.model.condition(x[:5]))
print("converged", beliefs.converged, "after", beliefs.iterations, "sweeps")
print("least certain pixels:", np.round(np.abs(beliefs.visible - 0.5).min(1) + 0.5, 3))
assert beliefs.converged.all()

# %% [markdown]
# Small models need no approximation: `Exact` sums over all states of the smaller layer. Here it
# checks belief propagation on an RBM with eight hidden units.

# %%
small = ebm.RBM.init(visible=64, hidden=8, key=jax.random.key(4), scale=0.3)
exact, approximate = ebm.Exact()(small), ebm.BP(iterations=200, tol=1e-6)(small)
gap = np.abs(np.asarray(exact.visible - approximate.visible)).max()
print(f"largest error of a probability {gap:.1e}")
print(f"log Z {exact.log_partition:.4f}, by belief propagation {approximate.log_partition:.4f}")
assert gap < 0.05

# %% [markdown]
# ## Next steps
#
# - Replace `MLE` by another learner: `MSSVM` and `LSSVM` (max-margin), `CD`, `PercLoss`. Tutorial 7
#   compares them all.
# - `fit(..., checkpoint="folder")` resumes a stopped run bit for bit: tutorial 8.
# - The same models work in NumPyro (tutorial 3) and in PGMax graphs (tutorial 2).
