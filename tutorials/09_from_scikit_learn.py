# %% [markdown]
# # From scikit-learn's BernoulliRBM
#
# `sklearn.neural_network.BernoulliRBM` learns features of binary data by persistent contrastive
# divergence. `ebmlearn.sklearn.BernoulliRBM` replaces it, with the same arguments, methods and
# fitted attributes. It adds the rest of the library: other learners, likelihoods, samples, and
# queries about any unit given any others. This tutorial changes the import and continues from
# there. It needs the extra `sklearn`: `pip install "ebmlearn[sklearn]"`.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn import neural_network
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import Pipeline

import ebmlearn as ebm
from ebmlearn import plotting
from ebmlearn.sklearn import BernoulliRBM, RBMImputer


X, y = load_digits(return_X_y=True)
X = X / 16  # grey levels from 0 to 1, which an RBM takes as probabilities
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0)
print("train", X_train.shape, "test", X_test.shape)

# %% [markdown]
# ## Change the import
#
# The features of an RBM improve logistic regression. Both estimators have the same settings, and
# both run in a `Pipeline`.

# %%
settings = dict(n_components=100, learning_rate=0.06, n_iter=20, random_state=0)
pipelines = {
    name: Pipeline([("rbm", rbm), ("logistic", LogisticRegression(C=100, max_iter=500))])
    for name, rbm in {
        "scikit-learn": neural_network.BernoulliRBM(**settings),
        "ebmlearn": BernoulliRBM(**settings),
    }.items()
}
accuracy, likelihood = {}, {}
for name, pipeline in pipelines.items():
    pipeline.fit(X_train, y_train)
    accuracy[name] = pipeline.score(X_test, y_test)
    likelihood[name] = pipeline["rbm"].score_samples(X_test).mean()
    print(f"{name:13} accuracy {accuracy[name]:.3f}, pseudo-likelihood {likelihood[name]:.1f}")
assert accuracy["ebmlearn"] > accuracy["scikit-learn"] - 0.02

# %% [markdown]
# `components_`, `intercept_hidden_`, `intercept_visible_`, `transform`, `gibbs` and `partial_fit`
# mean the same. `score_samples` computes the whole pseudo-likelihood; scikit-learn estimates it
# from one random pixel of each row, so each call returns a different number.

# %%
rbm = pipelines["ebmlearn"]["rbm"]
hidden = rbm.transform(X_test)
assert hidden.shape == (len(X_test), 100)
assert (rbm.score_samples(X_test) == rbm.score_samples(X_test)).all()
figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
plotting.filters(rbm.model_, (8, 8), ax=ax)

# %% [markdown]
# ## Search for a learning rate
#
# `GridSearchCV` works as with any estimator.

# %%
search = GridSearchCV(
    BernoulliRBM(n_components=30, n_iter=5, batch_size=50, random_state=0),
    {"learning_rate": [0.02, 0.2]},
    scoring=lambda rbm, X, y=None: rbm.score_samples(X).mean(),
    cv=2,
    refit=False,
)
search.fit(X_train)
for rate, score in zip((0.02, 0.2), search.cv_results_["mean_test_score"], strict=True):
    print(f"learning rate {rate}: pseudo-likelihood {score:.1f}")
assert search.best_params_ == {"learning_rate": 0.2}

# %% [markdown]
# ## Another learner
#
# `learner` takes any learner of the library: contrastive divergence, maximum likelihood by belief
# propagation, stochastic approximation with tempering. The fitted model is an `RBM` in `model_`,
# which works with the rest of the library. Here annealed importance sampling estimates log Z, and
# from it the likelihood.

# %%
binary = (X > 0.5).astype(float)
b_train, b_test = binary[: len(X_train)], binary[len(X_train) :]
rbm = BernoulliRBM(50, learning_rate=0.05, n_iter=30, random_state=0, learner=ebm.CD(1))
model = rbm.fit(b_train).model_
log_z = ebm.ais(model, key=0, betas=300, num_chains=100).log_partition
likelihood = float(ebm.log_likelihood(model, b_test, log_z).mean())
mean = b_train.mean(0).clip(0.01, 0.99)
alone = (b_test * np.log(mean) + (1 - b_test) * np.log1p(-mean)).sum(1).mean()
print(f"log-likelihood of a test digit: {likelihood:.1f} nats")
print(f"with all pixels independent: {alone:.1f} nats")
assert likelihood > alone

# %% [markdown]
# ## Fill in missing values
#
# An RBM is a joint model of all pixels, so it can predict any of them given any others.
# `RBMImputer` trains an RBM for this (query training) and replaces missing values by their
# probabilities. Here 30% of the pixels are missing, also in the training digits.

# %%
rng = np.random.default_rng(0)
missing = rng.random(binary.shape) < 0.3
holes = np.where(missing, np.nan, binary)
imputer = RBMImputer(n_components=50, n_iter=50, random_state=0).fit(holes[: len(X_train)])
test, gaps = holes[len(X_train) :], missing[len(X_train) :]
filled = imputer.transform(test)


def log_loss(p):
    """Nats a missing pixel."""
    p = p.clip(0.01, 0.99)
    each = -(b_test * np.log(p) + (1 - b_test) * np.log1p(-p))
    return each[gaps].mean()


column_means = np.broadcast_to(np.nanmean(holes[: len(X_train)], axis=0), b_test.shape)
losses = {"column means": log_loss(column_means), "RBMImputer": log_loss(filled)}
for name, loss in losses.items():
    print(f"{name:13} {loss:.3f} nats a missing pixel")
assert losses["RBMImputer"] < 0.75 * losses["column means"]

# %%
figure, axes = plt.subplots(3, figsize=(8, 3), layout="constrained")
rows = {"original": b_test, "30% missing": np.nan_to_num(test, nan=0.5), "filled in": filled}
for ax, (name, images) in zip(axes, rows.items(), strict=True):
    plotting.images(images[:12], (8, 8), columns=12, ax=ax)
    ax.set_title(name, fontsize=9)

# %% [markdown]
# ## Next steps
#
# - `ebmlearn.sklearn.CRBMClassifier` predicts many binary outputs together, such as the pixels of a
#   clean image from a noisy one: tutorial 1 explains the model.
# - `model_` works with everything else: samplers, queries (tutorial 5), NumPyro (tutorial 3).
# - `ebm.fit` offers more than the estimators: any Optax optimizer, validation, checkpoints and
#   several devices (tutorials 7 and 8).
