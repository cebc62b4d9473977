"""The tables of log Z with error bars."""

import json
from typing import Any

import numpy as np

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


def logz_time() -> str:
    """How long log Z of an RBM of MNIST takes, against annealing."""
    result = json.loads((RESULTS / "logz_time.json").read_text())
    arguments, seconds = result["arguments"], result["seconds"]
    temperatures = f"{arguments['betas']:,}"
    lines = [
        f"Log Z of an RBM of {'×'.join(map(str, result['shape']))} units, trained by PCD on"
        " stochastically binarised MNIST: by AIS in float32 from the base rates of the data, and by"
        f" `log_partition(model, num_chains={arguments['chains']}, beside=False)` with two widths"
        f" `within`. Times are medians of {arguments['repeats']} runs with seeds of their own, once"
        " compiled, and are compared with the slowest method. Intervals are of 95%; the table shows"
        " the half-width of the widest. `python -m benchmarks equilibrium --task likelihood --data"
        " mnist --together 0 --seed 0 --annealing 2000 --work FOLDER` trains the model, and `python"
        f" -m benchmarks logz --task time --model FILE --repeats {arguments['repeats']}` measures;"
        f" {machine(result)}.",
        "",
        "| | seconds | times as fast | log Z, mean | standard deviation | interval |",
        "|---|---|---|---|---|---|",
    ]
    slow = max(seconds, key=seconds.__getitem__)
    for name in seconds:
        rows = [row for row in result["rows"] if row["method"] == name]
        found = np.asarray([row["log_z"] for row in rows])
        width = max(_half_width(row) for row in rows)
        kind, size = name.split()
        label = {
            "ais": f"AIS, {temperatures} temperatures, {size} chains",
            "within": f"`within={size}`",
        }[kind]
        lines.append(
            f"| {label} | {seconds[name]:.2f} | {seconds[slow] / seconds[name]:.1f} |"
            f" {found.mean():.3f} | {found.std(ddof=1):.3f} | ± {width:.3f} |"
        )
    return "\n".join(lines)


def logz_start() -> str:
    """How far estimates of log Z from early steps are from those of late ones."""
    result = json.loads((RESULTS / "logz_start.json").read_text())
    arguments, runs = result["arguments"], result["rows"]
    chains = len(runs) * arguments["chains"]
    steps = result["steps"]
    last = steps * len(runs[0]["log_z"])
    lines = [
        "Log Z of the same RBM by Bennett's acceptance ratio from some steps alone, minus log Z"
        f" from the steps {last // 2 + 1:,} to {last:,}, in nats, with the standard error of the"
        f" difference. There are {chains:,} chains of {runs[0]['places']} replicas. `python -m"
        f" benchmarks logz --task start --model FILE --chains {arguments['chains']} --repeats"
        f" {arguments['repeats']} --calls {arguments['calls']}`; {machine(result)}.",
        "",
        "| steps | trips of a replica until then | difference |",
        "|---|---|---|",
    ]
    late = np.asarray([run["late"] for run in runs]).mean()
    late_error = _joined([run["late_standard_error"] for run in runs])
    for k in range(len(runs[0]["log_z"]) // 2):
        found = np.asarray([run["log_z"][k] for run in runs]).mean()
        error = _joined([run["standard_errors"][k] for run in runs])
        trips = np.asarray([run["trips"][k] / run["places"] for run in runs]).mean()
        lines.append(
            f"| {k * steps + 1:,} to {(k + 1) * steps:,} | {trips:.2f} | {found - late:+.3f} ±"
            f" {np.hypot(error, late_error):.3f} |"
        )
    return "\n".join(lines)


def _joined(errors: list[float]) -> float:
    """The standard error of a mean of independent estimates."""
    return float(np.sqrt(np.square(errors).sum()) / len(errors))


def _half_width(row: dict[str, Any]) -> float:
    if "interval" in row:
        return (row["interval"][1] - row["interval"][0]) / 2
    return 1.96 * row["standard_error"]
