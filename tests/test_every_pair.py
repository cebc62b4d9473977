"""Every inference on every model, and every sampler on every model: each agrees with enumeration,
quadrature or a formula, or refuses by the one documented error.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ebmlearn as ebm
import ebmlearn.pgmax
from ebmlearn.models import expected_energy


KEY = jax.random.key(0)
# Couplings so weak that every approximation is close.
WEAK = 0.1


def normal(seed, *shapes, scale=WEAK):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(scale * rng.normal(size=shape), jnp.float32) for shape in shapes]


def symmetric(seed, n):
    upper = np.triu(WEAK * np.random.default_rng(seed).normal(size=(n, n)), 1)
    return jnp.asarray(upper + upper.T, jnp.float32)


def biases(seed, *sizes):
    return normal(seed, *sizes, scale=1.0)


def categorical():
    layers = {"visible": ebm.Categorical(2, 3), "hidden": ebm.Binary(2)}
    (weights,) = normal(6, (6, 2))
    visible, hidden = biases(7, 6, 2)
    blocks = {("visible", "hidden"): weights}
    return ebm.LayeredModel(layers, blocks, {"visible": visible, "hidden": hidden})


def nonnegative():
    couplings = jnp.asarray([[1.0, 0.1, 0.05], [0.1, 1.2, -0.1], [0.05, -0.1, 0.8]])
    return ebm.NNBM(couplings, jnp.asarray([0.3, -0.2, 0.5]))


def grid():
    tables = normal(8, (2, 2), (2, 2), (2, 2), (2, 2))
    return ebm.GridMRF(*tables, shape=(2, 2), bias=jnp.asarray([0.3, -0.2]))


def channels():
    """A grid whose labels are a function of the state."""
    tables = normal(12, (3, 3), (3, 3), (3, 3), (3, 3))
    emissions = {"label": jnp.log(jnp.asarray([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))}
    return ebm.GridMRF(*tables, shape=(2, 2), bias=biases(13, 3)[0], emissions=emissions)


def graph(*names):
    """Binary variables of PGMax joined by factors of these kinds: a to b, both to the child c."""
    from pgmax import fgraph, fgroup, vgroup

    x: Any = vgroup.NDVarArray(num_states=2, shape=(3,))
    built = fgraph.FactorGraph(variable_groups=[x])
    a, b, c = x[0], x[1], x[2]
    (table,) = normal(14, (2, 2))
    for name in names:
        if name == "pairs":
            joined = [[a, b]] if len(names) > 1 else [[a, b], [b, c]]
            tables = np.asarray(table)
            group = fgroup.PairwiseFactorGroup(
                variables_for_factors=joined, log_potential_matrix=tables
            )
        elif name == "pool":
            group = fgroup.PoolFactorGroup(variables_for_factors=[[a, b, c]])
        else:
            group = fgroup.ORFactorGroup(variables_for_factors=[[a, b, c]])
        built.add_factors(group)
    model = ebmlearn.pgmax.FactorGraphModel(built)
    (evidence,) = biases(15, (3, 2))
    return model.with_evidence({x: evidence})


def tables():
    """Variables of 2 and 3 states, and a table of three of them."""
    scopes = [(0, 1), (2, 1), (0, 3, 2), (1,), (3,)]
    values = normal(17, (2, 3), (2, 3), (2, 2, 2)) + biases(18, 3, 2)
    return ebm.TableModel([2, 3, 2, 2], scopes, values)


def energy():
    (couplings,) = normal(16, (4, 4))
    return ebm.EnergyModel(lambda x: -x @ couplings @ x - x.sum() * 0.3, ebm.Binary(4))


def labelled():
    weights, more = normal(4, (3, 2), (3, 2))
    (visible, hidden), (label,) = biases(4, 3, 2), biases(5, 3)
    return ebm.SemiRestrictedBM(weights, symmetric(5, 3), visible, hidden, more, label)


def semi_restricted():
    (weights,), (visible, hidden) = normal(3, (3, 2)), biases(3, 3, 2)
    return ebm.SemiRestrictedBM(weights, symmetric(3, 3), visible, hidden)


MODELS = {
    "rbm": lambda: ebm.RBM(*normal(0, (3, 2)), *biases(0, 3, 2)),
    "dbm": lambda: ebm.DBM(normal(1, (3, 2), (2, 2)), biases(1, 3, 2, 2)),
    "boltzmann": lambda: ebm.BoltzmannMachine(symmetric(2, 4), *biases(2, 4)),
    "semi_restricted": semi_restricted,
    "labelled": labelled,
    "categorical": categorical,
    "gaussian": lambda: ebm.GaussianRBM(*normal(9, (3, 2)), *biases(9, 3, 2), *normal(10, 3)),
    "nnbm": nonnegative,
    "grid": grid,
    "channels": channels,
    "pairs": lambda: graph("pairs"),
    "or": lambda: graph("pairs", "or"),
    "pool": lambda: graph("pool"),
    "tables": tables,
    "energy": energy,
    "crbm": lambda: ebm.CRBM(*normal(11, (3, 2), (3, 2), (2, 2), 3, 2)),
    "query": lambda: ebm.QueryModel(MODELS["rbm"]()),
}
BINARY = ("rbm", "dbm", "boltzmann", "semi_restricted")
# Graphs whose variables can all change alone, and all of them.
OPEN = ("grid", "pairs", "tables")
GRAPHS = (*OPEN, "channels", "or", "pool")
LABELS = ("labelled", "categorical")
OTHER = (*LABELS, "energy")
INFERENCES = {
    "bp": (ebm.BP(30), (*BINARY, *LABELS, "gaussian", *GRAPHS)),
    "bp_max": (ebm.BP(30, product="max"), (*BINARY, *LABELS, *GRAPHS)),
    "mean_field": (ebm.MeanField(30), (*BINARY, *LABELS, *OPEN)),
    "exact": (ebm.Exact(), (*BINARY, *OTHER, "gaussian", "nnbm", *GRAPHS)),
    "exact_max": (ebm.Exact(product="max"), (*BINARY, *OTHER, *GRAPHS)),
    "mplp": (ebm.MPLP(), (*BINARY, *LABELS, *GRAPHS)),
    "trbp": (ebm.TRBP(), (*BINARY, *LABELS, *GRAPHS)),
    "convergent_bp": (ebm.ConvergentBP(), (*BINARY, *LABELS, *GRAPHS)),
    "naive_mean_field": (ebm.NaiveMeanField(), ("nnbm",)),
    "tap": (ebm.TAP(), ("nnbm",)),
    "susp": (ebm.SusP(), ("nnbm",)),
    "isusp": (ebm.ISusP(), ("nnbm",)),
}
DISCRETE = (*BINARY, *OTHER)
CHAINS = (*DISCRETE, *GRAPHS, "gaussian", "nnbm")
SAMPLERS = {
    "gibbs": (ebm.Gibbs(), CHAINS),
    "metropolised": (ebm.Gibbs(metropolised=True), CHAINS),
    "parallel": (ebm.ParallelTempering([0.5, 1.0]), CHAINS),
    "tempered": (ebm.TemperedTransitions([0.5, 1.0]), CHAINS),
    "gradients": (ebm.GibbsWithGradients(5), (*DISCRETE, *OPEN)),
    "dmala": (ebm.DMALA(0.5), (*DISCRETE, *OPEN)),
    "pas": (ebm.PAS(2), (*DISCRETE, *OPEN)),
    "pmp": (ebm.PMP(30), (*BINARY, *LABELS, *GRAPHS)),
}
# Perturbed maxima are far from a distribution with factors that exclude configurations.
ROUGH = {("pmp", name) for name in ("channels", "or", "pool")}
# Known of sum-product alone: that is another error, which says so.
SUM_ONLY = {("bp_max", "gaussian"), ("exact_max", "gaussian"), ("exact_max", "nnbm")}


def configurations(model):
    """All states as they are inside, by layer, and their probabilities."""
    one = [
        np.array(list(itertools.product(range(getattr(u, "states", 2)), repeat=u.size)))
        for u in model.layers
    ]
    numbers = list(itertools.product(*(range(len(x)) for x in one)))
    rows = [x[[n[k] for n in numbers]] for k, x in enumerate(one)]
    layers = model.encode(model.named(rows))
    scores = -np.asarray(model.energies(layers), np.float64)
    return [np.asarray(x) for x in layers], np.exp(scores - np.logaddexp.reduce(scores))


def graph_states(model):
    """All configurations of a graph, the states of its first group one-hot."""
    rows = np.array(list(itertools.product(*map(range, model.num_states))), np.int32)
    scores = -np.asarray(model.energy(jnp.asarray(rows)), np.float64)
    p = np.exp(scores - np.logaddexp.reduce(scores))
    return np.asarray(model.turns.layers(jnp.asarray(rows))[0]), p


def truth(name, model):
    """The means of the first layer, and of binary units the most likely states."""
    if name in GRAPHS:
        states, p = graph_states(model)
        return p @ states, states[p.argmax()]
    if model.finite:
        layers, p = configurations(model)
        return p @ layers[0], layers[0][p.argmax()]
    if name == "nnbm":
        # A rule on a box: the density is small beyond.
        x = np.linspace(0, 9, 91)
        points = np.stack(np.meshgrid(x, x, x, indexing="ij"), -1).reshape(-1, 3)
        p = np.exp(-np.asarray(model.energy(points.astype(np.float32)), np.float64))
        # The ends of the interval count half.
        p *= np.prod(np.where(points == 0, 0.5, 1.0), -1)
        return p @ points / p.sum(), None
    # A Gaussian RBM: a mixture over the hidden units, one Gaussian each.
    hidden = np.array(list(itertools.product((0, 1), repeat=2)))
    means = np.asarray(model.visible_given(hidden.astype(np.float32)), np.float64)
    machine = model.hidden_marginal()
    p = np.exp(-np.asarray(machine.energy(hidden.astype(np.float32)), np.float64))
    return p @ means / p.sum(), None


def first(name, named):
    """The first layer, or the first group of a graph."""
    return named.values[0] if name in GRAPHS else jax.tree.leaves(named)[0]


@pytest.mark.parametrize(("inference", "name"), [*itertools.product(INFERENCES, MODELS)])
def test_every_inference_on_every_model(inference, name):
    solver, taken = INFERENCES[inference]
    model = MODELS[name]()
    if (inference, name) in SUM_ONLY:
        with pytest.raises(ValueError, match="`product` must be"):
            solver(model)
        return
    if name not in taken:
        with pytest.raises(
            TypeError, match=r"`model` must (be of a kind that .* takes,|let all) .*, got an?"
        ):
            solver(model)
        return
    beliefs = solver(model)
    mean, best = truth(name, model)
    if solver.maximises == "all":
        states = np.asarray(first(name, beliefs.decode())).ravel()
        if isinstance(model.layers[0], ebm.Categorical):
            states = np.eye(model.layers[0].states)[states].ravel()
        np.testing.assert_array_equal(states, best)
    else:
        found = first(name, beliefs.means).ravel()
        np.testing.assert_allclose(found, mean, atol=0.01)
        assert beliefs.converged
        if name == "energy":
            with pytest.raises(TypeError, match="linear in its parameters"):
                solver.statistics(model)
            return
        statistics = solver.statistics(model)
        assert np.isfinite(expected_energy(model, statistics))


@pytest.mark.parametrize(("sampler", "name"), [*itertools.product(SAMPLERS, MODELS)])
def test_every_sampler_on_every_model(sampler, name):
    method, taken = SAMPLERS[sampler]
    model = MODELS[name]()
    if name not in taken:
        wanted = "`model` must (be of a kind|be one of layers|let|have)"
        with pytest.raises(TypeError, match=wanted):
            ebm.sample(model, method, 4, key=KEY)
        return
    number = 3000
    drawn = ebm.sample(model, method, number, key=KEY, num_chains=number, burn_in=15)
    if name in GRAPHS:
        states = np.asarray(drawn.values[0]).reshape(number, -1)
        x = np.eye(model.layers[0].states)[states].reshape(number, -1)
    else:
        x = np.asarray(model.encode(drawn)[0])
    mean, _ = truth(name, model)
    if (sampler, name) in ROUGH:
        rows = np.concatenate([np.asarray(part).reshape(number, -1) for part in drawn.values], -1)
        assert np.isfinite(model.energy(jnp.asarray(rows))).mean() > 0.9
        return
    np.testing.assert_allclose(x.mean(0), mean, atol=5 * x.std(0).max() / np.sqrt(number) + 0.01)
