"""Samplers of any energy of binary and categorical units: whole transition matrices first, then
what chains do in bulk, and all that is made of chains.
"""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from transitions import draws_of, drift, layered, probabilities, SMALL, transition_matrix

import ebmlearn as ebm


KEY = jax.random.key(0)
pytestmark = pytest.mark.filterwarnings("error")


class Cubic(eqx.Module):
    """An energy with products of three units."""

    bias: jax.Array
    triple: jax.Array

    def __call__(self, x):
        return -self.bias @ x - self.triple * jnp.prod(x) + 0.3 * x[0] * x[1]


def cubic(dtype="float64"):
    return ebm.EnergyModel(
        Cubic(jnp.asarray([0.5, -0.7, 0.2], dtype), jnp.asarray(1.4, dtype)), ebm.Binary(3)
    )


def cubic_scores(x):
    """The same in NumPy."""
    return x @ np.array([0.5, -0.7, 0.2]) + 1.4 * x.prod(-1) - 0.3 * x[:, 0] * x[:, 1]


class Table(eqx.Module):
    """An energy that is a number for each state of two kinds of units."""

    table: jax.Array

    def __call__(self, states):
        a, b, y = *states["visible"], states["label"][0]
        return -jnp.einsum(
            "i,j,k,ijk->", jnp.stack([1 - a, a]), jnp.stack([1 - b, b]), y, self.table
        )


TABLE = np.random.default_rng(5).normal(size=(2, 2, 3))


def table():
    units = {"visible": ebm.Binary(2), "label": ebm.Categorical(1, 3)}
    return ebm.EnergyModel(Table(jnp.asarray(TABLE)), units)


ENERGIES = {
    "cubic": (cubic, cubic_scores(np.array([*itertools.product((0, 1), repeat=3)]))),
    "table": (table, TABLE.reshape(-1)),
}


def distribution(name, beta=1.0):
    scores = beta * ENERGIES[name][1]
    return np.exp(scores - np.logaddexp.reduce(scores))


def energy(name, beta=1.0):
    """A model, and its distribution by another formula."""
    return ENERGIES[name][0](), distribution(name, beta)


def any_model(name, beta=1.0):
    if name in ENERGIES:
        return energy(name, beta)
    model = SMALL[name](np.random.default_rng(1))
    return model, probabilities(model, beta)


def counts(model):
    return [layer.number for layer in model.layers for _ in range(layer.size)]


def balanced(matrix, p):
    flow = p[:, None] * matrix
    np.testing.assert_allclose(flow, flow.T, atol=1e-12, err_msg="detailed balance")


def reaches_all(matrix):
    assert (np.linalg.matrix_power(matrix, len(matrix)) > 0).all()


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("metropolised", [False, True])
@pytest.mark.parametrize(("name", "beta"), [("cubic", 1.0), ("cubic", 0.4), ("table", 1.0)])
def test_gibbs_by_differences_leaves_the_distribution_as_it_is(
    monkeypatch, name, beta, metropolised
):
    model, p = energy(name, beta)
    most = max(counts(model))
    # Each unit chooses among as many states as the largest has, and accepts.
    draws = [most, 2] if metropolised else [most]
    sampler = ebm.Gibbs(beta, metropolised=metropolised)
    matrix = transition_matrix(monkeypatch, model, sampler, draws * len(counts(model)))
    assert drift(matrix, p) < 1e-12
    reaches_all(matrix)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", ["boltzmann", "semi_restricted", "joined_categorical"])
def test_metropolised_gibbs_of_layers(monkeypatch, name):
    """Units that take turns leave their states more often than by plain Gibbs."""
    model = SMALL[name](np.random.default_rng(0))
    draws = draws_of(model)
    if name == "joined_categorical":
        # The hidden unit is drawn at once, each of the visible ones chosen and accepted.
        draws = [2, 2, 2, 2, 2]
    matrix = transition_matrix(monkeypatch, model, ebm.Gibbs(metropolised=True), draws)
    assert drift(matrix, probabilities(model)) < 1e-12
    reaches_all(matrix)
    plain = transition_matrix(monkeypatch, model, ebm.Gibbs(), draws_of(model))
    p = probabilities(model)
    assert p @ np.diag(matrix) < p @ np.diag(plain)


@pytest.mark.usefixtures("in_float64")
def test_layers_drawn_at_once_are_not_metropolised():
    model = SMALL["rbm"](np.random.default_rng(0))
    state = ebm.Gibbs().init(model, 50, key=KEY)
    one, _ = ebm.Gibbs().step(model, state, key=KEY)
    two, _ = ebm.Gibbs(metropolised=True).step(model, state, key=KEY)
    np.testing.assert_array_equal(one.units.visible, two.units.visible)


MODELS = ["boltzmann", "labelled", "joined_categorical", "mixed"]
MODELS += list(ENERGIES)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", ["categorical", "mixed", *ENERGIES])
def test_gibbs_with_gradients_is_balanced(monkeypatch, name):
    model, p = any_model(name, 0.8)
    moves = sum(c - 1 for c in counts(model))
    sampler = ebm.GibbsWithGradients(beta=0.8)
    matrix = transition_matrix(monkeypatch, model, sampler, [moves, 2])
    balanced(matrix, p)
    reaches_all(matrix)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", MODELS)
def test_dmala_is_balanced(monkeypatch, name):
    beta = 0.6 if name == "mixed" else 1.0
    model, p = any_model(name, beta)
    sampler = ebm.DMALA(0.4, beta=beta)
    matrix = transition_matrix(monkeypatch, model, sampler, [*counts(model), 2])
    balanced(matrix, p)
    assert (matrix > 0).all()


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(
    ("name", "radius"), [*((name, 2) for name in MODELS), ("cubic", 1), ("boltzmann", 1)]
)
def test_pas_is_balanced(monkeypatch, name, radius):
    beta = 0.6 if name == "mixed" else 1.0
    model, p = any_model(name, beta)
    most = min(2 * radius - 1, len(counts(model)))
    moves = sum(c - 1 for c in counts(model))
    # The length, the units of the path, the states of those that have several others.
    units = len(counts(model))
    draws = [most, *[units] * most, *(c - 1 for c in counts(model) if c > 2), 2]
    matrix = transition_matrix(monkeypatch, model, ebm.PAS(radius, beta=beta), draws)
    balanced(matrix, p)
    reaches_all(matrix)
    if radius == 1:
        plain = transition_matrix(monkeypatch, model, ebm.GibbsWithGradients(), [moves, 2])
        np.testing.assert_allclose(matrix, plain, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
def test_tempering_of_any_energy(monkeypatch):
    model, p = energy("cubic")
    sampler = ebm.TemperedTransitions([0.5, 1.0])
    balanced(transition_matrix(monkeypatch, model, sampler, [2] * 7), p)
    hot = distribution("cubic", 0.3)
    sampler = ebm.ParallelTempering([0.3, 1.0])
    matrix = transition_matrix(monkeypatch, model, sampler, [2] * 7, replicas=2)
    assert drift(matrix, np.outer(hot, p).ravel()) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    [ebm.Gibbs(metropolised=True), ebm.ParallelTempering([0.5, 1.0]), ebm.PAS(2)],
)
def test_samples_of_any_energy(sampler):
    """Compiled, in bulk: all configurations are as frequent as they should be."""
    number = 20_000
    options = {"key": KEY, "num_chains": number, "burn_in": 30}
    x = np.asarray(ebm.sample(cubic("float32"), sampler, number, **options).x)
    states = np.array([*itertools.product((0, 1), repeat=3)])
    p = distribution("cubic")
    found = (x[:, None] == states).all(-1).sum(0)
    assert ((found - number * p) ** 2 / (number * p)).sum() < 30  # 7 degrees of freedom


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    [ebm.Gibbs(), ebm.GibbsWithGradients(5), ebm.DMALA(0.5), ebm.PAS(2)],
)
def test_clamped_units_of_any_energy_stay(sampler):
    number = 20_000
    options = {"key": KEY, "num_chains": number, "burn_in": 30}
    start, mask = (
        ebm.models.Units(jnp.asarray([1, 0, 1])),
        ebm.models.Units(jnp.asarray([True, False, True])),
    )
    options |= {"start": start, "clamped": mask}
    x = np.asarray(ebm.sample(cubic("float32"), sampler, number, **options).x)
    assert (x[:, [0, 2]] == 1).all()
    odds = np.exp(np.diff(cubic_scores(np.array([[1, 0, 1], [1, 1, 1]])))[0])
    assert abs(x[:, 1].mean() - odds / (1 + odds)) < 5 * 0.5 / np.sqrt(number)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [ebm.DMALA(0.3), ebm.PAS(3), ebm.GibbsWithGradients(8)])
def test_categorical_samples(sampler):
    layers = {"visible": ebm.Categorical(2, 2), "hidden": ebm.Categorical(1, 3)}
    model = layered(np.random.default_rng(3), layers, inside=["visible"], dtype="float32")
    number = 8_000
    drawn = ebm.sample(model, sampler, number, key=KEY, num_chains=number, burn_in=40)
    p = probabilities(model)
    x = np.concatenate([np.asarray(a) for a in drawn], -1)
    found = np.bincount(np.ravel_multi_index(x.T, counts(model)), minlength=len(p))
    assert ((found - number * p) ** 2 / (number * p)).sum() < 30


@pytest.mark.slow
def test_annealing_of_any_energy():
    found = ebm.ais(cubic("float32"), key=KEY, betas=200, num_chains=200)
    want = np.logaddexp.reduce(ENERGIES["cubic"][1])
    assert abs(float(found.log_partition) - want) < 0.05
    drawn = ebm.sample(cubic("float32"), ebm.Gibbs(), 200, key=KEY, num_chains=200, burn_in=20)
    back = ebm.reverse_ais(cubic("float32"), drawn, key=KEY, betas=200)
    assert abs(float(back.log_partition) - want) < 0.05
    base = jnp.asarray([1.0, -1.0, 0.5])
    found = ebm.ais(cubic("float32"), key=KEY, betas=200, num_chains=200, base=base)
    assert abs(float(found.log_partition) - want) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("learner", [ebm.SAP(ebm.DMALA(0.4), num_chains=500), ebm.CD(3)])
def test_any_energy_is_learned(learner):
    """Statistics of the data come back, whose gradient is zero at the truth alone."""
    rng = np.random.default_rng(0)
    states = np.array([*itertools.product((0, 1), repeat=3)])
    data = states[rng.choice(8, 4000, p=distribution("cubic"))]
    start = ebm.EnergyModel(Cubic(jnp.zeros(3), jnp.zeros(())), ebm.Binary(3))
    fitted = ebm.fit(
        start, learner, data, optimizer=optax.adam(0.05), epochs=6, batch_size=200, key=0,
        progress=False,
    )  # fmt: skip
    scores = -np.asarray(fitted.last.energy(states))
    p = np.exp(scores - np.logaddexp.reduce(scores))
    assert np.abs(p - distribution("cubic")).max() < 0.04
    assert isinstance(fitted.last.function, Cubic)


@pytest.mark.slow
def test_a_network_is_an_energy():
    """Its functions are no parameters; what is compiled serves other numbers."""
    network = eqx.nn.MLP(4, "scalar", 8, 1, key=KEY)
    model = ebm.EnergyModel(network, ebm.Binary(4))
    states = np.array([*itertools.product((0, 1), repeat=4)])
    want = [network(x.astype(np.float32)) for x in states]
    np.testing.assert_allclose(model.energy(states), want, rtol=1e-5)
    assert all(eqx.is_array(x) for x in jax.tree.leaves(model))
    drawn = ebm.sample(model, ebm.PAS(2), 4000, key=KEY, num_chains=4000, burn_in=20)
    p = jax.nn.softmax(-model.energy(states))
    error = np.abs(np.asarray(drawn.x).mean(0) - np.asarray(p) @ states)
    assert error.max() < 5 * 0.5 / np.sqrt(4000)


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user")
def test_numpyro_takes_any_energy():
    numpyro = pytest.importorskip("numpyro")
    from ebmlearn.numpyro import EnergyDistribution, GibbsKernel

    model, p = cubic("float32"), distribution("cubic")
    mcmc = numpyro.infer.MCMC(GibbsKernel(), num_warmup=50, num_samples=6000, progress_bar=False)
    mcmc.run(KEY, model)
    states = np.array([*itertools.product((0, 1), repeat=3)])
    found = np.asarray(mcmc.get_samples()["x"]).mean(0)
    assert np.abs(found - p @ states).max() < 0.06
    log_z = np.logaddexp.reduce(ENERGIES["cubic"][1])
    log_p = EnergyDistribution(model, float(log_z)).log_prob(jnp.asarray(states))
    np.testing.assert_allclose(np.exp(log_p), p, rtol=1e-4)


def wrong(x: Any) -> Any:
    """What no type checker would let pass."""
    return x


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (
            lambda: ebm.EnergyModel(wrong(3.0), ebm.Binary(2)),
            TypeError,
            "`energy` must be a function",
        ),
        (lambda: ebm.EnergyModel(jnp.sum, ebm.Gaussian(2)), TypeError, "binary or categorical"),
        (lambda: ebm.EnergyModel(jnp.sum, wrong({"a": 3})), TypeError, "for 'a'"),
        (lambda: ebm.EnergyModel(lambda x: x, ebm.Binary(2)), ValueError, "one floating-point"),
        (lambda: ebm.BP(3)(cubic("float32")), TypeError, "use a sampler"),
        (lambda: ebm.DMALA(0.0), ValueError, "`step_size`"),
        (lambda: ebm.PAS(0), ValueError, "`radius`"),
        (lambda: ebm.Gibbs(metropolised=wrong(1)), TypeError, "`metropolised` must be a boolean"),
        (
            lambda: ebm.sample(ebm.GaussianRBM.init(2, 2, key=KEY), ebm.PAS(), 2, key=0),
            TypeError,
            "binary or categorical units for PAS",
        ),
    ],
)
@pytest.mark.usefixtures("as_a_user")
def test_errors(make, kind, words):
    with pytest.raises(kind, match=words):
        make()
