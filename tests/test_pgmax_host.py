"""What a user of PGMax reaches for: the same functions, evidence in every form, files."""

import dataclasses
import inspect
import subprocess
import sys
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import programs
import pytest
from untyped import nd_var_array

import ebmlearn as ebm
import ebmlearn.pgmax
from ebmlearn.pgmax import FactorGraphModel, MatrixBP, RBMFactorGroup, to_pgmax


pytestmark = pytest.mark.filterwarnings("default")
KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def as_pgmax():
    """PGMax is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class Small:
    """A dictionary of variables of two and three states, joined to an array of them, and an RBM."""

    def __init__(self, seed=0):
        from pgmax import fgraph, fgroup, vgroup

        rng = np.random.default_rng(seed)
        self.d = cast(
            Any, vgroup.VarDict(num_states=np.array([3, 2]), variable_names=("left", "right"))
        )
        self.v = nd_var_array(num_states=2, shape=(2, 2))
        self.h = nd_var_array(num_states=2, shape=(2,))
        self.groups = [self.d, self.v, self.h]
        self.graph = fgraph.FactorGraph(self.groups)
        self.rbm = RBMFactorGroup(self.v, self.h, rng.normal(size=(4, 2)))
        self.pairs = fgroup.PairwiseFactorGroup(
            variables_for_factors=[[self.d["left"], self.v[0, 0]]],
            log_potential_matrix=rng.normal(size=(3, 2)),
        )
        self.other = fgroup.PairwiseFactorGroup(
            variables_for_factors=[[self.d["right"], self.v[1, 1]], [self.v[0, 0], self.v[0, 1]]],
            log_potential_matrix=rng.normal(size=(2, 2, 2)),
        )
        self.graph.add_factors([self.rbm, self.pairs, self.other])
        self.evidence = {
            self.d: {"left": rng.normal(size=3), "right": rng.normal(size=2)},
            self.v: rng.normal(size=(2, 2, 2)),
            self.h[1]: rng.normal(size=2),
        }

    def model(self, **settings):
        return FactorGraphModel(self.graph, **settings).with_evidence(self.evidence)


def test_graphs_of_others_list_the_types_of_pgmax_alone():
    """`pgmax.utils.primal_lp` refuses every type that it does not know."""
    from pgmax import factor, fgraph, fgroup

    x = nd_var_array(num_states=2, shape=(2,))
    graph = fgraph.FactorGraph([x])
    table = np.zeros((2, 2))
    graph.add_factors(
        fgroup.PairwiseFactorGroup(variables_for_factors=[[x[0], x[1]]], log_potential_matrix=table)
    )
    known = [factor.EnumFactor, factor.ORFactor, factor.ANDFactor, factor.PoolFactor]
    assert list(graph.factor_groups) == known
    FactorGraphModel(graph)  # which needs to know that it was built after the import
    assert list(Small().graph.factor_groups) == [*known, ebmlearn.pgmax.RBMFactor]


def test_the_primal_program_of_pgmax():
    pytest.importorskip("cvxpy")
    from pgmax import fgraph, fgroup
    from pgmax.utils import primal_lp

    x = nd_var_array(num_states=2, shape=(3,))
    graph = fgraph.FactorGraph([x])
    pairs = [[x[0], x[1]], [x[1], x[2]]]
    table = np.array([[1.0, 0.0], [0.0, 2.0]])
    graph.add_factors(fgroup.PairwiseFactorGroup(pairs, table))
    evidence = {x: np.zeros((3, 2))}
    solution, value = cast(Any, primal_lp.primal_lp_solver)(graph, evidence)
    np.testing.assert_allclose(solution[x][:, 1], 1, atol=1e-4)
    assert value == pytest.approx(4, abs=1e-4)


@pytest.mark.slow
def test_matrix_bp_has_all_that_the_inferer_of_pgmax_has():
    from pgmax import infer

    small = Small()
    state = small.graph.bp_state
    theirs, ours = cast(Any, (infer.build_inferer(state, backend="bp"), MatrixBP(state)))
    assert type(ours) is type(theirs)
    names = [field.name for field in dataclasses.fields(theirs)]
    assert {"init", "update", "run", "run_bp", "run_with_diffs", "get_beliefs"} < set(names)

    def arguments(fn):
        found = list(inspect.signature(fn).parameters.values())
        return [(p.name, p.default) for p in found if p.name != "self"]

    for name in names:
        assert arguments(getattr(ours, name)) == arguments(getattr(theirs, name)), name
    evidence = {small.v: small.evidence[small.v], small.d: small.evidence[small.d]}
    weights = {small.rbm: np.full((4, 2), 0.3)}
    messages = {small.v[0, 0]: np.array([0.2, -0.2])}
    starts = [bp.init(weights, messages, evidence) for bp in (theirs, ours)]
    starts = [bp.update(x, evidence_updates={small.h[0]: np.array([0.0, 1.0])})
              for bp, x in zip((theirs, ours), starts, strict=True)]  # fmt: skip
    _same(*starts)
    for temperature, damping in ((1.0, 0.0), (0.0, 0.5), (0.5, 0.3)):
        settings = {"num_iters": 4, "damping": damping, "temperature": temperature}
        ends, diffs = zip(
            *(bp.run_with_diffs(x, **settings)
              for bp, x in zip((theirs, ours), starts, strict=True)),
            strict=True,
        )  # fmt: skip
        _same(*ends)
        assert diffs[1].shape == (4,)
        np.testing.assert_allclose(diffs[0], diffs[1], atol=1e-5)
        _same(*(bp.run(x, **settings) for bp, x in zip((theirs, ours), starts, strict=True)))
        beliefs = [bp.get_beliefs(x) for bp, x in zip((theirs, ours), ends, strict=True)]
        assert set(beliefs[0]) == set(beliefs[1])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *beliefs)
    for bp, x in zip((theirs, ours), ends, strict=True):
        with pytest.warns(UserWarning, match="run_bp"):
            _same(bp.run_bp(x, 2, 0.5), bp.run(x, 2, 0.5))
        state = bp.to_bp_state(x)
        np.testing.assert_allclose(state.ftov_msgs.value, x.ftov_msgs)
        np.testing.assert_allclose(state.evidence.value, x.evidence)
        np.testing.assert_allclose(state.log_potentials.value, x.log_potentials)


def _same(a, b):
    for name in ("log_potentials", "ftov_msgs", "evidence"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=1e-5)


@pytest.mark.slow
def test_evidence_of_parameters_in_every_form():
    from pgmax import infer

    small = Small()
    bp = infer.build_inferer(small.graph.bp_state, backend="bp")
    theirs = bp.init(evidence_updates=small.evidence)
    ours = small.model().bp_arrays(small.graph.bp_state)
    np.testing.assert_allclose(ours.evidence, theirs.evidence, rtol=1e-6)
    end = bp.run(theirs, num_iters=30, damping=0.5, temperature=1.0)
    want = infer.get_marginals(bp.get_beliefs(end))
    beliefs = ebm.BP(60, damping=0.5)(small.model())
    assert set(beliefs[small.d]) == {"left", "right"}
    for name in ("left", "right"):
        np.testing.assert_allclose(beliefs[small.d][name], want[small.d][name], atol=1e-4)
    np.testing.assert_allclose(beliefs[small.v], want[small.v], atol=1e-4)
    np.testing.assert_allclose(beliefs[small.v[1, 0]], want[small.v][1, 0], atol=1e-4)
    decoded = beliefs.decode()
    states = infer.decode_map_states(bp.get_beliefs(end))
    assert {k: int(x) for k, x in decoded[small.d].items()} == {
        k: int(x) for k, x in states[small.d].items()
    }
    assert int(decoded[small.d["left"]]) == int(states[small.d]["left"])


@pytest.mark.slow
def test_evidence_of_queries_in_every_form():
    small = Small()
    model = small.model()
    whole = {
        small.d: np.array([2, -1]),
        small.v: np.array([[1, -1], [-1, 0]]),
        small.h: np.array([-1, 1]),
    }
    forms = [
        {
            small.d: {"left": np.array(2)},
            small.v[0, 0]: 1,
            small.v[1, 1]: np.array(0),
            small.h: np.array([-1, 1]),
        },
        {
            small.d["left"]: np.array(2),
            small.v: np.array([[0, -1], [-1, 0]]),
            small.v[0, 0]: 1,
            small.h[1]: 1,
        },
    ]
    want = ebm.query(model, whole, inference=ebm.Exact())
    for form in forms:
        got = ebm.query(model, form, inference=ebm.Exact())
        for group in (small.v, small.h):
            np.testing.assert_allclose(got[group], want[group], atol=1e-6)
        for name in ("left", "right"):
            np.testing.assert_allclose(got[small.d][name], want[small.d][name], atol=1e-6)
    right = ebm.query(model, forms[0], inference=ebm.Exact(), targets=small.d)["right"]
    np.testing.assert_allclose(right, want[small.d]["right"], atol=1e-6)
    # Some by states, some by likelihoods, one for each of a batch.
    likelihood = np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]], np.float32)
    soft = {small.d: {"left": likelihood, "right": np.array([1, 0])}, small.h[0]: 1}
    rows = {small.d: np.array([[-1, 1], [-1, 0]]), small.h: np.array([1, -1])}
    got = ebm.query(model, soft, inference=ebm.Exact())
    for k in range(2):
        scores = {small.d["left"]: model.evidence[0][0] + jnp.log(likelihood[k])}
        one = {g: x[k] if x.ndim == 2 else x for g, x in rows.items()}
        want = ebm.query(model.with_evidence(scores), one, inference=ebm.Exact())
        np.testing.assert_allclose(got[small.v][k], want[small.v], atol=1e-5)
    masked = ebm.query(
        model,
        {small.d: {"left": np.array(2), "right": np.array(1)}},
        observed={small.d: {"left": np.array(True), "right": np.array(False)}},
        inference=ebm.Exact(),
    )
    plain = ebm.query(model, {small.d["left"]: np.array(2)}, inference=ebm.Exact())
    np.testing.assert_allclose(masked[small.v], plain[small.v], atol=1e-6)


@pytest.mark.slow
def test_data_and_samples_in_every_form():
    small = Small()
    model = small.model()
    rng = np.random.default_rng(1)
    left, right = rng.integers(0, 3, 40), rng.integers(0, 2, 40)
    v = rng.integers(0, 2, (40, 2, 2))
    settings: Any = {
        "optimizer": optax.sgd(0.1), "epochs": 1, "batch_size": 20, "key": KEY, "progress": False,
    }  # fmt: skip
    learner = ebm.MLE(ebm.BP(3))
    fitted = [
        ebm.fit(model, learner, data, **settings).last
        for data in (
            {small.d: np.stack([left, right], 1), small.v: v},
            {small.d: {"left": left, "right": right}, small.v: v},
        )
    ]
    jax.tree.map(np.testing.assert_array_equal, *(x.log_potentials for x in fitted))
    drawn = ebm.sample(
        model,
        ebm.PMP(10),
        5,
        key=KEY,
        start={small.d: {"left": 2}, small.v[0, 0]: np.array([0, 1, 0, 1, 0])},
        clamped={small.d: {"left": True}, small.v[0, 0]: True},
    )
    assert drawn[small.d]["right"].shape == (5,)
    np.testing.assert_array_equal(drawn[small.d]["left"], 2)
    np.testing.assert_array_equal(drawn[small.v][:, 0, 0], [0, 1, 0, 1, 0])
    energies = model.energy(drawn)
    by_name = {g: drawn[g] for g in small.groups}
    np.testing.assert_allclose(model.energy(by_name), energies, rtol=1e-5)


@pytest.mark.usefixtures("as_a_user")
def test_evidence_that_fits_no_variable():
    small, other = Small(), Small(1)
    model = small.model()
    cases = [
        ({small.d: {"middle": np.array(0)}}, KeyError, r"\('left', 'right'\), got 'middle'"),
        ({other.v[0, 0]: np.array(0)}, KeyError, "variable of the graph"),
        ({small.v: {"left": np.array(0)}}, TypeError, "no names"),
        ({small.d["left"]: np.array(3)}, ValueError, "from 0 to 2"),
        ({small.d["left"]: np.ones(2)}, ValueError, "likelihood for each state"),
    ]
    for evidence, error, message in cases:
        with pytest.raises(error, match=message):
            ebm.query(model, evidence, inference=ebm.Exact())
    with pytest.raises(ValueError, match="`start`"):
        FactorGraphModel(small.graph, start=cast(Any, "zero"))


@pytest.mark.slow
def test_noise_on_some_groups_only():
    """Noise on no group but one: all others are at their maximum given it."""
    small = Small()
    model = small.model()
    drawn = ebm.sample(model, ebm.PMP(60, perturb=[small.d]), 200, key=KEY)
    rows = model.rows({g: drawn[g] for g in small.groups})
    left, right = np.asarray(rows[:, 0]), np.asarray(rows[:, 1])
    assert len(np.unique(left)) == 3
    for pair in {(a, b) for a, b in zip(left.tolist(), right.tolist(), strict=True)}:
        own = np.asarray(rows)[(left == pair[0]) & (right == pair[1])]
        given = {small.d: {"left": pair[0], "right": pair[1]}}
        best = ebm.Exact(product="max")(model, given).decode()
        want = np.asarray(model.rows({g: best[g] for g in small.groups}))
        np.testing.assert_array_equal(own, np.broadcast_to(want, own.shape))
    everywhere = ebm.sample(model, ebm.PMP(60, perturb=small.groups), 20, key=KEY)
    plain = ebm.sample(model, ebm.PMP(60), 20, key=KEY)
    np.testing.assert_array_equal(everywhere[small.v], plain[small.v])
    rbm = ebm.RBM.init(4, 3, key=KEY, scale=0.5)
    drawn = ebm.sample(rbm, ebm.PMP(30, perturb=["visible"]), 50, key=KEY)
    hidden = (np.asarray(rbm.hidden_given(drawn.visible)) > 0.5).astype(int)
    np.testing.assert_array_equal(drawn.hidden, hidden)
    with pytest.raises(ValueError, match="'visible', 'hidden', got 'x'"):
        ebm.sample(rbm, ebm.PMP(3, perturb=["x"]), 2, key=KEY)
    with pytest.raises(TypeError, match="`perturb` must be a list"):
        ebm.PMP(3, perturb="visible")


@pytest.mark.slow
def test_the_start_of_pgmax():
    from pgmax import infer

    small = Small()
    bp = infer.build_inferer(small.graph.bp_state, backend="bp")
    end = bp.run(bp.init(evidence_updates=small.evidence), 2, damping=0.5, temperature=1.0)
    want = infer.get_marginals(bp.get_beliefs(end))
    inference = ebm.BP(2, damping=0.5)
    plain = inference(small.model(start="plain"))
    np.testing.assert_allclose(plain[small.v], want[small.v], atol=1e-5)
    centred = inference(small.model())
    assert np.abs(np.asarray(centred[small.v]) - np.asarray(want[small.v])).max() > 1e-3


def everything():
    """The model of a graph with factors of every type."""
    from pgmax import factor, fgraph, fgroup

    rng = np.random.default_rng(3)
    small = Small()
    x = nd_var_array(num_states=2, shape=(6,))
    y = nd_var_array(num_states=5, shape=(2,))
    graph = fgraph.FactorGraph([*small.groups, x, y])
    graph.add_factors([small.rbm, small.pairs, small.other])
    graph.add_factors(fgroup.ORFactorGroup([[x[0], x[1], x[2]], [x[1], x[3], x[4], x[5]]]))
    graph.add_factors(fgroup.ANDFactorGroup([[x[0], x[3], x[5]]]))
    graph.add_factors(fgroup.PoolFactorGroup([[x[2], x[4], small.h[0]]]))
    configurations = np.array([[0, 0, 1], [1, 1, 1], [2, 0, 0]])
    joined = [[small.d["left"], small.d["right"], x[0]], [small.d["left"], x[1], x[2]]]
    graph.add_factors(
        fgroup.EnumFactorGroup(
            variables_for_factors=joined,
            factor_configs=configurations,
            log_potentials=rng.normal(size=(2, 3)),
        )
    )
    graph.add_factors(
        factor.EnumFactor(
            variables=[small.v[0, 1]], factor_configs=np.array([[0], [1]]),
            log_potentials=rng.normal(size=2),
        )
    )  # fmt: skip
    grid = ebmlearn.pgmax.uniform_grid(5, 2.0)
    couplings = jnp.asarray([[1.0, 0.3], [0.3, 2.0]])
    graph.add_factors(ebmlearn.pgmax.NNBMFactorGroup(y, couplings, grid, jnp.asarray([0.5, -0.1])))
    return FactorGraphModel(graph).with_evidence(small.evidence)


@pytest.mark.slow
def test_a_file_holds_a_graph(tmp_path):
    model = everything()
    path = tmp_path / "graph.ebm"
    ebm.save(path, model)
    again = ebm.load(path)
    assert type(again) is FactorGraphModel
    assert again.layout == model.layout
    jax.tree.map(np.testing.assert_array_equal, again, model)
    rebuilt = to_pgmax(again)
    assert len(rebuilt.variables) == 5
    assert rebuilt.variables[0].variable_names == ("left", "right")
    mine = FactorGraphModel(rebuilt.graph).with_evidence(rebuilt.evidence)
    assert mine.layout == model.layout
    jax.tree.map(np.testing.assert_array_equal, mine.log_potentials, model.log_potentials)
    jax.tree.map(np.testing.assert_array_equal, mine.wires, model.wires)
    rows = np.random.default_rng(0).integers(0, np.asarray(model.num_states), (200, 16))
    np.testing.assert_array_equal(mine.energy(rows), model.energy(rows))
    # Another process reads it without being told what it holds.
    code = f"import ebmlearn as ebm; print(ebm.load({str(path)!r}).num_variables)"
    out = subprocess.run(
        [sys.executable, "-c", code], env=programs.quickly(), capture_output=True, text=True
    )
    assert out.stdout.strip() == "16", out.stderr[-2000:]
