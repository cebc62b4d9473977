# Containers that type checkers do not know are passed on purpose.
# pyright: reportArgumentType=false

"""Data as people have them: what `fit` and `query` make of each container."""

import h5py
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import ebmlearn as ebm


pytestmark = pytest.mark.usefixtures("as_a_user")

X = np.random.default_rng(0).integers(0, 2, (12, 4)).astype(np.float32)
RBM = ebm.RBM.init(4, 3, key=0)


class Tensor:
    """An array of another library, which NumPy can read."""

    def __array__(self, dtype=None, copy=None):
        return X


class Exchanged:
    """An array of another library, which exchanges memory."""

    def __dlpack__(self, **options):
        return X.__dlpack__(**options)

    def __dlpack_device__(self):
        return X.__dlpack_device__()


class Frame:
    """A data frame of another library."""

    def to_numpy(self):
        return X


class Loader:
    """Batches, one after the other."""

    def __iter__(self):
        return iter([X[:6], X[6:]])


class Dataset:
    """A table that gives its columns as arrays if it is asked."""

    def with_format(self, kind):
        return self


CONTAINERS = {
    "an array": lambda folder: X,
    "integers": lambda folder: X.astype(int),
    "booleans": lambda folder: X.astype(bool),
    "an array of JAX": lambda folder: jnp.asarray(X),
    "lists": lambda folder: X.tolist(),
    "a tuple of lists": lambda folder: tuple(X.tolist()),
    "a data frame": lambda folder: pd.DataFrame(X),
    "a data frame of integers that may be missing": lambda folder: pd.DataFrame(X).astype("Int64"),
    "a sparse matrix": lambda folder: scipy.sparse.csr_matrix(X),
    "a sparse array": lambda folder: scipy.sparse.coo_array(X),
    "a masked array": lambda folder: np.ma.masked_array(X, np.zeros_like(X, bool)),
    "what NumPy can read": lambda folder: Tensor(),
    "what exchanges memory": lambda folder: Exchanged(),
    "another data frame": lambda folder: Frame(),
    "a file of h5py": lambda folder: h5py.File(folder / "x.h5", "w").create_dataset("x", data=X),
    "a memory map": lambda folder: _mapped(folder / "x.npy"),
}


def _mapped(path):
    np.save(path, X)
    return np.load(path, mmap_mode="r")


def fit(data, **options):
    settings = dict(epochs=1, batch_size=6, progress=False)
    return ebm.fit(RBM, ebm.MLE(ebm.MeanField(3)), data, **{**settings, **options}).model


@pytest.fixture(scope="module")
def wanted():
    return fit(X)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_are_taken(name, wanted, tmp_path):
    data = CONTAINERS[name](tmp_path)
    found = fit(data)
    np.testing.assert_array_equal(found.weights, wanted.weights)
    answer = ebm.query(RBM, data, np.ones(4, bool), ebm.MeanField(3))
    np.testing.assert_array_equal(answer, X)


def test_loaders_are_gone_through():
    assert np.isfinite(fit(Loader(), batch_size=None).weights).all()
    assert np.isfinite(fit([X[:6], X[6:]], batch_size=None).weights).all()


@pytest.mark.slow
def test_missing_values_of_data_frames():
    gaps = X.copy()
    gaps[0, 1] = gaps[3, 2] = np.nan
    frames = {
        "floats": pd.DataFrame(gaps),
        "integers": pd.DataFrame(gaps).astype("Int64"),
        "objects": pd.DataFrame(gaps).astype(object).where(~np.isnan(gaps), None),
        "masked": np.ma.masked_array(X, np.isnan(gaps)),
        "lists": [[None if np.isnan(x) else x for x in row] for row in gaps.tolist()],
    }
    by_array = fit(gaps)
    assert not np.array_equal(by_array.weights, fit(X).weights)
    for data in frames.values():
        np.testing.assert_array_equal(fit(data).weights, by_array.weights)


@pytest.mark.slow
def test_a_pair_for_a_crbm():
    crbm = ebm.CRBM.init(4, 3, 4, key=0)
    learner = ebm.MLE(ebm.BP(3))
    both = [
        ebm.fit(crbm, learner, pair, epochs=1, batch_size=6, progress=False).model.weights
        for pair in ((X, X), (pd.DataFrame(X), X.tolist()))
    ]
    np.testing.assert_array_equal(*both)


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        ([["a", "b"]] * 2, "convert text to numbers"),
        (pd.DataFrame({"a": ["x", "y"]}), "convert text to numbers"),
        ([[0, 1], [0]], "rows of one length, got rows of [1, 2] numbers"),
        (Dataset(), 'dataset.with_format("numpy")["pixels"][:]'),
        (7, "`data` must be an array, a tuple of arrays, or an iterable of batches, got 7"),
    ],
)
def test_what_cannot_be_taken(data, answer):
    with pytest.raises((TypeError, ValueError)) as found:
        fit(data)
    assert answer in str(found.value)


@pytest.mark.slow
def test_defaults_of_fit():
    few = ebm.fit(RBM, ebm.MLE(ebm.MeanField(3)), X, progress=False)
    assert len(few.history.epochs["gap"]) == 10 and len(few.history.steps["gap"]) == 10
    many = ebm.fit(RBM, ebm.MLE(ebm.MeanField(3)), np.tile(X, (20, 1)), epochs=1, progress=False)
    assert len(many.history.steps["gap"]) == 2
