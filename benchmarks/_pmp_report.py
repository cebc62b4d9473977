"""Tables and pictures of perturb-and-max-product, from the committed results."""

import itertools
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from ebmlearn import datasets

from ._report import machine, stored


NAMES = {
    "pmp": "PMP",
    "pmp-0.1": "PMP, a tenth of the noise renewed",
    "gibbs": "Gibbs, persistent",
    "gibbs-reset": "Gibbs, reset",
    "gwg": "GWG, persistent",
    "gwg-reset": "GWG, reset",
    "pcd-1": "PCD-1",
    "pcd-100": "PCD-100",
}


def runs(task: str) -> list[dict[str, Any]]:
    """The runs of a task."""
    return stored("pmp", task)


def pmp_toy() -> str:
    """Four spins."""
    found = sorted(runs("toy"), key=lambda run: run["seed"])
    seeds = ", ".join(f"{run['theta']:.3f}" for run in found)
    kl = [run["kl_learned"] for run in found]
    own = [run["kl_published"] for run in found]
    means = [abs(m - 0.5) for run in found for m in run["means_published"]]
    return (
        "Four spins, all joined to each other, are learned from the Gibbs distribution at θ = 0.5"
        f" (Adam 0.01, {found[0]['updates']} updates, 100 samples of 100 sweeps). The learned"
        f" coupling is {seeds} for seeds {found[0]['seed']} to {found[-1]['seed']} (published"
        f" 0.331). The divergence from the data to {found[0]['samples']:,} samples of PMP is"
        f" {min(kl):.4f} to {max(kl):.4f} at the learned couplings and {min(own):.4f} to"
        f" {max(own):.4f} at 0.331 (published 0.008). To the Gibbs distribution at 0.331 it is"
        f" {found[0]['kl_to_gibbs']:.3f}. P(x = 1) is within {max(means):.3f} of ½."
        f" `python -m benchmarks pmp --task toy`; {machine(found[0])}."
    )


def pmp_logz() -> str:
    """Bounds of log Z."""
    found = sorted(runs("logz"), key=lambda run: (run["method"] == "full", run["size"]))
    lines = [
        "Bounds of log Z from perturbed maxima minus the exact log Z, in nats: mean and standard"
        " deviation over the models; for a lattice, which is one model, the standard error in"
        " brackets. Log Z is computed by a transfer matrix for lattices and by enumeration for full"
        " graphs. Max-product makes 200 sweeps, and MPLP runs until messages change by less than"
        " 1e-6, on the same perturbations. `python -m benchmarks pmp --task logz`, with `--size`;"
        f" {machine(found[0])}, seed 0.",
        "",
        "| model | perturbations | max-product | MPLP | exact maxima | time of MPLP |",
        "|---|---|---|---|---|---|",
    ]
    for run in found:
        lattice = run["method"] == "lattice"
        cells = [
            f"lattice {run['size']}×{run['size']}, θ = 0.1"
            if lattice
            else f"{run['models']} full graphs of {run['size']}, w ∈ [−2, 2]",
            f"{run['samples']:,}",
        ]
        for name in ("pmp", "mplp", "exact"):
            if name not in run["error"]:
                cells.append("–")
                continue
            errors = run["error"][name]
            if lattice:
                cells.append(f"{errors[0]:+.2f} ({run['standard_error'][name][0]:.2f})")
            else:
                spread = statistics.stdev(errors)
                cells.append(f"{statistics.mean(errors):+.2f} ± {spread:.2f}")
        cells.append(f"{run['seconds']['mplp'] / run['seconds']['pmp']:.1f}×")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _curves(task: str, text: str) -> str:
    """A table of discrepancies against sweeps."""
    found = sorted(runs(task), key=lambda run: list(NAMES).index(run["method"]))
    sweeps = [int(k) for k in found[0]["log_mmd"]]
    lines = [
        text.format(machine=machine(found[0]), floor=f"{found[0]['log_mmd_of_data']:.2f}"),
        "",
        f"| sweeps | {' | '.join(map(str, sweeps))} |",
        f"|---|{'---|' * len(sweeps)}",
    ]
    for run in found:
        cells = [f"{run['log_mmd'][str(k)]:.2f}" for k in sweeps]
        lines.append(f"| {_name(run, found)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _name(run: dict[str, Any], found: list[dict[str, Any]]) -> str:
    """How a run is called, with its updates if others had more."""
    most = max(other.get("updates", 0) for other in found)
    fewer = f", {run['updates']:,} updates" if run.get("updates", most) < most else ""
    return NAMES[run["method"]] + fewer


def pmp_zeros() -> str:
    """Ising models of the contours of zeros."""
    return _curves(
        "zeros",
        "Logarithm of the squared MMD between 1,000 samples and 923 held-out contours of MNIST's"
        " zeros, by the number of sweeps per sample. Each Ising model of 900 spins was trained with"
        " the sampler that draws its samples (Adam 0.001, 1,000 updates unless stated, 100 chains,"
        " 50 sweeps; a sweep of GWG is 900 flips). Between two sets of data it is {floor}; the"
        " published value for an LP solver in place of max-product is −4.33."
        " `python -m benchmarks pmp --task zeros`; {machine}, seed 0.",
    )


def pmp_rbm() -> str:
    """Restricted Boltzmann machines of MNIST."""
    return _curves(
        "rbm",
        "The same for RBMs with 500 hidden units: 10,000 samples against the 10,000 test images of"
        " MNIST. Training uses gradient descent at rate 0.01, batches of 100, 50 epochs and 100"
        " sweeps (one for PCD-1). Between two sets of data it is {floor}. `python -m benchmarks pmp"
        " --task rbm`; {machine}, seed 0.",
    )


def pmp_known() -> str:
    """Ising models of samples of known ones."""
    titles = {
        "erdos": "Erdős–Rényi graph of 200 spins, mean degree 4",
        "lattice": "torus of 25×25 spins, θ = −0.1",
    }
    first = runs("erdos")[0]
    floors = " and ".join(f"{runs(task)[0]['log_mmd_of_data']:.2f}" for task in titles)
    lines = [
        "Ising models learned from 2,000 samples of known models, with 1,000 updates, 20 chains and"
        " the number of sweeps in each column. The figures are log MMD² between 2,000 samples of 50"
        " sweeps and held-out samples, and in brackets the root mean square error of the couplings."
        " Adam has the rate 0.01, for the lattice 0.001. Between two sets of data, log MMD² is"
        f" {floors}. `python -m benchmarks pmp --task erdos` and `lattice`, with `--sweeps`;"
        f" {machine(first)}, seed 0.",
    ]
    for task, title in titles.items():
        found = runs(task)
        budgets = sorted({run["sweeps"] for run in found}, reverse=True)
        lines += ["", f"| {title} | {' | '.join(map(str, budgets))} |"]
        lines.append(f"|---|{'---|' * len(budgets)}")
        for method, name in NAMES.items():
            of = {run["sweeps"]: run for run in found if run["method"] == method}
            if of:
                cells = [
                    f"{of[k]['log_mmd']['50']:.2f} ({of[k]['rmse']:.3f})" if k in of else "–"
                    for k in budgets
                ]
                lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pmp_hidden() -> str:
    """Variants of the learner."""
    found = runs("hidden")
    names = {
        "exact-1": "probabilities of hidden units",
        "sampled-1": "samples of hidden units",
        "exact-0.1": "probabilities, a tenth of the noise renewed, messages kept",
    }
    seeds = sorted({run["seed"] for run in found})
    budgets = sorted({run["sweeps"] for run in found}, reverse=True)
    lines = [
        "Logarithm of the squared MMD between samples of 50 sweeps and the validation rows, for"
        " RBMs of the 8×8 digits with 50 hidden units, by the way of training (Adam 0.003, 100"
        f" epochs, mean over seeds {', '.join(map(str, seeds))}). Between two sets of data it is"
        f" {found[0]['log_mmd_of_data']:.2f}. `python -m benchmarks pmp --task hidden`, with"
        f" `--sweeps`; {machine(found[0])}.",
        "",
        f"| sweeps in training | {' | '.join(map(str, budgets))} |",
        f"|---|{'---|' * len(budgets)}",
    ]
    for method, name in names.items():
        cells = []
        for budget in budgets:
            values = [
                run["log_mmd"]["50"]
                for run in found
                if run["method"] == method and run["sweeps"] == budget
            ]
            cells.append(f"{statistics.mean(values):.2f}" if values else "–")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pmp_deconvolution() -> str:
    """Features found in images."""
    found = _deconvolutions()
    one = found[0]
    feature, location, pixel = one["log_odds"]
    lines = [
        f"Blind deconvolution of {one['images']} images of {one['size']}×{one['size']} pixels. The"
        f" images are made of four features of 5×5, each at each place with probability"
        f" {one['density']:g}; the model has {one['features']} features of"
        f" {one['side']}×{one['side']}. The log-odds are {feature:g} for a pixel of a feature,"
        f" {location:g} for a place and {pixel:g} for an image pixel to equal the observed one. The"
        " columns are the number of posterior samples that hold all four features, each with an"
        " intersection over union of at least 0.9; the share of pixels that the sampled features"
        " and places reproduce; the same share for the true places in place of the sampled ones, as"
        " far as windows in the image reach them; and the number of places. In turns, a sample has"
        f" {one['features'] + 2} runs of max-product: one on all variables, one with the features"
        " held that it found, and one for each feature with the others held, as"
        ' `PMP(..., turns=...)` makes them. The column "first run" counts the'
        " samples that hold all features after the run on all variables. The graph has"
        f" {one['variables']:,} variables; building it takes {one['seconds_to_build']:.0f} s and"
        f" {one['mib_to_build'] / 1024:.1f} GiB. `python -m benchmarks pmp --task deconvolution`,"
        f" with `--method`, `--sweeps` and `--data`; {machine(one)}, seed {one['seed']}.",
        "",
        "| method | seed of the images | sweeps | first run | all features | pixels right |"
        " at true places | places | truth | time |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    names = {"turns": "in turns", "pmp": "one run"}
    for run in found:
        right, reached = ([100 * x for x in part] for part in (run["explained"], _reached(run)))
        placed = run["placed"]
        begun = run.get("recovered_first", run["recovered"])
        cells = [
            names[run["method"]],
            str(run["data"]),
            f"{run['sweeps']:,}",
            f"{sum(begun)} of {len(begun)}",
            f"{sum(run['recovered'])} of {len(run['recovered'])}",
            f"{min(right):.1f}% to {max(right):.1f}%",
            f"{min(reached):.1f}% to {max(reached):.1f}%",
            f"{min(placed)} to {max(placed)}",
            str(run["placed_in_truth"]),
            f"{run['seconds']:.0f} s",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _deconvolutions() -> list[dict[str, Any]]:
    """Runs by method, those in turns first, and by the seed of the images."""
    return sorted(runs("deconvolution"), key=lambda run: (run["method"] == "pmp", run["data"]))


def _reached(run: dict[str, Any]) -> list[float]:
    """For each sample, the share of pixels that are right with those of its features that are true
    ones at the true places, as far as their windows lie in the image there.
    """
    data = datasets.binary_convolution(
        run["images"], size=run["size"], seed=run["data"], density=run["density"]
    )
    side, room = run["side"], run["size"] - run["side"] + 1
    spare = side - data.features.shape[-1]
    shares = []
    for texts in run["pictures"]:
        made = np.zeros_like(data.images)
        for found in unpacked(texts, side, side).reshape(-1, side, side):
            shifts = itertools.product(range(spare + 1), repeat=2)
            for (down, across), (k, true) in itertools.product(shifts, enumerate(data.features)):
                moved = np.pad(true, ((down, spare - down), (across, spare - across)))
                if np.array_equal(found, moved):
                    places = data.locations[:, [k], down : down + room, across : across + room]
                    made |= datasets.convolved(moved[None], places, run["size"])
        shares.append(float((made == data.images).mean()))
    return shares


def pmp_speed() -> str:
    """Times of the samplers alone."""
    found = {run["method"]: run for run in runs("speed")}
    rbm, ising = found["rbm"]["milliseconds"], found["ising"]["milliseconds"]
    return (
        f"100 samples of 100 sweeps of an RBM with {found['rbm']['hidden']} hidden units take"
        f" {rbm['pmp']:.1f} ms with PMP ({rbm['pmp, chunks of 10']:.1f} ms with `chunk=10`) and"
        f" {rbm['gibbs']:.1f} ms with block Gibbs. 100 samples of 50 sweeps of"
        f" {found['ising']['size']} spins take {ising['pmp']:.0f} ms with PMP,"
        f" {ising['gibbs']:.0f} ms with Gibbs and {ising['gwg']:,.0f} ms with GWG."
        f" `python -m benchmarks pmp --task speed`; {machine(found['rbm'])}, nothing else running."
    )


def unpacked(texts: list[str], height: int, width: int) -> np.ndarray:
    """Binary images, as rows of pixels, from text."""
    rows = np.array([list(bytes.fromhex(text)) for text in texts], np.uint8)
    return np.unpackbits(rows, axis=1)[:, : height * width]


def _draw_samples(path: Path, task: str, side: int) -> None:
    import matplotlib.pyplot as plt

    from ebmlearn import plotting

    kept = [run for run in runs(task) if run["pictures"]]
    found = sorted(kept, key=lambda run: list(NAMES).index(run["method"]))
    figure, axes = plt.subplots(
        len(found), 1, figsize=(9, 1.25 * len(found)), layout="constrained", squeeze=False
    )
    for ax, run in zip(axes[:, 0], found, strict=True):
        images = unpacked(run["pictures"][:20], side, side)
        plotting.images(images, (side, side), columns=20, gap=2, ax=ax)
        sweeps = 100 if task == "rbm" else 50
        value = run["log_mmd"][str(sweeps)]
        title = f"{NAMES[run['method']]}, {sweeps} sweeps, log MMD² {value:.2f}"
        ax.set_title(title, fontsize=10)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def draw_pmp_zeros(path: Path) -> None:
    """Samples of the Ising models."""
    _draw_samples(path, "zeros", 30)


def draw_pmp_rbm(path: Path) -> None:
    """Samples of the RBMs."""
    _draw_samples(path, "rbm", 28)


def draw_pmp_curves(path: Path) -> None:
    """Discrepancies against sweeps, and against time."""
    import matplotlib.pyplot as plt

    speed = {run["method"]: run for run in runs("speed")}
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained")
    titles = {"zeros": "Ising models of zeros", "rbm": "RBMs of MNIST"}
    for row, (task, title) in zip(axes, titles.items(), strict=True):
        times = speed["ising" if task == "zeros" else "rbm"]["milliseconds"]
        length = 50 if task == "zeros" else 100
        found = sorted(runs(task), key=lambda run: list(NAMES).index(run["method"]))
        for run in found:
            sampler = run["method"].split("-")[0]
            of = times["gibbs" if sampler == "pcd" else sampler] / length
            sweeps = np.array([int(k) for k in run["log_mmd"]])
            values = list(run["log_mmd"].values())
            for ax, x in zip(row, (sweeps, sweeps * of), strict=True):
                ax.plot(x, values, "o-", label=_name(run, found), markersize=3)
        for ax, label in zip(row, ("sweeps", "milliseconds for 100 samples"), strict=True):
            ax.axhline(found[0]["log_mmd_of_data"], color="gray", linestyle=":", linewidth=1)
            ax.set_xscale("log")
            ax.set_xlabel(label)
            ax.set_ylabel("log MMD²")
            ax.set_title(title, fontsize=10)
        row[0].legend(fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def draw_pmp_logz(path: Path) -> None:
    """Errors of the bounds."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    labels = {"pmp": "max-product", "mplp": "MPLP", "exact": "exact maxima"}
    for ax, method, title in zip(
        axes, ("lattice", "full"), ("lattices, θ = 0.1", "full graphs"), strict=True
    ):
        found = sorted((r for r in runs("logz") if r["method"] == method), key=lambda r: r["size"])
        for name, label in labels.items():
            of = [run for run in found if name in run["error"]]
            if not of:
                continue
            mean = [statistics.mean(run["error"][name]) for run in of]
            spread = [
                run["standard_error"][name][0]
                if method == "lattice"
                else statistics.stdev(run["error"][name])
                for run in of
            ]
            ax.errorbar([r["size"] for r in of], mean, spread, fmt="o-", label=label, capsize=3)
        ax.axhline(0, color="gray", linestyle=":", linewidth=1)
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("side" if method == "lattice" else "units")
        ax.set_ylabel("bound − log Z")
        ax.legend(fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def draw_pmp_deconvolution(path: Path) -> None:
    """The features that made the images, some images, and the features of each sample."""
    import matplotlib.pyplot as plt

    from ebmlearn import plotting

    one = _deconvolutions()[0]
    figure, axes = plt.subplots(
        1, 3, figsize=(9, 3.4), layout="constrained", width_ratios=(1, 3, 3)
    )
    size, side = one["size"], one["side"]
    samples = [text for features in zip(*one["pictures"], strict=True) for text in features]
    pictures = {
        "features": (one["true_features"], 5, 1),
        "images": (one["images_drawn"][:9], size, 3),
        "features, a column for each sample": (samples, side, len(one["pictures"])),
    }
    for ax, (title, (texts, edge, columns)) in zip(axes, pictures.items(), strict=True):
        plotting.images(unpacked(texts, edge, edge), (edge, edge), columns=columns, ax=ax)
        ax.set_title(title, fontsize=10)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
