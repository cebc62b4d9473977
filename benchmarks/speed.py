"""How fast everything is: training, belief propagation and samplers, against the bandwidth of the
machine, bare products, and other libraries, all in one run.

Each row has the figure to reach, and where it is a share of bandwidth, the formula for the bytes.
"""

import argparse
import importlib
import importlib.util
from typing import Any


PARTS = ("_speed_fit", "_speed_gpu")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", nargs="*", help="the rows to measure, all if not given")
    parser.add_argument("--small", action="store_true", help="small sizes, to try the command")


def main(args: argparse.Namespace) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for name in PARTS:
        if importlib.util.find_spec(f"benchmarks.{name}") is None:
            continue
        part = importlib.import_module(f"benchmarks.{name}")
        tasks = [t for t in part.TASKS if not args.task or t in args.task]
        for row in part.rows(tasks, small=args.small):
            show(row)
            rows.append(row)
    return {"rows": rows}


def show(row: dict[str, Any]) -> None:
    """Prints a row: what was measured, what is to be reached, and the formula for the bytes."""
    if row["value"] is None:
        print(f"{row['name']:56} not run: {row['why']}", flush=True)
        return
    reach = "" if row["reach"] is None else f"  reach {row['reach']}"
    formula = "" if row["bytes"] is None else f"  bytes {row['bytes']}"
    print(f"{row['name']:56} {row['value']:10.3f} {row['unit']}{reach}{formula}", flush=True)
