# Wrong types are passed on purpose, to see the errors.
# pyright: reportArgumentType=false

"""The estimators for scikit-learn, whose own checks are in `tests/estimators.py`."""

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import scipy.sparse
from scipy.special import expit
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import BernoulliRBM as Theirs
from sklearn.pipeline import make_pipeline

import ebmlearn as ebm
from ebmlearn.sklearn import (
    _bernoulli_rbm,
    BernoulliRBM,
    CRBMClassifier,
    RBMClassifier,
    RBMImputer,
)


# scikit-learn fits float64 in ways of its own.
pytestmark = pytest.mark.filterwarnings("default")


def stripes(rows, seed=0):
    """Rows of six units, of which neighbours agree."""
    return np.repeat(np.random.default_rng(seed).integers(0, 2, (rows, 3)), 2, axis=1).astype(float)


@pytest.fixture(scope="module")
def rbm():
    return BernoulliRBM(4, learning_rate=0.2, n_iter=60, random_state=0).fit(stripes(200))


@pytest.mark.slow
def test_rbm_learns_which_units_agree(rbm):
    agree = rbm.score_samples(stripes(50, seed=1))
    broken = stripes(50, seed=1)
    broken[:, 0] = 1 - broken[:, 0]
    assert agree.mean() > rbm.score_samples(broken).mean() + 2


@pytest.mark.slow
def test_rbm_has_the_methods_and_attributes_of_scikit_learn(rbm):
    """Given the parameters of ours, theirs says the same."""
    x = stripes(8, seed=2)
    theirs = Theirs(4).fit(x)
    theirs.components_ = rbm.components_
    theirs.intercept_hidden_ = rbm.intercept_hidden_
    theirs.intercept_visible_ = rbm.intercept_visible_
    np.testing.assert_allclose(rbm.transform(x), theirs.transform(x), atol=1e-6)
    assert rbm.gibbs(x).shape == theirs.gibbs(x).shape
    assert rbm.gibbs(x).dtype == theirs.gibbs(x).dtype
    # Theirs asks for one unit at random; on average over units it is the whole.
    scores = np.stack([theirs.score_samples(x) for _ in range(2000)])
    error = scores.std(0) / np.sqrt(len(scores))
    assert (np.abs(scores.mean(0) - rbm.score_samples(x)) < 5 * error + 1e-3).all()
    names = theirs.get_params()
    assert {name: BernoulliRBM().get_params()[name] for name in names} == Theirs().get_params()
    assert list(rbm.get_feature_names_out()) == [f"bernoullirbm{k}" for k in range(4)]


@pytest.mark.slow
def test_gibbs_draws_from_the_conditionals():
    """Each pixel of a step is 1 with its probability, the hidden units summed out."""
    model = oracle.random_rbm(np.random.default_rng(0), 3, 2, scale=1.0)
    rbm = BernoulliRBM(2, n_iter=1, random_state=0).fit(np.eye(3))
    rbm.model_ = model
    x = np.array([1.0, 0.0, 1.0])
    weights, b, c = (np.asarray(p) for p in (model.weights, model.visible_bias, model.hidden_bias))
    p = expit(x @ weights + c)
    expected = np.zeros(3)
    for h in np.ndindex(2, 2):
        chance = np.prod(np.where(h, p, 1 - p))
        expected += chance * expit(weights @ np.array(h) + b)
    drawn = rbm.gibbs(np.tile(x, (20000, 1))).mean(0)
    np.testing.assert_allclose(drawn, expected, atol=0.02)


@pytest.mark.slow
def test_partial_fit_is_a_step_of_gradient_descent():
    x = stripes(20)
    rbm = BernoulliRBM(2, learning_rate=0.5, random_state=0, learner=ebm.MLE(ebm.Exact()))
    before = rbm.partial_fit(x).model_

    def loss(model):
        log_z = ebm.Exact()(model).log_partition
        return -ebm.log_likelihood(model, jnp.asarray(x, jnp.float32), log_z).mean()

    gradient = jax.grad(loss)(before)
    after = rbm.partial_fit(x).model_
    for a, b, g in zip(*map(jax.tree.leaves, (after, before, gradient)), strict=True):
        np.testing.assert_allclose(a, b - 0.5 * g, atol=1e-5)


@pytest.mark.slow
def test_rbm_takes_any_learner_grey_levels_and_sparse_rows():
    x = stripes(60) * 0.8 + 0.1
    for learner in (ebm.CD(1), ebm.MLE(ebm.BP(3))):
        rbm = BernoulliRBM(3, n_iter=2, random_state=0, learner=learner).fit(x)
        assert np.isfinite(rbm.components_).all()
    sparse = scipy.sparse.csr_array(stripes(60))
    rbm = BernoulliRBM(3, n_iter=2, random_state=0)
    dense = rbm.fit(stripes(60)).components_
    np.testing.assert_array_equal(rbm.fit(sparse).components_, dense)
    np.testing.assert_allclose(rbm.transform(sparse), rbm.transform(stripes(60)), atol=1e-12)


def test_another_learning_rate_compiles_nothing():
    x = stripes(60)
    BernoulliRBM(3, n_iter=1, learning_rate=0.1).fit(x)
    compiled: Any = _bernoulli_rbm._epoch
    before = compiled._cached._cache_size()
    BernoulliRBM(3, n_iter=2, learning_rate=0.2).fit(x)
    assert compiled._cached._cache_size() == before


def test_learning_rate_that_diverges_is_noticed():
    with pytest.raises(FloatingPointError, match="smaller `learning_rate` than 1e\\+39"):
        BernoulliRBM(3, learning_rate=1e39, learner=ebm.CD(1)).fit(stripes(60))


@pytest.mark.slow
def test_rbm_warns_of_rows_that_are_not_scaled():
    with pytest.warns(UserWarning, match=r"should lie in \[0, 1\], got 0 to 16"):
        BernoulliRBM(2, n_iter=1).fit(stripes(20) * 16)


def test_estimators_refuse_wrong_settings(as_a_user):
    x = stripes(20)
    with pytest.raises(ValueError, match="`n_components` must be at least 1, got 0"):
        BernoulliRBM(0).fit(x)
    with pytest.raises(ValueError, match=r"`learning_rate` must lie in \(0, inf\), got 0"):
        RBMImputer(learning_rate=0).fit(x)
    with pytest.raises(TypeError, match="`learner` must be a learner such as `CD"):
        BernoulliRBM(learner="cd").fit(x)
    with pytest.raises(TypeError, match="`threshold` must be a number"):
        RBMClassifier(threshold="8").fit(x, x[:, 0])
    with pytest.raises(ValueError, match="two classes per output, got 3 in output 1"):
        CRBMClassifier().fit(x, np.stack([x[:, 0], np.arange(20) % 3], 1))


@pytest.mark.slow
def test_pipeline_search_clone_and_pickle(rbm):
    x = stripes(60)
    y = (x[:, 0] == x[:, 4]).astype(int)
    pipeline = make_pipeline(
        BernoulliRBM(3, n_iter=2, random_state=0, learner=ebm.CD(1)), LogisticRegression()
    )
    search = GridSearchCV(pipeline, {"bernoullirbm__learning_rate": [0.01, 0.1]}, cv=2)
    assert search.fit(x, y).best_score_ > 0.3
    copy: Any = clone(rbm)
    assert not hasattr(copy, "model_")
    np.testing.assert_array_equal(copy.fit(stripes(200)).components_, rbm.components_)
    again = pickle.loads(pickle.dumps(rbm))
    np.testing.assert_array_equal(again.transform(x), rbm.transform(x))


@pytest.mark.slow
def test_classifier_predicts_outputs_together():
    x = stripes(200)
    noisy = np.where(np.random.default_rng(1).random(x.shape) < 0.1, 1 - x, x)
    names = np.array(["off", "on"])[x.astype(int)]
    classifier = CRBMClassifier(8, n_iter=30, random_state=0).fit(noisy, names)
    predicted = classifier.predict(noisy)
    assert (predicted != names).mean() < (noisy != x).mean()
    p = classifier.predict_proba(noisy)
    np.testing.assert_array_equal(np.array(["off", "on"])[(p > 0.5).astype(int)], predicted)
    one = CRBMClassifier(2, n_iter=5, random_state=0).fit(noisy, names[:, 0])
    assert one.predict(noisy).shape == (200,)
    np.testing.assert_allclose(one.predict_proba(noisy).sum(1), 1, atol=1e-6)
    margin = CRBMClassifier(learner=ebm.MSSVM(ebm.BP(3, product="mixed")))
    assert not hasattr(margin, "predict_proba")


def test_label_probabilities_are_those_of_the_joint_model():
    """The hidden units and the label are enumerated."""
    x, names = stripes(40) * 3, np.array(["b", "a", "c"])
    y = names[np.arange(40) % 3]
    classifier = RBMClassifier(3, threshold=2.0, n_iter=3, learning_rate=0.3, random_state=0)
    found = classifier.fit(x, y).predict_proba(x)
    m, v = classifier.model_, (x > 2).astype(float)
    w, u, b, c, d = (
        np.asarray(p, float)
        for p in (m.weights, m.label_weights, m.visible_bias, m.hidden_bias, m.label_bias)
    )
    hidden = np.array(list(np.ndindex(2, 2, 2)), float)
    scores = (v @ w + c) @ hidden.T  # [rows, configurations]
    joint = np.exp((scores + (v @ b)[:, None])[:, None, :] + (u @ hidden.T + d[:, None])[None])
    p = joint.sum(-1)
    np.testing.assert_allclose(found, p / p.sum(1, keepdims=True), atol=1e-5)
    np.testing.assert_array_equal(classifier.predict(x), np.sort(names)[found.argmax(1)])


@pytest.mark.slow
def test_label_classifier_learns_what_logistic_regression_cannot():
    x = np.random.default_rng(0).integers(0, 2, (300, 4)).astype(float)
    y = np.where(x[:, 0] == x[:, 1], "same", "other")
    classifier = RBMClassifier(
        16, learning_rate=0.03, random_state=0, learner=ebm.MLE(ebm.Exact())
    ).fit(x, y)
    assert classifier.score(x, y) > 0.95 > 0.7 > LogisticRegression().fit(x, y).score(x, y)
    one = RBMClassifier(2, n_iter=1, random_state=0).fit(x, np.zeros(300))
    np.testing.assert_array_equal(one.predict_proba(x), np.ones((300, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("couplings", [False, True])
def test_imputer_fills_in_what_neighbours_tell(couplings):
    x = stripes(300)
    holes = np.where(np.random.default_rng(1).random(x.shape) < 0.3, np.nan, x)
    settings: dict[str, Any] = dict(n_iter=60, learning_rate=0.05, iterations=4, random_state=0)
    imputer = RBMImputer(8, couplings=couplings, **settings)
    filled = imputer.fit(holes).transform(holes)
    missing = np.isnan(holes)
    np.testing.assert_array_equal(filled[~missing], x[~missing])
    partner = np.flip(np.isnan(holes).reshape(-1, 3, 2), -1).reshape(-1, 6)
    told = missing & ~partner
    assert (np.abs(filled - x)[told] < 0.2).mean() > 0.95
    # What nobody tells stays open.
    assert (np.abs(filled - 0.5)[missing & partner] < 0.3).mean() > 0.8


@pytest.mark.slow
def test_imputer_keeps_the_range_of_a_column():
    x = np.c_[stripes(50) * 10 - 5, np.full(50, 3.0), np.full(50, np.nan)]
    x[::3, 0] = np.nan
    x[1, 6] = np.nan
    filled = RBMImputer(2, n_iter=2, iterations=2, random_state=0).fit_transform(x)
    assert ((filled[:, 0] >= -5) & (filled[:, 0] <= 5)).all()
    assert filled[1, 6] == 3.0
    assert (filled[:, 7] == 0).all()


def test_gibbs_takes_what_fit_takes(rbm):
    rows = stripes(3)
    assert rbm.gibbs(scipy.sparse.csr_matrix(rows)).shape == rows.shape
    with pytest.raises(ValueError, match="NaN"):
        rbm.gibbs(np.full((1, 6), np.nan))


@pytest.mark.slow
def test_partial_fit_goes_on_counting_epochs():
    """Also after `fit`: a schedule of the learner follows them."""
    learner = ebm.MLE(lambda epoch: ebm.MeanField(1 + 3 * epoch))
    x = stripes(20)
    found = BernoulliRBM(3, learning_rate=0.1, n_iter=2, random_state=0, learner=learner).fit(x)
    found.model_ = oracle.random_rbm(np.random.default_rng(1), 6, 3, scale=2.0)
    for epoch in (2, 3):
        before = found.model_
        found.partial_fit(x)
        for at in (0, epoch):
            gradient, *_ = learner.step(before, None, jnp.asarray(x), key=0, epoch=at)
            want = before.weights - 0.1 * gradient.weights
            same = np.allclose(found.model_.weights, want, atol=1e-6)
            assert same == (at == epoch)


def test_partial_fit_with_another_learner():
    found = BernoulliRBM(2, n_iter=3, random_state=0)
    assert found.fit(stripes(20)).n_iter_ == 3
    before = found.set_params(learner=ebm.CD(1)).components_
    found.partial_fit(stripes(20))
    assert (found.components_ != before).any()
    assert found.n_iter_ == 4
    assert BernoulliRBM(2).partial_fit(stripes(20)).n_iter_ == 1


@pytest.mark.slow
def test_predictions_are_those_of_the_last_epoch():
    """With another number of sweeps in each epoch."""
    x = stripes(20)
    learner = ebm.MLE(lambda epoch: ebm.BP(1 + epoch))
    found = CRBMClassifier(6, n_iter=4, random_state=0, learner=learner, learning_rate=0.1).fit(
        x, x
    )
    model = found.model_.condition(x.astype(np.float32))
    want, other = (np.asarray(ebm.BP(n)(model).visible) for n in (4, 1))
    assert np.abs(want - other).max() > 1e-5
    np.testing.assert_allclose(found.predict_proba(x), want, atol=1e-6)
    np.testing.assert_array_equal(found.predict(x), want > 0.5)
