"""What the compiler and float32 make of the formulas, against NumPy in float64. `test_numerics.py`
runs these tests as users compile.
"""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import ebmlearn as ebm
from benchmarks.precision import MAGNITUDES, problem
from ebmlearn.messages import _edge


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (16, 33), (784, 500)])
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_are_compiled_right(shape, axis):
    # Some releases of JAX get log1p(x) - log1p(-x) wrong under a sum on the CPU. These are the
    # reductions that the library uses.
    rng = np.random.default_rng(0)
    x = np.exp(5 * rng.uniform(-1, 1, size=shape)).astype(np.float32)
    want = np.log(x.astype(np.float64)).sum(axis)
    got = jax.jit(_edge.log_product, static_argnums=1)(x, axis)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-5)
    x = 300 * rng.normal(size=shape).astype(np.float32)
    coarse, rest = jax.jit(_edge.total, static_argnums=1)(x, axis)
    sum_ = np.asarray(coarse, np.float64) + np.asarray(rest, np.float64)
    np.testing.assert_allclose(sum_, x.astype(np.float64).sum(axis), atol=1e-6)


def test_sums_keep_what_cancels():
    rng = np.random.default_rng(1)
    large = rng.uniform(-500, 500, size=(400, 3)).astype(np.float32)
    small = rng.normal(size=(5, 3)).astype(np.float32)
    x = np.concatenate([large, -large[rng.permutation(400)], small])
    coarse, rest = jax.jit(_edge.total, static_argnums=1)(x, 0)
    np.testing.assert_allclose(coarse + rest, x.astype(np.float64).sum(0), atol=2e-6)


@pytest.mark.parametrize("w", [0.0, 1e-3, -0.7, 4.0, -12.0, 500.0])
@pytest.mark.parametrize("t", [0.0, 1e-3, 2.0, -30.0, 500.0, -1e30])
def test_messages(w, t):
    a, b = np.float64(w), np.float64(max(t, -1e4))
    # log(1 + e^(t + w)) - log(e^t + e^w), shifted so that nothing overflows.
    sum_product = np.logaddexp(0, a + b) - np.logaddexp(a, b)
    w, t = jnp.float32(w), jnp.float32(t)
    np.testing.assert_allclose(_edge.soft(w, t), sum_product, rtol=1e-5, atol=1e-6)
    max_product = np.maximum(0, a + b) - np.maximum(a, b)
    np.testing.assert_allclose(_edge.hard(w, t), max_product, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("w", [0.0, -0.7, 3.0])
@pytest.mark.parametrize("t", [0.5, -2.0])
def test_gradients_of_messages(w, t):
    with oracle.x64(True):
        w, t, step = jnp.asarray(w), jnp.asarray(t), 1e-6
        for fn in (_edge.soft, _edge.hard):
            got = jax.grad(fn, (0, 1))(w, t)
            slopes = (
                (fn(w + step, t) - fn(w - step, t)) / (2 * step),
                (fn(w, t + step) - fn(w, t - step)) / (2 * step),
            )
            np.testing.assert_allclose(got, slopes, atol=1e-6)


@pytest.mark.parametrize("magnitude", [0.0, *MAGNITUDES[::2]])
@pytest.mark.parametrize("regime", ["half", "saturated", "clamped"])
def test_float32_is_as_good_as_float64(magnitude, regime):
    beliefs = {}
    for dtype in ("float32", "float64"):
        with oracle.x64(dtype == "float64"):
            rbm, evidence, observed = problem(magnitude, regime, dtype)
            b = ebm.BP(iterations=10)(rbm, evidence, observed)
            beliefs[dtype] = np.concatenate([b.visible, b.hidden])
            if dtype == "float64" and regime == "half":
                near = np.abs(b.visible - 0.5) < 0.4
                assert near.mean() > 0.3
    assert np.abs(beliefs["float32"] - beliefs["float64"]).max() < 1e-4
