"""Groups of units with factors between them, against enumeration in float64 NumPy."""

import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ebmlearn as ebm
from ebmlearn.factors import Function
from ebmlearn.models import stacks_of
from ebmlearn.numpyro import EnergyDistribution, SamplerKernel


UNITS = {
    "visible": ebm.Binary(3),
    "hidden": ebm.Binary(2),
    "label": ebm.Categorical(1, 3),
    "kind": ebm.Categorical(1, 2),
}


class Truth(NamedTuple):
    rows: np.ndarray  # all configurations, as integers
    inside: dict[str, np.ndarray]  # their internal states
    scores: np.ndarray
    p: np.ndarray
    log_z: float


def drawn(seed=0, tree=False, scale=1.0) -> tuple[ebm.FactorModel, Truth]:
    """An RBM whose label is tied to a table, and all its configurations. A tree has the weights of
    one hidden unit only.
    """
    rng = np.random.default_rng(seed)
    names = ["visible", "hidden", "label", "kind"]
    rng.shuffle(names)
    units: dict[str, Any] = {name: UNITS[name] for name in names}
    biases = {k: rng.normal(size=u.width) for k, u in units.items()}
    blocks = {}
    for pair in (("visible", "hidden"), ("hidden", "label")):
        a, b = pair if rng.random() < 0.5 else pair[::-1]
        blocks[a, b] = scale * rng.normal(size=(units[a].width, units[b].width))
        if tree:
            blocks[a, b][(slice(1, None), ...) if a == "hidden" else (..., slice(1, None))] = 0
    inner = np.triu(rng.normal(size=(3, 3)), 1)
    if not tree:
        blocks["visible", "visible"] = inner + inner.T
    table = rng.normal(size=(3, 2))
    factors: list[Any] = [ebm.Dense(a, b, w) for (a, b), w in blocks.items()]
    factors.append(ebm.Tables(("label", "kind"), table))
    model = ebm.FactorModel(units, factors, biases)
    rows = np.array(list(itertools.product(*(range(n) for n in model.variables.counts))))
    parts = np.split(rows, np.cumsum([u.size for u in units.values()])[:-1], axis=1)
    inside = {
        k: np.eye(u.number)[x].reshape(len(rows), -1) if u.width > u.size else x.astype(float)
        for (k, u), x in zip(units.items(), parts, strict=True)
    }
    scores = sum(inside[k] @ b for k, b in biases.items())
    for (a, b), w in blocks.items():
        pair = np.einsum("si,ij,sj->s", inside[a], w, inside[b])
        scores = scores + (pair / 2 if a == b else pair)
    scores = scores + np.einsum("si,ij,sj->s", inside["label"], table, inside["kind"])
    log_z = float(np.logaddexp.reduce(scores))
    return model, Truth(rows, inside, scores, np.exp(scores - log_z), log_z)


def means(beliefs, name) -> np.ndarray:
    """The means of internal states, from the probabilities of states."""
    p = np.asarray(beliefs[name])
    return p[..., 1] if isinstance(UNITS[name], ebm.Binary) else p.reshape(-1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_energies(seed, in_float64):
    model, truth = drawn(seed)
    np.testing.assert_allclose(model.energy(jnp.asarray(truth.rows)), -truth.scores, atol=1e-12)
    states = {name: x for name, x in zip(model.names, _cut(model, truth.rows), strict=True)}
    np.testing.assert_allclose(model.energy(states), -truth.scores, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["enumeration", "elimination"])
def test_exact(method, in_float64):
    model, truth = drawn(1)
    beliefs = ebm.Exact(method=method)(model)
    np.testing.assert_allclose(beliefs.log_partition, truth.log_z, rtol=1e-12)
    for name in UNITS:
        np.testing.assert_allclose(means(beliefs, name), truth.p @ truth.inside[name], atol=1e-12)
    for k, factor in enumerate(model.factors()):
        a, b = factor.groups
        both = np.einsum("s,si,sj->ij", truth.p, truth.inside[a], truth.inside[b])
        got = np.asarray(beliefs.pairwise[k]).reshape(both.shape)
        off = np.ones(both.shape, bool) if a != b else ~np.eye(len(both), dtype=bool)
        np.testing.assert_allclose(got[off], both[off], atol=1e-12)
    best = ebm.Exact(product="max", method=method)(model)
    np.testing.assert_allclose(best.log_partition, truth.scores.max(), rtol=1e-12)
    found = np.concatenate([np.ravel(best.decode()[name]) for name in model.names])
    np.testing.assert_array_equal(found, truth.rows[truth.scores.argmax()])


@pytest.mark.slow
@pytest.mark.parametrize("product", ["sum", "max"])
def test_messages_are_exact_on_trees(product, in_float64):
    model, truth = drawn(2, tree=True)
    beliefs = ebm.BP(20, product=product, tol=1e-10)(model)
    assert beliefs.converged
    want = truth.log_z if product == "sum" else truth.scores.max()
    np.testing.assert_allclose(beliefs.log_partition, want, rtol=1e-10)
    if product == "max":
        found = np.concatenate([np.ravel(beliefs.decode()[name]) for name in model.names])
        np.testing.assert_array_equal(found, truth.rows[truth.scores.argmax()])
        return
    for name in UNITS:
        np.testing.assert_allclose(means(beliefs, name), truth.p @ truth.inside[name], atol=1e-10)
    # At a fixed point the beliefs of pairs are the gradient of log Z.
    gradient = eqx.filter_grad(lambda m: ebm.BP(20)(m).log_partition)(model)
    for k, factor in enumerate(gradient.parts):
        np.testing.assert_allclose(factor.parameters[0], beliefs.pairwise[k], atol=1e-10)


@pytest.mark.slow
def test_bounds_hold(in_float64):
    model, truth = drawn(3)
    assert float(ebm.MeanField(50)(model).log_partition) <= truth.log_z
    assert float(ebm.TRBP()(model).log_partition) >= truth.log_z - 1e-9
    assert float(ebm.MPLP()(model).log_partition) >= truth.scores.max() - 1e-9


@pytest.mark.slow
def test_dense_messages_are_those_of_tables(in_float64):
    """A second formulation: every pair of units as a table."""
    model, _ = drawn(4, scale=0.5)
    pairs: Any = zip(model.layers, model.unary(), strict=True)
    parts: Any = [row for units, bias in pairs for row in np.asarray(units.scores(bias))]
    scopes = [(v,) for v in range(len(parts))]
    tables = list(parts)
    for members, stack in stacks_of(model) or ():
        scopes += [tuple(own) for own in np.asarray(members).tolist()]
        tables += list(np.asarray(stack))
    other = ebm.TableModel(model.variables.counts, scopes, tables)
    for product in ("sum", "max"):
        bp = ebm.BP(100, product=product, tol=1e-12)
        one, two = bp(model), bp(other)
        assert one.converged and two.converged
        np.testing.assert_allclose(one.log_partition, two.log_partition, rtol=1e-8)
        got = np.concatenate([np.ravel(one[name]) for name in model.names])
        want = [
            row[:n] for row, n in zip(np.asarray(two["x"]), model.variables.counts, strict=True)
        ]
        np.testing.assert_allclose(got, np.concatenate(want), atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [ebm.Gibbs(), ebm.GibbsWithGradients()])
def test_chains_keep_the_distribution(sampler, in_float64):
    model, truth = drawn(5, scale=0.5)
    rng, number = np.random.default_rng(0), 20_000
    start = truth.rows[rng.choice(len(truth.p), number, p=truth.p)]
    states = ebm.sample(
        model, sampler, number, key=0, num_chains=number, start=jnp.asarray(start, jnp.int32)
    )
    for name in UNITS:
        x = np.asarray(states[name])
        if isinstance(UNITS[name], ebm.Categorical):
            x = np.eye(UNITS[name].number)[x[:, 0]]
        want = truth.p @ truth.inside[name]
        spread = np.sqrt(want * (1 - want) / number)
        assert (np.abs(x.mean(0) - want) < 5 * spread).all()


@pytest.mark.slow
def test_evidence_on_any_group(in_float64):
    model, truth = drawn(6)
    given = (truth.inside["visible"] == [1, 0, 1]).all(1) & (truth.inside["kind"][:, 1] == 1)
    p = np.where(given, truth.p, 0) / truth.p[given].sum()
    evidence = {"visible": jnp.array([1, 0, 1]), "kind": jnp.array([1])}
    answer = ebm.query(model, evidence, inference=ebm.Exact())
    np.testing.assert_allclose(answer["label"][0], p @ truth.inside["label"], atol=1e-12)
    # A likelihood of each state.
    soft = np.array([0.2, 0.5, 0.3])
    weights = truth.p * (truth.inside["label"] @ soft)
    answer = ebm.query(model, {"label": jnp.asarray(soft)[None]}, inference=ebm.Exact())
    want = weights @ truth.inside["kind"] / weights.sum()
    np.testing.assert_allclose(answer["kind"][0], want, atol=1e-12)


@pytest.mark.slow
def test_gradients_of_the_likelihood(in_float64):
    """With hidden groups, against the difference of two enumerations."""
    model, truth = drawn(7)
    rng = np.random.default_rng(0)
    data = {"visible": rng.integers(0, 2, (5, 3)), "kind": rng.integers(0, 2, (5, 1))}
    expected = [np.zeros(np.shape(x)) for f in model.factors() for x in f.parameters]
    shares = [-truth.p]
    for v, k in zip(data["visible"], data["kind"], strict=True):
        given = (truth.inside["visible"] == v).all(1) & (truth.inside["kind"][:, k[0]] == 1)
        shares.append(np.where(given, truth.p, 0) / truth.p[given].sum() / 5)
    weights = np.sum(shares, axis=0)
    for k, factor in enumerate(model.factors()):
        a, b = factor.groups
        both = np.einsum("s,si,sj->ij", weights, truth.inside[a], truth.inside[b])
        expected[k] = (
            -both * (1 - np.eye(len(both))) if a == b else -both.reshape(expected[k].shape)
        )
    learner = ebm.MLE(ebm.Exact())
    gradient, _, _ = learner.step(
        model, learner.init(model, key=0), data, key=jax.random.key(0), epoch=0
    )
    for factor, want in zip(gradient.parts, expected, strict=True):
        got = np.asarray(factor.parameters[0])
        off = (
            ~np.eye(len(got), dtype=bool)
            if factor.is_inside("visible")
            else np.ones(got.shape, bool)
        )
        np.testing.assert_allclose(got[off], want[off], atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "rate"), [(ebm.SAP(), 0.1), (ebm.MLE(ebm.BP(20, damping=0.3)), 0.05)]
)
def test_it_learns_a_taxonomy(learner, rate):
    """Labels decide the visible units, and a table says of which kind they are."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, (200, 1))
    data = {"visible": np.eye(3, dtype=int)[label[:, 0]], "label": label, "kind": label // 2}
    units = {**UNITS, "hidden": ebm.Binary(6)}
    small = lambda *shape: jnp.asarray(rng.normal(size=shape) / 10, jnp.float32)  # noqa: E731
    model = ebm.FactorModel(
        units,
        [
            ebm.Dense("visible", "hidden", small(3, 6)),
            ebm.Dense("label", "hidden", small(3, 6)),
            ebm.Tables(("label", "kind"), small(3, 2)),
        ],
    )
    fitted = ebm.fit(
        model, learner, data, optimizer=optax.adam(rate), epochs=60, batch_size=50, key=0,
        progress=False,
    ).model  # fmt: skip
    answer = ebm.query(fitted, {"visible": jnp.eye(3, dtype=jnp.int32)}, inference=ebm.Exact())
    np.testing.assert_array_equal(answer["label"][:, 0].argmax(-1), [0, 1, 2])
    np.testing.assert_array_equal(answer["kind"][:, 0].argmax(-1), [0, 0, 1])


@pytest.mark.slow
def test_files_numpyro_and_energies(tmp_path, in_float64):
    model, truth = drawn(8)
    ebm.save(tmp_path / "model.ebm", model)
    loaded: Any = ebm.load(tmp_path / "model.ebm")
    np.testing.assert_allclose(ebm.Exact()(loaded).log_partition, truth.log_z, rtol=1e-12)
    energy = model.as_energy()
    parts = dict(zip(model.names, _cut(model, truth.rows), strict=True))
    states = energy.named([jnp.asarray(parts[name], jnp.int32) for name in model.names])
    np.testing.assert_allclose(energy.energy(states), -truth.scores, atol=1e-12)
    assert EnergyDistribution(energy, "exact") is not None
    assert SamplerKernel(ebm.Gibbs()) is not None


@pytest.mark.slow
def test_tables_that_exclude(in_float64):
    """Messages and elimination keep to what a table allows; chains are refused."""
    table = jnp.where(jnp.array([[True, False], [True, False], [False, True]]), 0.0, -jnp.inf)
    model = ebm.FactorModel(
        {"label": ebm.Categorical(1, 3), "kind": ebm.Categorical(1, 2)},
        [ebm.Tables(("label", "kind"), table)],
        {"label": jnp.array([0.3, -0.2, 0.1])},
    )
    p = jax.nn.softmax(jnp.array([0.3, -0.2, 0.1]))
    for inference in (ebm.Exact(), ebm.Exact(method="elimination"), ebm.BP(5)):
        beliefs = inference(model)
        np.testing.assert_allclose(beliefs["label"][0], p, atol=1e-6)
        np.testing.assert_allclose(beliefs["kind"][0], [p[0] + p[1], p[2]], atol=1e-6)
    with pytest.raises(TypeError, match="exclude"):
        ebm.sample(model, ebm.Gibbs(), 10, key=0)


def _cut(model, rows):
    return np.split(rows, np.cumsum([u.size for u in model.layers])[:-1], axis=1)


WRONG = {
    "groups": (
        lambda: ebm.FactorModel({"a": ebm.Binary(2)}, [ebm.Dense("a", "b", jnp.zeros((2, 2)))]),
        ValueError,
        "`factors[0]` must name groups, 'a', got 'b'.",
    ),
    "weights": (
        lambda: ebm.FactorModel(
            {"a": ebm.Binary(2), "b": ebm.Binary(3)}, [ebm.Dense("a", "b", jnp.zeros((2, 2)))]
        ),
        ValueError,
        "`Dense('a', 'b').weights` must have shape (2, 3)",
    ),
    "tables": (
        lambda: ebm.FactorModel({"a": ebm.Binary(2)}, [ebm.Tables("a", jnp.zeros(3))]),
        ValueError,
        "`Tables(('a',)).log_potentials` must have shape (1, 2)",
    ),
    "members": (
        lambda: ebm.FactorModel(
            {"a": ebm.Binary(2)}, [ebm.Tables(("a", "a"), jnp.zeros((1, 2, 2)), np.array([[1, 1]]))]
        ),
        ValueError,
        "must hold each unit once in a table, got unit 1 of 'a' twice.",
    ),
    "units": (
        lambda: ebm.FactorModel({"a": ebm.Gaussian(2)}, []),
        TypeError,
        "`variables['a']` must be binary or categorical units, got Gaussian",
    ),
    "function": (
        lambda: ebm.FactorModel({"a": ebm.Binary(2)}, [Function(lambda x: x["a"].sum(), ("a",))]),
        TypeError,
        "`factors` must hold `Dense` or `Tables`, got a Function: take `EnergyModel`.",
    ),
    "factors": (
        lambda: ebm.FactorModel({"a": ebm.Binary(2)}, [jnp.zeros((2, 2))]),  # pyright: ignore
        TypeError,
        "`factors[0]` must be a factor such as `Dense(...)`, got",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name, as_a_user):
    call, kind, message = WRONG[name]
    with pytest.raises(kind) as error:
        call()
    assert message in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_tables_of_any_groups_are_enumerated(seed):
    """Tables of one to three axes, with zeros, between groups of both kinds, which `Exact` sums out
    or lists.
    """
    rng = np.random.default_rng(seed)
    pool = [ebm.Binary(1), ebm.Binary(2), ebm.Categorical(1, 3), ebm.Categorical(2, 2)]
    units: dict[str, Any] = {name: pool[rng.integers(4)] for name in "abcd"}
    counts = {name: getattr(u, "states", 2) for name, u in units.items()}
    tables = []
    for order in (1, 2, 3):
        groups = tuple(map(str, rng.permutation(list(units))[:order]))
        table = rng.normal(size=[counts[g] for g in groups])
        table.flat[1:][rng.random(table.size - 1) < 0.2] = -np.inf
        tables.append((groups, table))
    model = ebm.FactorModel(units, [ebm.Tables(groups, table) for groups, table in tables])
    every = [itertools.product(range(counts[g]), repeat=u.size) for g, u in units.items()]
    rows = [dict(zip(units, row, strict=True)) for row in itertools.product(*every)]
    scores = np.array(
        [sum(table[tuple(row[g][0] for g in groups)] for groups, table in tables) for row in rows]
    )
    np.testing.assert_allclose(
        ebm.Exact()(model).log_partition, np.logaddexp.reduce(scores), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        ebm.Exact(product="max")(model).log_partition, scores.max(), rtol=1e-5
    )
    p = np.exp(scores - np.logaddexp.reduce(scores))
    beliefs = ebm.Exact()(model)
    for name in units:
        for k in range(units[name].size):
            want = [p[[row[name][k] == s for row in rows]].sum() for s in range(counts[name])]
            np.testing.assert_allclose(beliefs[name][k], want, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rare", [0.0, 0.3])
def test_likelihoods_of_binary_groups_count_in_log_z(rare):
    """Of both states, also where one has none."""
    weights = np.random.default_rng(0).normal(size=(3, 2))
    units = {"v": ebm.Binary(3), "h": ebm.Binary(2)}
    model = ebm.FactorModel(units, [ebm.Dense("v", "h", weights)])
    likely = np.array([[0.2, 0.7], [rare, 1.0], [0.5, 0.1]])
    scores = []
    for row in itertools.product((0, 1), repeat=5):
        v, h = np.array(row[:3]), np.array(row[3:])
        scores.append(np.exp(v @ weights @ h) * likely[np.arange(3), v].prod())
    given = {"v": jnp.asarray(likely)}
    for inference, atol in ((ebm.Exact(), 1e-5), (ebm.BP(50), 1e-3), (ebm.Auto(), 1e-5)):
        found = inference(model, given).log_partition
        np.testing.assert_allclose(found, np.log(np.sum(scores)), atol=atol)
    best = np.log(np.max(scores))
    np.testing.assert_allclose(
        ebm.Exact(product="max")(model, given).log_partition, best, atol=1e-5
    )
    np.testing.assert_allclose(ebm.MPLP()(model, given).log_partition, best, atol=1e-4)
    assert ebm.TRBP()(model, given).log_partition > np.log(np.sum(scores)) - 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("dtype, atol", [(np.float32, 1e-5), (np.float64, 1e-8)])
def test_messages_of_tables_that_exclude_states_of_binary_units(in_float64, dtype, atol):
    """On a chain with a product at its end, and of single units, against enumeration."""
    rng = np.random.default_rng(0)
    pairs = np.stack([np.arange(4), np.arange(1, 5)], 1)
    rows = np.array(list(itertools.product((0, 1), repeat=6)))
    for _ in range(4):
        tables = rng.normal(size=(4, 2, 2)).astype(dtype)
        tables[rng.random(tables.shape) < 0.2] = -np.inf
        alone = np.array([[-np.inf, 0.3], [0.2, -0.1]], dtype)
        weights = np.zeros((5, 1), dtype)
        weights[4] = rng.normal()
        factors = [
            ebm.Tables(("a", "a"), tables, pairs),
            ebm.Tables(("a",), alone, np.array([[1], [3]])),
            ebm.Dense("a", "b", weights),
        ]
        bias = {"a": rng.normal(size=5).astype(dtype)}
        model = ebm.FactorModel({"a": ebm.Binary(5), "b": ebm.Binary(1)}, factors, bias)
        scores = sum(tables[k][rows[:, k], rows[:, k + 1]] for k in range(4)) + 0.0
        scores = scores + alone[0][rows[:, 1]] + alone[1][rows[:, 3]]
        scores = scores + weights[4, 0] * rows[:, 4] * rows[:, 5] + rows[:, :5] @ bias["a"]
        held = np.where(rows[:, 0] == 0, scores, -np.inf)
        if np.isneginf(held).all():
            held = scores
        evidence = None if held is scores else {"a": np.array([0, -1, -1, -1, -1])}
        beliefs = ebm.BP(20)(model, evidence)
        log_z = np.logaddexp.reduce(held)
        np.testing.assert_allclose(beliefs.log_partition, log_z, atol=atol)
        p = np.exp(held - log_z)
        np.testing.assert_allclose(beliefs["a"][:, 1], p @ rows[:, :5], atol=atol)
        both = (p * rows[:, 4]) @ rows[:, 5]
        np.testing.assert_allclose(beliefs.pairwise[2][4, 0], both, atol=atol)
        best = ebm.BP(20, product="max")(model, evidence)
        np.testing.assert_allclose(best.log_partition, held.max(), atol=atol)
        np.testing.assert_array_equal(best.decode()["a"], rows[held.argmax(), :5])
        np.testing.assert_array_equal(ebm.MPLP()(model, evidence).decode()["a"], best.decode()["a"])


def test_tables_of_one_unit_are_heard():
    model = ebm.TableModel([2, 2], [(0,)], [np.array([0.0, 2.0], np.float32)])
    want = jax.nn.softmax(jnp.array([0.0, 2.0]))
    np.testing.assert_allclose(ebm.BP(5)(model)["x"][0], want, rtol=1e-6)
