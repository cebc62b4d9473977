"""Sampling nonnegative units: quantiles in both tails, whole kernels by quadrature, NumPyro."""

from typing import Any

import jax
import jax.numpy as jnp
import nonnegative
import numpy as np
import numpyro
import oracle
import pytest
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from scipy import special

import ebmlearn as ebm
from ebmlearn.models import in_order
from ebmlearn.numpyro import EnergyDistribution, NNBMGibbsKernel
from ebmlearn.samplers import _sweep
from ebmlearn.units import _random
from ebmlearn.units._rectified import rectified_quantile


KEY = jax.random.key(0)
CHAIN = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], bool)


@pytest.fixture
def in_float64():
    with oracle.x64(True):
        yield


def test_quantiles(dtype):
    """P(T > t) of what comes back is what was asked for, however far out."""
    a, u = np.meshgrid(
        [-1e4, -300, -20, -5.01, -4.99, -2, -0.5, 0, 1, 4, 8, 300.0],
        [1e-7, 1e-4, 0.01, 0.3, 0.7, 0.99, 0.9999],
    )
    a, u = (np.asarray(x, dtype) for x in (a, u))
    t = np.asarray(jax.jit(rectified_quantile)(a, u), float)
    a, u = a.astype(float), u.astype(float)
    # log P(T > t) without the difference of two large logarithms, and its slope in t.
    x = -a
    far = special.erfcx((x + t) / np.sqrt(2)) / special.erfcx(np.maximum(x, 0) / np.sqrt(2))
    near = special.log_ndtr(a - t) - special.log_ndtr(a)
    got = np.where(a < 0, np.log(far) - x * t - t**2 / 2, near)
    slope = np.where(a < 0, x + t + 1, np.maximum(1, t - a) + 1)
    # As good as t itself can be written down, or as u near 1.
    eps = np.finfo(dtype).eps
    tol = eps * (20 * np.maximum(t, np.abs(a) * (a > -5)) * slope + 20 * np.abs(got) + 4)
    assert (np.abs(got - np.log(u)) < tol + 1e-13).all()


def gauss(points, low=0.0, high=1.0):
    x, w = np.polynomial.legendre.leggauss(points)
    return low + (x + 1) * (high - low) / 2, w * (high - low) / 2


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(
    ("reverse", "beta", "edges"), [(False, 1.0, None), (True, 0.5, None), (False, 1.0, CHAIN)]
)
def test_a_sweep_leaves_the_distribution_as_it_is(monkeypatch, reverse, beta, edges):
    """The moments after a sweep that begins at the distribution, integrated over the start and over
    the uniform numbers of the draws. With `edges`, the two ends of a chain are drawn together.
    """
    couplings, bias = nonnegative.case("strong")
    if edges is not None:
        couplings = np.where(CHAIN | np.eye(3, dtype=bool), couplings, 0)
        first, rest = (1, [0, 2])  # The unit of most neighbours is drawn first.
    else:
        couplings, bias = couplings[:2, :2], bias[:2]
        first, rest = (1, [0]) if reverse else (0, [1])
    nnbm = ebm.NNBM(couplings, bias, edges)
    n = len(bias)
    points = 10 if n == 3 else 40
    # The unit that is drawn first depends on the start of the others alone.
    x, w = gauss(3 * points, 0, 8 / np.sqrt(beta))
    nodes = np.stack(np.meshgrid(*[x] * (n - 1), indexing="ij"), -1).reshape(-1, n - 1)
    start = np.zeros((len(nodes), n))
    start[:, rest] = nodes
    u, v = gauss(points)
    numbers = np.stack(np.meshgrid(*[u] * n, indexing="ij"), -1).reshape(-1, n)
    # What the unit that is drawn first would add, in closed form.
    own = beta * (bias[first] - start @ couplings[first])
    precision = beta * couplings[first, first]
    energy = beta * (start @ bias - np.einsum("si,ij,sj->s", start, couplings, start) / 2)
    mass = np.prod(np.stack(np.meshgrid(*[w] * (n - 1), indexing="ij")), 0).reshape(-1)
    p = mass * np.exp(energy + nonnegative.log_alone(own, precision))
    p /= p.sum()
    chances = np.prod(np.stack(np.meshgrid(*[v] * n, indexing="ij")), 0).reshape(-1)
    before = jnp.asarray(np.repeat(start, len(numbers), 0))
    uniform = jnp.asarray(np.tile(numbers, (len(start), 1)))
    monkeypatch.setattr(_random, "uniforms", lambda key, shape, dtype: uniform)
    (after,) = _sweep.sweep(nnbm, [before], KEY, beta, reverse)
    after = np.asarray(after)
    weights = np.outer(p, chances).ravel()
    _, mean, products = nonnegative.moments(beta * couplings, beta * bias, 60, 12 / np.sqrt(beta))
    # As far as so few numbers in [0, 1] integrate what has a logarithm at its ends.
    tol = 5e-3 if n == 3 else 3e-4
    np.testing.assert_allclose(weights @ after, mean, rtol=tol)
    np.testing.assert_allclose(
        np.einsum("s,si,sj->ij", weights, after, after), products, rtol=4 * tol
    )


def classes(number, edges):
    return in_order(((np.array(edges), jnp.zeros(0)),), number)


def test_colours():
    nnbm = ebm.NNBM(np.eye(3), np.zeros(3), CHAIN)
    assert nnbm.edges is not None
    assert [sorted(row) for row in classes(3, nnbm.edges).tolist()] == [[1, 3], [0, 2]]
    grid = np.zeros((36, 36), bool)
    for i in range(36):
        for j in (i + 1 if i % 6 < 5 else i, i + 6):
            if i < j < 36:
                grid[i, j] = grid[j, i] = True
    edges = ebm.NNBM(np.eye(36), np.zeros(36), grid).edges
    assert edges is not None
    rows = classes(36, edges)
    assert sorted(x for row in rows.tolist() for x in row if x < 36) == list(range(36))
    assert not any(grid[i, j] for row in rows for i in row for j in row if max(i, j) < 36)
    assert len(rows) <= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    [
        ebm.TemperedTransitions(np.linspace(0.3, 1, 5)),
        ebm.ParallelTempering(np.linspace(0.3, 1, 4)),
    ],
    ids=["tempered", "parallel"],
)
def test_samples(sampler):
    """Of a model with two peaks, from one of them."""
    couplings, bias = nonnegative.case("indefinite", 2)
    couplings, bias = 4 * couplings, 4 * bias
    _, mean, products = nonnegative.moments(couplings, bias)
    nnbm = ebm.NNBM(jnp.float32(couplings), jnp.float32(bias))
    number, start = 4000, ebm.models.Units(jnp.asarray([0.1, 2.0]))
    options: dict[str, Any] = dict(num_chains=number, burn_in=60, start=start)
    x = np.asarray(ebm.sample(nnbm, sampler, number, key=KEY, **options).x)
    assert x.min() >= 0
    gap = np.abs(x.mean(0) - mean) / np.sqrt((np.diagonal(products) - mean**2) / number)
    assert gap.max() < 5


@pytest.mark.slow
def test_clamped_units():
    couplings, bias = nonnegative.case("strong")
    nnbm = ebm.NNBM(jnp.float32(couplings), jnp.float32(bias))
    start = ebm.models.Units(jnp.full(3, 0.5))
    clamped = ebm.models.Units(jnp.asarray([True, False, False]))
    options: dict[str, Any] = dict(num_chains=4000, burn_in=20, start=start, clamped=clamped)
    x = ebm.sample(nnbm, ebm.Gibbs(), 4000, key=KEY, **options).x
    assert (np.asarray(x[:, 0]) == 0.5).all()
    rest = bias[1:] - 0.5 * couplings[0, 1:]
    _, mean, products = nonnegative.moments(couplings[1:, 1:], rest)
    error = np.sqrt((np.diagonal(products) - mean**2) / 4000)
    assert (np.abs(np.asarray(x[:, 1:]).mean(0) - mean) < 5 * error).all()


def close(x, couplings, bias):
    """Chains have mixed, and their moments are within Monte-Carlo error of the truth."""
    _, mean, products = nonnegative.moments(couplings, bias)
    assert split_gelman_rubin(x).max() < 1.01
    for power, want in ((1, mean), (2, np.diagonal(products))):
        y = np.asarray(x) ** power
        error = y.std((0, 1)) / np.sqrt(effective_sample_size(y))
        assert (np.abs(y.mean((0, 1)) - want) < 5 * error).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_nuts_and_gibbs_agree_with_quadrature():
    couplings, bias = nonnegative.case("strong")
    nnbm = ebm.NNBM(jnp.float32(couplings), jnp.float32(bias))

    def program(nnbm):
        numpyro.sample("x", EnergyDistribution(nnbm, None, fixed=True))

    nuts = numpyro.infer.NUTS(program, step_size=0.5)
    for kernel, warm, number in ((NNBMGibbsKernel(), 50, 4000), (nuts, 300, 2000)):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            mcmc = numpyro.infer.MCMC(
                kernel, num_warmup=warm, num_samples=number, num_chains=4,
                chain_method="vectorized", progress_bar=False,
            )  # fmt: skip
            mcmc.run(KEY, nnbm)
        x = mcmc.get_samples(group_by_chain=True)["x"]
        assert np.asarray(x).min() >= 0
        close(x, couplings, bias)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
def test_distribution():
    couplings, bias = nonnegative.case("indefinite", 2)
    nnbm = ebm.NNBM(couplings, bias)
    exact = EnergyDistribution(nnbm, "exact", steps=60)
    x, w = gauss(60, 0, 12)
    nodes = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)
    mass = np.exp(np.asarray(exact.log_prob(nodes))) @ np.outer(w, w).ravel()
    np.testing.assert_allclose(mass, 1, atol=1e-8)
    assert exact.support(jnp.asarray([0.0, 2.0]))
    assert not exact.support(jnp.asarray([-0.1, 2.0]))
    assert exact.sample(KEY, (5, 2)).shape == (5, 2, 2)
