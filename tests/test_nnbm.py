"""Nonnegative Boltzmann machines: one unit, copositivity, and inference against quadrature, finite
differences and the equations as they should be printed.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import nonnegative
import numpy as np
import optax
import oracle
import pytest
from scipy import special

import ebmlearn as ebm
from ebmlearn.models import Statistics
from ebmlearn.models._copositive import copositivity
from ebmlearn.units import _rectified


KEY = jax.random.key(0)
ARGUMENTS = np.array(
    [-1e4, -300, -30, -8, -4.01, -3.99, -2.5, -1.51, -1.49, -1, -0.3, 0, 0.7, 2, 5, 30, 1e4]
)
INFERENCES = {
    "naive": ebm.NaiveMeanField(),
    "tap": ebm.TAP(),
    "susp": ebm.SusP(),
    "isusp": ebm.ISusP(),
}
# Horn's matrix: copositive, not the sum of a positive semidefinite and a nonnegative one.
HORN = np.array([[1 - 2 * ((i - j) % 5 in (1, 4)) for j in range(5)] for i in range(5)], float)


@pytest.fixture
def in_float64():
    with oracle.x64(True):
        yield


def model(name="weak", n=3, edges=None):
    return ebm.NNBM(*nonnegative.case(name, n), edges)


@pytest.mark.slow
def test_one_unit(dtype):
    l, r = jnp.asarray([0.5, -3.0], dtype), jnp.asarray([1.2, 0.5], dtype)  # noqa: E741
    rectified = _rectified.rectified
    unit = rectified(l, r)
    np.testing.assert_allclose(unit.mean, [0.902132, 0.303754], rtol=3e-6)
    np.testing.assert_allclose(unit.second_moment, [1.209222, 0.177478], rtol=3e-6)
    # In both tails, all moments keep their digits.
    a = jnp.asarray(ARGUMENTS, dtype)
    unit = rectified(a, jnp.ones_like(a))
    truth = np.array([nonnegative.unit(x) for x in ARGUMENTS]).T
    tol = 3e-5 if dtype == "float32" else 1e-8
    for got, want in zip((unit.mean, unit.variance, unit.third, unit.spread), truth, strict=True):
        np.testing.assert_allclose(got, want, rtol=tol, atol=1e-30 if want is truth[0] else 1e-7)
    np.testing.assert_allclose(unit.third[:11], truth[2, :11], rtol=tol)

    # Each is the derivative of the one before.
    one = jnp.ones_like(a)
    slope = jax.jit(lambda a: jax.jvp(lambda a: rectified(a, one), (a,), (one,))[1])(a)
    np.testing.assert_allclose(slope.log_partition, truth[0], rtol=tol)
    np.testing.assert_allclose(slope.mean, truth[1], rtol=tol)
    if dtype == "float64":
        step = 1e-5
        up, down = (rectified(a + h, one) for h in (step, -step))
        for got, high, low in zip(slope, up, down, strict=True):
            want = (high - low)[4:-2] / (2 * step)
            np.testing.assert_allclose(got[4:-2], want, rtol=1e-5, atol=1e-8)


@pytest.mark.slow
def test_special_functions(dtype):
    a = jnp.asarray(ARGUMENTS, dtype)
    tol = 2e-6 if dtype == "float32" else 1e-12
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(_rectified.log_ndtr)))(a)
    np.testing.assert_allclose(values, special.log_ndtr(np.asarray(a, float)), rtol=tol, atol=1e-37)
    want = np.sqrt(2 / np.pi) / special.erfcx(-ARGUMENTS / np.sqrt(2))
    np.testing.assert_allclose(slopes, want, rtol=10 * tol, atol=1e-36)
    erfcx = jax.jit(jax.vmap(jax.value_and_grad(_rectified.erfcx)))
    z = jnp.asarray(np.where(ARGUMENTS >= -8, ARGUMENTS, -8), dtype)
    values, slopes = erfcx(z)
    exact = np.asarray(z, float)
    np.testing.assert_allclose(values, special.erfcx(exact), rtol=30 * tol)
    slope = 2 * exact * special.erfcx(exact) - 2 / np.sqrt(np.pi)
    np.testing.assert_allclose(slopes, slope, rtol=max(30 * tol, 1e-7))
    assert erfcx(a)[0][0] == np.inf


def test_copositivity():
    rng = np.random.default_rng(0)
    for _ in range(60):
        n = int(rng.integers(2, 6))
        upper = np.triu(rng.normal(size=(n, n)), 1)
        matrix = upper + upper.T + np.eye(n)
        # Points of the simplex, its faces among them.
        x = rng.exponential(size=(20_000, n)) * (rng.random((20_000, n)) < 0.6) + 1e-12
        x /= x.sum(1, keepdims=True)
        least = np.einsum("si,ij,sj->s", x, matrix, x).min()
        answer = copositivity(matrix)
        if answer.holds:
            assert least > -1e-9
        else:
            assert answer.direction is not None
            assert (answer.direction >= 0).all()
            assert answer.direction @ matrix @ answer.direction <= min(1e-9, least + 1e-9)
    assert not copositivity(HORN).holds  # Zero at (1, 1, 0, 0, 0) for instance.
    assert copositivity(HORN + 0.01 * np.eye(5)).reason == "positive on all faces of the simplex"


def test_copositivity_of_many_units():
    n = 15
    big = np.eye(n) + 0.5
    assert copositivity(big).holds
    big = np.eye(n) + 3 * (1 - np.eye(n))  # Not positive definite.
    assert copositivity(big).reason == "positive definite without its positive couplings"
    wrong = np.eye(n)
    wrong[3, 7] = wrong[7, 3] = -1.2
    wrong[:3, :3] += 5
    answer = copositivity(wrong)
    assert answer.holds is False and answer.direction is not None
    assert set(np.flatnonzero(answer.direction)) == {3, 7}
    horn = np.kron(np.eye(3), HORN + 0.01 * np.eye(5)).astype(np.float32)
    with pytest.warns(UserWarning, match="not known to be copositive"):
        ebm.NNBM(horn, np.zeros(15, np.float32))


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("n", [1, 2, 3])
def test_quadrature(n):
    for name in nonnegative.CASES:
        nnbm = model(name, n)
        beliefs = ebm.Exact()(nnbm)
        log_z, mean, products = nonnegative.moments(*nonnegative.case(name, n))
        np.testing.assert_allclose(beliefs.log_partition, log_z, atol=1e-8)
        np.testing.assert_allclose(beliefs.mean, mean, rtol=1e-7)
        np.testing.assert_allclose(beliefs.second_moment, np.diagonal(products), rtol=1e-7)
        np.testing.assert_allclose(beliefs.variance + beliefs.mean**2, beliefs.second_moment)
        np.testing.assert_allclose(beliefs.covariance, products - np.outer(mean, mean), atol=1e-7)
        assert beliefs.converged


@pytest.mark.slow
def test_units_that_are_not_joined():
    n = 50
    edges = np.zeros((n, n), bool)
    bias = jnp.linspace(-3, 3, n)
    nnbm = ebm.NNBM(2 * jnp.eye(n), bias, edges)
    exact = ebm.Exact()(nnbm)
    want = np.array([nonnegative.unit(x / np.sqrt(2))[0] / np.sqrt(2) for x in np.asarray(bias)])
    np.testing.assert_allclose(exact.mean, want, rtol=1e-4)
    given = nnbm.unit_given(jnp.ones(n))
    np.testing.assert_allclose(given.location, bias / 2, rtol=1e-6)
    np.testing.assert_allclose(given.scale, np.sqrt(0.5), rtol=1e-6)
    np.testing.assert_allclose(given.mean, want, rtol=1e-4)


@pytest.mark.slow
def test_learning_units_that_are_not_joined():
    """The gradient of the likelihood of a half-normal distribution, by its closed moments."""
    x = np.abs(np.random.default_rng(3).normal(size=(6, 2))).astype(np.float32)
    joined = {("x", "x"): jnp.zeros((2, 2))}
    for blocks in ({}, joined):
        model = ebm.LayeredModel({"x": ebm.Nonnegative(2)}, blocks, {})
        gradient, _, _ = ebm.MLE(ebm.Exact()).step(model, None, x, key=0, epoch=0)
        mean = np.sqrt(2 / np.pi)
        np.testing.assert_allclose(gradient.biases[0], mean - x.mean(0), atol=1e-5)
        (units,) = gradient.units_of
        got = units.precision  # pyright: ignore
        np.testing.assert_allclose(got, ((x**2).mean(0) - 1) / 2, atol=1e-5)
        if blocks:
            want = mean**2 - (x[:, 0] * x[:, 1]).mean()
            np.testing.assert_allclose(gradient.weights[0][0, 1], want, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
def test_inferences_come_close():
    """To first order in the couplings all are right; to second order all but naive mean field."""
    couplings, bias = nonnegative.case("weak")
    errors = {name: [] for name in INFERENCES}
    for scale in (1.0, 0.5):
        w = np.where(np.eye(3, dtype=bool), couplings, scale * couplings)
        exact = ebm.Exact()(ebm.NNBM(w, bias))
        for name, inference in INFERENCES.items():
            beliefs = inference(ebm.NNBM(w, bias))
            assert beliefs.converged
            gap = [beliefs.mean - exact.mean, beliefs.second_moment - exact.second_moment]
            gap.append(jnp.ravel(beliefs.log_partition - exact.log_partition))
            errors[name].append(float(np.abs(np.concatenate(gap)).max()))
    assert errors["naive"][0] < 0.02
    for name in ("tap", "susp", "isusp"):
        assert errors[name][0] < 1e-3
        # Of third order: an eighth is left where the couplings are halved.
        assert errors[name][1] < errors[name][0] / 6
    for name in ("susp", "isusp"):
        beliefs = INFERENCES[name](model())
        np.testing.assert_allclose(beliefs.covariance, ebm.Exact()(model()).covariance, atol=2e-3)
    # A lower bound, of each of them.
    for name in nonnegative.CASES:
        assert (
            ebm.NaiveMeanField()(model(name)).log_partition < ebm.Exact()(model(name)).log_partition
        )


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", ["weak", "strong", "negative"])
def test_equations_of_tap(name):
    """They are those of a stationary point of the free energy, and its value is -log Z."""
    couplings, bias = nonnegative.case(name)
    beliefs = ebm.TAP()(model(name))
    assert beliefs.converged
    m, v = np.asarray(beliefs.mean), np.asarray(beliefs.second_moment)
    value = nonnegative.free_energy(couplings, bias, m, v)
    np.testing.assert_allclose(-beliefs.log_partition, value, atol=1e-8)
    step = 1e-5
    for k in range(6):
        moved = step * np.eye(6)[k]
        high, low = (
            nonnegative.free_energy(couplings, bias, m + sign * moved[:3], v + sign * moved[3:])
            for sign in (1, -1)
        )
        assert abs(high - low) / (2 * step) < 1e-6
    want = nonnegative.tap(couplings, bias)
    np.testing.assert_allclose(m, want[0], rtol=1e-7)
    np.testing.assert_allclose(v, want[1], rtol=1e-7)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", ["weak", "strong", "negative"])
def test_susceptibilities(name):
    """They are the derivatives of TAP's means, by differences and as the paper has them, whether
    solved for or propagated.
    """
    couplings, bias = nonnegative.case(name)
    nnbm = model(name)
    covariance = np.asarray(ebm.SusP()(nnbm).covariance)
    step = 1e-5
    for k in range(3):
        up, down = (
            ebm.TAP()(ebm.NNBM(couplings, bias + h * np.eye(3)[k])).mean for h in (step, -step)
        )
        np.testing.assert_allclose(covariance[:, k], (up - down) / (2 * step), atol=1e-6)
    want = nonnegative.susceptibilities(couplings, bias)
    np.testing.assert_allclose(covariance, want, atol=1e-7)
    propagated = ebm.SusP(method="propagation")(nnbm)
    assert propagated.converged
    np.testing.assert_allclose(propagated.covariance, covariance, atol=1e-7)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", ["weak", "strong", "negative"])
def test_diagonal_consistency(name):
    couplings, bias = nonnegative.case(name)
    beliefs = ebm.ISusP()(model(name))
    assert beliefs.converged
    variance = beliefs.second_moment - beliefs.mean**2
    assert np.abs(jnp.diagonal(beliefs.covariance) - variance).max() < 1e-7
    # The Lambda that the second moments mean is that of the equations, as they should read.
    m, s = np.asarray(beliefs.mean), np.asarray(variance)
    w = couplings - np.diag(np.diagonal(couplings))
    r = np.array([nonnegative.own_fields(*x)[1] for x in zip(m, s + m**2, strict=True)])
    correction = np.diagonal(couplings) - w**2 @ s - r
    want = nonnegative.tap(couplings, bias, correction)
    np.testing.assert_allclose(m, want[0], rtol=1e-6)
    np.testing.assert_allclose(s + m**2, want[1], rtol=1e-6)
    matrix = nonnegative.susceptibilities(couplings, bias, correction)
    np.testing.assert_allclose(beliefs.covariance, matrix, atol=1e-6)
    propagated = ebm.ISusP(method="propagation")(model(name))
    np.testing.assert_allclose(propagated.covariance, beliefs.covariance, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
def test_propagation_along_edges():
    """Sums over edges are the products with matrices that they stand for."""
    couplings, bias = nonnegative.case("strong")
    edges = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], bool)
    couplings = np.where(edges | np.eye(3, dtype=bool), couplings, 0)
    for kind in (ebm.SusP, ebm.ISusP):
        sparse = kind(method="propagation")(ebm.NNBM(couplings, bias, edges))
        dense = kind()(ebm.NNBM(couplings, bias))
        assert sparse.converged
        np.testing.assert_allclose(sparse.covariance, dense.covariance, atol=1e-7)
        np.testing.assert_allclose(sparse.log_partition, dense.log_partition, atol=1e-7)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
def test_derivatives_through_the_fixed_point():
    couplings, bias = nonnegative.case("strong")

    def value(bias, couplings):
        beliefs = ebm.ISusP(tol=1e-12)(ebm.NNBM(couplings, bias))
        return beliefs.covariance[0, 1] + beliefs.mean[2]

    gradient = jax.jit(jax.grad(value, (0, 1)))(jnp.asarray(bias), jnp.asarray(couplings))
    direction = np.array([[0.3, -0.2, 0.1], [-0.2, 0.5, 0.4], [0.1, 0.4, -0.6]])
    steps = [value(bias + h * direction[0], couplings + h * direction) for h in (1e-5, -1e-5)]
    slope = gradient[0] @ direction[0] + (gradient[1] * direction).sum()
    np.testing.assert_allclose(slope, (steps[0] - steps[1]) / 2e-5, rtol=1e-6)
    forward = jax.jvp(
        lambda b: value(b, couplings), (jnp.asarray(bias),), (jnp.asarray(direction[0]),)
    )
    np.testing.assert_allclose(forward[1], gradient[0] @ direction[0], rtol=1e-8)


@pytest.mark.usefixtures("in_float64")
def test_what_does_not_converge_says_so():
    """So strongly joined that the precision of a unit would not be positive."""
    assert not ebm.TAP()(ebm.NNBM(3 - 2 * np.eye(3), np.full(3, 2.0))).converged
    short = ebm.ISusP(iterations=2)(model("strong"))
    assert not short.converged
    assert short.iterations == 2


# Without a guard, sweeps of TAP take these beyond the largest number.
DIVERGING = [
    (
        [[8.998559951782227, -8.498900413513184], [-8.498900413513184, 8.054845809936523]],
        [996.815185546875, -10.488316535949707],
    ),
    (
        [[2.614687442779541, -0.8674901723861694], [-0.8674901723861694, 0.2921627163887024]],
        [44.21509552001953, 5.388132095336914],
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "inference",
    [ebm.TAP(), ebm.SusP(), ebm.ISusP(), ebm.ISusP(method="propagation")],
    ids=["tap", "susp", "isusp", "propagation"],
)
def test_means_that_diverge_stay_finite(inference):
    couplings, bias = (jnp.float32(x) for x in zip(*DIVERGING, strict=True))
    found = jax.vmap(lambda w, b: inference(ebm.NNBM(w, b)))(couplings, bias)
    assert not found.converged.any()
    assert not (found.residual <= 2e-5).any()
    assert np.isfinite(found.mean).all()
    assert np.isfinite(found.variance).all()


# What sweeps of one inference or another make of these is beyond the largest number when squared,
# or has no inverse.
OVERFLOWING = [
    ([[194.64154, -141.35825], [-141.35825, 194.64154]], [4.802017, 19.07261]),
    ([[975.66608, -950.75519], [-950.75519, 975.66608]], [0.42727289, 0.65927045]),
]


@pytest.mark.parametrize(
    "inference",
    [
        ebm.TAP(),
        *(x(method=how) for x in (ebm.SusP, ebm.ISusP) for how in ("solve", "propagation")),
    ],
    ids=lambda x: f"{type(x).__name__}-{getattr(x, 'method', '')}",
)
def test_beliefs_are_finite_where_sweeps_overflow(inference):
    couplings, bias = (jnp.float32(x) for x in zip(*OVERFLOWING, strict=True))

    def arrays(w, b):
        x = inference(ebm.NNBM(w, b))
        return (x.mean, x.variance, x.covariance, x.log_partition, x.second_moment), (
            x.converged,
            x.residual,
        )

    values, (converged, residual) = jax.vmap(arrays)(couplings, bias)
    assert not converged.any()
    assert not np.isnan(residual).any()
    for x in values:
        assert np.isfinite(x).all()


@pytest.mark.slow
def test_large_means_in_float32():
    """Variances are not differences of large numbers; where they are, it is said."""
    couplings = np.array([[1.0, 0.2], [0.2, 1.0]], np.float32)
    far = ebm.NNBM(couplings, np.full(2, 1e4, np.float32))
    for inference in (ebm.TAP(), ebm.NaiveMeanField()):
        found = inference(far)
        np.testing.assert_allclose(found.variance, 1.0, atol=0.05)
    near = ebm.Exact()(ebm.NNBM(couplings, np.full(2, 10, np.float32)))
    assert near.converged
    # Nearly a Gaussian.
    np.testing.assert_allclose(near.covariance, np.linalg.inv(couplings), atol=1e-2)
    assert not ebm.Exact()(ebm.NNBM(couplings, np.full(2, 110, np.float32))).converged


@pytest.mark.slow
def test_batches_by_vmap_in_float32():
    names = ("weak", "strong", "negative")
    cases = [nonnegative.case(name) for name in names]
    couplings, bias = (jnp.float32(np.stack(x)) for x in zip(*cases, strict=True))
    many = jax.vmap(lambda w, b: ebm.ISusP()(ebm.NNBM(w, b)))(couplings, bias)
    assert many.converged.all()
    assert len(set(many.iterations.tolist())) > 1
    with oracle.x64(True):
        for k, name in enumerate(names):
            one = ebm.ISusP()(model(name))
            np.testing.assert_allclose(many.mean[k], one.mean, rtol=1e-4)
            np.testing.assert_allclose(many.covariance[k], one.covariance, atol=2e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", ["tap", "susp", "isusp", "exact"])
def test_moments_are_solved_for(name):
    """From the moments that an inference gives, its model is found again."""
    inference = ebm.Exact() if name == "exact" else INFERENCES[name]
    nnbm = model("indefinite", 2) if name == "exact" else model("negative")
    match = ebm.learners.solve_moments(inference.statistics(nnbm), inference)
    assert match.converged
    np.testing.assert_allclose(match.model.couplings, nnbm.couplings, atol=1e-6)
    np.testing.assert_allclose(match.model.bias, nnbm.bias, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
def test_moments_of_data_are_where_learning_ends():
    rng = np.random.default_rng(0)
    data = np.abs(rng.normal(size=(50, 3)) @ np.array([[1, 0.3, 0], [0, 0.8, -0.2], [0.1, 0, 1]]))
    data = 3 * data
    edges = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], bool)
    match = ebm.learners.solve_moments(data, ebm.ISusP(), edges=edges)
    assert match.converged
    learner = ebm.MLE(ebm.ISusP(), loss=True)
    gradient, _, info = learner.step(match.model, None, data, key=KEY, epoch=0)
    assert float(info.converged) == 1
    assert np.abs(gradient.bias).max() < 1e-6
    assert np.abs(gradient.couplings).max() < 1e-6
    assert float(match.model.couplings[0, 2]) == 0
    # Elsewhere the gradient is the difference of the moments, that of an edge whole.
    start = ebm.NNBM(np.eye(3), np.zeros(3), edges)
    gradient, *_ = learner.step(start, None, data, key=KEY, epoch=0)
    own = ebm.ISusP().statistics(start)
    np.testing.assert_allclose(gradient.bias, own.units.x - data.mean(0), atol=1e-10)
    gap = (data.T @ data / 50 - own.pairwise) * (edges + np.eye(3) / 2)
    np.testing.assert_allclose(gradient.couplings, gap, atol=1e-10)
    # An exponential unit is at the border of what can be matched, and a wider one beyond.
    assert not ebm.learners.solve_moments(data**4, ebm.ISusP(), edges=edges).converged


@pytest.mark.usefixtures("in_float64")
def test_moments_of_strong_correlations():
    """Units far from zero are Gaussian, and their couplings the inverse of the covariances."""
    rng = np.random.default_rng(3)
    correlation = np.array([[1, 0.9, 0.3], [0.9, 1, 0.5], [0.3, 0.5, 1]])
    data = 10 + rng.normal(size=(100, 3)) @ np.linalg.cholesky(correlation).T
    match = ebm.learners.solve_moments(data, ebm.ISusP())
    assert match.converged
    inverse = np.linalg.inv(np.cov(data.T, bias=True))
    np.testing.assert_allclose(match.model.couplings, inverse, rtol=1e-6)
    np.testing.assert_allclose(match.model.bias, inverse @ data.mean(0), rtol=1e-6)


@pytest.mark.slow
def test_fit_keeps_couplings_copositive():
    rng = np.random.default_rng(1)
    data = jnp.float32(rng.exponential(size=(64, 1)) + 0.1 * rng.random((64, 3)))
    options: dict[str, Any]
    options = dict(optimizer=optax.sgd(2.0), epochs=1, batch_size=64, key=KEY, progress=False)
    fitted = ebm.fit(ebm.NNBM.init(3, key=KEY), ebm.MLE(ebm.TAP()), data, **options)
    couplings = np.asarray(fitted.model.couplings)
    assert copositivity(couplings).holds
    # The step alone would have broken it: with diagonal entries of 1 or so, these are too low.
    assert (couplings - np.diag(np.diagonal(couplings))).min() < -2


def test_projection():
    edges = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], bool)
    nnbm = ebm.NNBM(jnp.eye(3), jnp.zeros(3), edges)
    broken = jnp.asarray([[1.0, -2.0, 0.4], [-1.0, 1.0, 0.3], [0.2, 0.1, -1.0]])
    fixed = eqx.tree_at(lambda m: m.couplings, nnbm, broken).project()
    w = np.asarray(fixed.couplings)
    assert copositivity(w).holds
    np.testing.assert_array_equal(w, w.T)
    assert w[0, 2] == 0
    np.testing.assert_allclose(w[0, 1], -1.5)
    good = ebm.NNBM(jnp.asarray([[1.0, 3.0], [3.0, 1.0]]), jnp.zeros(2))
    np.testing.assert_array_equal(good.project().couplings, good.couplings)


@pytest.mark.slow
def test_moments_of_any_kind_of_numbers():
    units, products = ebm.models.Units(np.asarray([1.0, 1.0])), np.asarray([[1.5, 1.1], [1.1, 1.5]])
    rest = (None,), jnp.asarray(True), jnp.asarray(1), jnp.asarray(0.0)
    given = Statistics(units, products, *rest)
    assert bool(ebm.learners.solve_moments(given, ebm.ISusP()).converged)
    rows = np.random.default_rng(3).poisson(3.0, (500, 2))
    whole = ebm.learners.solve_moments(rows, ebm.ISusP())
    np.testing.assert_array_equal(
        whole.model.couplings,
        ebm.learners.solve_moments(rows.astype(np.float32), ebm.ISusP()).model.couplings,
    )


@pytest.mark.parametrize("scale", [1e-14, 1.0, 1e7, 1e30])
def test_copositivity_does_not_depend_on_the_size_of_couplings(scale):
    against = np.array([[1.0, -2.0], [-2.0, 1.0]])
    with_help = np.array([[1.0, 2.0, -0.5], [2.0, 1.0, 2.0], [-0.5, 2.0, 1.0]])
    assert copositivity(scale * against).holds is False
    assert copositivity(scale * with_help).holds is True
