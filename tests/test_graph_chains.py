"""Chains on graphs: whole transition matrices of small ones, and all that is made of chains."""

import itertools
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from pgmax import fgraph, fgroup, vgroup
from transitions import looped, Outcomes, RANDOM

import ebmlearn as ebm
from ebmlearn.learners._base import Told
from ebmlearn.learners._cd import _near
from ebmlearn.pgmax import FactorGraphModel
from ebmlearn.samplers import _trajectory_tempering
from ebmlearn.units import _random


KEY = jax.random.key(0)


def graph(*factors, states: Any = 2, shape=(3,), seed=0):
    """Variables joined by factors, given as functions of them, with random evidence."""
    rng = np.random.default_rng(seed)
    x = vgroup.NDVarArray(num_states=states, shape=shape)
    built = fgraph.FactorGraph(variable_groups=[x])
    for make in factors:
        built.add_factors(make(x, rng))
    model = FactorGraphModel(built)
    size = (*shape, np.max(states))
    return model.with_evidence({x: jnp.asarray(rng.normal(size=size), float)})


def pairs(*edges):
    def make(x, rng):
        states = x.num_states.flat[0]
        return fgroup.PairwiseFactorGroup(
            variables_for_factors=[[x[i], x[j]] for i, j in edges],
            log_potential_matrix=rng.normal(size=(len(edges), states, states)),
        )

    return make


def factors(kind, *scopes):
    return lambda x, rng: kind(variables_for_factors=[[x[i] for i in scope] for scope in scopes])


def triple(x, rng):
    """A factor of three variables that lists all their configurations."""
    configurations = np.array([*itertools.product((0, 1), repeat=3)])
    return fgroup.EnumFactorGroup(
        variables_for_factors=[[x[0], x[1], x[2]]],
        factor_configs=configurations,
        log_potentials=rng.normal(size=8),
    )


def lists(function, *scopes):
    """Factors that list the configurations in which the last variable is a function of others."""

    def make(x, rng):
        every = itertools.product(*(range(x.num_states[v]) for v in scopes[0][:-1]))
        rows = np.array([(*row, function(*row)) for row in every])
        order = rng.permutation(rows.shape[1])
        return fgroup.EnumFactorGroup(
            variables_for_factors=[[x[scope[k]] for k in order] for scope in scopes],
            factor_configs=rng.permutation(rows)[:, order],
            log_potentials=rng.normal(size=(len(scopes), len(rows))),
        )

    return make


def functions(seed, states):
    """Two variables that are functions of others, random ones or those that can be inverted, so
    that any of their variables may be a function of the others.
    """
    rng = np.random.default_rng(seed)
    states, at = np.array(states), rng.permutation(4)
    tables = {}

    def make(*scope):
        sizes = tuple(states[list(scope[:-1])])
        most = states[scope[-1]]
        one = np.indices(sizes).sum(0) % most
        tables[scope] = one if rng.random() < 0.5 else rng.integers(0, most, size=sizes)
        return lists(lambda *row: tables[scope][row], scope)

    first = make(at[0], at[1], at[2])
    second = make(at[2], at[3]) if seed % 2 else make(at[1], at[2], at[3])
    return graph(first, second, states=states, shape=states.shape, seed=seed)


def grid(emissions=None, states=2, shape=(1, 2)):
    rng = np.random.default_rng(3)
    tables = [jnp.asarray(rng.normal(size=(states, states))) for _ in range(4)]
    bias = jnp.asarray(rng.normal(size=states))
    return ebm.GridMRF(*tables, shape=shape, bias=bias, emissions=emissions)


def labelled():
    """A grid whose labels are a function of the hidden state."""
    return grid({"label": jnp.log(jnp.asarray([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))}, 3)


def only(scope, *rows):
    """A factor that lists some configurations, of which no variable need be a function."""

    def make(x, rng):
        return fgroup.EnumFactorGroup(
            variables_for_factors=[[x[i] for i in scope]],
            factor_configs=np.array(rows),
            log_potentials=rng.normal(size=(1, len(rows))),
        )

    return make


def partial(seed):
    """Variables of which some states exclude each other, and functions of those that remain."""
    rng = np.random.default_rng(seed)
    states = rng.integers(2, 4, size=4)
    made = []
    for _ in range(rng.integers(1, 4)):
        scope = tuple(rng.permutation(4)[: rng.integers(2, 4)].tolist())
        if any(set(scope) == set(other) for other, _ in made):
            continue
        every = np.array([*np.ndindex(*states[list(scope)])])
        kept = every[rng.random(len(every)) < 0.8]
        if rng.random() < 0.5:
            # One state at most of the last variable for each of the others.
            kept = kept[np.unique(rng.permutation(kept)[:, :-1], axis=0, return_index=True)[1]]
        if len(kept):
            made.append((scope, kept))
    parts = [only(scope, *rows) for scope, rows in made]
    return graph(*parts, states=states, shape=(4,), seed=seed)


GRAPHS = {
    "pairs": lambda: graph(pairs((0, 1), (1, 2))),
    "triple": lambda: graph(triple),
    "states": lambda: graph(pairs((0, 1)), states=3, shape=(2,)),
    "or": lambda: graph(pairs((0, 1)), factors(fgroup.ORFactorGroup, (0, 1, 2))),
    "and": lambda: graph(factors(fgroup.ANDFactorGroup, (0, 1, 2))),
    "nested": lambda: graph(
        factors(fgroup.ORFactorGroup, (0, 1, 2)),
        factors(fgroup.ANDFactorGroup, (0, 2, 3)),
        shape=(4,),
    ),
    "pool": lambda: graph(pairs((0, 1)), factors(fgroup.PoolFactorGroup, (0, 1, 2))),
    "xor": lambda: graph(pairs((0, 1)), lists(operator.xor, (0, 1, 2))),
    "mixed": lambda: graph(
        factors(fgroup.ORFactorGroup, (0, 1, 2)),
        lists(operator.xor, (1, 2, 3), (3, 0, 4)),
        lists(lambda a: 1 - a, (4, 5)),
        shape=(6,),
    ),
    "three": lambda: functions(1, (3,) * 4),
    "two": lambda: functions(2, (2,) * 4),
    "not both": lambda: graph(pairs((1, 2)), only((0, 1), (0, 1), (1, 0), (1, 1))),
    # Each of three is a function of the others, which are not both 1.
    "one of three": lambda: graph(
        pairs((2, 3)), only((0, 1, 2), (1, 0, 0), (0, 1, 0), (0, 0, 1)), shape=(4,)
    ),
    # A function of two variables where they are not both 0, and another of what it determines.
    "partial": lambda: graph(
        only((0, 1, 2), (0, 1, 1), (1, 0, 1), (1, 1, 0)), lists(operator.xor, (1, 2, 3)), shape=(4,)
    ),
    "chosen": lambda: graph(
        factors(fgroup.PoolFactorGroup, (0, 1, 2)),
        factors(fgroup.ANDFactorGroup, (3, 4, 0)),
        shape=(5,),
    ),
    "grid": grid,
    "labelled": labelled,
}


def possible(model, beta=1.0):
    """All configurations that the graph allows, and their probabilities, from its energy."""
    rows = np.array([*itertools.product(*map(range, model.num_states))], np.int32)
    scores = -beta * np.asarray(model.energy(jnp.asarray(rows)), np.float64)
    kept = np.isfinite(scores)
    scores = scores[kept]
    return rows[kept], np.exp(scores - np.logaddexp.reduce(scores))


@pytest.mark.slow
def test_energies_of_graphs_are_sums_over_factors():
    """So that transition matrices are compared with what the graph means."""
    model = FactorGraphModel(_hand_made())
    rows, p = possible(model)
    want = [a * 0.5 - a * b + 2 * c for a, b, c in rows]
    np.testing.assert_array_equal(rows[:, 2], rows[:, 0] | rows[:, 1])
    with_c = model.with_evidence({_VARIABLES[0]: jnp.asarray([[0, 0.5], [0, 0], [0, 2.0]])})
    rows, p = possible(with_c)
    np.testing.assert_allclose(p, np.exp(want) / np.exp(want).sum(), rtol=1e-5)


_VARIABLES: list[Any] = [vgroup.NDVarArray(num_states=2, shape=(3,))]


def _hand_made():
    (x,) = _VARIABLES
    built = fgraph.FactorGraph(variable_groups=[x])
    table = np.array([[0.0, 0.0], [0.0, -1.0]])
    built.add_factors(
        fgroup.PairwiseFactorGroup(variables_for_factors=[[x[0], x[1]]], log_potential_matrix=table)
    )
    built.add_factors(fgroup.ORFactorGroup(variables_for_factors=[[x[0], x[1], x[2]]]))
    return built


def matrix_of(monkeypatch, model, sampler, choices, replicas=1):
    """The transition matrix among the configurations that a graph allows."""
    # What is not compiled takes the wires as they are.
    model = jax.tree.map(jnp.asarray, model)
    one, _ = possible(model)
    every = np.array([np.stack(x) for x in itertools.product(one, repeat=replicas)])
    outcomes = np.array(list(itertools.product(*map(range, choices))), float)
    starts = np.repeat(every, len(outcomes), 0)
    chains = len(starts)
    state = sampler.init(model, chains, key=KEY, start=jnp.asarray(starts[:, 0]))
    if replicas > 1:
        stacked = model.variables.named(model.variables.cut(starts.transpose(1, 0, 2)))
        state = eqx.tree_at(lambda s: s.replicas, state, stacked)
    draws = Outcomes(np.tile(outcomes, (len(every), 1)))
    for name in RANDOM:
        monkeypatch.setattr(_random, name, getattr(draws, name))
    with jax.disable_jit():
        state, _ = sampler.step(model, state, key=KEY)
    monkeypatch.undo()
    assert draws.at == len(choices)
    units = state.units if replicas == 1 else state.replicas
    ends = np.concatenate(model.variables.parts(units), -1)
    ends = ends[:, None] if replicas == 1 else ends.swapaxes(0, 1)
    number = {row.tobytes(): k for k, row in enumerate(every)}
    weights = np.exp(draws.log_probability)
    matrix = np.zeros((len(every), len(every)))
    for k in np.flatnonzero(weights > 0):
        there = number[np.ascontiguousarray(ends[k]).tobytes()]
        matrix[number[starts[k].tobytes()], there] += weights[k]
    np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-12)
    return matrix


def sites(model):
    """How many states each site has, in the order in which they are drawn, places left over too."""
    turns = np.asarray(model.turns.order)
    return [int(max(model.turns.site_states))] * turns.size


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(
    ("name", "metropolised"), [*((name, False) for name in GRAPHS), ("pairs", True), ("pool", True)]
)
def test_gibbs_leaves_the_distribution_as_it_is(monkeypatch, name, metropolised):
    model = GRAPHS[name]()
    _, p = possible(model, 0.7)
    sampler = ebm.Gibbs(0.7, metropolised=metropolised)
    draws = sites(model)
    if metropolised:
        width = np.asarray(model.turns.order).shape[1]
        turns = [draws[k : k + width] for k in range(0, len(draws), width)]
        draws = [x for turn in turns for x in (*turn, *[2] * width)]
    matrix = matrix_of(monkeypatch, model, sampler, draws)
    np.testing.assert_allclose(p @ matrix, p, atol=1e-12)
    assert (np.linalg.matrix_power(matrix, len(matrix)) > 0).all()


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
def test_gibbs_reaches_all_of_random_graphs_or_refuses_them(monkeypatch):
    served = 0
    for seed in range(6):
        model = partial(seed)
        rows, p = possible(model)
        if not 1 < len(rows) < 40 or model.turns.no_chains() is not None:
            continue
        served += 1
        matrix = matrix_of(monkeypatch, model, ebm.Gibbs(), sites(model))
        np.testing.assert_allclose(p @ matrix, p, atol=1e-12, err_msg=str(seed))
        assert (np.linalg.matrix_power(matrix, len(matrix)) > 0).all(), seed
        # Chains start from all that is possible, each alike.
        assert float(model.turns.log_number()) == pytest.approx(np.log(len(rows)))
        drawn = jnp.asarray(np.random.default_rng(0).integers(0, 2, (2000, 4)), jnp.int32)
        starts = model.turns.completed(drawn, jnp.zeros(drawn.shape, bool), KEY)
        assert np.isfinite(model.energy(starts)).all(), seed
    assert served > 1


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", ["pairs", "or", "labelled"])
def test_tempering_leaves_the_distribution_as_it_is(monkeypatch, name):
    model = GRAPHS[name]()
    _, p = possible(model)
    sampler = ebm.TemperedTransitions([0.4, 1.0])
    matrix = matrix_of(monkeypatch, model, sampler, [*sites(model) * 2, 2])
    flow = p[:, None] * matrix
    np.testing.assert_allclose(flow, flow.T, atol=1e-12, err_msg="detailed balance")
    if name != "or":
        return
    sampler = ebm.ParallelTempering([0.4, 1.0])
    draws = [*np.repeat(sites(model), 2), 2]
    matrix = matrix_of(monkeypatch, model, sampler, draws, replicas=2)
    both = np.outer(possible(model, 0.4)[1], p).ravel()
    np.testing.assert_allclose(both @ matrix, both, atol=1e-12)

    # The same with another model in the place of a temperature.
    def on_each(function, models, shape, *arrays):
        return looped(lambda own, *x: function(eqx.combine(own, shape), *x), models, *arrays)

    monkeypatch.setattr(_trajectory_tempering, "on_each", on_each)
    trajectory = ebm.Trajectory([model.tempered(0.4), model])
    sampler = ebm.TrajectoryTempering(trajectory)
    draws = [2, *sites(model) * 2]
    matrix = matrix_of(monkeypatch, model, sampler, draws, replicas=2)
    np.testing.assert_allclose(both @ matrix, both, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", ["triple", "states", "grid"])
def test_chains_that_follow_scores_are_balanced(monkeypatch, name):
    model = GRAPHS[name]()
    _, p = possible(model)
    moves, number = int(sum(model.num_states - 1)), len(model.num_states)
    most = min(3, number)
    others = (n - 1 for n in model.num_states if n > 2)
    draws = [
        (ebm.GibbsWithGradients(), [moves, 2]),
        (ebm.DMALA(0.5), [*model.num_states, 2]),
        (ebm.PAS(2), [most, *[number] * most, *others, 2]),
    ]
    for sampler, choices in draws:
        flow = p[:, None] * matrix_of(monkeypatch, model, sampler, choices)
        np.testing.assert_allclose(flow, flow.T, atol=1e-12, err_msg="detailed balance")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["pairs", "or", "pool", "xor", "partial", "one of three", "labelled"]
)
def test_annealing_finds_log_z(name):
    model = GRAPHS[name]()
    rows, _ = possible(model)
    want = np.logaddexp.reduce(-np.asarray(model.energy(jnp.asarray(rows)), np.float64))
    found = ebm.ais(model, key=KEY, betas=300, num_chains=300)
    assert abs(float(found.log_partition) - want) < 5 * float(found.standard_error) + 0.01
    if name != "or":
        return
    # The way back starts from samples, as they come.
    start = ebm.sample(model, ebm.Gibbs(), 300, key=KEY, num_chains=300, burn_in=20)
    back = ebm.reverse_ais(model, start, key=KEY, betas=300)
    assert abs(float(back.log_partition) - want) < 5 * float(back.standard_error) + 0.01
    with pytest.raises(TypeError, match="annealing from a `base`"):
        ebm.ais(model, key=KEY, base=jnp.zeros(6))


@pytest.mark.slow
def test_held_variables_stay():
    model = labelled()
    label = jnp.asarray([[1, 0]])
    start, clamped = {"label": label}, {"label": True}
    options = {"key": KEY, "num_chains": 6000, "start": start, "clamped": clamped}
    drawn = ebm.sample(model, ebm.Gibbs(), 6000, burn_in=10, **options)
    assert (np.asarray(drawn["label"]) == np.asarray(label)).all()
    assert (np.asarray(drawn["state"])[:, 0, 0] == 2).all()
    want = ebm.Exact()(model, {"label": label})["state"][0, 1]
    found = np.bincount(np.asarray(drawn["state"])[:, 0, 1], minlength=3) / 6000
    np.testing.assert_allclose(found, want, atol=5 * 0.5 / np.sqrt(6000))


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner",
    [
        ebm.SAP(num_chains=300),
        ebm.TransSAP([0.5, 1.0], every=5, num_chains=300),
        ebm.CD(5),
        ebm.CD(5, start="random"),
    ],
    ids=["sap", "trans-sap", "cd", "cd-random"],
)
def test_learners_of_chains_learn_a_graph(learner):
    """Complete data: the pairs of states are those of the data."""
    truth = graph(pairs((0, 1), (1, 2)))
    rows, p = possible(truth)
    data = rows[np.random.default_rng(0).choice(len(p), 4000, p=p)]
    flat = jax.tree.map(
        lambda x: jnp.zeros_like(x) if jnp.issubdtype(x.dtype, jnp.floating) else x, truth
    )
    fitted = ebm.fit(
        flat, learner, data, optimizer=optax.adam(0.05), epochs=4, batch_size=200, key=0,
        progress=False,
    )  # fmt: skip
    _, found = possible(fitted.last)
    assert np.abs(found - p).max() < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("learner", [ebm.SAP(num_chains=300), ebm.PseudoLikelihood()])
def test_learners_learn_a_graph_that_excludes_configurations(learner):
    truth = GRAPHS["xor"]()
    rows, p = possible(truth)
    data = rows[np.random.default_rng(0).choice(len(p), 2000, p=p)]
    flat = eqx.tree_at(lambda m: m.evidence, truth, jax.tree.map(jnp.zeros_like, truth.evidence))
    options: Any = {"epochs": 8, "batch_size": 200, "key": 0, "progress": False}
    fitted = ebm.fit(flat, learner, data, optimizer=optax.adam(0.05), **options)
    _, found = possible(fitted.last)
    assert np.abs(found - p).max() < 0.05


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("name", ["states", "grid"])
def test_a_graph_is_an_energy_for_numpyro(name):
    """Energies, gradients and what NumPyro makes of them are those of the graph."""
    numpyro = pytest.importorskip("numpyro")
    from ebmlearn.numpyro import EnergyDistribution, GibbsKernel

    model = GRAPHS[name]()
    energy = model.as_energy()
    rows, p = possible(model)
    layers = model.turns.layers(jnp.asarray(rows))
    np.testing.assert_allclose(energy.energies(layers), model.energies(layers), atol=1e-5)
    # Both say the same of the states of a variable, up to a constant.
    shape = (len(rows), len(model.num_states), -1)
    fields = [np.asarray(m.field(layers, 0)).reshape(shape) for m in (energy, model)]
    one, other = (x - x[..., :1] for x in fields)
    np.testing.assert_allclose(one, other, atol=1e-5)
    log_z = float(ebm.Exact()(model).log_partition)
    (site,) = energy.names
    log_p = EnergyDistribution(energy, log_z).log_prob(jnp.asarray(rows))
    np.testing.assert_allclose(np.exp(log_p), p, rtol=1e-4)
    mcmc = numpyro.infer.MCMC(GibbsKernel(), num_warmup=20, num_samples=4000, progress_bar=False)
    mcmc.run(KEY, energy)
    found = np.asarray(mcmc.get_samples()[site]).mean(0)
    assert np.abs(found - p @ rows).max() < 0.1


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user")
def test_numpyro_draws_from_a_graph_that_excludes_configurations():
    numpyro = pytest.importorskip("numpyro")
    from ebmlearn.numpyro import GibbsKernel

    model = GRAPHS["mixed"]()
    rows, p = possible(model)
    options = {"num_chains": 20, "chain_method": "vectorized", "progress_bar": False}
    mcmc = numpyro.infer.MCMC(GibbsKernel(), num_warmup=20, num_samples=400, **options)
    mcmc.run(KEY, model)
    found = np.asarray(mcmc.get_samples()["x"])
    assert {tuple(row) for row in found.tolist()} == {tuple(row) for row in rows.tolist()}
    assert np.abs(found.mean(0) - p @ rows).max() < 0.05
    held = int(np.asarray(model.turns.order)[0, 0])
    mask, start = np.arange(6) == held, np.tile(rows[0], (20, 1))
    mcmc.run(KEY, model, clamped={"x": np.tile(mask, (20, 1))}, init_params={"x": start})
    found = np.asarray(mcmc.get_samples()["x"])
    own = rows[:, held] == rows[0, held]
    assert (found[:, held] == rows[0, held]).all()
    assert np.abs(found.mean(0) - p[own] @ rows[own] / p[own].sum()).max() < 0.05


@pytest.mark.slow
def test_mean_field_of_graphs():
    """Close to the truth where couplings are weak, and a lower bound of log Z that never falls."""
    model = graph(pairs((0, 1), (1, 2))).tempered(0.3)
    rows, p = possible(model)
    want = np.stack([[p[rows[:, i] == s].sum() for s in range(2)] for i in range(3)])
    beliefs = ebm.MeanField(50, tol=1e-6)(model)
    np.testing.assert_allclose(beliefs.means.values[0], want, atol=0.01)
    log_z = np.logaddexp.reduce(-np.asarray(model.energy(jnp.asarray(rows)), np.float64))
    strong = graph(pairs((0, 1), (1, 2), (0, 2)))
    bounds = [float(ebm.MeanField(n)(strong).log_partition) for n in range(5)]
    assert (np.diff(bounds) > -1e-5).all()
    assert log_z - 0.1 < float(beliefs.log_partition) < log_z
    # What it says of factors are products of what it says of variables.
    q = np.asarray(beliefs.means.values[0])
    products = [np.outer(q[i], q[j]) for i, j in ((0, 1), (1, 2))]
    np.testing.assert_allclose(beliefs.pairwise.values[0], products, atol=1e-5)
    held = ebm.MeanField(50)(grid(), {"state": jnp.asarray([[1, -1]])})
    np.testing.assert_allclose(held["state"][0, 0], [0, 1], atol=1e-6)


@pytest.mark.slow
def test_pseudo_likelihood_of_graphs():
    model = graph(pairs((0, 1), (1, 2)))
    rows, p = possible(model)
    want = np.zeros(len(rows))
    for unit in range(3):
        for k, row in enumerate(rows):
            same = (np.delete(rows, unit, 1) == np.delete(row, unit)).all(1)
            want[k] += np.log(p[k] / p[same].sum())
    np.testing.assert_allclose(ebm.pseudo_log_likelihood(model, rows), want, atol=1e-5)
    with pytest.raises(ValueError, match="must tell the states of all variables"):
        ebm.pseudo_log_likelihood(model, np.where(rows == 1, -1, rows))
    learner = ebm.PseudoLikelihood()
    gradient, _, info = learner.step(model, None, rows, key=0, epoch=0)
    step = 1e-2

    def loss(shift):
        moved = jax.tree.map(lambda x: x.at[0, 0, 1].add(shift), model.log_potentials)
        other = eqx.tree_at(lambda m: m.log_potentials, model, moved)
        return -float(np.asarray(ebm.pseudo_log_likelihood(other, rows)).mean())

    slope = (loss(step) - loss(-step)) / (2 * step)
    assert float(gradient.log_potentials[0][0, 0, 1]) == pytest.approx(slope, abs=1e-3)
    assert float(info.loss) == pytest.approx(-want.mean(), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["or", "xor", "uneven", "not both", "one of three", "partial", "labelled"]
)
def test_pseudo_likelihood_where_variables_determine_others(name):
    """A variable that others determine moves with them: it has no term, nor a state in others."""
    model = {**GRAPHS, "uneven": lambda: functions(3, (3, 2, 2, 3, 2))}[name]()
    rows, p = possible(model)
    determined = set(np.asarray(model.turns.determined).tolist())
    free = [v for v in range(rows.shape[1]) if v not in determined]
    want = np.zeros(len(rows))
    for v in free:
        others = [u for u in free if u != v]
        for k, row in enumerate(rows):
            same = (rows[:, others] == row[others]).all(1)
            want[k] += np.log(p[k] / p[same].sum())
    np.testing.assert_allclose(ebm.pseudo_log_likelihood(model, rows), want, atol=1e-5)
    gradient, _, info = ebm.PseudoLikelihood().step(model, None, rows, key=0, epoch=0)
    assert float(info.loss) == pytest.approx(-want.mean(), abs=1e-5)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient) if x.dtype == float)
    if determined:
        wrong = rows.copy()
        child = max(determined)
        wrong[:, child] = (wrong[:, child] + 1) % model.num_states[child]
        assert (np.asarray(ebm.pseudo_log_likelihood(model, wrong)) == -np.inf).all()


@pytest.mark.slow
def test_lssvm_of_graphs():
    """The loss is the hinge by enumeration, with one variable hidden."""
    model = graph(pairs((0, 1)), states=3, shape=(2,))
    rows, _ = possible(model)
    score = -np.asarray(model.energy(jnp.asarray(rows)), np.float64)
    seen = np.array([[0, -1], [2, -1], [1, -1]], np.int32)
    want = [
        (score + (rows[:, 0] != row[0])).max() - score[rows[:, 0] == row[0]].max() for row in seen
    ]
    for inference in (ebm.BP(20, product="max"), ebm.MPLP()):
        gradient, _, info = ebm.LSSVM(inference).step(model, None, seen, key=0, epoch=0)
        assert float(info.loss) == pytest.approx(np.mean(want), abs=1e-4)
        assert np.isfinite(np.asarray(gradient.log_potentials[0])).all()


@pytest.mark.slow
def test_mssvm_of_graphs():
    """The loss and its slopes by enumeration; what data do not tell differs between rows."""
    model = graph(pairs((0, 1), (1, 2)), states=3)
    rows, _ = possible(model)
    seen = np.array([[0, -1, 1], [2, -1, 0], [-1, -1, 2], [0, 0, 1]], np.int32)

    def loss(model):
        score, total = -np.asarray(model.energy(jnp.asarray(rows)), np.float64), 0
        for row in seen:
            told = row >= 0
            every = [*itertools.product(range(3), repeat=told.sum())]
            free = [np.logaddexp.reduce(score[(rows[:, told] == v).all(1)]) for v in every]
            costs = [(np.array(v) != row[told]).sum() for v in every]
            total += np.max(np.add(free, costs)) - free[costs.index(0)]
        return total / len(seen)

    learner = ebm.MSSVM(ebm.Exact(product="mixed"))
    gradient, _, info = learner.step(model, None, seen, key=0, epoch=0)
    assert float(info.loss) == pytest.approx(loss(model), abs=1e-5)
    for place in ((0, 0, 1), (0, 2, 1), (1, 0, 2), (1, 1, 1)):
        moved = [
            eqx.tree_at(
                lambda m: m.log_potentials, model, (model.log_potentials[0].at[place].add(step),)
            )
            for step in (1e-2, -1e-2)
        ]
        slope = (loss(moved[0]) - loss(moved[1])) / 2e-2
        assert float(gradient.log_potentials[0][place]) == pytest.approx(slope, abs=1e-3)
    # Messages are exact where summed variables are leaves.
    seen = np.array([[0, 1, -1], [-1, 2, 0], [0, 0, 1]], np.int32)
    messages = ebm.MSSVM(ebm.BP(10, product="mixed"))
    want, got = (own.step(model, None, seen, key=0, epoch=0) for own in (learner, messages))
    assert float(got[2].loss) == pytest.approx(float(want[2].loss), abs=1e-4)
    for a, b in zip(got[0].log_potentials, want[0].log_potentials, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    wide = graph(factors(fgroup.ORFactorGroup, range(10)), shape=(10,))
    with pytest.raises(ValueError, match="at most 256 entries, got ORFactors"):
        messages.step(wide, None, np.ones((1, 10), int), key=0, epoch=0)
    with pytest.raises(ValueError, match="needs the variables over which it maximises"):
        ebm.Exact(product="mixed")(model)
    hidden = ebm.MSSVM(ebm.Exact(product="mixed")).step(
        labelled(), None, {"label": jnp.zeros((2, 1, 2), int)}, key=0, epoch=0
    )
    assert np.isfinite(hidden[2].loss) and hidden[2].loss >= 0


@pytest.mark.parametrize(
    ("model", "sampler", "words"),
    [
        (lambda: graph(factors(fgroup.ORFactorGroup, (0, 1, 2))), ebm.DMALA(), "take `Gibbs`"),
        (
            lambda: graph(
                factors(fgroup.ORFactorGroup, (0, 1, 2)), factors(fgroup.ANDFactorGroup, (0, 1, 2))
            ),
            ebm.Gibbs(),
            "determined by two factors",
        ),
        (
            lambda: graph(
                factors(fgroup.ORFactorGroup, (0, 1, 2)),
                factors(fgroup.ORFactorGroup, (2, 3, 0)),
                shape=(4,),
            ),
            ebm.Gibbs(),
            "in a circle",
        ),
        (
            lambda: graph(only((0, 1), (0, 0), (0, 1), (1, 0), (1, 1), (2, 2)), states=3),
            ebm.Gibbs(),
            "may not come past each other",
        ),
        (
            lambda: graph(
                lists(operator.xor, (0, 1, 2)), factors(fgroup.ANDFactorGroup, (2, 1, 0))
            ),
            ebm.Gibbs(),
            "in a circle",
        ),
        (lambda: held_by_evidence(lists(operator.xor, (0, 1, 2))), ebm.Gibbs(), "its evidence"),
        (
            lambda: held_by_evidence(factors(fgroup.PoolFactorGroup, (0, 1, 2))),
            ebm.Gibbs(),
            "its evidence excludes states of variables that others determine",
        ),
        (labelled, ebm.PAS(), "excludes pairs of states"),
    ],
)
def test_what_chains_would_not_reach_is_refused(model, sampler, words):
    with pytest.raises(TypeError, match=words):
        ebm.sample(model(), sampler, 3, key=0)


def held_by_evidence(make):
    """The variable that others determine must be 1, so that none of them could change alone."""
    model = graph(make)
    evidence = model.evidence[0].at[model.turns.determined[0], 0].set(-jnp.inf)
    return eqx.tree_at(lambda m: m.evidence[0], model, evidence)


@pytest.mark.slow
def test_chains_start_at_states_that_evidence_allows():
    model = graph(factors(fgroup.ORFactorGroup, (0, 1, 3)), shape=(4,))
    evidence = model.evidence[0].at[:2, 0].set(-jnp.inf)
    model = eqx.tree_at(lambda m: m.evidence[0], model, evidence)
    drawn = ebm.sample(model, ebm.Gibbs(), 50, key=0, num_chains=50).values[0]
    assert (np.asarray(drawn)[:, [0, 1, 3]] == 1).all()


@pytest.mark.slow
def test_determined_variables_are_not_held():
    x = _VARIABLES[0]
    model = FactorGraphModel(_hand_made())
    states = jnp.asarray([1, 0, 1])
    with pytest.raises(ValueError, match="must not hold variables that OR, AND or pool"):
        ebm.sample(model, ebm.Gibbs(), 3, key=0, start={x: states}, clamped={x: True})
    mask = jnp.asarray([True, False, False])
    drawn = ebm.sample(model, ebm.Gibbs(), 50, key=0, start={x: states}, clamped={x: mask})
    assert (np.asarray(drawn[x])[:, 0] == 1).all() and (np.asarray(drawn[x])[:, 2] == 1).all()


@pytest.mark.slow
def test_samples_may_be_held_by_group():
    model = labelled()
    drawn = ebm.sample(model, ebm.Gibbs(), 6, key=KEY)
    options: Any = {"num_chains": 6, "start": drawn, "clamped": {"label": True}}
    again = ebm.sample(model, ebm.Gibbs(), 6, key=jax.random.key(1), **options)
    np.testing.assert_array_equal(again["label"], drawn["label"])


@pytest.mark.slow
def test_chains_of_contrastive_divergence_start_at_the_data():
    """Choices of pools too."""
    model = GRAPHS["pool"]()
    rows, _ = possible(model)
    assert (rows[:, np.asarray(model.sites.possible[0].members[0])] > 0).any()

    @eqx.filter_jit
    def start(model, rows):
        told = Told.by(model, rows)
        return model.turns.rows(_near(model, told, told.posterior(ebm.BP(1)), KEY))

    found = start(model, jnp.asarray(rows))
    np.testing.assert_array_equal(found, rows)


def test_large_sums_exclude_nothing():
    t = -100.0 * jnp.ones((2, 2))
    model = ebm.GridMRF(t, t, t, t, shape=(60, 60))
    states = jnp.zeros((60, 60), int)
    number = 4 * 60 * 60 - 60 - 60 - 2 * (60 + 59)
    np.testing.assert_allclose(model.energy({"state": states}), 100.0 * number, rtol=1e-5)
    none = t.at[0, 0].set(-jnp.inf)
    for model in (
        ebm.GridMRF(none, t, t, t, shape=(2, 2)),
        ebm.GridMRF(t, t, t, t, shape=(2, 2), bias=jnp.asarray([-jnp.inf, 0.0])),
    ):
        assert model.energy({"state": jnp.zeros((2, 2), int)}) == jnp.inf
        assert jnp.isfinite(model.energy({"state": jnp.ones((2, 2), int)}))


def test_evidence_excludes_configurations():
    x = vgroup.NDVarArray(num_states=2, shape=(2,))
    model = FactorGraphModel(fgraph.FactorGraph(variable_groups=[x]))
    model = model.with_evidence({x: jnp.asarray([[-jnp.inf, 0.0], [0.0, 0.0]])})
    energies = model.energy(jnp.asarray([[0, 0], [1, 0]]))
    np.testing.assert_array_equal(energies, [jnp.inf, 0.0])


def test_states_are_checked_against_their_own_variable():
    x = vgroup.NDVarArray(num_states=np.array([2, 3]), shape=(2,))
    model = FactorGraphModel(fgraph.FactorGraph(variable_groups=[x]))
    ebm.BP(2)(model, {x: np.array([1, 2])})
    with pytest.raises(ValueError, match=r"`evidence` must hold states from 0 to 1, .* got 2"):
        ebm.BP(2)(model, {x: np.array([2, 0])})


@pytest.mark.slow
def test_the_best_parameters_on_disk_are_a_graph(tmp_path):
    model = GRAPHS["pairs"]()
    data = np.asarray(possible(model)[0])
    fitted = ebm.fit(model, ebm.MLE(ebm.BP(5)), data, epochs=1, checkpoint=tmp_path, progress=False)
    for found in (
        ebm.load(tmp_path / "best.ebm"),
        ebm.load(tmp_path / "best.ebm", like=model),
    ):
        np.testing.assert_array_equal(found.energy(data), fitted.model.energy(data))


def tables():
    rng = np.random.default_rng(0)
    scopes = [(0, 1), (1, 2)]
    drawn = [rng.normal(size=s).astype(np.float32) for s in ((2, 3), (3, 2))]
    return ebm.TableModel([2, 3, 2], scopes, drawn)


@pytest.mark.slow
def test_rows_of_any_integers_or_booleans():
    model, rows = tables(), np.array([[0, 2, 1], [1, 0, 0]])
    targets = ebm.queries.RandomTargets(0.5)
    want = ebm.query_entropy(model, rows, targets, ebm.Exact(), key=0)
    found = ebm.query_entropy(model, rows.astype(np.uint8), targets, ebm.Exact(), key=0)
    np.testing.assert_allclose(found.value, want.value, rtol=1e-6)
    two = ebm.TableModel([2, 2], [(0, 1)], [np.eye(2, dtype=np.float32)])
    np.testing.assert_array_equal(two.energy(np.array([True, False])), 0)


@pytest.mark.usefixtures("as_a_user")
def test_tables_and_evidence_are_checked():
    model = tables()
    start = jnp.asarray([1, 2, 0])
    wrong: Any = jnp.asarray([-1, 0, 0])
    given = {"x": jnp.asarray([[0.0, 0, 1], [1, 1, 1], [1, 1, 0]])}
    one, two = np.zeros(2, np.float32), np.eye(2)
    with pytest.raises(TypeError, match="`clamped` must be a mask of booleans"):
        ebm.sample(model, ebm.Gibbs(), 4, key=0, start=start, clamped=wrong)
    with pytest.raises(ValueError, match="must allow a state of each variable"):
        ebm.BP(3)(model, given)
    with pytest.raises(TypeError, match=r"`scopes\[0\]` must hold the variables of a table"):
        ebm.TableModel([2, 2], [0, 1], [one, one])  # pyright: ignore
    nested: Any = [[[0.0, 1.0], [2.0, 3.0]]]
    np.testing.assert_array_equal(ebm.TableModel([2, 2], [(0, 1)], nested).log_tables[0], nested[0])
    with oracle.x64(True), pytest.raises(TypeError, match="`log_tables` must have one dtype"):
        ebm.TableModel([2, 2], [(0,), (0, 1)], [one, two])
    with pytest.raises(ValueError, match=r"`log_tables` must hold .* at most 1e.06, .*, got 2e.06"):
        ebm.TableModel([2], [(0,)], [np.array([2e6, 2e6 + 1], np.float32)])
    y: Any = vgroup.NDVarArray(num_states=2, shape=(2,))
    graph = FactorGraphModel(fgraph.FactorGraph(variable_groups=[y]))
    with pytest.raises(ValueError, match=r"`updates` must hold .*, got 2e.06"):
        graph.with_evidence({y: np.full((2, 2), 2e6)})


def test_states_of_a_group_are_checked_beside_those_of_a_variable():
    y: Any = vgroup.NDVarArray(num_states=3, shape=(2,))
    model = FactorGraphModel(fgraph.FactorGraph(variable_groups=[y]))
    with pytest.raises(TypeError, match="must hold states, integers or booleans"):
        model.rows({y: np.array([1.7, np.nan]), y[0]: np.array(1)})
    with pytest.raises(ValueError, match="as the group of variables has"):
        model.rows({y: np.array(2), y[0]: np.array(1)})
    np.testing.assert_array_equal(model.rows({y: np.array([2, 0]), y[0]: np.array(1)}), [1, 0])


@pytest.mark.parametrize(
    "learner",
    [
        ebm.CD(),
        ebm.PseudoLikelihood(),
        ebm.SAP(),
        ebm.TransSAP([0.5, 1.0]),
        ebm.MCMCMLE(),
    ],
)
def test_learners_refuse_tables_that_exclude_configurations(learner):
    table = np.array([[0.3, -np.inf], [0.1, 0.0]], np.float32)
    tied = ebm.Tables(("a", "b"), table)
    bits = {"a": ebm.Binary(1), "b": ebm.Binary(1)}
    data = np.array([[0, 0], [1, 0], [1, 1]], np.int32)
    for model in (
        ebm.TableModel([2, 2], [(0, 1)], [table]),
        ebm.FactorModel(bits, [tied]),
    ):
        with pytest.raises(TypeError, match=r"reach all configurations.* exclude .*\.$"):
            ebm.fit(model, learner, data, epochs=1, key=0, progress=False)
