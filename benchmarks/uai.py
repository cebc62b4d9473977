"""Problems of the UAI 2014 competition: answers against the reference answers, by family.

Reads `uai2014_odd.zip`, or any archive of the same form, in the folder `EBMLEARN_DATA`. Marginals
are compared by the Hellinger distance of each variable, with the largest error of a probability
beside it; `PR` by log10 Z; `MAP` by the log-potential, which may lie above that of the reference.
"""

import argparse
import os
import re
import tempfile
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from ebmlearn import elimination, uai


TASKS = ("MAR", "PR", "MAP")
# A probability that is printed with six digits is exact to so much.
EXACT = 1e-4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each problem")
    parser.add_argument("--only", default="", help="names of problems that contain this")
    parser.add_argument("--archive", default="uai2014_odd.zip")


def main(args: argparse.Namespace) -> dict[str, Any]:
    folder = os.environ.get("EBMLEARN_DATA")
    path = Path(folder or "") / args.archive
    if folder is None or not path.exists():
        raise FileNotFoundError(f"EBMLEARN_DATA must name a folder with {args.archive}.")
    rows = []
    with tempfile.TemporaryDirectory() as name:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(name)
        for task in args.tasks:
            for reference in sorted(Path(name).rglob(f"*.{task}")):
                if args.only in reference.name and reference.parent.name == task:
                    rows.append(solved(task, reference, args.seconds))
                    print({k: v for k, v in rows[-1].items() if k != "report"}, flush=True)
    table(rows)
    return {"rows": rows}


def solved(task: str, reference: Path, seconds: float) -> dict[str, Any]:
    """One problem: how it was answered, and how far the answer is from the reference."""
    # Networks of `PR` are those of `MAR`.
    home = reference.parent.parent / ("MAR" if task == "PR" else task)
    file = home / reference.stem
    network = uai.read_network(file)
    evidence = None
    if (home / f"{file.name}.evid").exists():
        evidence = uai.read_evidence(home / f"{file.name}.evid", network.counts)
    found, report = uai.answer(task, network, evidence, seconds=seconds)  # pyright: ignore
    row = {
        "problem": reference.name.partition(".")[0],
        "task": task,
        "exact": report.is_exact,
        "width": report.width,
        "seconds": report.seconds,
        "report": str(report),
    }
    return row | compared(network, found, uai.read_answer(reference))


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
    families = defaultdict(list)
    for row in rows:
        families[row["task"], re.sub(r"_\d+$", "", row["problem"])].append(row)
        families[row["task"], "all"].append(row)
    for (task, family), own in sorted(families.items()):
        line = f"{task:4} {family:18} {len(own):3} problems, exact {share(own, 'exact'):4.0%}"
        if task == "MAR":
            good = np.mean([row["largest"] <= EXACT for row in own])
            mean = np.mean([row["hellinger"] for row in own])
            line += f", within {EXACT:g} {good:4.0%}, mean Hellinger {mean:.4f}"
        elif task == "PR":
            close = [np.mean([row["error"] <= most for row in own]) for most in (0.01, 1)]
            line += f", log10 Z within 0.01 {close[0]:4.0%}, within 1 {close[1]:4.0%}"
        else:
            good = np.mean([row["value"] >= row["reference"] - 1e-4 for row in own])
            line += f", not below the reference {good:4.0%}"
        seconds = [row["seconds"] for row in own]
        print(f"{line}, {np.mean(seconds):.1f} s, at most {max(seconds):.1f} s")


def share(rows: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))
