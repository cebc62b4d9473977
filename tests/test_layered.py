"""A `LayeredModel` with the parameters of another model is that model."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import ebmlearn as ebm


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
    "rbm": (ebm.Exact(), ebm.Exact("max"), ebm.BP(5), ebm.MeanField(5), ebm.MPLP()),
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
        {(names[b.first], names[b.second]): b.weights for b in model.blocks()},
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
    return model.units([draw[units.family](units) for units in model.layers])


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(a), jax.tree.leaves(b))


def close(a, b, atol=1e-5):
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=atol)


@every
def test_energies(kind):
    model, same = pair(kind)
    x = states(model)
    assert type(same.units(jax.tree.leaves(x))) is type(x)
    own = (*x[:2], x.label[:, 0]) if kind == "labelled" else x
    np.testing.assert_allclose(same.energy(x), model.energy(*own), rtol=1e-5, atol=1e-5)
    if kind not in ("dbm", "boltzmann", "labelled", "nonnegative"):
        free = same.free_energy(x.visible)
        np.testing.assert_allclose(free, model.free_energy(x.visible), rtol=1e-5, atol=1e-5)
    hot = model.tempered(0.6), same.tempered(0.6)
    np.testing.assert_allclose(
        hot[1].energies(same.encode(x)), hot[0].energies(model.encode(x)), rtol=1e-5, atol=1e-5
    )


@every
def test_samples_are_the_same_bit_for_bit(kind):
    model, same = pair(kind)
    # Its sweeps are those of Gibbs sampling.
    sampler = ebm.ParallelTempering([0.5, 1.0])
    options: dict[str, Any] = dict(key=KEY, num_chains=5, burn_in=2)
    one, two = (ebm.sample(m, sampler, 10, **options) for m in (model, same))
    assert type(one) is type(two)
    equal(one, two)


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


@every
def test_learning(kind):
    """The gradients of all weights and biases, from the same chains."""
    model, same = pair(kind)
    x = states(model)
    if kind == "gaussian":
        # Its parameters are others: those of the other model in terms of them.
        given: dict[str, Any] = dict(seen=(jnp.asarray(x.visible),))
        close(model.complete(**given).pairwise, same.complete(**given).pairwise)
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
    for block, weights in zip(own.blocks(), other.weights, strict=True):
        close(block.weights, weights)
    if kind == "nonnegative":
        np.testing.assert_allclose(
            other.weights[0], -np.asarray(own.couplings) * (1 - np.eye(3)), atol=1e-5
        )


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


def test_log_partition_of_gaussian_units_that_begin_elsewhere():
    """With $E_0 = x^2 / 2 \\sigma^2$ and a bias, no longer the square of a difference."""
    model = gaussian(np.random.default_rng(2))
    names = model.names
    same = ebm.LayeredModel(
        {"visible": ebm.Gaussian(3, model.log_sigma), "hidden": ebm.Binary(4)},
        {names: model.blocks()[0].weights},
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
    for inference in (ebm.BP(3), ebm.Exact()):
        with pytest.raises(TypeError, match="one block of weights"):
            inference(inside)


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


def test_two_visible_layers():
    """Where hidden units must be inferred, only the first layer would be held."""
    layers = {name: ebm.Binary(2) for name in ("visible", "label", "hidden_1", "hidden_2")}
    ends = (("visible", "hidden_1"), ("label", "hidden_2"), ("hidden_1", "hidden_2"))
    deep = ebm.LayeredModel(layers, {end: jnp.ones((2, 2)) for end in ends})
    batch = np.ones((3, 2), int), np.zeros((3, 2), int)
    with pytest.raises(ValueError, match=r"`model` must have one visible layer .* visible, label"):
        ebm.MLE(ebm.Exact()).step(deep, None, batch, key=0, epoch=0)
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
