# Wrong types are passed on purpose, to see the errors.
# pyright: reportArgumentType=false

"""Distributions of queries on graphs and grids, what users' own ones may give, and answers and
gradients of query models of grids.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from errors import check
from slopes import assert_slopes
from test_query_graph import chain

import ebmlearn as ebm
from ebmlearn.inference._network import Network
from ebmlearn.queries import draw, Query


KEY = jax.random.key(0)
LABEL = np.array([0, 0, 1])
RBM = ebm.RBM.init(4, 2, key=KEY)
ROWS = np.zeros((3, 4), np.uint8)
MASK = np.array([True, True, False, False])


@pytest.fixture
def as_pgmax():
    """PGMax is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def grid(shape=(2, 3), seed=0, dtype="float32", learned=()):
    """Three states, seen through two channels."""
    rng = np.random.default_rng(seed)
    tables = [jnp.asarray(rng.normal(size=(3, 3)), dtype) for _ in range(4)]
    emissions = {
        "pixels": jnp.asarray(rng.normal(size=(3, 2)), dtype),
        "labels": jnp.asarray(rng.normal(size=(3, 3)), dtype),
    }
    bias = jnp.asarray(rng.normal(size=3), dtype)
    return ebm.GridMRF(*tables, shape=shape, bias=bias, emissions=emissions, learned=learned)


GRID = grid()
# Of a grid of six pixels: the hidden states, and two channels.
STATE, PIXELS, LABELS = np.arange(18) // 6 == np.arange(3)[:, None]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_targets_among_groups(as_pgmax):
    """Each row has as many targets as it should, all of them told by data."""
    graph, hidden, seen, _ = chain(4)
    rows = np.random.default_rng(0).integers(0, 2, (50, 4))
    own = np.arange(8) >= 4
    for queries, number in (
        (ebm.queries.TargetCount(3, groups=[seen]), 3),
        (ebm.queries.LeaveOneOut(groups=[seen]), 1),
        (ebm.queries.RandomTargets(0.5, groups=[seen]), None),
        (ebm.queries.MixedTargets([ebm.queries.TargetCount(2, groups=[seen])]), 2),
    ):
        observed, targets = (np.asarray(x) for x in queries(graph, 50, key=KEY))
        np.testing.assert_array_equal(observed | targets, np.broadcast_to(own, (50, 8)))
        assert not (observed & targets).any()
        if number is not None:
            assert (targets.sum(1) == number).all()
        # Each variable is asked for by some rows, and given in others.
        assert targets[:, own].any(0).all() and observed[:, own].any(0).all()
    found = ebm.query_entropy(
        graph, {seen: rows}, ebm.queries.TargetCount(3, groups=[seen]), ebm.BP(2), key=KEY
    )
    assert (found.targets == 3).all()
    # Without groups, many targets are hidden.
    found = ebm.query_entropy(graph, {seen: rows}, ebm.queries.TargetCount(3), ebm.BP(2), key=KEY)
    assert (found.targets < 3).any()
    # All groups are as none.
    every = ebm.queries.TargetCount(3, groups=[hidden, seen])(graph, 50, key=KEY)
    for a, b in zip(ebm.queries.TargetCount(3)(graph, 50, key=KEY), every, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_blocks_in_channels():
    single = ebm.queries.BlockTargets((2, 3), (1, 2), groups=["pixels"])
    observed, targets = (np.asarray(x) for x in single(GRID, 200, key=KEY))
    np.testing.assert_array_equal(observed | targets, np.broadcast_to(PIXELS, (200, 18)))
    blocks = targets[:, PIXELS].reshape(200, 2, 3)
    assert (blocks.any(2).sum(1) == 1).all() and (blocks.any(1).sum(1) == 2).all()
    assert not blocks[:, :, [0, 2]].all(2).any()
    assert len(np.unique(blocks.reshape(200, 6), axis=0)) == 4
    both = ebm.queries.BlockTargets((2, 3), (1, 2), groups=["pixels", "labels"])
    observed, targets = (np.asarray(x) for x in both(ebm.QueryModel(GRID, 2), 200, key=KEY))
    np.testing.assert_array_equal(observed, ~targets & ~STATE)
    np.testing.assert_array_equal(targets[:, PIXELS], blocks.reshape(200, 6))
    np.testing.assert_array_equal(targets[:, LABELS], blocks.reshape(200, 6))
    data = {"pixels": np.zeros((4, 2, 3), int), "labels": np.zeros((4, 2, 3), int)}
    assert (ebm.query_entropy(GRID, data, both, ebm.BP(2), key=KEY).targets == 4).all()


class Own(ebm.queries.AbstractQueries):
    """What a user might give."""

    answer: object = eqx.field(static=True)

    def __call__(self, model, rows, *, key):
        return self.answer(rows)  # pyright: ignore


@pytest.mark.slow
def test_queries_of_users_own():
    """A subclass may give a pair, in NumPy or JAX."""
    wanted = np.broadcast_to(MASK, (3, 4))
    for kind in (tuple, lambda pair: Query(*map(jnp.asarray, pair))):
        found = draw(Own(lambda n, kind=kind: kind((wanted, ~wanted))), RBM, 3, key=KEY)
        np.testing.assert_array_equal(found.observed, wanted)
        np.testing.assert_array_equal(found.targets, ~wanted)
    found = ebm.query_entropy(RBM, ROWS, Own(lambda n: (wanted, ~wanted)), ebm.BP(2), key=KEY)
    assert (found.targets == 2).all()


def test_overlap_while_traced():
    def drawn(queries):
        return jax.jit(lambda x: draw(queries, RBM, 3, key=jax.random.key(x)).targets)

    with pytest.raises(Exception, match="`queries` must return targets that are not observed"):
        drawn(Own(lambda n: (jnp.ones((n, 4), bool),) * 2))(0).block_until_ready()
    # Distributions of the library cost no such check.
    for queries in (
        ebm.queries.RandomTargets(0.5),
        ebm.queries.MixedTargets([ebm.queries.LeaveOneOut()]),
    ):
        assert "callback" not in drawn(queries).lower(0).as_text()


def test_lists_and_arrays_as_arguments(as_a_user):
    listed = ebm.queries.FixedTargets(MASK.tolist(), (~MASK).tolist())
    for a, b in zip(
        listed(RBM, 2, key=KEY), ebm.queries.FixedTargets(MASK, ~MASK)(RBM, 2, key=KEY), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    parts = [ebm.queries.TargetCount(1), ebm.queries.TargetCount(2)]
    assert ebm.queries.MixedTargets(parts, np.array([1.0, 2.0])).weights == (1.0, 2.0)
    assert ebm.queries.MixedTargets(parts).weights == (1.0, 1.0)
    assert ebm.queries.BlockTargets([2, 2], np.array([1, 2])).block == (1, 2)  # pyright: ignore


def asked(function):
    """By a function, while it is traced."""
    return lambda: ebm.QueryTraining(function).loss(ebm.QueryModel(RBM, 2), ROWS, key=KEY)


def own(answer):
    return lambda: ebm.query_entropy(RBM, ROWS, Own(answer), ebm.BP(2), key=KEY)


def drawn(queries, model: Any = RBM):
    return lambda: queries(model, 3, key=KEY)


def made(**settings):
    return lambda: ebm.GridMRF(*[jnp.zeros((3, 3))] * 4, shape=(2, 2), **settings)


def entropy(model, data: Any = ROWS, inference: Any = None):
    return lambda: ebm.query_entropy(
        model, data, ebm.queries.RandomTargets(0.5), inference, key=KEY
    )


PARTS = [ebm.queries.TargetCount(1), ebm.queries.TargetCount(2)]
STATES = {"pixels": np.zeros((3, 2, 3), int)}
GAUSSIAN = ebm.GaussianRBM.init(4, 2, key=KEY)
TABLE = jnp.zeros((3, 2))
ERRORS = {
    "no graph": (
        drawn(ebm.queries.TargetCount(1, groups=["a"])),
        TypeError,
        "`groups`",
        "RBM",
        "'a'",
    ),
    "no graph, any": (drawn(ebm.queries.RandomTargets(groups=["a"])), TypeError, "`groups`", "RBM"),
    "no graph, block": (
        drawn(ebm.queries.BlockTargets((2, 2), (1, 1), groups=["a"])),
        TypeError,
        "`groups`",
        "RBM",
    ),
    "group": (
        drawn(ebm.queries.LeaveOneOut(groups=["a"]), GRID),
        KeyError,
        "`groups`",
        "'state', 'pixels', 'labels'",
        "'a'",
    ),
    "fixed group": (
        drawn(ebm.queries.FixedTargets(["pixels"], ["a"]), GRID),
        KeyError,
        "`targets`",
        "'pixels'",
        "'a'",
    ),
    "fixed, no graph": (
        drawn(ebm.queries.FixedTargets(["pixels"], ["labels"])),
        TypeError,
        "`observed`",
        "RBM",
        "'pixels'",
    ),
    "fixed, both kinds": (
        lambda: ebm.queries.FixedTargets(MASK, ["a"]),
        TypeError,
        "`observed`",
        "`targets`",
        r"\(4,\)",
    ),
    "groups": (
        lambda: ebm.queries.LeaveOneOut(groups="pixels"),
        TypeError,
        "`groups`",
        "list",
        "'pixels'",
    ),
    "no groups": (lambda: ebm.queries.RandomTargets(groups=[]), ValueError, "`groups`", "got 0"),
    "number": (
        drawn(ebm.queries.TargetCount(7, groups=["pixels"]), GRID),
        ValueError,
        "`number`",
        "6",
        "`groups`",
        "7",
    ),
    "image": (
        drawn(ebm.queries.BlockTargets((2, 2), (1, 1), groups=["pixels"]), GRID),
        ValueError,
        "`image`",
        "6",
        r"\(2, 2\)",
    ),
    "image of a grid": (
        drawn(ebm.queries.BlockTargets((2, 3), (1, 1)), GRID),
        ValueError,
        "`image`",
        "18",
        "`groups`",
    ),
    "block": (lambda: ebm.queries.BlockTargets(2, 1), TypeError, "`image`", "height", "2"),
    "short block": (
        lambda: ebm.queries.BlockTargets((2,), (1,)),
        ValueError,
        "`image`",
        "pair",
        "1",
    ),
    "long block": (
        lambda: ebm.queries.BlockTargets((2, 2), (1, 1, 1)),
        ValueError,
        "`block`",
        "pair",
        "3",
    ),
    "no weights": (lambda: ebm.queries.MixedTargets(PARTS, []), ValueError, "`weights`", "2 and 0"),
    "weight": (lambda: ebm.queries.MixedTargets(PARTS, ["a", "b"]), TypeError, "`weights`", "'a'"),
    "one weight": (
        lambda: ebm.queries.MixedTargets(PARTS, 2.0),
        TypeError,
        "`weights`",
        "list",
        "2.0",
    ),
    "parts": (
        lambda: ebm.queries.MixedTargets(ebm.queries.RandomTargets(0.5)),
        TypeError,
        "`parts`",
        "list",
        "RandomTargets",
    ),
    "own shape": (
        own(lambda n: (jnp.ones((n, 3), bool), jnp.zeros((n, 3), bool))),
        ValueError,
        "`queries`",
        "observed",
        r"\(3, 4\)",
        r"\(3, 3\)",
    ),
    "own dtype": (
        own(lambda n: (jnp.ones((n, 4), bool), jnp.zeros((n, 4)))),
        ValueError,
        "`queries`",
        "targets",
        "float32",
    ),
    "own overlap": (
        own(lambda n: (jnp.ones((n, 4), bool), jnp.ones((n, 4), bool))),
        ValueError,
        "`queries`",
        "observed",
    ),
    "own none": (own(lambda n: None), TypeError, "`queries`", "two arrays", "None"),
    "own part": (
        lambda: ebm.queries.MixedTargets([Own(lambda n: None)])(RBM, 3, key=KEY),
        TypeError,
        "`queries`",
        "None",
    ),
    "none": (asked(lambda shape, *, key: None), TypeError, "`queries`", r"\(3, 4\)", "got None"),
    "list": (
        asked(lambda shape, *, key: [jax.random.bernoulli(key, 0.5, shape)] * 2),
        TypeError,
        "`queries`",
        r"got a list of length 2\.",
    ),
    "lists": (
        asked(lambda shape, *, key: ([True], [key])),
        TypeError,
        "`queries`",
        "observed",
        r"got a list of length 1\.",
    ),
    "no rows": (
        entropy(ebm.QueryModel(RBM), ROWS[:0]),
        ValueError,
        "`data`",
        "one row",
        r"\(0, 4\)",
    ),
    "model": (entropy(3, inference=ebm.BP(2)), TypeError, "`model`", "RBM", "got 3"),
    "sampler of a grid": (
        entropy(GRID, STATES, ebm.Gibbs()),
        TypeError,
        "`model`",
        "a sampler that answers queries takes, layers of binary units",
        "GridMRF",
    ),
    "sampler of Gaussian units": (
        entropy(GAUSSIAN, ROWS.astype(np.float32), ebm.Gibbs()),
        TypeError,
        "`model`",
        "a sampler that answers queries takes, layers of binary units",
        "GaussianRBM",
    ),
    "sampled": (
        lambda: ebm.sampled_marginals(GRID, ROWS, MASK, key=KEY),
        TypeError,
        "`model`",
        "binary",
        "GridMRF",
    ),
    "sampled Gaussian units": (
        lambda: ebm.sampled_marginals(GAUSSIAN, ROWS, MASK, key=KEY),
        TypeError,
        "`model`",
        "binary",
        "GaussianRBM",
    ),
    "learned": (made(learned=3), TypeError, "`learned`", "names", "3"),
    "not learned": (
        lambda: ebm.GridMRF.init((2, 2), 2, key=KEY, learned=None),
        TypeError,
        "`learned`",
        "None",
    ),
    "emissions of init": (
        lambda: ebm.GridMRF.init((2, 2), 2, {"a": "x"}, key=KEY),
        TypeError,
        r"`emissions\['a'\]`",
        "floats",
        "'x'",
    ),
    "emissions": (
        made(emissions={"a": TABLE, "b": "x"}),
        TypeError,
        r"`emissions\['b'\]`",
        "floats",
        "'x'",
    ),
    "emissions of integers": (
        made(emissions={"a": TABLE, "b": np.zeros((3, 2), int)}),
        TypeError,
        r"`emissions\['b'\]`",
        "float32",
        "int",
    ),
    "emissions that are NaN": (
        made(emissions={"a": TABLE, "b": TABLE * jnp.nan}),
        ValueError,
        r"`emissions\['b'\]`",
        "NaN",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_bad_input(case, as_a_user):
    check(ERRORS[case])


@pytest.mark.filterwarnings("default")
def test_bad_groups_of_a_factor_graph(as_pgmax, as_a_user):
    graph, _, seen, _ = chain(2)
    other = chain(2)[1]
    check(
        (drawn(ebm.queries.LeaveOneOut(groups=[other]), graph), KeyError, "`groups`", "NDVarArray")
    )
    check(
        (drawn(ebm.queries.LeaveOneOut(groups=[seen])), TypeError, "`groups`", "RBM", "NDVarArray")
    )
    rows = {seen: np.zeros((3, 2), int)}
    check((entropy(graph, rows, ebm.Gibbs()), TypeError, "`model`", "sampler", "FactorGraphModel"))
    empty = {seen: np.zeros((0, 2), int)}
    check((entropy(ebm.QueryModel(graph, 2), empty), ValueError, "`data`", "one row"))


@pytest.mark.slow
def test_queries_depend_on_key_and_batch_size():
    rows = np.random.default_rng(0).integers(0, 2, (6, 4))

    def found(batch_size, key=KEY):
        queries = ebm.queries.RandomTargets(0.5)
        return ebm.query_entropy(
            RBM, rows, queries, ebm.BP(2), key=key, batch_size=batch_size
        ).targets

    np.testing.assert_array_equal(found(6), found(7))
    # Three rows at once, as other tests have them.
    assert (found(3) != found(6)).any()
    assert (found(3) != found(3, jax.random.key(1))).any()


@pytest.mark.slow
def test_leaving_one_out_is_pseudo_likelihood():
    """The loss, and its gradient, are those of the conditionals of the targets that were drawn."""
    rng = np.random.default_rng(1)
    with oracle.x64(True):
        plain = oracle.random_boltzmann(rng, 5, dtype="float64")
        rows = rng.integers(0, 2, (30, 5)).astype(float)
        model = ebm.QueryModel(plain, 2, temperature=1.0, scale=1.0, strength=1000.0)
        learner = ebm.QueryTraining(ebm.queries.LeaveOneOut())
        targets = np.asarray(learner.queries(model, 30, key=KEY).targets)
        at = targets.argmax(1)
        assert (targets.sum(1) == 1).all() and len(set(at)) == 5

        def expected(model):
            plain = model.to_model()
            couplings = plain.couplings * (1 - jnp.eye(5))
            field = (jnp.asarray(rows) @ couplings + plain.bias[None, :])[np.arange(30), at]
            x = jnp.asarray(rows[np.arange(30), at])
            return (jax.nn.softplus(field) - x * field).mean()

        value, slope = jax.jit(jax.value_and_grad(expected))(model)
        gradient, _, info = learner.step(model, None, rows, key=KEY, epoch=0)
        np.testing.assert_allclose(info.loss, value, rtol=1e-10)
        np.testing.assert_allclose(gradient.centred.bias, slope.centred.bias, atol=1e-10)
        # An edge is one parameter at two places, however its gradient is shared between them.
        both = [g.centred.couplings + g.centred.couplings.T for g in (gradient, slope)]
        np.testing.assert_allclose(*both, atol=1e-10)
        # By the default scale and evidence it is not.
        _, _, info = learner.step(ebm.QueryModel(plain, 2), None, rows, key=KEY, epoch=0)
        assert abs(info.loss - value) > 0.01


@pytest.mark.slow
def test_gradient_of_a_boltzmann_machine_by_differences():
    """An edge is one parameter that stands at two places: along symmetric directions."""
    rng = np.random.default_rng(4)
    with oracle.x64(True):
        plain = oracle.random_boltzmann(rng, 5, dtype="float64")
        model = ebm.QueryModel(plain, 2, temperature=0.7, scale=2.0, strength=(3.0, 2.0))
        rows = rng.integers(0, 2, (30, 5)).astype(np.uint8)
        # Of the same form as in the test before, whose program serves here.
        learner = ebm.QueryTraining(ebm.queries.LeaveOneOut())
        gradient, _, _ = learner.step(model, None, rows, key=KEY, epoch=0)

        def loss(model):
            w = model.centred.couplings
            w = (w + w.T) / 2 * (1 - jnp.eye(5))
            return learner.loss(eqx.tree_at(lambda m: m.centred.couplings, model, w), rows, key=KEY)

        assert_slopes(loss, model, gradient, rng, atol=1e-8)


@pytest.mark.slow
def test_a_row_of_pixels_is_exact():
    """A tree: hard and soft evidence on two channels, and joint answers."""
    with oracle.x64(True):
        plain = grid((1, 3), dtype="float64")
        soft = np.random.default_rng(2).random((1, 3, 2))
        evidence = {"pixels": soft, "labels": np.array([[2, -1, -1]])}
        model = ebm.QueryModel(plain, 5, temperature=1.0, strength=2000.0)
        found = ebm.query(model, evidence)
        exact = ebm.query(plain, evidence, inference=ebm.Exact())
        for group in ("state", "pixels", "labels"):
            np.testing.assert_allclose(found[group], exact[group], atol=1e-9)
        targets = [("state", (0, 0)), ("labels", (0, 2))]
        found = ebm.joint_query(model, evidence, targets=targets)
        exact = ebm.joint_query(plain, evidence, None, ebm.Exact(), targets)
        assert found.shape == (3, 3)
        np.testing.assert_allclose(found, exact, atol=1e-9)


def relative(scores):
    return np.asarray(scores) - np.asarray(scores).max(-1, keepdims=True)


@pytest.mark.slow
def test_low_temperatures_are_max_product():
    """On a grid with loops, as many layers of each, whatever the evidence."""
    with oracle.x64(True):
        plain = grid(dtype="float64")
        rows = np.full((2, 18), -1)
        rows[0, [6, 8, 12]] = [1, 0, 2]
        model = ebm.QueryModel(plain, 4, temperature=1e-3, scale=1.0)
        states = jnp.asarray(rows, jnp.int32)
        cold = Network().beliefs_of(model.problem(states, None)).log_odds
        hard = ebm.BP(4, product="max", schedule="flooding")(plain, states).log_odds
        free = oracle.by_group(plain, (rows < 0).astype(int))
        for group in ("state", "pixels", "labels"):
            own = np.asarray(free[group], bool)
            found, expected = (relative(x[group])[own] for x in (cold, hard))
            np.testing.assert_allclose(found, expected, atol=0.02)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_low_temperatures_of_a_factor_graph(as_pgmax):
    with oracle.x64(True):
        graph, hidden, seen, steps = chain(4)
        table = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)))
        graph = graph.with_log_potentials({steps: table})
        states = jnp.asarray([[-1, -1, -1, -1, 1, 0, -1, -1]])
        model = ebm.QueryModel(graph, 8, temperature=1e-3, scale=1.0)
        cold = Network().beliefs_of(model.problem(states, None)).log_odds
        hard = ebm.BP(8, product="max")(graph, states).log_odds
        np.testing.assert_allclose(relative(cold[hidden]), relative(hard[hidden]), atol=0.02)
        np.testing.assert_allclose(
            relative(cold[seen])[:, 2:], relative(hard[seen])[:, 2:], atol=0.02
        )


@pytest.mark.slow
def test_gradient_of_a_grid_by_differences():
    """Of all tables, the bias, the temperature, the scale and the strength of evidence."""
    rng = np.random.default_rng(3)
    with oracle.x64(True):
        plain = grid((2, 2), dtype="float64", learned=("pixels", "labels"))
        model = ebm.QueryModel(plain, 2, temperature=0.8, scale=1.5, strength=3.0)
        rows = {"pixels": rng.integers(-1, 2, (4, 2, 2)), "labels": rng.integers(0, 3, (4, 2, 2))}
        learner = ebm.QueryTraining(ebm.queries.TargetCount(4, groups=["pixels", "labels"]))
        gradient, _, _ = learner.step(model, None, rows, key=KEY, epoch=0)
        assert len(jax.tree.leaves(gradient)) == 10
        assert all(g.any() for g in jax.tree.leaves(gradient))
        assert_slopes(lambda m: learner.loss(m, rows, key=KEY), model, gradient, rng, atol=1e-8)


@pytest.mark.slow
def test_queries_of_nonnegative_units():
    couplings = jnp.asarray([[1.0, 0.3], [0.3, 1.2]])
    model = ebm.NNBM(couplings, jnp.asarray([0.5, -0.2]))
    for inference in (ebm.TAP(), ebm.SusP(), ebm.Exact()):
        answer = ebm.query(model, None, None, inference)
        beliefs = inference(model)
        np.testing.assert_array_equal(answer.mean, beliefs.x)
        np.testing.assert_array_equal(answer.variance, beliefs.variance)
        np.testing.assert_allclose(answer.mean, ebm.Exact()(model).mean, atol=0.05)
        assert bool(beliefs.converged) and bool((answer.variance > 0).all())
    one = ebm.query(model, None, None, ebm.TAP(), targets=[1])
    np.testing.assert_array_equal(one.mean, ebm.TAP()(model).mean[1:])


@pytest.mark.slow
def test_what_is_impossible_has_no_conditional():
    zero = jnp.zeros((3, 3))
    never = jnp.full((3, 3), -jnp.inf)
    right = never.at[0, 0].set(0.0).at[0, 1].set(1.0).at[1, 2].set(2.0)
    model = ebm.GridMRF(zero, right, zero, zero, shape=(1, 2))
    nothing = {"state": np.full((1, 2), -1)}
    targets = [("state", (0, 0)), ("state", (0, 1))]
    found = ebm.joint_query(model, nothing, None, ebm.Exact(), targets)
    p = np.where(np.isfinite(right), np.exp(np.asarray(right)), 0)
    np.testing.assert_allclose(found, p / p.sum(), atol=1e-6)
    assert not ebm.Exact()(model, {"state": np.array([[2, -1]])}).converged
