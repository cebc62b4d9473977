"""Structures drawn at random, and every operation on them, against an oracle in NumPy.

Each result is right, refused with one clear sentence, or wrong. The structures and the oracle are
those of the tests. Programs are compiled without most optimisations, as in the tests.
"""

import argparse
import collections
import functools
import gc
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from . import _slices
from ._report import ROOT


# How many structures are one run: what was compiled is forgotten after each.
_SLICE = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, default=2000, help="how many structures")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first one")
    parser.add_argument("--operations", type=int, default=8, help="how many for each structure")
    parser.add_argument("--only", nargs="+", help="only these operations, for each structure")
    parser.add_argument(
        "--kind", help="only structures whose kinds begin like these, with commas between"
    )
    _slices.add_arguments(parser)


def main(args: argparse.Namespace) -> dict[str, Any]:
    sys.path.insert(0, str(ROOT / "tests"))
    jax.config.update("jax_disable_most_optimizations", True)
    found = _slices.drive(args, functools.partial(_wanted, args), _show)
    _summary(found["runs"])
    return found


def _wanted(args: argparse.Namespace) -> Iterable[tuple[dict[str, Any], Any]]:
    for first in range(args.seed, args.seed + args.number, _SLICE):
        number = min(_SLICE, args.seed + args.number - first)
        run = {
            "task": "structures",
            "method": args.kind or "all",
            "first": first,
            "number": number,
            "operations": args.only or args.operations,
        }
        yield run, functools.partial(_slice, run)


def _slice(run: dict[str, Any], work: Path | None, deadline: Any) -> dict[str, Any]:
    checks, structures = map(importlib.import_module, ("structure_checks", "structures"))
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    refusals: dict[str, dict[str, Any]] = {}
    wrong = []
    done = 0
    for seed in range(run["first"], run["first"] + run["number"]):
        structure = structures.structure(seed)
        if run["method"] != "all" and not structure.kind.startswith(
            tuple(run["method"].split(","))
        ):
            continue
        done += 1
        wanted = run["operations"]
        names = checks.chosen(structure, wanted) if isinstance(wanted, int) else wanted
        for name in names:
            found = checks.outcome(structure, name)
            if found.result == "nothing":
                continue
            counts[f"{structure.kind}: {name}"][found.result] += 1
            if found.result == "refused":
                kind = f"{name}: {checks.sentence(found.detail)}"
                example = {"number": 0, "example": found.detail, "seed": seed}
                own = refusals.setdefault(kind, example)
                own["number"] += 1
            if found.result == "wrong":
                wrong.append(
                    {
                        "seed": seed,
                        "kind": structure.kind,
                        "operation": name,
                        "found": found.detail,
                        "code": structure.code,
                    }
                )
                print(f"{seed} {structure.kind} {name}: {found.detail}", flush=True)
    jax.clear_caches()
    gc.collect()
    return {
        **run,
        "structures": done,
        "counts": {k: dict(x) for k, x in sorted(counts.items())},
        "refusals": refusals,
        "wrong": wrong,
    }


def _show(run: dict[str, Any]) -> None:
    total = sum((collections.Counter(x) for x in run["counts"].values()), collections.Counter())
    print(f"{run['first']:6}: {run['structures']} structures, {dict(total)}", flush=True)


def _summary(runs: list[dict[str, Any]]) -> None:
    """Prints the counts by kind of model and by operation, and each kind of refusal."""
    kinds = collections.defaultdict(collections.Counter)
    operations = collections.defaultdict(collections.Counter)
    for run in runs:
        for name, count in run["counts"].items():
            kind, operation = name.rsplit(": ", 1)
            kinds[kind].update(count)
            operations[operation].update(count)
    print(f"{sum(run['structures'] for run in runs)} structures")
    for table in (kinds, operations):
        for name in sorted(table):
            parts = (f"{table[name][x]:6} {x}" for x in ("right", "refused", "wrong"))
            print(f"  {name:40} {' '.join(parts)}")
    refusals: collections.Counter = collections.Counter()
    for run in runs:
        refusals.update({kind: own["number"] for kind, own in run["refusals"].items()})
    print(f"{len(refusals)} kinds of refusals")
    for kind, number in sorted(refusals.items()):
        print(f"  {number:5} {kind}")
