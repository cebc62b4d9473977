"""The table of log Z with error bars."""

import json

from ._report import machine, RESULTS


_NAMES = {
    "bennett": "Bennett's acceptance ratio, all draws",
    "mbar": "MBAR, a few draws far apart",
    "ais": "AIS, forward",
    "reverse_ais": "AIS in reverse, from the tempered chains",
}


def logz() -> str:
    """Errors of log Z and coverage of its intervals."""
    result = json.loads((RESULTS / "logz.json").read_text())
    rows, summary, number = result["rows"], result["summary"], len(result["rows"])
    steps = sorted({row["steps"] for row in rows})
    most = f"{steps[0]} steps" if len(steps) == 1 else f"{steps[0]} to {steps[-1]} steps"
    told = sum(bool(row["disagree"]) for row in rows)
    lines = [
        f"`log_partition(model, within={result['arguments']['within']})` against exact log Z on"
        f" {number} RBMs of 20 hidden units trained by PCD on binary 8×8 digits, with four learning"
        f" rates and four numbers of epochs. `python -m benchmarks logz`; {machine(result)}. There"
        f" are {result['chains']} chains, and the tempered ones make {most}. Annealing makes at"
        " least as many steps as those of them that count, but with one replica instead of all, so"
        " the table compares stated with true errors, not the methods at equal work. Errors are in"
        " nats; an interval is one of 95% by Student's distribution.",
        "",
        "| estimate | mean error | RMS error | stated | largest | intervals that hold log Z |",
        "|---|---|---|---|---|---|",
    ]
    for method, name in _NAMES.items():
        found = summary[method]
        cells = [f"{found[k]:.3f}" for k in ("rms", "stated", "largest")]
        lines.append(
            f"| {name} | {found['mean']:+.3f} | {' | '.join(cells)} | {found['covered']} of"
            f" {number} |"
        )
    lines += [
        "",
        f"{summary['covered']} of the {number} intervals that `log_partition` returned hold log Z."
        f" It said {told} times that estimates disagree.",
    ]
    return "\n".join(lines)
