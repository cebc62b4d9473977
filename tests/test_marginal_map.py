"""Mixed-product: layered models, graphs, and that of the benchmarks, which stores no messages."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import x64
from pgmax import fgraph, fgroup, vgroup

import ebmlearn as ebm
import ebmlearn.pgmax
from benchmarks._marginal_map import MarginalMAP
from benchmarks.crbm import shifted


RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(4, 3))
VISIBLE, HIDDEN = RNG.normal(size=4), RNG.normal(size=3)
SEEN = np.arange(7) < 4


def as_graph():
    """The RBM as a PGMax graph."""
    x: Any = vgroup.NDVarArray(num_states=2, shape=(7,))
    graph = fgraph.FactorGraph(variable_groups=[x])
    units = [x[i] for i in range(7)]
    graph.add_factors(ebmlearn.pgmax.RBMFactorGroup(units[:4], units[4:], WEIGHTS))
    bias = np.concatenate([VISIBLE, HIDDEN])
    evidence = {x: jnp.asarray(np.stack([np.zeros(7), bias], -1))}
    return ebmlearn.pgmax.FactorGraphModel(graph).with_evidence(evidence)


def as_tables():
    """The RBM as tables of its pairs and units."""
    scopes = [(i, 4 + j) for i in range(4) for j in range(3)] + [(i,) for i in range(7)]
    tables = [np.array([[0.0, 0], [0, w]]) for w in WEIGHTS.flat]
    return ebm.TableModel([2] * 7, scopes, tables + [np.array([0, b]) for b in (*VISIBLE, *HIDDEN)])


def as_one_group(kind):
    """The RBM as couplings inside one group, of binary or of categorical units."""
    couplings = np.zeros((7, 7))
    couplings[:4, 4:] = WEIGHTS
    bias, couplings = np.concatenate([VISIBLE, HIDDEN]), couplings + couplings.T
    if kind == "categorical":
        bias, couplings = (np.kron(x, y) for x, y in ((bias, [0, 1]), (couplings, np.diag([0, 1]))))
    units = ebm.Binary(7) if kind == "binary" else ebm.Categorical(7, 2)
    return ebm.FactorModel({"x": units}, [ebm.Dense("x", "x", couplings)], {"x": bias})


RBMS = {
    "two groups": lambda: ebm.FactorModel(
        {"v": ebm.Binary(4), "h": ebm.Binary(3)},
        [ebm.Dense("v", "h", WEIGHTS)],
        {"v": VISIBLE, "h": HIDDEN},
    ),
    "one group": lambda: as_one_group("binary"),
    "categorical": lambda: as_one_group("categorical"),
    "tables": as_tables,
    "pgmax": as_graph,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RBMS)
def test_graphs_have_the_fixed_point_of_layers(name):
    with x64():
        rbm, inference = ebm.RBM(WEIGHTS, VISIBLE, HIDDEN), ebm.BP(100, product="mixed", tol=1e-9)
        want, model = inference(rbm), RBMS[name]()
        problem = model.problem(None, None).with_outputs(jnp.asarray(SEEN))
        found = inference.beliefs_of(problem)
        assert found.converged and want.converged
        p = jnp.concatenate([x.reshape(-1, 2) for x in found.means.values])
        np.testing.assert_allclose(p[:, 1], jnp.concatenate([want.visible, want.hidden]), atol=1e-7)
        np.testing.assert_allclose(found.log_partition, want.log_partition, atol=1e-7)
        units = inference.statistics_of(problem).units
        p = jnp.concatenate([x.reshape(-1, 2) for x in units.values])
        expected = inference.statistics(rbm).units
        expected = jnp.concatenate([expected.visible, expected.hidden])
        np.testing.assert_allclose(p[:, 1], expected, atol=1e-7)


def best(score, outputs):
    """The best states of outputs with the others summed out, and the log of that sum."""
    others = tuple(np.flatnonzero(~outputs))
    sums = np.logaddexp.reduce(score, axis=others) if others else score
    return np.unravel_index(sums.argmax(), sums.shape), sums.max()


def spread(counts, scopes, tables):
    """The scores of all configurations."""
    score = np.zeros(counts)
    for scope, table in zip(scopes, tables, strict=True):
        wide = np.transpose(table, np.argsort(scope))
        score = score + wide.reshape([n if k in scope else 1 for k, n in enumerate(counts)])
    return score


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_trees_of_maximised_variables_with_summed_leaves_are_exact(seed):
    """In tables of several variables, too, of which some are summed over."""
    rng = np.random.default_rng(seed)
    counts, scopes = (3, 2, 2, 3, 2, 3), [(0, 1, 4), (2, 1), (5, 3, 2)]
    tables = [2 * rng.normal(size=[counts[v] for v in scope]) for scope in scopes]
    outputs = np.array([True, True, True, True, False, False])
    model = ebm.TableModel(counts, scopes, [jnp.asarray(x, jnp.float32) for x in tables])
    problem = model.problem(None, None).with_outputs(jnp.asarray(outputs))
    found = ebm.BP(10, product="mixed").beliefs_of(problem)
    states, value = best(spread(counts, scopes, tables), outputs)
    np.testing.assert_array_equal(found.decode()["x"][:4], states)
    np.testing.assert_allclose(found.log_partition, value, atol=1e-4)


@pytest.mark.slow
def test_outputs_and_evidence_of_instances_differ():
    rng = np.random.default_rng(5)
    counts, scopes = (3, 2, 3, 2), [(0, 1), (1, 2), (2, 3)]
    tables = [2 * rng.normal(size=[counts[v] for v in scope]) for scope in scopes]
    model = ebm.TableModel(counts, scopes, [jnp.asarray(x, jnp.float32) for x in tables])
    outputs = np.array([[True, True, True, False], [False, True, True, True], [True] * 4])
    held = np.array([[-1, 1, -1, -1], [-1, -1, -1, -1], [-1, -1, 0, -1]])
    problem = model.problem({"x": jnp.asarray(held)}, None).with_outputs(jnp.asarray(outputs))
    found, score = ebm.BP(10, product="mixed").beliefs_of(problem), spread(counts, scopes, tables)
    for row, own in enumerate(outputs):
        at = [slice(None) if s < 0 else [s] for s in held[row]]
        allowed = np.full(counts, -1e9)
        allowed[np.ix_(*(np.arange(n)[k] for n, k in zip(counts, at, strict=True)))] = 0
        states, value = best(score + allowed, own)
        np.testing.assert_array_equal(found.decode()["x"][row][own], states)
        np.testing.assert_allclose(found.log_partition[row], value, atol=1e-4)


@pytest.mark.slow
def test_grids_and_pgmax_graphs_are_exact_on_chains():
    """The last pixel, and the emissions, are summed over; a variable of an OR is."""
    rng = np.random.default_rng(2)
    right, label = 2 * rng.normal(size=(3, 3)), 2 * rng.normal(size=(3, 2))
    nothing = jnp.zeros((3, 3))
    grid = ebm.GridMRF(
        nothing, jnp.asarray(right, jnp.float32), nothing, nothing, shape=(1, 3),
        bias=jnp.zeros(3), emissions={"label": jnp.asarray(label, jnp.float32)},
    )  # fmt: skip
    outputs = np.array([True, True, False, False, True, False])
    scopes = [(0, 1), (1, 2), (0, 3), (1, 4), (2, 5)]
    score = spread((3,) * 3 + (2,) * 3, scopes, [right, right, label, label, label])
    problem = grid.problem(None, None).with_outputs(jnp.asarray(outputs))
    found = ebm.BP(10, product="mixed").beliefs_of(problem)
    np.testing.assert_allclose(found.log_partition, best(score, outputs)[1], atol=1e-4)

    x: Any = vgroup.NDVarArray(num_states=2, shape=(5,))
    graph = fgraph.FactorGraph(variable_groups=[x])
    graph.add_factors(fgroup.ORFactorGroup(variables_for_factors=[[x[0], x[1], x[2]]]))
    every = np.array([*itertools.product((0, 1), repeat=3)])
    table, unary = 2 * rng.normal(size=(2, 2, 2)), rng.normal(size=(5, 2))
    triple = fgroup.EnumFactorGroup(
        variables_for_factors=[[x[2], x[3], x[4]]],
        factor_configs=every,
        log_potentials=table.reshape(-1),
    )
    graph.add_factors(triple)
    model = ebmlearn.pgmax.FactorGraphModel(graph)
    model = model.with_evidence({x: jnp.asarray(unary, jnp.float32)})
    rule = np.where(np.maximum(*np.indices((2, 2, 2))[:2]) == np.indices((2, 2, 2))[2], 0, -1e9)
    outputs = np.array([True, False, True, True, False])
    scopes = [(0, 1, 2), (2, 3, 4), *((i,) for i in range(5))]
    score = spread((2,) * 5, scopes, [rule, table, *unary])
    problem = model.problem(None, None).with_outputs(jnp.asarray(outputs))
    found = ebm.BP(10, product="mixed").beliefs_of(problem)
    states, value = best(score, outputs)
    np.testing.assert_array_equal(found.decode()[x][outputs], states)
    np.testing.assert_allclose(found.log_partition, value, atol=1e-4)
    # The pairwise beliefs are those with the outputs held.
    p = np.exp(score - value)[states[0], :, states[1], states[2], :].sum(0)
    met = np.reshape(found.pairwise[triple], (2, 2, 2))
    np.testing.assert_allclose(met[states[1], states[2]], p, atol=1e-4)


def random_tree(rng, most):
    """Numbers of states, and edges, of a tree in any order."""
    counts = rng.integers(2, most + 1, 6).tolist()
    order = rng.permutation(6)
    scopes = [(order[rng.integers(k)], order[k]) for k in range(1, 6)]
    return counts, [tuple(map(int, rng.permutation(x))) for x in scopes]


def is_simple(scopes, outputs):
    """Whether what is summed over joins no two of what is maximised over."""
    part = list(range(len(outputs)))
    for a, b in (x for x in scopes if not outputs[list(x)].any()):
        part = [part[b] if p == part[a] else p for p in part]
    met = [(part[b], a) for x in scopes for a, b in (x, x[::-1]) if outputs[a] and not outputs[b]]
    return len({p for p, _ in met}) == len(met)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 7))
def test_users_say_what_trees_are_maximised_over(seed):
    rng = np.random.default_rng(seed)
    counts, scopes = random_tree(rng, 3)
    tables = [2 * rng.normal(size=[counts[v] for v in scope]) for scope in scopes]
    model = ebm.TableModel(counts, scopes, [jnp.asarray(x, jnp.float32) for x in tables])
    outputs, score = rng.random((3, 6)) < 0.6, spread(counts, scopes, tables)
    over = {"x": jnp.asarray(outputs)}
    exact = ebm.Exact(product="mixed")(model, maximised=over)
    found = ebm.BP(100, product="mixed", tol=1e-6)(model, maximised=over)
    for row, own in enumerate(outputs):
        states, value = best(score, own)
        np.testing.assert_allclose(exact.log_partition[row], value, atol=1e-4)
        np.testing.assert_array_equal(exact.decode()["x"][row][own], states)
        if not found.converged[row]:
            # Not even on a tree must they, where what is summed over joins what is maximised over.
            assert not is_simple(scopes, own)
            continue
        # Messages end at a configuration, of which they say what the others add up to.
        decoded = np.asarray(found.decode()["x"][row])
        others = tuple(np.flatnonzero(~own))
        sums = np.logaddexp.reduce(score, axis=others) if others else score
        np.testing.assert_allclose(found.log_partition[row], sums[tuple(decoded[own])], atol=1e-4)
        if is_simple(scopes, own):
            np.testing.assert_allclose(found.log_partition[row], value, atol=1e-4)
    one = ebm.BP(100, product="mixed", tol=1e-6).statistics(model, maximised={"x": outputs[0]})
    np.testing.assert_allclose(one.units["x"][outputs[0]].max(-1), 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_groups_named_hidden_are_summed_over(seed):
    """A tree of groups of one unit, in any order; others than users name are summed over, too."""
    rng = np.random.default_rng(seed)
    counts, scopes = random_tree(rng, 2 if seed % 2 else 4)
    hidden = rng.random(6) < 0.4
    hidden[rng.integers(6)] = True
    names = [f"hidden_{k + 1}" if h else f"group_{k}" for k, h in enumerate(hidden)]
    units = [ebm.Binary(1) if n == 2 else ebm.Categorical(1, n) for n in counts]
    tables = [2 * rng.normal(size=[counts[v] for v in scope]) for scope in scopes]
    factors = [
        ebm.Tables([names[v] for v in scope], jnp.asarray(x, jnp.float32))
        for scope, x in zip(scopes, tables, strict=True)
    ]
    model = ebm.FactorModel(dict(zip(names, units, strict=True)), factors)
    states, value = best(spread(counts, scopes, tables), ~hidden)
    over = {name: jnp.ones(1, bool) for name, h in zip(names, hidden, strict=True) if not h}
    for told in ({}, {"maximised": over} if over else {}):
        exact = ebm.Exact(product="mixed")(model, **told)
        found = ebm.BP(100, product="mixed", tol=1e-6)(model, **told)
        np.testing.assert_allclose(exact.log_partition, value, atol=1e-4)
        decoded = [int(exact.decode()[name][0]) for name in over]
        assert decoded == [int(x) for x in states]
        assert found.converged and found.log_partition < value + 1e-4
        if is_simple(scopes, ~hidden):
            np.testing.assert_allclose(found.log_partition, value, atol=1e-4)


@pytest.mark.slow
def test_users_say_what_layers_are_maximised_over():
    rbm, graph = ebm.RBM(WEIGHTS, VISIBLE, HIDDEN), RBMS["two groups"]()
    visible, hidden = np.array([True, False, False, True]), np.array([False, True, False])
    for inference in (ebm.Exact(product="mixed"), ebm.BP(100, product="mixed", tol=1e-6)):
        found = inference(rbm, maximised=ebm.Layers(visible, hidden))
        want = inference(graph, maximised={"v": visible, "h": hidden})
        np.testing.assert_allclose(found.log_partition, want.log_partition, atol=1e-5)
        np.testing.assert_array_equal(found.decode().hidden[1], want.decode()["h"][1])
        usual = inference(rbm, maximised=ebm.Layers(np.ones(4, bool), None))
        np.testing.assert_allclose(usual.log_partition, inference(rbm).log_partition, atol=1e-5)


@pytest.mark.slow
def test_mssvm_has_the_gradient_of_the_layered_model():
    rows = jnp.asarray(RNG.integers(0, 2, (6, 4)))
    weights, visible, hidden = (jnp.asarray(x, jnp.float32) for x in (WEIGHTS, VISIBLE, HIDDEN))
    learner = ebm.MSSVM(ebm.BP(30, product="mixed"))
    want, _, told = learner.step(ebm.RBM(weights, visible, hidden), None, rows, key=0, epoch=0)
    model = RBMS["two groups"]()
    found, _, info = learner.step(model, None, {"v": rows}, key=0, epoch=0)
    np.testing.assert_allclose(found.parts[0].weights, want.weights, atol=1e-5)
    np.testing.assert_allclose(found.biases[1], want.hidden_bias, atol=1e-5)
    np.testing.assert_allclose(info.loss, told.loss, atol=1e-4)
    free = jnp.full((6, 3), -1)
    found, _, info = learner.step(
        as_tables(), None, jnp.concatenate([rows, free], 1), key=0, epoch=0
    )
    np.testing.assert_allclose(
        found.log_potentials[0][:, 1, 1].reshape(4, 3), want.weights, atol=1e-5
    )
    np.testing.assert_allclose(info.loss, told.loss, atol=1e-4)


@pytest.mark.slow
def test_models_whose_visible_units_are_joined():
    """Mixed-product of a Boltzmann machine, all of whose units are visible, is max-product."""
    couplings = jnp.asarray([[0.0, 1.5, 0], [1.5, 0, -2], [0, -2, 0]])
    model = ebm.BoltzmannMachine(couplings, jnp.asarray([0.3, -0.2, 0.4]))
    found, want = (ebm.BP(10, product=product)(model) for product in ("mixed", "max"))
    np.testing.assert_allclose(found.log_partition, want.log_partition, atol=1e-6)
    np.testing.assert_array_equal(found.decode().x, want.decode().x)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.1, 2.0])
@pytest.mark.parametrize("sweeps", [1, 10])
def test_sweeps_without_messages_match_mixed_product(scale, sweeps):
    keys = jax.random.split(jax.random.key(0), 3)
    model = ebm.RBM(
        scale * jax.random.normal(keys[0], (40, 23)),
        jax.random.normal(keys[1], (7, 40)),
        jax.random.normal(keys[2], (7, 23)),
    )
    messages, without = ebm.BP(sweeps, product="mixed"), MarginalMAP(sweeps)
    expected, found = messages(model).log_odds.visible, without(model).log_odds.visible
    assert jnp.allclose(expected, found, atol=1e-4)
    expected, found = messages.statistics(model), without.statistics(model)
    assert (expected.units.visible == found.units.visible).all()
    assert jnp.allclose(expected.units.hidden, found.units.hidden, atol=1e-5)
    assert jnp.allclose(expected.pairwise, found.pairwise, atol=1e-5)


def test_shifts_move_images_by_at_most_a_pixel():
    image = jnp.zeros((28, 28), jnp.int32).at[10, 12].set(1)
    images = jnp.broadcast_to(image.reshape(-1), (200, 784))
    at = shifted(images, 1, key=jax.random.key(0)).argmax(1)
    assert set(zip((at // 28).tolist(), (at % 28).tolist(), strict=True)) == {
        (row, column) for row in (9, 10, 11) for column in (11, 12, 13)
    }
