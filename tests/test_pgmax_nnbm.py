"""Quantised nonnegative Boltzmann machines against PGMax's own tables, and against quadrature."""

import itertools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from untyped import nd_var_array

import ebmlearn as ebm
from ebmlearn import NNBM, pgmax as nnbm
from ebmlearn.pgmax import _grid, _nnbm_group


pytestmark = pytest.mark.filterwarnings("default")

KINDS = ("uniform", "geometric", "laguerre")
POINTS = (4, 8, 16, 32)

# One strong coupling, one negative, one weak or none; not positive definite.
BIAS = np.array([0.5, -0.4, 0.8])
LOOPY = np.array([[1.0, 1.5, 0.2], [1.5, 1.2, -0.6], [0.2, -0.6, 0.9]])
CHAIN = LOOPY * np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]])

# Evidence of one variable, beside what its group says.
EXTRA = np.array([0.3, -0.2, 0.1, 0.5, -0.4, 0.0, 0.2])


@pytest.fixture
def as_pgmax():
    """PGMax is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def tensor_product(axes, log_weights, couplings, bias):
    """All probabilities of a model on a product of grids, and the marginals of its units."""
    n = len(axes)
    x = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
    scores = x @ bias - np.einsum("...i,...i", x @ couplings, x) / 2
    for i, log_weight in enumerate(log_weights):
        scores = scores + np.expand_dims(log_weight, tuple(k for k in range(n) if k != i))
    p = np.exp(scores - scores.max())
    p /= p.sum()
    return p, [p.sum(tuple(k for k in range(n) if k != i)) for i in range(n)]


def quadrature(couplings, bias, ends, points=64):
    """Means, second moments and the parts beyond half of `ends`, by Gauss-Legendre quadrature."""
    x, w = np.polynomial.legendre.leggauss(points)
    axes = [(x + 1) * end / 2 for end in ends]
    _, marginals = tensor_product(axes, [np.log(w * end / 2) for end in ends], couplings, bias)
    pairs = list(zip(marginals, axes, strict=True))
    moments = np.array([[p @ x**k for p, x in pairs] for k in (1, 2)])
    beyond = [p[x > end / 2].sum() for (p, x), end in zip(pairs, ends, strict=True)]
    return moments, np.array(beyond)


def error_table():
    """The largest errors of means and of second moments, by model, kind of grid and points: of the
    quantised models (by enumeration), and of belief propagation on them.
    """
    from pgmax import fgraph, infer

    truths = {
        name: quadrature(w, BIAS, [18.0] * 3)[0] for name, w in (("chain", CHAIN), ("loopy", LOOPY))
    }
    table = {}
    for points in POINTS:
        # One graph for all kinds of grids, that differs between models in log-potentials alone.
        grids = [nnbm.grid_for(NNBM(LOOPY, BIAS), points, kind) for kind in KINDS]
        units = [nd_var_array(num_states=points, shape=(3,)) for _ in KINDS]
        groups = [
            nnbm.NNBMFactorGroup(x, LOOPY, grid, BIAS) for x, grid in zip(units, grids, strict=True)
        ]
        graph = fgraph.FactorGraph(units)
        graph.add_factors(groups)
        bp = infer.build_inferer(graph.bp_state, backend="bp")

        @jax.jit
        def run(data, bp=bp, groups=groups, units=units):
            arrays = bp.init(log_potentials_updates=dict.fromkeys(groups, data))
            marginals = infer.get_marginals(bp.get_beliefs(bp.run(arrays, 80, 0.5, 1.0)))
            pairs = zip(groups, units, strict=True)
            return [jnp.stack(group.moments(marginals[x])) for group, x in pairs]

        for name, w in (("chain", CHAIN), ("loopy", LOOPY)):
            found = run(np.concatenate([w, BIAS[:, None]], 1))
            for kind, grid, moments in zip(KINDS, grids, found, strict=True):
                _, p = tensor_product([grid.nodes] * 3, [grid.log_weights] * 3, w, BIAS)
                exact = np.stack([p @ grid.nodes, p @ grid.nodes**2])
                for method, values in (("enumeration", exact), ("BP", np.asarray(moments))):
                    table[name, method, kind, points] = np.abs(values - truths[name]).max(1)
    return table


@pytest.mark.slow
def test_errors_fall_as_grids_grow(as_pgmax):
    with oracle.x64(True):
        table = error_table()
    print("\nLargest error of E[x] / E[x²]")
    for name, method, kind in itertools.product(("chain", "loopy"), ("enumeration", "BP"), KINDS):
        errors = np.array([table[name, method, kind, points] for points in POINTS])
        cells = "  ".join(f"{m:.1e}/{s:.1e}" for m, s in errors)
        print(f"{name:6}{method:12}{kind:10}{cells}")
        if (name, method) == ("loopy", "BP"):
            # Belief propagation is not exact here, however fine the grid.
            assert 1e-3 < errors[-1].max() < 0.3
            continue
        # Down to rounding.
        assert (np.diff(errors, axis=0) < 0)[errors[1:] > 1e-10].all()
        assert errors[-1].max() < {"uniform": 0.03, "geometric": 0.01, "laguerre": 1e-10}[kind]
    for kind, points in itertools.product(KINDS, POINTS):
        exact, bp = (table["chain", method, kind, points] for method in ("enumeration", "BP"))
        np.testing.assert_allclose(bp, exact, atol=1e-9)


class Part:
    """A model on a grid and its variables."""

    def __init__(self, rng, n, grid):
        upper = np.triu(rng.normal(size=(n, n)), 1) * 0.4
        self.couplings = (np.diag(rng.uniform(0.8, 1.5, n)) + upper + upper.T).astype(np.float32)
        self.bias = rng.normal(size=n).astype(np.float32)
        self.grid = grid
        self.x = nd_var_array(num_states=len(grid.nodes), shape=(n,))

    def ours(self):
        return nnbm.NNBMFactorGroup(self.x, self.couplings, self.grid, self.bias)

    def pairs(self):
        """The same pairs as tables of PGMax."""
        from pgmax import fgroup

        i, j = np.triu_indices(len(self.bias), 1)
        variables = [[self.x[a], self.x[b]] for a, b in zip(i, j, strict=True)]
        tables = -self.couplings[i, j][:, None, None] * np.outer(self.grid.nodes, self.grid.nodes)
        return fgroup.PairwiseFactorGroup(
            variables_for_factors=variables, log_potential_matrix=tables
        )

    def unary(self, temperature):
        x = self.grid.nodes
        own = self.bias[:, None] * x - np.diagonal(self.couplings)[:, None] * x**2 / 2
        return own + temperature * self.grid.log_weights


def build(how, temperature) -> Any:
    """A graph of two models of different sizes on different grids, with one factor between them:
    `ours`, or with pairs as tables and units as `factors` or as `evidence`.
    """
    from pgmax import fgraph, fgroup

    rng = np.random.default_rng(0)
    parts = [Part(rng, 4, nnbm.uniform_grid(5, 3.0)), Part(rng, 3, nnbm.laguerre_grid(7, 0.3))]
    graph = fgraph.FactorGraph([part.x for part in parts])
    groups = [part.ours() if how == "ours" else part.pairs() for part in parts]
    graph.add_factors(groups)
    if how == "factors":
        for part in parts:
            k = len(part.grid.nodes)
            graph.add_factors(
                fgroup.EnumFactorGroup(
                    variables_for_factors=[[v] for v in part.x.variables],
                    factor_configs=np.arange(k)[:, None],
                    log_potentials=part.unary(temperature),
                )
            )
    bridge = rng.normal(size=(5, 7))
    graph.add_factors(
        fgroup.PairwiseFactorGroup([[parts[0].x[1], parts[1].x[2]]], log_potential_matrix=bridge)
    )
    evidence = {p.x: np.zeros((len(p.bias), len(p.grid.nodes))) for p in parts}
    evidence[parts[1].x][0] = EXTRA
    if how == "evidence":
        evidence = {p.x: evidence[p.x] + p.unary(temperature) for p in parts}
    return graph, parts, groups, evidence, bridge


def beliefs(how, temperature):
    """The marginals after each of 60 iterations, and the best states in the end."""
    from pgmax import infer

    graph, _, _, evidence, _ = build(how, temperature)
    bp = infer.build_inferer(graph.bp_state, backend="bp")

    @jax.jit
    def run(evidence):
        def step(arrays, _):
            arrays = bp.run(arrays, 1, 0.5, temperature)
            beliefs = [bp.get_beliefs(arrays)[x] for x in graph.variable_groups]
            return arrays, [jax.nn.softmax(b).ravel() for b in beliefs]

        arrays, marginals = jax.lax.scan(step, bp.init(evidence_updates=evidence), None, 60)
        states = infer.decode_map_states(bp.get_beliefs(arrays))
        return jnp.concatenate(marginals, 1), [states[x] for x in graph.variable_groups]

    return jax.tree.map(np.asarray, run(evidence))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_the_same_beliefs_as_tables(as_pgmax, temperature):
    ours, states = beliefs("ours", temperature)
    theirs, their_states = beliefs("factors", temperature)
    # At every step, converged or not.
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
    assert np.abs(ours[-1] - ours[3]).max() > 1e-3
    jax.tree.map(np.testing.assert_array_equal, states, their_states)
    # Evidence is there from the start, factors of units speak first: the same in the end.
    theirs, their_states = beliefs("evidence", temperature)
    np.testing.assert_allclose(ours[-1], theirs[-1], atol=2e-5)
    jax.tree.map(np.testing.assert_array_equal, states, their_states)


@pytest.mark.slow
def test_the_same_energies_as_tables(as_pgmax):
    from pgmax import infer

    rng = np.random.default_rng(1)
    values = [rng.integers(5, size=4), rng.integers(7, size=3)]
    energies = []
    for how in ("ours", "evidence"):
        graph, parts, _, evidence, bridge = build(how, 0.0)
        bp = infer.build_inferer(graph.bp_state, backend="bp")
        arrays = bp.init(evidence_updates=evidence)
        states = {part.x: jnp.asarray(v) for part, v in zip(parts, values, strict=True)}
        fast = jax.jit(lambda a, g=graph, s=states: infer.compute_energy(g.bp_state, a, s)[0])
        slow, _, by_factor = infer.compute_energy(graph.bp_state, arrays, states, debug_mode=True)
        energies += [float(fast(arrays)), slow]
        assert len(by_factor) == (6 + 4 + 3 + 3 if how == "ours" else 6 + 3) + 1
    by_model = -bridge[values[0][1], values[1][2]] - EXTRA[values[1][0]]
    for part, v in zip(parts, values, strict=True):
        by_model += NNBM(part.couplings, part.bias).energy(part.grid.nodes[v])
    np.testing.assert_allclose(energies, by_model, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.2])
def test_the_same_bounds_of_the_dual_solver(as_pgmax, temperature):
    from pgmax import infer

    results = []
    for how in ("ours", "factors"):
        graph, _, _, evidence, _ = build(how, temperature)
        sdlp = cast(Any, infer.build_inferer(graph.bp_state, backend="sdlp"))

        @jax.jit
        def solve(evidence, sdlp=sdlp):
            arrays = sdlp.init(evidence_updates=evidence)
            arrays, values = sdlp.run_with_objvals(arrays, temperature, num_iters=20)
            states, _ = sdlp.decode_primal_unaries(arrays)
            bounds = sdlp.get_primal_upper_bound(arrays), sdlp.get_map_lower_bound(arrays, states)
            return values, jnp.stack(bounds)

        results.append(solve(evidence))
    (ours, (upper, lower)), (theirs, bounds) = results
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert ours[-1] < ours[0]
    assert upper >= lower - 1e-4
    # Tables made for a temperature hold its weights, which our bounds rightly lack.
    if not temperature:
        np.testing.assert_allclose([upper, lower], bounds, rtol=1e-4, atol=1e-4)


def test_potentials_can_be_read_and_changed(as_pgmax):
    graph, parts, groups, _, _ = build("ours", 0.0)
    part, group = parts[0], groups[0]
    data = np.concatenate([part.couplings, part.bias[:, None]], 1)
    flat = group.flatten(data)
    np.testing.assert_array_equal(flat, graph.bp_state.log_potentials[group])
    np.testing.assert_array_equal(group.unflatten(flat), data)
    assert flat.dtype == group.unflatten(flat).dtype == jnp.float32
    state = graph.bp_state
    state.log_potentials[group] = 2 * data
    np.testing.assert_array_equal(state.log_potentials[group], 2 * flat)
    assert len(group.factors) == group.num_factors == 10
    x, (a, b) = part.grid.nodes, (part.x[3], part.x[1])
    table = -part.couplings[1, 3] * np.outer(x, x)
    assert group[[a, b]].variables == [b, a]
    np.testing.assert_allclose(group[[a, b]].log_potentials, table.ravel(), rtol=1e-6)
    np.testing.assert_allclose(group[[a]].log_potentials, part.unary(0)[3], rtol=1e-5)
    mean, second = group.moments(np.full((2, 3, 5), 0.2, np.float32))
    np.testing.assert_allclose(mean, np.full((2, 3), x.mean()), rtol=1e-6)
    np.testing.assert_allclose(second, np.full((2, 3), (x**2).mean()), rtol=1e-6)


def test_a_single_unit(as_pgmax):
    from pgmax import fgraph, infer

    x = nd_var_array(num_states=24, shape=(1,))
    grid = nnbm.laguerre_grid(24, 0.1)
    group = nnbm.NNBMFactorGroup(x, np.ones((1, 1), np.float32), grid)
    graph = fgraph.FactorGraph([x])
    graph.add_factors(group)
    bp = infer.build_inferer(graph.bp_state, backend="bp")

    @jax.jit
    def moments():
        beliefs = bp.get_beliefs(bp.run(bp.init(), 1, 0.0, 1.0))
        return group.moments(infer.get_marginals(beliefs)[x])

    np.testing.assert_allclose(moments(), [[np.sqrt(2 / np.pi)], [1]], rtol=1e-4)


def statistics(part, messages):
    """Of one group: the sum of log-normalisers of its factors, its maxima, and the expected
    statistics, by enumeration.
    """
    n, x, k = len(part.bias), part.grid.nodes, len(part.grid.nodes)
    i, j = np.triu_indices(n, 1)
    pairs, units = np.split(messages, [2 * len(i) * k])
    pairs, units = pairs.reshape(-1, 2, k), units.reshape(n, k)
    scores = [
        -w * np.outer(x, x) + a[:, None] + b
        for w, (a, b) in zip(part.couplings[i, j], pairs, strict=True)
    ]
    products = [-np.outer(x, x)] * len(i)
    own, bare = part.unary(1) + units, part.unary(0) + units
    z = [np.log(np.exp(s).sum()) for s in (*scores, *own)]
    p = [np.exp(s - c) for s, c in zip((*scores, *own), z, strict=True)]
    expected = [(a * b).sum() for a, b in zip(p, products, strict=False)]
    expected += [q @ (-(x**2) / 2) for q in p[len(i) :]] + [q @ x for q in p[len(i) :]]
    return sum(z), sum(s.max() for s in (*scores, *bare)), expected


@pytest.mark.slow
def test_log_normalisers():
    rng = np.random.default_rng(2)
    with oracle.x64(True):
        parts = [Part(rng, n, nnbm.uniform_grid(k, 3.0)) for n, k in ((1, 3), (3, 6))]
        groups = [part.ours() for part in parts]
        wirings = [
            group.compile_wiring({v: 7 * k for k, v in enumerate(group.variables)})
            for group in groups
        ]
        wiring = nnbm.NNBMFactor.concatenate_wirings(wirings)
        arguments = wiring.get_inference_arguments()
        assert arguments["shapes"] == ((1, 3), (3, 6))
        hash(arguments["shapes"])
        messages = [rng.normal(size=len(w.var_states_for_edges)) for w in wirings]
        potentials = jnp.asarray(np.concatenate([g.log_potentials for g in groups]), float)
        incoming = jnp.asarray(np.concatenate(messages))
        truth = [statistics(part, m) for part, m in zip(parts, messages, strict=True)]

        @jax.jit
        def everything(*args):
            def total(*args):
                return _nnbm_group.log_normalisers(*args, **arguments).sum()

            both = jax.value_and_grad(total, argnums=(0, 1))(*args)
            best = _nnbm_group.log_normalisers(*args, "max", **arguments).sum()
            out = _nnbm_group.pass_nnbm_fac_to_var_messages(
                *args, **arguments, temperature=1.0, normalize=False
            )
            return *both, best, out

        value, (marginals, expected), best, out = everything(incoming, potentials)
        np.testing.assert_allclose(value, sum(t[0] for t in truth), rtol=1e-12)
        np.testing.assert_allclose(expected, np.concatenate([t[2] for t in truth]), rtol=1e-12)
        np.testing.assert_allclose(best, sum(t[1] for t in truth), rtol=1e-12)
        # The gradient with respect to incoming messages is the marginals of the factors, which
        # outgoing messages make as well.
        _, edges, _ = wiring.var_states_for_edges.T
        weights = np.exp(np.asarray(out) + np.asarray(incoming))
        total = np.bincount(edges, weights)[edges]
        np.testing.assert_allclose(marginals, weights / total, rtol=1e-10)
        # Parameters keep their dtype, whatever that of the grid.
        small = [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in (incoming, potentials)]
        for result in jax.tree.leaves(jax.eval_shape(everything, *small)):
            assert result.dtype == jnp.float32


def test_quadrature_of_grids():
    grid = nnbm.uniform_grid(7, 3.0)
    assert np.exp(grid.log_weights) @ grid.nodes == pytest.approx(4.5)
    grid = nnbm.geometric_grid(7, 3.0, 0.1)
    np.testing.assert_allclose(grid.nodes[[0, 1, -1]], [0, 0.1, 3])
    np.testing.assert_allclose(grid.nodes[2:] / grid.nodes[1:-1], 30**0.2)
    assert np.exp(grid.log_weights) @ grid.nodes == pytest.approx(4.5)
    for points in (2, 5, 180):
        grid = nnbm.laguerre_grid(points, 0.5)
        values = grid.nodes**3 * np.exp(-grid.nodes / 0.5)
        assert np.exp(grid.log_weights) @ values == pytest.approx(6 * 0.5**4, rel=1e-9)


def test_grids_reach_far_enough():
    together = np.full((3, 3), -0.45) + 1.45 * np.eye(3)
    cases = [
        (LOOPY, BIAS),
        (together, np.zeros(3)),
        (together, np.array([1.0, 0.5, -2.0])),
        (np.diag([400.0, 1, 0.05]), np.zeros(3)),
        (np.eye(3), np.array([-10.0, -30, -0.1])),
        (4 * np.eye(3), np.array([40.0, 30, 5])),
        # Definite, but not without its positive coupling.
        (np.array([[1, -0.7, 0.6], [-0.7, 1, -0.7], [0.6, -0.7, 1]]), np.array([1, 0.5, 0.2])),
    ]
    for couplings, bias in cases:
        reach = _grid._reach(couplings, bias)
        _, beyond = quadrature(couplings, bias, 2 * reach)
        assert (beyond < np.exp(-12.5)).all()
        # Nor much too far: a grid of half the length would lose more.
        _, beyond = quadrature(couplings, bias, reach)
        assert (beyond > 1e-6).all()
    couplings, bias = cases[-1]
    reach = _grid._reach(couplings, bias)
    model = NNBM(*(x.astype(np.float32) for x in (couplings, bias)))
    for kind in KINDS:
        grid = nnbm.grid_for(model, 9, kind)
        assert grid.nodes.shape == (9,)
        assert grid.nodes[-1] == pytest.approx(reach.max(), rel=1e-5)
    # A unit alone, far below zero: an exponential distribution.
    assert _grid._reach(np.eye(1), np.array([-1e9]))[0] == pytest.approx(12.5e-9)


@pytest.mark.slow
def test_energy(dtype):
    rng = np.random.default_rng(3)
    w = rng.normal(size=(4, 4)) + 3 * np.eye(4)
    w, b, x = w + w.T, rng.normal(size=4), rng.exponential(size=(2, 3, 4))
    model = NNBM(w.astype(dtype), b.astype(dtype))
    expected = np.einsum("abi,ij,abj->ab", x, w, x) / 2 - x @ b
    energy = model.energy(x.astype(dtype))
    assert (model.num_units, energy.dtype) == (4, dtype)
    np.testing.assert_allclose(energy, expected, rtol=2e-5)
    one = jnp.asarray(x[0, 0], dtype)
    # Values that are not known yet are not looked at.
    value, gradient = jax.jit(jax.value_and_grad(lambda w: NNBM(w, model.bias).energy(one)))(
        model.couplings
    )
    np.testing.assert_allclose(value, expected[0, 0], rtol=2e-5)
    np.testing.assert_allclose(gradient, np.outer(one, one) / 2, rtol=1e-5)


def test_init():
    with oracle.x64(True):
        model = NNBM.init(50, key=jax.random.key(0), scale=0.05, dtype="float32")
    w = np.asarray(model.couplings)
    assert w.dtype == model.bias.dtype == np.float32
    np.testing.assert_array_equal(w, w.T)
    np.testing.assert_array_equal(np.diagonal(w), np.ones(50))
    assert np.std(w[np.triu_indices(50, 1)]) == pytest.approx(0.05, rel=0.1)
    assert not np.asarray(model.bias).any()


@pytest.mark.usefixtures("as_a_user")
def test_bad_input():
    from pgmax import fgraph
    from pgmax.factor import FAC_TO_VAR_UPDATES

    grid, nan = nnbm.uniform_grid(4, 2.0), float("nan")
    group = cast(Any, nnbm.NNBMFactorGroup)
    x = nd_var_array(num_states=4, shape=(2,))
    two = nd_var_array(num_states=2, shape=(2,))
    w, b = np.eye(2, dtype=np.float32), np.zeros(2, np.float32)
    tilted, far = w + np.triu(w + 1, 1), np.array([[1, -3, 3], [-3, 1, -3], [3, -3, 1.0]])
    cases = [
        (lambda: group(x, np.eye(3), grid), ValueError, r"`couplings`.*\(2, 2\)"),
        (lambda: group(x, tilted, grid), ValueError, "`couplings` must be symmetric"),
        (lambda: group(x, 1 - w, grid), ValueError, "positive diagonal"),
        (lambda: group(x, w * nan, grid), ValueError, "`couplings` must be finite"),
        (lambda: group(x, w.astype(int), grid), TypeError, "`couplings`"),
        (lambda: group(x, w, grid, b[:1]), ValueError, r"`bias`.*\(2,\)"),
        (lambda: group(x, w, grid, b + nan), ValueError, "`bias` must be finite"),
        (lambda: group(two, w, grid), ValueError, "`variables` must have 4 states.*one of 2"),
        (lambda: group([x[0], x[0]], w, grid), ValueError, "`variables` must hold different"),
        (lambda: group([], w, grid), ValueError, "at least one variable"),
        (lambda: group([1, 2], w, grid), TypeError, "PGMax variables"),
        (lambda: group(x, w, grid).flatten(w), ValueError, r"`data`.*\(2, 3\)"),
        (lambda: group(x, w, grid).unflatten(b), ValueError, r"`flat_data`.*\(5,\)"),
        (lambda: group(x, w, grid).moments(w), ValueError, r"`marginals`.*4"),
        (lambda: group(x, w, grid).compile_wiring({}), ValueError, "variables of the graph"),
        (lambda: nnbm.Grid([0, 1, 1], [0, 0, 0]), ValueError, "`nodes` must increase, got 1 after"),
        (lambda: nnbm.Grid([-1, 1], [0, 0]), ValueError, "must not be negative, got -1"),
        (lambda: nnbm.Grid([1], [0]), ValueError, "two numbers"),
        (lambda: nnbm.Grid([[0, 1]], [[0, 0]]), ValueError, "two numbers"),
        (lambda: nnbm.Grid([0, nan], [0, 0]), ValueError, "`nodes` must be finite, got nan"),
        (lambda: nnbm.Grid([0, 1], [0, -np.inf]), ValueError, "`log_weights` must be finite"),
        (lambda: nnbm.Grid([0, 1], [0]), ValueError, "`log_weights`"),
        (lambda: nnbm.uniform_grid(1, 2.0), ValueError, "`points` must be at least 2"),
        (lambda: nnbm.uniform_grid(4, 0.0), ValueError, "`upper`"),
        (lambda: nnbm.geometric_grid(4, 1.0, 1.0), ValueError, "`lower`"),
        (lambda: nnbm.laguerre_grid(181, 1.0), ValueError, "`points` must be at most 180"),
        (lambda: nnbm.laguerre_grid(8, nan), ValueError, "`scale`"),
        (lambda: nnbm.grid_for(NNBM(w, b), kind=cast(Any, "x")), ValueError, "`kind`"),
        (lambda: _grid._reach(far, np.zeros(3)), ValueError, "pass a grid"),
        (lambda: NNBM(tilted, b), ValueError, "`couplings` must be symmetric"),
        (lambda: NNBM(-w, b), ValueError, "positive diagonal.*entry of -1"),
        (lambda: NNBM(w[:1], b), ValueError, "`couplings` must be a square"),
        (lambda: NNBM(w, b[:1]), ValueError, r"`bias`.*\(2,\)"),
        (lambda: NNBM(w + nan, b), ValueError, "NaN"),
        (lambda: NNBM(w, b.astype(int)), TypeError, "`bias`"),
        (lambda: NNBM(w, b).energy(np.zeros(3)), ValueError, "`x`"),
        (lambda: NNBM.init(0, key=jax.random.key(0)), ValueError, "`units`"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
    # A graph from before the plugin was imported.
    known = FAC_TO_VAR_UPDATES.pop(nnbm.NNBMFactor)
    early = fgraph.FactorGraph([x])
    FAC_TO_VAR_UPDATES[nnbm.NNBMFactor] = known
    with pytest.raises(KeyError, match="before `import ebmlearn"):
        early.add_factors(group(x, w, grid))


@pytest.mark.slow
@pytest.mark.usefixtures("as_pgmax")
def test_a_model_of_the_graph():
    """Sums over states are integrals: log Z too, by enumeration and by belief propagation."""
    with oracle.x64(True):
        model = NNBM(CHAIN, BIAS)
        graph, variables, evidence = nnbm.to_pgmax(model, nnbm.grid_for(model, 24))
        as_graph = nnbm.FactorGraphModel(graph).with_evidence(evidence)
        exact, found = ebm.Exact()(as_graph), ebm.BP(20)(as_graph)
        np.testing.assert_allclose(found.log_partition, exact.log_partition, atol=1e-9)
        np.testing.assert_allclose(found[variables.x], exact[variables.x], atol=1e-9)
        end = _grid._reach(CHAIN, BIAS)
        x, w = np.polynomial.legendre.leggauss(48)
        axes = np.stack(np.meshgrid(*((x + 1) * e / 2 for e in end), indexing="ij"), -1)
        weights = np.einsum("i,j,k->ijk", *(w * e / 2 for e in end))
        mass = weights * np.exp(-np.asarray(model.energy(axes)))
        np.testing.assert_allclose(found.log_partition, np.log(mass.sum()), atol=1e-6)
        (group,) = cast(Any, graph.factor_groups[nnbm.NNBMFactor])
        moments = quadrature(CHAIN, BIAS, end)[0]
        np.testing.assert_allclose(group.moments(found[variables.x]), moments, atol=1e-5)
        # Expected statistics, from which its parameters are learned; the grid is none of them.
        statistics = found.pairwise[group]
        np.testing.assert_allclose(statistics[-3:], moments[0], atol=1e-5)
        np.testing.assert_allclose(statistics[3:6], -moments[1] / 2, atol=1e-5)
        states = np.array([3, 0, 7])
        nodes = group.grid.nodes[states]
        np.testing.assert_allclose(as_graph.energy({variables.x: states}), model.energy(nodes))


def test_any_model_of_nonnegative_units():
    with oracle.x64(True):
        model = NNBM(CHAIN, BIAS)
        units = ebm.Nonnegative(3, jnp.diagonal(model.couplings))
        block = jnp.diag(jnp.diagonal(model.couplings)) - model.couplings
        same = ebm.LayeredModel({"x": units}, {("x", "x"): block}, {"x": model.bias})
        one, two = nnbm.to_pgmax(model), nnbm.to_pgmax(same)
        (first,), (second,) = (
            cast(Any, g.graph.factor_groups[nnbm.NNBMFactor]) for g in (one, two)
        )
        np.testing.assert_array_equal(first.log_potentials, second.log_potentials)
        np.testing.assert_array_equal(first.grid.nodes, second.grid.nodes)
    with pytest.raises(
        TypeError, match="a kind that grid_for takes, nonnegative units, got an RBM"
    ):
        nnbm.grid_for(ebm.RBM.init(2, 2, key=jax.random.key(0)))


@pytest.mark.usefixtures("as_a_user")
def test_chains_refuse_states_with_weights():
    from pgmax import fgraph

    x = nd_var_array(6, (2,))
    graph = fgraph.FactorGraph([x])
    couplings = jnp.asarray([[1.0, 0.3], [0.3, 1.0]])
    grid = nnbm.geometric_grid(6, 4.0, 0.2)
    graph.add_factors(nnbm.NNBMFactorGroup(x, couplings, grid))
    model = nnbm.FactorGraphModel(graph)
    for call in (
        lambda: ebm.sample(model, ebm.Gibbs(), 4, key=0),
        lambda: ebm.ais(model, key=0),
        lambda: ebm.MeanField(3)(model),
        model.as_energy,
    ):
        with pytest.raises(TypeError, match="FactorGraphModel"):
            call()
    with pytest.raises(TypeError, match="`grid` must be a `Grid`"):
        nnbm.NNBMFactorGroup(x, jnp.eye(2), 16)  # pyright: ignore
