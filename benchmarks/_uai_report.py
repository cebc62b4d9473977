"""The tables of the problems of the UAI 2014 competition."""

import json
from typing import Any

import numpy as np

from . import uai as problems
from ._report import machine, RESULTS


def uai() -> str:
    """Marginals, log Z and the most likely configurations, by family."""
    result = json.loads((RESULTS / "uai.json").read_text())
    rows: list[dict[str, Any]] = result["rows"]
    found = {(task, family): own for task, family, own in problems.families(rows)}
    lines = [
        f"{len(found['MAR', 'all'])} networks and {len(found['MAP', 'all'])} more for MAP, the"
        " odd-numbered problems of the UAI 2014 competition, against its reference answers."
        " `uai.answer` has 60 s for a problem, and 20 s in the column of that name."
        f" `python -m benchmarks uai`; {machine(result)}, seed 0. An answer is exact if elimination"
        " gave it. BP is `BP(200, damping=0.5)` alone. Errors of marginals are Hellinger distances,"
        " means over variables and problems.",
        "",
        "| marginals (MAR) | problems | exact | error | in 20 s | BP | seconds, the most |",
        "|---|---|---|---|---|---|---|",
    ]
    for (task, family), own in found.items():
        if task == "MAR":
            errors = [problems.mean(own, name) for name in ("hellinger", "short", "bp")]
            cells = [f"{x:.4f}" if x >= 5e-5 else "0" for x in errors]
            lines.append(f"| {family} | {_first(own)} | {' | '.join(cells)} | {_seconds(own)} |")
    lines += [
        "",
        "| log Z (PR) | problems | exact | log10 Z within .01 | within 1 | largest error | seconds,"
        " the most |",
        "|---|---|---|---|---|---|---|",
    ]
    for (task, family), own in found.items():
        if task == "PR":
            close = [sum(row["error"] <= most for row in own) for most in (0.01, 1)]
            largest = max(row["error"] for row in own)
            lines.append(
                f"| {family} | {_first(own)} | {close[0]} | {close[1]} | {largest:.2g} |"
                f" {_seconds(own)} |"
            )
    lines += [
        "",
        "| most likely states (MAP) | problems | exact | at the reference's value | above it |"
        " below it | seconds, the most |",
        "|---|---|---|---|---|---|---|",
    ]
    for (task, family), own in found.items():
        if task == "MAP":
            gaps = np.array([row["value"] - row["reference"] for row in own])
            counts = [(np.abs(gaps) <= 1e-4).sum(), (gaps > 1e-4).sum(), (gaps < -1e-4).sum()]
            told = " | ".join(str(x) for x in counts)
            lines.append(f"| {family} | {_first(own)} | {told} | {_seconds(own)} |")
    dbn, rbms = found["DBN", "DBN"], found["RBM", "RBM"]
    lines += [
        "",
        f"The {len(dbn)} networks DBN are RBMs. `Exact()` of these takes"
        f" {_span([row['seconds'] for row in dbn])} s with compilation, and no probability is off"
        f" by more than {max(row['largest'] for row in dbn):.0e}.",
        "",
        f"{len(rbms)} random RBMs of {problems.UNITS}×{problems.UNITS} units with weights of up to"
        f" ±{problems.COUPLING:g}: `Auto(20, exact=False)` is within .05 for"
        f" {problems.mean(rbms, 'auto'):.1%} of the marginals, BP for"
        f" {problems.mean(rbms, 'bp'):.1%}.",
    ]
    return "\n".join(lines)


def _first(rows: list[dict[str, Any]]) -> str:
    return f"{len(rows)} | {sum(row['exact'] for row in rows)}"


def _seconds(rows: list[dict[str, Any]]) -> str:
    return f"{max(row['seconds'] for row in rows):.1f}"


def _span(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"
