"""PGMax's example notebooks by PGMax and by this library, with generated weights and images.

Each gives the same results both ways. Seconds to build, to compile and to run, in one process.
"""

import argparse
import collections
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import ebmlearn as ebm


class Notebook(NamedTuple):
    """Two functions that build a problem and give a function that solves it: by PGMax as its
    notebook does, and by this library. What these give is to be the same.
    """

    pgmax: Callable[[], Callable[[], Any]]
    ours: Callable[[], Callable[[], Any]]


def rbm(visible: int, hidden: int, iterations: int) -> Notebook:
    """Maxima of an RBM with Gumbel noise: states, changes of messages and the energy."""
    from pgmax import fgraph, fgroup, infer, vgroup

    from ebmlearn.pgmax import MatrixBP, RBMFactorGroup

    rng = np.random.default_rng(0)
    # Weak enough for max-product to converge: where it does not, rounding decides.
    weights = 0.3 * rng.normal(size=(hidden, visible)) / np.sqrt(hidden)
    biases = rng.normal(size=hidden), rng.normal(size=visible)
    noise = [rng.gumbel(size=(len(b), 2)) for b in biases]
    potentials = [np.stack([np.zeros_like(b), b], 1) for b in biases]

    def built(dense: bool) -> Callable[[], Callable[[], Any]]:
        def make() -> Callable[[], Any]:
            h: Any = vgroup.NDVarArray(num_states=2, shape=(hidden,))
            v: Any = vgroup.NDVarArray(num_states=2, shape=(visible,))
            graph = fgraph.FactorGraph(variable_groups=[h, v])
            for group, potential in zip((h, v), potentials, strict=True):
                graph.add_factors(
                    fgroup.EnumFactorGroup(
                        variables_for_factors=[[x] for x in group.variables],
                        factor_configs=np.arange(2)[:, None],
                        log_potentials=potential,
                    )
                )
            if dense:
                graph.add_factors(RBMFactorGroup(h, v, weights))
                bp: Any = MatrixBP(graph.bp_state)
                run = bp.run_with_diffs
            else:
                table = np.zeros((weights.size, 2, 2))
                table[:, 1, 1] = weights.ravel()
                pairs: Any = [[a, b] for a in h.variables for b in v.variables]
                graph.add_factors(fgroup.PairwiseFactorGroup(pairs, table))
                bp = infer.build_inferer(graph.bp_state, backend="bp")
                run = jax.jit(bp.run_with_diffs, static_argnums=(1, 3))
            start = bp.init(evidence_updates={h: noise[0], v: noise[1]})

            def solve() -> Any:
                end, changes = run(start, iterations, 0.5, 0.0)
                states = infer.decode_map_states(bp.get_beliefs(end))
                return states[v], changes, infer.compute_energy(graph.bp_state, end, states)[0]

            return solve

        return make

    return Notebook(built(False), built(True))


def torus(size: int) -> tuple[Any, Any]:
    """The graph of an Ising model on a torus, and its variables."""
    from pgmax import fgraph, fgroup, vgroup

    x: Any = vgroup.NDVarArray(num_states=2, shape=(size, size))
    graph = fgraph.FactorGraph(variable_groups=[x])
    pairs = []
    for i in range(size):
        for j in range(size):
            pairs += [[x[i, j], x[(i + 1) % size, j]], [x[i, j], x[i, (j + 1) % size]]]
    graph.add_factors(
        fgroup.PairwiseFactorGroup(
            variables_for_factors=pairs,
            log_potential_matrix=0.8 * np.array([[1.0, -1.0], [-1.0, 1.0]]),
        )
    )
    return graph, x


def ising(size: int, iterations: int) -> Notebook:
    """The maximum of an Ising model in a random field: its states and their energy."""
    from pgmax import infer

    from ebmlearn.pgmax import FactorGraphModel

    noise = np.random.default_rng(1).gumbel(size=(size, size, 2))

    def pgmax() -> Callable[[], Any]:
        graph, x = torus(size)
        bp = infer.build_inferer(graph.bp_state, backend="bp")
        start = bp.init(evidence_updates={x: noise})
        run = jax.jit(lambda arrays: bp.run(arrays, iterations, 0.5, 0.0))

        def solve() -> Any:
            end = run(start)
            states = infer.decode_map_states(bp.get_beliefs(end))
            return states[x], infer.compute_energy(graph.bp_state, end, states)[0]

        return solve

    def ours() -> Callable[[], Any]:
        graph, x = torus(size)
        model = FactorGraphModel(graph).with_evidence({x: noise})
        bp = ebm.BP(iterations, product="max", damping=0.5)

        def solve() -> Any:
            states = bp(model).decode()
            return states[x], model.energy({x: states[x]})

        return solve

    return Notebook(pgmax, ours)


def grid_mrf(size: int, clones: tuple[int, int, int], iterations: int) -> Notebook:
    """Marginals of the hidden states of noisy contours, and the gradient of the loss in a table."""
    from pgmax import fgraph, fgroup, infer, vgroup

    from ebmlearn.pgmax import FactorGraphModel

    rng = np.random.default_rng(2)
    number = sum(clones)
    tables = [rng.normal(size=(number, number)).astype(np.float32) for _ in range(4)]
    target = rng.integers(0, 3, (size, size))
    noisy = (rng.random((size, size)) < 0.5).astype(int)
    contour = np.repeat([0.8, 0.1, 1e-3], clones)
    evidence = np.log(np.where(noisy[..., None] == 0, contour, 1 - contour)).astype(np.float32)
    wanted = np.repeat(np.eye(3), clones, 1)[target].astype(np.float32)

    def graph() -> tuple[Any, Any, list[Any]]:
        x: Any = vgroup.NDVarArray(num_states=number, shape=(size, size))
        made = fgraph.FactorGraph([x])
        groups = []
        for down, right in ((1, 0), (0, 1), (1, 1), (-1, 1)):
            pairs = [
                [x[i, j], x[i + down, j + right]]
                for i in range(size)
                for j in range(size)
                if 0 <= i + down < size and j + right < size
            ]
            groups.append(fgroup.PairwiseFactorGroup(variables_for_factors=pairs))
        made.add_factors(groups)
        return made, x, groups

    def loss(marginals: Any) -> Any:
        return -jnp.log((wanted * marginals).sum(-1)).mean()

    def pgmax() -> Callable[[], Any]:
        made, x, groups = graph()
        bp = infer.build_inferer(made.bp_state, backend="bp")

        def marginals(tables: Any) -> Any:
            arrays = bp.init(
                evidence_updates={x: evidence},
                log_potentials_updates=dict(zip(groups, tables, strict=True)),
            )
            end = bp.run(arrays, iterations, 0.0, 1.0)
            return infer.get_marginals(bp.get_beliefs(end))[x]

        both = jax.jit(lambda t: (marginals(t), jax.grad(lambda t: loss(marginals(t)))(t)[0]))
        return lambda: both(tables)

    def ours() -> Callable[[], Any]:
        made, x, groups = graph()
        model = FactorGraphModel(made).with_evidence({x: evidence})
        bp = ebm.BP(iterations, unroll=True)

        def marginals(tables: Any) -> Any:
            return bp(model.with_log_potentials(dict(zip(groups, tables, strict=True))))[x]

        both = jax.jit(lambda t: (marginals(t), jax.grad(lambda t: loss(marginals(t)))(t)[0]))
        return lambda: both([jnp.asarray(t) for t in tables])

    return Notebook(pgmax, ours)


def deconvolution(images: int, size: int, features: int, width: int, iterations: int) -> Notebook:
    """Features and their places from binary images, with noise on both: the features found."""
    from pgmax import fgraph, fgroup, infer, vgroup

    from ebmlearn.pgmax import FactorGraphModel

    rng = np.random.default_rng(3)
    places = size - width + 1
    true = rng.random((features, width, width)) < 0.5
    there = rng.random((images, features, places, places)) < 0.1
    image = np.zeros((images, 1, size, size), bool)
    for n, f, i, j in np.argwhere(there):
        image[n, 0, i : i + width, j : j + width] |= true[f]
    logits = np.log(0.25 / 0.75), -172.0, -230.0
    noise = rng.gumbel(size=(1, features, width, width, 2)), rng.gumbel(size=(*there.shape, 2))

    def graph() -> tuple[Any, dict[Any, Any], Any]:
        w: Any = vgroup.NDVarArray(num_states=2, shape=(1, features, width, width))
        s: Any = vgroup.NDVarArray(num_states=2, shape=there.shape)
        shape = (images, 1, size, size, features, width, width)
        sw: Any = vgroup.NDVarArray(num_states=2, shape=shape)
        x: Any = vgroup.NDVarArray(num_states=2, shape=image.shape)
        made = fgraph.FactorGraph(variable_groups=[s, w, sw, x])
        ands, ors = [], collections.defaultdict(list)
        for n, f, i, j in np.ndindex(*there.shape):
            for a, b in np.ndindex(width, width):
                both = sw[n, 0, i + a, j + b, f, a, b]
                ands.append([s[n, f, i, j], w[0, f, a, b], both])
                ors[x[n, 0, i + a, j + b]].append(both)
        made.add_factors(fgroup.ANDFactorGroup(ands))
        made.add_factors(
            fgroup.ORFactorGroup([[*parents, child] for child, parents in ors.items()])
        )
        given = {}
        for group, logit, extra in ((w, logits[0], noise[0]), (s, logits[1], noise[1])):
            unary = np.zeros((*group.shape, 2))
            unary[..., 1] = logit
            given[group] = unary + extra
        given[x] = np.zeros((*image.shape, 2))
        given[x][..., 0] = (2.0 * image - 1) * logits[2]
        return made, given, w

    def pgmax() -> Callable[[], Any]:
        made, given, w = graph()
        bp = infer.build_inferer(made.bp_state, backend="bp")
        start = bp.init(evidence_updates=given)
        run = jax.jit(lambda arrays: bp.run(arrays, iterations, 0.5, 0.0))
        return lambda: infer.decode_map_states(bp.get_beliefs(run(start)))[w]

    def ours() -> Callable[[], Any]:
        made, given, w = graph()
        model = FactorGraphModel(made).with_evidence(given)
        bp = ebm.BP(iterations, product="max", damping=0.5)
        return lambda: bp(model).decode()[w]

    return Notebook(pgmax, ours)


def sdlp(visible: int, hidden: int, iterations: int) -> Notebook:
    """PGMax's smooth dual solver: its objective, the upper bound and the states, where the edges
    are pairwise factors and where they are one dense group.
    """
    from pgmax import fgraph, fgroup, infer, vgroup

    from ebmlearn.pgmax import RBMFactorGroup

    rng = np.random.default_rng(4)
    weights = rng.normal(size=(visible, hidden))
    noise = rng.gumbel(size=(visible, 2)), rng.gumbel(size=(hidden, 2))
    # Variables of so many factors need smaller steps than those of a torus.
    settings = {"logsumexp_temp": 1e-2, "lr": 1e-2 / visible, "num_iters": iterations}

    def built(dense: bool) -> Callable[[], Callable[[], Any]]:
        def make() -> Callable[[], Any]:
            v: Any = vgroup.NDVarArray(num_states=2, shape=(visible,))
            h: Any = vgroup.NDVarArray(num_states=2, shape=(hidden,))
            graph = fgraph.FactorGraph([v, h])
            if dense:
                graph.add_factors(RBMFactorGroup(v, h, weights))
            else:
                table = np.zeros((weights.size, 2, 2))
                table[:, 1, 1] = weights.ravel()
                pairs: Any = [[a, b] for a in v.variables for b in h.variables]
                graph.add_factors(fgroup.PairwiseFactorGroup(pairs, table))
            solver: Any = infer.build_inferer(graph.bp_state, backend="sdlp")
            start = solver.init(evidence_updates={v: noise[0], h: noise[1]})
            run = jax.jit(lambda x: solver.run_with_objvals(x, **settings))

            def solve() -> Any:
                end, objective = run(start)
                states, _ = solver.decode_primal_unaries(end)
                return objective, solver.get_primal_upper_bound(end), states[v]

            return solve

        return make

    return Notebook(built(False), built(True))


def notebooks(small: bool) -> dict[str, Notebook]:
    """All of them, as large as PGMax has them or small enough for a test."""
    if small:
        return {
            "rbm": rbm(6, 4, 30),
            "ising": ising(5, 60),
            "grid_mrf": grid_mrf(4, (2, 1, 1), 5),
            "deconvolution": deconvolution(2, 5, 2, 2, 40),
            "sdlp": sdlp(4, 3, 30),
        }
    return {
        "rbm": rbm(784, 100, 200),
        "ising": ising(50, 500),
        "grid_mrf": grid_mrf(20, (12, 2, 2), 15),
        "deconvolution": deconvolution(10, 12, 5, 5, 100),
        "sdlp": sdlp(100, 50, 200),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--small", action="store_true", help="as large as in the tests")
    parser.add_argument("--repeats", type=int, default=3)


def main(args: argparse.Namespace) -> dict[str, Any]:
    rows = []
    for name, notebook in notebooks(args.small).items():
        row: dict[str, Any] = {"notebook": name}
        found = {}
        for way, make in notebook._asdict().items():
            start = time.perf_counter()
            solve = make()
            built = time.perf_counter()
            found[way] = jax.block_until_ready(solve())
            first = time.perf_counter()
            times = []
            for _ in range(args.repeats):
                before = time.perf_counter()
                jax.block_until_ready(solve())
                times.append(time.perf_counter() - before)
            seconds = float(np.median(times))
            row[way] = {
                "build_s": built - start,
                "compile_s": max(first - built - seconds, 0.0),
                "run_s": seconds,
            }
        gaps = jax.tree.map(
            lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(a).max()),
            found["pgmax"],
            found["ours"],
        )
        row["largest_difference"] = max(jax.tree.leaves(gaps))
        rows.append(row)
        parts = ", ".join(
            f"{way} {row[way]['build_s']:.2f} s + {row[way]['compile_s']:.2f} s,"
            f" {1e3 * row[way]['run_s']:.1f} ms"
            for way in ("pgmax", "ours")
        )
        print(f"{name}: {parts}; largest difference {row['largest_difference']:.2g}", flush=True)
    return {"rows": rows}
