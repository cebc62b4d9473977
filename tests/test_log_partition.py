# Wrong types are passed on purpose, to see the errors.
# pyright: reportArgumentType=false

"""Log Z with error bars, against enumeration."""

import math
from typing import Any

import errors
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from scipy.optimize import brentq
from scipy.special import expit
from transitions import configurations, layered, scores

import ebmlearn as ebm
from ebmlearn._watch import Watch
from ebmlearn.estimate import _log_partition, Estimate
from ebmlearn.estimate._bennett import bennett, mbar, standard_error
from ebmlearn.estimate._path import independent, Path, temper
from ebmlearn.models import marginal_energies
from ebmlearn.samplers._sweep import sweep


UNTIMED = Watch("log_partition", None, progress=False)


def conditioned(rng):
    crbm = ebm.CRBM(*(rng.normal(size=s).astype("f") for s in ((5, 4), (5, 3), (4, 3), (5,), (4,))))
    return crbm.condition(np.asarray([1.0, -0.5, 0.3], "f"))


def cycle(rng):
    """Four variables of three states."""
    scopes = [(0, 1), (1, 2), (2, 3), (0, 3)]
    return ebm.TableModel([3] * 4, scopes, [rng.normal(size=(3, 3)).astype("f") for _ in scopes])


def squares(rng):
    """An energy without parameters."""
    return ebm.EnergyModel(lambda x: (x.sum() - 2.0) ** 2, ebm.Binary(5))


MODELS = {
    "rbm": lambda rng: oracle.random_rbm(rng, 6, 5, scale=1.5),
    "dbm": lambda rng: oracle.random_dbm(rng, (3, 4, 3)),
    "boltzmann": lambda rng: oracle.random_boltzmann(rng, 7),
    "categorical": lambda rng: layered(
        rng,
        {"visible": ebm.Categorical(3, 3), "hidden": ebm.Binary(3)},
        inside=["visible"],
        dtype="float32",
    ),
    "crbm": conditioned,
    "labelled": oracle.random_labelled,
    "graph": cycle,
    "energy": squares,
}


def exact(model):
    if isinstance(model, ebm.TableModel):
        return float(ebm.Exact()(model).log_partition)
    if isinstance(model, ebm.EnergyModel):
        return float(np.logaddexp.reduce(-model.energy(configurations(model))))
    return float(np.logaddexp.reduce(scores(model, configurations(model))))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_log_partition_agrees_with_enumeration(name):
    model = MODELS[name](np.random.default_rng(1))
    found = ebm.log_partition(model, key=1, within=0.05, beside=name in ("rbm", "graph"))
    assert found.stopped == "within"
    assert not found.disagree
    low, high = found.interval
    assert high - low <= 0.1
    truth = exact(model)
    for estimate in ("bennett", "mbar", "ais", "reverse_ais", "earlier"):
        part = found.estimates[estimate]
        assert abs(part.log_partition - truth) < 4.5 * part.standard_error
    assert found.log_partition == found.quoted == found.estimates["bennett"].log_partition
    if name == "rbm":
        beliefs = ebm.BP(200, damping=0.5, tol=1e-4)(model)
        np.testing.assert_allclose(
            found.estimates["bethe"].log_partition, beliefs.log_partition, rtol=1e-6
        )
        bound = found.estimates["pmp_bound"]
        assert bound.log_partition > truth - 4 * bound.standard_error


@pytest.mark.slow
@pytest.mark.usefixtures("slow_clock")
def test_log_partition_returns_what_it_has_when_the_time_is_over():
    model = cycle(np.random.default_rng(1))
    options: Any = dict(key=1, within=1e-3, max_steps=1024, beside=False)
    whole, timely = (ebm.log_partition(model, **options, seconds=s) for s in (None, 1e6))
    assert jax.tree.all(jax.tree.map(lambda a, b: a == b, whole, timely))
    cut = ebm.log_partition(model, **options, seconds=10)
    assert (whole.stopped, cut.stopped) == ("budget", "seconds")
    assert 256 <= cut.steps < whole.steps == 1024
    low, high = cut.interval
    assert high - low > whole.interval[1] - whole.interval[0]
    assert low < exact(model) < high
    hurried = ebm.log_partition(model, **{**options, "beside": True}, seconds=0.1)
    assert hurried.steps == 256 and "bethe" not in hurried.estimates


@pytest.mark.slow
def test_a_path_through_a_trajectory_ends_at_the_model():
    rng = np.random.default_rng(2)
    models = [oracle.random_rbm(rng, 6, 5, scale=x) for x in (0.3, 1.0, 1.5)]
    for capacity in (3, 5):
        trajectory = ebm.Trajectory(models, capacity)
        found = ebm.log_partition(models[-1], key=3, trajectory=trajectory, beside=False)
        error = found.estimates["bennett"].standard_error
        assert abs(found.log_partition - exact(models[-1])) < 4.5 * error


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rbm", "dbm", "boltzmann", "categorical", "crbm", "labelled"])
def test_energies_and_sweeps_on_a_straight_path_are_those_of_the_models_on_it(name):
    rng = np.random.default_rng(11)
    model = MODELS[name](rng)
    base = tuple(jnp.asarray(rng.normal(size=x.shape), x.dtype) for x in model.unary())
    path = Path(model, base)
    key = jax.random.key(12)
    states = independent(path, 50, *jax.random.split(key))
    betas = jnp.asarray([0.0, 0.3, 1.0], jnp.float32)
    together = path.at(betas).energies([jnp.repeat(x, 3, axis=0) for x in states])
    for beta, energies in zip(betas, together, strict=True):
        one = path._one(beta)
        own = [x[0] for x in states]
        np.testing.assert_allclose(energies, marginal_energies(one, own), atol=2e-5)
        for new, wanted in zip(
            path.at(beta[None]).swept(states, key), sweep(one, own, key), strict=True
        ):
            np.testing.assert_array_equal(new[0], wanted)


@pytest.mark.slow
@pytest.mark.parametrize("source", [None, [1, 0, 2]], ids=["still", "exchanged"])
def test_chains_at_several_temperatures_are_swept_at_their_own(source):
    rng = np.random.default_rng(13)
    model = MODELS["rbm"](rng)
    base = tuple(jnp.asarray(rng.normal(size=x.shape), x.dtype) for x in model.unary())
    betas, chains = (0.0, 0.4, 1.0), 5000
    v = rng.integers(0, 2, size=(3, 6)).astype("f")

    def for_all(x):
        return jnp.repeat(jnp.asarray(x)[:, None], chains, axis=1)

    places = Path(model, base).at(jnp.asarray(betas, jnp.float32))
    states = [for_all(x) for x in (v, np.zeros((3, 5), "f"))]
    moves = None if source is None else for_all(source)
    _, hidden = places.swept(states, jax.random.key(14), moves)
    for beta, v_here, drawn in zip(betas, v[source or [0, 1, 2]], hidden, strict=True):
        field = (1 - beta) * base[1] + beta * (model.hidden_bias + v_here @ model.weights)
        np.testing.assert_allclose(drawn.mean(0), expit(field), atol=4.5 * 0.5 / chains**0.5)


def two_modes(weight):
    """All units at 0 and all at 1 are equally likely. A larger weight puts them further apart."""
    return ebm.RBM(
        np.full((8, 4), weight, "f"), np.full(8, -2 * weight, "f"), np.full(4, -4 * weight, "f")
    )


@pytest.mark.slow
@pytest.mark.parametrize("weight", [2.0, 8.0])
def test_no_mode_is_missed_where_hidden_units_have_large_biases(weight):
    model = two_modes(weight)
    found = ebm.log_partition(model, key=1, beside=False)
    error = found.estimates["bennett"].standard_error
    assert abs(found.log_partition - exact(model)) < 4.5 * error < 0.3


@pytest.mark.slow
def test_places_are_close_where_chains_differ(monkeypatch):
    model = oracle.random_rbm(np.random.default_rng(0), 10, 8, scale=4.0)

    def largest_share():
        run = _log_partition._Run(model, None, 32, jax.random.key(5), UNTIMED)
        run.extend(16, jax.random.key(6))
        _, moves = bennett([(x.forward, x.backward) for x in run.found])
        return moves.std(1).max() / moves.std(1).sum()

    chosen = largest_share()
    monkeypatch.setattr(_log_partition._Run, "_noise", lambda run: np.diff(run.places))
    assert chosen < 0.8 * largest_share()


@pytest.mark.slow
def test_a_layer_may_be_empty():
    bias = np.asarray([0.5, -1.0, 2.0], "f")
    model = ebm.RBM(np.zeros((3, 0), "f"), bias, np.zeros(0, "f"))
    found = ebm.log_partition(model, key=1, beside=False)
    assert abs(found.log_partition - np.logaddexp(0, bias).sum()) < 1e-3


@pytest.mark.slow
def test_steps_count_only_after_trips_along_the_path():
    model = MODELS["rbm"](np.random.default_rng(1))
    run = _log_partition._Run(model, None, 8, jax.random.key(2), UNTIMED)
    run.extend(4, jax.random.key(3))
    each = [float(x.trips) for x in run.found]
    assert run.trips == pytest.approx(sum(each))
    needed = 0.75 * len(run.places)
    assert run.mixed and sum(each[: run.burn_in]) >= needed > sum(each[: run.burn_in - 1])


@pytest.mark.slow
def test_work_grows_until_the_budget_ends_and_compiles_once():
    model = MODELS["rbm"](np.random.default_rng(1))
    size = temper._cached._cache_size()  # pyright: ignore
    for steps, made in ((300, 256), (1000, 960)):
        found = ebm.log_partition(model, key=4, within=1e-200, max_steps=steps, beside=False)
        assert (found.stopped, found.steps) == ("budget", made)
    assert temper._cached._cache_size() - size <= 1  # pyright: ignore


@pytest.mark.slow
def test_estimates_that_disagree_are_told_and_likelihoods_take_the_larger(monkeypatch):
    model = MODELS["rbm"](np.random.default_rng(1))
    truth = exact(model)
    wrong = {"ais": Estimate(truth - 1, 0.1), "reverse_ais": Estimate(truth + 2, 0.1)}
    monkeypatch.setattr(_log_partition._Run, "checked", lambda self, key: dict(wrong))
    with pytest.warns(UserWarning, match="disagree beyond their errors: bennett .* ais .*raise"):
        found = ebm.log_partition(model, key=5, max_steps=500, beside=False)
    assert found.disagree == ("ais", "reverse_ais")
    assert found.stopped == "budget"
    np.testing.assert_allclose(found.interval, [truth - 1, truth + 2])
    assert found.quoted == truth + 2
    data = np.eye(6)
    np.testing.assert_allclose(
        ebm.log_likelihood(model, data, found), ebm.log_likelihood(model, data, truth + 2)
    )


def works(rng, pairs=3, chains=12, records=40):
    """Of normal distributions of variance 1 whose means are 1 apart, log-ratios 0.5: the energy of
    the second less that of the first is 1/2 - x - 0.5.
    """
    drift = rng.normal(size=(1, pairs, chains)) * 0.3
    first, second = (rng.normal(size=(records, pairs, chains)) + drift + k for k in (0, 1))
    return 0.5 - first - 0.5, 0.5 - second - 0.5


def test_bennett_solves_its_equation_and_its_error_is_that_of_a_jackknife():
    rng = np.random.default_rng(6)
    many = [works(rng), works(rng)]
    given = [tuple(jnp.asarray(x, jnp.float32) for x in both) for both in many]
    ratios, moves = bennett(given)

    def solved(keep) -> Any:
        one, other = (np.concatenate([w[k] for w in many])[:, :, keep] for k in (0, 1))
        return [
            brentq(lambda r, k=k: expit(-one[:, k] - r).sum() - expit(other[:, k] + r).sum(), -9, 9)
            for k in range(3)
        ]

    np.testing.assert_allclose(ratios, solved(np.arange(12)), atol=1e-4)
    left_out = np.asarray([sum(solved(np.delete(np.arange(12), c))) for c in range(12)])
    jackknife = np.sqrt(11 / 12 * ((left_out - left_out.mean()) ** 2).sum())
    np.testing.assert_allclose(standard_error(moves.sum(0)), jackknife, rtol=0.1)


def test_bennett_finds_ratios_that_are_far_from_the_start():
    rng = np.random.default_rng(7)
    first, second = (jnp.asarray(x, jnp.float32) for x in works(rng))
    # One draw in a hundred is far away, which moves the means.
    first, second = (x.at[0].add(s * 4000) for x, s in ((first, 1), (second, 1)))
    ratios, _ = bennett([(first, second)])
    assert np.abs(ratios - 0.5).max() < 1


def test_mbar_of_two_models_is_bennett_and_of_three_solves_its_equations():
    rng = np.random.default_rng(8)
    centres = np.asarray([0.0, 0.7, 1.5])
    offsets = np.asarray([0.0, 0.4, -0.3])
    x = rng.normal(size=(5, 3, 10)) + centres[:, None]
    energies = (x - centres[:, None, None, None]) ** 2 / 2 - offsets[:, None, None, None]
    f, moves = mbar(energies[:2, :, :2], np.zeros(2))
    a = (energies[1] - energies[0])[:, :2]
    both = tuple(jnp.asarray(a[:, k][:, None], jnp.float32) for k in (0, 1))
    ratios, own = bennett([both])
    np.testing.assert_allclose(f, [0, ratios[0]], atol=1e-4)
    np.testing.assert_allclose(moves[1], own[0], atol=2e-3)
    f, _ = mbar(energies, np.asarray([0.0, 30.0, -20.0]))
    weight = np.exp(-energies - f[:, None, None, None])
    np.testing.assert_allclose((weight / weight.sum(0)).sum((1, 2, 3)), 50, atol=1e-3)
    assert np.abs(f - offsets).max() < 0.6


RBM = ebm.RBM.init(visible=2, hidden=2, key=0)


@pytest.mark.parametrize(
    "case",
    [
        (lambda: ebm.log_partition(RBM, key=0, within=0.0), ValueError, "`within`"),
        (lambda: ebm.log_partition(RBM, key=0, num_chains=2), ValueError, "`num_chains`", "2"),
        (lambda: ebm.log_partition(RBM, key=0, max_steps=3), ValueError, "`max_steps`", "3"),
        (lambda: ebm.log_partition(RBM, key=0, trajectory=[RBM]), TypeError, "trajectory"),
        (
            lambda: ebm.log_partition(ebm.GaussianRBM.init(visible=2, hidden=2, key=0), key=0),
            TypeError,
            "finitely many states",
        ),
    ],
)
def test_wrong_arguments_are_told(case):
    errors.check(case)


@pytest.mark.slow
def test_belief_propagation_that_does_not_converge_has_no_value():
    couplings = jnp.triu(6.0 * jax.random.normal(jax.random.key(4), (12, 12)), 1)
    bias = jax.random.normal(jax.random.key(104), (12,))
    model = ebm.BoltzmannMachine(couplings + couplings.T, bias)
    beliefs = ebm.BP(200, damping=0.5, tol=1e-4)(model)
    assert not bool(beliefs.converged)
    assert math.isnan(_log_partition._beside(model, jax.random.key(0))["bethe"].log_partition)


def test_models_that_share_no_draws_leave_their_ratio_open():
    far = jnp.full((2, 1, 3), 300.0)
    ratios, _ = bennett([(far, -far)])
    assert np.isfinite(ratios).all()
