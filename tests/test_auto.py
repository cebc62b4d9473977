"""`Auto`, the search for likely states, and the chains that judge, against enumeration."""

import math
import sys
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ebmlearn as ebm
from ebmlearn import _watch, elimination, uai
from ebmlearn.answers._tempered_means import apart, sampled
from ebmlearn.elimination import _search, likely_states, Network, possible
from ebmlearn.elimination._orders import find_part, neighbours

from . import errors


def grid(side, seed, zeros=0.0):
    """Spins on a square with random couplings, some pairs of states excluded."""
    rng = np.random.default_rng(seed)
    at = np.arange(side * side).reshape(side, side)
    pairs = (at[:, :-1], at[:, 1:]), (at[:-1], at[1:])
    scopes = [(int(a), int(b)) for x, y in pairs for a, b in zip(x.flat, y.flat, strict=True)]
    tables = [
        np.where(rng.random((2, 2)) < zeros, -np.inf, x)
        for x in rng.normal(size=(len(scopes), 2, 2))
    ]
    tables = [x if np.isfinite(x).any() else np.zeros((2, 2)) for x in tables]
    return Network((2,) * side**2, tuple(scopes), tuple(tables))


def reported(beliefs):
    assert beliefs.report is not None
    return beliefs.report


def even(network):
    return [np.full(n, 1 / n) for n in network.counts]


@pytest.fixture(scope="module")
def rbm():
    """Two modes, of weights 0.7 and 0.3, that Gibbs sampling does not cross."""
    w = 3.0 * jnp.ones((6, 5))
    biases = -w.sum(1) / 2 + 0.03, -w.sum(0) / 2
    return ebm.RBM(w, *biases)


def test_parts_are_narrow_and_leave_out_what_is_held():
    network = grid(8, 0)
    near = neighbours(64, network.scopes)
    rng = np.random.default_rng(0)
    for most in (2, 4, 6):
        order = find_part([1.0] * 64, near, most, rng.random(64).tolist(), [1.0] * 64, (3, 9))
        assert order.width <= most
        assert not {3, 9} & set(order.variables)
        # Eliminated in this order, the rest being fixed, no table has more variables.
        around = {v: {w for w in near[v] if w in order.variables} for v in order.variables}
        for v in order.variables:
            assert len(around[v]) + 1 <= most
            for w in around[v]:
                around[w] = (around[w] | around[v]) - {v, w}
    assert len(find_part([1.0] * 64, near, 20, [1.0] * 64, [1.0] * 64).variables) == 64


@pytest.mark.slow
@pytest.mark.parametrize("zeros", [0.0, 0.1])
def test_search_finds_the_maximum(zeros, monkeypatch):
    """Parts of 2**5 entries of a grid that needs tables of 2**9."""
    monkeypatch.setattr(_search, "_WIDTH", 5.0)
    for seed in range(3):
        network = grid(8, seed, zeros)
        solution, small = elimination.solve(network, maximised=None)
        found = likely_states(small.network, even(small.network), 20, seed, solution.value - 1e-9)
        assert found.value == pytest.approx(solution.value)
        assert network.score(small.restored(found.states)) == pytest.approx(solution.value)


def test_states_that_tables_allow():
    """Each third variable must be the parity of the two before it, and the ends of rows equal."""
    parity = np.where(np.indices((2, 2, 2)).sum(0) % 2 == 0, 0, -np.inf)
    scopes = [(v, v + 1, v + 2) for v in range(0, 28, 2)] + [(0, 29), (1, 28)]
    equal = np.array([[0, -np.inf], [-np.inf, 0]])
    network = Network((2,) * 30, tuple(scopes), (*[parity] * 14, equal, equal))
    rng = np.random.default_rng(0)
    for _ in range(5):
        states = possible(network, list(rng.dirichlet([1, 1], 30)), 5.0)
        assert states is not None
        assert network.score(states) == 0
    odd = Network((2, 2), ((0, 1), (0, 1)), (equal, equal[::-1]))
    assert possible(odd, list(rng.dirichlet([1, 1], 2)), 5.0) is None


@pytest.mark.slow
def test_chains_cross_between_modes(rbm):
    """With evidence that is certain on one unit and a likelihood on another."""
    v = np.array([[1, 0.3, 0, 0, 0, 0], [0, 0.5, 0, 0, 0, 0]], np.float32)
    observed = np.array([[True, True, False, False, False, False]] * 2)
    for evidence in ((None, None), (v, observed)):
        problem = rbm.problem(*evidence)
        found = sampled(problem, jax.random.key(0), 60)
        assert found is not None
        exact = ebm.Exact()(rbm, *evidence)
        wrong = apart(exact.means, found.beliefs.means, len(problem.shape))
        assert (wrong < 0.05).all()
        assert (wrong < 6 * found.error + 0.01).all()


@pytest.mark.slow
def test_chains_of_a_graph(rbm):
    model = uai.to_tables(rbm)
    evidence = {"x": jnp.array([1, *[-1] * 10])}
    found = sampled(model.problem(evidence, None), jax.random.key(1), 60)
    assert found is not None
    exact = ebm.Exact()(model, evidence)
    assert float(apart(exact.means, found.beliefs.means, 0)) < 0.05
    soft = {"x": jnp.full((11, 2), 0.5)}
    assert sampled(model.problem(soft, None), jax.random.key(1), 60) is None


def test_exact_answers_say_so(rbm):
    beliefs = ebm.Auto()(rbm)
    assert reported(beliefs).is_exact
    assert "exact" in str(reported(beliefs))
    assert float(reported(beliefs).error) == 0
    assert beliefs.log_partition == ebm.Exact()(rbm).log_partition
    np.testing.assert_array_equal(ebm.query(rbm, None), ebm.Exact()(rbm).visible)


@pytest.mark.slow
def test_evidence_makes_a_graph_narrow():
    """A grid of 30 x 30 pixels whose middle column is known falls in two."""
    model = ebm.TableModel(*_listed(grid(30, 0)))
    middle = {"x": jnp.where(jnp.arange(900) % 30 == 15, 1, -1)}
    assert not reported(ebm.Auto(0.1)(model)).is_exact
    with pytest.raises(ValueError, match="must be narrow enough"):
        ebm.Exact(max_units=18)(model)
    assert np.isfinite(ebm.Exact(max_units=18)(model, middle).log_partition)


def _listed(network):
    return network.counts, network.scopes, [np.asarray(x, np.float32) for x in network.tables]


@pytest.mark.slow
def test_approximations_are_near_and_bounds_hold(rbm):
    exact = ebm.Exact()(rbm)
    beliefs = ebm.Auto(60, exact=False)(rbm)
    report = reported(beliefs)
    assert not report.is_exact
    assert float(report.lower) <= float(exact.log_partition) <= float(report.upper)
    assert float(jnp.abs(beliefs.visible - exact.visible).max()) < 0.05
    assert float(report.error) < 0.05
    assert report.method in str(report)
    assert math.isfinite(float(beliefs.log_partition))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [False, True])
def test_likely_states_of_models(rbm, batch):
    v, observed = np.zeros((2, 6), np.float32), np.zeros((2, 6), bool)
    v[1, 0], observed[:, 0] = 1, True
    evidence = (v, observed) if batch else (None, None)
    found = ebm.Auto(1, product="max", exact=False)(rbm, *evidence)
    exact = ebm.Exact(product="max")(rbm, *evidence)
    # Terms as large as 90 cancel.
    np.testing.assert_allclose(found.log_partition, exact.log_partition, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found.decode().visible, exact.decode().visible)
    assert (reported(found).upper >= found.log_partition - 1e-4).all()
    graph = uai.to_tables(rbm)
    if not batch:
        again = ebm.Auto(1, product="max", exact=False)(graph)
        assert float(again.log_partition) == pytest.approx(float(exact.log_partition), rel=1e-5)


@pytest.mark.usefixtures("as_a_user")
def test_wrong_uses(rbm):
    gaussian = ebm.GaussianRBM.init(visible=3, hidden=40, key=0)
    learner = ebm.MLE(ebm.Auto())
    for case in (
        (lambda: ebm.Auto(0), ValueError, "`seconds`", "0"),
        (lambda: ebm.Auto(product="mixed"), ValueError, "`product`", "'mixed'"),  # pyright: ignore
        (lambda: eqx.filter_jit(ebm.Auto())(rbm), TypeError, "outside of compiled functions", "BP"),
        (lambda: ebm.Auto()(gaussian), TypeError, "GaussianRBM"),
        (lambda: ebm.query(gaussian, None), TypeError, "small enough", "use `BP`"),
        (lambda: ebm.fit(rbm, learner, np.zeros((4, 6), int), epochs=1), TypeError, "Auto"),
    ):
        errors.check(case)


def test_a_failure_of_a_candidate_is_not_hidden(rbm, monkeypatch):
    def broken(self, problem):
        raise TypeError("broken")

    monkeypatch.setattr(ebm.MeanField, "_beliefs", broken)
    with pytest.raises(TypeError, match="broken"):
        ebm.Auto(60, exact=False)(rbm)


@pytest.mark.slow
def test_stages_are_shown(rbm, monkeypatch, capsys):
    monkeypatch.setattr(_watch, "_SHORT", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ebm.Auto(2, exact=False)(rbm)
    told = capsys.readouterr().err
    assert "Auto, messages" in told or "Auto, parallel tempering" in told
    ebm.Auto(2, exact=False, progress=False)(rbm)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_time_is_kept(rbm):
    ebm.Auto(1, exact=False, product="max")(rbm)
    began = time.perf_counter()
    ebm.Auto(1, exact=False, product="max")(rbm)
    assert time.perf_counter() - began < 20


@pytest.mark.slow
def test_nothing_is_left_to_search_for():
    rng = np.random.default_rng(0)
    couplings = np.triu(rng.normal(size=(40, 40)), 1).astype(np.float32)
    model = ebm.BoltzmannMachine(couplings + couplings.T, np.zeros(40, np.float32))
    x = np.ones(40, np.float32)
    found = ebm.Auto(1, product="max")(model, x, np.ones(40, bool))
    np.testing.assert_array_equal(found.decode().x, x)
    np.testing.assert_allclose(found.log_partition, couplings.sum(), rtol=1e-4)


def uneven():
    """One variable of a hundred states, and a table of five binary ones."""
    rng = np.random.default_rng(0)
    shapes = (100, 2), (2,) * 5
    tables = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    return ebm.TableModel([100, 2, 2, 2, 2, 2], [(0, 1), (1, 2, 3, 4, 5)], tables)


@pytest.mark.slow
@pytest.mark.parametrize("product", ["sum", "max"])
def test_tables_keep_their_own_numbers_of_states(product):
    model = uneven()
    first, second = (np.asarray(x, np.float64) for x in model.log_tables)
    joint = first.reshape(100, 2, 1, 1, 1, 1) + second[None]
    beliefs = ebm.Auto(2, product=product, exact=False)(model)
    value = joint.max() if product == "max" else np.log(np.exp(joint).sum())
    np.testing.assert_allclose(beliefs.log_partition, value, rtol=1e-3)
    if product == "max":
        best = np.unravel_index(joint.argmax(), joint.shape)
        np.testing.assert_array_equal(beliefs.decode()["x"], best)


@pytest.mark.slow
def test_axes_of_joint_queries_are_as_long_as_targets_have_states():
    model = uneven()
    first, second = (np.asarray(x, np.float64) for x in model.log_tables)
    p = np.exp(first.reshape(100, 2, 1, 1, 1, 1) + second[None])
    p = (p / p.sum()).sum((0, 3, 4))
    found = ebm.joint_query(model, None, None, ebm.Exact(), [("x", 1), ("x", 2), ("x", 5)])
    np.testing.assert_allclose(found, p, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user")
def test_joint_queries_take_lists():
    model = ebm.RBM.init(3, 2, key=0, scale=1.0)
    want = ebm.joint_query(
        model, np.array([1.0, 0, 0]), np.array([True, False, False]), ebm.Exact(), [1, 2]
    )
    cases: Any = (([1, 0, 0], [True, False, False]), ([1, math.nan, math.nan], None))
    for evidence, observed in cases:
        found = ebm.joint_query(model, evidence, observed, ebm.Exact(), [1, 2])
        np.testing.assert_allclose(found, want, rtol=1e-5)
