# %% [markdown]
# # Classify with a label layer
#
# An RBM with a label layer models images and their labels together. It classifies, as logistic
# regression does, and it also draws images of a class. This tutorial does both with the 8×8 digits.
#
# It needs the extras `sklearn` and `plot`: `pip install "ebmlearn[sklearn,plot]"`.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import ebmlearn as ebm
from ebmlearn import plotting
from ebmlearn.sklearn import RBMClassifier


X, y = load_digits(return_X_y=True)
X = (X > 7).astype(int)  # binary pixels
figure, ax = plt.subplots(figsize=(8, 2), layout="constrained")
plotting.images(X[:40], (8, 8), columns=20, ax=ax)

# %% [markdown]
# ## Train it
#
# `RBMClassifier` is a scikit-learn estimator. It trains a `SemiRestrictedBM` with label units by
# `SAP`, with a learning rate that falls to 0 as a cosine. The learning rate matters most: with a
# constant one the weights keep moving at random, and three points of accuracy are lost.
#
# We compare it with logistic regression on the same pixels, for five splits of the data.

# %%
accuracy = {"RBMClassifier": [], "LogisticRegression": []}
for seed in range(5):
    X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=seed)
    for classifier in (RBMClassifier(random_state=seed), LogisticRegression(max_iter=2000)):
        fitted = classifier.fit(X_train, y_train)
        accuracy[type(classifier).__name__].append(fitted.score(X_test, y_test))
        if isinstance(classifier, RBMClassifier):
            model = classifier.model_
for name, found in accuracy.items():
    each = " ".join(f"{x:.3f}" for x in found)
    print(f"{name:20} {np.mean(found):.3f} (splits: {each})")
assert np.mean(accuracy["RBMClassifier"]) > np.mean(accuracy["LogisticRegression"])

# %% [markdown]
# ## The model inside
#
# `model_` works with the rest of the library. `ebmlearn.classify` returns the probability of each
# label. It compares the free energies of all labels, so it is exact.

# %%
p = np.asarray(ebm.classify(model, X_test))
sure = p.max(1) > 0.99
right = p.argmax(1) == y_test
print(
    f"{sure.mean():.0%} of the test digits have a label above 0.99: {right[sure].mean():.1%} right"
)
print(f"the others: {right[~sure].mean():.1%} right")
assert right[sure].mean() > right[~sure].mean()

# %% [markdown]
# Without the estimator, the same training is one call of `fit`:
#
# ```python
# model = ebm.SemiRestrictedBM.init(visible=64, hidden=200, labels=10)
# steps = 300 * (len(X_train) // 50)
# fitted = ebm.fit(
#     model,
#     ebm.SAP(num_chains=100),
#     (X_train, y_train),
#     optimizer=optax.adam(optax.cosine_decay_schedule(0.01, steps)),
#     epochs=300,
#     batch_size=50,
# )
# ```

# %% [markdown]
# ## Draw digits of a class
#
# Chains whose label is held draw images of that class. Each column below has one label.

# %%
labels = np.tile(np.arange(10), 3)
start = model.named((None, None, labels[:, None]))  # visible, hidden, label
held = model.named((None, None, np.ones(1, bool)))
drawn = ebm.sample(
    model, ebm.Gibbs(), 30, num_chains=30, burn_in=2000, start=start, clamped=held, key=0
)
figure, ax = plt.subplots(figsize=(6, 2), layout="constrained")
plotting.images(drawn.visible, (8, 8), columns=10, ax=ax)
logistic = LogisticRegression(max_iter=2000).fit(X_train, y_train)
found = logistic.score(np.asarray(drawn.visible), labels)
print(f"logistic regression reads the wanted class in {found:.0%} of the draws")
assert found > 0.6

# %% [markdown]
# The chains start from noise and hold their label for 2000 steps. Some draws are of no clear class:
# short chains do not reach all modes. The tutorial "Is my sampler lying to me?" shows how to notice
# this, and what to do.
