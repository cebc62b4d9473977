# %% [markdown]
# # Ask anything: query training and in-painting
#
# A generative model can answer any question of the form *given these pixels, what are the others?*
# Usually it is trained by maximum likelihood and queried with an approximate inference that was not
# part of training, so two errors add up. **Query training** (Lázaro-Gredilla et al. 2021) trains
# for the questions themselves. It treats a fixed number of layers of belief propagation as a
# network, removes random pixels, and backpropagates the error of their predictions into the
# parameters of the model.
#
# We train one RBM on 8×8 digits and query it for single pixels, for blocks and for halves.

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
# A `QueryModel` is a model together with its inference: a number of layers of belief propagation,
# the temperature of the messages, the strength of evidence, and a scale of the output log-odds. Any
# Optax optimizer can train these numbers and the parameters of the model. `RandomTargets(0.5)`
# removes each pixel with probability one half.

# %%
key = jax.random.key(0)
start = ebm.QueryModel(ebm.RBM.init(visible=64, hidden=32, key=key), iterations=10)
queries = ebm.queries.RandomTargets(0.5)

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
# The metric after each epoch is the **normalised cross-entropy** of the validation rows: the bits
# per missing pixel that remain unknown given the other pixels. Guessing with a coin gives one bit.

# %%
ax = plotting.history(trained.history, "metric")
ax.set(ylabel="bits a pixel", title="Queries on validation rows")

# %% [markdown]
# ## Against maximum likelihood
#
# The same RBM is trained by persistent contrastive divergence and queried in two ways: with belief
# propagation, and with Gibbs sampling that clamps the observed pixels.

# %%
rbm = ebm.RBM.init(visible=64, hidden=32, key=key)
rbm = rbm.with_unary((ebm.estimate.base_rate(train), *rbm.unary()[1:]))
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
# The model was trained on scattered pixels. Now we query it for other targets: the lower half, the
# right half, a block in the middle. `query` takes a mask for each row. It needs no `inference`,
# because the model has its own.

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
# Grey pixels of an answer are uncertain. Each pixel has its own probability; `joint_query` gives
# the joint probability of several pixels by the chain rule.

# %%
observed = jnp.asarray(masks["lower half"].reshape(64))
joint = ebm.joint_query(model, rows, observed, targets=[34, 35])
apart = ebm.query(model, rows, observed=observed, targets=[34, 35])
print("together:", np.round(joint[0, 1, 1], 3), " as if independent:", np.round(apart[0].prod(), 3))
np.testing.assert_allclose(joint.sum((1, 2)), 1, atol=1e-5)

# %% [markdown]
# ## Train for the queries that you will ask
#
# Blocks are harder than scattered pixels, because the nearest pixels are missing too. A model that
# is trained on blocks is better on blocks and worse on scattered pixels. You can also train with
# mixtures of distributions, with fixed inputs and outputs, and with your own functions
# (`MixedTargets`, `FixedTargets`).

# %%
blocks = ebm.queries.BlockTargets(image=(8, 8), block=(4, 4))
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
