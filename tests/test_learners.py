"""Gradients of every learner against enumeration, or against their own definition."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from scipy.special import expit

import ebmlearn as ebm
from ebmlearn.models import expected_energy, Statistics
from ebmlearn.samplers._sweep import sweep


KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def in_float64():
    with oracle.x64(True):
        yield


def random_crbm(rng, visible=4, hidden=3, features=5, scale=1.0):
    shapes = (visible, hidden), (visible, features), (hidden, features), (visible,), (hidden,)
    return ebm.CRBM(*(jnp.asarray(scale * rng.normal(size=shape)) for shape in shapes))


def bits(rng, rows, columns):
    return rng.integers(0, 2, (rows, columns)).astype(np.uint8)


MODELS = {**oracle.MODELS, "crbm": random_crbm}


def setting(name, rng, rows=3) -> Any:
    """A model, a batch for it, and one plain model with its visible units for each row."""
    if name == "crbm":
        model = random_crbm(rng)
        x, v = rng.normal(size=(rows, 5)), bits(rng, rows, 4)
        return model, (x, v), [(model.condition(x[n]), v[n]) for n in range(rows)], x
    model = MODELS[name](rng, dtype="float64")
    v = bits(rng, rows, oracle.flat(model).sizes[0])
    return model, v, [(model, row) for row in v], None


def held(model, v):
    """What is true of a model given its visible units."""
    return oracle.truth(model, clamped=dict(enumerate(map(int, v))))


def assert_gradient(gradient, rows, sides, features):
    """`sides` gives for each row the pair of (marginals, pairwise) of data and rival."""
    units = [[-(a - b) for a, b in zip(pos[0], neg[0], strict=True)] for pos, neg in sides]
    pairs = np.mean([-(pos[1] - neg[1]) for pos, neg in sides], 0)
    model = rows[0][0]
    layers = [np.mean([row[k] for row in units], 0) for k in range(len(units[0]))]
    blocks = oracle.pair_blocks(model, pairs)
    if isinstance(gradient, ebm.CRBM):
        got = [gradient.weights, gradient.visible_bias, gradient.hidden_bias]
        want = [blocks[0], *layers]
        for k, name in enumerate(("visible_features", "hidden_features")):
            got.append(getattr(gradient, name))
            want.append(
                np.mean([np.outer(u[k], x) for u, x in zip(units, features, strict=True)], 0)
            )
    else:
        got = [f.weights for f in gradient.factors()] + list(gradient.unary())
        for k, block in enumerate(blocks):
            if (
                block.shape[0] == block.shape[1]
                and model.factors()[k].first == model.factors()[k].second
            ):
                blocks[k] = block * (1 - np.eye(len(block)))
        want = [*blocks, *layers]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)


def statistics(truth):
    return truth.marginals, truth.pairwise


def point(model, x):
    """The statistics of one configuration."""
    f = oracle.flat(model)
    return f.cut(np.asarray(x, float)), np.outer(x, x).astype(float)


def averaged(truths):
    """Statistics averaged over pairs (weight, truth)."""
    marginals = [
        sum(w * t.marginals[k] for w, t in truths) for k in range(len(truths[0][1].marginals))
    ]
    return marginals, sum(w * t.pairwise for w, t in truths)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_exact_maximum_likelihood(name):
    rng = np.random.default_rng(0)
    model, batch, rows, features = setting(name, rng)
    learner = ebm.MLE(ebm.Exact(), loss=True)
    gradient, _, info = learner.step(model, None, batch, key=KEY, epoch=0)
    sides = [(statistics(held(m, v)), statistics(oracle.truth(m))) for m, v in rows]
    assert_gradient(gradient, rows, sides, features)
    loss = np.mean([oracle.truth(m).log_z - held(m, v).log_z for m, v in rows])
    np.testing.assert_allclose(info.loss, loss, atol=1e-10)
    assert np.isnan(info.converged)  # Nothing was iterated.


@pytest.mark.slow
def test_bp_is_exact_maximum_likelihood_on_trees():
    rng = np.random.default_rng(1)
    rbm, edges = oracle.random_tree_rbm(rng, 4, 3, dtype="float64")
    crbm = random_crbm(rng)
    crbm = eqx.tree_at(lambda m: m.weights, crbm, rbm.weights)
    batch = rng.normal(size=(3, 5)), bits(rng, 3, 4)
    exact, _, _ = ebm.MLE(ebm.Exact()).step(crbm, None, batch, key=KEY, epoch=0)
    by_bp, _, info = ebm.MLE(ebm.BP(20)).step(crbm, None, batch, key=KEY, epoch=0)
    # Where a weight is zero there is no edge, and the two ends are correlated all the same.
    exact, by_bp = (
        eqx.tree_at(lambda m: m.weights, gradient, jnp.where(edges, gradient.weights, 0.0))
        for gradient in (exact, by_bp)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), exact, by_bp)
    assert info.converged == 1


@pytest.mark.slow
@pytest.mark.parametrize("inference", [ebm.BP(3), ebm.MeanField(3)])
def test_maximum_likelihood_by_beliefs(inference):
    """Unconverged beliefs too: the gradient is the data's statistics less these."""
    rng = np.random.default_rng(2)
    model, batch, rows, features = setting("crbm", rng)
    gradient, _, info = ebm.MLE(inference).step(model, None, batch, key=KEY, epoch=0)
    sides = []
    for m, v in rows:
        beliefs = inference(m)
        pairs = np.zeros((7, 7))
        pairs[:4, 4:] = beliefs.pairwise
        sides.append((statistics(held(m, v)), ([beliefs.visible, beliefs.hidden], pairs)))
    if isinstance(inference, ebm.BP):
        # The statistics of BP take one more half-sweep than its beliefs.
        stats = inference.statistics(model.condition(batch[0]))
        np.testing.assert_allclose(
            gradient.visible_bias, (np.asarray(stats.units.visible) - batch[1]).mean(0), atol=1e-12
        )
        data = batch[1].T @ np.asarray(model.hidden_given(batch[1], batch[0])) / 3
        np.testing.assert_allclose(gradient.weights, stats.pairwise - data, atol=1e-12)
    else:
        assert_gradient(gradient, rows, sides, features)
    assert info.iterations == 3


def loss_augmented(model, v, cost):
    """All configurations of a model with their scores, and the cost of their visible units."""
    t = oracle.truth(model)
    visible = t.states[:, : len(v)]
    return t, visible, t.scores + cost(visible, v[None]).sum(-1)


def uneven(state, truth):
    """A decomposable loss of our own: missing a 1 costs more, and units differ."""
    weight = 0.5 + np.arange(truth.shape[-1])
    return weight[None] * ((1 - state) * truth * 3 + state * (1 - truth))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("rbm", uneven),
        ("crbm", ebm.learners.hamming),
        ("crbm", uneven),
        ("dbm", ebm.learners.hamming),
    ],
)
def test_mssvm(name, cost):
    rng = np.random.default_rng(3)
    model, batch, rows, features = setting(name, rng)
    learner = ebm.MSSVM(ebm.Exact(product="mixed"), cost=cost)
    gradient, _, info = learner.step(model, None, batch, key=KEY, epoch=0)
    sides, losses = [], []
    for m, v in rows:
        best = {}
        for state, score in zip(*loss_augmented(m, v.astype(float), cost)[1:], strict=True):
            best[tuple(state)] = np.logaddexp(best.get(tuple(state), -np.inf), score)
        rival = max(best, key=best.__getitem__)
        sides.append((statistics(held(m, v)), statistics(held(m, rival))))
        losses.append(best[rival] - held(m, v).log_z)
    assert_gradient(gradient, rows, sides, features)
    np.testing.assert_allclose(info.loss, np.mean(losses), atol=1e-10)


@pytest.mark.slow
def test_mssvm_at_the_mixed_product_point():
    rng = np.random.default_rng(4)
    model, batch, rows, features = setting("crbm", rng)
    bp = ebm.BP(20, product="mixed")
    gradient, _, _ = ebm.MSSVM(bp).step(model, None, batch, key=KEY, epoch=0)
    sides = []
    for m, v in rows:
        shifted = ebm.RBM(m.weights, m.visible_bias + 1 - 2 * jnp.asarray(v, float), m.hidden_bias)
        rival = np.asarray(bp(shifted).decode().visible)
        sides.append((statistics(held(m, v)), statistics(held(m, rival))))
    assert_gradient(gradient, rows, sides, features)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("rbm", ebm.learners.hamming),
        ("crbm", uneven),
        ("dbm", ebm.learners.hamming),
        ("boltzmann", uneven),
        ("semi_restricted", ebm.learners.hamming),
    ],
)
def test_lssvm(name, cost):
    rng = np.random.default_rng(5)
    model, batch, rows, features = setting(name, rng)
    learner = ebm.LSSVM(ebm.Exact(product="max"), cost=cost)
    gradient, _, info = learner.step(model, None, batch, key=KEY, epoch=0)
    sides, losses = [], []
    for m, v in rows:
        t, _, scores = loss_augmented(m, v.astype(float), cost)
        given = held(m, v)
        best = given.states[given.scores.argmax()]
        sides.append((point(m, best), point(m, t.states[scores.argmax()])))
        losses.append(scores.max() - given.scores.max())
    assert_gradient(gradient, rows, sides, features)
    np.testing.assert_allclose(info.loss, np.mean(losses), atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["boltzmann", "rbm", "crbm", "dbm"])
def test_lssvm_by_mplp(name):
    """On trees the linear relaxation is tight: both inferences find the maximum."""
    rng = np.random.default_rng(17)
    rbm, _ = oracle.random_tree_rbm(rng, 4, 3, dtype="float64")
    v = bits(rng, 6, 4)
    model, batch = rbm, v
    if name == "boltzmann":
        model, _ = oracle.random_tree_boltzmann(rng, 4, dtype="float64")
    elif name == "crbm":
        model = eqx.tree_at(lambda m: m.weights, random_crbm(rng), rbm.weights)
        batch = rng.normal(size=(6, 5)), v
    elif name == "dbm":
        # A star around the first hidden unit, and the second one at its end.
        parts = [rng.normal(size=(4, 1)), rng.normal(size=(1, 1))]
        model = ebm.DBM(parts, [rng.normal(size=n) for n in (4, 1, 1)])
    (exact, _, wanted), (by_mplp, _, info) = (
        ebm.LSSVM(inference).step(model, None, batch, key=KEY, epoch=0)
        for inference in (ebm.Exact(product="max"), ebm.MPLP())
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), exact, by_mplp)
    assert any(leaf.any() for leaf in jax.tree.leaves(exact))
    np.testing.assert_allclose(info.loss, wanted.loss, atol=1e-10)
    assert info.converged == 1


def test_maximum_likelihood_needs_marginals():
    """`MPLP` maximises, at once or in a schedule."""
    for inference in (ebm.MPLP(), lambda epoch: ebm.MPLP(10 + epoch)):
        with pytest.raises(ValueError, match=r"`inference` must give marginals.*got MPLP"):
            ebm.MLE(inference)


def gibbs_matrix(model):
    """The transition matrix of one sweep over the configurations of the even layers."""
    f = oracle.flat(model)
    t = oracle.truth(model)
    even = np.concatenate([np.full(n, k % 2 == 0) for k, n in enumerate(f.sizes)])
    p = np.exp(t.scores - t.log_z)
    states = np.array(list(itertools.product((0, 1), repeat=int(even.sum()))), float)
    other = np.array(list(itertools.product((0, 1), repeat=int((~even).sum()))), float)
    joint = np.zeros((len(states), len(other)))
    for x, weight in zip(t.states, p, strict=True):
        i = (states == x[even]).all(1).argmax()
        j = (other == x[~even]).all(1).argmax()
        joint[i, j] += weight
    up = joint / joint.sum(1, keepdims=True)
    down = joint / joint.sum(0, keepdims=True)
    return states, even, up @ down.T


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "k", "start"),
    [("crbm", 3, "random"), ("rbm", 2, "data"), ("dbm", 2, "random")],
)
def test_contrastive_divergence(name, k, start):
    """The chain of k steps, averaged over many keys, against its transition matrix."""
    rng = np.random.default_rng(6)
    model, batch, rows, features = setting(name, rng, rows=2)
    learner = ebm.CD(k, start=start, inference=ebm.Exact())
    sides = []
    for m, v in rows:
        states, even, matrix = gibbs_matrix(m)
        first = np.full(len(states), 1 / len(states))
        if start == "data":
            first = (states == v).all(1).astype(float)
        last = first @ np.linalg.matrix_power(matrix, k)
        units = np.flatnonzero(even).tolist()
        given = [
            (weight, oracle.truth(m, clamped=dict(zip(units, map(int, state), strict=True))))
            for weight, state in zip(last, states, strict=True)
        ]
        sides.append((statistics(held(m, v)), averaged(given)))
    number = 8_000
    keys = jax.random.split(KEY, number)

    @jax.jit
    def mean(keys):
        out = jax.vmap(lambda key: learner.step(model, None, batch, key=key, epoch=0)[0])(keys)
        return (
            jax.tree.map(lambda x: x.mean(0), out),
            jax.tree.map(lambda x: 5 * x.std(0) / number**0.5 + 1e-6, out),
        )

    average, error = mean(keys)
    exact = exact_gradient(model, sides, features)
    jax.tree.map(
        lambda a, b, e: np.testing.assert_array_less(np.abs(a - b), e), average, exact, error
    )


def exact_gradient(model, sides, features):
    """A gradient, shaped as the model, from the statistics of each row."""
    rows = len(sides)
    dtype = jnp.float64
    like = model.condition(jnp.asarray(features[0])) if features is not None else model
    cut = [[oracle.pair_blocks(like, pairs) for _, pairs in side] for side in sides]

    def total(m):
        out = jnp.zeros((), dtype)
        for n, side in enumerate(sides):
            single = m.condition(jnp.asarray(features[n])) if features is not None else m
            for sign, (units, _), parts in zip((1, -1), side, cut[n], strict=True):
                blocks = [jnp.asarray(b) for b in parts]
                own = Statistics(
                    units=single.named([jnp.asarray(u) for u in units]),
                    pairwise=single.by_factor(tuple(blocks)),
                    squares=(None,) * len(units),
                    converged=jnp.ones((), bool),
                    iterations=jnp.zeros((), jnp.int32),
                    residual=jnp.zeros((), dtype),
                )
                out = out + sign * expected_energy(single, own) / rows
        return out

    return jax.grad(total)(model)


@pytest.mark.slow
def test_perceptron_loss_with_a_long_search():
    """With many sweeps the search finds the lowest free energy of all."""
    rng = np.random.default_rng(7)
    model, batch, rows, features = setting("crbm", rng)
    gradient, _, info = ebm.PercLoss(300).step(model, None, batch, key=KEY, epoch=0)
    sides, losses = [], []
    for m, v in rows:
        every = np.array(list(itertools.product((0, 1), repeat=4)))
        energies = np.array([-held(m, state).log_z for state in every])
        sides.append((statistics(held(m, v)), statistics(held(m, every[energies.argmin()]))))
        losses.append(-held(m, v).log_z - energies.min())
    assert_gradient(gradient, rows, sides, features)
    np.testing.assert_allclose(info.loss, np.mean(losses), atol=1e-10)
    assert info.loss > 0


@pytest.mark.slow
def test_perceptron_learns_nothing_from_the_best_configuration():
    rng = np.random.default_rng(8)
    model = oracle.random_rbm(rng, 4, 3, dtype="float64")
    every = np.array(list(itertools.product((0, 1), repeat=4)))
    best = every[np.argmin(model.free_energy(every))][None]
    gradient, _, info = ebm.PercLoss(20).step(model, None, best, key=KEY, epoch=0)
    assert all(not leaf.any() for leaf in jax.tree.leaves(gradient))
    assert info.loss == 0


@pytest.mark.slow
def test_no_hidden_units_is_logistic_regression():
    rng = np.random.default_rng(9)
    model = random_crbm(rng, hidden=0)
    x, v = rng.normal(size=(6, 5)), bits(rng, 6, 4)
    gradient, _, info = ebm.MLE(ebm.BP(1), loss=True).step(model, None, (x, v), key=KEY, epoch=0)
    logits = x @ model.visible_features.T + model.visible_bias[None]
    error = np.asarray(jax.nn.sigmoid(logits)) - v
    np.testing.assert_allclose(gradient.visible_bias, error.mean(0), atol=1e-12)
    np.testing.assert_allclose(gradient.visible_features, error.T @ x / 6, atol=1e-12)
    entropy = jnp.logaddexp(0.0, jnp.where(v == 1, -logits, logits)).sum(1).mean()
    np.testing.assert_allclose(info.loss, entropy, atol=1e-10)


@pytest.mark.slow
def test_centred_gradient_of_an_rbm():
    """The formulas of Melchior, Fischer & Wiskott 2016 with offsets halfway between both phases."""
    rng = np.random.default_rng(10)
    model = oracle.random_rbm(rng, 4, 3, dtype="float64")
    v = bits(rng, 5, 4).astype(float)
    gradient, _, _ = ebm.MLE(ebm.Exact(), centred=True).step(model, None, v, key=KEY, epoch=0)
    t = oracle.truth(model)
    h = np.asarray(model.hidden_given(v))
    mu, lam = (v.mean(0) + t.marginals[0]) / 2, (h.mean(0) + t.marginals[1]) / 2
    p = np.exp(t.scores - t.log_z)
    sv, sh = t.states[:, :4] - mu, t.states[:, 4:] - lam
    weights = (v - mu).T @ (h - lam) / 5 - np.einsum("s,si,sj->ij", p, sv, sh)
    visible = v.mean(0) - t.marginals[0] - weights @ lam
    hidden = h.mean(0) - t.marginals[1] - mu @ weights
    np.testing.assert_allclose(gradient.weights, -weights, atol=1e-12)
    np.testing.assert_allclose(gradient.visible_bias, -visible, atol=1e-12)
    np.testing.assert_allclose(gradient.hidden_bias, -hidden, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_uncentred_is_the_energy_of_what_is_left(name):
    """E'(x) = E(x - mu) up to a constant, so differences of energies agree."""
    rng = np.random.default_rng(11)
    model, batch, rows, _ = setting(name, rng)
    plain = rows[0][0]
    sizes = oracle.flat(plain).sizes
    offsets = [rng.uniform(size=n) for n in sizes]
    units = plain.named(tuple(jnp.asarray(o) for o in offsets))
    if name == "crbm":
        shift = rng.normal(size=5)
        moved = model.uncentred(units, (shift[None], batch[1])).condition(batch[0][0])
        plain = model.condition(batch[0][0] - shift)
    else:
        moved = plain.uncentred(units)
    t = oracle.truth(moved)
    f = oracle.flat(plain)
    x = t.states - np.concatenate(offsets)
    scores = x @ f.bias + np.einsum("si,ij,sj->s", x, f.couplings, x) / 2
    np.testing.assert_allclose(t.scores - t.scores[0], scores - scores[0], atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["boltzmann", "semi_restricted"])
def test_centred_gradient_does_not_depend_on_which_state_is_one(name):
    """Exchanging 0 and 1 everywhere changes couplings by nothing, fields by their sign."""
    rng = np.random.default_rng(12)
    model, v, _, _ = setting(name, rng)
    j, *fields = model.to_spins()[:1] + model.to_spins()[1:]
    matrices = [x for x in (j, *fields) if x.ndim == 2]
    mirrored = type(model).from_spins(*matrices, *(-x for x in fields if x.ndim == 1))
    learner = ebm.MLE(ebm.Exact(), centred=True)
    a, _, _ = learner.step(model, None, v, key=KEY, epoch=0)
    b, _, _ = learner.step(mirrored, None, 1 - v, key=KEY, epoch=0)
    np.testing.assert_allclose(a.couplings, b.couplings, atol=1e-10)


@pytest.mark.slow
def test_weight_decay_leaves_biases_alone():
    rng = np.random.default_rng(13)
    model, batch, _, _ = setting("crbm", rng)
    plain, _, _ = ebm.MLE(ebm.BP(5)).step(model, None, batch, key=KEY, epoch=0)
    decayed, _, _ = ebm.MLE(ebm.BP(5), weight_decay=0.3).step(model, None, batch, key=KEY, epoch=0)
    for field in ("weights", "visible_features", "hidden_features"):
        gap = getattr(decayed, field) - getattr(plain, field)
        np.testing.assert_allclose(gap, 0.3 * getattr(model, field), atol=1e-12)
    np.testing.assert_array_equal(decayed.visible_bias, plain.visible_bias)


@pytest.mark.slow
def test_weight_decay_leaves_precisions_alone():
    couplings = np.array([[2.0, 0.5], [0.5, 3.0]])
    nnbm = ebm.NNBM(couplings, np.zeros(2))
    x = np.ones((1, 2))
    plain, decayed = (
        ebm.MLE(ebm.NaiveMeanField(), weight_decay=decay).step(nnbm, None, x, key=KEY, epoch=0)[0]
        for decay in (0.0, 0.3)
    )
    wanted = 0.3 * (couplings - np.diag(np.diag(couplings)))
    np.testing.assert_allclose(decayed.couplings - plain.couplings, wanted, atol=1e-12)


LEARNERS = {
    "mle-bp": ebm.MLE(lambda epoch: ebm.BP(2 + epoch, tol=1e-3)),
    "mle-mf": ebm.MLE(ebm.MeanField(5)),
    "mssvm": ebm.MSSVM(ebm.BP(5, product="mixed")),
    "lssvm": ebm.LSSVM(ebm.BP(5, product="max")),
    "cd": ebm.CD(2),
    "percloss": ebm.PercLoss(2),
    "pmp": ebm.PMPLearner(ebm.PMP(5)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("crbm", kind) for kind in LEARNERS),
        *(("rbm", kind) for kind in ("mle-bp", "percloss")),
        *(("dbm", kind) for kind in ("mssvm", "cd", "percloss", "pmp")),
    ],
)
def test_protocol(name, kind):
    """`init`, `step` and `predict` of every learner, and that nothing compiles anew."""
    learner = LEARNERS[kind]
    rng = np.random.default_rng(14)
    model, batch, _, _ = setting(name, rng)
    if name == "dbm" and isinstance(learner, ebm.PercLoss):
        with pytest.raises(ValueError, match=r"closed free energy, got a DBM"):
            learner.step(model, None, batch, key=KEY, epoch=0)
        return
    traces = 0

    @eqx.filter_jit
    def step(model, state, key, epoch):
        nonlocal traces
        traces += 1
        return learner.step(model, state, batch, key=key, epoch=epoch)

    state = learner.init(model, key=KEY)
    for epoch in range(3):
        gradient, state, info = step(model, state, jax.random.key(epoch), jnp.asarray(epoch))
        assert jax.tree.structure(gradient) == jax.tree.structure(model)
        for g, p in zip(jax.tree.leaves(gradient), jax.tree.leaves(model), strict=True):
            assert g.shape == p.shape
            assert g.dtype == p.dtype
            assert np.isfinite(np.asarray(g)).all()
        assert np.isnan(info.converged) or 0 <= info.converged <= 1
    assert traces == 1
    if name == "crbm":
        predicted = learner.predict(model, batch[0], epoch=2)
        assert predicted.shape == batch[1].shape
        assert set(np.unique(predicted)) <= {0, 1}


@pytest.mark.slow
def test_predictions():
    rng = np.random.default_rng(15)
    model, (x, _), rows, _ = setting("crbm", rng)
    truths = [oracle.truth(m) for m, _ in rows]
    got = ebm.predict(model, x, inference=ebm.Exact())
    np.testing.assert_array_equal(got, [t.marginals[0] > 0.5 for t in truths])
    got = ebm.predict(model, x, inference=ebm.Exact(product="max"))
    np.testing.assert_array_equal(got, [t.states[t.scores.argmax()][:4] for t in truths])
    every = np.array(list(itertools.product((0, 1), repeat=4)))
    best = [every[np.argmin(m.free_energy(every))] for m, _ in rows]
    np.testing.assert_array_equal(ebm.predict(model, x, inference=ebm.Exact(product="mixed")), best)
    chain = oracle.random_boltzmann(rng, dtype="float64")
    got = ebm.predict(chain, inference=ebm.Exact())
    np.testing.assert_array_equal(got, oracle.truth(chain).marginals[0] > 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LEARNERS)
def test_inference_of_a_prediction(kind):
    """Learners decode as suits them, or by the inference that they are given."""
    rng = np.random.default_rng(18)
    model, (x, _), _, _ = setting("crbm", rng, rows=20)
    learner = LEARNERS[kind]
    own = ebm.predict(model, x, inference=learner.decoder(1))
    np.testing.assert_array_equal(learner.predict(model, x, epoch=1), own)
    other = ebm.predict(model, x, inference=ebm.Exact(product="mixed"))
    np.testing.assert_array_equal(
        learner.predict(model, x, inference=ebm.Exact(product="mixed")), other
    )


def test_error_rate():
    truth = np.array([[0, 1, 1, 0], [1, 1, 0, 0]])
    x = np.array([[1, 1, 0, 0], [1, 0, 0, 0]])
    found = np.array([[0, 1, 0, 0], [0, 1, 0, 1]])
    np.testing.assert_allclose(ebm.error_rate(found, truth), 3 / 8)
    np.testing.assert_allclose(ebm.error_rate(found, truth, where=x != truth), 1 / 3)


def test_gibbs_sweep_keeps_the_distribution():
    """The transition matrix of the formulas is that of the code, and has p as its fixed point."""
    rng = np.random.default_rng(16)
    model = oracle.random_dbm(rng, (2, 2, 1), dtype="float64")
    states, even, matrix = gibbs_matrix(model)
    t = oracle.truth(model)
    p = np.array(
        [np.exp(t.scores - t.log_z)[(t.states[:, even] == s).all(1)].sum() for s in states]
    )
    np.testing.assert_allclose(p @ matrix, p, atol=1e-12)
    number = 40_000
    for i, start in enumerate(states):
        low, high = start[:2], start[2:]
        layers = [np.tile(low, (number, 1)), np.zeros((number, 2)), np.tile(high, (number, 1))]
        out = jax.jit(sweep)(model, [jnp.asarray(x) for x in layers], jax.random.key(i))
        ends = np.concatenate([out[0], out[2]], 1) @ (4, 2, 1)
        share = np.bincount(ends.astype(int), minlength=8) / number
        error = 5 * np.sqrt(matrix[i] * (1 - matrix[i]) / number)
        assert (np.abs(share - matrix[i]) < error + 1e-9).all()


@pytest.mark.slow
@pytest.mark.parametrize("learner", [ebm.MLE(ebm.BP(3)), ebm.SAP(num_chains=5)])
def test_models_without_hidden_units_are_trained(learner):
    rows = np.random.default_rng(0).integers(0, 2, (10, 4))
    model = ebm.RBM(jnp.zeros((4, 0)), jnp.asarray([-1.0, 0.0, 1.0, 2.0]), jnp.zeros(0))
    state = learner.init(model, key=KEY)
    gradient, _, _ = learner.step(model, state, rows, key=KEY, epoch=0)
    assert gradient.weights.shape == (4, 0)
    if isinstance(learner, ebm.MLE):
        want = expit(model.visible_bias) - rows.mean(0)
        np.testing.assert_allclose(gradient.visible_bias, want, atol=1e-6)
