"""`BP(damping="auto")` and `BP(schedule="residual")`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ebmlearn as ebm


PACES: dict[str, Any] = {
    "auto": {"damping": "auto"},
    "residual": {"schedule": "residual"},
    "both": {"damping": "auto", "schedule": "residual"},
}


def machine(key, scale, size=7):
    """All units coupled, with both signs, so that messages contradict each other."""
    one, two = jax.random.split(key)
    upper = jnp.triu(jax.random.normal(one, (size, size)), 1)
    weights = scale * (upper + upper.T)
    bias = jax.random.normal(two, (size,)) - weights.sum(1) / 2
    return ebm.BoltzmannMachine(weights, bias)


def rbm(rng, scale=1.0):
    weights = scale * rng.normal(size=(4, 3))
    return ebm.RBM(jnp.asarray(weights), jnp.asarray(rng.normal(size=4)), jnp.zeros(3))


def grid(rng):
    pairs = rng.normal(size=(4, 3, 3))
    return ebm.GridMRF(*map(jnp.asarray, pairs), shape=(3, 3), bias=jnp.asarray(rng.normal(size=3)))


def tables(rng):
    states, scopes = (2, 3, 2, 4), ((0, 1), (1, 2, 3), (3, 0), (2,))
    return ebm.TableModel(
        states, scopes, [0.7 * rng.normal(size=[states[v] for v in s]) for s in scopes]
    )


def same(a, b, atol=2e-4):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("make", [rbm, grid, tables])
def test_the_fixed_point_is_that_of_plain_messages(make, pace):
    model = make(np.random.default_rng(0))
    plain = ebm.BP(2000, damping=0.5, tol=1e-6)(model)
    beliefs = ebm.BP(2000, tol=1e-6, **PACES[pace])(model)
    assert plain.converged and beliefs.converged
    same(beliefs.means, plain.means)
    same(beliefs.pairwise, plain.pairwise)
    np.testing.assert_allclose(beliefs.log_partition, plain.log_partition, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("product", ["max", "mixed"])
def test_other_products(product, pace):
    model = rbm(np.random.default_rng(1))
    plain = ebm.BP(500, product=product, damping=0.5)(model)
    beliefs = ebm.BP(500, product=product, **PACES[pace])(model)
    same(beliefs.decode(), plain.decode())


@pytest.mark.slow
def test_more_models_converge():
    keys, scales = jax.random.split(jax.random.key(3), 60), jnp.linspace(1.0, 8.0, 60)

    def converged(**settings):
        bp = ebm.BP(1000, tol=1e-4, **settings)
        return jax.jit(jax.vmap(lambda k, s: bp(machine(k, s)).converged))(keys, scales)

    plain = converged()
    found = {name: converged(**settings) for name, settings in PACES.items()}
    assert 5 < plain.sum() < 45
    for name, more in {"auto": 4, "residual": 3, "both": 4}.items():
        assert found[name].sum() >= plain.sum() + more, name
    # Damping that is not needed is not used.
    assert (found["auto"] | ~plain).all()


@pytest.mark.slow
def test_each_row_has_its_own_damping():
    # The couplings alone oscillate; a strong bias settles them.
    model = machine(jax.random.key(5), 2.5)
    pull = 12 * jnp.sign(jnp.arange(7.0) - 2.5)
    rows = jnp.stack([model.bias, model.bias + pull])
    bp = ebm.BP(3000, damping="auto", tol=1e-5)
    batch = bp(ebm.BoltzmannMachine(model.couplings, rows))
    for k in range(2):
        one = bp(ebm.BoltzmannMachine(model.couplings, rows[k]))
        assert one.iterations == batch.iterations[k]
        np.testing.assert_allclose(batch.x[k], one.x, atol=1e-5)
    assert batch.iterations[1] < 10 < batch.iterations[0]


@pytest.mark.slow
@pytest.mark.parametrize("pace", PACES)
def test_gradients_of_unrolled_sweeps(pace, in_float64):
    model = rbm(np.random.default_rng(2))
    bp = ebm.BP(15, unroll=True, **PACES[pace])

    def value(visible):
        return bp(ebm.RBM(model.weights, visible, model.hidden_bias)).hidden.sum()

    gradient, step = jax.grad(value)(model.visible_bias), 1e-6
    for k in range(4):
        ends = [value(model.visible_bias.at[k].add(sign * step)) for sign in (1, -1)]
        np.testing.assert_allclose(gradient[k], (ends[0] - ends[1]) / (2 * step), atol=1e-6)


@pytest.mark.slow
def test_learning_with_them():
    rows = (np.random.default_rng(0).random((40, 5)) < [0.9, 0.8, 0.5, 0.2, 0.1]).astype(np.float32)
    model = ebm.BoltzmannMachine(jnp.zeros((5, 5)), jnp.zeros(5))
    learner = ebm.MLE(ebm.BP(20, damping="auto"))
    found = ebm.fit(model, learner, rows, optimizer=optax.adam(0.1), epochs=50, key=0)
    means = ebm.BP(20)(found.model).x
    np.testing.assert_allclose(means, rows.mean(0), atol=0.1)


def test_errors_say_what_to_write(as_a_user):
    with pytest.raises(ValueError, match="`damping` must be one of 'auto', got 'fast'"):
        ebm.BP(10, damping="fast")  # pyright: ignore
    with pytest.raises(ValueError, match=r"`schedule` must be .*'residual', got 'random'"):
        ebm.BP(10, schedule="random")  # pyright: ignore
    gaussian = ebm.GaussianRBM.init(3, 2, key=0)
    with pytest.raises(ValueError, match='`damping="auto"` must be left out for a GaussianRBM'):
        ebm.BP(10, damping="auto")(gaussian)
