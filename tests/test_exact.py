import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import ebmlearn as ebm
from ebmlearn.models import expected_energy


@pytest.mark.slow
@oracle.every_model
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_sum(kind, scale, dtype):
    model = oracle.MODELS[kind](np.random.default_rng(0), scale=scale, dtype=dtype)
    atol = 2e-6 if dtype == "float32" else 1e-13
    t = oracle.truth(model)
    beliefs = ebm.Exact()(model)
    for got, want in zip(oracle.layers(beliefs.log_odds), t.marginals, strict=True):
        np.testing.assert_allclose(jax.nn.sigmoid(got), want, atol=atol)
    blocks = oracle.pair_blocks(model, t.pairwise)
    for got, want in zip(oracle.arrays(beliefs.pairwise), blocks, strict=True):
        np.testing.assert_allclose(got, want, atol=atol)
    np.testing.assert_allclose(beliefs.log_partition, t.log_z, rtol=1e-6 if atol > 1e-7 else 1e-13)
    assert bool(beliefs.converged)


@pytest.mark.slow
@pytest.mark.parametrize("kind", oracle.MODELS)
def test_max(kind):
    model = oracle.MODELS[kind](np.random.default_rng(1))
    t = oracle.truth(model)
    beliefs = ebm.Exact(product="max")(model)
    best = oracle.flat(model).cut(t.states[t.scores.argmax()])
    for got, want in zip(oracle.layers(beliefs.decode()), best, strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(beliefs.log_partition, t.scores.max(), rtol=1e-5)
    log_odds = np.concatenate(oracle.layers(beliefs.log_odds))
    np.testing.assert_allclose(log_odds, oracle.max_marginals(t), atol=2e-5)
    n = t.states.shape[1]
    best = np.array(
        [
            [
                [[t.scores[(t.states[:, i] == a) & (t.states[:, j] == b)].max(initial=-np.inf)
                  for b in (0, 1)] for a in (0, 1)]
                for j in range(n)
            ]
            for i in range(n)
        ]
    )  # fmt: skip
    both = np.exp(best[:, :, 1, 1]) / np.exp(best).sum((2, 3))
    blocks = oracle.pair_blocks(model, both)
    for got, want in zip(oracle.arrays(beliefs.pairwise), blocks, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rbm", "wide_rbm", "dbm"])
def test_marginal_map(kind):
    model = oracle.MODELS[kind](np.random.default_rng(2), scale=2.0)
    t = oracle.truth(model)
    v = oracle.flat(model).sizes[0]
    groups = np.logaddexp.reduce(t.scores.reshape(2**v, -1), axis=1)
    beliefs = ebm.Exact(product="mixed")(model)
    best = t.states.reshape(2**v, -1, t.states.shape[1])[groups.argmax(), 0, :v]
    np.testing.assert_array_equal(beliefs.decode().visible, best)
    np.testing.assert_allclose(beliefs.log_partition, groups.max(), rtol=1e-5)
    given = oracle.truth(model, dict(enumerate(best.astype(int))))
    hidden = oracle.layers(ebm.Layers(None, beliefs.hidden))[1:]
    for got, want in zip(hidden, given.marginals[1:], strict=True):
        np.testing.assert_allclose(got, want, atol=2e-6)
    blocks = oracle.pair_blocks(model, given.pairwise)
    for got, want in zip(oracle.arrays(beliefs.pairwise), blocks, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "product"),
    [*((kind, "sum") for kind in oracle.MODELS), ("rbm", "max"), ("dbm", "max")],
)
def test_evidence(kind, product):
    model = oracle.MODELS[kind](np.random.default_rng(3))
    n = oracle.flat(model).sizes[0]
    observed = np.zeros(n, bool)
    observed[[0, 2]] = True
    evidence = jnp.array([1.0, jnp.nan, 0.0, *[7.0] * (n - 3)])
    t = oracle.truth(model, {0: 1, 2: 0})
    beliefs = ebm.Exact(product=product)(model, evidence, jnp.asarray(observed))
    if product == "sum":
        want, value = np.concatenate(t.marginals), t.log_z
    else:
        want, value = 1 / (1 + np.exp(-oracle.max_marginals(t))), t.scores.max()
    got = np.concatenate([jax.nn.sigmoid(x) for x in oracle.layers(beliefs.log_odds)])
    np.testing.assert_allclose(got, want, atol=5e-6)
    np.testing.assert_allclose(beliefs.log_partition, value, rtol=1e-5, atol=1e-5)
    decoded = np.concatenate(oracle.layers(beliefs.decode()))
    np.testing.assert_array_equal(decoded[[0, 2]], [1, 0])


def test_soft_evidence():
    model = oracle.random_rbm(np.random.default_rng(4))
    extra = np.zeros(9)
    extra[1] = np.log(0.2 / 0.8)
    t = oracle.truth(model, {3: 1}, extra)
    evidence = jnp.array([0.0, 0.2, 0.0, 1.0, 0.0])
    observed = jnp.array([False, True, False, True, False])
    beliefs = ebm.Exact()(model, evidence, observed)
    np.testing.assert_allclose(beliefs.visible, t.marginals[0], atol=2e-6)
    np.testing.assert_allclose(beliefs.log_partition, t.log_z, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("biases", [1.0, 0.0])
@pytest.mark.parametrize("given", [(), ([1, 0, 0, 0, 0], [True, True, False, False, False])])
def test_statistics_are_the_gradient_of_log_z(biases, given):
    """Of biases that are 0, too: what large ones are taken relative to has a kink there."""
    model = oracle.random_rbm(np.random.default_rng(5))
    model = model.with_unary(tuple(biases * x for x in model.unary()))
    given = tuple(jnp.asarray(x) for x in given)
    gradient = jax.grad(lambda m: ebm.Exact()(m, *given).log_partition)(model)
    statistics = ebm.Exact().statistics(model, *given)
    np.testing.assert_allclose(gradient.weights, statistics.pairwise, atol=1e-6)
    np.testing.assert_allclose(gradient.visible_bias, statistics.units.visible, atol=1e-6)
    np.testing.assert_allclose(gradient.hidden_bias, statistics.units.hidden, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("product", ["max", "mixed"])
def test_statistics_of_a_maximum_are_hard(product):
    model = oracle.random_rbm(np.random.default_rng(6))
    statistics = ebm.Exact(product=product).statistics(model)
    decoded = ebm.Exact(product=product)(model).decode()
    v = np.asarray(decoded.visible, np.float32)
    h = model.hidden_given(decoded.visible) if product == "mixed" else decoded.hidden
    np.testing.assert_array_equal(statistics.units.visible, v)
    np.testing.assert_allclose(statistics.pairwise, np.outer(v, h), atol=1e-6)


@pytest.mark.slow
def test_twenty_units_in_little_memory():
    # 2^20 configurations of 20 hidden units above 30 visible ones: a table of them would be 200 MB.
    model = oracle.random_rbm(np.random.default_rng(7), 30, 20, scale=0.3)
    # Second formulation: fewer visible than hidden units, and the free energy of each state.
    small = ebm.RBM(model.weights[:12], model.visible_bias[:12], model.hidden_bias)
    by_visible = ebm.Exact()(small)
    assert small.num_visible < small.num_hidden
    numbers = np.arange(2**12)
    v = ((numbers[:, None] >> np.arange(12)) & 1).astype(np.float32)
    scores = -np.asarray(small.free_energy(v), np.float64)
    np.testing.assert_allclose(by_visible.log_partition, np.logaddexp.reduce(scores), rtol=1e-6)
    memory = jax.jit(lambda m: ebm.Exact()(m).visible).lower(model).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 60e6
    # Sixteen of them, by NumPy alone.
    some = ebm.RBM(model.weights[:, :16], model.visible_bias, model.hidden_bias[:16])
    w, b, c = (np.asarray(x, np.float64) for x in (some.weights, *some.unary()))
    h = (np.arange(2**16)[:, None] >> np.arange(16)) & 1
    scores = h @ c + np.logaddexp(0, h @ w.T + b).sum(1)
    log_z = ebm.Exact()(some).log_partition
    np.testing.assert_allclose(log_z, np.logaddexp.reduce(scores), rtol=1e-6)


@pytest.mark.slow
def test_batches_agree_with_single_instances():
    rng = np.random.default_rng(8)
    one = oracle.random_rbm(rng)
    biases = jnp.asarray(rng.normal(size=(2, 3, 5)), jnp.float32)
    batch = ebm.RBM(one.weights, biases, one.hidden_bias)
    beliefs = ebm.Exact()(batch)
    assert beliefs.visible.shape == (2, 3, 5)
    assert beliefs.hidden.shape == (2, 3, 4)
    assert beliefs.pairwise.shape == (2, 3, 5, 4)
    assert beliefs.log_partition.shape == (2, 3)
    single = ebm.Exact()(ebm.RBM(one.weights, biases[1, 2], one.hidden_bias))
    np.testing.assert_allclose(beliefs.visible[1, 2], single.visible, atol=1e-6)
    np.testing.assert_allclose(beliefs.pairwise[1, 2], single.pairwise, atol=1e-6)
    mean = ebm.Exact().statistics(batch)
    np.testing.assert_allclose(mean.pairwise, beliefs.pairwise.mean((0, 1)), atol=1e-6)
    assert mean.units.visible.shape == (2, 3, 5)


@pytest.mark.slow
@pytest.mark.parametrize("product", ["sum", "max"])
def test_large_biases_swallow_nothing(product):
    # Once a bias has decided its unit, its size does not matter to the others.
    model = oracle.random_rbm(np.random.default_rng(9))
    for field in (lambda m: m.visible_bias, lambda m: m.hidden_bias):
        decided = eqx.tree_at(field, model, replace_fn=lambda b: b.at[0].set(200.0))
        far = eqx.tree_at(field, model, replace_fn=lambda b: b.at[0].set(1e30))
        want, got = ebm.Exact(product=product)(decided), ebm.Exact(product=product)(far)
        np.testing.assert_allclose(got.visible, want.visible, atol=1e-6)
        np.testing.assert_allclose(got.hidden, want.hidden, atol=1e-6)
        # Nor where such a unit is observed.
        given = jnp.ones(5, jnp.int32), jnp.arange(5) == 0
        want, got = (
            ebm.Exact(product=product)(decided, *given),
            ebm.Exact(product=product)(far, *given),
        )
        np.testing.assert_allclose(got.visible, want.visible, atol=1e-6)
        np.testing.assert_allclose(got.hidden, want.hidden, atol=1e-6)


def test_log_odds_do_not_overflow():
    model = ebm.RBM(jnp.zeros((2, 1)), jnp.array([-120.0, 3.0]), jnp.array([110.0]))
    log_odds = ebm.Exact()(model).log_odds
    np.testing.assert_allclose(log_odds.visible, [-120, 3], rtol=1e-6)
    np.testing.assert_allclose(log_odds.hidden, [110], rtol=1e-6)


@pytest.mark.slow
def test_gradients_with_evidence():
    with oracle.x64(True):
        model = oracle.random_rbm(np.random.default_rng(10), 3, 4, dtype="float64")
        evidence, observed = jnp.array([1.0, 0.0, 0.0]), jnp.array([True, False, False])

        def belief(bias):
            clamped = ebm.RBM(model.weights, bias, model.hidden_bias)
            return ebm.Exact()(clamped, evidence, observed).visible[1]

        got = jax.grad(belief)(model.visible_bias)
        p = belief(model.visible_bias)
        assert abs(got[0]) < 1e-15
        np.testing.assert_allclose(got[1], p * (1 - p), rtol=1e-9)


@pytest.mark.slow
def test_nothing_to_enumerate():
    assert ebm.Exact()(ebm.BoltzmannMachine(jnp.zeros((0, 0)), jnp.zeros(0))).log_partition == 0
    grbm = ebm.GaussianRBM(jnp.zeros((2, 0)), jnp.ones(2), jnp.zeros(0), jnp.zeros(2))
    np.testing.assert_allclose(ebm.Exact()(grbm).variance, 1)


@pytest.mark.slow
def test_no_hidden_units():
    rbm = ebm.RBM(jnp.zeros((3, 0)), jnp.array([1.0, -2.0, 0.5]), jnp.zeros(0))
    for product in ("sum", "max", "mixed"):
        beliefs = ebm.Exact(product=product)(rbm)
        np.testing.assert_allclose(beliefs.log_odds.visible, rbm.visible_bias, rtol=1e-5)
        assert beliefs.pairwise.shape == (3, 0)


@pytest.mark.slow
def test_mean_energies_where_batches_broadcast():
    rng = np.random.default_rng(7)
    weights, visible, hidden = (rng.normal(size=s) for s in ((4, 3), (1, 4), (5, 3)))
    model = ebm.RBM(*(jnp.asarray(x, jnp.float32) for x in (weights, visible, hidden)))
    found = ebm.Exact().statistics(model)
    each = []
    for k in range(5):
        one = ebm.RBM(model.weights, model.visible_bias[0], model.hidden_bias[k])
        own = ebm.Exact().statistics(one)
        each.append(float(expected_energy(one, own)))
    energy = expected_energy(model, found)
    np.testing.assert_allclose(energy, np.mean(each), rtol=1e-5)


def _truth_by_group(units, blocks, biases):
    """All configurations of groups of units with their log-potentials, in float64: internal states
    by group.
    """
    every = []
    for u in units.values():
        one = np.eye(u.states) if isinstance(u, ebm.Categorical) else np.array([[0.0], [1.0]])
        every += [one] * u.size
    rows = [np.concatenate(x) for x in itertools.product(*every)]
    parts = np.split(np.stack(rows), np.cumsum([u.width for u in units.values()])[:-1], axis=1)
    states = dict(zip(units, parts, strict=True))
    scores = np.zeros(len(rows))
    for k, b in biases.items():
        scores = scores + states[k] @ b
    for (a, b), w in blocks.items():
        pair = np.einsum("si,ij,sj->s", states[a], w, states[b])
        scores = scores + (pair / 2 if a == b else pair)
    return states, scores


def _inside(rng, units):
    """Random symmetric couplings inside a group, zero within each unit."""
    owner = np.arange(units.width) // (units.width // units.size)
    w = rng.normal(size=(units.width, units.width))
    return np.where(owner[:, None] == owner[None], 0, (w + w.T) / 2)


B, C = ebm.Binary, ebm.Categorical
STRUCTURES = {
    "two hidden layers": (
        {"visible": B(3), "hidden_1": B(2), "hidden_2": B(2)},
        [("visible", "hidden_1"), ("visible", "hidden_2")],
    ),
    "inside hidden": (
        {"visible": B(3), "hidden": B(3)},
        [("hidden", "hidden"), ("visible", "hidden")],
    ),
    "turned round": (
        {"visible": B(2), "label": C(1, 3), "hidden": B(3)},
        [("hidden", "visible"), ("label", "hidden"), ("visible", "label")],
    ),
    "both ways": (
        {"visible": B(3), "hidden": B(2)},
        [("visible", "hidden"), ("hidden", "visible")],
    ),
    "no blocks": ({"visible": B(2), "other": C(2, 3), "hidden": B(2)}, [("hidden", "visible")]),
    "potts": ({"x": C(3, 3)}, [("x", "x")]),
    "all visible": ({"one": B(2), "two": C(1, 4)}, [("two", "one")]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("product", ["sum", "max", "mixed"])
def test_any_structure(name, product, in_float64):
    units, joined = STRUCTURES[name]
    rng = np.random.default_rng(len(name))
    blocks = {
        (a, b): _inside(rng, units[a])
        if a == b
        else rng.normal(size=(units[a].width, units[b].width))
        for a, b in joined
    }
    biases = {k: rng.normal(size=u.width) for k, u in units.items()}
    model = ebm.LayeredModel(units, blocks, biases)
    states, scores = _truth_by_group(units, blocks, biases)
    # Which configurations agree on what is maximised over.
    seen = [k for k in units if not k.startswith("hidden")]
    over = {"sum": [], "max": list(units), "mixed": seen}[product]
    keys = [
        tuple(row)
        for row in np.concatenate([np.zeros((len(scores), 1)), *(states[k] for k in over)], 1)
    ]
    totals = {
        k: np.logaddexp.reduce([s for s, own in zip(scores, keys, strict=True) if own == k])
        for k in set(keys)
    }
    best = max(totals, key=lambda k: totals[k])
    weights = np.array(
        [np.exp(s - totals[best]) if k == best else 0 for s, k in zip(scores, keys, strict=True)]
    )
    beliefs = ebm.Exact(product=product)(model)
    np.testing.assert_allclose(beliefs.log_partition, totals[best], rtol=1e-12)
    assert beliefs.converged
    statistics = ebm.Exact(product=product).statistics(model)
    means = jax.tree.leaves(statistics.units)
    for got, x in zip(means, states.values(), strict=True):
        np.testing.assert_allclose(got, weights @ x, atol=1e-12)
    # Blocks in both directions are one.
    pairs = [pair for k, pair in enumerate(joined) if pair[::-1] not in joined[:k]]
    for got, (a, b) in zip(statistics.pairwise, pairs, strict=True):
        np.testing.assert_allclose(
            got, np.einsum("s,si,sj->ij", weights, states[a], states[b]), atol=1e-12
        )
    if product == "sum":
        for got, want in zip(jax.tree.leaves(beliefs.means), means, strict=True):
            np.testing.assert_allclose(np.ravel(got), want, atol=1e-12)
    gradient = jax.grad(lambda m: ebm.Exact(product=product)(m).log_partition)(model)
    for got, want in zip(gradient.biases, means, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-12)
