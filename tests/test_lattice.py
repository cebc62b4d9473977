"""Tables shared by all pairs of a grid that lie an offset apart, against loops over the pairs."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ebmlearn as ebm
from ebmlearn.factors import Lattice, OFFSETS


# Shapes with axes that no pair fits into, any number of axes, offsets to all sides.
CASES = [
    ((3, 4), (1, 0)),
    ((3, 4), (0, 1)),
    ((3, 4), (1, -1)),
    ((3, 4), (-2, 1)),
    ((3, 4), (0, 0)),
    ((1, 3), (1, 1)),
    ((5,), (2,)),
    ((2, 1, 3), (0, 0, -1)),
]
BOTH = [(*case, same) for case in CASES for same in (True, False) if any(case[1]) or not same]
SIZES = {"a": 3, "b": 2}


def drawn(shape, offset, seed, same):
    """A factor, units and two rows of states."""
    rng = np.random.default_rng(seed)
    second, pixels = "a" if same else "b", int(np.prod(shape))
    table = rng.normal(size=(SIZES["a"], SIZES[second])).astype(np.float32)
    table[1, 1] = -np.inf
    units = {name: ebm.Categorical(pixels, n) for name, n in SIZES.items()}
    factor = Lattice("a", second, table, shape, offset).bound(units)
    states = {k: jnp.asarray(rng.integers(0, n, (2, pixels)), jnp.int32) for k, n in SIZES.items()}
    return factor, units, states


def pairs_of(shape, offset):
    """The numbers of the units of all pairs."""
    for at in itertools.product(*map(range, shape)):
        to = tuple(p + d for p, d in zip(at, offset, strict=True))
        if all(0 <= p < n for p, n in zip(to, shape, strict=True)):
            yield [int(np.ravel_multi_index(p, shape)) for p in (at, to)]


def met(factor, states):
    """The log-potentials of all pairs of one configuration."""
    table = np.where(np.asarray(factor.table) < -5e5, -np.inf, factor.table)
    one, two = (np.asarray(states[name]) for name in factor.groups)
    return [table[one[p], two[q]] for p, q in pairs_of(factor.shape, factor.offset)]


def one_hot(units, states):
    return {k: u.encode(states[k], jnp.float32) for k, u in units.items()}


def row(states, k):
    return {name: x[k] for name, x in states.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "offset", "same"), BOTH)
def test_answers_are_those_of_a_loop_over_pairs(shape, offset, same):
    factor, units, states = drawn(shape, offset, 0, same)
    wanted = np.array([-sum(met(factor, row(states, k))) for k in range(2)], np.float32)
    inside = one_hot(units, states)
    for given in (states, inside, {**states, "a": inside["a"]}):
        np.testing.assert_allclose(factor.energy(given), wanted, rtol=1e-5)
    # The field of a unit is the log-potential of all pairs, less those without it.
    finite = eqx.tree_at(
        lambda f: f.table, factor, jnp.where(factor.table < -5e5, -3, factor.table)
    )
    for group in set(factor.groups):
        field = finite.given(states, group)
        np.testing.assert_allclose(finite.given(inside, group), field, atol=1e-5)
        by_unit = np.asarray(field).reshape(2, units[group].size, -1)
        for k, unit, state in np.ndindex(by_unit.shape):
            own = {name: np.array(x[k]) for name, x in states.items()}
            moved = {**own, group: own[group].copy()}
            moved[group][unit] = state
            change = sum(met(finite, moved)) - sum(met(finite, own))
            kept = by_unit[k, unit, own[group][unit]]
            np.testing.assert_allclose(by_unit[k, unit, state] - kept, change, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "offset", "same"), BOTH)
def test_tables_and_statistics_of_all_pairs(shape, offset, same):
    factor, units, states = drawn(shape, offset, 1, same)
    pixels, listed = int(np.prod(shape)), list(pairs_of(shape, offset))
    stacks = factor.stacks(units, {"a": 0, "b": pixels})
    if listed:
        ((members, tables),) = stacks
        wanted = np.array(listed) + np.array([0, 0 if same else pixels])
        np.testing.assert_array_equal(members, wanted)
        np.testing.assert_array_equal(tables, np.tile(factor.table, (len(listed), 1, 1)))
    else:
        assert stacks == ()
    assert factor.size(units) == len(listed) * sum(factor.table.shape)

    first = row(states, 0)
    (found,) = factor.statistic(jax.grad(lambda f: -f.energy(first))(factor))
    counts = np.zeros(factor.table.shape)
    for p, q in listed:
        counts[int(first[factor.first][p]), int(first[factor.second][q])] += 1
    np.testing.assert_allclose(found, counts)
    half = factor.tempered(0.5).table
    table = np.asarray(factor.table)
    np.testing.assert_allclose(half, np.where(table < -5e5, table, table / 2))


def test_probabilities_stand_for_states():
    factor, _, _ = drawn((2, 2), (1, 0), 2, True)
    factor = eqx.tree_at(lambda f: f.table, factor, jnp.arange(9.0).reshape(3, 3))
    p = jax.nn.softmax(jax.random.normal(jax.random.key(0), (4, 3)))
    mean = 0.0
    for states in itertools.product(range(3), repeat=4):
        weight = np.prod([p[k, s] for k, s in enumerate(states)])
        mean += weight * factor.energy({"a": jnp.asarray(states)})
    np.testing.assert_allclose(factor.energy({"a": p.reshape(-1)}), mean, rtol=1e-5)


@pytest.mark.slow
def test_a_factor_model_of_lattices_is_a_grid():
    grid = ebm.GridMRF.init((2, 3), 3, {"seen": np.eye(3, 2, dtype=np.float32)}, key=0)
    pairs = zip(grid.tables, OFFSETS, strict=True)
    factors = [Lattice("state", "state", table, (2, 3), offset) for table, offset in pairs]
    factors.append(Lattice("state", "seen", grid.emissions["seen"], (2, 3), (0, 0)))
    variables = {"state": ebm.Categorical(6, 3), "seen": ebm.Categorical(6, 2)}
    model = ebm.FactorModel(variables, factors)
    for method in ("enumeration", "elimination"):
        wanted, found = ebm.Exact(method=method)(grid), ebm.Exact(method=method)(model)
        np.testing.assert_allclose(found.log_partition, wanted.log_partition, rtol=1e-5)
        for k, name in enumerate(("down", "right", "diagonal", "antidiagonal", "seen")):
            np.testing.assert_allclose(found.pairwise[k], wanted.pairwise[name], atol=1e-5)


@pytest.mark.slow
def test_tables_that_contradict_evidence_leave_no_configuration():
    table = np.array([[0, -np.inf], [0, -np.inf]], np.float32)
    units = {"a": ebm.Categorical(1, 2), "b": ebm.Categorical(1, 2)}
    model = ebm.FactorModel(units, [ebm.Tables(("a", "b"), table)])
    beliefs = ebm.Exact()(model, {"b": np.array([1])})
    assert beliefs.log_partition == -np.inf
    assert not beliefs.converged


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("a", "x", np.zeros((3, 2)), (2, 2), (1, 0)), TypeError, "categorical.*Binary in 'x'"),
        (("a", "a", np.zeros((3, 3)), (2, 3), (1, 0)), ValueError, "shape.*4 units.*2, 3"),
        (("a", "a", np.zeros((3, 3)), (2, 2), (1,)), ValueError, "offset.*2 numbers"),
        (("a", "a", np.zeros((3, 3)), (2, 2), (0, 0)), ValueError, "offset.*itself"),
        (("a", "a", np.zeros((3, 2)), (2, 2), (1, 0)), ValueError, r"table.*\(3, 3\)"),
    ],
)
def test_wrong_lattices(arguments, error, words):
    with pytest.raises(error, match=words):
        Lattice(*arguments).bound({"a": ebm.Categorical(4, 3), "x": ebm.Binary(4)})
