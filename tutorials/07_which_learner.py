# %% [markdown]
# # Which learner when
#
# ebmlearn has a dozen learners, because none of them is best everywhere. Here they are compared on
# the same data twice: with an **unconditional** model, an RBM of pictures, and with a
# **conditional** one, a CRBM that cleans noisy pictures. Different learners win, and some fail.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import datasets, plotting


# %% [markdown]
# ## Bars and stripes
#
# The data are pictures of 4×4 pixels in which whole rows or whole columns are lit. There are 30 of
# them, all equally likely, so the best possible value is $\log \frac{1}{30} = -3.4$ nats per
# picture. Each picture is a mode that is far from the others.

# %%
SIDE = 4
lines = np.array(np.meshgrid(*[[0, 1]] * SIDE)).reshape(SIDE, -1).T
rows = np.repeat(lines[:, :, None], SIDE, 2).reshape(-1, SIDE**2)
columns = rows.reshape(-1, SIDE, SIDE).swapaxes(1, 2).reshape(-1, SIDE**2)
patterns = np.unique(np.concatenate([rows, columns]), axis=0)
rng = np.random.default_rng(0)
train = patterns[rng.integers(0, len(patterns), 1000)].astype(np.uint8)
plotting.images(patterns, (SIDE, SIDE), columns=15)

# %% [markdown]
# ## Unconditional: how likely is a picture?
#
# With ten hidden units `Exact` computes the likelihood, by a sum over 1,024 states, so we can
# compare the learners by it. Each gets the same number of steps and the same learning rate.

# %%
key = jax.random.key(0)
start = ebm.RBM.init(visible=SIDE**2, hidden=10, key=key, scale=0.1)
alone = start.with_unary((ebm.estimate.base_rate(train), jnp.zeros(10)))


@jax.jit
def log_probability(model):
    """Nats a picture, exactly."""
    return ebm.log_likelihood(model, patterns, ebm.Exact()(model).log_partition).mean()


def trained(learner, rate=0.02, epochs=60):
    """A model, and its log-probability after each epoch."""
    curve = []
    fitted = ebm.fit(
        start,
        learner,
        train,
        optimizer=optax.adam(rate),
        epochs=epochs,
        batch_size=100,
        callbacks=[lambda report: curve.append(float(log_probability(report.model)))],
        key=key,
        progress=False,
    )
    return fitted, curve


learners = {
    "exact maximum likelihood": ebm.MLE(ebm.Exact()),
    "SAP (PCD), 5 steps": ebm.SAP(num_chains=100, steps=5),
    "CD-1": ebm.CD(1),
    "pseudo-likelihood": ebm.PseudoLikelihood(),
    "MLE by belief propagation": ebm.MLE(ebm.BP(iterations=20)),
    "MLE by mean field": ebm.MLE(ebm.MeanField(iterations=20)),
}
curves, final, converged = {}, {}, {}
for name, learner in learners.items():
    fitted, curves[name] = trained(learner)
    final[name] = np.mean(curves[name][-10:])  # Chains make the curve of SAP noisy.
    print(f"{name:26} {final[name]:8.2f} nats", end="")
    if "converged" in fitted.history.epochs:  # Only learners that iterate can say so.
        converged[name] = fitted.history.epochs["converged"][-1]
        print(f", converged on {converged[name]:4.0%}", end="")
    print()
floor = float(log_probability(alone))
print(f"{'independent pixels':26} {floor:8.2f} nats")

# %%
plt.figure(figsize=(7, 3.2))
for name, curve in curves.items():
    plt.plot(np.maximum(curve, -30), label=name, linewidth=1.2)
plt.axhline(floor, color="0.4", linewidth=0.8, linestyle=":")
plt.axhline(-np.log(30), color="0.4", linewidth=0.8)
plt.xlabel("epoch")
plt.ylabel("nats a picture")
plt.legend(fontsize=8)

# %% [markdown]
# The results show:
#
# - Persistent chains (`SAP`), contrastive divergence and pseudo-likelihood all come close to exact
#   maximum likelihood on such small pictures. Only `SAP` follows the gradient of the likelihood, as
#   long as its chains keep up with the model. Start with `SAP`.
# - **Belief propagation and mean field fail here.** Without inputs, an RBM of such pictures has
#   many modes. Messages settle in one of them or in none, and the gradient misses the others. Check
#   `converged` in the history, which shows this.

# %%
for name in ("SAP (PCD), 5 steps", "CD-1", "pseudo-likelihood"):
    assert final[name] > floor + 3
for name in ("MLE by belief propagation", "MLE by mean field"):
    assert final[name] < final["SAP (PCD), 5 steps"] - 0.5
assert converged["MLE by belief propagation"] < 0.5

# %% [markdown]
# ## Chains that cannot follow
#
# Persistent chains must keep up with the model. With ten times the learning rate and one step
# between updates they do not: the model moves away from the states of its chains, the chains
# follow, and the model moves away again. Tempered transitions (`TransSAP`, tutorial 3) and slower
# rates help; `robbins_monro` is a schedule with a proof of convergence.

# %%
_, hurried = trained(ebm.SAP(num_chains=100), rate=0.2)
plt.figure(figsize=(7, 2.4))
plt.plot(curves["SAP (PCD), 5 steps"], label="rate 0.02, 5 steps")
plt.plot(np.maximum(hurried, -30), label="rate 0.2, 1 step")
plt.axhline(floor, color="0.4", linewidth=0.8, linestyle=":")
plt.xlabel("epoch")
plt.ylabel("nats a picture")
plt.legend(fontsize=8)
print(f"worst of the last twenty epochs: {min(hurried[-20:]):.1f} nats")
assert min(hurried[-20:]) < final["SAP (PCD), 5 steps"] - 2

# %% [markdown]
# ## Conditional: cleaning pictures
#
# For a noisy picture there is usually one good answer. Belief propagation works well on such
# models. Persistent chains do not apply, because each row has its own model.

# %%
NOISE = 0.15


def noisy(clean, *, key):
    """Pairs of noisy and clean pictures."""
    return datasets.flip(clean, NOISE, key=key), clean


clean = jnp.asarray(np.repeat(patterns, 40, axis=0).astype(np.uint8))
x, v = noisy(clean, key=jax.random.key(5))
conditional = {
    "logistic regression": (ebm.MLE(ebm.BP(iterations=1)), 0),
    "MLE by belief propagation": (ebm.MLE(ebm.BP(iterations=10)), 16),
    "MLE by mean field": (ebm.MLE(ebm.MeanField(iterations=10)), 16),
    "MSSVM": (ebm.MSSVM(ebm.BP(iterations=10, product="mixed")), 16),
    "CD-10": (ebm.CD(10, start="random"), 16),
    "CD-PercLoss": (ebm.PercLoss(10), 16),
}
errors = {}
for name, (learner, hidden) in conditional.items():
    fitted = ebm.fit(
        ebm.CRBM.init(visible=SIDE**2, hidden=hidden, features=SIDE**2, key=key, scale=0.1),
        learner,
        train,
        augment=noisy,
        optimizer=optax.adam(optax.cosine_decay_schedule(0.03, 600)),
        epochs=60,
        batch_size=100,
        key=key,
        progress=False,
    )
    errors[name] = float(ebm.error_rate(learner.predict(fitted.last, x), v))
    print(f"{name:26} {errors[name]:7.2%} of the pixels wrong")
print(f"{'left as it came':26} {float(ebm.error_rate(x, v)):7.2%}")
assert errors["MLE by belief propagation"] < errors["logistic regression"]

# %% [markdown]
# Belief propagation, which failed before, is now better than mean field and contrastive divergence.
# The max-margin learner, which minimises wrong pixels instead of maximising the likelihood, is
# better still. CD-PercLoss fails at this learning rate: it is worse than a model without hidden
# units.

# %% [markdown]
# ## A rule of thumb
#
# | you have | start with | because |
# |---|---|---|
# | inputs and outputs | `MLE(BP(...))`, then `MSSVM` | few modes given the inputs |
# | only data, and you want likelihood | `SAP`, `TransSAP` if stuck | close to the likelihood |
# | a need for fast samples | `PMPLearner` | it trains for the sampler that you will use |
# | queries to answer | `QueryTraining` | it trains for the inference that you will use |
# | a few hidden units | `MLE(Exact())` | it approximates nothing |
# | little time | `CD(1)`, `PseudoLikelihood` | they are fast |
# | nonnegative numbers | `solve_moments(ISusP())` | tutorial 6 |
#
# In all cases, `ais` and `reverse_ais` bracket the likelihood if it cannot be computed exactly, and
# a model should be queried with the inference that it was trained with.
