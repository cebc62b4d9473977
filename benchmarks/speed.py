"""Measures compilation, epochs, sweeps and samplers on the device at hand."""

import argparse
import importlib
import importlib.util
from typing import Any


MODULES = [
    importlib.import_module(f"benchmarks.{name}")
    for name in ("_speed_fit", "_speed_gpu")
    if importlib.util.find_spec(f"benchmarks.{name}") is not None
]
NAMES = tuple(name for module in MODULES for name in module.NAMES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", choices=NAMES, default=list(NAMES))


def main(args: argparse.Namespace) -> dict[str, Any]:
    found = []
    for module in MODULES:
        for name in module.NAMES:
            if name in args.tasks:
                for row in module.rows((name,)):
                    found.append({"task": name, **row})
                    print(_line(row), flush=True)
    return {"rows": found}


def _line(row: dict[str, Any]) -> str:
    formula = "" if row["bytes"] is None else f"  [{row['bytes']}]"
    return f"{row['name']:60} {row['value']:10.4g} {row['unit']:8} {row['reach']}{formula}"
