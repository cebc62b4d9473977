"""Gaussian RBMs against quadrature and exact sampling."""

from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ebmlearn as ebm
from ebmlearn import datasets
from ebmlearn.learners._base import Told


KEY = jax.random.key(0)


def random_model(seed=0, visible=2, hidden=3, batch=()):
    rng = np.random.default_rng(seed)
    return ebm.GaussianRBM(
        jnp.asarray(rng.normal(size=(visible, hidden)), jnp.float32),
        jnp.asarray(rng.normal(size=(*batch, visible)), jnp.float32),
        jnp.asarray(rng.normal(size=hidden), jnp.float32),
        jnp.asarray(0.4 * rng.normal(size=visible), jnp.float32),
    )


def log_partition(model):
    return ebm.Exact()(model.hidden_marginal()).log_partition + model.log_volume


def grid(width=25, number=600):
    x = np.linspace(-width, width, number)
    points = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)
    return points.astype(np.float32), (x[1] - x[0]) ** 2


def drawn(model, number, seed=1):
    """Exact samples: hidden units from their enumerated marginal, visible units given them."""
    rng = np.random.default_rng(seed)
    machine = model.hidden_marginal()
    n = model.num_hidden
    h = np.array([[k >> j & 1 for j in range(n)] for k in range(2**n)])
    p = np.exp(-np.asarray(machine.energy(h), np.float64))
    h = h[rng.choice(len(h), size=number, p=p / p.sum())]
    v = np.asarray(model.visible_given(h)) + np.asarray(model.sigma) * rng.normal(
        size=(number, model.num_visible)
    )
    return ebm.Layers(jnp.asarray(v, jnp.float32), jnp.asarray(h, jnp.int32))


@pytest.mark.slow
def test_densities_by_quadrature():
    model = random_model()
    points, cell = grid()
    density = np.exp(np.asarray(ebm.log_likelihood(model, points, log_partition(model)), float))
    assert density.sum() * cell == pytest.approx(1, abs=1e-3)
    # The hidden units, and the mean of the visible ones, by integration over the visible ones.
    hidden = (density[:, None] * np.asarray(model.hidden_given(points))).sum(0) * cell
    np.testing.assert_allclose(hidden, ebm.Exact()(model.hidden_marginal()).x, atol=1e-3)
    h = np.array([1, 0, 1])
    given = np.exp(-np.asarray(model.energy(points, h), float))
    given /= given.sum()
    np.testing.assert_allclose(given @ points, model.visible_given(h), atol=1e-3)
    spread = given @ (points - given @ points) ** 2
    np.testing.assert_allclose(np.sqrt(spread), model.sigma, atol=1e-3)


@pytest.mark.slow
def test_energies():
    model = random_model(batch=(4,))
    rng = np.random.default_rng(1)
    v = rng.normal(size=(4, 2)).astype(np.float32)
    every = np.array([[k >> j & 1 for j in range(3)] for k in range(8)])
    energies = np.stack([model.energy(v, h) for h in every])
    np.testing.assert_allclose(
        model.free_energy(v), -np.logaddexp.reduce(-energies, axis=0), atol=1e-5
    )
    b, c, w = (
        np.asarray(model.visible_bias),
        np.asarray(model.hidden_bias),
        np.asarray(model.weights),
    )
    sigma = np.exp(np.asarray(model.log_sigma))
    want = ((v - b) ** 2 / (2 * sigma**2)).sum(1) - (v / sigma) @ w @ every[5] - c @ every[5]
    np.testing.assert_allclose(energies[5], want, atol=1e-5)
    hot = model.tempered(0.3)
    gap = np.stack([hot.energy(v, h) for h in every]) - 0.3 * energies
    np.testing.assert_allclose(gap, np.broadcast_to(gap[:1], gap.shape), atol=1e-5)
    again = model.with_unary(model.unary())
    np.testing.assert_allclose(again.visible_bias, model.visible_bias, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    [
        ebm.Gibbs(),
        ebm.TemperedTransitions([0.4, 0.7, 1.0]),
        ebm.ParallelTempering([0.5, 1.0]),
    ],
    ids=["gibbs", "tempered", "parallel"],
)
def test_chains_do_not_drift(sampler):
    """Chains that start at the distribution stay there; a wrong kernel would move them."""
    model = random_model(2)
    number = 40_000
    start = drawn(model, number)
    parallel = isinstance(sampler, ebm.ParallelTempering)
    state = sampler.init(model, number, key=KEY, start=start)
    if parallel:
        hot = drawn(model.tempered(0.5), number, seed=2)
        both = jax.tree.map(lambda a, b: jnp.stack([a, b]), hot, start)
        state = eqx.tree_at(lambda s: s.replicas, state, both)
    info = None
    for k in range(3):
        state, info = sampler.step(model, state, key=jax.random.key(k))

    def moments(units):
        v, h = np.asarray(units.visible), np.asarray(units.hidden)
        return np.concatenate([v, v**2, h, v[:, :1] * h], 1)

    a, b = moments(start), moments(state.units)
    error = 5 * np.sqrt((a.var(0) + b.var(0)) / number)
    assert (np.abs(a.mean(0) - b.mean(0)) < error).all()
    assert not np.array_equal(start.visible, state.units.visible)
    assert info is not None
    np.testing.assert_allclose(
        info.energy, model.energy(state.units.visible, state.units.hidden), rtol=1e-4, atol=1e-3
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner", [ebm.SAP(num_chains=40_000), ebm.CD(30, start="random")], ids=["sap", "cd"]
)
def test_gradient_is_that_of_the_likelihood(learner):
    model = random_model(3)
    v = np.random.default_rng(4).normal(size=(40_000, 2)).astype(np.float32)

    def loss(model):
        return model.free_energy(v).mean() + log_partition(model)

    exact = jax.grad(loss)(model)
    state, gradient = learner.init(model, key=KEY), None
    for k in range(15 if isinstance(learner, ebm.SAP) else 1):
        gradient, state, _ = learner.step(model, state, v, key=jax.random.key(k), epoch=0)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=0.05, rtol=0.03), gradient, exact
    )


@pytest.mark.slow
def test_centred_gradient():
    """To the centred parameters and back: the derivative of `uncentred`, twice."""
    model = random_model(5)
    v = np.random.default_rng(6).normal(size=(50, 2)).astype(np.float32)
    plain, _, _ = ebm.CD(1).step(model, None, v, key=KEY, epoch=0)
    centred, _, _ = ebm.CD(1, centred=True).step(model, None, v, key=KEY, epoch=0)
    flat, back = jax.flatten_util.ravel_pytree(model)
    jacobian = jax.jacobian(lambda x, mu: jax.flatten_util.ravel_pytree(back(x).uncentred(mu))[0])
    first = jnp.zeros((), jnp.int32)
    told = Told(model, (jnp.asarray(v), None), None)
    found, _ = ebm.CD(1).phases(told, None, key=KEY, epoch=first)
    data, chains = found.positive, found.negative
    mu = jax.tree.map(lambda a, b: (a.mean(0) + b.mean(0)) / 2, data.units, chains.units)
    j = np.asarray(jacobian(flat, mu), np.float64)
    want = j @ j.T @ np.asarray(jax.flatten_util.ravel_pytree(plain)[0], np.float64)
    got = np.asarray(jax.flatten_util.ravel_pytree(centred)[0])
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)
    assert not np.allclose(got, jax.flatten_util.ravel_pytree(plain)[0], atol=0.1)


@pytest.mark.slow
def test_a_stack_on_grey_digits():
    """A Gaussian RBM of grey levels, an RBM on its hidden units: each learns, and what comes down
    resembles what went up.
    """
    data = datasets.digits(threshold=None)
    x, test = (np.asarray(s.x, np.float32) for s in (data.train, data.test))
    mean, scale = x.mean(0), x.std(0) + 1.0
    x, test = (x - mean) / scale, (test - mean) / scale
    lower = ebm.GaussianRBM.init(64, 10, key=KEY)
    options: dict[str, Any]
    options = dict(optimizer=optax.adam(1e-2), batch_size=63, key=KEY, progress=False)
    fitted = ebm.fit(lower, ebm.SAP(num_chains=63), x, epochs=15, **options).model

    def log_probability(model):
        return float(ebm.log_likelihood(model, test, log_partition(model)).mean())

    independent = float(
        (-0.5 * ((test - x.mean(0)) / x.std(0).clip(0.2)) ** 2
         - np.log(x.std(0).clip(0.2) * np.sqrt(2 * np.pi))).sum(1).mean()
    )  # fmt: skip
    assert log_probability(fitted) > max(log_probability(lower), independent) + 1
    upper = ebm.RBM.init(10, 6, key=KEY)
    bits = ebm.models.Stack([fitted, upper]).activities(x, key=KEY)
    assert bits.dtype == jnp.int32
    assert bits.shape == (1197, 10)
    top = ebm.fit(upper, ebm.SAP(num_chains=63), bits, epochs=15, **options).model
    exact = [
        float(ebm.log_likelihood(m, bits, ebm.Exact()(m).log_partition).mean())
        for m in (upper, top)
    ]
    assert exact[1] > exact[0] + 0.5
    stack = ebm.models.Stack([fitted, top])
    means = stack.activities(test)
    np.testing.assert_allclose(means, fitted.hidden_given(test))
    back = np.asarray(stack.down(means))
    assert ((back - test) ** 2).mean() < 0.8 * (test**2).mean()


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user")
def test_bad_input():
    model = random_model()
    with pytest.raises(TypeError, match="hidden_marginal"):
        ebm.MeanField(3)(model)
    with pytest.raises(TypeError, match="log_volume"):
        ebm.ais(model, key=KEY)
    with pytest.raises(
        TypeError, match="binary or categorical units for GibbsWithGradients, got a GaussianRBM"
    ):
        ebm.GibbsWithGradients().init(model, 3, key=KEY)
    with pytest.raises(ValueError, match="positive for real units"):
        ebm.ParallelTempering([0.0, 1.0]).init(model, 3, key=KEY)
    with pytest.raises(TypeError, match="real numbers"):
        start = ebm.Layers(jnp.zeros(2, jnp.int32), None)
        ebm.Gibbs().init(model, 3, key=KEY, start=start)
    with pytest.raises(ValueError, match="`log_sigma`"):
        ebm.GaussianRBM(jnp.zeros((2, 3)), jnp.zeros(2), jnp.zeros(3), jnp.zeros(3))
    with pytest.raises(ValueError, match="finite"):
        ebm.SAP().step(model, None, np.array([[np.inf, 0.0]], np.float32), key=KEY, epoch=0)
    with pytest.raises(ValueError, match="finite"):
        start = ebm.Layers(jnp.asarray([np.nan, 0.0]), None)
        ebm.Gibbs().init(model, 3, key=KEY, start=start)
    with pytest.raises(ValueError, match="`beta`"):
        model.tempered(0.0)
    start = ebm.Layers(jnp.zeros(2, jnp.float16), None)
    drawn = ebm.sample(model, ebm.Gibbs(), 3, key=KEY, start=start)
    assert drawn.visible.dtype == jnp.float32
    with pytest.raises(TypeError, match=r"pseudo-likelihood takes, binary.* got a GaussianRBM"):
        ebm.pseudo_log_likelihood(model, np.zeros((1, 2), np.float32))
    with pytest.raises(TypeError, match="finitely many states"):
        ebm.MCMCMLE().init(model, key=KEY)
    with pytest.raises(TypeError, match=r"models\[1\]"):
        ebm.models.Stack([model, model])
    with pytest.raises(ValueError, match="as the model below has hidden units"):
        ebm.models.Stack([model, ebm.RBM.init(4, 2, key=KEY)])
