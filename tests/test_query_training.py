# Wrong types are passed on purpose, to see the errors.
# pyright: reportArgumentType=false

"""Query training: the network against the paper's equations, its answers against enumeration, its
gradients against differences.
"""

import inspect
import itertools
import warnings
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
import scipy.special
import scipy.stats
from errors import check
from slopes import assert_slopes

import ebmlearn as ebm
from ebmlearn.estimate._query_entropy import independent_entropy
from ebmlearn.inference._network import Network
from ebmlearn.learners._base import AbstractComparedMetric
from ebmlearn.models import num_asked
from ebmlearn.training._validation import Judge


KEY = jax.random.key(0)


def answer(model, evidence, observed):
    """The log-odds of the visible units."""
    return Network().beliefs_of(model.problem(evidence, observed)).log_odds[0]


def random_bits(rng, rows, columns):
    return rng.integers(0, 2, (rows, columns)).astype(np.uint8)


def plainly(rbm, evidence, observed, layers, T=1.0, strength=(1000.0, 9.21)):
    """Appendix D.1 of the paper, in NumPy: all messages of both directions in every layer."""
    w = np.asarray(rbm.weights, float) / 2
    first = np.asarray(rbm.visible_bias, float) + w.sum(1)
    second = np.asarray(rbm.hidden_bias, float) + w.sum(0)
    u = np.where(observed, np.where(evidence > 0, strength[1], -strength[0]), 0.0)

    def sp(x):
        return T * np.log1p(np.exp(x / T))

    def f(x):
        hard = np.sign(w) * np.clip(x, -np.abs(w), np.abs(w))
        return hard + sp(-np.abs(x + w)) - sp(-np.abs(x - w))

    to_hidden = to_visible = np.zeros(w.shape)
    for _ in range(layers):
        to_hidden, to_visible = (
            f((u + first + to_visible.sum(1))[:, None] - to_visible),
            f((second + to_hidden.sum(0))[None, :] - to_hidden),
        )
    return u + first + to_visible.sum(1)


@pytest.mark.slow
@pytest.mark.parametrize("name", oracle.MODELS)
def test_centred_form_and_back(name):
    with oracle.x64(True):
        plain = oracle.MODELS[name](np.random.default_rng(0), dtype="float64")
        back = ebm.QueryModel(plain).to_model()
        for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(back), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)


def test_centred_form_is_that_of_the_paper():
    with oracle.x64(True):
        rbm = oracle.random_rbm(np.random.default_rng(0), dtype="float64")
        centred = ebm.QueryModel(rbm).centred
        w = np.asarray(centred.weights)
        np.testing.assert_allclose(rbm.weights, 2 * w)
        np.testing.assert_allclose(rbm.visible_bias, centred.visible_bias - w.sum(1))
        np.testing.assert_allclose(rbm.hidden_bias, centred.hidden_bias - w.sum(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("w", "x", "T", "expected"),
    [(1.5, 0.7, 1.0, 0.433983), (1.5, 0.7, 1e-4, 0.7), (1.0, 1000.0, 1.0, 1.0)],
)
def test_the_transfer_function(w, x, T, expected):
    """One edge: what one unit makes of the evidence on the other."""
    couplings = jnp.asarray([[0, 2 * w], [2 * w, 0]], jnp.float32)
    pair = ebm.BoltzmannMachine(couplings, jnp.full(2, -w, jnp.float32))
    model = ebm.QueryModel(pair, 3, temperature=T, scale=1.0, strength=1000.0)
    evidence = jnp.asarray([jax.nn.sigmoid(x) if x < 100 else 1.0, 0.0], jnp.float32)
    found = answer(model, evidence, jnp.asarray([True, False]))
    np.testing.assert_allclose(found[1], expected, atol=2e-4 if T < 1 else 2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "T", "dtype"),
    [(1, 1.0, "float64"), (3, 2.5, "float64"), (10, 0.3, "float64"), (2, 0.3, "float32")],
    indirect=["dtype"],
)
def test_layers_are_those_of_the_paper(layers, T, dtype):
    """An even number is done by half as many sweeps of layers that take turns."""
    rng = np.random.default_rng(0)
    rbm = oracle.random_rbm(rng, scale=2.0, dtype=dtype)
    evidence, observed = random_bits(rng, 6, 5), rng.random((6, 5)) < 0.5
    model = ebm.QueryModel(rbm, layers, temperature=T, scale=3.0)
    found = ebm.query(model, evidence, jnp.asarray(observed))
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    for row in range(6):
        z = 3.0 * plainly(rbm, evidence[row], observed[row], layers, T)
        p = np.where(observed[row], evidence[row], scipy.special.expit(z))
        np.testing.assert_allclose(found[row], p, atol=tolerance)


@pytest.mark.slow
def test_temperature_goes_from_max_product_to_sum_product():
    rng = np.random.default_rng(1)
    with oracle.x64(True):
        rbm = oracle.random_rbm(rng, dtype="float64")
        for T, inference in ((1.0, ebm.BP(5)), (1e-3, ebm.BP(5, product="max"))):
            model = ebm.QueryModel(rbm, temperature=T, scale=1.0)
            none = jnp.zeros(5, bool)
            found = answer(model, jnp.zeros(5), none)
            tolerance = 1e-12 if T == 1 else 5e-3
            np.testing.assert_allclose(found, inference(rbm).log_odds.visible, atol=tolerance)


def trees():
    rng = np.random.default_rng(2)
    star = oracle.random_tree_rbm(rng, 5, 3, dtype="float64")[0]
    chain = oracle.random_dbm(rng, (4, 1, 2), dtype="float64")
    pairs = oracle.random_tree_boltzmann(rng, 6, dtype="float64")[0]
    semi = oracle.random_semi(rng, 4, 1, dtype="float64")
    # A chain of visible units, the last of which has a hidden one.
    near = (np.abs(np.subtract.outer(range(4), range(4))) == 1).astype(float)
    last = (np.arange(4)[:, None] == 3).astype(float)
    line = ebm.SemiRestrictedBM(
        semi.weights * last, semi.couplings * near, semi.visible_bias, semi.hidden_bias
    )
    return {"rbm": star, "dbm": chain, "boltzmann": pairs, "semi_restricted": line}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rbm", "dbm", "boltzmann", "semi_restricted"])
def test_conditional_marginals_of_trees(name):
    """Several patterns of evidence in one batch, some of it soft."""
    with oracle.x64(True):
        plain = trees()[name]
        rng = np.random.default_rng(3)
        units = plain.unary()[0].shape[0]
        observed = jnp.asarray(rng.random((8, units)) < 0.4).at[:, 0].set(False)
        evidence = jnp.asarray(rng.integers(0, 2, (8, units)).astype(float)).at[:, 1].set(0.3)
        model = ebm.QueryModel(plain, 12, scale=1.0, strength=1000.0)
        found = ebm.query(model, evidence, observed)
        exact = ebm.query(plain, evidence, observed, ebm.Exact())
        np.testing.assert_allclose(found, exact, atol=1e-10)
        sure = np.asarray(observed & (evidence != 0.3))
        np.testing.assert_array_equal(found[sure], evidence[sure])
        if name == "rbm":
            some = ebm.query(model, evidence, observed, targets=[0, 2])
            np.testing.assert_array_equal(some, found[:, jnp.asarray([0, 2])])


@pytest.mark.slow
@pytest.mark.parametrize("layers", [4, 3])
def test_gradient_by_differences(layers):
    """Through all layers, with the temperature, the scale and the evidence."""
    rng = np.random.default_rng(4)
    with oracle.x64(True):
        plain = oracle.random_dbm(rng, (4, 3, 2), dtype="float64")
        model = ebm.QueryModel(plain, layers, temperature=0.7, scale=2.0, strength=(3.0, 2.0))
        rows = random_bits(rng, 5, 4)
        learner = ebm.QueryTraining()
        gradient, _, info = learner.step(model, None, rows, key=KEY, epoch=0)
        np.testing.assert_allclose(info.loss, learner.loss(model, rows, key=KEY), rtol=1e-12)
        assert_slopes(lambda m: learner.loss(m, rows, key=KEY), model, gradient, rng)


@pytest.mark.slow
def test_loss_is_the_cross_entropy_of_targets():
    rng = np.random.default_rng(5)
    with oracle.x64(True):
        rbm = oracle.random_rbm(rng, dtype="float64")
        model = ebm.QueryModel(rbm, 4)
        # Grey levels are shares of rows with 1.
        rows = rng.random((6, 5))
        rows[0] = [0, 1, 1, 0, 1]
        learner = ebm.QueryTraining(ebm.queries.RandomTargets(0.4))
        observed, targets = ebm.queries.RandomTargets(0.4)(model, 6, key=KEY)
        p = np.asarray(ebm.query(model, rows, observed))[np.asarray(targets)]
        x = rows[np.asarray(targets)]
        expected = -(x * np.log(p) + (1 - x) * np.log1p(-p)).mean()
        np.testing.assert_allclose(learner.loss(model, jnp.asarray(rows), key=KEY), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["binary", "real"])
def test_what_is_nan_in_data_is_neither_evidence_nor_target(name):
    rng = np.random.default_rng(0)
    plain = ebm.RBM.init(5, 3, key=KEY, scale=1.0)
    rows = random_bits(rng, 12, 5).astype(np.float32)
    if name == "real":
        plain = ebm.GaussianRBM.init(5, 3, key=KEY, scale=0.5)
        rows = rng.normal(size=(12, 5)).astype(np.float32)
    model = ebm.QueryModel(plain)
    known = rng.random(rows.shape) < 0.7
    targets = rng.random(rows.shape) < 0.5
    holes = np.where(known, rows, np.nan)

    def loss(rows, observed, targets):
        pair = jnp.asarray(observed), jnp.asarray(targets)
        learner = ebm.QueryTraining(lambda shape, key: pair)
        gradient, _, info = learner.step(model, None, rows, key=KEY, epoch=0)
        return jax.tree.leaves((gradient, info.loss))

    found = loss(holes, ~targets, targets)
    expected = loss(rows, ~targets & known, targets & known)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    everywhere = ebm.query_entropy(model, holes, ebm.queries.RandomTargets(0.5), key=KEY)
    assert (everywhere.targets <= known.sum(1)).all()


@pytest.mark.slow
def test_one_target_without_hidden_units_is_pseudo_likelihood():
    rng = np.random.default_rng(6)
    with oracle.x64(True):
        plain = oracle.random_boltzmann(rng, 5, dtype="float64")
        row = random_bits(rng, 1, 5)
        rows = np.repeat(row, 5, axis=0)

        def each(shape, *, key):
            return ~jnp.eye(5, dtype=bool)

        learner = ebm.QueryTraining(each)
        model = ebm.QueryModel(plain, 6, scale=1.0, strength=1000.0)
        gradient, _, info = learner.step(model, None, rows, key=KEY, epoch=0)

        def expected(model):
            return -ebm.pseudo_log_likelihood(model.to_model(), row)[0] / 5

        value, slope = jax.value_and_grad(expected)(model)
        np.testing.assert_allclose(info.loss, value, rtol=1e-10)
        for a, b in zip(
            jax.tree.leaves(gradient.centred), jax.tree.leaves(slope.centred), strict=True
        ):
            np.testing.assert_allclose(a, b, atol=1e-10)


@pytest.mark.slow
def test_distributions_of_queries():
    rbm = ebm.RBM.init(12, 2, key=KEY)
    apart = {}
    for name, queries in {
        "random": ebm.queries.RandomTargets(0.25),
        "count": ebm.queries.TargetCount(3),
        "one": ebm.queries.LeaveOneOut(),
        "block": ebm.queries.BlockTargets((3, 4), (2, 3)),
        "fixed": ebm.queries.FixedTargets(np.arange(12) < 5, np.arange(12) > 9),
        "mixed": ebm.queries.MixedTargets(
            [ebm.queries.TargetCount(2), ebm.queries.TargetCount(9)], [3, 1]
        ),
        "own": lambda shape, *, key: (jnp.zeros(shape, bool), jnp.ones(shape, bool)),
    }.items():
        learner = ebm.QueryTraining(queries)
        observed, targets = learner.queries(rbm, 4000, key=KEY)
        assert observed.shape == targets.shape == (4000, 12)
        assert not (observed & targets).any()
        apart[name] = np.asarray(observed), np.asarray(targets)
    counts = {name: targets.sum(1) for name, (_, targets) in apart.items()}
    np.testing.assert_allclose(apart["random"][1].mean(0), 0.25, atol=0.035)
    assert (counts["count"] == 3).all() and (counts["one"] == 1).all()
    # Each unit as often as another.
    np.testing.assert_allclose(apart["count"][1].mean(0), 3 / 12, atol=0.035)
    np.testing.assert_allclose(apart["one"][1].mean(0), 1 / 12, atol=0.025)
    images = apart["block"][1].reshape(-1, 3, 4)
    assert (counts["block"] == 6).all()
    assert (images.any(2).sum(1) == 2).all() and (images.any(1).sum(1) == 3).all()
    assert len(np.unique(images.reshape(-1, 12), axis=0)) == 4
    assert (apart["fixed"][0].sum(1) == 5).all() and (counts["fixed"] == 2).all()
    for name in ("random", "count", "one", "block", "mixed"):
        assert (apart[name][0] == ~apart[name][1]).all()
    np.testing.assert_allclose((counts["mixed"] == 2).mean(), 0.75, atol=0.035)
    assert (counts["mixed"] == 9).sum() == 4000 - (counts["mixed"] == 2).sum()
    assert (counts["own"] == 12).all()


@pytest.mark.slow
def test_joint_answers_by_the_chain_rule():
    rng = np.random.default_rng(7)
    with oracle.x64(True):
        rbm = oracle.random_rbm(rng, dtype="float64")
        evidence = jnp.asarray(random_bits(rng, 2, 5).astype(float))
        observed = jnp.asarray([False, True, False, False, True])
        found = ebm.joint_query(rbm, evidence, observed, ebm.Exact(), [3, 0, 2])
        assert found.shape == (2, 2, 2, 2)
        for row in range(2):
            held = {k: int(evidence[row, k]) for k in (1, 4)}
            t = oracle.truth(rbm, held)
            p = np.exp(t.scores - t.log_z)
            for states in itertools.product((0, 1), repeat=3):
                met = (t.states[:, [3, 0, 2]] == states).all(1)
                np.testing.assert_allclose(found[row][states], p[met].sum(), atol=1e-10)
        # By approximate answers too it is a distribution, whose first marginal is the answer.
        model = ebm.QueryModel(rbm)
        joint = ebm.joint_query(model, evidence, observed, targets=[3, 0])
        np.testing.assert_allclose(joint.sum((1, 2)), 1, atol=1e-12)
        np.testing.assert_allclose(
            joint[:, 1].sum(1), ebm.query(model, evidence, observed, targets=3), atol=1e-12
        )


@pytest.mark.slow
def test_queries_take_their_arguments_in_the_same_order():
    rbm = oracle.random_rbm(np.random.default_rng(13))
    one, joint = (list(inspect.signature(f).parameters) for f in (ebm.query, ebm.joint_query))
    assert one[:5] == joint == ["model", "evidence", "observed", "inference", "targets"]
    evidence, observed = jnp.ones(5), jnp.arange(5) < 2
    asked = rbm, evidence, observed, ebm.Exact(), [3]
    np.testing.assert_allclose(ebm.joint_query(*asked)[1], ebm.query(*asked)[0], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rbm", "boltzmann"])
def test_predictions_of_a_query_model(name):
    """Each unit by its own answer where nothing is observed."""
    rng = np.random.default_rng(14)
    model = ebm.QueryModel(oracle.MODELS[name](rng), 4)
    units = num_asked(model)
    found = ebm.QueryTraining().predict(model)
    wanted = ebm.query(model, jnp.zeros(units), jnp.zeros(units, bool)) > 0.5
    np.testing.assert_array_equal(found, wanted)
    assert 0 < np.asarray(found).sum() < units
    np.testing.assert_array_equal(ebm.predict(model, inference=Network()), found)


@pytest.mark.slow
def test_query_entropy_of_exact_answers():
    """In bits and nats, by the number of targets, and by sampling."""
    rng = np.random.default_rng(8)
    with oracle.x64(True):
        rbm = oracle.random_rbm(rng, dtype="float64")
        rows = random_bits(rng, 30, 5)
        queries = ebm.queries.RandomTargets(0.5)
        found = ebm.query_entropy(rbm, rows, queries, ebm.Exact(), key=KEY, batch_size=30)
        first, _ = jax.random.split(jax.random.fold_in(KEY, 0))
        observed, targets = (np.asarray(x) for x in queries(rbm, 30, key=first))
        sums = np.zeros(30)
        for row in range(30):
            held = {k: int(rows[row, k]) for k in range(5) if observed[row, k]}
            p = oracle.truth(rbm, held).marginals[0]
            own = np.where(rows[row] == 1, p, 1 - p)
            sums[row] = -np.log2(own[targets[row]]).sum()
        np.testing.assert_allclose(found.rows, sums, atol=1e-9)
        np.testing.assert_array_equal(found.targets, targets.sum(1))
        np.testing.assert_allclose(found.value, sums.sum() / targets.sum())
        few = targets.sum(1) < 3
        np.testing.assert_allclose(
            found.by_targets([0, 3, 6])[0, 3], sums[few].sum() / targets[few].sum()
        )
        assert np.isnan(found.by_targets([10, 20])[10, 20])
        nats = ebm.query_entropy(
            rbm, rows, queries, ebm.Exact(), key=KEY, unit="nats", batch_size=30
        )
        np.testing.assert_allclose(nats.value, found.value * np.log(2))
        sampled = ebm.query_entropy(
            rbm, rows, queries, ebm.Gibbs(), key=KEY, batch_size=30, steps=3000
        )
        np.testing.assert_allclose(sampled.value, found.value, atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dbm", "boltzmann"])
def test_marginals_by_sampling(name):
    rng = np.random.default_rng(9)
    model = oracle.MODELS[name](rng)
    units = model.unary()[0].shape[0]
    evidence = jnp.asarray(random_bits(rng, 4, units), jnp.float32).at[0, 0].set(0.2)
    observed = jnp.asarray(rng.random((4, units)) < 0.5).at[0, 0].set(True)
    found = ebm.sampled_marginals(model, evidence, observed, key=KEY, steps=5000)
    exact = ebm.query(model, evidence, observed, ebm.Exact())
    np.testing.assert_allclose(found, exact, atol=0.03)
    sure = np.asarray(observed) & np.isin(evidence, (0, 1))
    np.testing.assert_array_equal(found[sure], evidence[sure])


@pytest.mark.slow
def test_training_answers_better_than_the_truth_it_starts_from():
    """On rows of two patterns, queries become nearly certain; numbers that are not to be learned
    stay, and couplings stay symmetric.
    """
    rng = np.random.default_rng(10)
    patterns = random_bits(rng, 2, 8)
    rows = patterns[rng.integers(0, 2, 200)]
    start = ebm.QueryModel(ebm.RBM.init(8, 4, key=KEY, scale=0.1), 4)
    learner = ebm.QueryTraining(ebm.queries.TargetCount(3), scale=False, strength=False)
    fitted = ebm.fit(
        start,
        learner,
        rows,
        optimizer=optax.adam(0.05),
        epochs=20,
        batch_size=50,
        validation=rows,
        key=KEY,
        progress=False,
    )
    curve = fitted.history.epochs["metric"]
    assert (
        curve[-1]
        < 0.05
        < 0.5
        < ebm.query_entropy(start, rows, ebm.queries.TargetCount(3), key=KEY).value
    )
    assert fitted.model.log_scale == start.log_scale
    assert (fitted.model.log_strength == start.log_strength).all()
    assert fitted.model.log_temperature != start.log_temperature

    pairs = ebm.QueryModel(ebm.BoltzmannMachine.init(8, key=KEY), 3)
    fitted = ebm.fit(
        pairs,
        ebm.QueryTraining(),
        rows,
        optimizer=optax.adam(0.05),
        epochs=2,
        batch_size=50,
        key=KEY,
        progress=False,
    )
    plain = fitted.model.to_model()
    np.testing.assert_array_equal(plain.couplings, plain.couplings.T)
    assert set(np.diagonal(plain.couplings)) == {0.0}


@pytest.mark.slow
def test_iterations_of_learner_and_model():
    rbm = ebm.RBM.init(4, 2, key=KEY, scale=1.0)
    rows = random_bits(np.random.default_rng(0), 6, 4)
    shallow = ebm.QueryTraining(iterations=2)
    with pytest.warns(UserWarning, match="2 iterations but answers with 10"):
        shallow.init(ebm.QueryModel(rbm), key=KEY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ebm.QueryTraining(iterations=10).init(ebm.QueryModel(rbm), key=KEY)
    found = shallow.loss(ebm.QueryModel(rbm), rows, key=KEY)
    same = ebm.QueryTraining().loss(ebm.QueryModel(rbm, 2), rows, key=KEY)
    np.testing.assert_array_equal(found, same)
    assert cast(Any, shallow.decoder()).iterations == 2


RBM = ebm.RBM.init(4, 2, key=KEY)
MODEL = ebm.QueryModel(RBM)
ROWS = np.zeros((3, 4), np.uint8)
MASK = np.array([True, True, False, False])
ERRORS = {
    "model": (lambda: ebm.QueryModel(3), TypeError, "`model`", "RBM", "3"),
    "crbm": (
        lambda: ebm.QueryModel(ebm.CRBM.init(4, 2, 3, key=KEY)),
        TypeError,
        "`model`",
    ),
    "batch": (
        lambda: ebm.QueryModel(RBM.with_unary((jnp.zeros((2, 4)), RBM.hidden_bias))),
        ValueError,
        "`model`",
        r"\(2,\)",
    ),
    "labels": (
        lambda: ebm.QueryModel(ebm.SemiRestrictedBM.init(4, 2, 3, key=KEY)),
        TypeError,
        "`model`",
        "categorical",
    ),
    "iterations": (lambda: ebm.QueryModel(RBM, 0), ValueError, "`iterations`", "1", "0"),
    "temperature": (
        lambda: ebm.QueryModel(RBM, temperature=0.0),
        ValueError,
        "`temperature`",
        "0.0",
    ),
    "scale": (lambda: ebm.QueryModel(RBM, scale=-1.0), ValueError, "`scale`", "-1"),
    "strength": (
        lambda: ebm.QueryModel(RBM, strength=(1.0, 2.0, 3.0)),  # pyright: ignore
        TypeError,
        "`strength`",
        "pair",
    ),
    "strength of 1": (
        lambda: ebm.QueryModel(RBM, strength=(1.0, 0.0)),
        ValueError,
        r"`strength\[1\]`",
        "0",
    ),
    "gaussian": (
        lambda: ebm.QueryModel(ebm.GaussianRBM.init(4, 2, key=KEY), temperature=2.0),
        ValueError,
        "`temperature`",
        "GaussianRBM",
    ),
    "queries": (lambda: ebm.QueryTraining(0.5), TypeError, "`queries`", "0.5"),
    "no targets": (
        lambda: ebm.queries.FixedTargets(MASK, np.zeros(4, bool)),
        ValueError,
        "`targets`",
        "none",
    ),
    "both": (lambda: ebm.queries.FixedTargets(MASK, MASK), ValueError, "`targets`", "both"),
    "probability": (lambda: ebm.queries.RandomTargets(0.0), ValueError, "`probability`", "0"),
    "number": (
        lambda: ebm.queries.TargetCount(5)(RBM, 3, key=KEY),
        ValueError,
        "`number`",
        "4",
        "5",
    ),
    "block": (lambda: ebm.queries.BlockTargets((2, 2), (3, 1)), ValueError, "`block`", "3"),
    "image": (
        lambda: ebm.queries.BlockTargets((2, 3), (1, 1))(RBM, 3, key=KEY),
        ValueError,
        "`image`",
        "4",
    ),
    "mixed": (lambda: ebm.queries.MixedTargets([]), ValueError, "`parts`"),
    "function": (
        lambda: ebm.QueryTraining(lambda shape, *, key: jnp.zeros(shape)).loss(
            MODEL, ROWS, key=KEY
        ),
        ValueError,
        "`queries`",
        "booleans",
    ),
    "not a query model": (
        lambda: ebm.QueryTraining().step(RBM, None, ROWS, key=KEY, epoch=0),
        TypeError,
        "`model`",
        "QueryModel",
    ),
    "values": (
        lambda: ebm.QueryTraining().step(MODEL, None, ROWS + 2, key=KEY, epoch=0),
        ValueError,
        "`batch`",
        r"\[0, 1\]",
        "2",
    ),
    "everything observed": (
        lambda: ebm.query(MODEL, ROWS, np.ones(4, bool)),
        ValueError,
        "`observed`",
    ),
    "nothing observed": (lambda: ebm.query(MODEL, ROWS), ValueError, "`observed`"),
    "outside": (
        lambda: ebm.query(MODEL, ROWS + 2.0, MASK),
        ValueError,
        "`evidence`",
        r"\[0, 1\]",
    ),
    "inference": (
        lambda: ebm.query(MODEL, ROWS, MASK, ebm.BP(3)),
        ValueError,
        "`inference`",
        "None",
    ),
    "targets": (
        lambda: ebm.query(MODEL, ROWS, MASK, targets=[4]),
        ValueError,
        "`targets`",
        "4",
    ),
    "joint": (
        lambda: ebm.joint_query(MODEL, ROWS, MASK, targets=[0]),
        ValueError,
        "`targets`",
        "observed",
    ),
    "twice": (lambda: ebm.joint_query(MODEL, ROWS, MASK, targets=[2, 2]), ValueError, "`targets`"),
    "entropy": (
        lambda: ebm.query_entropy(RBM, ROWS, ebm.queries.LeaveOneOut(), key=KEY),
        TypeError,
        "`inference`",
    ),
    "unit": (
        lambda: ebm.query_entropy(MODEL, ROWS, ebm.queries.LeaveOneOut(), key=KEY, unit="bit"),
        ValueError,
        "`unit`",
        "bits",
    ),
    "metric": (
        lambda: ebm.fit(
            MODEL,
            ebm.QueryTraining(),
            ROWS,
            optimizer=optax.sgd(0.1),
            epochs=1,
            batch_size=3,
            validation=ROWS[:, :3],
            key=KEY,
        ),
        ValueError,
        "`validation`",
        "4",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ERRORS)
def test_bad_input(case, as_a_user):
    check(ERRORS[case])


@pytest.mark.slow
def test_no_targets_at_run_time():
    def everything(shape, *, key):
        return jnp.ones(shape, bool)

    with pytest.raises(Exception, match="must return at least one target"):
        ebm.QueryTraining(everything).loss(MODEL, ROWS, key=KEY)


def gaussian_star(rng):
    """One hidden unit, where messages are exact in the first two moments."""
    return ebm.GaussianRBM(
        jnp.asarray(rng.normal(size=(5, 1))),
        jnp.asarray(rng.normal(size=5)),
        jnp.asarray(rng.normal(size=1)),
        jnp.asarray(0.3 * rng.normal(size=5)),
    )


@pytest.mark.slow
def test_gaussian_answers_of_a_star():
    rng = np.random.default_rng(11)
    with oracle.x64(True):
        plain = gaussian_star(rng)
        x = jnp.asarray(rng.normal(size=(6, 5)))
        observed = jnp.asarray(rng.random((6, 5)) < 0.5).at[:, 0].set(False)
        exact = ebm.query(plain, x, observed, ebm.Exact())
        found = ebm.query(ebm.QueryModel(plain, 8, scale=2.0), x, observed)
        np.testing.assert_allclose(found.mean, exact.mean, atol=1e-9)
        np.testing.assert_allclose(2.0 * found.variance, exact.variance, atol=1e-9)
        # Nats of a Gaussian, by the formula.
        queries = ebm.queries.RandomTargets(0.5)
        entropy = ebm.query_entropy(
            plain, x, queries, ebm.Exact(), key=KEY, unit="nats", batch_size=6
        )
        first, _ = jax.random.split(jax.random.fold_in(KEY, 0))
        observed, targets = queries(plain, 6, key=first)
        mean, variance = ebm.query(plain, x, observed, ebm.Exact())
        scale = np.sqrt(np.where(targets, variance, 1.0))
        each = -scipy.stats.norm.logpdf(np.asarray(x), np.asarray(mean), scale)
        np.testing.assert_allclose(entropy.value, each[np.asarray(targets)].mean(), rtol=1e-9)


@pytest.mark.slow
def test_gaussian_gradient_by_differences():
    rng = np.random.default_rng(12)
    with oracle.x64(True):
        plain = ebm.GaussianRBM(
            jnp.asarray(0.5 * rng.normal(size=(4, 3))),
            jnp.asarray(rng.normal(size=4)),
            jnp.asarray(rng.normal(size=3)),
            jnp.asarray(0.3 * rng.normal(size=4)),
        )
        model = ebm.QueryModel(plain, 6, scale=1.5)
        rows = jnp.asarray(rng.normal(size=(5, 4)))
        learner = ebm.QueryTraining()
        gradient, _, _ = learner.step(model, None, rows, key=KEY, epoch=0)
        assert_slopes(lambda m: learner.loss(m, rows, key=KEY), model, gradient, rng, atol=1e-8)


def small_data(rows=40):
    """Rows of independent units: there is nothing to learn but how often each is 1."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.9, 12)
    return [(rng.random((rows, 12)) < p).astype(np.uint8) for _ in range(2)]


@pytest.mark.slow
def test_entropy_of_independent_units():
    train, valid = small_data()
    model = ebm.QueryModel(ebm.RBM.init(12, 3, key=KEY))
    queries = ebm.queries.RandomTargets(0.5)
    found = independent_entropy(model, train, valid, queries, key=3, batch_size=25)
    p = (train.sum(0) + 0.5) / (len(train) + 1)
    bias = np.log(p / (1 - p))
    alone = ebm.RBM(np.zeros((12, 3)), bias, np.zeros(3))
    own = ebm.query_entropy(alone, valid, queries, ebm.BP(2), key=3, batch_size=25)
    np.testing.assert_allclose(found, own.value, rtol=1e-5)
    # What is missing is not asked for, and does not count.
    holes = train.astype(np.float32)
    holes[:5, 0] = np.nan
    found = independent_entropy(model, holes, holes, queries, key=3)
    assert np.isfinite(found)


def test_entropy_of_independent_real_units():
    train = np.random.default_rng(0).normal(3, 2, (500, 4)).astype(np.float32)
    model = ebm.QueryModel(ebm.GaussianRBM.init(4, 3, key=KEY))
    queries = ebm.queries.RandomTargets(1.0)
    found = independent_entropy(model, train, train, queries, key=0) * np.log(2)
    each = scipy.stats.norm.logpdf(train, train.mean(0), train.std(0))
    np.testing.assert_allclose(found, -each.mean(), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("many", [False, True])
def test_warning_of_a_model_worse_than_independent_units(many):
    train, valid = small_data()
    model = ebm.QueryModel(ebm.RBM.init(12, 8, key=KEY), 4)

    def fit(rate, epochs, **options):
        do = ebm.fit_many if many else ebm.fit
        key = [0, 1] if many else 0
        optimizer = optax.adam(rate)
        options = {"validation": valid, "epochs": epochs, "progress": False, **options}
        return do(model, ebm.QueryTraining(), train, optimizer=optimizer, key=key, **options)

    with pytest.warns(UserWarning, match="above the .* bits of independent units") as told:
        fit(0.1, 120, validation=ebm.Validation(valid, every=5))
    assert len(told) == 1
    # While it falls towards that of independent units, and while it stays below: no warning.
    fit(0.01, 10)
    rising = ebm.Validation(valid, lambda model, valid, epoch: jnp.float32(epoch), every=5)
    fit(0.1, 120, validation=rising)


@pytest.mark.slow
def test_no_warning_of_a_model_that_learns():
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.integers(0, 2, (60, 1)), 12, 1) ^ (rng.random((60, 12)) < 0.1)
    rows = rows.astype(np.uint8)
    model = ebm.QueryModel(ebm.RBM.init(12, 8, key=KEY), 4)
    fitted = ebm.fit(
        model,
        ebm.QueryTraining(),
        rows[:40],
        optimizer=optax.adam(0.03),
        epochs=60,
        validation=rows[40:],
        key=0,
        progress=False,
    )
    assert fitted.history.validations["metric"].min() < 0.7


def test_a_rise_is_told_below_zero_too():
    """Cross-entropies of real units may be negative. There, too, a metric that falls has not risen,
    and one that rises by more than a hundredth has.
    """

    class Known(AbstractComparedMetric):
        def __call__(self, model, validation, epoch):
            return 0.0

        def simple(self, model, data, validation):
            return -6.0

        def worse(self, value, simple):
            return f"{value} after {simple}"

    validation = Judge(Known(), None, None, simple=-6.0)
    for value, best in ((-5.02, -5.0), (-4.96, -5.0), (-6.5, -6.2)):
        validation.compare(value, best)
    with pytest.warns(UserWarning, match="-4.9 after -6.0"):
        validation.compare(-4.9, -5.0)
