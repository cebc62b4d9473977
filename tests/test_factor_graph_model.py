"""PGMax graphs as models: against PGMax itself, and against enumeration."""

import gc
import itertools
import math
import weakref
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from pgmax import fgraph, fgroup, infer
from untyped import nd_var_array

import ebmlearn as ebm
import ebmlearn.pgmax
from ebmlearn.pgmax import FactorGraphModel, MatrixBP


pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def as_pgmax():
    """PGMax is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class Mixed:
    """An RBM of 4×3 whose visible variables are joined by all kinds of factors to others, one of
    three states. With `loops=False` a tree: the RBM has then one hidden variable.
    """

    def __init__(self, seed=0, loops=True, scale=1.0):
        from pgmax import factor, fgraph, fgroup, vgroup

        rng = np.random.default_rng(seed)
        self.a = nd_var_array(num_states=2, shape=(2, 2))
        self.b = nd_var_array(num_states=2, shape=(3 if loops else 1,))
        self.c = nd_var_array(num_states=2, shape=(4,))
        self.d = cast(Any, vgroup.VarDict(num_states=3, variable_names=("left", "right")))
        self.variables = [self.a, self.b, self.c, self.d]
        self.graph = fgraph.FactorGraph(self.variables)
        a, c, d = self.a, self.c, self.d
        weights = scale * rng.normal(size=(4, len(self.b.variables)))
        self.rbm = ebmlearn.pgmax.RBMFactorGroup(a, self.b, weights)
        self.graph.add_factors(self.rbm)
        self.pairs = fgroup.PairwiseFactorGroup(
            variables_for_factors=[[a[0, 0], d["left"]], [c[0], d["right"]]],
            log_potential_matrix=scale * rng.normal(size=(2, 2, 3)),
        )
        self.graph.add_factors(self.pairs)
        self.triple = fgroup.EnumFactorGroup(
            variables_for_factors=[[d["left"], c[1], d["right"]]] if loops else [[d["left"], c[1]]],
            factor_configs=np.array([[0, 0, 1], [1, 1, 1], [2, 0, 0], [2, 1, 2]])[
                :, : 3 if loops else 2
            ],
            log_potentials=scale * rng.normal(size=4),
        )
        self.graph.add_factors(self.triple)
        self.graph.add_factors(
            fgroup.ORFactorGroup([[a[0, 0], a[1, 0], c[0]]] if loops else [[c[2], c[3], c[0]]])
        )
        self.graph.add_factors(
            fgroup.ANDFactorGroup([[a[0, 1], a[1, 1], c[1], c[2]]] if loops else [[a[1, 1], c[2]]])
        )
        if loops:
            self.graph.add_factors(fgroup.PoolFactorGroup([[a[0, 0], c[2], c[3]]]))
        single = factor.EnumFactor(
            variables=[a[1, 0]],
            factor_configs=np.array([[0], [1]]),
            log_potentials=scale * rng.normal(size=2),
        )
        self.graph.add_factors(single)
        self.evidence = {
            g: scale * rng.normal(size=(*g.num_states.shape, int(g.num_states.max())))
            for g in self.variables
        }
        self.pgmax_evidence: dict[Any, Any] = dict(self.evidence)
        left, right = self.evidence[d]
        self.pgmax_evidence[d] = {"left": left, "right": right}

    def model(self):
        return FactorGraphModel(self.graph).with_evidence(self.evidence)


def pool_tree():
    """A pool factor, and a pairwise factor at each of its variables."""
    from pgmax import fgraph, fgroup

    rng = np.random.default_rng(3)
    x = nd_var_array(num_states=2, shape=(4,))
    y = nd_var_array(num_states=2, shape=(4,))
    graph = fgraph.FactorGraph([x, y])
    graph.add_factors(fgroup.PoolFactorGroup([x.variables]))
    pairs = [[x[i], y[i]] for i in range(4)]
    tables = rng.normal(size=(4, 2, 2))
    graph.add_factors(
        fgroup.PairwiseFactorGroup(variables_for_factors=pairs, log_potential_matrix=tables)
    )
    evidence = {x: rng.normal(size=(4, 2)), y: rng.normal(size=(4, 2))}
    return FactorGraphModel(graph).with_evidence(evidence), [x, y]


def near(found, expected, atol):
    """Of a group, or of the variables of a dictionary by name."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol), found, expected)


def values(named, variables):
    return [np.asarray(named.take(group, "x")) for group in variables]


def enumerated(model):
    """All configurations, and their probabilities."""
    rows = np.array(list(itertools.product(*(range(n) for n in model.num_states))), np.int32)
    energy = np.asarray(model.energy(jnp.asarray(rows)), np.float64)
    weights = np.exp(-energy)
    return rows, weights / weights.sum(), math.log(weights.sum()), energy


@pytest.fixture
def optimised():
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_the_same_as_pgmax(temperature):
    from pgmax import infer

    with oracle.x64(True):
        mixed = Mixed()
        model = mixed.model()
        bp, ours = infer.BP(mixed.graph.bp_state), MatrixBP(mixed.graph.bp_state)
        arrays = bp.init(evidence_updates=mixed.pgmax_evidence)
        mine = ours.init(evidence_updates=mixed.pgmax_evidence)
        given = model.bp_arrays(mixed.graph.bp_state)
        np.testing.assert_array_equal(given.log_potentials, arrays.log_potentials)
        np.testing.assert_array_equal(given.evidence, arrays.evidence)
        for iterations, damping in ((1, 0.0), (30, 0.5)):
            run = jax.jit(lambda a, n=iterations, d=damping: bp.run(a, n, d, temperature))
            theirs = run(arrays)
            here = ours.run(mine, iterations, damping, temperature)
            np.testing.assert_allclose(here.ftov_msgs, theirs.ftov_msgs, atol=1e-9)
            expected, found = bp.get_beliefs(theirs), ours.get_beliefs(here)
            for one, two in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
                np.testing.assert_allclose(two, one, atol=1e-9)
            product: dict[str, Any]
            product = {"product": "max"} if temperature == 0 else {"temperature": temperature}
            settings = ebm.BP(iterations, damping=damping, start="plain", **product)
            beliefs = settings(model)
            marginals = infer.get_marginals(expected)
            for group in mixed.variables[:3]:
                np.testing.assert_allclose(beliefs[group], marginals[group], atol=1e-9)
            left = np.asarray(marginals[mixed.d]["left"])
            np.testing.assert_allclose(beliefs[mixed.d]["left"], left, atol=1e-9)
        states = infer.decode_map_states(expected)
        for group in mixed.variables[:3]:
            np.testing.assert_array_equal(beliefs.decode()[group], states[group])
        # The state of the whole is PGMax's again.
        again = cast(Any, ours.to_bp_state(here))
        np.testing.assert_array_equal(again.ftov_msgs.value, here.ftov_msgs)


@pytest.mark.slow
def test_energies_are_those_of_pgmax():
    from pgmax import fgraph, fgroup, infer

    mixed = Mixed()
    groups = mixed.variables[:3]
    a, b, c = groups
    graph = fgraph.FactorGraph(groups)
    graph.add_factors(ebmlearn.pgmax.RBMFactorGroup(a, b, np.asarray(mixed.rbm.weights)))
    graph.add_factors(fgroup.ORFactorGroup([[a[0, 0], a[1, 0], c[0]]]))
    graph.add_factors(fgroup.PoolFactorGroup([[a[0, 0], c[2], c[3]]]))
    evidence = {g: mixed.evidence[g] for g in groups}
    model = FactorGraphModel(graph).with_evidence(evidence)
    arrays = infer.BP(graph.bp_state).init(evidence_updates=evidence)
    rng = np.random.default_rng(1)
    broken = 0
    for _ in range(40):
        states = {g: rng.integers(0, 2, g.shape) for g in groups}
        expected, _, _ = infer.compute_energy(graph.bp_state, arrays, states)
        broken += not np.isfinite(expected)
        np.testing.assert_allclose(model.energy(states), expected, atol=1e-5)
    assert 0 < broken < 40


@pytest.mark.slow
@pytest.mark.parametrize("product", ["sum", "max"])
def test_exact_is_enumeration(product):
    mixed = Mixed()
    model = mixed.model()
    rows, p, log_z, energy = enumerated(model)
    beliefs = ebm.Exact(product=product)(model)
    if product == "max":
        best = rows[energy.argmin()]
        np.testing.assert_allclose(beliefs.log_partition, -energy.min(), atol=1e-5)
        found = np.concatenate([x.ravel() for x in values(beliefs.decode(), mixed.variables)])
        np.testing.assert_array_equal(found, best)
        return
    np.testing.assert_allclose(beliefs.log_partition, log_z, atol=1e-5)
    np.testing.assert_allclose(
        beliefs[mixed.b][:, 1], [(p * rows[:, 4 + i]).sum() for i in range(3)], atol=1e-6
    )
    np.testing.assert_allclose(
        beliefs[mixed.d]["right"], [(p * (rows[:, -1] == s)).sum() for s in range(3)], atol=1e-6
    )
    both = np.einsum("c,ci,cj->ij", p, rows[:, :4], rows[:, 4:7])
    np.testing.assert_allclose(beliefs.pairwise[mixed.rbm], both, atol=1e-6)
    configurations = [[0, 0, 1], [1, 1, 1], [2, 0, 0], [2, 1, 2]]
    met = [(rows[:, [11, 8, 12]] == np.array(c)).all(1) @ p for c in configurations]
    np.testing.assert_allclose(beliefs.pairwise[mixed.triple][0], met, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("product", ["sum", "max"])
def test_trees_are_exact(product):
    with oracle.x64(True):
        mixed = Mixed(loops=False)
        pool, pools = pool_tree()
        cases = [
            (mixed.model(), mixed.variables, {mixed.a: np.array([[-1, -1], [-1, -1]])}),
            (mixed.model(), mixed.variables, {mixed.a: np.array([[1, -1], [0, 1]])}),
            (mixed.model(), mixed.variables, {mixed.c: np.array([1, -1, 0, -1])}),
            (pool, pools, {pools[0]: np.array([-1, -1, -1, -1])}),
            (pool, pools, {pools[0]: np.array([1, -1, -1, -1])}),
            (pool, pools, {pools[0]: np.array([0, 0, -1, -1]), pools[1]: np.array([1, 0, 1, -1])}),
        ]
        for model, variables, evidence in cases:
            exact = ebm.Exact(product=product)(model, evidence)
            beliefs = ebm.BP(30, product=product)(model, evidence)
            assert beliefs.converged
            np.testing.assert_allclose(beliefs.log_partition, exact.log_partition, atol=1e-6)
            for one, two in zip(
                values(beliefs.decode(), variables), values(exact.decode(), variables), strict=True
            ):
                np.testing.assert_array_equal(one, two)
            if product == "sum":
                for group in variables:
                    near(beliefs[group], exact[group], 1e-6)
                for one, two in zip(beliefs.pairwise.values, exact.pairwise.values, strict=True):
                    np.testing.assert_allclose(one, two, atol=1e-6)
                answer = ebm.query(model, evidence, inference=ebm.BP(30))
                group = variables[-1]
                near(answer[group], beliefs[group], 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ORFactorGroup", "ANDFactorGroup", "PoolFactorGroup"])
@pytest.mark.parametrize("strength", [12.0, 60.0])
def test_rare_states_are_not_excluded(kind, strength):
    """Where PGMax's logical factors send -1e32; to the last digits."""
    from pgmax import fgraph, fgroup

    with oracle.x64(True):
        x = nd_var_array(num_states=2, shape=(4,))
        graph = fgraph.FactorGraph([x])
        graph.add_factors(getattr(fgroup, kind)([x.variables]))
        odds = np.array([-strength, -strength - 1, -strength - 2, 3.0])
        odds = -odds if kind == "ANDFactorGroup" else odds
        model = FactorGraphModel(graph).with_evidence({x: np.stack([0 * odds, odds], 1)})
        rows, p, _, _ = enumerated(model)
        expected = [math.log(p[rows[:, i] == 1].sum() / p[rows[:, i] == 0].sum()) for i in range(4)]
        found = np.asarray(ebm.BP(5)(model).log_odds[x])
        np.testing.assert_allclose(found[:, 1] - found[:, 0], expected, rtol=1e-12)


@pytest.mark.slow
def test_low_temperatures(temperature=0.01):
    """On trees, logical and pool factors among them, to the last digits."""
    with oracle.x64(True):
        for model, variables in (pool_tree(), (Mixed(loops=False).model(), None)):
            rows, _, _, energy = enumerated(model)
            scores = -energy / temperature
            expected = scores.max() + math.log(np.exp(scores - scores.max()).sum())
            beliefs = ebm.BP(30, temperature=temperature)(model)
            np.testing.assert_allclose(
                beliefs.log_partition, temperature * expected, rtol=1e-12, atol=1e-12
            )
            if variables is not None:
                # A score is the logarithm of a sum at that temperature, and so are PGMax's.
                state = np.exp(scores - scores.max())
                odds = state[rows[:, 0] == 1].sum() / state[rows[:, 0] == 0].sum()
                found = beliefs.log_odds[variables[0]][0]
                np.testing.assert_allclose(
                    found[1] - found[0], temperature * math.log(odds), rtol=1e-10
                )


@pytest.mark.slow
def test_gradient_of_the_bethe_free_energy():
    """At a fixed point it is the expected statistics, in all parameters."""
    with oracle.x64(True):
        mixed = Mixed(scale=0.5)
        model = mixed.model()
        inference = ebm.BP(400, tol=1e-13, damping=0.3)
        assert inference(model).converged

        def log_z(model):
            return inference(model).log_partition

        gradient = eqx.filter_grad(log_z)(model)
        statistics = inference.statistics(model)
        for one, two in zip(gradient.log_potentials, statistics.pairwise.values, strict=True):
            np.testing.assert_allclose(one, two, atol=1e-7)
        for one, two in zip(gradient.evidence, statistics.units.values, strict=True):
            np.testing.assert_allclose(one, two, atol=1e-7)
        # Against differences too, through the whole iteration.
        moved = model.with_evidence({mixed.b: mixed.evidence[mixed.b] + np.array([0, 1e-5])})
        change = (log_z(moved) - log_z(model)) / 1e-5
        np.testing.assert_allclose(change, gradient.evidence[1][:, 1].sum(), atol=1e-5)


@pytest.mark.slow
def test_clamping_never_gives_nan():
    mixed = Mixed()
    model = mixed.model()
    full = {g: np.zeros(g.num_states.shape, int) for g in mixed.variables}
    contradiction = {mixed.a: np.ones((2, 2), int), mixed.c: np.zeros(4, int)}
    rows, _, _, energy = enumerated(model)
    best = oracle.by_group(model, rows[energy.argmin()])
    likely = {g: np.asarray(best.take(g, "x")) for g in mixed.variables}
    for evidence in (full, contradiction, likely):
        given = np.asarray(model.rows(evidence))
        some = np.isfinite(energy[((given < 0) | (rows == given)).all(1)]).any()
        assert some == (evidence is likely)
        for product in ("sum", "max"):
            beliefs = ebm.BP(20, product=product, damping=0.1)(model, evidence)
            for group in mixed.variables:
                own = np.asarray(beliefs.means.take(group, "x"))
                assert np.isfinite(own).all()
            assert np.isfinite(beliefs.log_partition) == some == bool(beliefs.converged)
            for group, states in evidence.items():
                np.testing.assert_array_equal(beliefs.decode().take(group, "x"), states)
                held = np.take_along_axis(
                    np.asarray(beliefs.means.take(group, "x")), states[..., None], -1
                )
                np.testing.assert_array_equal(held, 1)
    # Forbidden by evidence of minus infinity, which is made finite.
    forbidden = model.with_evidence({mixed.d: jnp.array([[0.0, -jnp.inf, 0.0], [0, 0, 0]])})
    beliefs = ebm.BP(20, damping=0.1)(forbidden)
    assert beliefs[mixed.d]["left"][1] == 0
    assert all(np.isfinite(np.asarray(x)).all() for x in beliefs[mixed.d].values())


@pytest.mark.slow
def test_masks_and_likelihoods():
    mixed = Mixed()
    model, inference = mixed.model(), ebm.Exact()
    states = np.array([[[1, 0], [1, 1]], [[0, 0], [1, 0]]])
    mask = np.array([[[True, False], [False, True]], [[False, False], [True, True]]])
    both = inference(model, {mixed.a: states}, {mixed.a: mask})
    rows, p, _, _ = enumerated(model)
    for row in range(2):
        met = (rows[:, :4] == states[row].ravel())[:, mask[row].ravel()].all(1)
        expected = (p * met) @ rows[:, 4:7] / (p @ met)
        np.testing.assert_allclose(both[mixed.b][row, :, 1], expected, atol=1e-5)
    likelihood = np.array([[0.2, 0.5, 0.0], [1.0, 1.0, 3.0]])
    soft = inference(model, {mixed.d: likelihood})
    weighted = p * likelihood[0, rows[:, 11]] * likelihood[1, rows[:, 12]]
    expected = weighted @ rows[:, :4] / weighted.sum()
    np.testing.assert_allclose(soft[mixed.a][..., 1].ravel(), expected, atol=1e-5)
    # Rows of one array are the same as groups.
    given = model.rows({mixed.a: np.where(mask, states, -1)})
    np.testing.assert_array_equal(given[:, 4:], -1)
    np.testing.assert_array_equal(inference(model, given)[mixed.c], both[mixed.c])


@pytest.mark.slow
def test_temperature_is_learned():
    """It may be traced and differentiated, although PGMax's is static."""
    with oracle.x64(True):
        mixed = Mixed(scale=0.5)
        model = mixed.model()

        def first(temperature):
            settings = ebm.BP(10, temperature=temperature, damping=0.2, unroll=True)
            return settings(model)[mixed.b][0, 1]

        found = jax.jit(jax.grad(first))(jnp.asarray(0.7))
        expected = (first(0.7 + 1e-5) - first(0.7 - 1e-5)) / 2e-5
        np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.slow
def test_graphs_of_one_shape_share_what_is_compiled():
    """And nothing of ours keeps a graph alive, so that many can be built and dropped."""
    held, compiled = [], []
    identity = eqx.filter_jit(lambda model: model)

    def one(seed):
        mixed = Mixed(seed)
        model = FactorGraphModel(mixed.graph)
        beliefs = ebm.BP(3)(model, {mixed.a: np.ones((2, 2, 2), int)})
        jax.block_until_ready(beliefs[mixed.b])
        # What a compiled function returns knows its own graph, not that it was compiled for.
        same = identity(model)
        assert same.factor_groups.index(mixed.rbm, "x") == 3
        held.extend([weakref.ref(mixed.rbm), weakref.ref(mixed.a)])
        return np.asarray(beliefs[mixed.b])

    def listener(event, duration_secs, **kwargs):
        if "jaxpr_trace" in event:
            compiled.append(event)

    first = one(0)
    ebmlearn.pgmax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        assert np.abs(one(1) - first).max() > 1e-3
        compiled.clear()
        for seed in range(2, 60):
            one(seed)
        assert not compiled
    finally:
        jax.monitoring.clear_event_listeners()
    ebmlearn.pgmax.clear_caches()
    gc.collect()
    assert sum(ref() is not None for ref in held) == 0


def test_clear_caches_frees_the_states_of_graphs_that_were_used():
    """After all that keeps them: new evidence, messages, log-potentials and beliefs."""
    states = []
    for seed in range(16):
        x = nd_var_array(2, (3,))
        graph = fgraph.FactorGraph([x])
        pairs = np.random.default_rng(seed).normal(size=(2, 2, 2))
        group = fgroup.PairwiseFactorGroup([[x[0], x[1]], [x[1], x[2]]], pairs)
        graph.add_factors(group)
        bp = infer.build_inferer(graph.bp_state, backend="bp")
        arrays = bp.init({group: pairs}, {x[0]: np.zeros(2)}, {x: np.ones((3, 2))})
        infer.decode_map_states(bp.get_beliefs(arrays))
        states.append(weakref.ref(graph.fg_state))
        del x, graph, group, bp, arrays
        ebmlearn.pgmax.clear_caches()
    gc.collect()
    assert sum(state() is not None for state in states) == 0


@pytest.mark.slow
def test_a_model_may_be_traced_saved_and_loaded(tmp_path):
    mixed = Mixed()
    model = mixed.model()

    @jax.jit
    def scaled(factor):
        return model.with_log_potentials({mixed.rbm: factor * model.log_potentials_of(mixed.rbm)})

    twice = scaled(2.0)
    np.testing.assert_allclose(twice.log_potentials[3], 2 * model.log_potentials[3])
    answer = jax.jit(lambda m: ebm.BP(5)(m)[mixed.b])(twice)
    np.testing.assert_allclose(answer, ebm.BP(5)(twice)[mixed.b], atol=1e-6)
    ebm.save(tmp_path / "model.ebm", twice)
    again = ebm.load(tmp_path / "model.ebm", model)
    np.testing.assert_array_equal(again.log_potentials[3], twice.log_potentials[3])
    np.testing.assert_array_equal(ebm.BP(5)(again)[mixed.b], ebm.BP(5)(twice)[mixed.b])


def grid_oracle(table, side, states) -> Any:
    """Exact log Z of a grid with one table for all factors, rightwards and downwards, by rows."""
    rows = np.array(list(itertools.product(range(states), repeat=side)))
    within = sum(table[rows[:, i], rows[:, i + 1]] for i in range(side - 1))
    between = sum(table[rows[:, None, i], rows[None, :, i]] for i in range(side))
    return rows, within, between


def grid_log_z(table, side=4, states=3):
    _, within, between = grid_oracle(table, side, states)
    message = within
    for _ in range(side - 1):
        joint = message[:, None] + between
        top = joint.max(0)
        message = top + np.log(np.exp(joint - top).sum(0)) + within
    return message.max() + math.log(np.exp(message - message.max()).sum())


def grid_sample(table, number, rng, side=4, states=3):
    """Exact samples: backward messages by rows, then rows drawn from the first on."""
    rows, within, between = grid_oracle(table, side, states)
    backward = [np.zeros(len(rows))]
    for _ in range(side - 1):
        joint = between + (within + backward[0])[None, :]
        top = joint.max(1)
        backward.insert(0, top + np.log(np.exp(joint - top[:, None]).sum(1)))
    out = np.empty((number, side, side), int)
    for n in range(number):
        scores = within + backward[0]
        for k in range(side):
            p = np.exp(scores - scores.max())
            drawn = rng.choice(len(rows), p=p / p.sum())
            out[n, k] = rows[drawn]
            if k + 1 < side:
                scores = between[drawn] + within + backward[k + 1]
    return out


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_fit_recovers_a_tied_grid():
    from pgmax import fgraph, fgroup

    rng = np.random.default_rng(0)
    truth = 0.4 * rng.normal(size=(3, 3))
    data = grid_sample(truth, 2000, rng)
    x = nd_var_array(num_states=3, shape=(4, 4))
    graph = fgraph.FactorGraph(x)
    right = [[x[i, j], x[i, j + 1]] for i in range(4) for j in range(3)]
    down = [[x[i, j], x[i + 1, j]] for i in range(3) for j in range(4)]
    pairs = fgroup.PairwiseFactorGroup(
        variables_for_factors=right + down, log_potential_matrix=np.zeros((3, 3))
    )
    graph.add_factors(pairs)
    model = FactorGraphModel(graph)
    fitted = ebm.fit(
        jnp.zeros((3, 3)),
        ebm.MLE(ebm.BP(20)),
        {x: data},
        build=lambda table: model.with_log_potentials({pairs: table}),
        optimizer=optax.adam(optax.cosine_decay_schedule(0.05, 200)),
        epochs=40,
        batch_size=400,
        key=jax.random.key(0),
        progress=False,
    )
    assert fitted.history.epochs["converged"][-1] > 0.99

    def log_likelihood(table):
        chosen = table[data[:, :, :-1], data[:, :, 1:]].sum((1, 2))
        chosen = chosen + table[data[:, :-1], data[:, 1:]].sum((1, 2))
        return chosen.mean() - grid_log_z(table)

    found = np.asarray(fitted.parameters, np.float64)
    # A constant changes nothing; the rest is found, and is as likely as the truth is.
    np.testing.assert_allclose(found - found.mean(), truth - truth.mean(), atol=0.12)
    assert log_likelihood(found) > log_likelihood(truth) - 0.01
    assert log_likelihood(found) > log_likelihood(np.zeros((3, 3))) + 0.3


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_fit_recovers_an_rbm_joined_to_a_chain():
    """Hidden variables are not observed, and evidence is frozen; the likelihood is exact."""
    from pgmax import fgraph, fgroup

    rng = np.random.default_rng(1)
    v = nd_var_array(num_states=2, shape=(5,))
    h = nd_var_array(num_states=2, shape=(2,))
    z = nd_var_array(num_states=3, shape=(3,))
    graph = fgraph.FactorGraph([v, h, z])
    rbm = ebmlearn.pgmax.RBMFactorGroup(v, h, 1.5 * rng.normal(size=(5, 2)))
    chain = fgroup.PairwiseFactorGroup(
        variables_for_factors=[[z[0], z[1]], [z[1], z[2]]],
        log_potential_matrix=rng.normal(size=(2, 3, 3)),
    )
    joint = fgroup.PairwiseFactorGroup(
        variables_for_factors=[[v[4], z[0]]], log_potential_matrix=rng.normal(size=(1, 2, 3))
    )
    for group in (rbm, chain, joint):
        graph.add_factors(group)
    truth = FactorGraphModel(graph)
    rows, p, _, _ = enumerated(truth)
    drawn = rows[rng.choice(len(rows), size=3000, p=p)]
    data = {v: drawn[:, :5], z: drawn[:, 7:]}
    start = truth.with_log_potentials(
        {
            rbm: 0.1 * rng.normal(size=(5, 2)),
            chain: np.zeros((2, 3, 3)),
            joint: np.zeros((1, 2, 3)),
        }
    )
    frozen = jax.tree.map(lambda _: False, start)
    frozen = eqx.tree_at(lambda m: m.log_potentials, frozen, (True, True, True))
    free, frozen = eqx.partition(start, frozen)
    fitted = ebm.fit(
        free,
        ebm.MLE(ebm.BP(15)),
        data,
        build=lambda free: eqx.combine(free, frozen),
        optimizer=optax.adam(optax.cosine_decay_schedule(0.05, 400)),
        epochs=40,
        batch_size=300,
        key=jax.random.key(0),
        progress=False,
    )

    def marginal(model):
        """Of what is observed, hidden variables summed out."""
        scores = np.exp(-enumerated(model)[3])
        table = np.zeros((32, 27))
        left = rows[:, :5] @ 2 ** np.arange(5)
        np.add.at(table, (left, rows[:, 7:] @ 3 ** np.arange(3)), scores / scores.sum())
        return table

    # Other tables give the same distribution; it is what is found, within the error of 3000 rows.
    gap = np.abs(marginal(fitted.model) - marginal(truth)).sum() / 2
    empirical = np.zeros((32, 27))
    seen = drawn[:, :5] @ 2 ** np.arange(5), drawn[:, 7:] @ 3 ** np.arange(3)
    np.add.at(empirical, seen, 1 / 3000)
    assert gap < 0.06 < np.abs(empirical - marginal(truth)).sum() / 2
    gain = np.log(marginal(fitted.model))[seen].mean() - np.log(marginal(truth))[seen].mean()
    assert gain > -0.01
    # What is frozen stays what it was.
    for one, two in zip(fitted.model.evidence, start.evidence, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.slow
def test_gradient_of_mle_is_that_of_the_likelihood():
    with oracle.x64(True):
        model, (x, y) = pool_tree()
        rows = model.rows({x: np.array([[0, 1, -1, -1], [0, 0, 0, 0]]), y: np.array([0, 1, -1, 1])})

        def loss(model):
            held = ebm.Exact()(model, rows).log_partition
            return (ebm.Exact()(model).log_partition - held).mean()

        value, expected = eqx.filter_value_and_grad(loss)(model)
        learner = ebm.MLE(ebm.Exact(), loss=True)
        gradient, _, info = learner.step(model, None, rows, key=jax.random.key(0), epoch=0)
        np.testing.assert_allclose(info.loss, value)
        for one, two in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, two, atol=1e-9)


MODELS = {
    "rbm": oracle.random_rbm,
    "boltzmann": oracle.random_boltzmann,
    "dbm": oracle.random_dbm,
    "semi-restricted": oracle.random_semi,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_become_graphs(name):
    with oracle.x64(True):
        model = MODELS[name](np.random.default_rng(0), dtype="float64")
        graph, variables, evidence = ebmlearn.pgmax.to_pgmax(model)
        as_graph = FactorGraphModel(graph).with_evidence(evidence)
        _, _, log_z, _ = enumerated(as_graph)
        np.testing.assert_allclose(log_z, ebm.Exact()(model).log_partition)
        plain, ours = ebm.BP(30, schedule="flooding")(model), ebm.BP(30)(as_graph)
        for group, log_odds in zip(
            jax.tree.leaves(variables), jax.tree.leaves(plain.log_odds), strict=True
        ):
            np.testing.assert_allclose(ours[group][:, 1], jax.nn.sigmoid(log_odds), atol=1e-6)


def _mixed(rng):
    """Binary and categorical groups, joined twice by weights and by tables."""
    factors = [
        ebm.Dense("visible", "hidden", rng.normal(size=(3, 2))),
        ebm.Dense("hidden", "visible", rng.normal(size=(2, 3))),
        ebm.Dense("label", "hidden", rng.normal(size=(6, 2))),
        ebm.Tables(("kind", "label"), rng.normal(size=(2, 3))),
        ebm.Tables(
            ("label", "kind"), rng.normal(size=(2, 3, 2)), members=np.array([[0, 0], [1, 0]])
        ),
        ebm.Tables(("label",), np.array([-np.inf, 0.5, 0.2])),
        ebm.Tables((), np.asarray(0.7)),
    ]
    units = {
        "visible": ebm.Binary(3),
        "label": ebm.Categorical(2, 3),
        "hidden": ebm.Binary(2),
        "kind": ebm.Categorical(1, 2),
    }
    unary = {"label": rng.normal(size=6), "visible": rng.normal(size=3)}
    return ebm.FactorModel(units, factors, unary)


def _potts(rng):
    """Categorical layers joined to each other, to themselves, and to binary units."""
    inside = rng.normal(size=(3, 2, 3, 2))
    inside = (inside + inside.transpose(2, 3, 0, 1)) / 2
    inside[range(3), :, range(3)] = 0
    layers = {
        "visible": ebm.Categorical(3, 2),
        "label": ebm.Categorical(2, 3),
        "hidden": ebm.Binary(2),
    }
    blocks = {
        ("visible", "visible"): inside.reshape(6, 6),
        ("label", "visible"): rng.normal(size=(6, 6)),
        ("hidden", "label"): rng.normal(size=(2, 6)),
    }
    unary = {"visible": rng.normal(size=6), "hidden": rng.normal(size=2)}
    return ebm.LayeredModel(layers, blocks, unary)


@pytest.mark.slow
@pytest.mark.parametrize("make", [_mixed, _potts])
def test_groups_of_any_units_become_graphs(make):
    with oracle.x64(True):
        model = make(np.random.default_rng(2))
        graph, variables, evidence = ebmlearn.pgmax.to_pgmax(model)
        as_graph = FactorGraphModel(graph).with_evidence(evidence)
        own, theirs = ebm.Exact()(model), ebm.Exact()(as_graph)
        np.testing.assert_allclose(theirs.log_partition, own.log_partition)
        for name, units in zip(model.names, model.layers, strict=True):
            if make is _mixed:
                group, p = variables[name], np.asarray(own[name])
                p = np.stack([1 - p, p], -1) if p.ndim == 1 else p
            else:
                group = getattr(variables, name)
                p = jax.nn.softmax(units.scores(getattr(own.log_odds, name)), -1)
            np.testing.assert_allclose(theirs[group], p, atol=1e-9)


def test_conditional_rbm_group():
    from pgmax import fgraph, infer

    with oracle.x64(True):
        keys = jax.random.split(jax.random.key(0), 2)
        crbm = ebm.CRBM.init(6, 4, 5, key=keys[0], scale=1.0)
        x = jax.random.normal(keys[1], (3, 5))
        v = nd_var_array(num_states=2, shape=(2, 3))
        h = nd_var_array(num_states=2, shape=(4,))
        group = ebmlearn.pgmax.CRBMFactorGroup(v, h, crbm)
        graph = fgraph.FactorGraph([v, h])
        graph.add_factors(group)
        expected = ebm.BP(30, schedule="flooding", start="plain")(crbm.condition(x))
        for bp in (MatrixBP(graph.bp_state), infer.BP(graph.bp_state)):

            def beliefs(x, bp=bp):
                arrays = bp.init(evidence_updates=group.evidence(x))
                found = bp.get_beliefs(bp.run(arrays, 30, 0.0, 1.0))
                return {g: jax.nn.softmax(s)[..., 1] for g, s in found.items()}

            found = jax.vmap(beliefs)(x)
            np.testing.assert_allclose(found[v].reshape(3, 6), expected.visible, atol=1e-6)
            np.testing.assert_allclose(found[h], expected.hidden, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user")
def test_bad_input():
    from pgmax import fgraph, infer
    from pgmax.factor import FAC_TO_VAR_UPDATES

    mixed, other = Mixed(), Mixed()
    model = mixed.model()
    a, b, d = mixed.a, mixed.b, mixed.d
    states = np.zeros((2, 2), int)
    rbm = ebm.RBM.init(3, 2, key=jax.random.key(0))
    crbm = ebm.CRBM.init(3, 2, 4, key=jax.random.key(0))
    x = nd_var_array(num_states=2, shape=(3,))
    key = jax.random.key(0)
    grid = ebmlearn.pgmax.uniform_grid(4, 1.0)
    cases = [
        (
            lambda: FactorGraphModel(cast(Any, rbm)),
            TypeError,
            "`graph` must be a PGMax FactorGraph",
        ),
        (lambda: model.log_potentials_of(other.rbm), KeyError, "`group`"),
        (lambda: model.log_potentials_of(a), KeyError, "must be a factor group of the graph"),
        (lambda: model.with_log_potentials({other.rbm: np.zeros((4, 3))}), KeyError, "`updates`"),
        (lambda: model.with_log_potentials({mixed.rbm: np.zeros((3, 4))}), ValueError, r"\(4, 3\)"),
        (lambda: model.with_log_potentials({mixed.rbm: states}), TypeError, "floating-point"),
        (lambda: model.with_evidence({a: np.full((2, 2, 2), np.nan)}), ValueError, "NaN"),
        (lambda: model.with_evidence({x: np.zeros((3, 2))}), KeyError, "group of the graph"),
        (lambda: model.energy({a: states}), ValueError, "`states` must hold a state of each"),
        (lambda: ebm.BP(2)(model, {a: states + 2}), ValueError, "`evidence`.*0 to 1.*got 2"),
        (lambda: ebm.BP(2)(model, {d: np.array([0, 3])}), ValueError, "0 to 2"),
        (lambda: ebm.BP(2)(model, {a: np.zeros((2, 3), int)}), ValueError, "`evidence`"),
        (lambda: ebm.BP(2)(model, {a: np.zeros((2, 2))}), ValueError, "a likelihood for each"),
        (
            lambda: ebm.fit(model, ebm.MLE(ebm.BP(2)), {a: np.zeros((4, 2, 3), int)}),
            ValueError,
            r"`data` must have shape \(..., 2, 2\), as the group of variables",
        ),
        (
            lambda: ebm.sample(model, ebm.PMP(2), 2, key=key, start={a: np.zeros((2, 3), int)}),
            ValueError,
            "`start` must have shape",
        ),
        (
            lambda: ebm.sample(model, ebm.PMP(2), 2, key=key, start={a: np.zeros((2, 2))}),
            TypeError,
            "`start` must hold states, integers",
        ),
        (
            lambda: ebm.sample(
                model, ebm.PMP(2), 2, key=key, start={a: states}, clamped={a: states}
            ),
            TypeError,
            "`clamped` must hold booleans",
        ),
        (
            lambda: model.with_evidence(np.zeros(3)),  # pyright: ignore
            TypeError,
            "`updates` must be a dictionary",
        ),
        (lambda: ebm.BP(2)(model, {a: -np.ones((2, 2, 2))}), ValueError, ">= 0"),
        (lambda: ebm.BP(2)(model, None, {a: states > 0}), ValueError, "no `evidence`"),
        (lambda: ebm.BP(2)(model, {a: states}, {a: states}), TypeError, "booleans"),
        (lambda: ebm.BP(2)(model, {a: states}, {b: states > 0}), ValueError, "`observed`"),
        (lambda: ebm.BP(2, product="mixed")(model), ValueError, "over which it maximises"),
        (
            lambda: ebm.Exact(product="mixed")(model),
            ValueError,
            "variables over which it maximises",
        ),
        (lambda: ebm.Exact(max_units=3)(model), ValueError, r"at most 2\*\*3 are allowed"),
        (lambda: ebm.MeanField(2)(model), TypeError, "MeanField"),
        (lambda: ebm.CD().step(model, None, {a: states[None]}, key=key, epoch=0), TypeError, "CD"),
        (
            lambda: ebm.MLE(ebm.BP(2), weight_decay=0.1).step(
                model, None, {a: states[None]}, key=key, epoch=0
            ),
            ValueError,
            "`weight_decay`",
        ),
        (
            lambda: ebm.MLE(ebm.BP(2)).step(model, None, {a: states}, key=key, epoch=0),
            ValueError,
            "`batch`",
        ),
        (lambda: model.bp_arrays(pool_graph().bp_state), ValueError, "`bp_state`"),
        (lambda: ebmlearn.pgmax.to_pgmax(crbm), TypeError, "model.condition"),
        (lambda: ebmlearn.pgmax.to_pgmax(rbm, grid), ValueError, "`grid`"),
        (lambda: ebmlearn.pgmax.to_pgmax(cast(Any, 3)), TypeError, "`model`"),
        (lambda: ebmlearn.pgmax.CRBMFactorGroup(x, x, cast(Any, rbm)), TypeError, "a CRBM"),
        (
            lambda: ebmlearn.pgmax.CRBMFactorGroup(cast(Any, [x[0]]), x, crbm),
            TypeError,
            "a group of",
        ),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
    bp = MatrixBP(mixed.graph.bp_state)
    for arguments, message in (
        ((0, 0.0, 1.0), "`num_iters`"),
        ((3, 1.5, 1.0), "`damping`"),
        ((3, 0.5, -1.0), "`temperature`"),
    ):
        with pytest.raises(ValueError, match=message):
            bp.run(bp.init(), *arguments)
    # A graph from before the plugin was imported.
    known = FAC_TO_VAR_UPDATES.pop(ebmlearn.pgmax.RBMFactor)
    early = fgraph.FactorGraph([a, b])
    FAC_TO_VAR_UPDATES[ebmlearn.pgmax.RBMFactor] = known
    FAC_TO_VAR_UPDATES.move_to_end(ebmlearn.pgmax.NNBMFactor)
    with pytest.raises(ValueError, match="after `import ebmlearn"):
        FactorGraphModel(early)
    assert isinstance(bp, infer.Inferer)


def pool_graph():
    from pgmax import fgraph, fgroup

    x = nd_var_array(num_states=2, shape=(3,))
    graph = fgraph.FactorGraph([x])
    graph.add_factors(fgroup.PoolFactorGroup([x.variables]))
    return graph


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user")
def test_a_temperature_of_zero_may_be_an_array():
    bp = MatrixBP(Mixed().graph.bp_state)
    want = bp.run(bp.init(), num_iters=3, damping=0.0, temperature=0.0)
    for zero in (np.float32(0), jnp.asarray(0.0)):
        found = bp.run(bp.init(), num_iters=3, damping=0.0, temperature=zero)
        np.testing.assert_array_equal(found.ftov_msgs, want.ftov_msgs)


def test_low_log_potentials_that_add_up_exclude_nothing():
    from pgmax import fgraph, fgroup

    x = nd_var_array(num_states=2, shape=(8,))
    graph = fgraph.FactorGraph([x])
    pairs = [[x[i], x[i + 1]] for i in range(7)]
    table = np.array([[-1e5, -np.inf], [0.0, -2e5]])
    graph.add_factors(
        fgroup.PairwiseFactorGroup(variables_for_factors=pairs, log_potential_matrix=table)
    )
    model = FactorGraphModel(graph)
    rows = jnp.array([[0] * 8, [1] * 8, [0, 1] * 4])
    np.testing.assert_allclose(model.energy(rows), [7e5, 14e5, np.inf])


def test_configurations_are_listed_once():
    from pgmax import fgraph, fgroup

    x = nd_var_array(num_states=2, shape=(2,))
    graph = fgraph.FactorGraph([x])
    configurations = np.array([[0, 0], [1, 1], [0, 0]])
    graph.add_factors(
        fgroup.EnumFactorGroup(variables_for_factors=[[x[0], x[1]]], factor_configs=configurations)
    )
    with pytest.raises(ValueError, match=r"`graph` must list each .* once, got \(0, 0\)"):
        FactorGraphModel(graph)
