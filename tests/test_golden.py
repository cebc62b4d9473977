"""The library computes what version 0.1.0 did: see `golden.py`.

A short run by default, `GOLDEN_ALL=1 pytest tests/test_golden.py` compares all cases.
"""

import functools

import golden
import jax
import numpy as np
import pytest

import ebmlearn as ebm


# Values are compared here; PGMax and NumPyro warn.
pytestmark = pytest.mark.filterwarnings("ignore")
values = functools.cache(golden.read)


@pytest.mark.slow
@pytest.mark.parametrize("case", golden.chosen())
def test_the_same_values(case):
    found, wanted = golden.run(case), values()[case]
    assert sorted(found) == sorted(wanted)
    tol = golden.CASES[case].tol
    for leaf, want in wanted.items():
        if np.issubdtype(want.dtype, np.floating):
            np.testing.assert_allclose(found[leaf], want, rtol=tol, atol=tol, err_msg=leaf)
        else:
            np.testing.assert_array_equal(found[leaf], want, err_msg=leaf)


def test_every_value_has_a_case():
    assert set(values()) == set(golden.CASES)


@pytest.mark.parametrize("name", golden.SAVED)
def test_saved_models_load(name):
    model = golden.SAVED[name]()
    blank = jax.tree.map(lambda x: np.zeros_like(x), model)
    found = ebm.load(golden.saved(name), blank)
    assert ebm.training.load_info(golden.saved(name)) == {}
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(model), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
