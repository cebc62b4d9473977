"""Models of images and labels together."""

import itertools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import ebmlearn as ebm


KEY = jax.random.key(0)


def joint(model):
    """All states, cut into layers, and their probabilities."""
    t = oracle.truth(model)
    return oracle.flat(model).cut(t.states), np.exp(t.scores - t.log_z), t


@pytest.mark.slow
def test_energies_and_conditionals():
    model = oracle.random_labelled(np.random.default_rng(0))
    (v, h, y), p, t = joint(model)
    label = y.argmax(1)
    np.testing.assert_allclose(model.energy(v, h, label), -t.scores, atol=1e-5)
    images = np.array([[0, 1, 0], [1, 1, 1]])
    for image in images:
        rows = (v == image).all(1)
        np.testing.assert_allclose(
            model.free_energy(image), -np.logaddexp.reduce(t.scores[rows]), atol=1e-5
        )
        want = np.array([p[rows & (label == k)].sum() for k in range(3)]) / p[rows].sum()
        np.testing.assert_allclose(model.label_given(image), want, atol=1e-6)
        for k in range(3):
            here = rows & (label == k)
            np.testing.assert_allclose(
                model.free_energy(image, k), -np.logaddexp.reduce(t.scores[here]), atol=1e-5
            )
            hidden = p[here] @ h[here] / p[here].sum()
            np.testing.assert_allclose(model.hidden_given(image, k), hidden, atol=1e-6)
    log_p = ebm.log_likelihood(model, images, t.log_z)
    want = [np.log(p[(v == image).all(1)].sum()) for image in images]
    np.testing.assert_allclose(log_p, want, atol=1e-5)
    both = ebm.log_likelihood(model, (images, np.array([2, 0])), t.log_z)
    want = [
        np.log(p[(v == image).all(1) & (label == k)].sum())
        for image, k in zip(images, (2, 0), strict=True)
    ]
    np.testing.assert_allclose(both, want, atol=1e-5)
    np.testing.assert_allclose(ebm.classify(model, images), model.label_given(images), atol=1e-6)


@pytest.mark.slow
def test_ais_brackets_log_z():
    model = oracle.random_labelled(np.random.default_rng(1))
    _, p, t = joint(model)
    found = ebm.ais(model, key=KEY, betas=50, num_chains=2000)
    assert abs(float(found.log_partition) - t.log_z) < 5 * float(found.standard_error)
    rows = np.random.default_rng(2).choice(len(p), size=2000, p=p / p.sum())
    start = oracle.seen(model, t.states[rows])
    assert start.label.shape == (2000, 1)
    back = ebm.reverse_ais(model, start, key=KEY, betas=50)
    assert abs(float(back.log_partition) - t.log_z) < 5 * float(back.standard_error)


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner",
    [
        ebm.SAP(num_chains=20_000),
        ebm.TransSAP([0.5, 0.8, 1.0], every=3, num_chains=20_000),
        ebm.MCMCMLE(num_chains=20_000, steps=30),
        ebm.CD(60, start="random"),
    ],
    ids=["sap", "trans-sap", "mcmc-mle", "cd"],
)
def test_gradient(learner):
    """Expected statistics of the data less those of the model, both by enumeration."""
    rng = np.random.default_rng(3)
    model = oracle.random_labelled(rng, scale=0.7)
    v = rng.integers(0, 2, (4, 3)).astype(np.uint8)
    label = np.array([0, 2, 1, 2])
    state = learner.init(model, key=KEY)
    persistent = isinstance(learner, ebm.SAP | ebm.TransSAP)
    # CD has a chain for each row.
    batch = (np.tile(v, (5000, 1)), np.tile(label, 5000)) if state is None else (v, label)
    gradient = None
    for k in range(18 if persistent else 1):
        gradient, state, _ = learner.step(model, state, batch, key=jax.random.key(k), epoch=0)
    (all_v, all_h, all_y), p, _ = joint(model)
    h = np.asarray(model.hidden_given(v, label))
    y = np.eye(3)[label]

    def contrast(a, b, all_a, all_b):
        return (all_a * p[:, None]).T @ all_b - a.T @ b / 4

    ones, all_ones = np.ones((4, 1)), np.ones((len(p), 1))
    want = {
        "weights": contrast(v, h, all_v, all_h),
        "label_weights": contrast(y, h, all_y, all_h),
        "couplings": contrast(v, v, all_v, all_v) * (1 - np.eye(3)),
        "visible_bias": contrast(v, ones, all_v, all_ones)[:, 0],
        "hidden_bias": contrast(h, ones, all_h, all_ones)[:, 0],
        "label_bias": contrast(y, ones, all_y, all_ones)[:, 0],
    }
    for name, value in want.items():
        np.testing.assert_allclose(getattr(gradient, name), value, atol=0.02, err_msg=name)


def log_marginals(model) -> dict:
    """The log-potential of every configuration of the visible units, hidden ones summed out."""
    f, out = oracle.flat(model), {}
    counts = [getattr(u, "states", 2) for u in model.layers for _ in range(u.size)]
    owner = [k for k, u in enumerate(model.layers) for _ in range(u.size)]
    for states in itertools.product(*map(range, counts)):
        parts = [
            np.eye(counts[i])[s] if isinstance(model.layers[owner[i]], ebm.Categorical) else [s]
            for i, s in enumerate(states)
        ]
        x = np.concatenate(parts)
        score = x @ f.bias + x @ f.couplings @ x / 2
        told = tuple(s for i, s in enumerate(states) if owner[i] in model.variables.seen)
        out[told] = np.logaddexp(out.get(told, -np.inf), score)
    return out


def pseudo(model, rows) -> np.ndarray:
    """By enumeration: the sum over visible units of the log-probability given all others."""
    marginal, out = log_marginals(model), []
    counts = [getattr(model.layers[k], "states", 2) for k in model.variables.seen]
    counts = np.repeat(counts, [model.layers[k].size for k in model.variables.seen])
    for row in map(tuple, rows):
        total = 0.0
        for i, n in enumerate(counts):
            others = [marginal[(*row[:i], s, *row[i + 1 :])] for s in range(n)]
            total += marginal[row] - np.logaddexp.reduce(others)
        out.append(total)
    return np.array(out)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["label", "layers"])
def test_pseudo_likelihood_counts_all_visible_layers(name):
    """Its gradient too: against finite differences of the enumeration."""
    rng = np.random.default_rng(7)
    with oracle.x64(True):
        if name == "label":
            model = oracle.random_labelled(rng)
            model = jax.tree.map(lambda x: x.astype(jnp.float64), model)
        else:
            shapes = {
                ("visible", "hidden"): (2, 3), ("hidden", "label"): (3, 6),
                ("label", "visible"): (6, 2), ("other", "label"): (2, 6),
            }  # fmt: skip
            layers = {
                "visible": ebm.Binary(2), "hidden": ebm.Binary(3),
                "label": ebm.Categorical(2, 3), "other": ebm.Binary(2),
            }  # fmt: skip
            blocks = {pair: rng.normal(size=shape) for pair, shape in shapes.items()}
            inside = np.zeros((2, 2))
            inside[0, 1] = inside[1, 0] = rng.normal()
            blocks["visible", "visible"] = inside
            unary = {k: rng.normal(size=u.width) for k, u in layers.items()}
            model = ebm.LayeredModel(layers, blocks, unary)
        counts = [
            (getattr(u, "states", 2), u.size)
            for u in (model.layers[k] for k in model.variables.seen)
        ]
        batch = tuple(rng.integers(0, n, (4, size)) for n, size in counts)
        rows = np.concatenate(batch, 1)
        np.testing.assert_allclose(
            ebm.pseudo_log_likelihood(model, batch), pseudo(model, rows), atol=1e-10
        )
        gradient, _, info = ebm.PseudoLikelihood().step(model, None, batch, key=KEY, epoch=0)
        np.testing.assert_allclose(info.loss, -pseudo(model, rows).mean(), atol=1e-10)
        leaves, structure = jax.tree.flatten(model)
        for k, (x, got) in enumerate(zip(leaves, jax.tree.leaves(gradient), strict=True)):
            if not x.size:
                continue
            at = tuple(rng.integers(0, n) for n in x.shape)
            inside = x.ndim == 2 and x.shape[0] == x.shape[1] and bool((x == x.T).all())
            at = (0, 1) if inside else at
            moved = []
            for step in (1e-5, -1e-5):
                new = np.array(x)
                new[at] += step
                if inside:
                    new[at[::-1]] += step
                other = jax.tree.unflatten(structure, [*leaves[:k], new, *leaves[k + 1 :]])
                moved.append(-pseudo(other, rows).mean())
            np.testing.assert_allclose(got[at], (moved[0] - moved[1]) / 2e-5, atol=1e-7)


@pytest.mark.slow
def test_clamped_labels():
    """Images of a given label, and labels are integers."""
    model = oracle.random_labelled(np.random.default_rng(4))
    start = model.named((None, None, jnp.asarray([1])))
    clamped = model.named((None, None, jnp.asarray([True])))
    number = 8_000
    samples = ebm.sample(
        model, ebm.Gibbs(), number, key=KEY, num_chains=number, burn_in=30, start=start,
        clamped=clamped,
    )  # fmt: skip
    assert samples.label.shape == (number, 1)
    assert (np.asarray(samples.label) == 1).all()
    (v, _, y), p, _ = joint(model)
    given = y[:, 1] == 1
    want = p[given] @ v[given] / p[given].sum()
    error = 5 * np.sqrt(want * (1 - want) / number)
    assert (np.abs(np.asarray(samples.visible).mean(0) - want) < error + 1e-3).all()
    free = ebm.sample(model, ebm.ParallelTempering([0.5, 1.0]), 400, key=KEY, burn_in=5)
    assert set(np.unique(free.label)) == {0, 1, 2}


@pytest.mark.slow
def test_labels_among_the_visible_units():
    """Free energies and conditional marginals of an RBM on images and one-hot labels."""
    model = oracle.random_rbm(np.random.default_rng(5), 6, 3)
    images = np.array([[0, 1, 0], [1, 1, 1], [0, 0, 0]])
    t = oracle.truth(model)
    p = np.exp(t.scores - t.log_z)
    found = ebm.classify(model, images, labels=3)
    marginals = ebm.classify(model, images, labels=3, inference=ebm.Exact())
    for k, image in enumerate(images):
        rows = (t.states[:, :3] == image).all(1)
        label = t.states[:, 3:6]
        one = [p[rows & (label == np.eye(3)[j]).all(1)].sum() for j in range(3)]
        np.testing.assert_allclose(found[k], np.array(one) / sum(one), atol=1e-5)
        np.testing.assert_allclose(marginals[k], p[rows] @ label[rows] / p[rows].sum(), atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user")
def test_bad_labels():
    model = oracle.random_labelled(np.random.default_rng(6))
    v = np.zeros((2, 3), np.uint8)
    learner = ebm.SAP(num_chains=2)
    state = learner.init(model, key=KEY)
    for batch, message in [
        (v, "`batch` must be 2 arrays, `visible` and `label`, .* got 1"),
        ((v, np.array([0, 3])), "0 to 2"),
        ((v, np.array([0.0, 1.0])), r"`batch\[1\]` must hold integers"),
        ((v, np.array([0])), "same number of rows, got 2 and 1"),
        ((v + 2, np.array([0, 1])), "0 and 1 only"),
    ]:
        with pytest.raises(ValueError, match=message):
            learner.step(model, state, batch, key=KEY, epoch=0)
    for label, message in [([3], "labels 0 to 2, got 3"), ([0, 1, 0], r"shape \(2, 1\)")]:
        with pytest.raises(ValueError, match=message):
            start = model.named((None, None, jnp.asarray(label)))
            ebm.Gibbs().init(model, 2, key=KEY, start=start)
    with pytest.raises(TypeError, match=r"`start .label.` must hold integers"):
        start = model.named((None, None, jnp.asarray([1.0])))
        ebm.Gibbs().init(model, 2, key=KEY, start=start)
    with pytest.raises(ValueError, match="go together"):
        ebm.SemiRestrictedBM(*jax.tree.leaves(model)[:4], label_bias=jnp.zeros(3))
    with pytest.raises(ValueError, match="`label` must be given"):
        model.hidden_given(v)
    with pytest.raises(ValueError, match="without label units"):
        model.to_spins()
    for label in (3, -1):
        with pytest.raises(ValueError, match=f"labels 0 to 2, got {label}"):
            model.free_energy(v, label)
    with pytest.raises(ValueError, match="same number of rows, got 2 and 3"):
        ebm.log_likelihood(model, (v, np.array([0, 1, 2])), 0.0)
    rbm = oracle.random_rbm(np.random.default_rng(0))
    with pytest.raises(ValueError, match="`data` must hold 0 and 1 only"):
        ebm.log_likelihood(rbm, np.full((2, rbm.num_visible), 200), 0.0)
    with pytest.raises(ValueError, match="`log_partition`"):
        ebm.log_likelihood(rbm, np.zeros((2, rbm.num_visible)), jnp.zeros(3))
    with pytest.raises(ValueError, match="`data` must hold 0 and 1 only"):
        ebm.estimate.base_rate(np.full((2, 3), 200))
    with pytest.raises(ValueError, match="`num_chains`"):
        ebm.ais(rbm, key=KEY, num_chains=0)
    with pytest.raises(ValueError, match="fewer than"):
        ebm.classify(rbm, v, labels=rbm.num_visible)
    with pytest.raises(TypeError, match="condition"):
        ebm.classify(cast(Any, ebm.CRBM.init(3, 2, 4, key=KEY)), v, labels=2)
    with pytest.raises(ValueError, match="`labels` must be given"):
        ebm.classify(oracle.random_rbm(np.random.default_rng(0)), v)
