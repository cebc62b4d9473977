# Wrong arguments are passed on purpose, to see the errors.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

"""What a newcomer types first: it works, or the error says what to write."""

import jax
import numpy as np
import pytest

import ebmlearn as ebm


pytestmark = pytest.mark.usefixtures("as_a_user")

RBM = ebm.RBM.init(4, 3, key=0)
X = np.zeros((10, 4))
GUESSES = {
    "RBM(784, 500)": (
        lambda: ebm.RBM(784, 500),
        "write `RBM.init(visible=784, hidden=500, key=0)`",
    ),
    "RBM(visible=784, hidden=500)": (
        lambda: ebm.RBM(visible=784, hidden=500),
        "write `RBM.init(visible=784, hidden=500, key=0)`",
    ),
    "LayeredModel(3)": (lambda: ebm.LayeredModel(3), "write `LayeredModel.init({"),
    "rbm.fit(X)": (lambda: RBM.fit(X), "write `ebmlearn.fit(model, learner, data)`"),
    "rbm.sample(10)": (
        lambda: RBM.sample(10),
        "write `ebmlearn.sample(model, ebmlearn.Gibbs(), 1000, key=0)`",
    ),
    "rbm.predict(X)": (lambda: RBM.predict(X), "write `ebmlearn.predict(model, features, "),
    "rbm.save(path)": (lambda: RBM.save("x.ebm"), "write `ebmlearn.save(path, model)`"),
    "rbm.nothing": (lambda: RBM.nothing, "`RBM` has no attribute `nothing`."),
    "sample(rbm, 10)": (
        lambda: ebm.sample(RBM, 10),
        "`sample` is missing the argument `num_samples`: write `sample(model, Gibbs(), 1000,"
        " key=0)`.",
    ),
    "sample(rbm, 10, 20, key=0)": (
        lambda: ebm.sample(RBM, 10, 20, key=0),
        "`sampler` must be a sampler such as `Gibbs()`, got 10 of type int: write `sample(",
    ),
    "sample(rbm, Gibbs())": (
        lambda: ebm.sample(RBM, ebm.Gibbs()),
        "`sample` is missing the argument `num_samples`: write `sample(",
    ),
    "sample(rbm, Gibbs(), 10, seed=0)": (
        lambda: ebm.sample(RBM, ebm.Gibbs(), 10, seed=0),
        "`sample` has no argument `seed`: write `sample(model, Gibbs(), 1000, key=0)`.",
    ),
    "sample(..., with_info=True)": (
        lambda: ebm.sample(RBM, ebm.Gibbs(), 10, with_info=True),
        "`sample` has no argument `with_info`: write `samples, info = sample_with_info(",
    ),
    "query(..., with_info=True)": (
        lambda: ebm.query(RBM, None, with_info=True),
        "`query` has no argument `with_info`: write `inference(model, evidence, observed)",
    ),
    "hamming": (
        lambda: ebm.hamming,
        "`ebmlearn.hamming` has moved: write `ebmlearn.learners.hamming`.",
    ),
    "RandomTargets": (
        lambda: ebm.RandomTargets(0.5),
        "`ebmlearn.RandomTargets` has moved: write `ebmlearn.queries.RandomTargets`.",
    ),
    "predict(rbm, X)": (
        lambda: ebm.predict(RBM, X),
        "`predict` is missing the argument `inference`: write `predict(",
    ),
    "fit(rbm, X)": (
        lambda: ebm.fit(RBM, X),
        "`fit` is missing the argument `data`: write `fit(model, learner, data)`.",
    ),
    "fit(rbm, X, X)": (lambda: ebm.fit(RBM, X, X), "`learner` must be a learner such as `MLE(BP"),
    "save(rbm, path)": (lambda: ebm.save(RBM, "x.ebm"), "write `save(path, model)`"),
}


@pytest.mark.parametrize("guess", GUESSES)
def test_what_to_write_instead(guess):
    call, answer = GUESSES[guess]
    with pytest.raises((TypeError, AttributeError)) as found:
        call()
    assert answer in str(found.value)


@pytest.mark.parametrize(
    "model",
    [
        RBM,
        ebm.CRBM.init(4, 3, 2, key=0),
        ebm.DBM.init(4, (3, 2), key=0),
        ebm.BoltzmannMachine.init(4, key=0),
        ebm.SemiRestrictedBM.init(4, 3, key=0, labels=3),
        ebm.GaussianRBM.init(4, 3, key=0),
        ebm.NNBM.init(3, key=0, edges=~np.eye(3, dtype=bool)),
        ebm.QueryModel(ebm.RBM.init(4, 3, key=0), 6),
        ebm.GridMRF.init((3, 2), 3, {"seen": np.zeros((3, 2), np.float32)}, key=0),
        ebm.LayeredModel.init(
            {"visible": ebm.Categorical(3, 4), "hidden": ebm.Nonnegative(2)},
            [("visible", "hidden")],
            key=0,
        ),
        {"two": (ebm.RBM.init(2, 2, key=1), 0.5)},
    ],
    ids=lambda model: type(model).__name__,
)
def test_load_without_like(model, tmp_path):
    ebm.save(tmp_path / "model.ebm", model)
    found = ebm.load(tmp_path / "model.ebm")
    assert jax.tree.structure(found) == jax.tree.structure(model)
    jax.tree.map(np.testing.assert_array_equal, found, model)


def test_load_of_what_the_library_does_not_know(tmp_path):
    path = tmp_path / "key.ebm"
    ebm.save(path, {"key": jax.random.key(0)})
    with pytest.raises(
        TypeError, match=r"`like` must be given for .* write `load\(path, like=tree"
    ):
        ebm.load(path)
