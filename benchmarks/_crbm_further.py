"""The tables of more hidden units, of what was tried for them, and of the starts of mean field."""

import json
import statistics

from ._report import machine, RESULTS
from .crbm import MAIN, PUBLISHED


_TASKS = dict(
    zip(
        MAIN,
        (
            "MNIST, 10% flipped",
            "MNIST, 20% flipped",
            "MNIST, 8×8 blanked",
            "MNIST, 12×12 blanked",
            "Caltech, 20% flipped",
            "Caltech, 12×12 blanked",
        ),
        strict=True,
    )
)
_METHODS = {"mssvm": "MSSVM", "mle-bp": "MLE-BP"}
_LEARNERS = {
    "cd-1": "CD-1, chain from the data",
    "cd-1-random": "CD-1, chain from random states",
    "percloss": "CD-PercLoss",
}
_STARTS = (
    "hidden units at one half",
    "visible units at one half",
    "logistic regression",
    "features",
    "features, one sweep",
    "belief propagation",
)


def _runs(name: str) -> list[dict]:
    return json.loads((RESULTS / f"{name}.json").read_text())["runs"]


def crbm_further() -> str:
    """Test errors with more hidden units, beside those published and those of 256 units."""
    tables = [run for run in _runs("crbm_further") if run["purpose"] == "table"]
    fresh = [
        run
        for run in _runs("crbm")
        if run["protocol"] == "fresh" and run["purpose"] == "table" and run["hidden"] == 256
    ]
    lines = [
        "Test error in per cent of all pixels, with new noise in each epoch, Adam with cosine"
        " decay, batches of 100 and ten sweeps. The column *test* is the mean over the seeds, with"
        " the error of the pixels that the corruption changed in brackets. *Shifts* is the number"
        " of pixels by which training images, features and truth together, are shifted at random."
        " Validation chose the settings and the epoch. MLE-BP has the settings chosen for 256"
        " hidden units, and fewer epochs. `python -m benchmarks crbm --protocol further --method"
        f" mssvm --seed 0 1 2`, and with `--method mle-bp --seed 0`; {machine(tables[0])}.",
        "",
        "| task | | hidden units | shifts | rate | epochs | test | seeds | 256 units, no shifts |"
        " published |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for method, name in _METHODS.items():
        for k, task in enumerate(MAIN):
            of = [run for run in tables if run["task"] == task and run["method"] == method]
            if not of:
                continue
            before = [run for run in fresh if run["task"] == task and run["method"] == method]
            best = min(before, key=lambda run: run["valid"])
            first, tests = of[0], [run["test"] for run in of]
            changed = statistics.mean(run["test_changed"] for run in of)
            every, alone = PUBLISHED[method][k]
            cells = [
                _TASKS[task],
                name,
                f"{first['hidden']}",
                f"{first['shifts']}",
                f"{first['rate']:g}",
                f"{first['epochs']}",
                f"{statistics.mean(tests):.3f} ({changed:.1f})",
                ", ".join(f"{test:.3f}" for test in tests) if len(of) > 1 else "seed 0 only",
                f"{best['test']:.3f}",
                f"{every:.3f} ({alone:.1f})",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def crbm_tried() -> str:
    """Validation errors of the settings that were tried with more hidden units."""
    runs = [run for run in _runs("crbm_further") if run["method"] == "mssvm" and run["seed"] == 0]
    runs.sort(key=lambda run: (MAIN.index(run["task"]), run["valid"]))
    lines = [
        "The settings of MSSVM that were tried, and their errors on the validation images in per"
        " cent of all pixels. Those in bold were tested. `python -m benchmarks crbm --protocol"
        f" further --purpose try`, with the options of the columns; {machine(runs[0])}, seed 0.",
        "",
        "| task | hidden units | shifts | rate | epochs | also | validation | best epoch |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        also = [f"mean of parameters {run['average']:g}"] if run["average"] else []
        also += [f"{name.replace('_', ' ')} {value:g}" for name, value in run["options"].items()]
        also += [f"{run['sweeps']} sweeps"] if run["sweeps"] != 10 else []
        error = f"{run['valid']:.3f}"
        cells = [
            _TASKS[run["task"]],
            f"{run['hidden']}",
            f"{run['shifts']}",
            f"{run['rate']:g}",
            f"{run['epochs']}",
            ", ".join(also),
            f"**{error}**" if run["purpose"] == "table" else error,
            f"{run['best_epoch'] + 1}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cd_starts() -> str:
    """Errors of CD-1 and CD-PercLoss by the start of the prediction."""
    runs = _runs("cd_starts")
    lines = [
        "Error in per cent of the pixels of 2,000 validation images of MNIST with 10% flipped, with"
        " the protocol of the paper: 256 hidden units, noise drawn once, momentum 0.9. Each model"
        " predicts by 15 sweeps of mean field from several starts, and by 15 sweeps of belief"
        f" propagation. The published test errors are {PUBLISHED['cd-1'][0][0]:.3f} (CD-1) and"
        f" {PUBLISHED['percloss'][0][0]:.3f} (CD-PercLoss). `python -m benchmarks cd_starts`;"
        f" {machine(runs[0])}, seed 0.",
        "",
        f"| | gradient | rate | batch | epoch | {' | '.join(_STARTS)} |",
        f"|---|---|---|---|---|{'---|' * len(_STARTS)}",
    ]
    for run in runs:
        epoch = min(run["errors"], key=lambda epoch: run["errors"][epoch]["features"])
        last = list(run["errors"])[-1]
        for shown in dict.fromkeys((epoch, last)):
            errors = run["errors"][shown]
            cells = [
                _LEARNERS[run["learner"]],
                "centred" if run["centred"] else "plain",
                f"{run['rate']:g}",
                f"{run['batch']}",
                shown,
                *(f"{errors[start]:.2f}" if start in errors else "–" for start in _STARTS),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
