"""Exact inference on PGMax graphs by elimination, against recursions and lists of configurations
in NumPy.
"""

import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from untyped import nd_var_array

import ebmlearn as ebm
import ebmlearn.pgmax
from ebmlearn.models import stacks_of
from ebmlearn.pgmax import FactorGraphModel


pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def as_pgmax():
    """PGMax is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def chain(form, length=40, seed=0):
    """A chain of variables of two and of three states; its group, tables and evidence."""
    from pgmax import fgraph, fgroup

    rng = np.random.default_rng(seed)
    counts = np.where(np.arange(length) % 2, 3, 2)
    x = nd_var_array(num_states=counts, shape=(length,))
    graph = fgraph.FactorGraph([x])
    tables = [rng.normal(size=(a, b)) for a, b in itertools.pairwise(counts)]
    for first in (0, 1):
        own = range(first, length - 1, 2)
        joined = [[x[k], x[k + 1]] for k in own]
        shape = tables[first].shape
        if form == "pairwise":
            group = fgroup.PairwiseFactorGroup(joined, np.stack([tables[k] for k in own]))
        else:
            listed = np.indices(shape).reshape(2, -1).T
            if first:
                # One configuration is not listed.
                listed = listed[:-1]
                for k in own:
                    tables[k][-1, -1] = -np.inf
            values = np.stack([tables[k][tuple(listed.T)] for k in own])
            group = fgroup.EnumFactorGroup(joined, listed, values)
        graph.add_factors(group)
    evidence = rng.normal(size=(length, 3))
    return FactorGraphModel(graph).with_evidence({x: evidence}), x, tables, evidence, counts


def is_exact(beliefs):
    return beliefs.report.is_exact


def solved(tables, evidence, counts):
    """Log Z and the marginals of a chain, and its best states with their log-potential."""
    own = [e[:n] for e, n in zip(evidence, counts, strict=True)]
    left, best = [own[0]], [own[0]]
    for table, e in zip(tables, own[1:], strict=True):
        left.append(np.logaddexp.reduce(left[-1][:, None] + table, 0) + e)
        best.append((best[-1][:, None] + table).max(0) + e)
    right = [np.zeros(counts[-1])]
    for table, e in zip(reversed(tables), reversed(own[1:]), strict=True):
        right.append(np.logaddexp.reduce(table + (right[-1] + e)[None], 1))
    log_z = np.logaddexp.reduce(left[-1])
    marginals = [np.exp(a + b - log_z) for a, b in zip(left, reversed(right), strict=True)]
    states = [int(best[-1].argmax())]
    for table, before in zip(reversed(tables), reversed(best[:-1]), strict=True):
        states.append(int((before + table[:, states[-1]]).argmax()))
    return log_z, marginals, states[::-1], best[-1].max()


@pytest.mark.slow
@pytest.mark.parametrize("inference", ["exact", "auto"])
@pytest.mark.parametrize("form", ["pairwise", "enumeration"])
def test_a_long_chain(form, inference):
    model, x, tables, evidence, counts = chain(form)
    log_z, marginals, states, largest = solved(tables, evidence, counts)
    ask = ebm.Exact if inference == "exact" else ebm.Auto
    found = ask(product="sum")(model)
    np.testing.assert_allclose(found.log_partition, log_z, rtol=1e-6)
    for row, p in zip(np.asarray(found[x]), marginals, strict=True):
        np.testing.assert_allclose(row[: len(p)], p, atol=1e-6)
        np.testing.assert_allclose(row[len(p) :], 0)
    best = ask(product="max")(model)
    np.testing.assert_allclose(best.log_partition, largest, rtol=1e-6)
    np.testing.assert_array_equal(best.decode()[x], states)
    if inference == "auto":
        assert is_exact(found)
        assert is_exact(best)


@pytest.mark.slow
def test_gradient_and_compiled_functions():
    """The statistics are the gradient of log Z, also of a model that is an argument."""
    model, x, tables, evidence, counts = chain("enumeration")
    found = ebm.Exact()(model)
    log_z, _, _, _ = solved(tables, evidence, counts)

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def value(m):
        return ebm.Exact()(m).log_partition

    traced, gradient = value(model)
    np.testing.assert_allclose(traced, log_z, rtol=1e-6)
    for a, b in zip(found.pairwise.values, gradient.log_potentials, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for k, p in enumerate(found.pairwise.values):
        np.testing.assert_allclose(np.asarray(p).sum(-1), 1, atol=1e-5, err_msg=str(k))
    fitted = ebm.fit(
        model, ebm.MLE(ebm.Exact()), {x: np.zeros((4, 40), np.int32)},
        optimizer=optax.sgd(0.1), epochs=1, batch_size=4, key=0,
    )  # fmt: skip
    assert fitted.model.energy(np.zeros((1, 40), np.int32)) < model.energy(
        np.zeros((1, 40), np.int32)
    )


@pytest.mark.slow
def test_a_tree_with_wide_or_factors():
    """Three ORs of twelve parents each, whose children are the parents of a fourth."""
    from pgmax import fgraph, fgroup

    rng = np.random.default_rng(1)
    leaves = nd_var_array(num_states=2, shape=(3, 12))
    inner, top = nd_var_array(num_states=2, shape=(3,)), nd_var_array(num_states=2, shape=(1,))
    graph = fgraph.FactorGraph([leaves, inner, top])
    joined = [[*(leaves[i, j] for j in range(12)), inner[i]] for i in range(3)]
    graph.add_factors(fgroup.ORFactorGroup([*joined, [*inner.variables, top[0]]]))
    evidence = {g: rng.normal(size=(*g.shape, 2)) for g in (leaves, inner, top)}
    evidence[leaves][..., 0] += 2
    model = FactorGraphModel(graph).with_evidence(evidence)
    cases: Any = (("sum", np.logaddexp.reduce), ("max", np.max))
    for product, add in cases:
        own = evidence[leaves]
        none, every = own[..., 0].sum(-1), add(own, axis=-1).sum(-1)
        if product == "sum":
            some = none + np.log(np.expm1(every - none))
        else:
            some = every - np.where(
                (own.argmax(-1) == 0).all(-1), (own[..., 0] - own[..., 1]).min(-1), 0
            )
        scores = np.stack([none, some], -1) + evidence[inner]
        rows = np.array(list(itertools.product((0, 1), repeat=3)))
        each = scores[np.arange(3), rows].sum(-1) + evidence[top][0, rows.any(-1).astype(int)]
        found = ebm.Exact(product=product)(model)
        np.testing.assert_allclose(found.log_partition, add(each), rtol=1e-6)
        assert is_exact(ebm.Auto(product=product)(model))
        if product == "sum":
            p = np.exp(each - add(each))
            np.testing.assert_allclose(found[inner][:, 1], p @ rows, atol=1e-6)
            on = np.exp(own[..., 1] - np.logaddexp.reduce(own, -1))
            # A leaf is 1 only if its child is.
            share = on / -np.expm1(none - every)[:, None]
            np.testing.assert_allclose(
                found[leaves][..., 1], share * np.asarray(p @ rows)[:, None], atol=1e-6
            )
        else:
            states = found.decode()
            assert np.isfinite(model.energy(states))
            np.testing.assert_allclose(model.energy(states), -found.log_partition, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_structures(seed):
    """Factors of all kinds between variables of several groups, wide ones among them."""
    from pgmax import factor, fgraph, fgroup

    rng = np.random.default_rng(seed)
    binary = nd_var_array(num_states=2, shape=(2, 5))
    other = nd_var_array(num_states=rng.integers(1, 4, 3), shape=(3,))
    groups = [binary, other] if seed % 2 else [other, binary]
    graph = fgraph.FactorGraph(groups)
    order = [v for g in groups for v in g.variables]
    place = {v: k for k, v in enumerate(order)}
    counts = [int(n) for _, n in order]
    rows = np.array(list(itertools.product(*map(range, counts))))
    score = np.zeros(len(rows))
    evidence = {g: rng.normal(size=(*g.shape, int(np.max(g.num_states)))) for g in groups}
    flat = np.concatenate(
        [
            np.pad(e.reshape(-1, e.shape[-1]), ((0, 0), (0, 3 - e.shape[-1])))
            for e in evidence.values()
        ]
    )
    score += flat[np.arange(len(order)), rows].sum(-1)
    bits = list(binary.variables)

    def some(number, of=order):
        return [of[k] for k in rng.choice(len(of), number, replace=False)]

    def columns(variables):
        return rows[:, [place[v] for v in variables]]

    listed = []
    for _ in range(2):
        joined = some(int(rng.integers(1, 4)))
        every = np.array(list(itertools.product(*(range(v[1]) for v in joined))))
        kept = every[rng.permutation(len(every))[: max(1, 3 * len(every) // 4)]]
        values = rng.normal(size=len(kept))
        graph.add_factors(factor.EnumFactor(joined, values, kept))
        listed.append((joined, kept, values))
    # Few configurations of many variables.
    wide = some(9, bits)
    kept = np.unique(rng.integers(0, 2, (20, 9)), axis=0)
    listed.append((wide, kept, rng.normal(size=len(kept))))
    if seed % 3 == 0:
        graph.add_factors(factor.EnumFactor(wide, listed[-1][2], kept))
    else:
        listed.pop()
    for joined, kept, values in listed:
        met = (columns(joined)[:, None] == kept[None]).all(-1)
        score += np.where(met.any(1), met @ values, -np.inf)
    weights = rng.normal(size=(3, 2))
    ends = some(5, bits)
    graph.add_factors(ebmlearn.pgmax.RBMFactorGroup(ends[:3], ends[3:], weights))
    score += np.einsum("ri,ij,rj->r", columns(ends[:3]), weights, columns(ends[3:]))
    for make, reduce in (
        (fgroup.ORFactorGroup, np.any),
        (fgroup.ANDFactorGroup, np.all),
        (fgroup.PoolFactorGroup, np.sum),
    ):
        joined = some(int(rng.integers(2, 11)), bits)
        if rng.random() < 0.6:
            graph.add_factors(make([joined]))
            states = columns(joined)
            score += np.where(reduce(states[:, :-1], axis=-1) == states[:, -1], 0, -np.inf)
    model = FactorGraphModel(graph).with_evidence(evidence)
    assert stacks_of(model) is not None
    np.testing.assert_allclose(-np.asarray(model.energy(rows)), score, atol=1e-4)
    possible = np.isfinite(score).any()
    for method in ("elimination", "enumeration"):
        found = ebm.Exact(method=method)(model)
        best = ebm.Exact(product="max", method=method)(model)
        assert bool(found.converged) == bool(best.converged) == possible
        if not possible:
            continue
        log_z = np.logaddexp.reduce(score)
        np.testing.assert_allclose(found.log_partition, log_z, atol=1e-4)
        p = np.exp(score - log_z)
        for g in groups:
            own = columns(g.variables)
            states = np.arange(int(np.max(g.num_states)))
            means = np.einsum("r,rvs->vs", p, own[..., None] == states)
            np.testing.assert_allclose(np.asarray(found[g]).reshape(means.shape), means, atol=1e-5)
        np.testing.assert_allclose(best.log_partition, score.max(), atol=1e-4)
        np.testing.assert_allclose(model.energy(best.decode()), -score.max(), atol=1e-4)
    both = [ebm.Exact(method=m)(model).pairwise.values for m in ("elimination", "enumeration")]
    for a, b in zip(*both, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.slow
def test_a_factor_of_many_variables_that_lists_few_configurations():
    """Whose table would have 2**40 entries."""
    from pgmax import factor, fgraph

    rng = np.random.default_rng(2)
    x = nd_var_array(num_states=2, shape=(40,))
    graph = fgraph.FactorGraph([x])
    listed = rng.integers(0, 2, (5, 40))
    values = rng.normal(size=5)
    graph.add_factors(factor.EnumFactor(x.variables, values, listed))
    found = ebm.Exact()(FactorGraphModel(graph))
    np.testing.assert_allclose(found.log_partition, np.logaddexp.reduce(values), rtol=1e-6)
    p = np.exp(values - np.logaddexp.reduce(values))
    np.testing.assert_allclose(found[x][:, 1], p @ listed, atol=1e-6)
    np.testing.assert_allclose(found.pairwise.values[0], p, atol=1e-6)


def test_quantised_units_have_no_tables():
    from pgmax import fgraph

    grid = ebmlearn.pgmax.uniform_grid(5, 2.0)
    y = nd_var_array(num_states=5, shape=(12,))
    graph = fgraph.FactorGraph([y])
    couplings = jnp.eye(12) + 0.1
    graph.add_factors(ebmlearn.pgmax.NNBMFactorGroup(y, couplings, grid, jnp.zeros(12)))
    model = FactorGraphModel(graph)
    assert stacks_of(model) is None
    with pytest.raises(ValueError, match="configurations to enumerate"):
        ebm.Exact()(model)
    with pytest.raises(ValueError, match="needs factors that are tables"):
        ebm.Exact(method="elimination")(model)


@pytest.mark.slow
def test_mixed_product_sums_helpers_out():
    """Over the parents of a wide OR it maximises, over its child and another variable it sums."""
    from pgmax import fgraph, fgroup

    rng = np.random.default_rng(4)
    x, y = nd_var_array(num_states=2, shape=(10,)), nd_var_array(num_states=2, shape=(3,))
    graph = fgraph.FactorGraph([x, y])
    graph.add_factors(fgroup.ORFactorGroup([[*x.variables, y[0]]]))
    tables = rng.normal(size=(2, 2, 2))
    graph.add_factors(fgroup.PairwiseFactorGroup([[y[0], y[1]], [y[1], y[2]]], tables))
    evidence = {x: rng.normal(size=(10, 2)), y: rng.normal(size=(3, 2))}
    model = FactorGraphModel(graph).with_evidence(evidence)
    rows = np.array(list(itertools.product((0, 1), repeat=13)))
    score = -np.asarray(model.energy(rows), np.float64)
    summed = np.logaddexp.reduce(score.reshape(2**10, 8), axis=1)
    outputs = jnp.asarray([True] * 10 + [False] * 3)
    problem = model.problem(None, None).with_outputs(outputs)
    found = ebm.Exact(product="mixed", method="elimination").beliefs_of(problem)
    np.testing.assert_allclose(found.log_partition, summed.max(), rtol=1e-6)
    assert math.isfinite(float(found.log_partition))
