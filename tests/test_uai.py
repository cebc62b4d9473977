"""Files of the UAI competitions: round trips, errors, answers against enumeration, conversions."""

import itertools
import math
import runpy
import sys
from typing import Any

import errors
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import ebmlearn as ebm
from ebmlearn import uai
from ebmlearn.elimination import Network


def random_network(seed=0, counts=(2, 3, 2, 1, 2), zeros=0.2):
    """Tables of none to three variables, some with zeros, of which state 0 of all is possible."""
    rng = np.random.default_rng(seed)
    scopes = [(), (1,), (0,), (2, 0), (0, 1, 2), (4, 3), (1, 4)]
    tables = []
    for scope in scopes:
        table = np.exp(rng.normal(size=[counts[v] for v in scope]))
        if scope:
            table = np.where(rng.random(table.shape) < zeros, 0, table)
            table.flat[0] = 1.5
        with np.errstate(divide="ignore"):
            tables.append(np.asarray(np.log(table)))
    return Network(tuple(counts), tuple(scopes), tuple(tables))


def configurations(counts):
    return np.array(list(itertools.product(*map(range, counts))))


def assert_same(a, b):
    assert (a.counts, a.scopes) == (b.counts, b.scopes)
    for x, y in zip(a.tables, b.tables, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-13)


@pytest.fixture
def file(tmp_path):
    def make(text, name="a.uai"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return make


def test_network_round_trip(tmp_path):
    network = random_network()
    uai.write(tmp_path / "a.uai", network)
    assert_same(uai.read_network(tmp_path / "a.uai"), network)
    assert [path.name for path in tmp_path.iterdir()] == ["a.uai"]


def test_model_round_trip(tmp_path):
    network = random_network()
    uai.write(tmp_path / "a.uai", ebm.TableModel(*network))
    model = uai.read(tmp_path / "a.uai")
    rows = configurations(model.counts)
    np.testing.assert_allclose(-model.energy(jnp.asarray(rows)), network.score(rows), rtol=1e-5)


def test_last_variable_of_a_scope_changes_fastest(file):
    text = """markov # any case, comments
    2   3 2
    2
    2 1 0 # the second variable first
    0
    6
    1 2 3
    4 5 0
    1 0.5"""
    network = uai.read_network(file(text))
    assert network.counts == (3, 2)
    assert network.scopes == ((1, 0), ())
    np.testing.assert_allclose(np.exp(network.tables[0]), [[1, 2, 3], [4, 5, 0]])
    np.testing.assert_allclose(np.exp(network.tables[1]), 0.5)


def test_bayes_round_trip(tmp_path):
    rng = np.random.default_rng(0)
    tables = [np.log(rng.dirichlet(np.ones(n), size)) for n, size in ((2, ()), (3, (2,)))]
    network = Network((2, 3), ((0,), (0, 1)), tuple(tables))
    uai.write(tmp_path / "a.uai", network, kind="BAYES")
    assert (tmp_path / "a.uai").read_text().startswith("BAYES\n2\n2 3\n2\n1 0\n2 0 1\n")
    assert_same(uai.read_network(tmp_path / "a.uai"), network)
    assert uai.answer("PR", network)[0].log10_partition == pytest.approx(0)


def test_evidence_in_all_forms(file, tmp_path):
    counts = (2, 3, 2)
    for text in ("2 2 1 0 1", "1\n2 2 1 0 1\n", "1 2\n0 1 2 1", "3 0 1 2 1 0 1"):
        np.testing.assert_array_equal(uai.read_evidence(file(text, "a.evid"), counts), [1, -1, 1])
    np.testing.assert_array_equal(uai.read_evidence(file("1 1 2", "a"), counts), [-1, 2, -1])
    for text in ("", "0", "0\n", "1\n0\n", " # nothing"):
        np.testing.assert_array_equal(uai.read_evidence(file(text, "a.evid"), counts), -1)
    for states in ([1, -1, 1], [-1, -1, -1], [0, 2, 1]):
        uai.write_evidence(tmp_path / "b.evid", np.array(states))
        np.testing.assert_array_equal(uai.read_evidence(tmp_path / "b.evid", counts), states)


def test_query_round_trip(tmp_path):
    uai.write_query(tmp_path / "a.query", (3, 0, 2))
    assert uai.read_query(tmp_path / "a.query", (2, 2, 2, 2)) == (3, 0, 2)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (uai.Answer("PR", log10_partition=-12.25), "PR\n-12.25\n"),
        (
            uai.Answer("MAR", marginals=(np.array([0.25, 0.75]), np.array([1.0]))),
            "MAR\n2 2 0.25 0.75 1 1.0\n",
        ),
        (uai.Answer("MAP", states=np.array([1, 0, 2])), "MAP\n3 1 0 2\n"),
        (
            uai.Answer("MMAP", states=np.array([1, 0]), variables=(2, 5)),
            "MMAP\n2 1 0\n",
        ),
    ],
    ids=lambda x: getattr(x, "task", ""),
)
def test_answers_round_trip(answer, text, tmp_path, file):
    def assert_read(path):
        read = uai.read_answer(path, (5, 2) if answer.variables else None)
        assert read.task == answer.task
        np.testing.assert_equal(read.log10_partition, answer.log10_partition)
        jax.tree.map(np.testing.assert_array_equal, read[2:], answer[2:])

    uai.write_answer(tmp_path / "answer", answer)
    assert (tmp_path / "answer").read_text() == text
    assert_read(tmp_path / "answer")
    name, rest = text.split("\n", 1)
    assert_read(file(f"{name}\n1\n{rest}", "with_samples"))


def test_pairs_of_a_marginal_map_are_put_in_the_order_of_variables(file):
    path = file("MMAP\n2 5 1 3 0\n", "a.MMAP")
    for query in (None, (5, 3)):
        found = uai.read_answer(path, query)
        assert found.variables == (3, 5)
        np.testing.assert_array_equal(found.states, [0, 1])
    assert uai.read_answer(file("MMAP\n2 1 0\n", "b.MMAP")).variables is None
    for query in ((3, 4), (3, 4, 5)):
        errors.check((lambda: uai.read_answer(path, query), ValueError, "variables of the query"))  # noqa: B023


GOOD = "MARKOV\n2\n2 2\n1\n2 0 1\n4\n1 1\n1 1\n"
MALFORMED = {
    "empty": ("", "line 1", "begin with MARKOV or BAYES", "empty"),
    "header": (GOOD.replace("MARKOV", "MARKOW"), "line 1", "MARKOV or BAYES", "'MARKOW'"),
    "no variables": (GOOD.replace("2\n2 2", "0\n"), "line 2", "number of variables", "got 0"),
    "half a variable": (GOOD.replace("2\n2 2", "2.5\n2 2"), "line 2", "whole number", "got 2.5"),
    "no states": (GOOD.replace("2 2", "2 0"), "line 3", "number of states", "got 0"),
    "ends in states": ("MARKOV\n3\n2 2", "line 3, where the file ends", "expected 3", "got 2"),
    "ends before tables": ("MARKOV\n2\n2 2\n", "ends: expected the number of tables"),
    "negative tables": (GOOD.replace("1\n2 0 1", "-1\n2 0 1"), "line 4", "tables", "got -1"),
    "wide scope": (GOOD.replace("2 0 1", "3 0 1 1"), "line 5", "from 0 to 2", "got 3"),
    "ends in a scope": ("MARKOV\n2\n2 2\n1\n2 0", "line 5", "expected 2 variables", "got 1"),
    "variable": (GOOD.replace("2 0 1", "2 0 2"), "line 5", "variable", "from 0 to 1", "got 2"),
    "negative variable": (GOOD.replace("2 0 1", "2 -1 0"), "line 5", "got -1"),
    "repeated variable": (GOOD.replace("2 0 1", "2 1 1"), "line 5", "table 0", "once"),
    "size of table": (GOOD.replace("4\n", "3\n"), "line 6", "table 0", "4 entries", "got 3"),
    "short table": (GOOD[:-2], "line 8, where", "expected 4 entries of a table", "got 3"),
    "no table": (GOOD[: GOOD.index("4")], "where the file ends", "number of entries"),
    "too many": (GOOD + "\n1 1", "line 10", "end of the file after 1 tables", "2 more numbers"),
    "negative": (GOOD.replace("1 1\n1 1", "1 1\n1 -2"), "line 8", "table 0", "least 0", "got -2"),
    "not a number": (GOOD.replace("1 1\n1 1", "1 x\n1 1"), "line 7", "number", "'x'"),
    "NaN": (GOOD.replace("1 1\n1 1", "1 1\nnan 1"), "line 8", "finite", "got nan"),
    "infinity": (GOOD.replace("1 1\n1 1", "1 1\ninf 1"), "line 8", "finite", "got inf"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_networks(name, file):
    text, *parts = MALFORMED[name]
    errors.check((lambda: uai.read_network(file(text)), ValueError, "a.uai`, line", *parts))


def _evidence(path):
    return uai.read_evidence(path, (2, 3))


def _query(path):
    return uai.read_query(path, (2, 3))


OTHERS = {
    "evidence short": (_evidence, "2 0 1", "line 1", "expected 4 numbers, 2 pairs", "got 2"),
    "evidence long": (_evidence, "1 0 1\n1 1", "line 2", "end of the file", "2 more"),
    "evidence odd": (_evidence, "2 0 1 1", "line 1", "2 pairs", "got 3"),
    "evidence variable": (_evidence, "1\n2 0", "line 2", "variable", "from 0 to 1", "got 2"),
    "evidence state": (_evidence, "1 0 2", "state of variable 0", "from 0 to 1", "got 2"),
    "evidence negative": (_evidence, "1 0 -1", "state of variable 0", "got -1"),
    "evidence contradicts": (_evidence, "2 1 0\n1 2", "line 2", "variable 1", "got 0 and 2"),
    "evidence word": (_evidence, "1 0\n\nyes", "line 3", "expected a number", "'yes'"),
    "query empty": (_query, "", "line 1", "number of variables of the query"),
    "query short": (_query, "2 0", "expected 2 variables", "got 1"),
    "query long": (_query, "1 0 1", "end of the file", "one more number"),
    "query variable": (_query, "1 2", "from 0 to 1", "got 2"),
    "query twice": (_query, "2 1 1", "each variable once", "got 1 again"),
    "answer task": (uai.read_answer, "MPE\n1 0", "line 1", "PR or MAR or MAP or MMAP", "'MPE'"),
    "answer empty": (uai.read_answer, "PR\n", "line 2", "expected one number"),
    "answer PR": (uai.read_answer, "PR\n2 3", "line 2", "one number", "2 numbers"),
    "answer MAR": (uai.read_answer, "MAR\n2 2 .5 .5", "line 2", "number of its states"),
    "answer sum": (uai.read_answer, "MAR\n1 2 .5 .6", "variable 0", "add up to 1", "got 1.1"),
    "answer probability": (uai.read_answer, "MAR\n1 2\n-.5 1.5", "line 3", "0 to 1", "-0.5"),
    "answer MAP": (uai.read_answer, "MAP\n3 1 0", "then a state of each", "3 numbers"),
    "answer state": (uai.read_answer, "MAP\n2 1\n-1", "line 3", "a state", "got -1"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_malformed_files(name, file):
    read, text, *parts = OTHERS[name]
    errors.check((lambda: read(file(text, "a.txt")), ValueError, "a.txt`, line", *parts))


def test_missing_and_binary_files(tmp_path):
    for read in (uai.read_network, uai.read, _evidence, _query, uai.read_answer):
        path = tmp_path / "none"
        errors.check((lambda: read(path), FileNotFoundError, "none` must be a file that can be"))  # noqa: B023
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    errors.check((lambda: uai.read(tmp_path / "bytes"), ValueError, "must be a file of text"))
    missing = tmp_path / "no folder" / "a.uai"
    errors.check((lambda: uai.write(missing, random_network()), FileNotFoundError, "be written"))


@pytest.mark.usefixtures("as_a_user")
def test_what_files_cannot_hold(tmp_path):
    zeros, half = np.zeros(2), np.log(np.full(2, 0.5))

    def write(kind: Any = "MARKOV", scopes=((0,),), tables=(zeros,), counts=(2,)):
        return lambda: uai.write(tmp_path / "a", Network(counts, scopes, tables), kind=kind)

    for case in (
        (write(tables=(np.array([0, 800.0]),)), ValueError, "`model`", "-708 to 709", "got 800"),
        (write(tables=(np.array([0, -800.0]),)), ValueError, "got -800 in table 0"),
        (write("OTHER"), ValueError, "`kind` must be"),
        (write("BAYES"), ValueError, "add up to 1", "got 2 in table 0"),
        (write("BAYES", ((0,), (0,)), (half, half), (2, 2)), ValueError, "one table for each of 2"),
        (
            write("BAYES", ((0, 1), (1, 0)), (np.stack([half, half]),) * 2, (2, 2)),
            ValueError,
            "no cycle",
        ),
    ):
        errors.check(case)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "seed"), [(25, 0), (25, 1), (25, 2), (25, 3), (-1, 0), (-1, 1)])
def test_answers_against_enumeration(memory, seed):
    network = random_network(seed)
    evidence = np.array([-1, -1, 0, -1, -1])
    rows = configurations(network.counts)
    rows = rows[rows[:, 2] == 0]
    scores = network.score(rows)
    log_z = np.logaddexp.reduce(scores)

    def answer(task, query=()):
        found, report = uai.answer(task, network, evidence, query, seconds=0.3, memory=memory)
        assert report.is_exact == (memory > 0)
        assert f"{report.width:.1f} bits" in str(report)
        return found

    # The approximation has loops: its probabilities and log Z are near.
    near = 1e-9 if memory > 0 else 0.2
    assert answer("PR").log10_partition == pytest.approx(log_z / math.log(10), abs=near)
    p = np.exp(scores - log_z)
    for v, found in enumerate(answer("MAR").marginals):
        assert found.sum() == pytest.approx(1)
        wanted = [p[rows[:, v] == s].sum() for s in range(network.counts[v])]
        assert found.tolist() == pytest.approx(wanted, abs=near)
    np.testing.assert_array_equal(answer("MAP").states, rows[scores.argmax()])
    of_query = {
        pair: p[(rows[:, (1, 4)] == pair).all(1)].sum()
        for pair in itertools.product(range(3), range(2))
    }
    found = answer("MMAP", (4, 1))
    assert found.variables == (1, 4)
    assert tuple(found.states) == max(of_query, key=of_query.__getitem__)


@pytest.mark.slow
def test_answers_say_whether_messages_converged():
    """Spins that all repel each other turn round at every sweep."""
    rng = np.random.default_rng(0)
    scopes = [*itertools.combinations(range(12), 2), *((v,) for v in range(12))]
    tables = [np.array([[-2.0, 2.0], [2.0, -2.0]])] * 66 + list(rng.normal(size=(12, 2)))
    network = Network((2,) * 12, tuple(scopes), tuple(tables))
    _, report = uai.answer("MAR", network, seconds=0.5, memory=4)
    assert "did not converge" in report.quality
    assert not report.is_exact
    best, report = uai.answer("MAP", network, seconds=0.5, memory=4)
    rows = configurations(network.counts)
    assert network.score(best.states) == pytest.approx(network.score(rows).max())
    assert f"{network.score(rows).max() / math.log(10):.6g}" in report.quality


@pytest.mark.usefixtures("as_a_user")
def test_wrong_arguments_of_answers():
    network = random_network()
    impossible = network._replace(tables=(*network.tables[:-1], np.full((3, 2), -np.inf)))
    # Three variables of two states that must all differ: each pair alone can.
    differ = np.where(np.eye(2), -np.inf, 0.0)
    contradiction = Network((2, 2, 2), ((0, 1), (1, 2), (0, 2)), (differ,) * 3)
    queries: dict[Any, Any] = {"PR": (), "MAR": (), "MAP": (), "MMAP": (0, 1)}
    for task, query in queries.items():
        with pytest.raises(ValueError, match="no configuration is possible"):
            uai.answer(task, contradiction, query=query)
    for case in (
        (lambda: uai.answer("MPE", network), ValueError, "`task`", "'MPE'"),  # pyright: ignore
        (lambda: uai.answer("MMAP", network), ValueError, "`query` must hold variables"),
        (lambda: uai.answer("MAP", network, query=(1,)), ValueError, "`query` must be empty"),
        (lambda: uai.answer("PR", impossible), ValueError, "no configuration is possible"),
    ):
        errors.check(case)


@pytest.mark.usefixtures("as_a_user")
def test_command(tmp_path, capsys, monkeypatch):
    network = random_network()
    path = tmp_path / "a.uai"
    uai.write(path, network)
    uai.write_evidence(tmp_path / "a.evid", np.array([-1, 0, -1, -1, -1]))
    uai.write_query(tmp_path / "a.query", (4, 0))

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["uai", *map(str, words)])
        runpy.run_module("ebmlearn.uai", run_name="__main__")
        return capsys.readouterr()

    evidence = uai.read_evidence(tmp_path / "a.evid", network.counts)
    for task in ("PR", "MAR", "MAP", "MMAP"):
        given = (tmp_path / "a.evid", tmp_path / "a.query") if task == "MMAP" else ()
        given = given or (tmp_path / "a.evid",)
        out, err = run(task, path, *given, "--seconds", "5")
        query = (4, 0) if task == "MMAP" else ()
        assert out == uai.answer(task, network, evidence, query)[0].text()
        assert err.startswith("elimination: exact, width ")
    with pytest.raises(SystemExit, match="none` must be a file that can be read"):
        run("PR", path, tmp_path / "none")
    one = tmp_path / "one.uai"
    uai.write(one, Network((2,), ((0,),), (np.array([0, -np.inf]),)))
    uai.write_evidence(tmp_path / "one.evid", np.array([1]))
    with pytest.raises(SystemExit, match=r"one\.uai` with .*one\.evid`: no configuration is"):
        run("PR", one, tmp_path / "one.evid")
    with pytest.raises(SystemExit):
        run("MMAP", path, tmp_path / "a.evid")
    assert "MMAP needs a query" in capsys.readouterr().err


def random_rows(counts, seed=0, number=20):
    return np.random.default_rng(seed).integers(np.asarray(counts), size=(number, len(counts)))


def models():
    key = jax.random.key(0)
    rbm = ebm.RBM.init(3, 4, key=key, scale=1.0)
    yield ebm.RBM(rbm.weights, jnp.arange(3.0), jnp.arange(4.0) - 2)
    yield ebm.BoltzmannMachine.init(5, key=key, scale=1.0)
    yield ebm.DBM.init(3, (2, 4), key=key, scale=1.0)
    yield ebm.GridMRF.init((3, 4), 3, {"seen": jnp.log(jnp.array([[0.3, 0.7]] * 3))}, key=key)


@pytest.mark.slow
@pytest.mark.parametrize("model", list(models()), ids=lambda x: type(x).__name__)
def test_models_as_tables(model):
    tables = uai.to_tables(model)
    rows = random_rows(tables.counts)
    if isinstance(model, ebm.GridMRF):
        states = (oracle.by_group(model, jnp.asarray(rows)),)
    else:
        sizes = [layer.size for layer in model.layers]
        first, *rest = (jnp.asarray(x) for x in np.split(rows, np.cumsum(sizes)[:-1], 1))
        states = (first, *((rest,) if len(rest) > 1 else rest))
    energy = model.energy(*states)
    np.testing.assert_allclose(tables.energy(jnp.asarray(rows)), energy, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(uai.to_network(model).score(rows), -energy, rtol=1e-4, atol=1e-4)


def test_tables_as_an_rbm():
    """Of variables in any order, tables of pairs both ways, and several of one pair."""
    rng = np.random.default_rng(0)
    scopes = [(), (3,), (0, 1), (1, 0), (2, 1), (3, 2), (0, 3), (4,)]
    tables = tuple(rng.normal(size=(2,) * len(scope)) for scope in scopes)
    network = Network((2,) * 5, tuple(scopes), tables)
    rbm, visible, hidden, constant = uai.to_rbm(network)
    assert (visible, hidden) == ((0, 2, 4), (1, 3))
    rows = configurations(network.counts)
    energy = rbm.energy(jnp.asarray(rows[:, visible]), jnp.asarray(rows[:, hidden]))
    np.testing.assert_allclose(constant - energy, network.score(rows), rtol=1e-5, atol=1e-5)
    log_z = np.logaddexp.reduce(network.score(rows))
    assert float(ebm.Exact()(rbm).log_partition) + constant == pytest.approx(log_z, rel=1e-5)


def test_an_rbm_comes_back():
    rbm = next(models())
    back, visible, hidden, constant = uai.to_rbm(uai.to_tables(rbm))
    assert (visible, hidden, constant) == ((0, 1, 2), (3, 4, 5, 6), 0)
    for a, b in zip(jax.tree.leaves(rbm), jax.tree.leaves(back), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_grid_comes_back(tmp_path):
    grid = ebm.GridMRF.init((3, 4), 3, key=0)
    uai.write(tmp_path / "grid.uai", grid)
    back = uai.to_grid_mrf(uai.read(tmp_path / "grid.uai"), (3, 4))
    for a, b in zip(jax.tree.leaves(grid), jax.tree.leaves(back), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_what_is_no_rbm_and_no_grid():
    def network(scopes, counts=(2, 2, 2, 2), scale=1.0):
        tables = [scale * np.arange(math.prod(counts[v] for v in s)) for s in scopes]
        shapes = [tuple(counts[v] for v in s) for s in scopes]
        tables = tuple(x.reshape(shape) for x, shape in zip(tables, shapes, strict=True))
        return Network(counts, tuple(scopes), tables)

    def grid(scopes, **settings):
        return lambda: uai.to_grid_mrf(network(scopes, **settings), (2, 2))

    def rbm(scopes, **settings):
        return lambda: uai.to_rbm(network(scopes, **settings))

    with np.errstate(invalid="ignore"):
        zeros = network([(0, 1)], scale=-np.inf)
    for case in (
        (rbm([(0, 1), (1, 2), (2, 0)]), ValueError, "two sides", "become an RBM", "odd cycle"),
        (rbm([(0, 1)], counts=(2, 3, 2, 2)), ValueError, "two states", "got 3 of variable 1"),
        (rbm([(0, 1, 2)]), ValueError, "one or two variables", "got 3 in table 0"),
        (lambda: uai.to_rbm(zeros), ValueError, "exclude nothing", "table 0"),
        (grid([(0, 1)]), ValueError, "become a GridMRF", "different"),
        (grid([(0,)]), ValueError, "each variable alone", "different"),
        (grid([(0, 1, 2)]), ValueError, "one or two variables", "got 3 in table 0"),
        (grid([], counts=(2, 2, 2)), ValueError, "as many variables", "got 3"),
        (grid([], counts=(2, 2, 2, 3)), ValueError, "one number of states"),
        (
            lambda: uai.to_grid_mrf(network([(0, 2)], (2,) * 3), (1, 3)),
            ValueError,
            "tables of neighbours",
            r"\(0, 2\)",
        ),
        (lambda: uai.to_tables(ebm.NNBM.init(3, key=0)), TypeError, "`model`", "uai.to_tables"),
    ):
        errors.check(case)


@pytest.fixture
def as_pgmax():
    """PGMax is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("as_pgmax")
def test_tables_as_a_factor_graph_and_back():
    """Some scopes are the same, in another order."""
    network = random_network()
    more = np.random.default_rng(1).normal(size=(2, 2))
    model = ebm.TableModel(network.counts, (*network.scopes, (0, 2)), (*network.tables, more))
    graph = uai.to_factor_graph(model)
    rows = jnp.asarray(configurations(network.counts))
    wanted = model.energy(rows)
    np.testing.assert_allclose(graph.energy(rows), wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(uai.to_tables(graph).energy(rows), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("as_pgmax")
def test_all_factors_as_tables():
    from pgmax import factor, fgraph, fgroup
    from untyped import nd_var_array

    import ebmlearn.pgmax

    rng = np.random.default_rng(0)
    a, b = nd_var_array(num_states=2, shape=(6,)), nd_var_array(num_states=3, shape=(2,))
    graph = fgraph.FactorGraph([a, b])
    graph.add_factors(ebmlearn.pgmax.RBMFactorGroup([a[0], a[1]], [a[2]], rng.normal(size=(2, 1))))
    graph.add_factors(
        fgroup.PairwiseFactorGroup([[a[0], b[0]], [a[3], b[1]]], rng.normal(size=(2, 2, 3)))
    )
    listed = np.array([[0, 1], [2, 2], [1, 0]])
    graph.add_factors(
        factor.EnumFactor(
            variables=[b[0], b[1]], factor_configs=listed, log_potentials=rng.normal(size=3)
        )
    )
    graph.add_factors(fgroup.ORFactorGroup([[a[0], a[1], a[3]]]))
    graph.add_factors(fgroup.ANDFactorGroup([[a[1], a[2], a[4]]]))
    graph.add_factors(fgroup.PoolFactorGroup([[a[0], a[2], a[5]]]))
    model = ebmlearn.pgmax.FactorGraphModel(graph)
    model = model.with_evidence({a: jnp.asarray(rng.normal(size=(6, 2)), jnp.float32)})
    tables = uai.to_tables(model)
    rows = jnp.asarray(configurations(tables.counts))
    wanted = model.energy(rows)
    assert 0 < np.isfinite(wanted).sum() < len(rows)
    np.testing.assert_allclose(tables.energy(rows), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("as_a_user")
def test_queries_and_evidence_are_checked():
    network = uai.to_network(ebm.TableModel([2, 2, 2], [(0, 1), (1, 2)], [np.zeros((2, 2))] * 2))
    for query in ((-1,), (1, 1), (7,)):
        with pytest.raises(ValueError, match="`query` must hold different variables from 0 to 2"):
            uai.answer("MMAP", network, None, query)
    with pytest.raises(ValueError, match="`evidence` must have shape"):
        uai.answer("PR", network, np.array([-1, -1]))
    for state in (-2, 5):
        with pytest.raises(ValueError, match="`evidence` must hold states from 0 to 1 of variable"):
            uai.answer("PR", network, np.array([state, -1, -1]))
    with pytest.raises(TypeError, match="`evidence` must hold integers"):
        uai.answer("PR", network, np.array([0.5, -1, -1]))


def test_numbers_that_are_none_are_not_written(tmp_path):
    network = Network((2,), ((0,),), (np.array([0.0, np.nan]),))
    with pytest.raises(ValueError, match="`model` must have log-potentials"):
        uai.write(tmp_path / "x.uai", network)
    assert not any(tmp_path.iterdir())
