"""Query training of graphs of PGMax: categorical variables, tied factors, hidden variables."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from errors import check
from slopes import assert_slopes
from test_factor_graph_model import enumerated, Mixed
from untyped import nd_var_array

import ebmlearn as ebm
from ebmlearn.estimate._query_entropy import independent_entropy
from ebmlearn.pgmax import FactorGraphModel


KEY = jax.random.key(0)
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def as_pgmax():
    """PGMax is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def chain(length=6, states=3, seed=0):
    """Hidden states in a row, joined by one table for all, each seen through a noisy channel."""
    from pgmax import fgraph, fgroup

    rng = np.random.default_rng(seed)
    hidden = nd_var_array(states, (length,))
    seen = nd_var_array(2, (length,))
    graph = fgraph.FactorGraph([hidden, seen])
    steps = fgroup.PairwiseFactorGroup(
        [[hidden[i], hidden[i + 1]] for i in range(length - 1)], np.zeros((states, states))
    )
    channel = fgroup.PairwiseFactorGroup(
        [[hidden[i], seen[i]] for i in range(length)], rng.normal(size=(states, 2))
    )
    graph.add_factors([steps, channel])
    return FactorGraphModel(graph), hidden, seen, steps


@pytest.mark.slow
def test_conditional_marginals_of_trees():
    """All kinds of factors, one variable of three states, two patterns of evidence at once."""
    with oracle.x64(True):
        mixed = Mixed(loops=False)
        plain = mixed.model()
        a, _, c, d = mixed.variables
        evidence = {
            a: np.array([[[1, 0], [0, 0]], [[0, 1], [1, 1]]]),
            d: np.array([[2, 0], [1, 2]]),
        }
        observed = {a: np.array([[True, False], [False, True]]), d: np.array([False, True])}
        model = ebm.QueryModel(plain, 40, strength=2000.0)
        found = ebm.query(model, evidence, observed)
        exact = ebm.query(plain, evidence, observed, ebm.Exact())
        for group in mixed.variables:
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), found[group], exact[group]
            )
        np.testing.assert_array_equal(ebm.query(model, evidence, observed, targets=c), found[c])


@pytest.mark.slow
def test_joint_answers():
    with oracle.x64(True):
        mixed = Mixed(loops=False)
        plain = mixed.model()
        a, _, c, d = mixed.variables
        evidence = {a: np.array([[1, -1], [-1, -1]])}
        found = ebm.joint_query(plain, evidence, None, ebm.Exact(), [(d, 1), (c, 0)])
        rows, _, _, energy = enumerated(plain)
        p = np.where(rows[:, 0] == 1, np.exp(-energy), 0)
        p = p / p.sum()
        places = [int(oracle.by_group(plain, np.arange(rows.shape[1])).take(d, "x")[1])]
        places.append(int(oracle.by_group(plain, np.arange(rows.shape[1]))[c][0]))
        assert found.shape == (3, 2)
        for states in itertools.product(range(3), range(2)):
            met = (rows[:, places] == states).all(1)
            np.testing.assert_allclose(found[states], p[met].sum(), atol=1e-9)
        by_network = ebm.joint_query(
            ebm.QueryModel(plain, 40, strength=2000.0), evidence, targets=[(d, 1), (c, 0)]
        )
        np.testing.assert_allclose(by_network, found, atol=1e-7)


@pytest.mark.slow
def test_gradient_by_differences():
    """Of all tables and evidence, the temperature, the scale and the strength of evidence, through
    all layers, with hidden variables and some that are not known.
    """
    rng = np.random.default_rng(0)
    with oracle.x64(True):
        plain, hidden, seen, steps = chain(length=4)
        plain = plain.with_log_potentials({steps: jnp.asarray(rng.normal(size=(3, 3)))})
        model = ebm.QueryModel(plain, 4, temperature=0.8, scale=1.5, strength=3.0)
        rows = {seen: rng.integers(0, 2, (5, 4)), hidden: rng.integers(-1, 3, (5, 4))}
        rows[seen][0, 0] = -1
        learner = ebm.QueryTraining()
        gradient, _, info = learner.step(model, None, rows, key=KEY, epoch=0)
        assert np.isfinite(info.loss)
        assert len(jax.tree.leaves(gradient)) == 7
        assert_slopes(lambda m: learner.loss(m, rows, key=KEY), model, gradient, rng, atol=1e-8)


@pytest.mark.slow
def test_fixed_roles_and_tied_tables():
    """A model whose hidden states remember which kind of row it is learns to continue rows, from
    inputs that are always the first ones.
    """
    model, _, seen, steps = chain()
    rows = np.array([[0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])[np.arange(64) % 2]
    inputs = np.concatenate([np.zeros(6, bool), np.arange(6) < 2])
    outputs = np.concatenate([np.zeros(6, bool), np.arange(6) >= 4])
    roles = ebm.queries.FixedTargets(inputs, outputs)

    def build(free):
        plain = model.with_log_potentials({steps: free["table"]})
        return eqx.tree_at(lambda m: m.log_scale, ebm.QueryModel(plain, 6), free["log_scale"])

    # Not from zero, where nothing reaches further than one step.
    start = {"table": jnp.eye(3), "log_scale": jnp.zeros(())}
    first = ebm.query_entropy(build(start), {seen: rows}, roles, key=KEY).value
    fitted = ebm.fit(
        start,
        ebm.QueryTraining(roles),
        {seen: rows},
        build=build,
        optimizer=optax.adam(0.1),
        epochs=30,
        batch_size=32,
        key=KEY,
        progress=False,
    )
    assert ebm.query_entropy(fitted.model, {seen: rows}, roles, key=KEY).value < 0.75 * first
    # By groups: what is seen is given, hidden states are asked for where data tell them.
    model, hidden, seen, _ = chain()
    groups = ebm.queries.FixedTargets([seen], [hidden])
    observed, targets = groups(model, 2, key=KEY)
    np.testing.assert_array_equal(targets, np.broadcast_to(np.arange(12) < 6, (2, 12)))
    np.testing.assert_array_equal(observed, ~targets)


@pytest.mark.slow
def test_hidden_variables_are_neither_given_nor_asked_for():
    model, hidden, seen, _ = chain()
    asked = ebm.QueryModel(model, 8)
    rows = np.random.default_rng(0).integers(0, 2, (20, 6))
    found = ebm.query_entropy(asked, {seen: rows}, ebm.queries.RandomTargets(0.5), key=KEY)
    assert (found.targets <= 6).all()
    # By inference of the plain model the same, as far as the evidence is sure.
    plain = ebm.query_entropy(
        model, {seen: rows}, ebm.queries.RandomTargets(0.5), ebm.BP(8), key=KEY
    )
    np.testing.assert_allclose(found.value, plain.value, atol=1e-5)
    np.testing.assert_array_equal(found.targets, plain.targets)
    with pytest.raises(ValueError, match="at least one target"):
        ebm.query_entropy(asked, {seen: rows}, ebm.queries.FixedTargets([seen], [hidden]), key=KEY)


@pytest.mark.slow
def test_a_grid_of_hidden_states():
    """Labels from pixels: the gradient by differences, of the tables alone, and training."""
    rng = np.random.default_rng(1)
    label = np.array([0, 0, 1])
    with oracle.x64(True):
        seen = np.log(np.array([[0.2, 0.8], [0.9, 0.1]]))[label]
        grid = ebm.GridMRF.init(
            (3, 3),
            3,
            {"pixels": jnp.asarray(seen), "labels": jnp.log(jax.nn.one_hot(label, 2))},
            key=KEY,
        )
        model = ebm.QueryModel(grid, 3, temperature=None)
        truth = rng.integers(0, 2, (40, 1, 1)) * np.ones((1, 3, 3), int)
        noise = rng.random(truth.shape) < np.where(truth == 0, 0.8, 0.1)
        rows = {"pixels": noise.astype(int), "labels": truth}
        learner = ebm.QueryTraining(
            ebm.queries.FixedTargets(["pixels"], ["labels"]), strength=False
        )
        gradient, _, _ = learner.step(model, None, rows, key=KEY, epoch=0)
        assert not any(g.any() for g in gradient.centred.channel_tables)
        names = ("down", "right", "diagonal", "antidiagonal", "bias")

        def tables(model):
            return tuple(getattr(model.centred, name) for name in names)

        def loss(found):
            return learner.loss(eqx.tree_at(tables, model, found), rows, key=KEY)

        assert_slopes(loss, tables(model), tables(gradient), rng)
        fitted = ebm.fit(
            model,
            learner,
            rows,
            optimizer=optax.adam(0.05),
            epochs=30,
            batch_size=40,
            key=KEY,
            progress=False,
        )
        losses = fitted.history.steps["loss"]
        assert losses[-1] < 0.1 < losses[0]
        found = ebm.query(fitted.model, {"pixels": rows["pixels"]}, targets="labels")
        assert (np.asarray(found).argmax(-1) == truth).mean() > 0.95


def errors():
    model, hidden, seen, _ = chain()
    asked = ebm.QueryModel(model, 2)
    everything = {hidden: np.zeros(6, int), seen: np.zeros(6, int)}
    return {
        "all": (lambda: ebm.query(asked, everything), ValueError, "`evidence`", "all"),
        "state": (lambda: ebm.query(asked, {seen: np.full(6, 2)}), ValueError, "`evidence`", "2"),
        "pair": (lambda: ebm.QueryModel(model, strength=(1.0, 2.0)), TypeError, "`strength`"),
        "groups": (
            lambda: ebm.queries.FixedTargets([seen], [hidden])(
                ebm.RBM.init(3, 2, key=KEY), 2, key=KEY
            ),
            TypeError,
            "`observed`",
            "RBM",
        ),
        "target": (lambda: ebm.joint_query(asked, {}, targets=[3]), ValueError, "`targets`", "3"),
        "index": (
            lambda: ebm.joint_query(asked, {hidden: np.zeros(6, int)}, targets=[(seen, 6)]),
            ValueError,
            "`targets`",
            "6",
        ),
    }


@pytest.mark.parametrize("case", ["all", "state", "pair", "groups", "target", "index"])
def test_bad_input(case, as_a_user):
    check(errors()[case])


def test_entropy_of_independent_variables():
    """With all variables asked for: by counting, half a row added of each state."""
    model, hidden, seen, _ = chain(length=3)
    rng = np.random.default_rng(0)
    rows = {seen: rng.integers(0, 2, (30, 3)), hidden: rng.integers(-1, 3, (30, 3))}
    queries = ebm.queries.RandomTargets(1.0)
    found = independent_entropy(ebm.QueryModel(model), rows, rows, queries, key=0)
    surprise = []
    for states, number in ((rows[seen], 2), (rows[hidden], 3)):
        for column in states.T:
            known = column[column >= 0]
            p = (np.bincount(known, minlength=number) + 0.5) / (len(known) + 0.5 * number)
            surprise += list(-np.log2(p[known]))
    np.testing.assert_allclose(found, np.mean(surprise), rtol=1e-5)
