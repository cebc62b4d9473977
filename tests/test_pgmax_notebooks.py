"""PGMax's example notebooks, with generated weights and images: the results of PGMax itself."""

import warnings

import jax
import numpy as np
import pytest

from benchmarks.notebooks import notebooks


@pytest.fixture(autouse=True)
def as_pgmax():
    """PGMax is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["rbm", "ising", "grid_mrf", "deconvolution", "sdlp"])
def test_the_same_results(name):
    notebook = notebooks(small=True)[name]
    with warnings.catch_warnings():
        # Of numbers that are scattered into booleans, for instance.
        warnings.simplefilter("error", FutureWarning)
        pgmax, ours = notebook.pgmax()(), notebook.ours()()
    assert len(jax.tree.leaves(pgmax)) == len(jax.tree.leaves(ours)) > 0
    for a, b in zip(jax.tree.leaves(pgmax), jax.tree.leaves(ours), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)
