# Wrong types are passed on purpose, to see the errors.
# pyright: reportArgumentType=false

"""Errors about nonnegative Boltzmann machines name the argument, what was expected and what came."""

import errors
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ebmlearn as ebm


pytestmark = pytest.mark.usefixtures("as_a_user")

KEY = jax.random.key(0)
W, B = np.eye(3, dtype=np.float32), np.zeros(3, np.float32)
SKEW = W + np.triu(np.full((3, 3), 0.1, np.float32), 1)
FLAT = np.diag(np.array([1, 0, 1], np.float32))
DIPPED = W - 1.5 * np.float32(np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]]))
HOLED = np.array([[0, 1, 0], [1, 0, 1], [0, 0, 0]], bool)
MODEL = ebm.NNBM(W, B)
ROWS = np.abs(np.random.default_rng(0).normal(size=(9, 3))).astype(np.float32)


def with_value(x, value):
    x = np.array(x)
    x.flat[4] = value
    return x


def learn(model, data):
    return ebm.MLE(ebm.TAP()).step(model, None, data, key=KEY, epoch=0)


# What is done wrong, the error, and three parts of its message: argument, expected, got.
CASES = {
    "symmetric": (lambda: ebm.NNBM(SKEW, B), ValueError, "`couplings`", "symmetric", "0.1"),
    "diagonal": (lambda: ebm.NNBM(FLAT, B), ValueError, "`couplings`", "positive diagonal", "entry of 0"),
    "copositive": (lambda: ebm.NNBM(DIPPED, B), ValueError, "`couplings`", "strictly copositive", r"-0.25 for x = \{0: 0.5, 2: 0.5\}"),
    "NaN": (lambda: ebm.NNBM(with_value(W, np.nan), B), ValueError, "`couplings`", "finite", "NaN"),
    "NaN bias": (lambda: ebm.NNBM(W, B + np.float32(np.nan)), ValueError, "`bias`", "finite", "NaN"),
    "shape": (lambda: ebm.NNBM(W, B[:2]), ValueError, "`bias`", r"\(3,\)", r"\(2,\)"),
    "mask": (lambda: ebm.NNBM(W, B, W), TypeError, "`edges`", "booleans", "float32"),
    "shape of mask": (lambda: ebm.NNBM(W, B, HOLED[:2]), ValueError, "`edges`", r"\(3, 3\)", r"\(2, 3\)"),
    "skew mask": (lambda: ebm.NNBM(W, B, HOLED), ValueError, "`edges`", "symmetric", r"\(1, 2\)"),
    "beyond the mask": (
        lambda: ebm.NNBM(W + np.float32(0.1), B, np.zeros((3, 3), bool)),
        ValueError, "`couplings`", "zero between units", "0.1 between 0 and 1",
    ),
    "states": (lambda: MODEL.energy(jnp.zeros(4)), ValueError, "`x`", "3", r"\(4,\)"),
    "beta": (lambda: MODEL.tempered(0.0), ValueError, "`beta`", r"\(0, inf\)", "0.0"),
    "negative data": (lambda: learn(MODEL, with_value(ROWS, -1)), ValueError, "`batch`", "not be negative", "-1.0 in row 1"),
    "data with NaN": (lambda: learn(MODEL, with_value(ROWS, np.nan)), ValueError, "`batch`", "finite", "nan in row 1"),
    "negative statistics": (
        lambda: ebm.learners.solve_moments(with_value(ROWS, -1), ebm.ISusP()), ValueError, "`statistics`", "not be negative", "-1.0",
    ),
    "NaN statistics": (
        lambda: ebm.learners.solve_moments(with_value(ROWS, np.nan), ebm.ISusP()), ValueError, "`statistics`", "finite", "nan",
    ),
    "a unit that is always the same": (
        lambda: ebm.learners.solve_moments(np.ones((9, 3), np.float32), ebm.ISusP()), ValueError, "`statistics`", "positive variance", "0 for unit 0",
    ),
    "booleans": (lambda: ebm.learners.solve_moments(np.ones((9, 3), bool), ebm.ISusP()), TypeError, "`statistics`", "real numbers", "bool"),
    "no covariances": (
        lambda: ebm.learners.solve_moments(ROWS, ebm.NaiveMeanField()), ValueError, "`inference`", "covariances", "NaiveMeanField",
    ),
    "inference of binary units": (
        lambda: ebm.learners.solve_moments(ROWS, ebm.BP(1)), TypeError, "`inference`", "ISusP", "BP",
    ),
    "BP": (lambda: ebm.BP(1)(MODEL), TypeError, "`model`", "that BP takes, binary", "NNBM of nonnegative units"),
    "TAP of an RBM": (lambda: ebm.TAP()(ebm.RBM.init(2, 2, key=KEY)), TypeError, "`model`", "that TAP takes, nonnegative", "RBM"),
    "evidence": (lambda: ebm.TAP()(MODEL, B, B > 0), ValueError, "`evidence`", "None", "NNBM"),
    "too many units": (
        lambda: ebm.Exact()(ebm.NNBM(np.eye(5, dtype=np.float32) + np.float32(0.1), np.zeros(5, np.float32))),
        ValueError, "`model`", "at most 4", "5",
    ),
    "maximum": (lambda: ebm.Exact(product="max")(MODEL), ValueError, "`product`", '"sum"', "'max'"),
    "damping": (lambda: ebm.TAP(damping=1.0), ValueError, "`damping`", r"\[0, 1\)", "1.0"),
    "iterations": (lambda: ebm.ISusP(iterations=-1), ValueError, "`iterations`", "negative", "-1"),
    "tol": (lambda: ebm.SusP(tol="x"), TypeError, "`tol`", r"\[0, inf\)", "'x'"),
    "method": (lambda: ebm.SusP(method="guess"), ValueError, "`method`", "'propagation'", "'guess'"),
    "start": (
        lambda: ebm.Gibbs().init(MODEL, 2, key=KEY, start=ebm.models.Units(-np.ones(3, np.float32))),
        ValueError, "start", "not be negative", "-1",
    ),
    "hot end": (
        lambda: ebm.ParallelTempering([0.0, 1.0]).init(MODEL, 2, key=KEY), ValueError, "`betas`", "positive", r"\[0.0, 1.0\]",
    ),
    "flips": (lambda: ebm.GibbsWithGradients().init(MODEL, 2, key=KEY), TypeError, "`model`", "binary", "NNBM"),
    "annealing": (lambda: ebm.ais(MODEL, key=KEY), TypeError, "`model`", "finitely many states", "NNBM"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_errors_name_what_is_wrong(name):
    assert len(CASES[name]) == 5
    errors.check(CASES[name])
