import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import ebmlearn as ebm
from ebmlearn.messages import Product


def logit(p):
    return np.log(p) - np.log1p(-p)


@pytest.mark.slow
def test_exact_on_two_hundred_trees(dtype):
    rng = np.random.default_rng(0)
    atol = 1e-5 if dtype == "float32" else 1e-10
    trees = [oracle.random_tree_rbm(rng, 6, 5, dtype=dtype) for _ in range(200)]

    def solved(rbm):
        beliefs, best = ebm.BP(iterations=12)(rbm), ebm.BP(iterations=12, product="max")(rbm)
        found = beliefs.visible, beliefs.hidden, beliefs.pairwise, beliefs.log_partition
        return (*found, beliefs.converged, best.decode(), best.log_partition)

    for (rbm, edges), found in zip(
        trees, oracle.mapped(solved, [t for t, _ in trees]), strict=True
    ):
        visible, hidden, pairwise, log_z, converged, best, peak = found
        t = oracle.truth(rbm)
        np.testing.assert_allclose(visible, t.marginals[0], atol=atol)
        np.testing.assert_allclose(hidden, t.marginals[1], atol=atol)
        pairs = oracle.pair_blocks(rbm, t.pairwise)[0]
        np.testing.assert_allclose(pairwise[edges], pairs[edges], atol=atol)
        np.testing.assert_allclose(log_z, t.log_z, atol=atol)
        assert converged
        states = np.concatenate(oracle.layers(best))
        np.testing.assert_array_equal(states, t.states[t.scores.argmax()])
        np.testing.assert_allclose(peak, t.scores.max(), atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "damping", "start", "scale"),
    [
        ("layers", 0.0, "plain", 15.0),
        ("layers", 0.3, "centred", 1.5),
        ("flooding", 0.0, "centred", 1.5),
        ("flooding", 0.3, "plain", 15.0),
    ],
)
def test_every_schedule_is_exact_on_trees(schedule, damping, start, scale):
    rbm, edges = oracle.random_tree_rbm(np.random.default_rng(1), 6, 5, scale=scale)
    t = oracle.truth(rbm)
    bp = ebm.BP(150, damping=damping, start=start, schedule=schedule, tol=1e-7)
    beliefs = bp(rbm)
    np.testing.assert_allclose(beliefs.visible, t.marginals[0], atol=1e-5)
    np.testing.assert_allclose(beliefs.hidden, t.marginals[1], atol=1e-5)
    pairs = oracle.pair_blocks(rbm, t.pairwise)[0]
    np.testing.assert_allclose(beliefs.pairwise[edges], pairs[edges], atol=1e-5)
    np.testing.assert_allclose(beliefs.log_partition, t.log_z, atol=2e-5)
    statistics = bp.statistics(rbm)
    np.testing.assert_allclose(statistics.pairwise[edges], pairs[edges], atol=1e-5)
    np.testing.assert_allclose(statistics.units.hidden, t.marginals[1], atol=1e-5)


@pytest.mark.slow
def test_exact_on_trees_without_layers(dtype):
    rng = np.random.default_rng(2)
    atol = 1e-5 if dtype == "float32" else 1e-10
    bp, maximum = ebm.BP(iterations=12), ebm.BP(iterations=12, product="max")
    for _ in range(10):
        model, edges = oracle.random_tree_boltzmann(rng, 9, dtype=dtype)
        t = oracle.truth(model)
        beliefs = bp(model)
        np.testing.assert_allclose(beliefs.x, t.marginals[0], atol=atol)
        kept = edges | np.eye(9, dtype=bool)
        np.testing.assert_allclose(beliefs.pairwise[kept], t.pairwise[kept], atol=atol)
        np.testing.assert_allclose(beliefs.log_partition, t.log_z, atol=atol)
        np.testing.assert_array_equal(maximum(model).decode().x, t.states[t.scores.argmax()])


def tree_shaped(kind, rng):
    """A DBM or a SemiRestrictedBM whose nonzero weights are a tree."""
    if kind == "dbm":
        masks = [np.array([[1, 0], [1, 1], [0, 1]]), np.array([[1, 0], [0, 0]]), np.ones((2, 1))]
        masks[1][0, 1] = 1
        biases = [rng.normal(size=n) for n in (3, 2, 2, 1)]
        masks[2][1, 0] = 0
        weights = [2 * rng.normal(size=m.shape) * m for m in masks]
        cast = [jnp.asarray(w, jnp.float32) for w in weights]
        return ebm.DBM(cast, [jnp.asarray(b, jnp.float32) for b in biases]), masks
    weights = np.zeros((4, 3))
    couplings = np.zeros((4, 4))
    for i, j in [(0, 0), (1, 0), (2, 1), (3, 2)]:
        weights[i, j] = 2 * rng.normal()
    for i, j in [(0, 2), (2, 3)]:
        couplings[i, j] = couplings[j, i] = 2 * rng.normal()
    parts = weights, couplings, rng.normal(size=4), rng.normal(size=3)
    model = ebm.SemiRestrictedBM(*(jnp.asarray(x, jnp.float32) for x in parts))
    return model, [weights != 0, (couplings != 0) | np.eye(4, dtype=bool)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dbm", "semi_restricted"])
def test_exact_on_trees_of_other_models(kind):
    model, masks = tree_shaped(kind, np.random.default_rng(3))
    t = oracle.truth(model)
    bp = ebm.BP(iterations=20)
    beliefs = bp(model)
    for got, want in zip(oracle.layers(beliefs.log_odds), t.marginals, strict=True):
        np.testing.assert_allclose(jax.nn.sigmoid(got), want, atol=1e-5)
    blocks = oracle.pair_blocks(model, t.pairwise)
    both = oracle.arrays(beliefs.pairwise), oracle.arrays(bp.statistics(model).pairwise)
    for got, other, want, mask in zip(*both, blocks, masks, strict=True):
        mask = np.asarray(mask, bool)
        np.testing.assert_allclose(got[mask], want[mask], atol=1e-5)
        np.testing.assert_allclose(other[mask], want[mask], atol=1e-5)
    np.testing.assert_allclose(beliefs.log_partition, t.log_z, atol=1e-5)
    best = ebm.BP(iterations=20, product="max")(model)
    got = np.concatenate(oracle.layers(best.decode()))
    np.testing.assert_array_equal(got, t.states[t.scores.argmax()])
    np.testing.assert_allclose(best.log_partition, t.scores.max(), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.2, 2.0])
def test_temperature_gives_soft_max_marginals(temperature):
    # As PGMax defines them: p_T(x_i) ∝ (Σ p(x)^(1/T))^T.
    rbm, edges = oracle.random_tree_rbm(np.random.default_rng(4), 6, 5)
    cold = oracle.truth(rbm, temperature=temperature)
    beliefs = ebm.BP(iterations=12, temperature=temperature)(rbm)
    want = temperature * logit(np.concatenate(cold.marginals))
    np.testing.assert_allclose(np.concatenate(oracle.layers(beliefs.log_odds)), want, atol=1e-4)
    np.testing.assert_allclose(beliefs.log_partition, temperature * cold.log_z, rtol=1e-5)
    x = cold.states
    i, j = np.argwhere(edges)[0]
    scores = [
        temperature * np.logaddexp.reduce(cold.scores[(x[:, i] == a) & (x[:, 6 + j] == b)], axis=0)
        for a in (0, 1)
        for b in (0, 1)
    ]
    both = np.exp(scores[3] - np.logaddexp.reduce(scores))
    np.testing.assert_allclose(beliefs.pairwise[i, j], both, atol=1e-5)
    # Statistics are those of p^(1/T).
    statistics = ebm.BP(iterations=12, temperature=temperature).statistics(rbm)
    pairs = oracle.pair_blocks(rbm, cold.pairwise)[0]
    np.testing.assert_allclose(statistics.pairwise[edges], pairs[edges], atol=1e-5)


def test_low_temperature_becomes_max_product():
    rbm = oracle.random_rbm(np.random.default_rng(5))
    cold = ebm.BP(iterations=10, temperature=1e-3)(rbm)
    best = ebm.BP(iterations=10, product="max")(rbm)
    np.testing.assert_allclose(cold.visible, best.visible, atol=1e-2)
    np.testing.assert_array_equal(cold.decode().visible, best.decode().visible)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "scale"), [("rbm", 12.0), ("dbm", 1.0)])
def test_flooding_twice_is_one_sweep_of_layers(kind, scale):
    model = oracle.MODELS[kind](np.random.default_rng(6), scale=scale)
    layers = ebm.BP(iterations=4)(model)
    flooding = ebm.BP(iterations=8, schedule="flooding")(model)
    np.testing.assert_allclose(layers.visible, flooding.visible, atol=1e-5)


def relabelled(rbm, visible, hidden):
    """Exchanges 0 and 1 of some units, up to a constant in the energy."""
    couplings, f, g = rbm.to_spins()
    s, t = np.where(visible, -1, 1), np.where(hidden, -1, 1)
    mirrored = s[:, None] * t * np.asarray(couplings), s * np.asarray(f), t * np.asarray(g)
    return ebm.RBM.from_spins(*(x.astype(np.float32) for x in mirrored))


@pytest.mark.slow
@pytest.mark.parametrize("product", ["sum", "max", "mixed"])
@pytest.mark.parametrize("schedule", ["layers", "flooding"])
def test_centred_start_knows_no_zero_or_one(product, schedule):
    rng = np.random.default_rng(7)
    rbm = oracle.random_rbm(rng, scale=1.5)
    visible, hidden = rng.random(5) < 0.5, rng.random(4) < 0.5
    mirror = relabelled(rbm, visible, hidden)
    for iterations in (1, 2, 3):
        bp = ebm.BP(iterations, product=product, schedule=schedule)
        one, two = bp(rbm).log_odds, bp(mirror).log_odds
        np.testing.assert_allclose(
            np.where(visible, -two.visible, two.visible), one.visible, atol=1e-5
        )
        np.testing.assert_allclose(np.where(hidden, -two.hidden, two.hidden), one.hidden, atol=1e-5)
    plain = ebm.BP(1, product=product, schedule=schedule, start="plain")
    one, two = plain(rbm).log_odds, plain(mirror).log_odds
    assert np.abs(np.where(visible, -two.visible, two.visible) - one.visible).max() > 1e-2


def test_plain_start_is_algorithm_1_of_the_paper():
    # Its messages from zero, in probabilities, visible units first.
    rbm = oracle.random_rbm(np.random.default_rng(8))
    w, b, c = (np.asarray(x, np.float64) for x in (rbm.weights, rbm.visible_bias, rbm.hidden_bias))
    to_v = np.full_like(w, 0.5)
    tau_v, tau_h = 1 / (1 + np.exp(-b)), c
    for _ in range(3):
        one, two = (1 - to_v) * tau_v[:, None], to_v * (1 - tau_v[:, None])
        to_h = 1 / (1 + (one + two) / (np.exp(w) * one + two))
        tau_h = 1 / (1 + np.exp(-c - logit(to_h).sum(0)))
        one, two = (1 - to_h) * tau_h, to_h * (1 - tau_h)
        to_v = 1 / (1 + (one + two) / (np.exp(w) * one + two))
        tau_v = 1 / (1 + np.exp(-b - logit(to_v).sum(1)))
    beliefs = ebm.BP(iterations=3, start="plain")(rbm)
    np.testing.assert_allclose(beliefs.visible, tau_v, atol=1e-6)
    np.testing.assert_allclose(beliefs.hidden, tau_h, atol=1e-6)


@pytest.mark.slow
def test_mixed_product_finds_local_optima():
    rng = np.random.default_rng(9)
    models = [oracle.random_rbm(rng, 8, 5, scale=2.0) for _ in range(60)]

    def solved(rbm):
        bp = ebm.BP(iterations=100, product="mixed", tol=1e-6)
        beliefs, statistics = bp(rbm), bp.statistics(rbm)
        v = beliefs.decode().visible
        flips = jnp.where(jnp.eye(8, dtype=bool), 1 - v[None], v[None])
        energies = rbm.free_energy(v), rbm.free_energy(flips), rbm.hidden_given(v)
        return beliefs.converged, v, beliefs.log_partition, beliefs.pairwise, statistics, *energies

    converged = 0
    for found in oracle.mapped(solved, models):
        done, v, log_z, pairwise, statistics, value, others, hidden = found
        if done:
            converged += 1
            assert (others >= value - 1e-5).all()
            np.testing.assert_allclose(log_z, -value, rtol=1e-5)
            pairs = np.outer(v, hidden)
            np.testing.assert_allclose(pairwise, pairs, atol=1e-5)
            np.testing.assert_allclose(statistics.pairwise, pairs, atol=1e-5)
            np.testing.assert_array_equal(statistics.units.visible, v)
    assert converged >= 40


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"damping": 0.3}, {"schedule": "flooding"}])
def test_mixed_product_statistics_are_hard_on_every_schedule(options):
    rbm = oracle.random_rbm(np.random.default_rng(26))
    want = ebm.BP(60, product="mixed").statistics(rbm)
    got = ebm.BP(60, product="mixed", **options).statistics(rbm)
    np.testing.assert_array_equal(got.units.visible, want.units.visible)
    np.testing.assert_allclose(got.units.hidden, want.units.hidden, atol=1e-5)
    np.testing.assert_allclose(got.pairwise, want.pairwise, atol=1e-5)


def test_huge_biases():
    rbm = oracle.random_rbm(np.random.default_rng(27))
    want = ebm.BP(10)(ebm.RBM(rbm.weights, rbm.visible_bias.at[0].set(500.0), rbm.hidden_bias))
    for bias in (1e6, 1e37):
        far = ebm.RBM(rbm.weights, rbm.visible_bias.at[0].set(bias), rbm.hidden_bias)
        np.testing.assert_allclose(ebm.BP(10)(far).visible, want.visible, atol=1e-5)


@pytest.mark.slow
def test_mixed_product_on_a_deep_model():
    # One weight between the hidden layers: given the visible units the rest is a tree.
    rng = np.random.default_rng(10)
    model, _ = tree_shaped("dbm", rng)
    beliefs = ebm.BP(iterations=30, product="mixed", tol=1e-6)(model)
    given = oracle.truth(model, dict(enumerate(np.asarray(beliefs.decode().visible).tolist())))
    assert beliefs.converged
    for got, want in zip(beliefs.hidden, given.marginals[1:], strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
    np.testing.assert_allclose(beliefs.log_partition, given.log_z, rtol=1e-5)


def test_max_product_statistics_are_the_decoded_states():
    rbm = oracle.random_rbm(np.random.default_rng(11))
    bp = ebm.BP(iterations=30, product="max")
    decoded = bp(rbm).decode()
    want = np.outer(decoded.visible, decoded.hidden)
    np.testing.assert_array_equal(bp.statistics(rbm).pairwise, want)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "product"),
    [
        ("rbm", "sum"),
        ("dbm", "max"),
        ("boltzmann", "sum"),
        ("semi_restricted", "sum"),
        ("semi_restricted", "max"),
    ],
)
def test_evidence(kind, product):
    # Whatever is left of a model once all but one of its visible units are known is a tree here.
    model = oracle.MODELS[kind](np.random.default_rng(12), scale=1.0)
    sizes = list(oracle.flat(model).sizes)
    if len(sizes) > 2:
        model = ebm.DBM(model.weights[:1], model.biases[:2])
        sizes = sizes[:2]
    known = np.arange(1, sizes[0])
    states = np.arange(known.size) % 2
    t = oracle.truth(model, dict(zip(known.tolist(), states.tolist(), strict=True)))
    evidence = np.zeros(sizes[0], np.float32)
    evidence[known] = states
    observed = np.arange(sizes[0]) > 0
    beliefs = ebm.BP(iterations=30, product=product)(model, evidence, observed)
    got = np.concatenate([jax.nn.sigmoid(x) for x in oracle.layers(beliefs.log_odds)])
    if product == "sum":
        np.testing.assert_allclose(got, np.concatenate(t.marginals), atol=1e-5)
        np.testing.assert_allclose(beliefs.log_partition, t.log_z, atol=2e-5)
        blocks = oracle.pair_blocks(model, t.pairwise)
        statistics = ebm.BP(iterations=30).statistics(model, evidence, observed)
        both = oracle.arrays(beliefs.pairwise), oracle.arrays(statistics.pairwise)
        for one, two, want in zip(*both, blocks, strict=True):
            np.testing.assert_allclose(one, want, atol=1e-5)
            np.testing.assert_allclose(two, want, atol=1e-5)
    else:
        decoded = np.concatenate(oracle.layers(beliefs.decode()))
        np.testing.assert_array_equal(decoded, t.states[t.scores.argmax()])
        np.testing.assert_allclose(beliefs.log_partition, t.scores.max(), atol=2e-5)


def test_soft_evidence_is_a_likelihood():
    rbm, _ = oracle.random_tree_rbm(np.random.default_rng(13), 6, 5)
    extra = np.zeros(11)
    extra[2] = logit(0.9)
    t = oracle.truth(rbm, {4: 0}, extra)
    evidence = jnp.array([jnp.nan, 3.0, 0.9, 0.0, 0.0, 0.0])
    observed = jnp.array([False, False, True, False, True, False])
    beliefs = ebm.BP(iterations=20)(rbm, evidence, observed)
    np.testing.assert_allclose(beliefs.visible, t.marginals[0], atol=1e-5)
    np.testing.assert_allclose(beliefs.log_partition, t.log_z, atol=1e-5)
    answer = ebm.query(rbm, evidence, observed, ebm.BP(iterations=20))
    np.testing.assert_array_equal(answer, beliefs.visible)


@pytest.mark.parametrize("magnitude", [0.0, 1.0, 30.0, 1000.0])
def test_clamped_units_stay_whatever_pulls_at_them(magnitude):
    weights = jnp.full((3, 20), magnitude, jnp.float32)
    rbm = ebm.RBM(weights, jnp.full(3, 5e3, jnp.float32), jnp.zeros(20, jnp.float32))
    evidence, observed = jnp.zeros(3), jnp.array([True, True, False])
    answer = ebm.query(rbm, evidence, observed, ebm.BP(iterations=10))
    np.testing.assert_array_equal(answer, [0, 0, 1])


@pytest.mark.slow
def test_unrolled_gradient_against_finite_differences():
    with oracle.x64(True):
        cases: list[tuple[float, Product]]
        cases = [(1.0, "sum"), (12.0, "sum"), (1.0, "max"), (0.0, "sum")]
        for scale, product in cases:
            rbm = oracle.random_rbm(np.random.default_rng(14), scale=scale, dtype="float64")
            bp = ebm.BP(iterations=4, product=product, unroll=True, temperature=0.8)

            def belief(m, bp=bp):
                return bp(m).visible[0]

            gradient = jax.grad(belief)(rbm)
            for field in ("weights", "visible_bias", "hidden_bias"):
                x = getattr(rbm, field)
                for index in [(0, 0), (1, 2)] if x.ndim == 2 else [(0,), (1,)]:
                    step = 1e-6

                    def moved(sign, rbm=rbm, x=x, index=index, field=field, step=step):
                        new = x.at[index].add(sign * step)
                        return eqx.tree_at(lambda m: getattr(m, field), rbm, new)

                    slope = (belief(moved(1)) - belief(moved(-1))) / (2 * step)
                    got = getattr(gradient, field)[index]
                    np.testing.assert_allclose(got, slope, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "unroll"),
    [("rbm", True), ("boltzmann", False), ("dbm", False), ("semi_restricted", True)],
)
def test_bethe_gradient_is_the_expected_statistics(kind, unroll):
    with oracle.x64(True):
        model = oracle.MODELS[kind](np.random.default_rng(15), scale=0.3, dtype="float64")
        # 80 sweeps are a fixed point to machine precision at this coupling.
        bp = ebm.BP(iterations=80, unroll=unroll)

        def log_z(model):
            beliefs = bp(model)
            return beliefs.log_partition, beliefs.residual

        gradient, residual = jax.grad(log_z, has_aux=True)(model)
        assert residual < 1e-14
        statistics = bp.statistics(model)
        bias = {"boltzmann": ["bias"], "dbm": []}.get(kind, ["visible_bias", "hidden_bias"])
        got = [getattr(gradient, name) for name in bias] or gradient.biases
        for a, b in zip(got, oracle.layers(statistics.units), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)
        pairs = oracle.arrays(statistics.pairwise)
        if kind == "dbm":
            weights = gradient.weights
        elif kind == "boltzmann":
            weights = [gradient.couplings]
        else:
            weights = [gradient.weights]
        if kind == "semi_restricted":
            weights.append(gradient.couplings)
        for a, b in zip(weights, pairs, strict=True):
            if kind in ("boltzmann", "semi_restricted") and a.shape[0] == a.shape[1]:
                # Half of an edge's gradient stands at each of its two entries.
                a, b = 2 * a, b * (1 - np.eye(b.shape[0]))
            np.testing.assert_allclose(a, b, atol=1e-12)


def test_reverse_mode_needs_unroll():
    rbm = oracle.random_rbm(np.random.default_rng(16))
    with pytest.raises(ValueError, match="Reverse-mode differentiation"):
        jax.grad(lambda m: ebm.BP(iterations=3)(m).visible.sum())(rbm)


@pytest.mark.slow
def test_unrolled_memory_is_bounded():
    rbm = oracle.random_rbm(np.random.default_rng(17), 60, 40, scale=0.1)

    def memory(iterations):
        bp = ebm.BP(iterations=iterations, unroll=True)
        compiled = jax.jit(jax.grad(lambda m: bp(m).visible.sum())).lower(rbm).compile()
        analysis = compiled.memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    message = 60 * 40 * 4
    # One message array a sweep is kept, nothing else that grows.
    assert memory(40) - memory(20) < 20 * 1.1 * message


@pytest.mark.slow
def test_convergence_is_reported():
    rng = np.random.default_rng(18)
    easy = oracle.random_rbm(rng, scale=0.3)
    hard = ebm.RBM(
        jnp.array([[9.0, -9.0], [9.0, 9.0]]), jnp.array([-9.0, 0.1]), jnp.array([-9.0, 0.0])
    )
    beliefs = ebm.BP(iterations=100, tol=1e-6)(easy)
    assert beliefs.converged
    assert 1 < beliefs.iterations < 100
    assert beliefs.residual <= 1e-6
    frustrated = ebm.BoltzmannMachine.from_spins(
        jnp.where(jnp.eye(4, dtype=bool), 0.0, -3.0), jnp.full(4, 0.1)
    )
    beliefs = ebm.BP(iterations=50, tol=1e-6)(frustrated)
    assert not beliefs.converged
    assert beliefs.iterations == 50
    assert beliefs.residual > 1e-6
    none = ebm.BP(iterations=0)(hard)
    assert not none.converged
    assert none.iterations == 0
    assert none.residual == np.inf


def test_nan_never_converges():
    rbm = eqx.tree_at(
        lambda m: m.visible_bias, oracle.random_rbm(np.random.default_rng(19)), jnp.full(5, jnp.nan)
    )
    beliefs = ebm.BP(iterations=5, tol=1.0)(rbm)
    assert not beliefs.converged
    assert beliefs.iterations == 5


@pytest.mark.slow
def test_an_instance_does_not_depend_on_its_batch():
    rng = np.random.default_rng(20)
    one = oracle.random_rbm(rng, scale=1.5)
    biases = jnp.asarray(rng.normal(size=(7, 5)) * np.logspace(-1, 1, 7)[:, None], jnp.float32)
    batch = ebm.RBM(one.weights, biases, one.hidden_bias)
    bp = ebm.BP(iterations=200, tol=1e-5)
    together = bp(batch)
    assert len(set(together.iterations.tolist())) > 1
    for k in (0, 3, 6):
        alone = bp(ebm.RBM(one.weights, biases[k], one.hidden_bias))
        assert together.iterations[k] == alone.iterations
        np.testing.assert_allclose(together.visible[k], alone.visible, atol=1e-6)
        np.testing.assert_allclose(together.pairwise[k], alone.pairwise, atol=1e-6)
        np.testing.assert_allclose(together.log_partition[k], alone.log_partition, rtol=1e-5)


@pytest.mark.slow
def test_chunks_change_nothing():
    rng = np.random.default_rng(21)
    whole, parts = ebm.BP(iterations=5), ebm.BP(iterations=5, chunk=4)
    for scale in (1.0, 12.0):
        one = oracle.random_rbm(rng, scale=scale)
        biases = jnp.asarray(rng.normal(size=(11, 5)), jnp.float32)
        batch = ebm.RBM(one.weights, biases, one.hidden_bias)
        if scale == 1:
            a, b = whole(batch), parts(batch)
            np.testing.assert_allclose(a.visible, b.visible, atol=1e-6)
            np.testing.assert_allclose(a.pairwise, b.pairwise, atol=1e-5)
            np.testing.assert_allclose(a.log_partition, b.log_partition, rtol=1e-5)
        one, two = whole.statistics(batch), parts.statistics(batch)
        np.testing.assert_allclose(one.pairwise, two.pairwise, atol=1e-6)
        np.testing.assert_allclose(one.units.hidden, two.units.hidden, atol=1e-6)


@pytest.mark.slow
def test_batch_axes_broadcast():
    rng = np.random.default_rng(22)
    one = oracle.random_rbm(rng)
    batch = ebm.RBM(
        one.weights, jnp.asarray(rng.normal(size=(2, 1, 5)), jnp.float32), one.hidden_bias
    )
    evidence = (rng.random((3, 5)) < 0.5).astype(np.float32)
    observed = np.arange(5) < 2
    beliefs = ebm.BP(iterations=5)(batch, evidence, observed)
    assert beliefs.visible.shape == (2, 3, 5)
    assert beliefs.hidden.shape == (2, 3, 4)
    assert beliefs.pairwise.shape == (2, 3, 5, 4)
    assert beliefs.log_partition.shape == beliefs.converged.shape == (2, 3)
    np.testing.assert_array_equal(beliefs.visible[1, :, :2], evidence[:, :2])


@pytest.mark.slow
def test_no_hidden_units_are_logistic_units():
    crbm = ebm.CRBM.init(visible=4, hidden=0, features=3, key=jax.random.key(0), scale=1.0)
    x = jax.random.normal(jax.random.key(1), (6, 3))
    beliefs = ebm.BP(iterations=3)(crbm.condition(x))
    np.testing.assert_allclose(
        beliefs.visible, jax.nn.sigmoid(x @ crbm.visible_features.T), atol=1e-6
    )
    assert beliefs.hidden.shape == (6, 0)
    assert beliefs.pairwise.shape == (6, 4, 0)


@pytest.mark.slow
def test_models_can_be_mapped_over():
    rng = np.random.default_rng(23)
    models = [oracle.random_rbm(rng, scale=scale) for scale in (1.0, 30.0)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *models)
    beliefs = eqx.filter_vmap(lambda m: ebm.BP(iterations=6)(m).visible)(stacked)
    for k, model in enumerate(models):
        np.testing.assert_allclose(beliefs[k], ebm.BP(iterations=6)(model).visible, atol=1e-5)


COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: COMPILED.append(event) if "backend_compile" in event else None
)


@pytest.mark.slow
def test_new_numbers_compile_nothing():
    rng = np.random.default_rng(24)
    weak, strong = (oracle.random_rbm(rng, 7, 6, scale=scale) for scale in (1.0, 20.0))
    batch = ebm.RBM(
        weak.weights, jnp.asarray(rng.normal(size=(3, 7)), jnp.float32), weak.hidden_bias
    )

    def use(model, batch, **numbers):
        for bp in (
            ebm.BP(**numbers),
            ebm.BP(damping=numbers["temperature"] / 3, tol=1e-3, **numbers),
        ):
            beliefs = bp(model)
            jax.block_until_ready((beliefs.visible, beliefs.pairwise, beliefs.log_partition))
            jax.block_until_ready(bp.statistics(batch).pairwise)
        jax.block_until_ready(ebm.MeanField(numbers["iterations"])(model).log_partition)

    # Weights beyond the range of the fast form of the messages have a program of their own.
    for model in (weak, strong):
        use(model, batch, iterations=3, temperature=1.0)
    other = [jax.tree.map(lambda x: 0.9 * x, model) for model in (weak, strong, batch)]
    before = len(COMPILED)
    for model in other[:2]:
        use(model, other[2], iterations=8, temperature=0.9)
    assert COMPILED[before:] == []
    ebm.BP(3, product="max")(weak)
    assert COMPILED[before:]


@pytest.mark.slow
def test_a_traced_schedule_compiles_once():
    rbm = oracle.random_rbm(np.random.default_rng(25), 9, 8)

    @jax.jit
    def beliefs(model, iterations, temperature):
        return ebm.BP(iterations, temperature=temperature)(model).visible

    jax.block_until_ready(beliefs(rbm, jnp.asarray(7), jnp.asarray(1.0)))
    strong = jax.tree.map(lambda x: 30 * x, rbm)
    before, got = len(COMPILED), None
    for epoch in range(3):
        got = beliefs(strong, jnp.asarray(8 + epoch), jnp.asarray(0.5))
    assert COMPILED[before:] == [] and got is not None
    np.testing.assert_allclose(got, ebm.BP(10, temperature=0.5)(strong).visible, atol=1e-6)


def soft_max(t: oracle.Truth, temperature, *fixed):
    """T log Σ exp(score / T) over the configurations in which units have given states."""
    keep = np.ones(len(t.scores), bool)
    for unit, state in fixed:
        keep &= t.states[:, unit] == state
    if not keep.any():
        return -np.inf
    return temperature * np.logaddexp.reduce(t.scores[keep] / temperature)


def trees(rng):
    """A tree of every kind of model, and which entries of its pairwise beliefs belong to it."""
    rbm, edges = oracle.random_tree_rbm(rng, 5, 4)
    boltzmann, joined = oracle.random_tree_boltzmann(rng, 8)
    dbm, blocks = tree_shaped("dbm", rng)
    semi, lateral = tree_shaped("semi_restricted", rng)
    return {
        "rbm": (rbm, [edges]),
        "boltzmann": (boltzmann, [joined]),
        "dbm": (dbm, [np.asarray(mask, bool) for mask in blocks]),
        "semi_restricted": (semi, [lateral[0], lateral[1] & ~np.eye(4, dtype=bool)]),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "temperature", "options"),
    [
        ("rbm", 0.02, {}),
        ("rbm", 1.0, {"product": "max"}),
        ("boltzmann", 0.5, {}),
        ("boltzmann", 1.0, {"product": "max"}),
        ("dbm", 2.0, {"damping": 0.2, "start": "plain"}),
        ("dbm", 1.0, {"product": "max"}),
        ("semi_restricted", 0.5, {}),
        ("semi_restricted", 2.0, {"damping": 0.2, "start": "plain"}),
    ],
)
def test_temperature_and_evidence_together(kind, temperature, options):
    model, edges = trees(np.random.default_rng(28))[kind]
    sizes = oracle.flat(model).sizes
    # Unit 0 is known to be 1, unit 1 is likely 1, nothing is known of the others.
    extra = np.zeros(sum(sizes))
    extra[1] = logit(0.8)
    t = oracle.truth(model, {0: 1}, extra)
    evidence = np.zeros(sizes[0], np.float32)
    evidence[:2] = 1, 0.8
    bp = ebm.BP(60, temperature=temperature, **options)
    beliefs = bp(model, evidence, np.arange(sizes[0]) < 2)
    reached = 1e-9 if options.get("product") == "max" else temperature
    want = [soft_max(t, reached, (i, 1)) - soft_max(t, reached, (i, 0)) for i in range(sum(sizes))]
    got = np.concatenate(oracle.layers(beliefs.log_odds))
    np.testing.assert_allclose(got[1:], want[1:], atol=2e-4)
    assert got[0] > 1e20
    np.testing.assert_allclose(beliefs.log_partition, soft_max(t, reached), atol=1e-4)
    n = sum(sizes)
    both = np.array(
        [[[soft_max(t, reached, (i, a), (j, b)) for a in (0, 1) for b in (0, 1)] for j in range(n)]
         for i in range(n)]
    )  # fmt: skip
    both = np.exp(both[..., 3] - np.logaddexp.reduce(both, axis=-1))
    blocks = oracle.pair_blocks(model, both)
    for one, two, mask in zip(oracle.arrays(beliefs.pairwise), blocks, edges, strict=True):
        np.testing.assert_allclose(one[mask], two[mask], atol=1e-4)


@pytest.mark.slow
def test_marginal_map_with_evidence():
    # Two visible units left: mixed-product must choose the better of their states by p(v).
    rng = np.random.default_rng(29)
    for _ in range(20):
        rbm = oracle.random_rbm(rng, 4, 3)
        evidence, observed = np.array([1, 0, 0, 1], np.float32), np.array([True, True, True, False])
        beliefs = ebm.BP(40, product="mixed", tol=1e-6)(rbm, evidence, observed)
        options = np.stack([evidence, evidence])
        options[:, 3] = 0, 1
        values = -np.asarray(rbm.free_energy(options))
        assert beliefs.converged
        assert beliefs.decode().visible[3] == values.argmax()
        np.testing.assert_allclose(beliefs.log_partition, values.max(), rtol=1e-5)


@pytest.mark.slow
def test_both_forms_of_messages_agree_where_one_gives_way():
    rbm = oracle.random_rbm(np.random.default_rng(30), scale=3.0)
    peak = float(jnp.abs(rbm.weights).max())
    inside, outside = (jax.tree.map(lambda x, s=s: x * (s / peak), rbm) for s in (9.999, 10.001))
    for product in ("sum", "mixed"):
        a, b = (ebm.BP(6, product=product)(model) for model in (inside, outside))
        np.testing.assert_allclose(a.visible, b.visible, atol=2e-3)
        np.testing.assert_allclose(a.log_partition, b.log_partition, atol=2e-2)


@pytest.mark.slow
def test_no_sweeps_are_independent_units():
    rbm = oracle.random_rbm(np.random.default_rng(31))
    beliefs = ebm.BP(0, start="plain")(rbm)
    np.testing.assert_allclose(beliefs.log_odds.visible, rbm.visible_bias, atol=1e-6)
    assert np.isfinite(beliefs.log_partition)
    assert ((beliefs.pairwise >= 0) & (beliefs.pairwise <= 1)).all()
