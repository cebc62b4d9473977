import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import ebmlearn as ebm


KEY = jax.random.key(0)


def energy(model, x):
    """The energy of configurations of all units, by the model's own method."""
    layers = [jnp.asarray(part) for part in oracle.flat(model).cut(x)]
    if isinstance(model, ebm.BoltzmannMachine):
        return model.energy(layers[0])
    if isinstance(model, ebm.DBM):
        return model.energy(layers[0], tuple(layers[1:]))
    return model.energy(layers[0], layers[1])


@pytest.mark.slow
@oracle.every_model
def test_energy(kind, dtype):
    model = oracle.MODELS[kind](np.random.default_rng(0), dtype=dtype)
    t = oracle.truth(model)
    for states in (t.states.astype(np.int32), t.states.astype(bool), t.states.astype(np.float32)):
        np.testing.assert_allclose(energy(model, states), -t.scores, rtol=1e-5, atol=1e-5)
    assert energy(model, t.states.astype(np.int32)).dtype == dtype


def test_conditionals_and_free_energy_of_an_rbm():
    rbm = oracle.random_rbm(np.random.default_rng(1))
    v, h = np.array([1, 0, 1, 1, 0]), np.array([0, 1, 1, 0])
    given_v = oracle.truth(rbm, dict(enumerate(v.tolist())))
    given_h = oracle.truth(rbm, dict(enumerate(h.tolist(), 5)))
    np.testing.assert_allclose(rbm.hidden_given(v), given_v.marginals[1], atol=1e-6)
    np.testing.assert_allclose(rbm.visible_given(h), given_h.marginals[0], atol=1e-6)
    np.testing.assert_allclose(rbm.free_energy(v), -given_v.log_z, rtol=1e-6)


def test_conditionals_and_free_energy_of_a_semi_restricted_model():
    model = oracle.random_semi(np.random.default_rng(2))
    v, h = np.array([1, 0, 1, 1]), np.array([0, 1, 1])
    given_v = oracle.truth(model, dict(enumerate(v.tolist())))
    np.testing.assert_allclose(model.hidden_given(v), given_v.marginals[1], atol=1e-6)
    np.testing.assert_allclose(model.free_energy(v), -given_v.log_z, rtol=1e-6)
    x = np.concatenate([v, h])
    for i in range(4):
        rest = {k: int(s) for k, s in enumerate(x) if k != i}
        want = oracle.truth(model, rest).marginals[0][i]
        np.testing.assert_allclose(model.visible_given(v, h)[i], want, atol=1e-6)


def test_conditionals_without_layers():
    model = oracle.random_boltzmann(np.random.default_rng(3))
    x = np.array([1, 0, 1, 1, 0, 0, 1])
    for i in range(7):
        want = oracle.truth(model, {k: int(s) for k, s in enumerate(x) if k != i})
        np.testing.assert_allclose(model.unit_given(x)[i], want.marginals[0][i], atol=1e-6)


def test_conditionals_of_a_deep_model():
    model = oracle.random_dbm(np.random.default_rng(4))
    sizes = oracle.flat(model).sizes
    x = np.random.default_rng(5).integers(0, 2, sum(sizes))
    layers = oracle.flat(model).cut(x)
    starts = np.cumsum((0, *sizes))
    for k in range(4):
        inside = range(starts[k], starts[k + 1])
        want = oracle.truth(model, {i: int(s) for i, s in enumerate(x) if i not in inside})
        got = model.layer_given(k, layers[0], layers[1:])
        np.testing.assert_allclose(got, want.marginals[k], atol=1e-6)


@pytest.mark.slow
def test_crbm_is_an_rbm_for_each_row_of_features():
    crbm = ebm.CRBM.init(visible=4, hidden=3, features=2, key=KEY, scale=1.0)
    crbm = eqx.tree_at(lambda m: m.hidden_bias, crbm, jnp.array([0.5, -1.0, 2.0]))
    x = jax.random.normal(jax.random.key(1), (5, 6, 2))
    batch = crbm.condition(x)
    assert batch.visible_bias.shape == (5, 6, 4)
    assert batch.hidden_bias.shape == (5, 6, 3)
    assert batch.batch_shape == (5, 6)
    v, h = np.array([1, 0, 0, 1], np.float32), np.array([1, 1, 0], np.float32)
    w, a, c = crbm.weights, crbm.visible_features, crbm.hidden_features
    want = -(v @ w @ h) - v @ (a @ x[2, 3]) - h @ (c @ x[2, 3] + crbm.hidden_bias)
    np.testing.assert_allclose(crbm.energy(v, h, x)[2, 3], want, rtol=1e-5)
    np.testing.assert_allclose(crbm.energy(v, h, x[2, 3]), want, rtol=1e-5)
    one = crbm.condition(x[2, 3])
    np.testing.assert_allclose(crbm.free_energy(v, x)[2, 3], one.free_energy(v), rtol=1e-5)
    np.testing.assert_allclose(crbm.hidden_given(v, x)[2, 3], one.hidden_given(v), rtol=1e-5)
    np.testing.assert_allclose(crbm.visible_given(h, x)[2, 3], one.visible_given(h), rtol=1e-5)
    assert (crbm.num_visible, crbm.num_hidden, crbm.num_features) == (4, 3, 2)


@pytest.mark.slow
def test_two_hidden_layers_are_an_rbm():
    dbm = oracle.random_dbm(np.random.default_rng(6), (3, 4, 2))
    rbm = dbm.to_rbm()
    assert (rbm.num_visible, rbm.num_hidden) == (5, 4)
    v, h1, h2 = np.array([1, 0, 1]), np.array([0, 1, 1, 0]), np.array([1, 1])
    np.testing.assert_allclose(
        dbm.energy(v, (h1, h2)), rbm.energy(np.concatenate([v, h2]), h1), atol=1e-5
    )
    deep, flat = ebm.BP(iterations=7)(dbm), ebm.BP(iterations=7)(rbm)
    np.testing.assert_allclose(deep.visible, flat.visible[:3], atol=1e-6)
    np.testing.assert_allclose(deep.hidden[1], flat.visible[3:], atol=1e-6)
    np.testing.assert_allclose(deep.log_partition, flat.log_partition, rtol=1e-5)
    shallow = oracle.random_dbm(np.random.default_rng(7), (3, 4)).to_rbm()
    assert (shallow.num_visible, shallow.num_hidden) == (3, 4)
    with pytest.raises(ValueError, match="at most two hidden layers"):
        oracle.random_dbm(np.random.default_rng(8)).to_rbm()


@pytest.mark.slow
@pytest.mark.parametrize("kind", oracle.MODELS)
def test_spins(kind):
    model = oracle.MODELS[kind](np.random.default_rng(9))
    spins = model.to_spins()
    back = type(model).from_spins(*spins)
    for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(back), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    # The spin parameters, laid out as if they were those of a {0, 1} model.
    as_binary = oracle.flat(type(model)(*spins))
    s = 2 * oracle.truth(model).states - 1
    want = -s @ as_binary.bias - np.einsum("si,ij,sj->s", s, as_binary.couplings, s) / 2
    gap = np.asarray(energy(model, (s + 1) / 2)) - want
    np.testing.assert_allclose(gap, gap[0], atol=1e-4)


def test_spins_of_a_batch():
    rbm = oracle.random_rbm(np.random.default_rng(10))
    batch = ebm.RBM(rbm.weights, jnp.stack([rbm.visible_bias] * 3), rbm.hidden_bias)
    couplings, field, other = batch.to_spins()
    np.testing.assert_array_equal(field[1], rbm.to_spins()[1])
    back = ebm.RBM.from_spins(couplings, field, other)
    np.testing.assert_allclose(back.visible_bias, batch.visible_bias, atol=1e-5)
    assert back.hidden_bias.shape == batch.hidden_bias.shape


def test_no_hidden_units():
    crbm = ebm.CRBM.init(visible=3, hidden=0, features=2, key=KEY, scale=1.0)
    x, v = jnp.ones((4, 2)), jnp.ones((4, 3))
    want = -(x @ crbm.visible_features.T).sum(1)
    np.testing.assert_allclose(crbm.free_energy(v, x), want, rtol=1e-5)
    np.testing.assert_allclose(crbm.energy(v, jnp.zeros((4, 0)), x), want, rtol=1e-5)
    assert crbm.visible_given(jnp.zeros((4, 0)), x).shape == (4, 3)
    assert crbm.condition(x).to_spins()[1].shape == (4, 3)


def initialised(dtype=None):
    return [
        ebm.RBM.init(40, 30, key=KEY, dtype=dtype),
        ebm.CRBM.init(40, 30, 20, key=KEY, dtype=dtype),
        ebm.DBM.init(40, (30, 20), key=KEY, dtype=dtype),
        ebm.BoltzmannMachine.init(40, key=KEY, dtype=dtype),
        ebm.SemiRestrictedBM.init(40, 30, key=KEY, dtype=dtype),
    ]


@pytest.mark.slow
def test_init(dtype):
    for model in initialised(dtype):
        for leaf in map(np.asarray, jax.tree.leaves(model)):
            assert leaf.dtype == dtype
            if leaf.ndim == 1:
                assert (leaf == 0).all()
            else:
                std = leaf.std() * (40 / 39) ** 0.5 if leaf.shape == (40, 40) else leaf.std()
                np.testing.assert_allclose(std, 0.01, rtol=0.1)
        again = type(model)
        assert isinstance(model, again)
    one, two = initialised(), initialised()
    assert all(bool(eqx.tree_equal(a, b)) for a, b in zip(one, two, strict=True))


def test_sizes():
    rbm, crbm, dbm, boltzmann, semi = initialised()
    assert (rbm.num_visible, rbm.num_hidden) == (40, 30)
    assert crbm.num_features == 20
    assert (dbm.num_visible, dbm.num_hidden) == (40, (30, 20))
    assert boltzmann.num_units == 40
    assert (semi.num_visible, semi.num_hidden) == (40, 30)


def test_serialisation_needs_nothing_special(tmp_path):
    for model in initialised():
        path = tmp_path / f"{type(model).__name__}.eqx"
        eqx.tree_serialise_leaves(path, model)
        like = jax.tree.map(jnp.zeros_like, model)
        assert bool(eqx.tree_equal(eqx.tree_deserialise_leaves(path, like), model))


def test_tempered():
    model = oracle.random_semi(np.random.default_rng(11))
    x = oracle.truth(model).states
    np.testing.assert_allclose(energy(model.tempered(0.3), x), 0.3 * energy(model, x), rtol=1e-4)
    crbm = ebm.CRBM.init(4, 3, 2, key=KEY).tempered(jnp.asarray(2.0))
    np.testing.assert_allclose(crbm.weights, 2 * ebm.CRBM.init(4, 3, 2, key=KEY).weights)


def test_models_are_pytrees_under_transformations():
    rbm = oracle.random_rbm(np.random.default_rng(12))
    v = jnp.array([1.0, 0.0, 1.0, 1.0, 0.0])
    gradient = jax.jit(jax.grad(lambda m: m.free_energy(v)))(rbm)
    assert isinstance(gradient, ebm.RBM)
    np.testing.assert_allclose(gradient.visible_bias, -v)
    np.testing.assert_allclose(gradient.hidden_bias, -rbm.hidden_given(v), rtol=1e-5)


def test_couplings_are_symmetrised_inside():
    # As after an update that broke the symmetry, or while differentiating.
    model = oracle.random_boltzmann(np.random.default_rng(13), 3)
    skewed = model.couplings + jnp.array([[5.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    broken = eqx.tree_at(lambda m: m.couplings, model, skewed)
    x = jnp.array([1, 1, 0])
    np.testing.assert_allclose(broken.energy(x), model.energy(x), rtol=1e-5)
    for a, b in zip(broken.to_spins(), model.to_spins(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    np.testing.assert_allclose(ebm.BP(5)(broken).x, ebm.BP(5)(model).x, rtol=1e-5)
