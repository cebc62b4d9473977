"""Bounds of log Z: `TRBP` from above, `MeanField` from below."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import ebmlearn as ebm
from ebmlearn import uai
from ebmlearn.inference import _power_sums
from ebmlearn.inference._base import limited
from ebmlearn.inference._minimise import minimise
from ebmlearn.messages import MAKERS


# A bound may be off by the rounding of sums of numbers as large as this.
ROUNDING = 1e-4
# Variables of 2, 3 and 4 states, and tables of one to three of them, in no order.
STATES = (2, 3, 2, 4, 2)
SCOPES = ((0, 1), (2, 1), (3, 0), (4, 0, 2), (1, 3), (2,), (4,))
TABLES = ebm.TableModel(STATES, SCOPES, [np.zeros([STATES[v] for v in s]) for s in SCOPES])


def normals(key, *shapes):
    keys = jax.random.split(key, len(shapes))
    return [jax.random.normal(k, shape) for k, shape in zip(keys, shapes, strict=True)]


def tables(key, scale):
    values = normals(key, *(x.shape for x in TABLES.log_potentials))
    return eqx.tree_at(lambda m: m.log_potentials, TABLES, tuple(scale * x for x in values))


def rbm(key, scale):
    weights, visible, hidden = normals(key, (4, 3), (4,), (3,))
    centre = weights.sum(1) / 2, weights.sum(0) / 2
    return ebm.RBM(scale * weights, visible - scale * centre[0], hidden - scale * centre[1])


def grid(key, scale):
    *pairs, bias = normals(key, (2, 2), (2, 2), (2, 2), (2, 2), (2,))
    return ebm.GridMRF(*(scale * x for x in pairs), shape=(3, 3), bias=bias)


# How many of the five hundred are of each kind.
MAKE = {"tables": (tables, 200), "rbm": (rbm, 150), "grid": (grid, 150)}
EVIDENCE: dict[str, Any] = {
    "tables": ({"x": jnp.asarray([-1, 2, -1, -1, 0])}, None),
    "rbm": (jnp.asarray([1.0, 0.0, 0.3, 0.5]), jnp.asarray([True, False, True, False])),
}


@pytest.mark.parametrize("kind", MAKE)
def test_log_z_is_bracketed_on_five_hundred_models(kind):
    # Couplings from weak to so strong that no approximation is good.
    make, number = MAKE[kind]
    keys = jax.random.split(jax.random.key(0), number)
    scales = jnp.geomspace(0.1, 6, number)
    given = EVIDENCE.get(kind, (None, None))

    @jax.jit
    @jax.vmap
    def solved(key, scale):
        model = make(key, scale)
        below, above = ebm.MeanField(30)(model, *given), ebm.TRBP(200)(model, *given)
        values = [x.log_partition for x in (below, ebm.Exact()(model, *given), above)]
        return *values, above.means

    below, exact, above, means = solved(keys, scales)
    assert np.isfinite(below).all() and np.isfinite(above).all()
    assert (below <= exact + ROUNDING).all()
    assert (exact <= above + ROUNDING).all()
    # They are close where couplings are weak.
    assert (above - exact)[:20].max() < 0.4 and (exact - below)[:20].max() < 0.4
    assert all(np.isfinite(x).all() and x.min() >= 0 for x in jax.tree.leaves(means))


def decomposition(model):
    stacks = MAKERS[model.kind].tables(model)
    shape = model.num_variables, max(model.counts)
    return _power_sums.decomposed(shape, stacks, _power_sums.pieces_of(shape, stacks), model.dtype)


def test_any_messages_and_weights_give_a_bound():
    @jax.jit
    @jax.vmap
    def solved(key, scale):
        model = tables(key, scale)
        network = decomposition(model)
        start = _power_sums.first(network)
        leaves, structure = jax.tree.flatten(start)
        noise = normals(jax.random.fold_in(key, 1), *(x.shape for x in leaves))
        there = jnp.asarray(TABLES.there)
        rows = jnp.zeros(there.shape)

        def bound(size):
            at = jax.tree.unflatten(structure, [size * x for x in noise])
            return _power_sums.bound(at, network, rows, there)

        sizes = jnp.asarray([0.0, 0.3, 1.0, 4.0])
        return jax.vmap(bound)(sizes), ebm.Exact()(model).log_partition

    keys = jax.random.split(jax.random.key(1), 200)
    found, exact = solved(keys, jnp.geomspace(0.1, 5, 200))
    assert (found >= exact[:, None] - ROUNDING).all() and np.isfinite(found).all()


def test_gradient_of_the_bound_is_its_beliefs():
    graph = tables(jax.random.key(3), 1.0)

    @jax.grad
    def gradient(potentials):
        own = eqx.tree_at(lambda m: m.log_potentials, graph, potentials)
        return ebm.TRBP(200)(own).log_partition

    found = ebm.TRBP(200)(graph)
    for a, b in zip(gradient(graph.log_potentials), found.pairwise.values, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    # The tables of single variables: their entries are the beliefs.
    for k, (scope, table) in enumerate(zip(SCOPES, TABLES.log_tables, strict=True)):
        if len(scope) == 1:
            own = found["x"][scope[0], : table.shape[0]]
            np.testing.assert_allclose(found.pairwise[k], own, atol=1e-5)


def test_exact_on_trees():
    rng = np.random.default_rng(0)
    machine, _ = oracle.random_tree_boltzmann(rng, 8)
    # A tree of tables: two neighbours share one variable.
    scopes = [(0, 1, 2), (3, 2), (3, 4, 5), (5, 6), (2, 7)]
    states = [2, 3, 2, 3, 2, 2, 3, 2, 2]
    values = [1.5 * rng.normal(size=[states[v] for v in s]) for s in scopes]
    for model in (machine, ebm.TableModel(states, scopes, values)):
        found, exact = ebm.TRBP()(model), ebm.Exact()(model)
        np.testing.assert_allclose(found.log_partition, exact.log_partition, atol=2e-3)
        for a, b in zip(jax.tree.leaves(found.means), jax.tree.leaves(exact.means), strict=True):
            np.testing.assert_allclose(a, b, atol=5e-3)


def test_zeros_and_evidence():
    # Impossible entries, and rows of evidence of which the last decides nearly all.
    values = [np.asarray(x) for x in TABLES.log_tables]
    rng = np.random.default_rng(4)
    values = [
        np.where(rng.random(x.shape) < 0.2, -np.inf, rng.normal(size=x.shape)) for x in values
    ]
    model = ebm.TableModel(STATES, SCOPES, values)
    rows = jnp.asarray([[-1, -1, -1, -1, -1], [-1, 2, -1, -1, 0], [1, 0, 1, -1, 1]])
    found, exact = ebm.TRBP(300)(model, {"x": rows}), ebm.Exact()(model, {"x": rows})
    possible = np.isfinite(exact.log_partition)
    assert possible.sum() >= 2 and np.isfinite(found.log_partition[possible]).all()
    assert (found.log_partition >= exact.log_partition - ROUNDING)[possible].all()
    np.testing.assert_array_equal(found["x"][1, 1], [0, 0, 1, 0])


def test_factor_graphs_have_the_bound_of_their_tables():
    pgmax = pytest.importorskip("ebmlearn.pgmax")
    from pgmax import fgraph, fgroup, vgroup

    rng = np.random.default_rng(5)
    x: Any = vgroup.NDVarArray(num_states=2, shape=(6,))
    graph = fgraph.FactorGraph([x])
    listed = np.array([[0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]])
    graph.add_factors(
        [
            fgroup.EnumFactorGroup(
                variables_for_factors=[[x[0], x[2], x[1]], [x[4], x[3], x[5]]],
                factor_configs=listed,
                log_potentials=rng.normal(size=(2, 4)),
            ),
            pgmax.RBMFactorGroup([x[0], x[3]], [x[1], x[5]], rng.normal(size=(2, 2))),
        ]
    )
    model = pgmax.FactorGraphModel(graph).with_evidence({x: rng.normal(size=(6, 2))})
    bound = ebm.TRBP(200)
    found, exact = bound(model), ebm.Exact()(model)
    network = decomposition(uai.to_tables(model))
    assert sum(len(x.tables) for x in network.stacks) == 6
    assert exact.log_partition - ROUNDING <= found.log_partition <= exact.log_partition + 0.5
    for a, b in zip(found.pairwise.values, model.log_potentials, strict=True):
        assert a.shape == b.shape
    graph.add_factors(fgroup.ORFactorGroup(variables_for_factors=[[x[0], x[1], x[2]]]))
    with pytest.raises(TypeError, match=r"must let all factors list.*`uai.to_tables`"):
        ebm.TRBP()(pgmax.FactorGraphModel(graph))


def test_errors_say_what_to_write():
    with pytest.raises(TypeError, match="must be of a kind that TRBP takes"):
        ebm.TRBP()(ebm.GaussianRBM.init(3, 2, key=0))
    with pytest.raises(TypeError, match="must not be an argument of a compiled function"):
        jax.jit(lambda m: ebm.TRBP()(m).log_partition)(tables(jax.random.key(0), 1.0))


def test_minimise_finds_the_bottom_of_a_curved_valley():
    def rosenbrock(x):
        return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    def evaluate(x):
        return *jax.value_and_grad(rosenbrock)(x), x.sum()

    limits = limited(500, 1e-3, jnp.float32)
    start = jnp.asarray([-1.2, 1.0, -1.0, 2.0])
    x, value, more, iterations, residual = minimise(evaluate, start, limits)
    np.testing.assert_allclose(x, 1, atol=1e-3)
    np.testing.assert_allclose([value, more], [0, x.sum()], atol=1e-5)
    assert residual <= 1e-3 and iterations < 200
