# %% [markdown]
# # How many hidden units, and how good is my model?
#
# More hidden units fit the training data better, but not always new data. This tutorial trains RBMs
# of several sizes, chooses one by validation, and measures the chosen one: log Z with an interval,
# and from it the likelihood of test data.
#
# It needs the extras `data` and `plot`: `pip install "ebmlearn[data,plot]"`.

# %%
import matplotlib.pyplot as plt
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import datasets, plotting


data = datasets.digits()  # 8×8 binary images
train, valid, test = (np.asarray(part.x) for part in (data.train, data.valid, data.test))
print("train", train.shape, "valid", valid.shape, "test", test.shape)
figure, ax = plt.subplots(figsize=(8, 1), layout="constrained")
plotting.images(train[:20], (8, 8), columns=20, ax=ax)

# %% [markdown]
# ## Train several sizes
#
# `validation=` takes data and judges the model by them after each epoch. The default metric is
# minus the pseudo-log-likelihood: how well each pixel is predicted from all others, in nats an
# image. It needs no log Z, so it is fast, and it compares models of different sizes. `fit` returns
# the model of the best epoch.

# %%
fitted = {}
for hidden in (4, 16, 64, 256):
    fitted[hidden] = ebm.fit(
        ebm.RBM.init(visible=64, hidden=hidden),
        ebm.SAP(num_chains=100),
        train,
        optimizer=optax.adam(5e-3),
        epochs=60,
        batch_size=50,
        validation=valid,
    )
best = {hidden: run.history.epochs["metric"].min() for hidden, run in fitted.items()}
print({hidden: f"{metric:.2f} nats" for hidden, metric in best.items()})
assert best[4] > best[16] > best[64]

# %%
figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
for hidden, run in fitted.items():
    ax.plot(run.history.epochs["metric"], label=f"{hidden} hidden units")
ax.set(xlabel="epoch", ylabel="validation metric in nats", ylim=(16, 30))
ax.legend(frameon=False, loc="upper right")

# %% [markdown]
# While a model trains, the progress bar shows `gap`: the mean energy of the data minus the mean
# energy of what the model draws. It is far from 0 at first, and then varies around 0. It says
# whether the model still moves, not how good it is on new data: the metric says that.
#
# ## Compare the best two by likelihood
#
# The pseudo-likelihood hardly tells 64 hidden units from 256. It judges each pixel given its
# neighbours, so it does not notice whether whole images are right. The likelihood does, and needs
# log Z. `log_partition` estimates it with an interval of 95%, and takes some seconds.

# %%
log_z = {
    hidden: ebm.log_partition(fitted[hidden].model, within=0.2, beside=False)
    for hidden in (64, 256)
}
likelihood = {}
for hidden, z in log_z.items():
    likelihood[hidden] = float(ebm.log_likelihood(fitted[hidden].model, valid, z).mean())
    low, high = z.interval
    print(
        f"{hidden} hidden units: log Z {low:.2f} to {high:.2f},"
        f" log-likelihood of validation data {likelihood[hidden]:.2f} nats"
    )
    assert z.stopped == "within" and high - low < 0.4
chosen = max(likelihood, key=likelihood.get)
print(f"chosen: {chosen} hidden units")

# %% [markdown]
# ## Is log Z right?
#
# An RBM of 16 hidden units is small enough to enumerate, so we can check one estimate.

# %%
small = fitted[16].model
exact, estimate = float(ebm.Exact()(small).log_partition), ebm.log_partition(small, beside=False)
low, high = estimate.interval
print(f"exact {exact:.3f}, estimated {low:.3f} to {high:.3f}")
assert low - 0.05 < exact < high + 0.05

# %% [markdown]
# ## Report the test likelihood
#
# Only the chosen model sees the test data. Its mean log-likelihood has two errors: that of log Z,
# and that of so few test images. The second is far larger.

# %%
each = np.asarray(ebm.log_likelihood(fitted[chosen].model, test, log_z[chosen]))
error = each.std() / np.sqrt(len(each))
mean = train.mean(0).clip(0.01, 0.99)
alone = (test * np.log(mean) + (1 - test) * np.log1p(-mean)).sum(1).mean()
print(f"RBM of {chosen} hidden units: {each.mean():.2f} ± {1.96 * error:.2f} nats an image")
print(f"independent pixels: {alone:.2f} nats")
assert each.mean() - 3 * error > alone
