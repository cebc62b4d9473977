"""Perturb-and-max-product on graphs of PGMax."""

import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import scipy.stats
from test_factor_graph_model import enumerated, Mixed, pool_tree
from untyped import nd_var_array

import ebmlearn as ebm
from ebmlearn import datasets
from ebmlearn.pgmax import FactorGraphModel
from ebmlearn.samplers import _pmp


KEY = jax.random.key(0)
perturbed = eqx.filter_jit(_pmp.perturbed)
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def as_pgmax():
    """PGMax is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def scores(model, noise):
    """The perturbed log-potential of every configuration, for each noise."""
    rows, _, _, energy = enumerated(model)
    total = -energy[None]
    for units, x, own in zip(model.layers, noise, model.variables.cut(rows), strict=True):
        starts = units.states * np.arange(units.size)
        total = total + np.asarray(x)[:, starts + np.asarray(own)].sum(-1)
    return rows, total


def flat(model, state):
    return np.concatenate(model.variables.parts(state.units), -1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mixed", "pool"])
def test_maxima_of_trees(kind):
    """Categorical variables, dense groups, enumeration, OR, AND and pool factors."""
    with oracle.x64(True):
        model = Mixed(loops=False).model() if kind == "mixed" else pool_tree()[0]
        noise = _pmp.perturbation(model, 50, KEY)
        sampler = ebm.PMP(80)
        state, info = perturbed(sampler, model, sampler.init(model, 50, key=KEY), noise)
        rows, all_scores = scores(model, noise)
        np.testing.assert_array_equal(flat(model, state), rows[all_scores.argmax(1)])
        np.testing.assert_allclose(info.perturbed, all_scores.max(1), atol=1e-8)
        np.testing.assert_allclose(info.energy, model.energy(state.units), atol=1e-8)
        assert info.peak.all()


@pytest.mark.slow
def test_peaks():
    """A sample is a peak if no configuration that differs in one variable is better, and if it
    breaks no factor: against enumeration, of all kinds of factors.
    """
    with oracle.x64(True):
        model = Mixed().model()
        noise = _pmp.perturbation(model, 200, KEY)
        sampler = ebm.PMP(2)
        state, info = perturbed(sampler, model, sampler.init(model, 200, key=KEY), noise)
        rows, all_scores = scores(model, noise)
        valid = np.isfinite(all_scores[0])
        found = flat(model, state)
        want = []
        for x, own in zip(found, all_scores, strict=True):
            near = (rows != x).sum(1) <= 1
            here = own[(rows == x).all(1)][0]
            want.append(np.isfinite(here) and own[near & valid].max() <= here)
        np.testing.assert_array_equal(info.peak, want)
        assert 0 < np.mean(want) < 1
        np.testing.assert_array_equal(np.isinf(info.energy), np.isinf(model.energy(state.units)))


@pytest.mark.slow
def test_determined_variables_follow():
    """Max-product that has not converged decodes them to contradict what determines them. Samples
    have them follow, level by level, unless they are held.
    """
    from pgmax import fgraph, fgroup

    a, b, c = (nd_var_array(num_states=2, shape=(n,)) for n in (4, 4, 1))
    graph = fgraph.FactorGraph([a, b, c])
    pairs = list(itertools.combinations(range(4), 2))[:4]
    ands = [[a[i], a[j], b[k]] for k, (i, j) in enumerate(pairs)]
    graph.add_factors(fgroup.ANDFactorGroup(ands))
    graph.add_factors(fgroup.ORFactorGroup([[*b[:], c[0]]]))
    rng = np.random.default_rng(0)
    evidence = {group: 5 * rng.normal(size=(*group.shape, 2)) for group in (a, b, c)}
    model = FactorGraphModel(graph).with_evidence(evidence)
    samples, info = ebm.sample_with_info(model, ebm.PMP(1), 200, key=KEY)
    roots, both, either = (np.asarray(samples[group]) for group in (a, b, c))
    np.testing.assert_array_equal(both, [[row[i] & row[j] for i, j in pairs] for row in roots])
    np.testing.assert_array_equal(either[:, 0], both.any(1))
    rows = np.concatenate([roots, both, either], 1)
    np.testing.assert_allclose(info.energy[0], model.energy(rows), rtol=1e-5)
    assert np.isfinite(info.energy).all()
    assert len(np.unique(roots, axis=0)) > 1
    # What is held does not follow, and what it determines follows it.
    given = {"start": {b: np.array([1, 0, 0, 0])}, "clamped": {b: True}}
    samples, info = ebm.sample_with_info(model, ebm.PMP(1), 200, key=KEY, **given)
    roots = np.asarray(samples[a])
    np.testing.assert_array_equal(samples[b], np.tile([1, 0, 0, 0], (200, 1)))
    assert (np.asarray(samples[c]) == 1).all()
    # The energy is infinite where what is held contradicts what determines it.
    agree = np.array([[row[i] & row[j] for i, j in pairs] == [1, 0, 0, 0] for row in roots])
    np.testing.assert_array_equal(np.isfinite(info.energy[0]), agree)
    # Roots that contradict what is held for sure, too: an OR of ones is held at 0.
    given = {
        "start": {a: np.ones(4, int), c: np.zeros(1, int)},
        "clamped": {a: True, c: True},
    }
    samples, info = ebm.sample_with_info(model, ebm.PMP(1), 5, key=KEY, **given)
    assert (np.asarray(samples[b]) == 1).all() and (np.asarray(samples[c]) == 0).all()
    assert np.isinf(info.energy).all()


def test_contended_variables_stay_as_decoded():
    """Where two factors determine one variable, none of them is followed."""
    from pgmax import fgraph, fgroup

    a, b = (nd_var_array(num_states=2, shape=(n,)) for n in (4, 1))
    graph = fgraph.FactorGraph([a, b])
    graph.add_factors(fgroup.ANDFactorGroup([[a[0], a[1], b[0]], [a[2], a[3], b[0]]]))
    model = FactorGraphModel(graph)
    for states in itertools.product((0, 1), repeat=5):
        parts = jnp.asarray(states[:4]), jnp.asarray(states[4:])
        found = model.turns.mended(parts, (None, None))
        np.testing.assert_array_equal(jnp.concatenate(found), states)


def categorical():
    from pgmax import fgraph, fgroup

    x = nd_var_array(num_states=3, shape=(2,))
    graph = fgraph.FactorGraph([x])
    pairs = fgroup.PairwiseFactorGroup([[x[0], x[1]]], np.zeros((3, 3)))
    graph.add_factors(pairs)
    evidence = np.random.default_rng(0).normal(size=(2, 3))
    return FactorGraphModel(graph).with_evidence({x: evidence}), x, pairs


@pytest.mark.slow
def test_variables_without_factors_are_sampled_exactly():
    model, x, _ = categorical()
    _, p, log_z, _ = enumerated(model)
    for sampler in (ebm.PMP(2), ebm.PMP(2, renewal=0.5)):
        samples, info = ebm.sample_with_info(model, sampler, 20_000, key=KEY, burn_in=1)
        counts = np.bincount(np.asarray(samples[x]) @ [3, 1], minlength=9)
        assert scipy.stats.chisquare(counts, 20_000 * p).pvalue > 1e-3
    bound = ebm.pmp_bound(model, key=KEY, num_samples=20_000, solver=ebm.PMP(2))
    assert abs(bound.log_partition - log_z) < 4 * bound.standard_error
    # Noise that is centred spreads less than Gumbel's own.
    assert info.perturbed.std() < math.sqrt(2 * math.pi**2 / 6)


@pytest.mark.slow
def test_given_variables_and_contradictions():
    """What is given stays; where it contradicts a factor, the sample says so."""
    from pgmax import fgraph, fgroup

    a, b = (nd_var_array(num_states=2, shape=(2,)) for _ in range(2))
    graph = fgraph.FactorGraph([a, b])
    graph.add_factors(fgroup.ORFactorGroup([[a[0], a[1], b[0]]]))
    model = FactorGraphModel(graph)
    number = 2000
    samples, info = ebm.sample_with_info(
        model,
        ebm.PMP(20),
        number,
        key=KEY,
        start={b: np.array([1, 0])},
        clamped={b: np.array([True, False])},
    )
    assert (np.asarray(samples[b])[:, 0] == 1).all()
    assert np.asarray(samples[a]).any(1).all()  # One of them explains it.
    assert np.isfinite(info.energy).all()
    assert abs(np.asarray(samples[b])[:, 1].mean() - 0.5) < 5 * 0.5 / np.sqrt(number)
    rows = np.array([[0, 0], [1, 0]])
    given = {a: rows, b: np.array([1, 0])}
    _, info = ebm.sample_with_info(
        model, ebm.PMP(20), 2, key=KEY, start=given, clamped={a: True, b: True}
    )
    np.testing.assert_array_equal(np.isfinite(info.energy)[0], [False, True])
    assert not np.isnan(np.concatenate([np.ravel(x) for x in info])).any()
    learner = ebm.PMPLearner(ebm.PMP(20))
    batch = {a: rows, b: np.array([[1, -1], [1, -1]])}
    gradient, _, report = learner.step(model, None, batch, key=KEY, epoch=0)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradient))
    assert report.converged <= 0.5


@pytest.mark.slow
@pytest.mark.parametrize("observed", ["all", "some"])
def test_gradient_of_the_learner(observed):
    """It is the derivative of the reported loss, by finite differences."""
    rng = np.random.default_rng(1)
    with oracle.x64(True):
        model, x, pairs = categorical()
        table = jnp.asarray(rng.normal(size=(1, 3, 3)))
        model = model.with_log_potentials({pairs: table})
        rows = rng.integers(0, 3, (8, 2))
        if observed == "some":
            rows[::2, 1] = -1
        learner = ebm.PMPLearner(ebm.PMP(30), num_chains=12)

        def step(table):
            moved = model.with_log_potentials({pairs: table})
            return learner.step(moved, None, {x: rows}, key=KEY, epoch=0)

        direction = rng.normal(size=(1, 3, 3))
        gradient, _, _ = step(table)
        ahead, behind = (float(step(table + t * direction)[2].loss) for t in (1e-6, -1e-6))
        along = (np.asarray(gradient.log_potentials[0]) * direction).sum()
        np.testing.assert_allclose(along, (ahead - behind) / 2e-6, atol=1e-7)


@pytest.mark.usefixtures("as_a_user")
def test_bad_input():
    model, x, _ = categorical()
    other = categorical()[1]
    states = np.zeros(2, int)
    cases = [
        (
            lambda: ebm.sample(model, ebm.PMP(2), 2, key=KEY, start=(states, None)),
            r"`start` must be a dict",
        ),
        (
            lambda: ebm.sample(model, ebm.PMP(2), 2, key=KEY, start={x: states}, clamped=True),
            r"`clamped` must be a dictionary",
        ),
        (
            lambda: ebm.sample(model, ebm.PMP(2), 2, key=KEY, clamped={x: True}),
            r"`start` must hold the states of all groups",
        ),
        (
            lambda: ebm.sample(
                model, ebm.PMP(2), 2, key=KEY, start={x: states + 5}, clamped={x: True}
            ),
            r"states from 0 to 2",
        ),
        (
            lambda: ebm.sample(
                model, ebm.PMP(2), 2, key=KEY, start={other: states}, clamped={other: True}
            ),
            r"must be a group of the graph",
        ),
        (
            lambda: ebm.sample(
                model, ebm.PMP(2), 2, key=KEY, start={x: np.zeros((3, 2), int)}, clamped={x: True}
            ),
            r"one for each of 2 samples, got",
        ),
        (
            lambda: ebm.pmp_bound(model, key=KEY, solver=ebm.MPLP()),
            r"layers of units .* for a solver that is an inference, got a FactorGraphModel",
        ),
    ]
    for call, message in cases:
        with pytest.raises((ValueError, TypeError, KeyError), match=message):
            call()


def test_images_by_convolution():
    """Against placing each feature where it is said to be; no image is empty."""
    data = datasets.binary_convolution(5, seed=1, size=8, density=0.02)
    want = np.zeros((5, 8, 8), int)
    for n, f, i, j in zip(*np.nonzero(data.locations), strict=True):
        want[n, i : i + 5, j : j + 5] |= data.features[f]
    np.testing.assert_array_equal(data.images, want)
    assert data.images.any((1, 2)).all()
    assert data.features.shape == (4, 5, 5)
    again = datasets.binary_convolution(5, seed=1, size=8, density=0.02)
    np.testing.assert_array_equal(again.images, data.images)
    with pytest.raises(ValueError, match=r"`size` must be at least 5, got 4"):
        datasets.binary_convolution(5, size=4)
    with pytest.raises(ValueError, match=r"`density` must lie in \(0, 1\), got 0"):
        datasets.binary_convolution(5, density=0.0)
    for features in (np.zeros((0, 3, 3), int), np.zeros((1, 3, 3), int)):
        with pytest.raises(ValueError, match=r"`features` must contain at least one feature"):
            datasets.binary_convolution(5, features=features)
    with pytest.raises(ValueError, match=r"`features` must hold 0 and 1 only, got 2"):
        datasets.binary_convolution(5, features=np.full((1, 2, 2), 2))


@pytest.mark.slow
def test_blind_deconvolution():
    """Features shared by all images, in either order, and where they are: from the images alone."""
    from benchmarks._deconvolution import built, recovered

    true = np.array([[[1, 1, 1], [0, 1, 0], [0, 1, 0]], [[1, 0, 1], [0, 1, 0], [1, 0, 1]]])
    data = datasets.binary_convolution(12, size=6, density=0.04, features=true)
    problem = built(data.images, 2, 3, -1.1, -172.7, 230.3)
    # One sample in ten finds a feature only in part; with this key none does.
    samples, info = ebm.sample_with_info(problem.model, ebm.PMP(150), 10, key=4)
    features, locations = (np.asarray(samples[g]) for g in (problem.features, problem.locations))
    assert np.isfinite(info.energy).all()
    for found, places in zip(features, locations, strict=True):
        assert min(recovered(found, true)) == 1
        np.testing.assert_array_equal(datasets.convolved(found, places, 6), data.images)
    first = (features[:, 0] == true[0]).all((1, 2))
    assert 0 < first.sum() < 10  # Both modes are met.


@pytest.mark.slow
def test_deconvolution_in_turns():
    """One feature free at a time finds both from sweeps that are too few for one run."""
    from benchmarks._deconvolution import built, in_turns, recovered, sampled

    true = np.array([[[1, 1, 1], [0, 1, 0], [0, 1, 0]], [[1, 0, 1], [0, 1, 0], [1, 0, 1]]])
    data = datasets.binary_convolution(12, size=6, density=0.08, features=true)
    problem = built(data.images, 2, 3, -1.1, -172.7, 230.3)
    first = sampled(problem, ebm.PMP(25, damping=0.3), 10, seed=0)
    best = sampled(problem, in_turns(problem, 100, 0.3), 10, seed=0)
    assert all(min(recovered(found, true)) < 1 for found in first.features)
    assert all(min(recovered(found, true)) == 1 for found in best.features)
    assert (best.energy < first.energy).all()
    # The energy is that of features and locations, by hand.
    for found, places, energy in zip(best.features, best.locations, best.energy, strict=True):
        wrong = datasets.convolved(found, places, 6) != data.images
        want = 1.1 * found.sum() + 172.7 * places.sum() + 230.3 * (wrong.sum() - data.images.sum())
        np.testing.assert_allclose(energy, want, rtol=1e-4)


def test_overlap_of_features():
    from benchmarks._deconvolution import recovered

    true = datasets.binary_convolution(1).features
    found = np.zeros((5, 6, 6), int)
    for k, f in enumerate((3, 1, 0)):  # The third is missing.
        found[k, k % 2 : k % 2 + 5, 1:] = true[f]
    found[4] = 1
    best = recovered(found, true)
    np.testing.assert_allclose([best[0], best[1], best[3]], 1)
    assert best[2] == pytest.approx(true[2].sum() / 36)
    # Each found one serves once.
    doubled = recovered(found, np.stack([true[3], true[3]]))
    assert sorted(x >= 0.9 for x in doubled) == [False, True]


@pytest.mark.slow
def test_partition_function_of_a_torus():
    from benchmarks._ising import exchanged, log_partition_of_torus, spins, torus

    for side in (3, 4):
        model = spins(torus(side, 0.3))
        want = oracle.truth(model).log_z
        got = log_partition_of_torus(side, 0.3) + exchanged(model)
        np.testing.assert_allclose(got, want, rtol=1e-5)
    s = np.array(list(itertools.product((-1, 1), repeat=9)))
    energy = np.einsum("si,ij,sj->s", s, torus(3, 0.3), s) / 2
    np.testing.assert_allclose(log_partition_of_torus(3, 0.3), np.log(np.exp(energy).sum()))
