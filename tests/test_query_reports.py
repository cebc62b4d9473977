"""What answers to queries say of themselves, and what they refuse."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from pgmax import fgraph, fgroup, vgroup
from scipy.special import expit, logit, softmax

import ebmlearn as ebm
from ebmlearn.inference import Network
from ebmlearn.pgmax import FactorGraphModel


NONE = jnp.zeros(4, bool)
SOME = jnp.asarray([True, True, False, False])


@pytest.fixture(autouse=True)
def as_pgmax():
    """PGMax is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def rbm():
    return ebm.RBM(jnp.full((4, 1), 2.0), jnp.full(4, -1.0), jnp.full(1, -2.0))


def query_model(**options):
    return ebm.QueryModel(rbm(), scale=1.0, strength=1000.0, **options)


def chain():
    """A graph of four variables of three states in a line, seen through two states each."""
    rng = np.random.default_rng(0)
    hidden = vgroup.NDVarArray(3, (4,))
    seen = vgroup.NDVarArray(2, (4,))
    graph = fgraph.FactorGraph([hidden, seen])
    pairs: Any = [[hidden[i], hidden[i + 1]] for i in range(3)]
    graph.add_factors(fgroup.PairwiseFactorGroup(pairs, rng.normal(size=(3, 3))))
    pairs = [[hidden[i], seen[i]] for i in range(4)]
    graph.add_factors(fgroup.PairwiseFactorGroup(pairs, rng.normal(size=(3, 2))))
    return FactorGraphModel(graph), hidden, seen


@pytest.mark.slow
def test_likelihoods_leave_something_to_answer():
    """0.5 says nothing of a unit, and what is known of it by the others is the answer."""
    with oracle.x64(True):
        model = query_model()
        for value in (0.5, 0.6):
            evidence = jnp.asarray([value, 1.0, 0.0, 0.0])
            found = ebm.query(model, evidence, SOME)
            exact = ebm.query(rbm(), evidence, SOME, ebm.Exact())
            np.testing.assert_allclose(found, exact, atol=1e-10)
            assert found[0] > value + 0.1 and found[1] == 1
        soft = jnp.full(4, 0.6)
        every = jnp.ones(4, bool)
        exact = ebm.query(rbm(), soft, every, ebm.Exact())
        np.testing.assert_allclose(ebm.query(model, soft, every), exact, atol=1e-10)
        # Only what the other units say is scaled.
        scaled = ebm.QueryModel(rbm(), scale=3.0, strength=1000.0)
        odds = 3 * (logit(exact) - logit(0.6)) + logit(0.6)
        np.testing.assert_allclose(ebm.query(scaled, soft, every), expit(odds), atol=1e-10)


@pytest.mark.slow
def test_likelihoods_of_a_graph_are_not_scaled():
    model, hidden, seen = chain()
    told = np.random.default_rng(1).uniform(0.1, 1, (2, 4, 3))
    given = {hidden: jnp.asarray(told, jnp.float32), seen: jnp.asarray([0, 1, -1, 0])}
    exact = np.asarray(ebm.query(model, given, inference=ebm.Exact(), targets=hidden))
    asked = ebm.QueryModel(model, scale=3.0, strength=1000.0)
    found = ebm.query(asked, given, targets=hidden)
    scores = 3 * (np.log(exact) - np.log(told)) + np.log(told)
    np.testing.assert_allclose(found, softmax(scores, -1), atol=1e-5)


@pytest.mark.slow
def test_how_the_inference_went():
    network = Network()
    beliefs = network(query_model(), jnp.ones(4), SOME)
    assert bool(beliefs.converged) and beliefs.guarded is None
    many = jnp.ones((3, 4))
    beliefs = network(query_model(), many, SOME)
    assert beliefs.converged.shape == beliefs.residual.shape == (3,)
    strong = ebm.GaussianRBM(jnp.full((2, 2), 3.0), *jnp.zeros((3, 2)))
    free = jnp.asarray([False, False])
    plain = ebm.BP(5)(strong, jnp.zeros(2), free)
    assert network(ebm.QueryModel(strong), jnp.zeros(2), free).guarded == plain.guarded
    bits = ebm.query_entropy(
        query_model(), jnp.ones((3, 4)), ebm.queries.RandomTargets(), key=jax.random.key(0)
    )
    assert bits.converged == 1


@pytest.mark.slow
@pytest.mark.parametrize("value", [2.0, np.nan])
def test_evidence_is_checked_when_compiled(value):
    model = query_model()
    evidence = jnp.full(4, value)
    with pytest.raises(Exception, match="evidence` must lie in"):
        jax.block_until_ready(jax.jit(lambda e: ebm.query(model, e, SOME))(evidence))
    # What is not observed is not looked at.
    assert jnp.isfinite(jax.jit(lambda e: ebm.query(model, e, NONE))(evidence)).all()


@pytest.mark.slow
def test_evidence_of_other_kinds_is_checked_when_compiled():
    gaussian = ebm.QueryModel(
        ebm.GaussianRBM(jnp.ones((2, 1)), jnp.zeros(2), jnp.zeros(1), jnp.zeros(2))
    )
    mask = jnp.asarray([True, False])
    with pytest.raises(Exception, match="evidence` must be finite"):
        jax.block_until_ready(
            jax.jit(lambda e: ebm.query(gaussian, e, mask))(jnp.asarray([jnp.nan, 0.0]))
        )
    model, hidden, seen = chain()
    for asked, inference in ((ebm.QueryModel(model), None), (model, ebm.BP(5))):
        ask = jax.jit(
            lambda x, m=asked, i=inference: ebm.query(m, {seen: x}, inference=i, targets=hidden)
        )
        assert ask(jnp.asarray([0, 1, -1, 0])).shape == (4, 3)
        with pytest.raises(Exception, match="evidence` must hold states"):
            jax.block_until_ready(ask(jnp.asarray([0, 7, 0, 0])))
        with pytest.raises(Exception, match="evidence` must hold finite likelihoods"):
            jax.block_until_ready(ask(jnp.full((4, 2), jnp.nan)))


@pytest.mark.slow
def test_joint_targets_of_units():
    model = query_model()
    x = jnp.zeros(4)
    joint = ebm.joint_query(model, x, NONE, targets=[jnp.asarray(0), -1])
    np.testing.assert_allclose(joint, ebm.joint_query(model, x, NONE, targets=[0, 3]), atol=1e-7)
    cases = [
        ([-5], "indices below 4, got -5"),
        ([4], "indices below 4, got 4"),
        ([True], "indices below 4, got True"),
        ([0.5], "indices below 4, got 0.5"),
        ([-1, 3], "different from each other"),
    ]
    for targets, message in cases:
        with pytest.raises(ValueError, match=message):
            ebm.joint_query(model, x, NONE, targets=targets)
    with pytest.raises(TypeError, match="`targets` must be a list"):
        ebm.joint_query(model, x, NONE, targets=2)
    with pytest.raises(ValueError, match=r"`evidence` must have shape \(..., 4\)"):
        ebm.joint_query(model, x[:3], NONE[:3], targets=[0])


@pytest.mark.slow
def test_targets_of_a_graph():
    """A variable of PGMax is a pair too, but not of a group and an index."""
    model, hidden, seen = chain()
    evidence = {seen: jnp.asarray([0, 1, 1, 0])}
    p = ebm.joint_query(ebm.QueryModel(model), evidence, targets=[(hidden, 0)])
    q = ebm.query(ebm.QueryModel(model), evidence, targets=hidden)
    np.testing.assert_allclose(p, q[0], atol=1e-6)
    assert bool(Network()(ebm.QueryModel(model), evidence).converged)
    for target in (hidden[0], seen[0]):
        with pytest.raises(KeyError, match="`targets` must be a group of the graph"):
            ebm.joint_query(ebm.QueryModel(model), evidence, targets=[target])
    for index in (1.5, True, 4, (0, 0)):
        with pytest.raises(ValueError, match="`targets` must hold indices of variables"):
            ebm.joint_query(ebm.QueryModel(model), evidence, targets=[(hidden, index)])
    with pytest.raises(KeyError, match="`targets` must be a group of the graph"):
        ebm.query(ebm.QueryModel(model), evidence, targets="hidden")


def test_evidence_of_a_graph():
    model, _, seen = chain()
    asked = ebm.QueryModel(model)
    with pytest.raises(ValueError, match="`observed` must have the shape of the states"):
        ebm.query(asked, {seen: jnp.zeros(4, int)}, {seen: jnp.ones(3, bool)})
    with pytest.raises(ValueError, match="allow a state of each variable"):
        ebm.query(asked, {seen: jnp.zeros((4, 2))})
    with pytest.raises(ValueError, match=r"finite likelihoods >= 0, got -1\.0"):
        ebm.query(asked, {seen: jnp.full((4, 2), -1.0)})


@pytest.mark.slow
def test_numbers_of_a_query_model():
    model = ebm.QueryModel(rbm(), strength=(3.0, 4.0))
    again = ebm.QueryModel(rbm(), strength=model.strength)
    np.testing.assert_allclose(np.asarray(again.strength), [3.0, 4.0], rtol=1e-6)
    for name in ("temperature", "scale", "strength"):
        with pytest.raises(ValueError, match=f"`{name}.* as float32, got 1e-50"):
            ebm.QueryModel(rbm(), **{name: 1e-50})  # pyright: ignore
    with pytest.raises(TypeError, match=r"BP takes.*got a QueryModel.*ask it with `query`"):
        ebm.BP(2)(query_model())
    losses = [
        ebm.QueryTraining().loss(model, jnp.zeros((2, 4)), key=key)
        for key in (0, jax.random.key(0), jax.random.PRNGKey(0))
    ]
    assert losses[0] == losses[1] == losses[2]


def test_units_without_hidden_ones():
    model = ebm.GaussianRBM(jnp.zeros((2, 0)), jnp.asarray([1.0, 2.0]), jnp.zeros(0), jnp.zeros(2))
    found = ebm.query(ebm.QueryModel(model), jnp.zeros(2), jnp.zeros(2, bool))
    np.testing.assert_allclose(found.mean, [1.0, 2.0])
    np.testing.assert_allclose(found.variance, 1.0)


def test_nothing_to_learn_from():
    model, hidden, seen = chain()
    batch = {seen: jnp.zeros((2, 4), int)}
    for queries in (
        ebm.queries.FixedTargets([seen], [hidden]),
        ebm.queries.LeaveOneOut(groups=[hidden]),
    ):
        with pytest.raises(ValueError, match="at least one target with a value in `batch`"):
            ebm.QueryTraining(queries).loss(ebm.QueryModel(model), batch, key=jax.random.key(0))


@pytest.mark.slow
def test_weight_decay_leaves_alone_what_is_not_learned():
    key = jax.random.key(0)
    emissions = {
        "pixels": jnp.log(jnp.asarray([[0.8, 0.2], [0.3, 0.7]])),
        "labels": jnp.log(jnp.eye(2)),
    }
    grid = ebm.GridMRF.init((2, 2), 2, emissions, key=key, learned=("pixels",))
    model = ebm.QueryModel(grid, 2, strength=20.0)
    learner = ebm.QueryTraining(ebm.queries.FixedTargets(["pixels"], ["labels"]), strength=False)
    data = np.random.default_rng(0).integers(0, 2, (20, 2, 2))
    last = ebm.fit(
        model,
        learner,
        {"pixels": data, "labels": data},
        optimizer=optax.adamw(0.1, weight_decay=0.1),
        epochs=2,
        batch_size=10,
        progress=False,
        key=key,
    ).model
    np.testing.assert_array_equal(last.strength, model.strength)
    np.testing.assert_array_equal(last.centred.emissions["labels"], grid.emissions["labels"])
    assert not jnp.allclose(last.centred.emissions["pixels"], grid.emissions["pixels"])
    assert last.temperature != 1 and last.scale != 1
