# %% [markdown]
# # Ask anything: query training and in-painting
#
# A generative model answers any question of the kind *given these pixels, what are the others?* As
# a rule it is trained by maximum likelihood, and asked by an approximate inference that it has
# never met in training: two errors that add up. **Query training** (Lázaro-Gredilla et al. 2021)
# trains for the questions themselves. Belief propagation of a fixed number of layers is a network;
# random pixels are taken away, the network is asked for them, and the error goes back through all
# its layers into the parameters of the model.
#
# We train one RBM on 8×8 digits and ask it for single pixels, for blocks and for halves.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import datasets, plotting


data = datasets.digits()
train, valid, test = (split.x for split in data)
print(train.shape, valid.shape, test.shape)

# %% [markdown]
# ## Training
#
# A `QueryModel` is a model together with the inference that answers for it: so many layers of
# belief propagation, the temperature of its messages, how strong evidence is, and a scale of the
# log-odds that come out. All of them are parameters, and any Optax optimiser may train them.
# `RandomTargets(0.5)` takes away each pixel with probability one half.

# %%
key = jax.random.key(0)
start = ebm.QueryModel(ebm.RBM.init(visible=64, hidden=32, key=key), iterations=10)
queries = ebm.RandomTargets(0.5)

trained = ebm.fit(
    start,
    ebm.QueryTraining(queries),
    train,
    optimizer=optax.adam(0.01),
    epochs=40,
    batch_size=100,
    validation=valid,
    key=key,
    progress=False,
)
model = trained.model
print(f"temperature {model.temperature:.2f}, scale {model.scale:.2f}, evidence {model.strength}")

# %% [markdown]
# The metric after each epoch is the **normalised cross-entropy** of the validation rows: how many
# bits of a missing pixel are not known, given the pixels that are left. One bit is what a coin
# knows.

# %%
ax = plotting.history(trained.history, "metric")
ax.set(ylabel="bits a pixel", title="Queries on validation rows")

# %% [markdown]
# ## Against maximum likelihood
#
# The same RBM trained by persistent contrastive divergence, and asked in two ways: by belief
# propagation and by Gibbs sampling with the given pixels held.

# %%
rbm = ebm.RBM.init(visible=64, hidden=32, key=key)
rbm = rbm.with_unary((ebm.base_rate(train), *rbm.unary()[1:]))
likelihood = ebm.fit(
    rbm,
    ebm.SAP(num_chains=100),
    train,
    optimizer=optax.sgd(optax.linear_schedule(0.1, 0.0, 80 * 11)),
    epochs=80,
    batch_size=100,
    key=key,
    progress=False,
).last

ask = jax.random.key(7)
by_queries = ebm.query_entropy(model, test, queries, key=ask)
by_bp = ebm.query_entropy(likelihood, test, queries, ebm.BP(iterations=5), key=ask)
by_gibbs = ebm.query_entropy(likelihood, test, queries, ebm.Gibbs(), key=ask)
for name, found in (
    ("query training", by_queries),
    ("maximum likelihood, BP", by_bp),
    ("maximum likelihood, Gibbs", by_gibbs),
):
    print(f"{name:28} {found.value:.3f} ± {found.standard_error:.3f} bits")
assert by_queries.value < min(by_bp.value, by_gibbs.value)

# %% [markdown]
# ## In-painting
#
# The model was trained on scattered pixels, and is asked for other things now: the lower half, the
# right half, a block in the middle. `query` takes a mask for each row and needs no inference: the
# model brings its own.

# %%
at = np.arange(64).reshape(8, 8)
masks = {
    "lower half": at // 8 < 4,
    "right half": at % 8 < 4,
    "a block": ~((at // 8 >= 2) & (at // 8 < 6) & (at % 8 >= 2) & (at % 8 < 6)),
}
rows = test[[3, 15, 40, 77, 120, 200]]
figure, axes = plt.subplots(1 + len(masks), figsize=(6, 5), layout="constrained")
plotting.images(rows, (8, 8), ax=axes[0]).set_title("original", fontsize=9)
for ax, (name, mask) in zip(axes[1:], masks.items(), strict=True):
    observed = jnp.asarray(mask.reshape(64))
    answers = ebm.query(model, rows, observed=observed)
    plotting.marginals(answers, (8, 8), observed=observed, ax=ax)
    ax.set_title(f"{name} asked for, the rest known (blue)", fontsize=9)

# %% [markdown]
# Grey pixels of an answer are honest: they say *either*. Each pixel is answered on its own; for
# several pixels together there is the chain rule.

# %%
observed = jnp.asarray(masks["lower half"].reshape(64))
joint = ebm.joint_query(model, rows, observed, targets=[34, 35])
apart = ebm.query(model, rows, observed=observed, targets=[34, 35])
print("together:", np.round(joint[0, 1, 1], 3), " as if independent:", np.round(apart[0].prod(), 3))
np.testing.assert_allclose(joint.sum((1, 2)), 1, atol=1e-5)

# %% [markdown]
# ## Which questions it was trained for matters
#
# Blocks are harder than scattered pixels, since what is nearest is missing too. A model that is
# trained for blocks does better on them, and worse on scattered pixels: ask for what you will need.
# Mixtures of distributions, fixed inputs and outputs, and functions of your own are there too
# (`MixedTargets`, `FixedTargets`).

# %%
blocks = ebm.BlockTargets(image=(8, 8), block=(4, 4))
specialist = ebm.fit(
    start,
    ebm.QueryTraining(blocks),
    train,
    optimizer=optax.adam(0.01),
    epochs=40,
    batch_size=100,
    validation=valid,
    key=key,
    progress=False,
).model
table = {
    (name, asked): ebm.query_entropy(m, test, q, key=ask).value
    for name, m in (("scattered", model), ("blocks", specialist))
    for asked, q in (("scattered", queries), ("blocks", blocks))
}
print(f"{'trained for':12} {'scattered':>10} {'blocks':>10}")
for name in ("scattered", "blocks"):
    print(f"{name:12} {table[name, 'scattered']:10.3f} {table[name, 'blocks']:10.3f}")
assert table["blocks", "blocks"] < table["scattered", "blocks"]
assert table["scattered", "scattered"] < table["blocks", "scattered"]
