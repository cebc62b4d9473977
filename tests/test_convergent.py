"""`ConvergentBP`: the double loop."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import ebmlearn as ebm


STATES = (2, 3, 2, 4, 2)
SCOPES = ((0, 1), (2, 1), (3, 0), (4, 0, 2), (1, 3), (2,), (4,))


def tables(rng, scale):
    values = [scale * rng.normal(size=[STATES[v] for v in s]) for s in SCOPES]
    return ebm.TableModel(STATES, SCOPES, values)


def rbm(rng, scale):
    weights = jnp.asarray(scale * rng.normal(size=(4, 3)))
    return ebm.RBM(weights, jnp.asarray(rng.normal(size=4)), jnp.asarray(rng.normal(size=3)))


def machine(key, scale, size=7):
    one, two = jax.random.split(key)
    upper = jnp.triu(jax.random.normal(one, (size, size)), 1)
    weights = scale * (upper + upper.T)
    return ebm.BoltzmannMachine(weights, jax.random.normal(two, (size,)) - weights.sum(1) / 2)


def same(a, b, atol):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, atol=atol)


@pytest.mark.slow
def test_exact_on_trees():
    rng = np.random.default_rng(0)
    chain, edges = oracle.random_tree_boltzmann(rng, 8)
    scopes, states = [(0, 1, 2), (3, 2), (3, 4, 5), (5, 6), (2, 7)], [2, 3, 2, 3, 2, 2, 3, 2, 2]
    values = [1.5 * rng.normal(size=[states[v] for v in s]) for s in scopes]
    for model in (chain, ebm.TableModel(states, scopes, values)):
        found, exact = ebm.ConvergentBP()(model), ebm.Exact()(model)
        assert found.converged
        np.testing.assert_allclose(found.log_partition, exact.log_partition, atol=1e-3)
        same(found.means, exact.means, 1e-3)
        same(_joined(found.pairwise, edges), _joined(exact.pairwise, edges), 1e-3)


def _joined(pairwise, edges):
    """Beliefs about pairs that are joined by an edge, or about tables."""
    return pairwise[edges] if isinstance(pairwise, jax.Array) else pairwise.values


@pytest.mark.slow
@pytest.mark.parametrize("make", [rbm, tables])
def test_it_agrees_with_messages_that_converge(make):
    model = make(np.random.default_rng(1), 0.8)
    evidence = {"x": jnp.asarray([-1, 2, -1, -1, 0])} if make is tables else None
    plain = ebm.BP(1000, damping=0.5, tol=1e-6)(model, evidence)
    found = ebm.ConvergentBP()(model, evidence)
    assert plain.converged and found.converged
    np.testing.assert_allclose(found.log_partition, plain.log_partition, atol=1e-3)
    same(found.means, plain.means, 2e-3)
    same(found.pairwise, plain.pairwise, 2e-3)


def bethe(model, p, pairs):
    """Bethe's approximation of log Z, in float64, from beliefs about single units and pairs."""
    p, both = np.asarray(p, np.float64), np.asarray(pairs, np.float64)
    weights, bias = np.asarray(model.couplings, np.float64), np.asarray(model.bias, np.float64)
    upper = np.triu_indices(len(p), 1)
    joint = np.stack([both, p[:, None] - both, p - both, 1 - p[:, None] - p + both])[:, *upper]
    single = np.stack([p, 1 - p])

    def entropy(x):
        x = np.maximum(x, 1e-30)
        return -(x * np.log(x)).sum(0)

    energy = (both * weights)[upper].sum() + (p * bias).sum()
    return energy + entropy(joint).sum() - (len(p) - 2) * entropy(single).sum()


@pytest.mark.slow
def test_it_converges_where_messages_do_not_and_never_falls():
    keys, scales = jax.random.split(jax.random.key(3), 12), jnp.linspace(1, 8, 12)

    @jax.jit
    @jax.vmap
    def solved(key, scale):
        model = machine(key, scale, size=6)

        def told(number):
            found = ebm.ConvergentBP(number, tol=1e-3)(model)
            return found.log_partition, found.converged, found.x, found.pairwise

        plain = ebm.BP(300, tol=1e-4)(model)
        return model, plain.converged, jax.vmap(told)(jnp.asarray([2, 5, 200]))

    model, plain, (values, converged, p, pairs) = solved(keys, scales)
    assert converged[:, -1].all() and plain.sum() < 9
    assert (jnp.diff(values, axis=1) >= -1e-3).all()
    for k in range(12):
        one = jax.tree.map(lambda x, k=k: x[k], model)
        np.testing.assert_allclose(values[k, -1], bethe(one, p[k, -1], pairs[k, -1]), atol=5e-3)


@pytest.mark.slow
def test_the_end_is_a_local_minimum_of_the_free_energy():
    rng = np.random.default_rng(6)
    for k in range(4):
        model = machine(jax.random.key(k), 1.2, size=4)
        found = ebm.ConvergentBP(tol=1e-5)(model)
        p, both = np.asarray(found.x, np.float64), np.asarray(found.pairwise, np.float64)
        at = bethe(model, p, both)
        for _ in range(20):
            q = p + 0.01 * rng.normal(size=4) * p * (1 - p)
            noise = 0.01 * rng.normal(size=(4, 4))
            least = np.minimum(both, np.minimum(p[:, None], p) - both)
            moved = both + (noise + noise.T) * np.abs(least)
            # What is left of the pairs must stay possible.
            low, high = np.maximum(0, q[:, None] + q - 1), np.minimum(q[:, None], q)
            assert bethe(model, q, np.clip(moved, low, high)) <= at + 1e-5


@pytest.mark.slow
def test_gradients_are_beliefs():
    model = rbm(np.random.default_rng(3), 1.5)

    def value(weights, visible):
        return ebm.ConvergentBP()(ebm.RBM(weights, visible, model.hidden_bias)).log_partition

    found = ebm.ConvergentBP()(model)
    weights, visible = jax.grad(value, argnums=(0, 1))(model.weights, model.visible_bias)
    np.testing.assert_allclose(weights, found.pairwise, atol=1e-4)
    np.testing.assert_allclose(visible, found.visible, atol=1e-4)
    statistics = ebm.ConvergentBP().statistics(model)
    np.testing.assert_allclose(statistics.pairwise, found.pairwise, atol=1e-4)


@pytest.mark.slow
def test_zeros_and_evidence():
    rng = np.random.default_rng(4)
    shapes = [[STATES[v] for v in s] for s in SCOPES]
    values = [np.where(rng.random(x) < 0.2, -np.inf, rng.normal(size=x)) for x in shapes]
    model = ebm.TableModel(STATES, SCOPES, values)
    rows = jnp.asarray([[-1, -1, -1, -1, -1], [-1, 2, -1, -1, 0]])
    found, exact = ebm.ConvergentBP()(model, {"x": rows}), ebm.Exact()(model, {"x": rows})
    assert found.converged.all() and np.isfinite(found.log_partition).all()
    np.testing.assert_array_equal(found["x"][1, 1], [0, 0, 1, 0])
    np.testing.assert_allclose(found["x"], exact["x"], atol=0.1)
    # What cannot be is not believed.
    assert (found["x"][exact["x"] == 0] < 1e-6).all()


def test_errors_say_what_to_write():
    with pytest.raises(TypeError, match="must be of a kind that ConvergentBP takes"):
        ebm.ConvergentBP()(ebm.GaussianRBM.init(3, 2, key=0))
    with pytest.raises(ValueError, match="`tol` must lie in"):
        ebm.ConvergentBP(tol=-1.0)
