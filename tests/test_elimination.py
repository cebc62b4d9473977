"""Elimination of variables against enumeration."""

import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ebmlearn as ebm
from ebmlearn import elimination
from ebmlearn.elimination import find_order, Impossible, Network, planned, solve, TooWide
from ebmlearn.learners._base import Told
from ebmlearn.learners._margins import with_cost


def random_network(seed):
    """A network of up to seven variables with 2 to 5 states, zeros in some tables, and evidence."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 8))
    counts = tuple(rng.integers(2, 6 if n < 5 else 4, n).tolist())
    scopes = tuple(
        tuple(rng.permutation(n)[: rng.integers(0, min(n, 4) + 1)].tolist())
        for _ in range(rng.integers(0, 9))
    )
    tables = []
    for scope in scopes:
        table = 3 * rng.normal(size=[counts[v] for v in scope])
        if scope and rng.random() < 0.5:
            table = np.where(rng.random(table.shape) < 0.2, -np.inf, table)
        tables.append(table)
    evidence = np.where(rng.random(n) < 0.25, [rng.integers(c) for c in counts], -1)
    return Network(counts, scopes, tuple(tables)), evidence, rng


def listed(network, evidence):
    """All configurations that agree with evidence, and their log-potentials."""
    rows = np.array(list(itertools.product(*map(range, network.counts))))
    rows = rows[((evidence < 0) | (rows == evidence)).all(1)]
    return rows, network.score(rows)


def whole(values, states, counts):
    """Probabilities of all states from those of the states that are possible."""
    out = np.zeros(counts)
    out[np.ix_(*states)] = values.reshape([len(x) for x in states])
    return out


@pytest.mark.slow
def test_two_hundred_random_networks():
    impossible = 0
    for seed in range(200):
        network, evidence, rng = random_network(seed)
        rows, scores = listed(network, evidence)
        top = scores.max()
        if top == -np.inf:
            impossible += 1
            for maximised in (frozenset(), None):
                with pytest.raises(Impossible, match="no configuration is possible"):
                    solve(network, evidence, maximised=maximised)
            continue
        log_z = top + np.log(np.exp(scores - top).sum())
        p = np.exp(scores - log_z)

        solution, small = solve(network, evidence)
        np.testing.assert_allclose(solution.value, log_z, atol=1e-9)
        variables, tables = solution.marginals(of_tables=True)
        for v, n in enumerate(network.counts):
            expected = [p[rows[:, v] == state].sum() for state in range(n)]
            found = whole(variables[v], [small.states[v]], (n,))
            np.testing.assert_allclose(found, expected, atol=1e-9)
        for k, scope in enumerate(network.scopes):
            if scope:
                expected = np.zeros(network.tables[k].shape)
                np.add.at(expected, tuple(rows[:, v] for v in scope), p)
                own = whole(tables[k], [small.states[v] for v in scope], expected.shape)
                np.testing.assert_allclose(own, expected, atol=1e-9)

        solution, small = solve(network, evidence, maximised=None)
        best = small.restored(solution.best())
        np.testing.assert_allclose(solution.value, top, atol=1e-9)
        np.testing.assert_allclose(network.score(best), top, atol=1e-9)
        assert ((evidence < 0) | (evidence == best)).all()

        chosen = sorted(np.flatnonzero(rng.random(len(evidence)) < 0.5).tolist())
        solution, small = solve(network, evidence, maximised=frozenset(chosen))
        masses = {}
        for row, mass in zip(map(tuple, rows[:, chosen].tolist()), p, strict=True):
            masses[row] = masses.get(row, 0) + mass
        np.testing.assert_allclose(solution.value, log_z + np.log(max(masses.values())), atol=1e-9)
        states = solution.best()
        found = tuple(int(small.states[v][states[v]]) for v in chosen)
        np.testing.assert_allclose(masses[found], max(masses.values()), atol=1e-9)
    assert 5 < impossible < 50


def test_samples_are_independent_draws():
    rng = np.random.default_rng(0)
    tables = rng.normal(size=(3, 3)), rng.normal(size=(3, 2)), rng.normal(size=(3, 2))
    network = Network((3, 3, 2), ((0, 1), (1, 2), (0, 2)), tables)
    evidence = np.full(3, -1)
    rows, scores = listed(network, evidence)
    p = np.exp(scores - scores.max())
    p /= p.sum()
    solution, small = solve(network, evidence)
    drawn = small.restored(solution.draw(20_000, rng)[0])
    number = {tuple(row): k for k, row in enumerate(rows.tolist())}
    counts = np.bincount([number[tuple(row)] for row in drawn.tolist()], minlength=len(rows))
    some = p * 20_000 > 5
    assert some.sum() > 5
    z = (counts - p * 20_000)[some] / np.sqrt(20_000 * p * (1 - p))[some]
    assert np.abs(z).max() < 4.5


def chain(n, seed=0):
    tables = np.random.default_rng(seed).normal(size=(n - 1, 3, 3))
    return Network((3,) * n, tuple((i, i + 1) for i in range(n - 1)), tuple(tables))


def transferred(network):
    """Log Z of a chain by the product of its matrices."""
    row, total = np.ones(3), 0.0
    for table in network.tables:
        row = row @ np.exp(table)
        total += np.log(row.sum())
        row = row / row.sum()
    return total


@pytest.mark.slow
def test_time_for_a_long_chain_is_linear():
    times = {}
    for n in (1000, 10_000):
        network = chain(n)
        began = time.perf_counter()
        solution, _ = solve(network)
        times[n] = time.perf_counter() - began
        np.testing.assert_allclose(solution.value, transferred(network), rtol=1e-10)
    assert times[10_000] < 40 * times[1000]


def test_many_tables_of_one_variable_lose_nothing():
    """Products of two thousand small numbers are out of the range of floats."""
    low, high = np.log([0.1, 1.0]), np.log([1.0, 0.1])
    tables = (low,) * 1000 + (high,) * 1000 + (np.zeros((2, 2)),)
    network = Network((2, 2), ((0,),) * 2000 + ((0, 1),), tables)
    solution, _ = solve(network)
    np.testing.assert_allclose(solution.value, np.log(4) + 1000 * np.log(0.1))
    np.testing.assert_allclose(solution.marginals()[0][0], [0.5, 0.5])


def test_memory_is_bounded():
    pairs = tuple(itertools.combinations(range(12), 2))
    assert find_order((2,) * 12, pairs).width == 12
    with pytest.raises(TooWide, match=r"tables of 2\*\*12.0 numbers, and at most 2\*\*10"):
        planned((2,) * 12, pairs, most=10)
    rng = np.random.default_rng(0)
    pairs = tuple(itertools.combinations(range(14), 2))
    model = ebm.TableModel([2] * 14, pairs, rng.normal(size=(91, 2, 2)))
    with pytest.raises(ValueError, match=r"needs tables of 2\*\*14.0 numbers.*`max_units`"):
        ebm.Exact(method="elimination", max_units=10)(model)


@pytest.mark.slow
def test_orders_are_good():
    """The best order of a grid leads to tables of one variable more than its shorter side has."""
    at = np.arange(14 * 20).reshape(14, 20)
    ends = (at[1:], at[:-1]), (at[:, 1:], at[:, :-1])
    pairs = np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b in ends])
    assert find_order((2,) * 280, pairs.tolist()).width in (15, 16)
    # Without time too: how narrow a grid is does not depend on the speed of the machine.
    assert find_order((2,) * 280, pairs.tolist(), seconds=0).width in (15, 16)


def random_model(seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(2, 5, 6)
    scopes = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (1, 4), (2,), (0, 2, 5)]
    tables = [rng.normal(size=[counts[v] for v in scope]) for scope in scopes]
    tables[0][0, 0] = -np.inf
    return ebm.TableModel(counts, scopes, tables)


@pytest.mark.slow
@pytest.mark.parametrize("product", ["sum", "max"])
def test_exact_is_the_same_by_both_methods(product):
    model = random_model(0)
    held = {"x": jnp.asarray([[-1, -1, 0, -1, -1, -1], [-1, 1, -1, -1, -1, 1]])}
    for evidence in (None, held):
        one, two = (
            ebm.Exact(product=product, method=method)(model, evidence)
            for method in ("enumeration", "elimination")
        )
        np.testing.assert_allclose(one.log_partition, two.log_partition, atol=1e-5)
        np.testing.assert_allclose(one["x"], two["x"], atol=1e-6)
        for k in range(9):
            np.testing.assert_allclose(one.pairwise[k], two.pairwise[k], atol=1e-6)
        one, two = (
            ebm.Exact(product=product, method=method).statistics(model, evidence).pairwise.values
            for method in ("enumeration", "elimination")
        )
        for x, y in zip(one, two, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-6)


@pytest.mark.slow
def test_gradient_of_log_z_is_the_marginals():
    model = random_model(1)

    def log_z(tables, method):
        changed = model.with_log_tables(tables)
        return ebm.Exact(method=method)(changed).log_partition

    tables = [jnp.asarray(x) for x in model.log_tables]
    slope = jax.jit(jax.grad(log_z), static_argnums=1)
    one, two = (slope(tables, method) for method in ("enumeration", "elimination"))
    for x, y in zip(one, two, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)

    def belief(tables):
        return ebm.Exact(method="elimination")(model.with_log_tables(tables))["x"][0, 0]

    with pytest.raises(RuntimeError, match="beliefs of `Exact`"):
        jax.grad(belief)(tables)


@pytest.mark.slow
def test_grid_is_eliminated():
    rng = np.random.default_rng(2)
    tables = [jnp.asarray(rng.normal(size=(2, 2)), jnp.float32) for _ in range(4)]
    emission = {"seen": jnp.asarray(rng.normal(size=(2, 2)), jnp.float32)}
    model = ebm.GridMRF(*tables, shape=(2, 3), emissions=emission)
    one, two = (ebm.Exact(method=m)(model) for m in ("enumeration", "elimination"))
    np.testing.assert_allclose(one.log_partition, two.log_partition, atol=1e-5)
    for name in ("state", "seen"):
        np.testing.assert_allclose(one[name], two[name], atol=1e-5)
    np.testing.assert_allclose(one.pairwise["diagonal"], two.pairwise["diagonal"], atol=1e-5)
    wide = ebm.GridMRF(*tables, shape=(4, 25))
    found, near = ebm.Exact()(wide), ebm.BP(50)(wide)
    assert bool(found.converged)
    np.testing.assert_allclose(found.log_partition, near.log_partition, rtol=0.1)


@pytest.mark.slow
def test_maximum_likelihood_learns_a_chain_exactly():
    """The tables of a chain are free: at the maximum, marginals of pairs are those of the data."""
    rng = np.random.default_rng(3)
    n = 14
    pairs = tuple((i, i + 1) for i in range(n - 1))
    network = Network((2,) * n, pairs, tuple(rng.normal(size=(n - 1, 2, 2))))
    rows = solve(network)[0].draw(200, rng)[0]
    model = ebm.TableModel(network.counts, network.scopes, [np.zeros((2, 2))] * (n - 1))
    learner = ebm.MLE(ebm.Exact())
    fitted = ebm.fit(
        model, learner, {"x": jnp.asarray(rows)}, optimizer=optax.adam(0.1), epochs=150,
        batch_size=200, progress=False,
    ).last  # fmt: skip
    found = ebm.Exact()(fitted).pairwise
    for k, (a, b) in enumerate(network.scopes):
        share = np.zeros((2, 2))
        np.add.at(share, (rows[:, a], rows[:, b]), 1 / 200)
        np.testing.assert_allclose(found[k], share, atol=2e-3)


def test_elimination_refuses_what_has_no_tables():
    model = ebm.EnergyModel(lambda x: -x.sum(), ebm.Binary(3))
    with pytest.raises(ValueError, match="needs factors that are tables, got an EnergyModel"):
        ebm.Exact(method="elimination")(model)
    assert elimination.__doc__


@pytest.mark.slow
@pytest.mark.parametrize("product", ["sum", "max", "mixed"])
def test_layers_are_the_same_by_both_methods(product):
    model = ebm.DBM.init(4, [2, 3], key=1, scale=1.0)
    known = jnp.asarray([0.0, 1.0, 0.3, 0.0]), jnp.asarray([True, False, True, False])
    one, two = (
        ebm.Exact(product=product, method=method)(model, *known)
        for method in ("enumeration", "elimination")
    )
    np.testing.assert_allclose(one.log_partition, two.log_partition, atol=1e-5)
    for a, b in zip(jax.tree.leaves(one.decode()), jax.tree.leaves(two.decode()), strict=True):
        np.testing.assert_array_equal(a, b)
    if product == "sum":
        for a, b in zip(jax.tree.leaves(one.means), jax.tree.leaves(two.means), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
        for a, b in zip(one.pairwise, two.pairwise, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.slow
def test_many_small_layers_are_eliminated():
    """A chain of layers, whose log Z is a product of matrices."""
    layers = 60
    model = ebm.DBM.init(1, [1] * layers, key=0, scale=1.0)
    vector = np.array([1.0, np.exp(float(model.biases[0][0]))])
    for weights, bias in zip(model.weights, model.biases[1:], strict=True):
        step = np.outer([0, 1], [0, float(weights[0, 0])]) + np.array([0, float(bias[0])])
        vector = vector @ np.exp(step)
    beliefs = ebm.Exact()(model)
    np.testing.assert_allclose(beliefs.log_partition, np.log(vector.sum()), rtol=1e-5)
    statistics = ebm.Exact().statistics(model)
    np.testing.assert_allclose(statistics.units.hidden[-1], beliefs.hidden[-1], atol=1e-6)
    with pytest.raises(ValueError, match="at most `max_units` = 24"):
        ebm.Exact()(ebm.RBM.init(300, 200, key=0))


@pytest.mark.slow
def test_mixed_product_by_both_methods():
    """Some variables are maximised over, and the others are summed over given the best."""
    model = random_model(4)
    outputs = jnp.asarray([[True, False, True, False, False, True], [False] * 5 + [True]])
    problem = model.problem(None, None).with_outputs(outputs)
    one, two = (
        ebm.Exact(product="mixed", method=method).beliefs_of(problem)
        for method in ("enumeration", "elimination")
    )
    np.testing.assert_allclose(one.log_partition, two.log_partition, atol=1e-5)
    np.testing.assert_allclose(one["x"], two["x"], atol=1e-6)


EQUAL = np.array([[0.0, -np.inf], [-np.inf, 0.0]])


def impossible(soft):
    """Three variables that must be equal, the first and the last of which are not."""
    model = ebm.TableModel([2] * 3, [(0, 1), (1, 2)], [EQUAL, EQUAL])
    hard = np.array([0, -1, 1])
    likelihoods = np.array([[1, 0], [1, 1], [0, 1]], np.float32)
    return model, {"x": jnp.asarray(likelihoods if soft else hard)}


@pytest.mark.slow
@pytest.mark.parametrize("soft", [False, True])
def test_impossible_evidence_is_reported(soft):
    model, evidence = impossible(soft)
    for method in ("enumeration", "elimination"):
        exact = ebm.Exact(method=method)
        assert exact(model, evidence).log_partition == -np.inf
        assert not bool(exact(model, evidence).converged)
        assert not bool(exact.statistics(model, evidence).converged)
    assert ebm.Auto(2, exact=False)(model, evidence).log_partition == -np.inf
    found = ebm.Auto(2, product="max", exact=False)(model, evidence)
    assert found.log_partition == -np.inf and not bool(found.converged)


DIFFER = np.array([[-np.inf, 0.0], [0.0, -np.inf]])
# Three variables of two states that must all differ: each pair alone can.
CONTRADICTION = [2] * 3, [(0, 1), (1, 2), (0, 2)], [DIFFER] * 3


@pytest.mark.slow
def test_contradictions_are_reported():
    model = ebm.TableModel(*CONTRADICTION)
    for inference in (
        ebm.Exact(method="elimination"),
        ebm.Exact(product="max", method="elimination"),
        ebm.Auto(1, exact=False),
        ebm.Auto(1, product="max", exact=False),
    ):
        found = inference(model)
        assert found.log_partition == -np.inf and not bool(found.converged)


def test_tables_of_no_variables_are_eliminated():
    tables = [np.asarray(x, np.float32) for x in (0.5, np.eye(2))]
    model = ebm.TableModel([2, 2], [(), (0, 1)], tables)
    beliefs = ebm.Exact(method="elimination")(model)
    log_z = 0.5 + np.log(2 * np.e + 2)
    np.testing.assert_allclose(beliefs.log_partition, log_z, rtol=1e-6)
    np.testing.assert_allclose(beliefs.pairwise[0], 1.0)
    np.testing.assert_allclose(beliefs.pairwise[1], np.exp(np.eye(2) + 0.5 - log_z), rtol=1e-5)


@pytest.mark.slow
def test_messages_on_a_tree_say_what_is_impossible():
    counts, scopes = (2, 3, 2, 3, 2, 2), ((0, 1), (2, 1, 3), (3, 4), (4, 5), (0,), (5,))
    inferences = ebm.BP(20), ebm.BP(20, product="max"), ebm.BP(20, temperature=4.0), ebm.MPLP(300)

    @jax.jit
    def answers(model, evidence):
        found = [inference(model, {"x": evidence}) for inference in inferences]
        return jnp.stack([x.log_partition for x in found]), jnp.stack([x.converged for x in found])

    model, possible = None, 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        tables = [10 * rng.normal(size=[counts[v] for v in scope]) for scope in scopes]
        tables = [np.where(rng.random(x.shape) < 0.3, -np.inf, x) for x in tables]
        evidence = np.where(rng.random(6) < 0.3, [rng.integers(n) for n in counts], -1)
        if model is None:
            model = ebm.TableModel(counts, scopes, tables)
        model = model.with_log_tables(tables)
        values, converged = answers(model, jnp.asarray(evidence))
        _, scores = listed(Network(counts, scopes, tuple(tables)), evidence)
        top = scores.max()
        possible += np.isfinite(top)
        if np.isfinite(top):
            log_z, warm = (top + t * np.log(np.exp((scores - top) / t).sum()) for t in (1, 4))
            np.testing.assert_allclose(values, [log_z, top, warm, top], atol=1e-2)
        else:
            np.testing.assert_array_equal(values, -np.inf)
        np.testing.assert_array_equal(converged, np.isfinite(top))
    assert 15 < possible < 45


@pytest.mark.slow
def test_very_wide_networks_are_refused():
    pairs = list(itertools.combinations(range(201), 2))
    order = find_order([32] * 201, pairs, seconds=0.1)
    assert order.width >= 1000
    with pytest.raises(TooWide):
        planned([32] * 201, pairs, most=24)


def test_the_width_of_marginal_maxima_is_checked_before():
    n = 14
    scopes = [(k, k + 1) for k in range(n - 1)] + [(k, n + k) for k in range(n)]
    model = ebm.TableModel([2] * 2 * n, scopes, [np.zeros((2, 2), np.float32)] * len(scopes))
    outputs = jnp.arange(2 * n) >= n
    with pytest.raises(ValueError, match="narrow enough"):
        ebm.Exact(product="mixed", max_units=10).beliefs_of(
            model.problem(None, None).with_outputs(outputs)
        )


@pytest.mark.parametrize("method", ["enumeration", "elimination"])
def test_mixed_product_of_variables_that_are_not_joined(method):
    """All are maximised over, though they are independent of each other."""
    table = np.array([-0.33, -1.74, 0.33], np.float32)
    model = ebm.TableModel([2, 3], [(1,)], [table])
    problem = with_cost(Told.by(model, {"x": jnp.array([[1, 1], [0, 2]])}), ebm.learners.hamming)
    found = ebm.Exact(product="mixed", method=method).beliefs_of(problem)
    # Another state of the first costs 1, and so does state 2 of the second where 1 is true.
    np.testing.assert_allclose(
        found.log_partition, [1 + 1 + 0.33, 1 + max(-0.33 + 1, 0.33)], rtol=1e-6
    )
