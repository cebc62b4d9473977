"""`BP(starts=...)`: models with two modes, of which one start finds one."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ebmlearn as ebm
from ebmlearn import uai


# All units agree, with the odds e^TILT of 1 against 0.
TILT, STRONG = 0.5, 6.0


def ferromagnet(rows, columns, strong=STRONG):
    """An RBM whose units agree, slightly tilted towards 1."""
    weights = jnp.full((rows, columns), strong)
    tilt = TILT / (rows + columns)
    return ebm.RBM(weights, tilt - weights.sum(1) / 2, tilt - weights.sum(0) / 2)


def grid(shape):
    table = 1.5 * jnp.eye(2)
    bias = jnp.asarray([0.0, TILT / (shape[0] * shape[1])])
    return ebm.GridMRF(table, table, table, table, shape=shape, bias=bias)


def potts():
    """A ring with chords of variables with 3 states, of which the last has one state less."""
    pairs = [(a, b) for a in range(5) for b in range(a) if (a - b) % 5 in (1, 2, 3)]
    table = 3 * np.eye(3)
    tables = [table[: 3 - (a == 4), : 3 - (b == 4)] for a, b in pairs]
    unary = np.asarray([0.0, 0.3, -3.0])
    return ebm.TableModel([3, 3, 3, 3, 2], [*pairs, (0,)], [*tables, unary])


def boltzmann():
    couplings = STRONG / 2 * (1 - np.eye(5))
    return ebm.BoltzmannMachine(jnp.asarray(couplings), TILT / 5 - couplings.sum(0) / 2)


def dbm():
    weights = jnp.full((3, 2), STRONG), jnp.full((2, 3), STRONG)
    fields = weights[0].sum(1), weights[0].sum(0) + weights[1].sum(1), weights[1].sum(0)
    return ebm.DBM(weights, [TILT / 8 - x / 2 for x in fields])


def factors(model):
    pytest.importorskip("pgmax")
    return uai.to_factor_graph(model)


TWO_MODES: dict[str, Any] = {
    "rbm": (lambda: ferromagnet(4, 3), {}),
    "dbm": (dbm, {"schedule": "flooding", "damping": 0.2}),
    "boltzmann": (boltzmann, {"damping": 0.2}),
    "grid": (lambda: grid((3, 3)), {"damping": 0.2}),
    "potts": (potts, {"damping": 0.2}),
    "factors": (lambda: factors(grid((2, 3))), {"damping": 0.2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO_MODES)
def test_two_modes_are_found_and_weighed(name):
    model, settings = TWO_MODES[name]
    model = model()
    bp = ebm.BP(300, tol=1e-6, starts=6, **settings)
    found, exact = bp(model), ebm.Exact()(model)
    assert found.converged and not found.stable
    np.testing.assert_allclose(found.log_partition, exact.log_partition, atol=0.15)
    for a, b in zip(jax.tree.leaves(found.means), jax.tree.leaves(exact.means), strict=True):
        np.testing.assert_allclose(a, b, atol=0.05)
    for a, b in zip(jax.tree.leaves(found.pairwise), jax.tree.leaves(exact.pairwise), strict=True):
        np.testing.assert_allclose(a, b, atol=0.05 * max(1, np.abs(b).max()))


@pytest.mark.slow
def test_gradient_of_log_partition_and_statistics_are_the_combined_answer():
    model = ferromagnet(4, 3)
    bp = ebm.BP(300, tol=1e-6, starts=6)
    beliefs, statistics = bp(model), bp.statistics(model)
    gradient = eqx.filter_grad(lambda m: bp(m).log_partition)(model)
    for found in (gradient.weights, statistics.pairwise):
        np.testing.assert_allclose(found, beliefs.pairwise, atol=1e-4)
    for found in (gradient.visible_bias, statistics.units.visible):
        np.testing.assert_allclose(found, beliefs.visible, atol=1e-4)
    other = ebm.BP(300, tol=1e-6, starts=6, key=1)(model)
    np.testing.assert_allclose(other.visible, beliefs.visible, atol=1e-4)


@pytest.mark.slow
def test_one_start_is_confident_and_wrong_where_several_are_not():
    # The usual start leads into the mode of lower energy, which has 62% of the probability.
    single = ebm.BP(300, tol=1e-6)(ferromagnet(4, 3))
    assert single.converged and single.stable is None and single.visible.min() > 0.95
    several = ebm.BP(300, tol=1e-6, starts=3)(ferromagnet(4, 3))
    p = 1 / (1 + np.exp(-TILT))
    np.testing.assert_allclose(several.visible, p, atol=0.02)
    assert several.settled == 0


@pytest.mark.slow
def test_weak_models_are_stable_and_as_with_one_start():
    rng = np.random.default_rng(0)
    weights, visible, hidden = (jnp.asarray(rng.normal(size=s)) for s in ((5, 4), (20, 5), (20, 4)))
    model = ebm.RBM(0.5 * weights, visible, hidden)
    one, several = (ebm.BP(200, tol=1e-6, starts=n)(model) for n in (1, 5))
    np.testing.assert_array_equal(several.stable, np.ones(20, bool))
    assert several.settled == 1
    np.testing.assert_allclose(several.visible, one.visible, atol=1e-5)


@pytest.mark.slow
def test_each_instance_of_a_batch_is_judged_alone():
    model = ferromagnet(4, 3)
    evidence = jnp.asarray([[1.0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    observed = jnp.asarray([[True, False, False, False], [False] * 4, [True, True, True, True]])
    bp = ebm.BP(300, tol=1e-6, starts=4, key=jax.random.key(3))
    exact = ebm.Exact()(model, evidence, observed)

    @eqx.filter_jit
    def solved(model, evidence, observed):
        found = bp(model, evidence, observed)
        return found.visible, found.hidden, found.stable

    visible, hidden, stable = solved(model, evidence, observed)
    # One unit that is held leaves one mode.
    np.testing.assert_array_equal(stable, [True, False, True])
    np.testing.assert_allclose(visible, exact.visible, atol=0.02)
    np.testing.assert_allclose(hidden, exact.hidden, atol=0.02)
    mapped = jax.vmap(lambda e, o: solved(model, e, o))(evidence, observed)
    np.testing.assert_allclose(mapped[0], visible, atol=1e-5)
    np.testing.assert_array_equal(mapped[2], stable)


@pytest.mark.slow
def test_messages_that_are_not_kept_are_passed_again(monkeypatch):
    model, bp = ferromagnet(5, 3), ebm.BP(300, tol=1e-6, starts=4)
    kept: Any = bp(model)
    monkeypatch.setattr("ebmlearn.inference._bp.KEPT", 0)
    jax.clear_caches()
    again: Any = bp(model)
    assert again._derived.kept is None and kept._derived.kept is not None
    np.testing.assert_allclose(again.log_partition, kept.log_partition, rtol=1e-6)
    np.testing.assert_allclose(again.pairwise, kept.pairwise, atol=1e-6)
    jax.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary", "tables"])
def test_the_best_of_several_maxima_is_kept(kind):
    rng = np.random.default_rng(1)
    # Spins without fields have two best configurations; small fields choose one.
    weights = jnp.asarray(rng.normal(size=(6, 6)) * 3)
    biases = jnp.asarray(rng.normal(size=(30, 6))) - weights.sum(1)[None] / 2
    hidden = -weights.sum(0) / 2
    rbm = ebm.RBM(weights, biases, hidden)
    model, evidence = rbm, None
    if kind == "tables":
        model = uai.to_tables(ebm.RBM(weights, jnp.zeros(6), hidden))
        soft = jnp.exp(jnp.stack([jnp.zeros_like(biases), biases], -1))
        evidence = {"x": jnp.concatenate([soft, jnp.ones_like(soft)], 1)}

    def value(beliefs):
        states = beliefs.decode()
        if kind == "binary":
            return -rbm.energy(states.visible, states.hidden)
        x = states["x"].astype(float)
        return -rbm.energy(x[:, :6], x[:, 6:])

    one, several = (
        ebm.BP(60, product="max", damping=0.3, starts=n)(model, evidence) for n in (1, 8)
    )
    best = ebm.Exact(product="max")(rbm).log_partition
    assert (value(several) >= value(one) - 1e-4).all() and (value(several) <= best + 1e-4).all()
    assert (value(several) > value(one) + 0.1).sum() >= 2
    solved = [np.isclose(value(x), best, atol=1e-4).sum() for x in (one, several)]
    assert solved[1] >= solved[0] + 3
    # Where all starts decode the same, so does the first.
    stable = np.asarray(several.stable)
    np.testing.assert_allclose(value(several)[stable], value(one)[stable], atol=1e-4)


@pytest.mark.slow
def test_mixed_product_keeps_the_best_visible_configuration():
    rng = np.random.default_rng(2)
    weights, visible = (jnp.asarray(3 * rng.normal(size=s)) for s in ((6, 5), (30, 6)))
    rbm = ebm.RBM(weights, visible, jnp.zeros(5))
    one, several = (ebm.BP(60, product="mixed", starts=n)(rbm) for n in (1, 8))
    exact = ebm.Exact(product="mixed")(rbm).log_partition
    values = [-rbm.free_energy(x.decode().visible) for x in (one, several)]
    assert (values[1] >= values[0] - 1e-4).all() and (values[1] <= exact + 1e-3).all()
    assert (values[1] > values[0] + 0.1).any()


def test_errors_say_what_to_write():
    with pytest.raises(ValueError, match="`starts` must be at least 1, got 0"):
        ebm.BP(10, starts=0)
    gaussian = ebm.GaussianRBM.init(3, 2, key=0)
    with pytest.raises(ValueError, match=r"`starts=[0-9]` must be left out for a GaussianRBM"):
        ebm.BP(10, starts=2)(gaussian)
