"""A `LayeredModel` with the parameters of another model is that model, and one of any structure
agrees with enumeration.
"""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import ebmlearn as ebm
from ebmlearn.models import complete
from ebmlearn.numpyro import EnergyDistribution
from ebmlearn.uai import to_tables


KEY = jax.random.key(0)


def gaussian(rng):
    arrays = (rng.normal(size=s) for s in ((3, 4), 3, 4, 3))
    return ebm.GaussianRBM(*(0.5 * jnp.asarray(x, jnp.float32) for x in arrays))


def nonnegative(rng):
    couplings = 0.3 * oracle.symmetric(rng, 3, 1.0) + 1.5 * np.eye(3)
    return ebm.NNBM(*(jnp.asarray(x, jnp.float32) for x in (couplings, rng.normal(size=3))))


MODELS = {
    "rbm": oracle.random_rbm,
    "dbm": oracle.random_dbm,
    "boltzmann": oracle.random_boltzmann,
    "semi_restricted": oracle.random_semi,
    "labelled": oracle.random_labelled,
    "gaussian": gaussian,
    "nonnegative": nonnegative,
}
INFERENCES = {
    "rbm": (ebm.Exact(), ebm.Exact(product="max"), ebm.BP(5), ebm.MeanField(5), ebm.MPLP()),
    "dbm": (ebm.Exact(), ebm.BP(5, product="mixed"), ebm.MeanField(5)),
    "boltzmann": (ebm.Exact(), ebm.BP(5, product="max"), ebm.MeanField(5)),
    "semi_restricted": (ebm.Exact(), ebm.BP(5), ebm.MeanField(5)),
    "gaussian": (ebm.Exact(), ebm.BP(5)),
    "nonnegative": (ebm.Exact(), ebm.NaiveMeanField(), ebm.TAP(), ebm.SusP(), ebm.ISusP()),
}
every = pytest.mark.parametrize("kind", MODELS)


def pair(kind):
    """A model, and the same from its layers, weights and biases."""
    model = MODELS[kind](np.random.default_rng(0))
    names = model.names
    same = ebm.LayeredModel(
        dict(zip(names, model.layers, strict=True)),
        {f.groups: f.weights for f in model.factors()},
        dict(zip(names, model.unary(), strict=True)),
    )
    return model, same


def states(model, rows=6):
    """Random states of all units, named as users see them."""
    rng = np.random.default_rng(1)
    draw = {
        "binary": lambda units: rng.integers(0, 2, (rows, units.size)),
        "categorical": lambda units: rng.integers(0, units.states, (rows, units.size)),
        "gaussian": lambda units: rng.normal(size=(rows, units.size)).astype(np.float32),
        "nonnegative": lambda units: rng.exponential(size=(rows, units.size)).astype(np.float32),
    }
    return model.named([draw[units.family](units) for units in model.layers])


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(a), jax.tree.leaves(b))


def close(a, b, atol=1e-5):
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=atol)


@pytest.mark.slow
@every
def test_energies(kind):
    model, same = pair(kind)
    x = states(model)
    assert type(same.named(jax.tree.leaves(x))) is type(x)
    own = (*x[:2], x.label[:, 0]) if kind == "labelled" else x
    np.testing.assert_allclose(same.energy(x), model.energy(*own), rtol=1e-5, atol=1e-5)
    if kind not in ("dbm", "boltzmann", "labelled", "nonnegative"):
        free = same.free_energy(x.visible)
        np.testing.assert_allclose(free, model.free_energy(x.visible), rtol=1e-5, atol=1e-5)
    hot = model.tempered(0.6), same.tempered(0.6)
    np.testing.assert_allclose(
        hot[1].energies(same.encode(x)), hot[0].energies(model.encode(x)), rtol=1e-5, atol=1e-5
    )


@pytest.mark.slow
@every
def test_samples_are_the_same_bit_for_bit(kind):
    model, same = pair(kind)
    # Its sweeps are those of Gibbs sampling.
    sampler = ebm.ParallelTempering([0.5, 1.0])
    options: dict[str, Any] = dict(key=KEY, num_chains=5, burn_in=2)
    one, two = (ebm.sample(m, sampler, 10, **options) for m in (model, same))
    assert type(one) is type(two)
    equal(one, two)


@pytest.mark.slow
@pytest.mark.parametrize("kind", INFERENCES)
def test_inference(kind):
    model, same = pair(kind)
    for inference in INFERENCES[kind]:
        one, two = inference(model), inference(same)
        close(one.means, two.means)
        close(one.pairwise, two.pairwise)
        equal(one.decode(), two.decode()) if model.finite else close(one.decode(), two.decode())
        if kind != "gaussian" or isinstance(inference, ebm.Exact):
            close(one.log_partition, two.log_partition)
        if not model.finite:
            close(one.variance, two.variance)
        if isinstance(inference, ebm.MPLP):
            continue
        one, two = inference.statistics(model), inference.statistics(same)
        close((one.units, one.pairwise, one.squares), (two.units, two.pairwise, two.squares))


@pytest.mark.slow
@every
def test_learning(kind):
    """The gradients of all weights and biases, from the same chains."""
    model, same = pair(kind)
    x = states(model)
    if kind == "gaussian":
        # Its parameters are others: those of the other model in terms of them.
        given = jnp.asarray(x.visible), None
        close(complete(model, given).pairwise, complete(same, given).pairwise)
        return
    batch = (x.visible, x.label[:, 0]) if kind == "labelled" else x[0]
    learner = ebm.SAP(num_chains=7)
    found = []
    for m in (model, same):
        state = learner.init(m, key=KEY)
        gradient, _, _ = learner.step(m, state, batch, key=KEY, epoch=0)
        found.append(gradient)
    own, other = found
    close(own.unary(), other.biases)
    for factor, weights in zip(own.factors(), other.weights, strict=True):
        close(factor.weights, weights)
    if kind == "nonnegative":
        np.testing.assert_allclose(
            other.weights[0], -np.asarray(own.couplings) * (1 - np.eye(3)), atol=1e-5
        )


@pytest.mark.slow
def test_annealing_and_likelihoods():
    for kind in ("rbm", "semi_restricted", "labelled"):
        model, same = pair(kind)
        one, two = (ebm.ais(m, key=KEY, betas=20, num_chains=30) for m in (model, same))
        close(one, two)
        x = states(model)
        batch = (x.visible, x.label[:, 0]) if kind == "labelled" else x.visible
        one, two = (ebm.log_likelihood(m, batch, 1.5) for m in (model, same))
        close(one, two)
    model, same = pair("rbm")
    one, two = (ebm.pseudo_log_likelihood(m, states(model).visible) for m in (model, same))
    close(one, two)


@pytest.mark.slow
def test_log_partition_of_gaussian_units_that_begin_elsewhere():
    """With $E_0 = x^2 / 2 \\sigma^2$ and a bias, no longer the square of a difference."""
    model = gaussian(np.random.default_rng(2))
    names = model.names
    same = ebm.LayeredModel(
        {"visible": ebm.Gaussian(3, model.log_sigma), "hidden": ebm.Binary(4)},
        {names: model.factors()[0].parameters[0]},
        dict(zip(names, model.unary(), strict=True)),
    )
    more = ((model.visible_bias / model.sigma) ** 2).sum() / 2
    want = ebm.Exact()(model.hidden_marginal()).log_partition + model.log_volume + more
    np.testing.assert_allclose(ebm.Exact()(same).log_partition, want, rtol=1e-5)
    close(ebm.Exact()(same).mean, ebm.Exact()(model).mean)
    # So it is given the visible units: minus the free energy.
    v = np.random.default_rng(3).normal(size=(2, 3)).astype(np.float32)
    held = ebm.Exact()(same, v, np.ones((2, 3), bool))
    np.testing.assert_allclose(held.log_partition, -same.free_energy(v), rtol=1e-5)


@pytest.mark.usefixtures("as_a_user")
def test_gaussian_messages_need_weights_between_the_layers():
    layers = {"visible": ebm.Gaussian(2), "hidden": ebm.Binary(3)}
    inside = ebm.LayeredModel(layers, {("hidden", "hidden"): jnp.zeros((3, 3))})
    with pytest.raises(TypeError, match="of a kind that BP takes"):
        ebm.BP(3)(inside)
    with pytest.raises(TypeError, match="one block of weights"):
        ebm.Exact()(inside)


@pytest.mark.parametrize(
    "names",
    [
        ("hidden_1", "visible", "hidden_2"),
        ("visible", "hidden", "hidden_1"),
        ("a b", "hidden"),
        ("_x", "hidden"),
    ],
)
def test_names_that_are_no_order_of_layers(names):
    with pytest.raises(ValueError, match="`layers` must"):
        ebm.LayeredModel({name: ebm.Binary(2) for name in names}, {})


@pytest.mark.slow
def test_messages_of_a_model_without_weights():
    model = ebm.LayeredModel({"visible": ebm.Binary(3)}, {}, {"visible": jnp.asarray([0.0, 1, -1])})
    want = ebm.Exact()(model).log_partition
    np.testing.assert_allclose(ebm.BP(3)(model).log_partition, want, rtol=1e-6)
    found = ebm.BP(3).statistics(model).units
    np.testing.assert_allclose(
        jax.tree.leaves(found)[0], jax.nn.sigmoid(model.unary()[0]), rtol=1e-6
    )


def test_layers_begin_with_a_visible_one():
    w = jnp.ones((2, 2))
    with pytest.raises(ValueError, match="`layers` must begin with a visible layer, got hidden"):
        ebm.LayeredModel(
            {"hidden": ebm.Binary(2), "visible": ebm.Binary(2)}, {("hidden", "visible"): w}
        )


@pytest.mark.slow
def test_two_visible_layers():
    """Both are held where hidden units must be inferred; learners of a margin need one."""
    layers = bits("visible", "label", "hidden_1", "hidden_2")
    ends = (("visible", "hidden_1"), ("label", "hidden_2"), ("hidden_1", "hidden_2"))
    deep, t = built(layers, ends)
    batch = np.array([[1, 0], [1, 1], [0, 1]]), np.array([[0, 1], [1, 1], [0, 0]])
    gradient, _, _ = ebm.MLE(ebm.Exact()).step(deep, None, batch, key=0, epoch=0)
    held = [t.where(visible=v, label=w) for v, w in zip(*batch, strict=True)]
    for (a, b), found in zip(ends, gradient.weights, strict=True):
        means = [x.mean(a, b) for x in (*held, t)]
        np.testing.assert_allclose(found, means[-1] - np.mean(means[:-1], 0), atol=1e-5)
    layers = {name: ebm.Binary(2) for name in ("visible", "label", "hidden")}
    ends = (("visible", "hidden"), ("label", "hidden"))
    flat = ebm.LayeredModel(layers, {end: jnp.ones((2, 2)) for end in ends})
    for learner in (
        ebm.LSSVM(ebm.BP(3, product="max")),
        ebm.MSSVM(ebm.BP(3, product="mixed")),
        ebm.PercLoss(),
    ):
        with pytest.raises(TypeError, match="`model` must have one visible layer for"):
            learner.step(flat, None, batch, key=0, epoch=0)


@pytest.mark.usefixtures("as_a_user")
def test_parameters_of_units_are_floats():
    for make in (ebm.Gaussian, ebm.Nonnegative):
        with pytest.raises(TypeError, match="must have dtype float32 or float64"):
            make(2, jnp.asarray([1, 2]))


def test_energies_of_states_that_do_not_exist():
    model = ebm.EnergyModel(lambda x: -x.sum(), ebm.Categorical(2, 3))
    with pytest.raises(ValueError, match="`states`"):
        model.energy(jnp.asarray([[0, 7], [1, 2]]))


class Listed(NamedTuple):
    """All configurations of a model by layer, as they are inside, and their log-potentials."""

    x: dict[str, np.ndarray]
    scores: np.ndarray

    @property
    def log_z(self):
        return np.logaddexp.reduce(self.scores)

    def where(self, **given):
        """Those whose layers have these internal states."""
        kept = [(self.x[name] == state).all(1) for name, state in given.items()]
        rows = np.all([np.ones(len(self.scores), bool), *kept], axis=0)
        return Listed({name: x[rows] for name, x in self.x.items()}, self.scores[rows])

    def mean(self, *names):
        """The mean of a layer, or of the products of the units of two."""
        p = np.exp(self.scores - self.log_z)
        parts = [self.x[name] for name in names]
        return np.einsum("s,si,sj->ij" if len(parts) == 2 else "s,si->i", p, *parts)


def built(layers, ends, seed=0, scale=1.0):
    """A random model with blocks between these layers, and its configurations with
    $-E(x) = \\sum_k b_k x_k + \\sum_{kl} x_k^\\top W_{kl} x_l$ by enumeration.
    """
    rng = np.random.default_rng(seed)
    blocks, biases = {}, {name: rng.normal(size=u.width) for name, u in layers.items()}
    for a, b in ends:
        w = scale * rng.normal(size=(layers[a].width, layers[b].width))
        blocks[a, b] = np.triu(w, 1) + np.triu(w, 1).T if a == b else w
    choices = []
    for units in layers.values():
        states = [np.eye(2)[:, 1:]] if isinstance(units, ebm.Binary) else [np.eye(units.states)]
        choices += states * units.size
    rows = np.array([np.concatenate(x) for x in itertools.product(*choices)])
    cuts = np.cumsum([u.width for u in layers.values()])[:-1]
    x = dict(zip(layers, np.split(rows, cuts, axis=1), strict=True))
    scores = sum((x[name] @ bias for name, bias in biases.items()), np.zeros(len(rows)))
    for (a, b), w in blocks.items():
        scores = scores + np.einsum("si,ij,sj->s", x[a], w, x[b]) / (2 if a == b else 1)
    floats = [
        {k: jnp.asarray(a, jnp.float32) for k, a in arrays.items()} for arrays in (blocks, biases)
    ]
    return ebm.LayeredModel(layers, *floats), Listed(x, scores)


def bits(*names, **sizes):
    """Layers of two binary units each, or of so many."""
    return {name: ebm.Binary(sizes.get(name, 2)) for name in names}


@pytest.mark.slow
def test_likelihoods_sum_out_the_hidden_layers_in_any_order():
    layers = {"visible": ebm.Binary(3), "label": ebm.Categorical(1, 3), "hidden": ebm.Binary(2)}
    for ends in ((("hidden", "visible"), ("label", "hidden")), (("visible", "label"),)):
        model, t = built(layers, ends)
        v, y = np.array([[0, 1, 1], [1, 0, 0]]), np.array([2, 0])
        scores = [[t.where(visible=x, label=np.eye(3)[k]).log_z for k in range(3)] for x in v]
        want = np.array(scores) - t.log_z
        found = ebm.log_likelihood(model, (v, y), t.log_z)
        np.testing.assert_allclose(found, want[[0, 1], y], atol=1e-5)
        found = ebm.log_likelihood(model, v, t.log_z)
        np.testing.assert_allclose(found, np.logaddexp.reduce(want, 1), atol=1e-5)
        np.testing.assert_allclose(ebm.classify(model, v), jax.nn.softmax(want), atol=1e-5)
        site = EnergyDistribution(model, t.log_z)
        found = site.log_prob(np.concatenate([v, y[:, None]], 1))
        np.testing.assert_allclose(found, want[[0, 1], y], atol=1e-5)


@pytest.mark.slow
def test_maximum_likelihood_of_two_visible_layers():
    # A star, on which messages are exact.
    model, t = built(
        bits("visible", "label", "hidden", label=1, hidden=1),
        (("visible", "hidden"), ("hidden", "label")),
    )
    batch = np.array([[0, 1], [1, 1], [1, 0]]), np.array([[1], [0], [1]])
    rows = [t.where(visible=v, label=y) for v, y in zip(*batch, strict=True)]
    gradient, _, info = ebm.MLE(ebm.BP(20), loss=True).step(model, None, batch, key=0, epoch=0)
    np.testing.assert_allclose(info.loss, np.mean([t.log_z - row.log_z for row in rows]), atol=1e-5)
    for pair, found in zip(
        (("visible", "hidden"), ("hidden", "label")), gradient.weights, strict=True
    ):
        want = t.mean(*pair) - np.mean([row.mean(*pair) for row in rows], axis=0)
        np.testing.assert_allclose(found, want, atol=1e-5)


TREES = {
    # Blocks from higher to lower layers, and one that passes over two layers.
    "turned": (
        bits("visible", "hidden_1", "hidden_2", "other", visible=3, hidden_1=1, other=1),
        (("hidden_1", "visible"), ("hidden_2", "hidden_1"), ("other", "hidden_1")),
    ),
    # Layer 2 is joined to 0 and 1, and layer 3 to nothing.
    "label first": (
        bits("visible", "label", "hidden", "other", hidden=1),
        (("visible", "hidden"), ("hidden", "label")),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TREES)
def test_messages_are_exact_on_trees_of_layers(name):
    layers, ends = TREES[name]
    model, t = built(layers, ends)
    for schedule in ("layers", "flooding"):
        bp = ebm.BP(12, schedule=schedule)
        beliefs, statistics = bp(model), bp.statistics(model)
        np.testing.assert_allclose(beliefs.log_partition, t.log_z, rtol=1e-5)
        for means in (beliefs.means, statistics.units):
            for found, layer in zip(jax.tree.leaves(means), layers, strict=True):
                np.testing.assert_allclose(found, t.mean(layer), atol=1e-5)
        for pairs in (beliefs.pairwise, statistics.pairwise):
            for found, pair in zip(pairs, ends, strict=True):
                np.testing.assert_allclose(found, t.mean(*pair), atol=1e-5)
    found = ebm.BP(12, product="max")(model).decode()
    equal(found, [x[t.scores.argmax()] for x in t.x.values()])


MIXED = {
    "turned": (bits("visible", "hidden"), (("hidden", "visible"),)),
    "label": (bits("visible", "label", "hidden"), (("label", "hidden"), ("hidden", "visible"))),
    "all visible": (bits("visible", "label"), (("label", "visible"),)),
    "joined visible": (
        bits("visible", "label", "other", "hidden"),
        (("visible", "hidden"), ("label", "visible")),
    ),
    "deep": (
        bits("visible", "hidden_1", "hidden_2", "label"),
        (("visible", "hidden_1"), ("hidden_2", "hidden_1"), ("hidden_2", "label")),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("options", [{}, {"damping": 0.1}])
def test_mixed_product_maximises_over_all_visible_layers(name, options):
    layers, ends = MIXED[name]
    model, t = built(layers, ends, seed=1, scale=0.3)
    seen = [layer for layer in layers if not layer.startswith("hidden")]
    rows = np.unique(np.concatenate([t.x[layer] for layer in seen], 1), axis=0)
    rows = [dict(zip(seen, np.split(row, len(seen)), strict=True)) for row in rows]
    best = max((t.where(**row) for row in rows), key=lambda found: found.log_z)
    bp = ebm.BP(40, product="mixed", **options)
    beliefs, statistics = bp(model), bp.statistics(model)
    for k, layer in enumerate(layers):
        want = best.mean(layer)
        if layer in seen:
            equal(jax.tree.leaves(beliefs.decode())[k], np.round(want))
        else:
            np.testing.assert_allclose(jax.tree.leaves(beliefs.means)[k], want, atol=1e-2)
        np.testing.assert_allclose(jax.tree.leaves(statistics.units)[k], want, atol=1e-2)
    for found, other, pair in zip(beliefs.pairwise, statistics.pairwise, ends, strict=True):
        np.testing.assert_allclose(found, best.mean(*pair), atol=1e-2)
        np.testing.assert_allclose(other, best.mean(*pair), atol=1e-2)
    np.testing.assert_allclose(beliefs.log_partition, best.log_z, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("ends", [("visible", "hidden"), ("hidden", "visible"), None])
def test_gaussian_units_with_a_block_in_either_direction(ends):
    rng = np.random.default_rng(0)
    w, b, c = (rng.normal(size=shape) for shape in ((1, 3), 1, 3))
    w = w if ends else 0 * w
    layers = {"visible": ebm.Gaussian(1), "hidden": ebm.Binary(3)}
    turned = w.T if ends and ends[0] == "hidden" else w
    model = ebm.LayeredModel(
        layers,
        {ends: jnp.asarray(turned, jnp.float32)} if ends else {},
        {"visible": jnp.asarray(b, jnp.float32), "hidden": jnp.asarray(c, jnp.float32)},
    )
    # Given the hidden units, the visible one is Gaussian. A star, on which messages are exact.
    h = np.array(list(itertools.product((0, 1), repeat=3)))
    means = b + h @ w.T
    scores = h @ c + (means**2).sum(1) / 2
    p = np.exp(scores - np.logaddexp.reduce(scores))
    both = np.einsum("s,si,sj->ij", p, means, h)
    for inference in (ebm.BP(30), ebm.Exact()):
        beliefs, statistics = inference(model), inference.statistics(model)
        np.testing.assert_allclose(beliefs.mean, p @ means, atol=1e-5)
        np.testing.assert_allclose(beliefs.hidden, p @ h, atol=1e-5)
        for pairs in (beliefs.pairwise, statistics.pairwise):
            assert len(pairs) == len(model.weights)
            for found in pairs:
                np.testing.assert_allclose(found, both if turned is w else both.T, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("names", [("reals", "bits"), ("bits", "reals")])
def test_gaussian_and_binary_groups_are_served_in_either_order(names):
    rng = np.random.default_rng(1)
    w, b, c = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 1), 2, 1))
    units = {"reals": ebm.Gaussian(2), "bits": ebm.Binary(1)}
    model = ebm.LayeredModel(
        {name: units[name] for name in names}, {("reals", "bits"): w}, {"reals": b, "bits": c}
    )
    # The reals are Gaussian given the bit, whose log-odds follow from their volumes.
    sums = (b**2).sum() / 2, ((b + w[:, 0]) ** 2).sum() / 2 + c[0]
    p = 1 / (1 + np.exp(sums[0] - sums[1]))
    log_z = np.logaddexp(*sums) + np.log(2 * np.pi)
    x, h = np.array([[0.5, -1.0], [2.0, 0.0]], np.float32), np.array([[1], [0]], np.int32)
    rows = {"reals": x, "bits": h}
    for inference in (ebm.BP(30), ebm.Exact()):
        beliefs = inference(model)
        np.testing.assert_allclose(beliefs["bits"], [p], atol=1e-5)
        np.testing.assert_allclose(beliefs["reals"], b + p * w[:, 0], atol=1e-5)
        np.testing.assert_allclose(beliefs.mean, b + p * w[:, 0], atol=1e-5)
        np.testing.assert_allclose(beliefs.variance, 1 + p * (1 - p) * w[:, 0] ** 2, atol=1e-5)
        decoded = beliefs.decode()
        np.testing.assert_array_equal(decoded.bits, [p > 0.5])
        answer, first = beliefs.marginals, rows[names[0]]
        own = answer.mean if names[0] == "reals" else answer
        np.testing.assert_allclose(own, beliefs[names[0]])
        # The states of the first group are known.
        told = inference(model, first.astype(np.float32), np.ones(first.shape, bool))
        if names[0] == "bits":
            np.testing.assert_allclose(told["reals"], b + h * w[:, 0], atol=1e-5)
        else:
            np.testing.assert_allclose(told["bits"], 1 / (1 + np.exp(-(x @ w + c))), atol=1e-5)
        found, _, _ = ebm.MLE(inference).step(
            model, None, tuple(rows[name] for name in names), key=KEY, epoch=0
        )
        by_name = dict(zip(names, found.biases, strict=True))
        np.testing.assert_allclose(by_name["bits"], [p - h.mean()], atol=1e-5)
        np.testing.assert_allclose(by_name["reals"], b + p * w[:, 0] - x.mean(0), atol=1e-5)
        pairs = p * (b + w[:, 0])[:, None] - (x.T @ h) / 2
        np.testing.assert_allclose(found.weights[0], pairs, atol=1e-5)
    np.testing.assert_allclose(ebm.Exact()(model).log_partition, log_z, atol=1e-4)
    assert ebm.QueryModel(model).scale == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("names", [("bits", "label"), ("label", "bits")])
def test_log_partition_of_groups_in_either_order(names):
    units = {"label": ebm.Categorical(1, 3), "bits": ebm.Binary(2)}
    layers = {name: units[name] for name in names}
    model = ebm.LayeredModel.init(layers, [("label", "bits")], key=1, scale=1.0)
    found = ebm.log_partition(model, key=0, within=0.3, beside=True)
    exact = float(ebm.Exact()(model).log_partition)
    np.testing.assert_allclose(found.log_partition, exact, atol=0.9)
    np.testing.assert_allclose(found.estimates["bethe"].log_partition, exact, atol=0.1)


@pytest.mark.slow
def test_blocks_in_both_directions_are_one():
    layers = bits("visible", "hidden", visible=3, hidden=1)
    model, t = built(layers, (("hidden", "visible"), ("visible", "hidden")))
    (factor,) = model.factors()
    assert factor.groups == ("hidden", "visible") and factor.parameters[0].shape == (1, 3)
    np.testing.assert_allclose(ebm.BP(5)(model).log_partition, t.log_z, rtol=1e-5)
    rows = t.x["visible"][::2]
    found = model.energy(model.named([x.astype(int) for x in t.x.values()]))
    np.testing.assert_allclose(found, -t.scores, atol=1e-5)
    free = [t.where(visible=v).log_z for v in rows]
    np.testing.assert_allclose(model.free_energy(rows), np.negative(free), atol=1e-5)
    want = []
    for v in rows:
        flips = np.abs(v - np.eye(3))
        other = [t.where(visible=x).log_z for x in flips]
        here = t.where(visible=v).log_z
        want.append(np.sum(here - np.logaddexp(here, other)))
    np.testing.assert_allclose(ebm.pseudo_log_likelihood(model, rows), want, atol=1e-5)
    scopes = [sorted(scope) for scope in to_tables(model).scopes if len(scope) == 2]
    assert sorted(scopes) == [[0, 3], [1, 3], [2, 3]]
    with pytest.raises(ValueError, match=r"`blocks\[\('hidden', 'visible'\)\]` must have"):
        w = jnp.ones((3, 1))
        ebm.LayeredModel(layers, {("visible", "hidden"): w, ("hidden", "visible"): w})
