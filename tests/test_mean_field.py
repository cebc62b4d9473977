import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import structure_checks
import structures

import ebmlearn as ebm


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", structures.KINDS)
def test_any_structure(make):
    """The bound, its gradient, the fixed point and the statistics, with and without evidence."""
    for seed in range(100, 103):
        structure = make(seed, np.random.default_rng(seed))
        for name in ("mean_field", "mean_field_evidence"):
            found = structure_checks.outcome(structure, name)
            assert found.result != "wrong", f"{name}: {found.detail}\n{structure.code}"


@pytest.mark.slow
@oracle.every_model
def test_fixed_point_and_bound(kind, dtype):
    model = oracle.MODELS[kind](np.random.default_rng(0), scale=0.7, dtype=dtype)
    tol = 1e-6 if dtype == "float32" else 1e-12
    beliefs = ebm.MeanField(iterations=500, tol=tol)(model)
    assert beliefs.converged
    assert beliefs.iterations < 500
    f = oracle.flat(model)
    q = np.concatenate([jax.nn.sigmoid(x) for x in oracle.layers(beliefs.log_odds)])
    np.testing.assert_allclose(q, sigmoid(f.bias + f.couplings @ q), atol=20 * tol)
    entropy = -(q * np.log(q) + (1 - q) * np.log1p(-q)).sum()
    bound = q @ f.bias + q @ f.couplings @ q / 2 + entropy
    np.testing.assert_allclose(beliefs.log_partition, bound, rtol=1e-5)
    assert beliefs.log_partition < oracle.truth(model).log_z
    pairs = np.outer(q, q)
    np.fill_diagonal(pairs, q)
    blocks = oracle.pair_blocks(model, pairs)
    statistics = ebm.MeanField(500).statistics(model)
    both = oracle.arrays(beliefs.pairwise), oracle.arrays(statistics.pairwise)
    for got, other, want in zip(*both, blocks, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)
        np.testing.assert_allclose(other, want, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "damping"), [("rbm", 0.0), ("dbm", 0.6), ("boltzmann", 0.0), ("semi_restricted", 0.6)]
)
def test_the_bound_never_falls(kind, damping):
    # Strong couplings, where updating all units at once would oscillate.
    model = oracle.MODELS[kind](np.random.default_rng(1), scale=4.0)
    bounds = [float(ebm.MeanField(n, damping=damping)(model).log_partition) for n in range(12)]
    assert (np.diff(bounds) > -1e-4).all()
    assert bounds[-1] > bounds[0]


@pytest.mark.slow
def test_the_bound_never_falls_in_mixed_models():
    """Couplings inside a group, between groups, and tables inside and between them."""
    rng = np.random.default_rng(7)

    def normal(*shape):
        return jnp.asarray(3 * rng.normal(size=shape), jnp.float32)

    inside = np.asarray(oracle.symmetric(rng, 6, 3.0), np.float32)
    inside = np.where(np.kron(np.eye(2), np.ones((3, 3))) > 0, 0, inside)
    members = np.array([[0, 1], [1, 2]], np.int32)
    model = ebm.FactorModel(
        {"a": ebm.Binary(3), "b": ebm.Categorical(2, states=3), "c": ebm.Categorical(1, states=4)},
        [
            ebm.Dense("b", "a", normal(6, 3)),
            ebm.Dense("b", "b", jnp.asarray(inside)),
            ebm.Tables(("a", "a"), normal(2, 2, 2), members),
            ebm.Tables(("c", "a"), normal(1, 4, 2), np.array([[0, 2]], np.int32)),
        ],
        {"b": normal(6)},
    )
    beliefs = [ebm.MeanField(n)(model) for n in range(12)]
    bounds = np.array([float(x.log_partition) for x in beliefs])
    assert (np.diff(bounds) > -1e-4).all()
    assert bounds[0] < bounds[-1] <= float(ebm.Exact()(model).log_partition)
    q = np.asarray(beliefs[-1]["b"], float)
    wanted = np.outer(q, q)
    for k in range(2):
        own = slice(3 * k, 3 * k + 3)
        wanted[own, own] = np.diag(q[k])
    for got in (beliefs[-1].pairwise, ebm.MeanField(11).statistics(model).pairwise):
        np.testing.assert_allclose(got.values[1], wanted, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("graph", [False, True])
def test_convergence_is_judged_without_damping(graph):
    """A small step is no sign of a fixed point if it is small by damping."""
    rng = np.random.default_rng(6)
    w, b, c = (1.5 * rng.normal(size=shape).astype(np.float32) for shape in ((3, 2), 3, 2))
    model = ebm.RBM(w, b, c)
    if graph:
        scopes = [(i,) for i in range(5)] + [(i, 3 + j) for i in range(3) for j in range(2)]
        tables = [np.array([0, x]) for x in (*b, *c)]
        tables += [np.array([[0, 0], [0, x]]) for x in w.ravel()]
        tables = [jnp.asarray(x, jnp.float32) for x in tables]
        model = ebm.TableModel([2] * 5, scopes, tables)
    for damping, iterations, converged in ((0.9995, 20, False), (0.9, 1000, True)):
        found = ebm.MeanField(iterations, damping=damping, tol=1e-3)(model)
        q = found.means["x"][:, 1] if graph else np.concatenate(found.means)
        q = np.asarray(q, float)
        field = np.concatenate([b + w @ q[3:], c + q[:3] @ w])
        assert (np.abs(sigmoid(field) - q).max() < 2e-3) == converged
        assert bool(found.converged) == converged


def test_independent_units_are_exact():
    model = oracle.random_rbm(np.random.default_rng(2), scale=0.0)
    beliefs = ebm.MeanField(iterations=2)(model)
    t = oracle.truth(model)
    np.testing.assert_allclose(beliefs.visible, t.marginals[0], atol=1e-6)
    np.testing.assert_allclose(beliefs.log_partition, t.log_z, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", oracle.MODELS)
def test_evidence(kind):
    model = oracle.MODELS[kind](np.random.default_rng(3))
    n = oracle.flat(model).sizes[0]
    evidence = jnp.asarray(np.arange(n) % 2, jnp.float32)
    beliefs = ebm.MeanField(iterations=100)(model, evidence, jnp.ones(n, bool))
    clamped = {i: i % 2 for i in range(n)}
    t = oracle.truth(model, clamped)
    answer = ebm.query(model, evidence, jnp.ones(n, bool), ebm.MeanField(5))
    np.testing.assert_array_equal(answer, evidence)
    if kind != "dbm":  # the hidden units are independent given all visible ones
        got = np.concatenate([jax.nn.sigmoid(x) for x in oracle.layers(beliefs.log_odds)])
        np.testing.assert_allclose(got, np.concatenate(t.marginals), atol=1e-6)
        np.testing.assert_allclose(beliefs.log_partition, t.log_z, rtol=1e-5)
    assert beliefs.log_partition <= t.log_z + 1e-5


def test_gradient_of_the_bound():
    model = oracle.random_rbm(np.random.default_rng(4), scale=0.5)
    mf = ebm.MeanField(iterations=100)
    gradient = jax.grad(lambda m: mf(m).log_partition)(model)
    statistics = mf.statistics(model)
    np.testing.assert_allclose(gradient.weights, statistics.pairwise, atol=1e-6)
    np.testing.assert_allclose(gradient.hidden_bias, statistics.units.hidden, atol=1e-6)


def test_relabelling_changes_nothing():
    rng = np.random.default_rng(5)
    couplings, field = oracle.symmetric(rng, 6, 0.5), rng.normal(size=6)
    signs = np.where(rng.random(6) < 0.5, -1, 1)
    mirrored = np.outer(signs, signs) * couplings, signs * field
    one, two = (
        ebm.BoltzmannMachine.from_spins(*(x.astype(np.float32) for x in parameters))
        for parameters in ((couplings, field), mirrored)
    )
    a, b = (np.asarray(ebm.MeanField(iterations=3)(m).log_odds.x) for m in (one, two))
    np.testing.assert_allclose(a, signs * b, atol=1e-5)


@pytest.mark.slow
def test_batches():
    rng = np.random.default_rng(6)
    one = oracle.random_semi(rng)
    biases = jnp.asarray(rng.normal(size=(2, 3, 4)), jnp.float32)
    batch = ebm.SemiRestrictedBM(one.weights, one.couplings, biases, one.hidden_bias)
    beliefs = ebm.MeanField(iterations=50, tol=1e-5)(batch)
    assert beliefs.hidden.shape == (2, 3, 3)
    assert beliefs.pairwise[1].shape == (2, 3, 4, 4)
    assert beliefs.log_partition.shape == beliefs.converged.shape == (2, 3)
    single = ebm.SemiRestrictedBM(one.weights, one.couplings, biases[1, 0], one.hidden_bias)
    alone = ebm.MeanField(iterations=50, tol=1e-5)(single)
    np.testing.assert_allclose(beliefs.visible[1, 0], alone.visible, atol=1e-6)
    assert beliefs.iterations[1, 0] == alone.iterations
