"""The tables of `nnbm`, from its committed results."""

import statistics
from pathlib import Path

from . import nnbm
from ._report import machine, stored


_NONNEGATIVE = {
    "susp": "SusP",
    "isusp": "I-SusP",
    "tap": "TAP, its own covariances",
    "monte_carlo": "maximum likelihood, Markov chains",
}


def _nnbm_table(task: str, what: str) -> str:
    (run,) = stored("nnbm", task)
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
        f"{run[f'{name}_converged']} with {_NONNEGATIVE[name]}" for name in ("susp", "isusp")
    )
    lines += [
        "",
        f"Of {run['trials']} trials, {solved} were solved. A fixed point of I-SusP at the true"
        f" parameters takes {run['one_fixed_point_ms']:.1f} ms in float64, and there"
        f" $|M_{{ii}} - (v_i - m_i^2)|$ is {run['one_inconsistency']:.0e}. The fixed points of all"
        f" trials in one `vmap` take {run['batch_fixed_point_ms']:.0f} ms. Learning with I-SusP"
        f" takes {run['isusp_seconds'] / run['trials']:.1f} s per trial.",
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
    (run,) = stored("nnbm", "scaling")
    kinds = {
        "tap": "TAP",
        "susp_solve": "SusP, solved",
        "susp_propagation": "SusP, propagated",
        "isusp_solve": "I-SusP, solved",
        "isusp_propagation": "I-SusP, propagated",
    }
    lines = [
        "Milliseconds of one inference after compilation, and in brackets the number of sweeps, for"
        f" grids and complete graphs. `python -m benchmarks nnbm --task scaling`; {machine(run)},"
        f" float32, seed {run['seed']}, medians.",
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


def nnbm_wine() -> str:
    """Models of the wines."""
    (run,) = stored("nnbm", "wine")
    names = {**_NONNEGATIVE, "alone": "units that are not joined"}
    lines = [
        f"The 13 measurements of {run['rows']} wines (scikit-learn), each in units of its standard"
        " deviation, and models learned from them by `solve_moments`: the largest errors of means,"
        " standard deviations and correlations of 20,000 Gibbs samples, and the mean error of"
        f" correlations (`python -m benchmarks nnbm --task wine`; {machine(run)}, seed"
        f" {run['seed']}):",
        "",
        "| | mean | standard deviation | correlation | mean error of correlations |",
        "|---|---|---|---|---|",
    ]
    for name in ("isusp", "susp", "tap", "alone"):
        of = run[name]
        if not of["converged"]:
            lines.append(f"| {names[name]} | no solution found | – | – | – |")
            continue
        kinds = ("mean_error", "spread_error", "correlation_error", "correlation_error_mean")
        cells = [f"{of[kind]:.3f}" for kind in kinds]
        lines.append(f"| {names[name]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw_nnbm_wine(path: Path) -> None:
    """Measurements of wines beside samples of the model that I-SusP learned."""
    import matplotlib.pyplot as plt
    import numpy as np

    (run,) = stored("nnbm", "wine")
    data, samples = np.array(run["data"]), np.array(run["samples"])
    pairs = (("total_phenols", "flavanoids"), ("malic_acid", "hue"), ("alcohol", "proline"))
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.1), layout="constrained")
    for ax, pair in zip(axes, pairs, strict=True):
        one, two = (run["names"].index(name) for name in pair)
        ax.scatter(data[:, one], data[:, two], s=8, label="wines")
        ax.scatter(
            samples[:, one], samples[:, two], s=8, label="samples", marker="x", linewidth=0.7
        )
        ax.set_xlabel(pair[0].replace("_", " "))
        ax.set_ylabel(pair[1].replace("_", " "))
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
