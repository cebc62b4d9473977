"""Bounds of log Z: `TRBP` from above, `MeanField` from below."""

import functools
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
from ebmlearn.models import stacks_of


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


KINDS = {"rbm": rbm, "grid": grid}
HELD = jnp.asarray([-1, 2, -1, -1, 0])
SEEN = jnp.asarray([1.0, 0.0, 0.3, 0.5]), jnp.asarray([True, False, True, False])


def many(number):
    """Keys, and couplings from weak to so strong that no approximation is good."""
    return jax.random.split(jax.random.key(0), number), jnp.geomspace(0.1, 6, number)


def check_bracket(below, exact, above):
    assert np.isfinite(below).all() and np.isfinite(above).all()
    assert (below <= exact + ROUNDING).all()
    assert (exact <= above + ROUNDING).all()
    # They are close where couplings are weak.
    assert (above - exact)[:20].max() < 0.4 and (exact - below)[:20].max() < 0.4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_log_z_is_bracketed_on_three_hundred_models(kind):
    given = SEEN if kind == "rbm" else (None, None)

    @jax.jit
    @jax.vmap
    def solved(key, scale):
        model = KINDS[kind](key, scale)
        solvers = ebm.MeanField(30), ebm.Exact(), ebm.TRBP(200)
        return [solver(model, *given).log_partition for solver in solvers]

    check_bracket(*solved(*many(150)))


def decomposition(model):
    stacks: Any = stacks_of(model)
    shape = model.num_variables, max(model.counts)
    entries = _power_sums.entries_of(model.num_variables, stacks)
    return _power_sums.decomposed(shape, stacks, entries, model.dtype)


@pytest.mark.slow
def test_log_z_is_bracketed_on_two_hundred_graphs():
    @jax.jit
    @jax.vmap
    def solved(key, scale):
        model = tables(key, scale)

        @functools.partial(jax.value_and_grad, has_aux=True)
        def above(potentials):
            own = eqx.tree_at(lambda m: m.log_potentials, model, potentials)
            beliefs = ebm.TRBP(200)(own, {"x": HELD})
            return beliefs.log_partition, (beliefs.pairwise.values, beliefs["x"])

        (value, beliefs), gradient = above(model.log_potentials)
        others = [x(model, {"x": HELD}).log_partition for x in (ebm.MeanField(30), ebm.Exact())]

        network = decomposition(model)
        there = jnp.arange(4)[None] < jnp.asarray(TABLES.counts)[:, None]
        there = there & ((HELD < 0)[:, None] | jax.nn.one_hot(HELD, 4, dtype=bool))
        leaves, structure = jax.tree.flatten(_power_sums.first(network))
        noise = normals(jax.random.fold_in(key, 1), *(x.shape for x in leaves))

        def bound(size):
            at = jax.tree.unflatten(structure, [size * x for x in noise])
            weights = _power_sums.weights_of(at.logits, network)
            return _power_sums.bound(at.sent, weights, network, jnp.zeros(there.shape), there)

        anywhere = jax.vmap(bound)(jnp.asarray([0.0, 0.3, 1.0, 4.0]))
        return (*others, value), anywhere, gradient, beliefs

    bracket, anywhere, gradient, (pairs, beliefs) = solved(*many(200))
    check_bracket(*bracket)
    # Any messages and any weights give an upper bound, which the best ones lower.
    assert np.isfinite(anywhere).all() and (anywhere >= bracket[1][:, None] - ROUNDING).all()
    assert (anywhere[:, 0] >= bracket[2] - ROUNDING).all()
    # The gradient of the bound is its beliefs; a table of one variable holds those of it.
    for a, b in zip(gradient, pairs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    np.testing.assert_array_equal(beliefs[:, 1], np.tile([0, 0, 1, 0], (200, 1)))
    own = pairs[TABLES.places_of_tables[SCOPES.index((2,))][0]]
    np.testing.assert_allclose(own[:, 0], beliefs[:, 2, :2], atol=1e-5)
    for x, axes in ((pairs[0], (2, 3)), (beliefs, (2,))):
        np.testing.assert_allclose(x.sum(axes), 1, atol=1e-4)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    model = pgmax.FactorGraphModel(graph)
    assert bound(model).log_partition >= ebm.Exact()(model).log_partition - ROUNDING
    wide: Any = vgroup.NDVarArray(num_states=2, shape=(12,))
    graph = fgraph.FactorGraph([wide])
    graph.add_factors(fgroup.ORFactorGroup(variables_for_factors=[[wide[k] for k in range(12)]]))
    with pytest.raises(TypeError, match=r"have factors of few variables.*`uai.to_tables`"):
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
    np.testing.assert_allclose(value, 0, atol=1e-5)
    np.testing.assert_allclose(more, x.sum(), atol=1e-5)
    assert residual <= 1e-3 and iterations < 200
