"""MPLP on graphs of PGMax, against enumeration."""

import itertools

import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from pgmax import fgraph, fgroup
from untyped import nd_var_array

import ebmlearn as ebm
from ebmlearn.pgmax import FactorGraphModel, RBMFactorGroup


def best_of(model):
    """All configurations of a graph, and their log-potentials."""
    rows = np.array([*itertools.product(*map(range, model.num_states))], np.int32)
    return rows, -np.asarray(model.energy(jnp.asarray(rows)), np.float64)


def graph_of_all_kinds(rng):
    """Tables of uneven variables, some entries excluded, OR and pool factors, a dense group."""
    a = nd_var_array(num_states=np.array([2, 3, 4]), shape=(3,))
    b = nd_var_array(num_states=2, shape=(5,))
    graph = fgraph.FactorGraph([a, b])
    table = rng.normal(size=24)
    table[[0, 5, 7, 11]] = -np.inf
    graph.add_factors(
        fgroup.EnumFactorGroup(
            variables_for_factors=[[a[0], a[1], a[2]]],
            factor_configs=np.array([*itertools.product(range(2), range(3), range(4))]),
            log_potentials=table,
        )
    )
    graph.add_factors(
        fgroup.EnumFactorGroup(
            variables_for_factors=[[a[1], b[0]]],
            factor_configs=np.array([[0, 0], [1, 1], [2, 0], [2, 1]]),
            log_potentials=rng.normal(size=4),
        )
    )
    graph.add_factors(fgroup.ORFactorGroup(variables_for_factors=[[b[0], a[0], b[1]]]))
    graph.add_factors(fgroup.PoolFactorGroup(variables_for_factors=[[b[2], b[3], b[1]]]))
    graph.add_factors(RBMFactorGroup([b[0], b[1]], [b[3], b[4]], rng.normal(size=(2, 2))))
    model = FactorGraphModel(graph)
    excluded = jnp.asarray([0.0, -np.inf, 1.0, 0.2])
    model = model.with_evidence({b: jnp.asarray(rng.normal(size=(5, 2))), a[2]: excluded})
    return model, a, b


@pytest.mark.slow
def test_mplp_of_graphs_is_a_bound_that_never_rises():
    """With factors of all kinds and evidence; here it ends at the maximum."""
    rng = np.random.default_rng(5)
    with oracle.x64(True):
        model, a, b = graph_of_all_kinds(rng)
        rows, scores = best_of(model)
        evidence = {
            a: np.array([[-1, -1, -1], [1, -1, -1], [-1, 2, -1]]),
            b: np.array([[-1, -1, -1, -1, -1], [-1, 1, -1, -1, -1], [-1, -1, -1, -1, 1]]),
        }
        sweeps = (0, 1, 2, 5, 30, 1000)
        runs = [ebm.MPLP(k, tol=1e-9)(model, evidence) for k in sweeps]
        values, beliefs = np.stack([run.log_partition for run in runs]), runs[-1]
        assert (np.diff(values, axis=0) <= 1e-9).all() and (values[0] > values[-1] + 0.1).all()
        held = np.concatenate([evidence[a], evidence[b]], -1)
        for k, row in enumerate(held):
            fits = ((row < 0) | (rows == row)).all(1)
            best = np.where(fits, scores, -np.inf).argmax()
            assert beliefs.log_partition[k] == pytest.approx(scores[best], abs=1e-6)
            decoded = [np.asarray(beliefs.decode()[group])[k] for group in (a, b)]
            np.testing.assert_array_equal(np.concatenate(decoded), rows[best])
        met = [np.asarray(x).sum(tuple(range(1, x.ndim))) for x in beliefs.pairwise.values[:2]]
        np.testing.assert_array_equal(met, 1)


@pytest.mark.slow
def test_mplp_of_graphs_agrees_with_that_of_layers():
    """Both end at the optimum of the relaxation, which is not tight here."""
    rng = np.random.default_rng(2)
    with oracle.x64(True):
        # Any two units would rather differ.
        upper = np.triu(rng.normal(size=(5, 5)) - 3, 1)
        bias = jnp.asarray(rng.normal(size=5) + 4)
        machine = ebm.BoltzmannMachine(jnp.asarray(upper + upper.T), bias)
        x = nd_var_array(num_states=2, shape=(5,))
        graph = fgraph.FactorGraph([x])
        edges = [*itertools.combinations(range(5), 2)]
        tables = np.zeros((len(edges), 2, 2))
        tables[:, 1, 1] = [upper[edge] for edge in edges]
        graph.add_factors(
            fgroup.PairwiseFactorGroup(
                variables_for_factors=[[x[i], x[j]] for i, j in edges], log_potential_matrix=tables
            )
        )
        model = FactorGraphModel(graph).with_evidence({x: jnp.stack([jnp.zeros(5), bias], -1)})
        ours, theirs = ebm.MPLP()(model), ebm.MPLP()(machine)
        assert ours.converged
        np.testing.assert_allclose(ours.log_partition, theirs.log_partition, atol=1e-4)
        _, scores = best_of(model)
        assert float(ours.log_partition) > scores.max() + 0.01
