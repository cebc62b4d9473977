"""Belief propagation on RBMs: ebmlearn, the softplus formula, PGMax and a memory copy."""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ebmlearn as ebm


ITERATIONS = 10
SIZES = ((100, 50), (784, 100), (784, 500), (1000, 500), (10000, 2000))
PGMAX_UP_TO = 1000 * 500
BATCHES = ((784, 100, 100), (784, 256, 10), (784, 256, 100))


def softplus_bp(weights, visible_bias, hidden_bias):
    """The reference: log-odds messages, softplus(W + t) - softplus(t), visible units first."""

    def message(field, incoming):
        t = field - incoming
        return jax.nn.softplus(weights + t) - jax.nn.softplus(t)

    def sweep(_, state):
        to_visible, visible, _ = state
        to_hidden = message(visible[:, None], to_visible)
        hidden = hidden_bias + to_hidden.sum(0)
        to_visible = message(hidden[None, :], to_hidden)
        return to_visible, visible_bias + to_visible.sum(1), hidden

    start = jnp.zeros_like(weights), visible_bias, hidden_bias
    return jax.lax.fori_loop(0, ITERATIONS, sweep, start)


def random_rbm(visible: int, hidden: int, batch: int | None = None) -> ebm.RBM:
    keys = jax.random.split(jax.random.key(0), 3)
    shape = (visible,) if batch is None else (batch, visible)
    return ebm.RBM(
        0.1 * jax.random.normal(keys[0], (visible, hidden)),
        jax.random.normal(keys[1], shape),
        jax.random.normal(keys[2], (hidden,)),
    )


def compiled(fn: Callable, *args: Any) -> tuple[Callable[[], Any], float, float]:
    """A function without arguments that runs `fn`, the seconds to compile it, and the bytes it
    allocates beside its arguments.
    """
    jitted = jax.jit(fn)
    start = time.perf_counter()
    memory = jitted.lower(*args).compile().memory_analysis()
    seconds = time.perf_counter() - start
    size = float("nan")
    if memory is not None:
        size = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return lambda: jitted(*args), seconds, size


def steady(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The median seconds of each function, all of them in turn in every round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        jax.block_until_ready(run())
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def ours(rbm: ebm.RBM) -> tuple[Callable[[], Any], float, float]:
    """Ebmlearn as a user calls it, and its compile time and memory."""
    from ebmlearn.inference._bp import settings_of, solved

    bp = ebm.BP(iterations=ITERATIONS)
    start = time.perf_counter()
    problem = rbm.problem(None, None)
    memory: Any = solved.lower(settings_of(bp, rbm), problem).compile().memory_analysis()
    seconds = time.perf_counter() - start
    size = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return lambda: bp(rbm).log_odds, seconds, size


def pgmax(rbm: ebm.RBM) -> tuple[Callable[[], Any], float, float, float]:
    """PGMax's pairwise group, and its compile time, memory and build time."""
    from pgmax import fgraph, fgroup, infer, vgroup

    import ebmlearn.pgmax  # noqa: F401, so that PGMax runs on this JAX

    start = time.perf_counter()
    visible = vgroup.NDVarArray(num_states=2, shape=(rbm.num_visible,))
    hidden = vgroup.NDVarArray(num_states=2, shape=(rbm.num_hidden,))
    graph = fgraph.FactorGraph(variable_groups=[visible, hidden])
    potentials = np.zeros((rbm.weights.size, 2, 2))
    potentials[:, 1, 1] = np.asarray(rbm.weights).ravel()
    units = [visible[i] for i in range(rbm.num_visible)], [hidden[j] for j in range(rbm.num_hidden)]
    pairs: Any = [[v, h] for v in units[0] for h in units[1]]
    graph.add_factors(
        fgroup.PairwiseFactorGroup(variables_for_factors=pairs, log_potential_matrix=potentials)
    )
    bp = infer.build_inferer(graph.bp_state, backend="bp")
    evidence = {
        group: jnp.stack([jnp.zeros_like(bias), bias], axis=1)
        for group, bias in ((visible, rbm.visible_bias), (hidden, rbm.hidden_bias))
    }
    arrays = bp.init(evidence_updates=evidence)
    build = time.perf_counter() - start
    run, seconds, size = compiled(lambda a: bp.run(a, ITERATIONS, 0.0, 1.0), arrays)
    return run, seconds, size, build


def single(visible: int, hidden: int, repeats: int) -> dict[str, Any]:
    rbm = random_rbm(visible, hidden)
    array = rbm.weights.size * 4
    runs: dict[str, Callable[[], Any]] = {}
    row: dict[str, Any] = {"visible": visible, "hidden": hidden, "batch": 1}
    runs["ebmlearn"], *rest = ours(rbm)
    measured = {"ebmlearn": rest}
    parameters = rbm.weights, rbm.visible_bias, rbm.hidden_bias
    runs["softplus"], *measured["softplus"] = compiled(softplus_bp, *parameters)
    runs["copy"], *measured["copy"] = compiled(lambda x: x + 0.0, rbm.weights)
    if rbm.weights.size <= PGMAX_UP_TO:
        runs["pgmax"], *measured["pgmax"] = pgmax(rbm)
        row["pgmax_build_s"] = measured["pgmax"][2]
    times = steady(runs, repeats)
    for name, seconds in times.items():
        row[f"{name}_ms"] = 1e3 * seconds
        row[f"{name}_compile_s"] = measured[name][0]
        row[f"{name}_arrays"] = measured[name][1] / array
    return row


def batched(visible: int, hidden: int, batch: int, repeats: int) -> dict[str, Any]:
    rbm = random_rbm(visible, hidden, batch)
    array = batch * rbm.weights.size * 4
    reference = jax.vmap(softplus_bp, (None, 0, None))
    runs, measured = {}, {}
    runs["ebmlearn"], *measured["ebmlearn"] = ours(rbm)
    parameters = rbm.weights, rbm.visible_bias, rbm.hidden_bias
    runs["softplus"], *measured["softplus"] = compiled(reference, *parameters)
    row: dict[str, Any] = {"visible": visible, "hidden": hidden, "batch": batch}
    for name, seconds in steady(runs, repeats).items():
        row[f"{name}_ms"] = 1e3 * seconds
        row[f"{name}_compile_s"] = measured[name][0]
        row[f"{name}_arrays"] = measured[name][1] / array
    return row


def growth(repeats: int) -> dict[str, Any]:
    """Seconds against the number of visible units, of hidden units and of instances, and the
    exponent of the power law through each.
    """
    series = {
        "visible": [(n, 500, None) for n in (1000, 2000, 4000, 8000)],
        "hidden": [(1000, n, None) for n in (500, 1000, 2000, 4000)],
        "batch": [(784, 256, n) for n in (8, 16, 32, 64)],
    }
    out = {}
    for name, shapes in series.items():
        place = list(series).index(name)
        sizes: list[Any] = [shape[place] for shape in shapes]
        runs = {str(n): ours(random_rbm(*shape))[0] for n, shape in zip(sizes, shapes, strict=True)}
        times = steady(runs, repeats)
        seconds = [times[str(n)] for n in sizes]
        exponent = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
        out[name] = {"sizes": sizes, "ms": [1e3 * s for s in seconds], "exponent": exponent}
    return out


MANY = """
import json, re, time, jax
from benchmarks.bp import ITERATIONS, random_rbm
import ebmlearn as ebm
rbm = random_rbm(784, 256, {batch})
jax.block_until_ready(ebm.BP(iterations=1)(random_rbm(8, 4)).visible)
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
before, start = peak(), time.perf_counter()
bp = ebm.BP(iterations=ITERATIONS)
beliefs = bp(rbm)
jax.block_until_ready(beliefs.visible)
seconds = time.perf_counter() - start
statistics = bp.statistics(rbm)
jax.block_until_ready(statistics.pairwise)
print(json.dumps(dict(batch={batch}, seconds=seconds, mib_above_baseline=peak() - before,
                      all_messages_mib={batch} * 784 * 256 * 4 / 2**20)))
"""


def many(batch: int) -> dict[str, Any]:
    """A batch whose messages would not fit, in a process of its own to see its peak memory."""
    command = [sys.executable, "-c", MANY.format(batch=batch)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main(args: argparse.Namespace) -> dict:
    rows = []
    print(f"{ITERATIONS} iterations, float32, median of {args.repeats} rounds")
    print(
        "ms: steady time; s: compile time; arrays: peak memory beside the arguments, in arrays of"
    )
    print("the size of the messages; copy: copying such an array once")
    for visible, hidden in SIZES[: 2 if args.quick else None]:
        rows.append(single(visible, hidden, args.repeats))
        _print(rows[-1])
    for visible, hidden, batch in BATCHES[: 1 if args.quick else None]:
        rows.append(batched(visible, hidden, batch, max(3, args.repeats // 3)))
        _print(rows[-1])
    result: dict[str, Any] = {"iterations": ITERATIONS, "rows": rows}
    if not args.quick:
        result["growth"] = growth(args.repeats)
        for name, law in result["growth"].items():
            points = zip(law["sizes"], law["ms"], strict=True)
            listed = ", ".join(f"{n}: {t:.1f} ms" for n, t in points)
            print(f"time grows with {name} as its power {law['exponent']:.2f} ({listed})")
        result["many"] = many(10000)
        print(
            "10000 instances of 784x256: {mib_above_baseline:.0f} MiB above the baseline, where all"
            " messages are {all_messages_mib:.0f} MiB".format(**result["many"])
        )
    return result


def _print(row: dict[str, Any]) -> None:
    print(f"\n{row['visible']}x{row['hidden']}, {row['batch']} instance(s)")
    for name in ("ebmlearn", "softplus", "pgmax", "copy"):
        if f"{name}_ms" in row:
            ratio = row[f"{name}_ms"] / row["ebmlearn_ms"]
            print(
                f"  {name:10}{row[f'{name}_ms']:10.2f} ms {ratio:7.2f}x"
                f"{row[f'{name}_compile_s']:8.2f} s{row[f'{name}_arrays']:8.2f} arrays"
            )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="two sizes and one batch only")
