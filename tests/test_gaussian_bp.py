"""Belief propagation and exact inference on Gaussian RBMs: against quadrature, enumeration, the
printed equations, and finite differences.
"""

import itertools
from typing import Any, cast

import errors
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
import slopes

import ebmlearn as ebm
from ebmlearn import messages
from ebmlearn.inference import Normal
from ebmlearn.models import expected_energy


RNG = np.random.default_rng(11)


def random_model(seed=0, visible=6, hidden=4, scale=0.5, batch=(), dtype="float32", spread=0.4):
    rng = np.random.default_rng(seed)
    arrays = (
        scale * rng.normal(size=(visible, hidden)),
        rng.normal(size=(*batch, visible)),
        rng.normal(size=hidden),
        spread * rng.normal(size=visible),
    )
    return ebm.GaussianRBM(*(jnp.asarray(x, dtype) for x in arrays))


def random_query(model, rows=5, seed=1):
    """Evidence with nonsense where nothing is observed, and another mask for each row."""
    rng = np.random.default_rng(seed)
    shape = rows, model.num_visible
    observed = rng.random(shape) < 0.5
    evidence = np.where(observed, rng.normal(size=shape), np.nan)
    return evidence.astype(model.weights.dtype), observed


def mixture(model, evidence, observed):
    """Mean and variance of the visible units and probabilities of the hidden ones for one row, from
    the joint Gaussian density of each hidden configuration, in float64 NumPy.
    """
    w, b, c, log_sigma = (np.asarray(x, np.float64) for x in jax.tree.leaves(model))
    sigma = np.exp(log_sigma)
    h = np.array(list(itertools.product((0, 1), repeat=len(c))), np.float64)
    means = b + sigma * (h @ w.T)
    given = np.where(observed, evidence, 0.0).astype(np.float64)
    # The integral over z of exp(-(v - b)^2 / 2s^2 + v W h / s), or its integrand where observed.
    pull = h @ w.T / sigma
    free = pull * b + (sigma * pull) ** 2 / 2
    held = pull * given
    scores = h @ c + np.where(observed, held, free).sum(1)
    p = np.exp(scores - np.logaddexp.reduce(scores))
    mean = p @ means
    variance = sigma**2 + p @ (means - mean) ** 2
    return np.where(observed, given, mean), np.where(observed, 0, variance), p @ h


def close(beliefs, other, **tolerance):
    for name in ("mean", "variance", "hidden"):
        np.testing.assert_allclose(getattr(beliefs, name), getattr(other, name), **tolerance)


def star(seed=0, visible=7, dtype="float64"):
    """One hidden unit with weights that matter."""
    return random_model(seed, visible, 1, scale=1.5, dtype=dtype)


def bistable(hidden=8):
    """One visible unit, whose hidden units are nearly all 0 or nearly all 1, equally likely: the
    first cavities have precision 1 - 0.2 (hidden - 1).
    """
    bias = jnp.full(hidden, -hidden / 2, jnp.float32)
    return ebm.GaussianRBM(jnp.ones((1, hidden), jnp.float32), jnp.zeros(1), bias, jnp.zeros(1))


@pytest.mark.slow
def test_exact_against_densities(dtype):
    model = random_model(dtype=dtype)
    evidence, observed = random_query(model)
    answer = ebm.Exact()(model, evidence, observed)
    tol = 1e-4 if dtype == "float32" else 1e-10
    for k, row in enumerate(zip(evidence, observed, strict=True)):
        mean, variance, hidden = mixture(model, *row)
        np.testing.assert_allclose(answer.mean[k], mean, atol=tol, rtol=tol)
        np.testing.assert_allclose(answer.variance[k], variance, atol=tol, rtol=tol)
        np.testing.assert_allclose(answer.hidden[k], hidden, atol=tol, rtol=tol)
    assert answer.mean.dtype == model.weights.dtype
    assert answer.converged.all()
    # Without evidence the hidden units are those of their marginal.
    alone = ebm.Exact()(model)
    marginal = ebm.Exact()(model.hidden_marginal())
    np.testing.assert_allclose(alone.hidden, marginal.x, atol=tol)


@pytest.mark.slow
def test_one_edge_against_quadrature():
    """Eq. (6), the moments of a cavity times the mixture that a hidden unit sends."""
    with oracle.x64(True):
        w, b, c, sigma = 1.3, 0.7, -0.9, 0.6
        model = ebm.GaussianRBM(
            jnp.asarray([[w]]), jnp.asarray([b]), jnp.asarray([c]), jnp.log(jnp.asarray([sigma]))
        )
        answer = ebm.BP(1)(model)
    v = np.linspace(b - 15 * sigma, b + 15 * sigma, 20001)
    density = np.exp(-((v - b) ** 2) / (2 * sigma**2)) * (1 + np.exp(c + v * w / sigma))
    density /= density.sum()
    mean = density @ v
    np.testing.assert_allclose(answer.mean, [mean], rtol=1e-10)
    np.testing.assert_allclose(answer.variance, [density @ (v - mean) ** 2], rtol=1e-10)
    hidden = density @ (1 / (1 + np.exp(-c - v * w / sigma)))
    np.testing.assert_allclose(answer.hidden, [hidden], rtol=1e-10)


def tilted(w, x, mu, variance):
    """Eq. (6) by quadrature: moments of a Gaussian times 1 + exp(x + w z)."""
    z = mu + np.linspace(-14, 14, 8001) * np.sqrt(variance)
    density = np.exp(-((z - mu) ** 2) / (2 * variance)) * (1 + np.exp(x + w * z))
    density /= density.sum()
    mean = density @ z
    return mean, density @ (z - mean) ** 2


def printed(model, evidence, observed, sweeps):
    """Appendix D.3 as printed but for its errata, for one row and scales of 1. The beliefs of
    eq. (6) by quadrature, and observed units by their limit.
    """
    w, b, c, _ = (np.asarray(x, np.float64) for x in jax.tree.leaves(model))
    up, one, two = np.zeros_like(w), np.zeros_like(w), np.full_like(w, -0.5)
    for _ in range(sweeps):
        first = (b + one.sum(1))[:, None] - one
        second = (-0.5 + two.sum(1))[:, None] - two
        cavity = (c + up.sum(0))[None] - up
        up = -(2 * first * w + w**2) / (4 * second)
        up[observed] = w[observed] * evidence[observed][:, None]
        for i, j in np.argwhere(~observed[:, None] & np.ones_like(w, bool)):
            mu, variance = -first[i, j] / (2 * second[i, j]), -1 / (2 * second[i, j])
            mean, variance = tilted(w[i, j], cavity[i, j], mu, variance)
            one[i, j] = mean / variance - first[i, j]
            two[i, j] = -1 / (2 * variance) - second[i, j]
    first, second = b + one.sum(1), -0.5 + two.sum(1)
    mean = np.where(observed, evidence, -first / (2 * second))
    variance = np.where(observed, 0, -1 / (2 * second))
    return mean, variance, 1 / (1 + np.exp(-c - up.sum(0)))


@pytest.mark.slow
@pytest.mark.parametrize("sweeps", [1, 4])
def test_flooding_as_printed(sweeps):
    with oracle.x64(True):
        model = random_model(5, 4, 3, scale=0.8, dtype="float64", spread=0.0)
        evidence, observed = random_query(model, rows=2)
        bp = ebm.BP(sweeps, start="plain", schedule="flooding")
        answer = bp(model, evidence, observed)
        for k, row in enumerate(zip(evidence, observed, strict=True)):
            mean, variance, hidden = printed(model, *row, sweeps)
            np.testing.assert_allclose(answer.mean[k], mean, rtol=1e-8)
            np.testing.assert_allclose(answer.variance[k], variance, rtol=1e-8)
            np.testing.assert_allclose(answer.hidden[k], hidden, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "dtype"),
    [("centred", "float32"), ("centred", "float64"), ("plain", "float64")],
    indirect=["dtype"],
)
def test_stars_are_exact(dtype, start):
    model = star(dtype=dtype)
    evidence, observed = random_query(model, rows=20)
    # The first start needs one sweep; the other one must first lose its own messages.
    answer = ebm.BP(1 if start == "centred" else 2, start=start)(model, evidence, observed)
    tol = 1e-4 if dtype == "float32" else 1e-10
    close(answer, ebm.Exact()(model, evidence, observed), rtol=tol, atol=tol)
    assert answer.mean.dtype == answer.variance.dtype == answer.hidden.dtype == dtype
    assert answer.guarded is not None and not answer.guarded.any()
    after = ebm.BP(5, tol=1e-5)(model, evidence, observed)
    assert after.converged.all()
    assert (after.iterations == 2).all()


@pytest.mark.slow
def test_stars_that_evidence_makes():
    """Observed units hold nobody together: what is left are two stars."""
    with oracle.x64(True):
        model = random_model(3, 5, 2, scale=1.5, dtype="float64")
        own = jnp.asarray([[1, 0], [1, 0], [0, 1], [1, 1], [1, 1]], model.weights.dtype)
        model = ebm.GaussianRBM(model.weights * own, *jax.tree.leaves(model)[1:])
        evidence = np.random.default_rng(0).normal(size=(6, 5))
        observed = np.tile([False, False, False, True, True], (6, 1))
        for schedule in ("layers", "flooding"):
            answer = ebm.BP(8, schedule=schedule)(model, evidence, observed)
            close(answer, ebm.Exact()(model, evidence, observed), rtol=1e-10)


@pytest.mark.slow
def test_all_observed_and_none():
    model = random_model(4, batch=(3,))
    v = np.random.default_rng(2).normal(size=(3, 6)).astype(np.float32)
    answer = ebm.BP(2)(model, v, np.ones((3, 6), bool))
    np.testing.assert_allclose(answer.hidden, model.hidden_given(v), rtol=1e-5)
    np.testing.assert_array_equal(answer.mean, v)
    np.testing.assert_array_equal(answer.variance, 0)
    assert answer.converged.all()
    assert answer.guarded is not None and not answer.guarded.any()
    nothing = ebm.BP(20)(model, v, np.zeros((3, 6), bool))
    close(nothing, ebm.BP(20)(model), rtol=1e-6)
    assert nothing.mean.shape == (3, 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"damping": 0.3}, {"start": "plain"}, {"schedule": "flooding"}],
    ids=["plain", "damped", "start", "flooding"],
)
def test_close_to_exact(options):
    """Loops and several hidden neighbours make it approximate: within some per cent of a standard
    deviation while the weights are moderate.
    """
    for seed in range(3):
        model = random_model(seed, 12, 6, scale=0.3)
        evidence, observed = random_query(model, rows=10, seed=seed)
        answer = ebm.BP(60, tol=1e-5, **options)(model, evidence, observed)
        exact = ebm.Exact()(model, evidence, observed)
        assert answer.converged.all()
        assert (answer.iterations < 60).all()
        assert (answer.residual <= 1e-5).all()
        assert answer.guarded is not None and not answer.guarded.any()
        scale = np.sqrt(np.where(observed, 1, exact.variance))
        assert np.abs((answer.mean - exact.mean) / scale).max() < 0.02
        assert np.abs((answer.variance - exact.variance) / scale**2).max() < 0.03
        assert np.abs(answer.hidden - exact.hidden).max() < 0.02
        # Of some use: better than to ignore the evidence.
        prior = ebm.Exact()(model)
        assert np.abs(np.asarray(exact.hidden) - np.asarray(prior.hidden)).max() > 0.2


@pytest.mark.slow
def test_schedules_and_starts_meet():
    with oracle.x64(True):
        model = random_model(7, 8, 5, scale=0.4, dtype="float64")
        evidence, observed = random_query(model)
        first = ebm.BP(200)(model, evidence, observed)
        cases: list[dict[str, Any]]
        cases = [{"schedule": "flooding"}, {"start": "plain"}, {"damping": 0.5}]
        for options in cases:
            close(ebm.BP(200, **options)(model, evidence, observed), first, rtol=1e-8)


@pytest.mark.slow
def test_the_names_of_the_states_do_not_matter():
    """Exchanging 0 and 1 of the hidden units, or moving the visible ones, gives the same answers
    after every number of sweeps.
    """
    with oracle.x64(True):
        model = random_model(8, 5, 4, dtype="float64")
        evidence, observed = random_query(model)
        w, b, c, log_sigma = jax.tree.leaves(model)
        moved = b + model.sigma * w.sum(1)
        flipped = ebm.GaussianRBM(-w, moved, -c, log_sigma)
        shift = np.arange(5.0)
        shifted = ebm.GaussianRBM(w, b + shift, c - (shift / model.sigma) @ w, log_sigma)
        for schedule, sweeps in itertools.product(("layers", "flooding"), (1, 3)):
            bp = ebm.BP(sweeps, schedule=schedule)
            want = bp(model, evidence, observed)
            other = bp(flipped, evidence, observed)
            np.testing.assert_allclose(other.mean, want.mean, rtol=1e-9)
            np.testing.assert_allclose(other.variance, want.variance, rtol=1e-9)
            np.testing.assert_allclose(other.hidden, 1 - want.hidden, rtol=1e-9)
            other = bp(shifted, evidence + shift, observed)
            np.testing.assert_allclose(other.mean, np.asarray(want.mean) + shift, rtol=1e-9)
            np.testing.assert_allclose(other.hidden, want.hidden, rtol=1e-9)


@pytest.mark.slow
def test_batches():
    """Every instance is treated as if alone, whatever is batched and however it is cut."""
    model = random_model(1, batch=(3, 1))
    evidence, observed = random_query(model, rows=4)
    whole = ebm.BP(30, tol=1e-4)(model, evidence, observed)
    assert whole.mean.shape == (3, 4, 6)
    assert whole.log_odds.hidden.shape == (3, 4, 4)
    assert whole.log_odds.visible is None
    assert whole.guarded is not None
    assert whole.converged.shape == whole.guarded.shape == (3, 4)
    w, b, c, s = jax.tree.leaves(model)
    for i, k in itertools.product(range(3), range(4)):
        one = ebm.BP(30, tol=1e-4)(ebm.GaussianRBM(w, b[i, 0], c, s), evidence[k], observed[k])
        np.testing.assert_allclose(one.mean, whole.mean[i, k], rtol=1e-5, atol=1e-6)
        assert one.iterations == whole.iterations[i, k]
    cut = ebm.BP(30, tol=1e-4, chunk=5)(model, evidence, observed)
    close(cut, whole, rtol=1e-5, atol=1e-6)
    exact = ebm.Exact()(model, evidence, observed)
    assert exact.mean.shape == (3, 4, 6)
    # Evidence that is traced.
    jitted = jax.jit(lambda e: ebm.BP(30, tol=1e-4)(model, e, observed).mean)(evidence)
    np.testing.assert_allclose(jitted, whole.mean, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_query_and_decode():
    model = random_model(2)
    evidence, observed = random_query(model)
    bp = ebm.BP(20)
    answer = ebm.query(model, evidence, observed, inference=bp)
    assert isinstance(answer, Normal)
    beliefs = bp(model, evidence, observed)
    np.testing.assert_array_equal(answer.mean, beliefs.mean)
    np.testing.assert_array_equal(answer.variance, beliefs.variance)
    np.testing.assert_array_equal(answer.mean[observed], evidence[observed])
    states = beliefs.decode()
    np.testing.assert_array_equal(states.visible, beliefs.mean)
    np.testing.assert_array_equal(states.hidden, beliefs.hidden > 0.5)
    exact = ebm.query(model, evidence, observed, inference=ebm.Exact())
    np.testing.assert_allclose(exact.mean, answer.mean, atol=0.3)


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "guarded"), [("layers", True), ("flooding", False)])
def test_gradient_through_the_sweeps(schedule, guarded):
    with oracle.x64(True):
        if guarded:
            model = random_model(3, 2, 9, scale=0.01, dtype="float64")
            w = 1 + model.weights
            c = -(w.T @ w).sum(1) / 2 - w.T @ (model.visible_bias / model.sigma)
            model = ebm.GaussianRBM(w, model.visible_bias, c, model.log_sigma)
            evidence, observed = np.zeros((1, 2)), np.zeros((1, 2), bool)
        else:
            model = random_model(9, 5, 3, dtype="float64")
            evidence, observed = random_query(model, rows=3)
        bp = ebm.BP(2 if guarded else 3, unroll=True, schedule=schedule, damping=0.1)
        found = bp(model, evidence, observed).guarded
        assert found is not None and bool(found.any()) == guarded
        flat, back = jax.flatten_util.ravel_pytree(model)
        target = np.random.default_rng(1).normal(size=evidence.shape)

        @jax.jit
        def loss(x):
            mean, variance = ebm.query(back(x), evidence, observed, inference=bp)
            safe = jnp.where(observed, 1.0, variance)
            cost = (mean - target) ** 2 / safe + jnp.log(safe)
            return jnp.where(observed, 0, cost).sum()

        gradient = jax.grad(loss)(flat)
        assert jnp.abs(gradient).min() > 0
        step = 1e-6
        for k in range(flat.size):
            e = np.zeros(flat.size)
            e[k] = step
            difference = (loss(flat + e) - loss(flat - e)) / (2 * step)
            np.testing.assert_allclose(gradient[k], difference, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["layers", "flooding"])
def test_precisions_that_would_be_negative(schedule):
    """Guarded and said so; damping finds the fixed point, where nothing is."""
    wild = ebm.BP(9, schedule=schedule)(bistable())
    for x in (wild.mean, wild.variance, wild.log_odds.hidden):
        assert jnp.isfinite(x).all()
    assert wild.guarded == 1
    assert not wild.converged
    # Never more variance than twice what the hidden units can give.
    assert 0 < wild.variance[0] < 2 * (1 + 8**2 / 4)
    calm = ebm.BP(60, damping=0.8, schedule=schedule)(bistable())
    assert calm.guarded == 0
    assert calm.converged
    # The precision of a cavity solves x = 1 - 7x / (4x + 1).
    x = (np.sqrt(32) - 4) / 8
    np.testing.assert_allclose(calm.variance, [1 / (x - x / (4 * x + 1))], rtol=1e-4)
    np.testing.assert_allclose(calm.mean, [4], rtol=1e-4)


@pytest.mark.slow
def test_large_weights_stay_finite():
    evidence = np.zeros((1, 6), np.float32)
    observed = np.asarray([[True, True, False, False, False, False]])
    for scale in (0.0, 10.0, 1e3, 1e5):
        model = random_model(6, scale=scale)
        bp = ebm.BP(20, unroll=True)
        gradient = jax.grad(
            lambda m, bp=bp: jnp.tanh(ebm.query(m, evidence, observed, inference=bp).mean).sum()
        )(model)
        answer = bp(model, evidence, observed)
        for x in (answer.mean, answer.variance, answer.log_odds.hidden, *jax.tree.leaves(gradient)):
            assert jnp.isfinite(x).all()
        assert (answer.variance[~observed] > 0).all()
    # Without weights the units are independent.
    none = ebm.BP(1)(random_model(6, scale=0.0))
    np.testing.assert_allclose(none.variance, random_model(6).sigma ** 2, rtol=1e-6)


@pytest.mark.slow
def test_what_did_not_converge_says_so():
    model = random_model(2, 8, 6, scale=0.6)
    short = ebm.BP(2, tol=1e-7)(model)
    assert not short.converged
    assert short.iterations == 2
    assert short.residual > 1e-7
    none = ebm.BP(0)(model)
    assert not none.converged
    assert jnp.isfinite(none.mean).all()


MODEL = random_model()
ROW, MASK = np.zeros(6, np.float32), np.ones(6, bool)
BAD = {
    "max": (lambda: ebm.BP(3, product="max")(MODEL), ValueError, "`product`", "GaussianRBM", "max"),
    "mixed": (lambda: ebm.BP(3, product="mixed")(MODEL), ValueError, "`product`", "mixed"),
    "hot": (lambda: ebm.BP(3, temperature=2.0)(MODEL), ValueError, "`temperature`", "1", "2.0"),
    "exact max": (
        lambda: ebm.Exact(product="max")(MODEL),
        ValueError,
        "`product`",
        "GaussianRBM",
        "max",
    ),
    "many units": (
        lambda: ebm.Exact(max_units=3)(MODEL),
        ValueError,
        "4 units",
        "`max_units` = 3",
        "layers of 6, 4",
    ),
    "negative": (lambda: ebm.BP(-1)(MODEL), ValueError, "`iterations`", "-1"),
    "no mask": (lambda: ebm.BP(3)(MODEL, ROW), ValueError, "go together", "no `observed`"),
    "no evidence": (lambda: ebm.BP(3)(MODEL, None, MASK), ValueError, "no `evidence`"),
    "infinity": (
        lambda: ebm.Exact()(MODEL, np.full(6, np.inf, np.float32), MASK),
        ValueError,
        "finite",
        "inf",
    ),
    "shape": (
        lambda: ebm.BP(3)(MODEL, np.zeros(5, np.float32), MASK),
        ValueError,
        "`evidence`",
        r"\(5,\)",
    ),
    "mask's shape": (
        lambda: ebm.BP(3)(MODEL, ROW, np.ones((2, 7), bool)),
        ValueError,
        "`observed`",
        r"\(2, 7\)",
    ),
    "batch": (
        lambda: ebm.BP(3)(MODEL, np.zeros((2, 6), np.float32), np.ones((3, 6), bool)),
        ValueError,
        "broadcast",
    ),
    "mask of numbers": (lambda: ebm.BP(3)(MODEL, ROW, ROW), TypeError, "`observed`", "booleans"),
    "complex": (
        lambda: ebm.BP(3)(MODEL, ROW.astype(np.complex64), MASK),
        TypeError,
        "`evidence`",
        "real",
    ),
    "list": (
        lambda: ebm.BP(3)(MODEL, cast(Any, [0.0] * 6), MASK),
        TypeError,
        "`evidence`",
        "array",
    ),
    "other inference": (lambda: ebm.MeanField(3)(MODEL), TypeError, "GaussianRBM", "`BP`"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("as_a_user")
def test_bad_input(case):
    errors.check(BAD[case])


def test_bad_evidence_under_jit():
    with pytest.raises(Exception, match="finite where observed"):
        jax.jit(lambda e: ebm.BP(3)(MODEL, e, MASK).mean)(np.full(6, np.nan, np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["layers", "flooding"])
@pytest.mark.parametrize("hidden", [1, 2])
def test_statistics_are_exact_on_stars(hidden, schedule):
    """Hidden units that share no visible one, of instances that differ in biases and evidence."""
    with oracle.x64(True):
        rng = np.random.default_rng(hidden)
        own = np.repeat(np.eye(hidden), 3, axis=0)
        model = ebm.GaussianRBM(
            jnp.asarray(own * rng.normal(size=(3 * hidden, hidden))),
            jnp.asarray(rng.normal(size=(2, 3 * hidden))),
            jnp.asarray(rng.normal(size=hidden)),
            jnp.asarray(0.3 * rng.normal(size=3 * hidden)),
        )
        evidence = rng.normal(size=3 * hidden)
        observed = np.arange(3 * hidden) % 3 == 1
        found = ebm.BP(40, schedule=schedule).statistics(model, evidence, observed)
        states = np.array(list(itertools.product([0.0, 1.0], repeat=hidden)))
        both = []
        for row, bias in enumerate(np.asarray(model.visible_bias)):
            sigma, weights = np.asarray(model.sigma), np.asarray(model.weights)
            mean = bias + sigma * (states @ weights.T)
            free = ~observed
            # The density of what is observed, and all else integrated out.
            scores = states @ np.asarray(model.hidden_bias) + (
                (mean**2 - bias**2)[:, free] / (2 * sigma[free] ** 2)
            ).sum(1)
            scores = scores + (evidence / sigma)[observed] @ (weights @ states.T)[observed]
            p = np.exp(scores - scores.max())
            p = p / p.sum()
            mean = np.where(observed, evidence, mean)
            variance = np.where(observed, 0, sigma**2)
            np.testing.assert_allclose(found.units.visible[row], p @ mean, atol=1e-9)
            np.testing.assert_allclose(found.units.hidden[row], p @ states, atol=1e-9)
            squares = found.squares[0]
            assert squares is not None
            np.testing.assert_allclose(squares[row], p @ (mean**2 + variance), atol=1e-9)
            both.append(np.einsum("s,si,sj->ij", p, mean, states))
        # Between units that are not joined messages say nothing, and they are independent here.
        np.testing.assert_allclose(found.pairwise, np.mean(both, 0), atol=1e-9)
        assert found.squares[1] is None and bool(found.converged.all())


def test_what_gaussian_messages_do_not_give():
    with pytest.raises(NotImplementedError, match="`log_partition` is not known of Gaussian"):
        _ = ebm.BP(3)(MODEL).log_partition


def test_units_without_messages():
    assert messages.serves(MODEL) and not messages.serves(ebm.NNBM(jnp.eye(2), jnp.zeros(2)))
    with pytest.raises(TypeError, match=r"that BP takes, .*, got an NNBM of nonnegative units"):
        ebm.BP(3)(ebm.NNBM(jnp.eye(2), jnp.zeros(2)))


@pytest.mark.slow
def test_beliefs_have_the_names_of_all_models():
    with oracle.x64(True):
        model = star()
        evidence, observed = random_query(model)
        exact, bp = (f(model, evidence, observed) for f in (ebm.Exact(), ebm.BP(5)))
        for beliefs in (exact, bp):
            np.testing.assert_array_equal(beliefs.visible, beliefs.mean)
            np.testing.assert_array_equal(beliefs["hidden"], beliefs.hidden)
            assert type(beliefs.means) is ebm.Layers
            assert beliefs.pairwise.shape == (5, *model.weights.shape)
            second = np.where(observed, np.where(observed, evidence, 0) ** 2, beliefs.second_moment)
            np.testing.assert_allclose(beliefs.second_moment, second)
        np.testing.assert_allclose(bp.pairwise, exact.pairwise, atol=1e-9)
        want = ebm.Exact()(model.hidden_marginal()).log_partition + model.log_volume
        np.testing.assert_allclose(ebm.Exact()(model).log_partition, want, rtol=1e-12)
        whole = np.nan_to_num(evidence)
        held = ebm.Exact()(model, whole, np.ones_like(observed))
        np.testing.assert_allclose(held.log_partition, -model.free_energy(whole), rtol=1e-12)
        with pytest.raises(NotImplementedError, match="`log_partition` is not known"):
            _ = bp.log_partition


@pytest.mark.slow
def test_statistics_are_those_of_enumeration():
    with oracle.x64(True):
        model = star()
        for given in ((), random_query(model)):
            found, want = (f.statistics(model, *given) for f in (ebm.BP(5), ebm.Exact()))
            for a, b in zip(jax.tree.leaves(found)[:4], jax.tree.leaves(want)[:4], strict=True):
                np.testing.assert_allclose(a, b, atol=1e-9)
        # They are the gradient of log Z, which is exact of loops too.
        model = random_model(3, dtype="float64")
        held = ebm.Exact().statistics(model)
        own = jax.grad(lambda m: -expected_energy(m, held))(model)
        slopes.assert_slopes(lambda m: ebm.Exact()(m).log_partition, model, own, RNG)


@pytest.mark.slow
def test_maximum_likelihood_by_messages():
    """Against differences of the likelihood, on a star, where messages are exact."""
    with oracle.x64(True):
        model = star()
        rows = np.random.default_rng(5).normal(size=(8, 7))
        learner = ebm.MLE(ebm.BP(5))
        state = learner.init(model, key=0)
        gradient, _, _ = learner.step(model, state, rows, key=0, epoch=0)

        def loss(m):
            return m.free_energy(rows).mean() + ebm.Exact()(m).log_partition

        slopes.assert_slopes(loss, model, gradient, RNG, atol=1e-8)
    model = random_model(1, scale=0.1)
    rows = np.random.default_rng(6).normal(2.0, 0.5, size=(60, 6)).astype(np.float32)
    options: dict[str, Any]
    options = dict(optimizer=optax.adam(0.05), epochs=8, batch_size=20, key=0, progress=False)
    fitted = ebm.fit(model, ebm.MLE(ebm.BP(5)), rows, **options).model
    before, after = (
        float(ebm.log_likelihood(m, rows, ebm.Exact()(m).log_partition).mean())
        for m in (model, fitted)
    )
    assert after > before + 1
