"""Elimination with small tables: bounds and estimates against whole elimination."""

import jax.numpy as jnp
import numpy as np
import pytest

import ebmlearn as ebm
from ebmlearn.elimination import (
    _estimates,
    bucketed,
    estimate,
    estimated,
    find_order,
    Impossible,
    Network,
    Solution,
    solve,
)


def random_network(seed, zeros):
    """A network of twelve variables that needs tables of about 2**9 entries."""
    rng = np.random.default_rng(seed)
    counts = tuple(rng.integers(2, 4, 12).tolist())
    scopes = tuple(tuple(rng.permutation(12)[: rng.integers(1, 4)].tolist()) for _ in range(24))
    tables = []
    for scope in scopes:
        table = 1.5 * rng.normal(size=[counts[v] for v in scope])
        tables.append(np.where(rng.random(table.shape) < zeros, -np.inf, table))
    return Network(counts, scopes, tuple(tables))


def solved(number, zeros):
    """Networks with something possible, whole elimination of each, and an order."""
    for seed in range(number):
        try:
            solution, small = solve(random_network(seed, zeros))
        except Impossible:
            continue
        if np.isfinite(solution.value):
            yield solution, find_order(small.network.counts, small.network.scopes)


def buckets_of(network, order, most):
    return Solution(network, bucketed(network.counts, network.scopes, order, most=most))


@pytest.mark.slow
@pytest.mark.parametrize("zeros", [0.0, 0.15])
def test_bounds_hold_and_are_tight_for_large_tables(zeros):
    gaps = []
    for solution, order in solved(40, zeros):
        gap = [
            buckets_of(solution.network, order, most).value - solution.value for most in (5, 7, 30)
        ]
        assert min(gap) > -1e-9
        assert gap[-1] == pytest.approx(0, abs=1e-9)
        gaps.append(gap)
    assert len(gaps) > 10
    small, large, _ = np.mean(gaps, 0)
    assert small > 2 * large > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("zeros", [0.0, 0.15])
def test_estimates_have_no_bias(zeros):
    """The mean of many estimates of Z, each by few draws, which often die on the way."""
    off = []
    for solution, order in solved(8, zeros):
        buckets = buckets_of(solution.network, order, 5)
        if buckets.value - solution.value < 0.5:
            continue
        rng = np.random.default_rng(0)
        ratios = np.exp([buckets.draw(20, rng)[1] - solution.value for _ in range(150)])
        assert ratios.std() > 0.1
        off.append((ratios.mean() - 1) / (ratios.std() / np.sqrt(len(ratios))))
    assert len(off) > 2
    assert np.abs(off).max() < 4


@pytest.mark.slow
def test_marginals_and_their_errors():
    for solution, order in solved(6, 0.15):
        buckets = buckets_of(solution.network, order, 6)
        found = estimate(buckets, 1.0, np.random.default_rng(1))
        assert found is not None
        exact = np.concatenate(solution.marginals()[0])
        wrong = np.sqrt(np.mean((np.concatenate(found.marginals) - exact) ** 2))
        assert wrong < 3 * found.spread
        assert found.spread < 0.05
        assert abs(found.value - solution.value) < 5 * found.error + 1e-9


def test_tables_stay_within_the_limit():
    for solution, order in solved(5, 0.0):
        network = solution.network
        for most in (5, 8):
            plan = bucketed(network.counts, network.scopes, order, most=most)
            minis = [mini for own in plan.buckets for mini in own]
            sizes = [np.prod([network.counts[v] for v in mini.scope]) for mini in minis]
            assert max(sizes) <= 2**most
            assert np.log2(sum(sizes)) == pytest.approx(plan.work)
            assert sorted(k for mini in minis for k in mini.tables) == [
                k for k, scope in enumerate(network.scopes) if scope
            ]


def test_no_time_means_no_answer():
    solution, order = next(solved(1, 0.0))
    assert estimated(solution.network, order, 1e-9, np.random.default_rng(0)) is None


def test_impossible_draws_give_no_answer():
    """Three variables that must all differ, of two states: what no part of tables can see."""
    differ = np.log(1 - np.eye(2) + 1e-300) + np.where(np.eye(2), -np.inf, 0)
    network = Network((2, 2, 2), ((0, 1), (1, 2), (0, 2)), (differ, differ, differ))
    order = find_order(network.counts, network.scopes)
    buckets = buckets_of(network, order, 2)
    assert estimate(buckets, 0.1, np.random.default_rng(0)) is None


@pytest.mark.slow
def test_auto_takes_log_z_from_them(monkeypatch):
    """A glass of 7 x 7 spins, where the free energy of messages is far off."""
    monkeypatch.setattr(_estimates, "_WIDEST", 4)
    monkeypatch.setattr(_estimates, "_NARROWEST", 4)
    rng = np.random.default_rng(3)
    at = np.arange(49).reshape(7, 7)
    pairs = (at[:, :-1], at[:, 1:]), (at[:-1], at[1:])
    edges = np.concatenate([np.stack(pair, -1).reshape(-1, 2) for pair in pairs])
    spins = np.array([[1.0, -1.0], [-1.0, 1.0]])
    tables = tuple(spins * rng.normal() for _ in edges)
    model = ebm.TableModel((2,) * 49, tuple(map(tuple, edges.tolist())), tables)
    exact, bethe = ebm.Exact()(model), ebm.BP(200, damping=0.5)(model)
    beliefs = ebm.Auto(10, exact=False)(model)
    assert beliefs.report is not None
    assert "mini-buckets" in beliefs.report.method
    wrong = [float(jnp.abs(x.log_partition - exact.log_partition)) for x in (beliefs, bethe)]
    assert wrong[0] < 0.05 < 0.3 < wrong[1]
    assert float(beliefs.report.upper - exact.log_partition) > 0.1
    assert float(jnp.abs(beliefs["x"] - exact["x"]).mean()) < 0.02


def test_states_that_are_far_less_likely_stay_possible():
    a = np.array([[0.0, 0.0], [-1000.0, -1000.0]])
    b = np.array([[-2000.0, -2000.0], [0.0, 0.0]])
    network = Network((2, 2, 2), ((0, 1), (0, 2)), (a, b))
    order = find_order(network.counts, network.scopes)
    buckets = buckets_of(network, order, 2)
    exact = solve(network)[0].value
    assert buckets.value >= exact - 1e-9 and np.isfinite(buckets.value)
