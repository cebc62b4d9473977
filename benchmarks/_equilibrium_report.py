"""The tables of trajectory tempering: jumps between clusters, and held-out likelihoods."""

import json

from ._report import machine, RESULTS


_DATA = {"zero-one": "MNIST, 0 and 1", "genomes": "genomes", "mnist": "MNIST", "caltech": "Caltech"}
_METHODS = {"pcd": "PCD", "trajectory": "trajectory tempering"}


def _runs(task: str) -> list[dict]:
    runs = json.loads((RESULTS / "equilibrium.json").read_text())["runs"]
    return [run for run in runs if run["task"] == task and run["purpose"] == "table"]


def _ratio(one: float, other: float) -> str:
    """How many times `other` is as large, or a bound if `one` is none."""
    if one:
        return f"{float(f'{other / one:.2g}'):,g}×"
    return f">{float(f'{other:.2g}'):,g}×" if other else "–"


def _percent(shares: list[float]) -> str:
    return ", ".join(f"{100 * share:.0f}" for share in shares)


def equilibrium_jumps() -> str:
    """Jumps between clusters by Gibbs sampling and by trajectory tempering."""
    lines = [
        "Jumps between clusters of the data in 10,000 sweeps, over all chains, of RBMs that were"
        " trained by chains on a growing trajectory (`SAP(TrajectoryTempering(...))`). A jump: the"
        " nearest cluster changes and stays changed for ten sweeps. Clusters are the two digits, or"
        " three clusters of genomes. The ratio of jumps, tempering to Gibbs, is at equal sweeps of"
        " each replica, at equal sweeps over all replicas, and at equal time, while other programs"
        " used the GPU too. If Gibbs makes no jump, the ratio is to one jump. The last columns are"
        " the shares of the clusters in per cent. `python -m benchmarks equilibrium --task jumps"
        " --data zero-one --method trajectory --seed 0 1 2`, and `--data genomes`.",
        "",
        "| data | hidden | seed | chains | replicas | jumps, Gibbs | jumps, tempering | ratio"
        " | over all replicas | at equal time | log Z, forward / reverse | Gibbs | tempering"
        " | data |",
        f"|{'---|' * 14}",
    ]
    runs = sorted(_runs("jumps"), key=lambda r: (r["data"], r["seed"]))
    for run in runs:
        one, other = run["gibbs"], run["tempered"]
        slower = other["seconds"] / one["seconds"]
        cells = [
            _DATA[run["data"]],
            str(run["hidden"]),
            str(run["seed"]),
            str(run["watched"]),
            str(run["replicas"]),
            f"{one['jumps']:,}",
            f"{other['jumps']:,}",
            _ratio(one["jumps"], other["jumps"]),
            _ratio(one["jumps"], other["jumps"] / run["replicas"]),
            _ratio(one["jumps"], other["jumps"] / slower),
            f"{run['log_z']:.2f} / {run['log_z_reverse']:.2f}",
            _percent(one["shares"]),
            _percent(other["shares"]),
            _percent(run["shares_of_data"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{machine(runs[0])}."])


def equilibrium_likelihood() -> str:
    """Held-out log-likelihoods of RBMs."""
    runs = sorted(
        _runs("likelihood"),
        key=lambda r: (
            r["data"], r["method"], r.get("optimiser", "adam"), r["hidden"], r.get("shifts", 0),
            r["seed"],
        ),
    )  # fmt: skip
    lines = [
        "Log-likelihood of test rows in nats. Rates fall to 0 by a cosine, except for genomes,"
        " where both methods have as many seconds. Rows of MNIST are drawn from their grey levels"
        " anew in each step. Images of Caltech are moved by up to so many pixels, at random in each"
        " step; rows for validation and test are not. For Caltech and genomes, rows for validation"
        " chose when to stop. Log Z is by annealing both ways, and the larger estimate counts."
        " `python -m benchmarks equilibrium --task likelihood --data mnist --seed 0 1 2`, `--data"
        " caltech`, and `--data genomes` also with `--method trajectory`; the row of 1,000 hidden"
        " units of MNIST: `--together 0 --hidden 1000 --updates 200000 --weight-decay 1e-4`; more"
        " temperatures: `--annealing 200000`;"
        f" {machine(runs[0])}.",
        "",
        "| data | trained by | hidden | optimiser | rate | weight decay | pixels moved | updates"
        " | batch | chains | seed | temperatures | log Z, forward | reverse | test | training"
        " | seconds |",
        f"|{'---|' * 17}",
    ]
    for run in runs:
        kind = {"adam": "Adam", "sgd": "SGD"}[run.get("optimiser", "adam")]
        cells = [
            _DATA[run["data"]],
            _METHODS[run["method"]],
            str(run["hidden"]),
            f"{kind}, centred" if run.get("centred") else kind,
            f"{run['rate']:g}",
            f"{run['weight_decay']:g}",
            str(run.get("shifts", 0)),
            f"{run.get('best_step', run['updates']):,}",
            str(run["batch"]),
            str(run["chains"]),
            str(run["seed"]),
            f"{run['annealing']:,}",
            f"{run['log_z']:.2f} ± {run['log_z_error']:.2f}",
            f"{run['log_z_reverse']:.2f} ± {run['log_z_reverse_error']:.2f}",
            f"{run['held_out']:.2f} ± {run['held_out_error']:.2f}",
            f"{run['train']:.2f}",
            f"{run.get('budget') or run['seconds']:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
