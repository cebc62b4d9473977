"""The tables of `nnbm`, from its committed results."""

import json
import statistics

from . import nnbm
from ._report import machine, RESULTS


_NONNEGATIVE = {
    "susp": "SusP",
    "isusp": "I-SusP",
    "tap": "TAP, its own covariances",
    "monte_carlo": "maximum likelihood, Markov chains",
}


def _nnbm_runs(task: str) -> list[dict]:
    runs = json.loads((RESULTS / "nnbm.json").read_text())["runs"]
    return [run for run in runs if run["task"] == task]


def _nnbm_table(task: str, what: str) -> str:
    (run,) = _nnbm_runs(task)
    lines = [
        f"{what}: mean absolute errors of biases and couplings that were learned from"
        f" {nnbm.SAMPLES:,} samples of a model of {nnbm.UNITS} units, mean and standard error over"
        f" {run['trials']} trials (`python -m benchmarks nnbm --task {task}`; {machine(run)},"
        f" seed {run['seed']}):",
        "",
        "| | $e_b$ | published | $e_w$ | published |",
        "|---|---|---|---|---|",
    ]
    published = nnbm.PUBLISHED[task]
    for name, title in _NONNEGATIVE.items():
        cells = [title]
        for k, kind in enumerate(("e_b", "e_w")):
            values = run[f"{name}_{kind}"]
            error = statistics.stdev(values) / len(values) ** 0.5
            cells.append(f"{statistics.mean(values):.3f} ± {error:.3f}")
            cells.append(f"{published[name][k]:.3f}" if name in published else "–")
        lines.append(f"| {' | '.join(cells)} |")
    lines.append(
        f"| Downs 2001 | – | {published['downs'][0]:.3f} | – | {published['downs'][1]:.3f} |"
    )
    solved = " and ".join(
        f"{run[f'{name}_converged']} by {_NONNEGATIVE[name]}" for name in ("susp", "isusp")
    )
    lines += [
        "",
        f"Of {run['trials']} trials {solved} were solved. A fixed point of I-SusP at the true"
        f" parameters takes {run['one_fixed_point_ms']:.1f} ms in float64 and leaves"
        f" $|M_{{ii}} - (v_i - m_i^2)|$ at {run['one_inconsistency']:.0e}; those of all trials by"
        f" one `vmap` take {run['batch_fixed_point_ms']:.0f} ms. Learning takes"
        f" {run['isusp_seconds'] / run['trials']:.1f} s a trial by I-SusP.",
    ]
    return "\n".join(lines)


def nnbm_grid() -> str:
    """Table I of Yasuda 2015."""
    return _nnbm_table("grid", "A 6×6 grid with random biases")


def nnbm_orientation() -> str:
    """Table II of Yasuda 2015."""
    return _nnbm_table("orientation", "The model of orientation tuning")


def nnbm_scaling() -> str:
    """How the time of one inference grows."""
    (run,) = _nnbm_runs("scaling")
    kinds = {
        "tap": "TAP",
        "susp_solve": "SusP, solved",
        "susp_propagation": "SusP, propagated",
        "isusp_solve": "I-SusP, solved",
        "isusp_propagation": "I-SusP, propagated",
    }
    lines = [
        "Milliseconds of one inference after compilation, in brackets the sweeps, of grids and of"
        f" complete graphs (`python -m benchmarks nnbm --task scaling`; {machine(run)}, float32,"
        f" seed {run['seed']}, medians):",
        "",
        f"| graph | units | edges | {' | '.join(kinds.values())} |",
        f"|---|---|---|{'---|' * len(kinds)}",
    ]
    for row in run["rows"]:
        cells = [row["kind"], f"{row['units']:,}", f"{row['edges']:,}"]
        for name in kinds:
            failed = "" if row[f"{name}_converged"] else ", not converged"
            cells.append(f"{row[f'{name}_ms']:,.1f} ({row[f'{name}_sweeps']}{failed})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
