"""Problems of the UAI 2014 competition: answers against the reference answers, by family.

Reads `uai2014_odd.zip`, or any archive of the same form, in the folder `EBMLEARN_DATA`. Marginals
are compared by the Hellinger distance of each variable, with the largest error of a probability
beside it; `PR` by log10 Z; `MAP` by the log-potential, which may lie above that of the reference.
`DBN` solves the networks of that name as RBMs, by `Exact()`. `RBM` needs no files: it asks
`Auto` without exact methods, and BP alone, about 50 random RBMs of 12 x 12 units with weights of
up to 4. Rows of tasks that are not asked for stay in the file of `--json`.
"""

import argparse
import json
import os
import re
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ebmlearn as ebm
from ebmlearn import elimination, uai
from ebmlearn.answers import marginals_of, tabled


TASKS = ("MAR", "PR", "MAP", "DBN", "RBM")
# A probability that is printed with six digits is exact to so much.
EXACT = 1e-4
# Answers that were not exact, or took longer, are asked for again within so many seconds.
SHORT = 20.0
RBMS, UNITS, COUPLING = 50, 12, 4.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each problem")
    parser.add_argument("--only", default="", help="names of problems that contain this")
    parser.add_argument("--archive", default="uai2014_odd.zip")
    parser.add_argument("--merge", nargs="+", type=Path, help="only take the rows of other results")


def main(args: argparse.Namespace) -> dict[str, Any]:
    kept: dict[tuple[str, str], dict[str, Any]] = {}
    files = [args.json] if args.json is not None and args.json.exists() else []
    for path in files + (args.merge or []):
        kept |= {(row["task"], row["problem"]): row for row in json.loads(path.read_text())["rows"]}
    if not args.merge:
        for row in asked(args):
            kept[row["task"], row["problem"]] = row
            print({k: v for k, v in row.items() if k != "report"}, flush=True)
    rows = [kept[key] for key in sorted(kept)]
    table(rows)
    return {"rows": rows}


def asked(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of all tasks."""
    if "RBM" in args.tasks:
        yield from random_rbms()
    files = [task for task in args.tasks if task != "RBM"]
    if not files:
        return
    folder = os.environ.get("EBMLEARN_DATA")
    path = Path(folder or "") / args.archive
    if folder is None or not path.exists():
        raise FileNotFoundError(f"EBMLEARN_DATA must name a folder with {args.archive}.")
    with tempfile.TemporaryDirectory() as name:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(name)
        for task in files:
            kind = "MAR" if task == "DBN" else task
            for reference in sorted(Path(name).rglob(f"*.{kind}")):
                if args.only not in reference.name or reference.parent.name != kind:
                    continue
                # Each network is a program of its own; too many of them fill the memory maps.
                jax.clear_caches()
                if task != "DBN":
                    yield solved(task, reference, args.seconds)
                elif reference.name.startswith("DBN"):
                    yield as_rbm(reference)


def solved(task: str, reference: Path, seconds: float) -> dict[str, Any]:
    """One problem: how it was answered, and how far the answer is from the reference."""
    # Networks of `PR` are those of `MAR`.
    network, evidence = read(reference, "MAR" if task == "PR" else task)
    true = uai.read_answer(reference)
    found, report = uai.answer(task, network, evidence, seconds=seconds)  # pyright: ignore
    row = {
        "problem": reference.name.partition(".")[0],
        "task": task,
        "exact": report.is_exact,
        "width": report.width,
        "seconds": report.seconds,
        "report": str(report),
    } | compared(network, found, true)
    if task == "MAR":
        row["bp"] = compared(network, by_messages(network, evidence), true)["hellinger"]
        row["short"] = row["hellinger"]
        if not report.is_exact or report.seconds > SHORT:
            found, report = uai.answer("MAR", network, evidence, seconds=SHORT)
            row |= {"short": compared(network, found, true)["hellinger"], "asked": str(report)}
    return row


def read(reference: Path, kind: str) -> tuple[elimination.Network, np.ndarray | None]:
    """The network of a reference answer, and its evidence."""
    file = reference.parent.parent / kind / reference.stem
    network = uai.read_network(file)
    observed = file.parent / f"{file.name}.evid"
    return network, uai.read_evidence(observed, network.counts) if observed.exists() else None


def by_messages(network: elimination.Network, evidence: np.ndarray | None) -> uai.Answer:
    """Marginals by sum-product with some damping, from one start."""
    small = elimination.reduced(network, evidence)
    model, _ = tabled(small.network)
    beliefs = ebm.BP(200, damping=0.5, tol=1e-5)(model)
    found = []
    for p, states, number in zip(
        marginals_of(beliefs, small), small.states, network.counts, strict=True
    ):
        whole = np.zeros(number)
        whole[states] = p
        found.append(whole)
    return uai.Answer("MAR", marginals=tuple(found))


def as_rbm(reference: Path) -> dict[str, Any]:
    """A network that is an RBM, by exact inference of the library's own model."""
    network, evidence = read(reference, "MAR")
    began = time.perf_counter()
    rbm, visible, hidden, _ = uai.to_rbm(network)
    if evidence is not None and (evidence >= 0).any():
        raise ValueError(f"{reference.name} must have no evidence.")
    beliefs = ebm.Exact()(rbm)
    p = np.zeros(len(network.counts))
    p[list(visible)], p[list(hidden)] = beliefs.visible, beliefs.hidden
    seconds = time.perf_counter() - began
    true = uai.read_answer(reference)
    largest = max(abs(p[v] - q[1]) for v, q in enumerate(true.marginals))
    name = reference.name.partition(".")[0]
    return {"problem": name, "task": "DBN", "largest": float(largest), "seconds": seconds}


def random_rbms() -> Iterator[dict[str, Any]]:
    """`Auto` without exact methods and BP on random RBMs: the share of marginals within .05."""
    for seed in range(RBMS):
        one, two, three = jax.random.split(jax.random.key(seed), 3)
        weights = jax.random.uniform(one, (UNITS, UNITS), minval=-COUPLING, maxval=COUPLING)
        biases = [jax.random.uniform(k, (UNITS,), minval=-1, maxval=1) for k in (two, three)]
        rbm = ebm.RBM(weights, *biases)
        exact, began = ebm.Exact()(rbm), time.perf_counter()
        auto = ebm.Auto(SHORT, exact=False, key=seed)(rbm)
        seconds = time.perf_counter() - began
        bp = ebm.BP(200, damping=0.5, tol=1e-5)(rbm)
        assert auto.report is not None
        yield {
            "problem": f"RBM_{seed}",
            "task": "RBM",
            "auto": within(auto, exact),
            "bp": within(bp, exact),
            "error": float(jnp.sqrt(((auto.visible - exact.visible) ** 2).mean())),
            "estimate": float(auto.report.error),
            "method": auto.report.method,
            "seconds": seconds,
        }


def within(found: ebm.Beliefs, exact: ebm.Beliefs) -> float:
    close = [jnp.abs(found[x] - exact[x]) <= 0.05 for x in ("visible", "hidden")]
    return float(jnp.concatenate(close).mean())


def compared(network: elimination.Network, found: uai.Answer, true: uai.Answer) -> dict[str, float]:
    """How far an answer is from the reference."""
    if found.task == "MAR":
        pairs = list(zip(found.marginals, true.marginals, strict=True))
        distances = [np.sqrt(((np.sqrt(p) - np.sqrt(q)) ** 2).sum() / 2) for p, q in pairs]
        largest = max(float(np.abs(p - q).max()) for p, q in pairs)
        return {"hellinger": float(np.mean(distances)), "largest": largest}
    if found.task == "PR":
        return {"error": abs(found.log10_partition - true.log10_partition)}
    value, best = (float(network.score(np.asarray(x.states))) for x in (found, true))
    return {"value": value, "reference": best}


def table(rows: list[dict[str, Any]]) -> None:
    """Prints what was reached, by family."""
    for task, family, own in families(rows):
        print(f"{task:4} {family:18} {len(own):3} problems, {summary(task, own)}")


def families(rows: list[dict[str, Any]]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """The rows of each family of each task, and of all of a task."""
    found = defaultdict(list)
    for row in rows:
        found[row["task"], re.sub(r"_\d+$", "", row["problem"])].append(row)
        if row["task"] not in ("DBN", "RBM"):
            found[row["task"], "all"].append(row)
    return [(*key, found[key]) for key in sorted(found)]


def summary(task: str, rows: list[dict[str, Any]]) -> str:
    """What was reached, in words."""
    seconds = [row["seconds"] for row in rows]
    took = f"{np.mean(seconds):.1f} s, at most {max(seconds):.1f} s"
    if task == "RBM":
        shares = f"within .05: Auto {mean(rows, 'auto'):.1%}, BP {mean(rows, 'bp'):.1%}"
        return f"{shares}, error {mean(rows, 'error'):.4f}, {took}"
    if task == "DBN":
        return f"largest error {max(row['largest'] for row in rows):.1e}, {took}"
    line = f"exact {mean(rows, 'exact'):4.0%}"
    if task == "MAR":
        good = np.mean([row["largest"] <= EXACT for row in rows])
        line += f", within {EXACT:g} {good:4.0%}, mean Hellinger {mean(rows, 'hellinger'):.4f}"
        line += f", in {SHORT:g} s {mean(rows, 'short'):.4f}, BP {mean(rows, 'bp'):.4f}"
    elif task == "PR":
        close = [np.mean([row["error"] <= most for row in rows]) for most in (0.01, 1)]
        line += f", log10 Z within 0.01 {close[0]:4.0%}, within 1 {close[1]:4.0%}"
    else:
        good = np.mean([row["value"] >= row["reference"] - 1e-4 for row in rows])
        line += f", not below the reference {good:4.0%}"
    return f"{line}, {took}"


def mean(rows: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))
