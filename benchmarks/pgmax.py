"""RBMs in PGMax graphs: dense groups, the inferer of our own, pairwise groups and plain models.

Build, compile and memory are measured in a process of each way's own; steady times of all ways in
turn in one process.
"""

import argparse
import json
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ebmlearn as ebm

from .bp import random_rbm, steady


WAYS = ("pairwise", "dense", "matrix", "plain")
SIZES = ((100, 50), (784, 100), (784, 500), (1000, 500))


def graph_of(rbm: ebm.RBM, pairwise: bool) -> tuple[Any, dict]:
    """The graph of an RBM, and its biases as evidence."""
    from ebmlearn.pgmax import to_pgmax

    if not pairwise:
        graph, _, evidence = to_pgmax(rbm)
        return graph, evidence
    from pgmax import fgraph, fgroup, vgroup

    visible = vgroup.NDVarArray(num_states=2, shape=(rbm.num_visible,))
    hidden = vgroup.NDVarArray(num_states=2, shape=(rbm.num_hidden,))
    graph = fgraph.FactorGraph([visible, hidden])
    potentials = np.zeros((rbm.weights.size, 2, 2), np.float32)
    potentials[:, 1, 1] = np.asarray(rbm.weights).ravel()
    pairs: Any = [[v, h] for v in visible.variables for h in hidden.variables]
    graph.add_factors(
        fgroup.PairwiseFactorGroup(variables_for_factors=pairs, log_potential_matrix=potentials)
    )
    evidence = {
        group: jnp.stack([jnp.zeros_like(bias), bias], 1)
        for group, bias in zip((visible, hidden), rbm.unary(), strict=True)
    }
    return graph, evidence


def prepared(way: str, rbm: ebm.RBM, iterations: int, damping: float) -> tuple[Any, float]:
    """A function without arguments that runs belief propagation, and the seconds to build it."""
    start = time.perf_counter()
    if way == "plain":
        bp = ebm.BP(iterations, damping=damping)
        return lambda: bp(rbm).log_odds, time.perf_counter() - start
    from pgmax import infer

    from ebmlearn.pgmax import MatrixBP

    graph, evidence = graph_of(rbm, way == "pairwise")
    state = graph.bp_state
    inferer: Any = MatrixBP(state) if way == "matrix" else infer.build_inferer(state, backend="bp")
    arrays = jax.block_until_ready(inferer.init(evidence_updates=evidence))
    built = time.perf_counter() - start
    if way == "matrix":
        return lambda: inferer.run(arrays, iterations, damping, 1.0).ftov_msgs, built
    jitted = jax.jit(lambda arrays: inferer.run(arrays, iterations, damping, 1.0))
    return lambda: jitted(arrays).ftov_msgs, built


def alone(way: str, visible: int, hidden: int, iterations: int) -> dict[str, float]:
    """Build, compile and peak memory of one way, in a process that does nothing else."""
    code = "import sys; from benchmarks import pgmax; pgmax.measure(*sys.argv[1:])"
    command = [sys.executable, "-c", code, way, str(visible), str(hidden), str(iterations)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def measure(way: str, visible: str, hidden: str, iterations: str) -> None:
    """Prints what `alone` asks for. A tiny graph goes first, so that nothing is paid for once."""
    tiny, _ = prepared(way, random_rbm(3, 2), 2, 0.0)
    jax.block_until_ready(tiny())
    rbm = jax.block_until_ready(random_rbm(int(visible), int(hidden)))
    memory = _Memory()
    run, build = prepared(way, rbm, int(iterations), 0.0)
    start = time.perf_counter()
    jax.block_until_ready(run())
    first = time.perf_counter() - start
    start = time.perf_counter()
    jax.block_until_ready(run())
    # What the first run took beyond a second one.
    compile_s = first - (time.perf_counter() - start)
    print(json.dumps({"build_s": build, "compile_s": compile_s, "peak_mib": memory.peak()}))


class _Memory:
    """Looks every few milliseconds at how much memory this process has."""

    def __init__(self):
        self.first = self.most = self.now()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def now(self) -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20

    def watch(self) -> None:
        while not self.over.wait(0.003):
            self.most = max(self.most, self.now())

    def peak(self) -> float:
        """The most it had beyond what it had at first, in MiB."""
        self.over.set()
        self.thread.join()
        return max(self.most, self.now()) - self.first


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sizes", nargs="+", default=[f"{v}x{h}" for v, h in SIZES])


def main(args: argparse.Namespace) -> dict[str, Any]:
    from . import _report

    rows = []
    for size in args.sizes:
        visible, hidden = map(int, size.split("x"))
        row: dict[str, Any] = {"visible": visible, "hidden": hidden}
        for way in WAYS:
            row[way] = alone(way, visible, hidden, args.iterations)
        rbm = random_rbm(visible, hidden)
        for name, damping in (("ms", 0.0), ("damped_ms", 0.5)):
            runs = {way: prepared(way, rbm, args.iterations, damping)[0] for way in WAYS}
            for way, seconds in steady(runs, args.repeats).items():
                row[way][name] = 1e3 * seconds
        rows.append(row)
        show(row)
    return {"rows": rows, "environment": _report.environment()}


def show(row: dict[str, Any]) -> None:
    """A line about a size."""
    parts = ", ".join(
        f"{way} {row[way]['build_s']:.2f} s + {row[way]['compile_s']:.2f} s,"
        f" {row[way]['ms']:.1f} ms, {row[way]['peak_mib']:.0f} MiB"
        for way in WAYS
    )
    print(f"{row['visible']}x{row['hidden']}: {parts}", flush=True)
