"""Factor groups of our own against PGMax's, in the same graphs."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from untyped import nd_var_array

import ebmlearn.pgmax


pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def as_pgmax():
    """PGMax is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def graphs(rng, dense, logical) -> Any:
    """An RBM of 4×3 and one of 3×2 that share variables, with a chain of pairwise factors and, if
    wanted, an OR and an AND; and its evidence.
    """
    from pgmax import fgraph, fgroup

    a = nd_var_array(num_states=2, shape=(2, 2))
    b = nd_var_array(num_states=2, shape=(3,))
    c = nd_var_array(num_states=2, shape=(2,))
    graph = fgraph.FactorGraph([a, b, c])
    weights = {(a, b): rng.normal(size=(4, 3)), (b, c): rng.normal(size=(3, 2))}
    chain = rng.normal(size=(2, 2, 2))
    groups = []
    for (first, second), w in weights.items():
        if dense:
            group = ebmlearn.pgmax.RBMFactorGroup(first, second, w)
        else:
            potentials = np.zeros((w.size, 2, 2))
            potentials[:, 1, 1] = w.ravel()
            pairs = [[i, j] for i in first.variables for j in second.variables]
            group = fgroup.PairwiseFactorGroup(
                variables_for_factors=pairs, log_potential_matrix=potentials
            )
        groups.append(group)
        graph.add_factors(group)
    graph.add_factors(
        fgroup.PairwiseFactorGroup(
            variables_for_factors=[[a[0, 0], a[0, 1]], [a[0, 1], a[1, 1]]],
            log_potential_matrix=chain,
        )
    )
    if logical:
        graph.add_factors(fgroup.ORFactorGroup([[a[0, 0], a[1, 0], c[0]]]))
        graph.add_factors(fgroup.ANDFactorGroup([[a[0, 1], a[1, 1], c[1]]]))
    evidence = {g: rng.normal(size=(*g.shape, 2)) for g in (a, b, c)}
    return graph, groups, evidence


def ordered(values, graph):
    return [np.asarray(values[group]) for group in graph.variable_groups]


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "logical"), [(0.0, True), (0.5, False), (1.0, True)])
def test_the_same_beliefs_as_pairwise_factors(temperature, logical):
    from pgmax import infer

    results = []
    for dense in (True, False):
        graph, _, evidence = graphs(np.random.default_rng(0), dense, logical)
        bp = infer.build_inferer(graph.bp_state, backend="bp")
        arrays = bp.init(evidence_updates=evidence)
        steps = []
        for iterations, damping in ((1, 0.0), (60, 0.5)):
            run = jax.jit(lambda a, n=iterations, d=damping: bp.run(a, n, d, temperature))  # noqa: B023
            beliefs = bp.get_beliefs(run(arrays))
            marginals = infer.get_marginals(beliefs)
            steps.append(ordered(marginals, graph))
        states = infer.decode_map_states(beliefs)
        energy, _, _ = infer.compute_energy(graph.bp_state, arrays, states)
        slow, _, _ = infer.compute_energy(graph.bp_state, arrays, states, debug_mode=True)
        assert float(energy) == pytest.approx(slow, rel=1e-4)
        results.append((steps, ordered(states, graph), float(energy)))
    for ours, theirs in zip(results[0][0], results[1][0], strict=True):
        for x, y in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(x, y, atol=2e-5)
    for x, y in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_array_equal(x, y)
    assert results[0][2] == pytest.approx(results[1][2], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.1])
def test_the_same_bounds_of_the_dual_solver(temperature):
    from pgmax import infer

    bounds = []
    for dense in (True, False):
        graph, _, evidence = graphs(np.random.default_rng(1), dense, True)
        sdlp = cast(Any, infer.build_inferer(graph.bp_state, backend="sdlp"))
        arrays = sdlp.init(evidence_updates=evidence)
        arrays, values = sdlp.run_with_objvals(arrays, temperature, num_iters=40)
        states, _ = sdlp.decode_primal_unaries(arrays)
        upper = sdlp.get_primal_upper_bound(arrays)
        bounds.append([*np.asarray(values), float(upper), sdlp.get_map_lower_bound(arrays, states)])
    np.testing.assert_allclose(bounds[0], bounds[1], rtol=1e-4, atol=1e-4)
    assert bounds[0][-2] >= bounds[0][-1] - 1e-3


@pytest.mark.slow
def test_potentials_can_be_read_and_changed():
    from pgmax import infer

    graph, groups, evidence = graphs(np.random.default_rng(2), True, False)
    other, theirs, _ = graphs(np.random.default_rng(2), False, False)
    new = np.random.default_rng(3).normal(size=(4, 3))
    potentials = np.zeros((12, 2, 2))
    potentials[:, 1, 1] = new.ravel()
    beliefs = []
    for g, group, data in ((graph, groups[0], new), (other, theirs[0], potentials)):
        bp = infer.build_inferer(g.bp_state, backend="bp")
        by_group = dict(zip(g.variable_groups, evidence.values(), strict=True))
        arrays = bp.init(log_potentials_updates={group: data}, evidence_updates=by_group)
        beliefs.append(infer.get_marginals(bp.get_beliefs(bp.run(arrays, 20, 0.0, 1.0))))
    for x, y in zip(ordered(beliefs[0], graph), ordered(beliefs[1], other), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-5)
    group = groups[0]
    np.testing.assert_allclose(group.unflatten(graph.bp_state.log_potentials[group]), group.weights)
    messages = jnp.arange(48.0).reshape(4, 3, 2, 2)
    np.testing.assert_array_equal(group.unflatten(group.flatten(messages)), messages)
    a, b, _ = graph.variable_groups
    edge = group[[b[1], a[1, 0]]]
    assert edge.variables == [a[1, 0], b[1]]
    np.testing.assert_allclose(edge.log_potentials, [0, 0, 0, group.weights[2, 1]])
    assert len(group.factors) == group.num_factors == 12
    assert group.factors[7].log_potentials[3] == group.weights[2, 1]


@pytest.mark.usefixtures("as_a_user")
def test_bad_input():
    from pgmax import fgraph, infer
    from pgmax.factor import FAC_TO_VAR_UPDATES

    group = cast(Any, ebmlearn.pgmax.RBMFactorGroup)
    a, b = (nd_var_array(num_states=2, shape=(n,)) for n in (3, 2))
    three = nd_var_array(num_states=3, shape=(2,))
    w = np.zeros((3, 2))
    cases = [
        (lambda: group(a, b, w.T), ValueError, r"`weights`.*\(3, 2\)"),
        (lambda: group(a, three, w), ValueError, "`hidden_variables` must have 2 states"),
        (lambda: group([a[0], a[0], a[1]], b, w), ValueError, "different variables"),
        (lambda: group(a, [a[0], a[1]], w), ValueError, "in both"),
        (lambda: group([], b, w), ValueError, "at least one variable"),
        (lambda: group([1, 2, 3], b, w), TypeError, "PGMax variables"),
        (lambda: group(a, b, w.astype(int)), TypeError, "`weights`"),
        (lambda: group(a, b, w + np.inf), ValueError, "finite"),
        (lambda: group(a, b, w)[[a[0], a[1]]], ValueError, "a visible and a hidden"),
        (lambda: group(a, b, w).flatten(w.T), ValueError, "`data`"),
        (lambda: group(a, b, w).unflatten(np.zeros(5)), ValueError, "`flat_data`"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
    graph = fgraph.FactorGraph([a])
    graph.add_factors(group(a, b, w))
    with pytest.raises(ValueError, match="variables of the graph"):
        infer.build_inferer(graph.bp_state, backend="bp")
    # A graph from before the plugin was imported.
    known = FAC_TO_VAR_UPDATES.pop(ebmlearn.pgmax.RBMFactor)
    early = fgraph.FactorGraph([a, b])
    FAC_TO_VAR_UPDATES[ebmlearn.pgmax.RBMFactor] = known
    with pytest.raises(KeyError, match="before `import ebmlearn"):
        early.add_factors(group(a, b, w))
