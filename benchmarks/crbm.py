"""Structured prediction with conditional RBMs: the tables of Ping & Ihler 2017.

`--protocol paper` follows the paper: a corruption drawn once, and BP of 7 + epoch sweeps.
`--protocol fresh` draws the corruption anew each epoch. `--protocol further` does so too, with more
hidden units and with images shifted by a pixel; its results are in `results/crbm_further.json`,
which `--json` must name. Finished runs are kept in the result file and not done again; a run that
`--seconds` cuts short goes on from its checkpoint.
"""

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import datasets

from . import _slices
from ._marginal_map import LARGEST, MarginalMAP
from ._slices import Deadline, drive, read


class Task(NamedTuple):
    data: Callable[[], datasets.Dataset]
    corrupt: Callable[..., jax.Array]


def _flipped(rate: float) -> Callable[..., jax.Array]:
    return lambda v, *, key: datasets.flip(v, rate, key=key)


def _occluded(size: int, value: int = 0) -> Callable[..., jax.Array]:
    return lambda v, *, key: datasets.occlude(v, size, key=key, value=value)


TASKS = {
    "noisy10": Task(datasets.mnist, _flipped(0.1)),
    "noisy20": Task(datasets.mnist, _flipped(0.2)),
    "occluded8": Task(datasets.mnist, _occluded(8)),
    "occluded12": Task(datasets.mnist, _occluded(12)),
    "caltech-noisy": Task(datasets.caltech_silhouettes, _flipped(0.2)),
    "caltech-occluded": Task(datasets.caltech_silhouettes, _occluded(12, 1)),
}
# For the curve of the error against the size of the occlusion.
SIZES = (4, 6, 8, 10, 12, 14, 16)
TASKS |= {f"occluded{size}": Task(datasets.mnist, _occluded(size)) for size in SIZES}

# Ping & Ihler 2017, tables 1 to 3: test error in per cent, of all and of changed pixels.
PUBLISHED = {
    "lr": ((1.960, 12.531), (4.088, 12.609), (1.468, 61.304), (3.498, 53.971), (5.653, 11.460), (4.771, 16.587)),  # noqa: E501
    "cd-1": ((1.925, 12.229), (4.012, 12.597), (1.814, 63.130), (3.983, 58.376), (5.876, 12.423), (5.033, 20.300)),  # noqa: E501
    "cd-10": ((1.816, 11.103), (3.995, 11.271), (1.707, 67.925), (3.921, 63.237), (5.736, 12.013), (5.149, 21.087)),  # noqa: E501
    "percloss": ((1.760, 11.121), (3.970, 10.876), (1.394, 45.684), (3.483, 35.755), (5.622, 10.808), (5.081, 15.102)),  # noqa: E501
    "mle-mf": ((1.862, 11.319), (3.917, 10.939), (1.492, 49.553), (3.477, 40.703), (5.617, 11.083), (4.692, 15.995)),  # noqa: E501
    "mle-bp": ((1.688, 10.718), (3.691, 10.409), (1.329, 39.785), (3.117, 36.233), (5.445, 10.731), (4.548, 16.541)),  # noqa: E501
    "lssvm": ((1.807, 11.565), (3.910, 11.175), (1.496, 44.037), (3.468, 39.140), (5.628, 11.468), (4.703, 16.014)),  # noqa: E501
    "mssvm": ((1.751, 11.023), (3.804, 10.627), (1.391, 41.829), (3.273, 35.712), (5.549, 11.389), (4.534, 14.918)),  # noqa: E501
}  # fmt: skip
METHODS = tuple(PUBLISHED)
MAIN = tuple(TASKS)[:6]

# What validation chose for `--protocol paper` where the search on the first task misses the
# published error: by the method and the task, or by the method and the first word of the task.
PAPER: dict[tuple[str, str], dict[str, Any]] = {
    ("lr", "noisy20"): {"rate": 0.05, "epochs": 50, "average": 0.9995},
    ("lr", "caltech-noisy"): {"rate": 0.02, "epochs": 50, "average": 0.999},
    ("cd-1", "noisy10"): {"rate": 5e-3, "epochs": 60, "start": "data", "centred": True},
    ("cd-1", "noisy20"): {"rate": 2e-3, "epochs": 60, "start": "data", "centred": True},
    ("cd-1", "occluded12"): {
        "rate": 2e-3, "epochs": 60, "start": "data", "centred": True, "initial": "logistic"
    },
    ("cd-1", "occluded"): {"rate": 0.1, "epochs": 60, "start": "data", "centred": True},
    ("cd-1", "caltech-noisy"): {"rate": 5e-3, "epochs": 60, "start": "data", "centred": True},
    ("cd-1", "caltech-occluded"): {"rate": 0.1, "epochs": 60, "start": "data", "centred": True},
    ("cd-10", "noisy"): {"rate": 5e-3, "epochs": 60, "centred": True},
    ("cd-10", "occluded"): {"rate": 0.01, "epochs": 60, "centred": True},
    ("cd-10", "caltech-noisy"): {"rate": 5e-3, "epochs": 60, "centred": True},
    ("cd-10", "caltech-occluded"): {"rate": 0.02, "epochs": 60, "centred": True},
    ("percloss", "noisy"): {"rate": 1e-3, "epochs": 12, "centred": True, "initial": "logistic"},
    ("percloss", "occluded"): {"rate": 0.05, "epochs": 30, "centred": True, "initial": "logistic"},
    ("percloss", "caltech-noisy"): {
        "rate": 1e-3, "epochs": 40, "centred": True, "initial": "logistic"
    },
    ("percloss", "caltech-occluded"): {
        "rate": 0.05, "epochs": 60, "centred": True, "initial": "logistic"
    },
    ("mle-mf", "noisy10"): {"rate": 0.02, "epochs": 12},
    ("mle-mf", "noisy20"): {"rate": 0.02, "epochs": 5},
    ("mle-bp", "noisy10"): {"rate": 0.02, "epochs": 20, "centred": True, "weight_decay": 1e-3},
    ("mle-bp", "noisy20"): {"rate": 0.02, "epochs": 9, "centred": True},
    ("mle-bp", "caltech-noisy"): {"rate": 0.02, "epochs": 50, "centred": True},
    ("lssvm", "noisy10"): {"rate": 5e-3, "epochs": 16, "average": 0.9995},
    ("lssvm", "caltech-noisy"): {"rate": 5e-3, "epochs": 15},
    ("mssvm", "noisy10"): {"rate": 0.01, "epochs": 30},
    ("mssvm", "caltech-noisy"): {"rate": 2e-3, "epochs": 50},
}  # fmt: skip
# All of these have batches of 80 and, unless they say otherwise, this mean of the parameters.
PAPER = {key: {"batch": 80, "average": 0.999, **found} for key, found in PAPER.items()}

# What validation chose for `--protocol further`, by the method and by the first word of the task.
FURTHER: dict[tuple[str, str], dict[str, Any]] = {
    ("mssvm", "noisy"): {"rate": 2e-3, "epochs": 80, "hidden": 1000, "shifts": 1},
    ("mssvm", "occluded"): {"rate": 2e-3, "epochs": 80, "hidden": 1000, "shifts": 0},
    ("mssvm", "caltech"): {"rate": 1e-3, "epochs": 300, "hidden": 1000, "shifts": 1},
    ("mle-bp", "noisy"): {"rate": 4e-3, "epochs": 20, "hidden": 500, "shifts": 1, "average": 0.999},
    ("mle-bp", "occluded"): {
        "rate": 4e-3, "epochs": 20, "hidden": 500, "shifts": 0, "average": 0.999
    },
    ("mle-bp", "caltech"): {
        "rate": 2e-3, "epochs": 80, "hidden": 500, "shifts": 1, "average": 0.999,
        "weight_decay": 2e-3,
    },
}  # fmt: skip


def learner(run: dict[str, Any]) -> ebm.learners.AbstractLearner:
    """What a method is: the paper's sweeps grow with the epoch, ours do not."""
    options, sweeps = dict(run["options"]), run["sweeps"]
    start = options.pop("start", "random")

    def bp(product: Any) -> Any:
        if sweeps is None:
            return lambda epoch: ebm.BP(7 + epoch, product=product, tol=1e-3)
        return ebm.BP(sweeps, product=product)

    def mixed() -> Any:
        # The same sweeps, faster.
        return MarginalMAP(sweeps) if run["protocol"] == "further" else bp("mixed")

    def mean_field() -> Any:
        if sweeps is None:
            return lambda epoch: ebm.MeanField(7 + epoch, tol=1e-3)
        return ebm.MeanField(sweeps)

    return {
        "lr": lambda: ebm.MLE(ebm.BP(1), **options),
        "cd-1": lambda: ebm.CD(1, start=start, inference=mean_field(), **options),
        "cd-10": lambda: ebm.CD(10, start=start, inference=mean_field(), **options),
        "percloss": lambda: ebm.PercLoss(10, **options),
        "mle-mf": lambda: ebm.MLE(mean_field(), **options),
        "mle-bp": lambda: ebm.MLE(bp("sum"), **options),
        "lssvm": lambda: ebm.LSSVM(bp("max"), **options),
        "mssvm": lambda: ebm.MSSVM(mixed(), **options),
    }[run["method"]]()


def settings(args: argparse.Namespace, task: str, method: str, seed: int) -> dict[str, Any]:
    """All that a run depends on."""
    caltech = task.startswith("caltech")
    cd = method in ("cd-1", "cd-10", "percloss")
    fresh = args.protocol != "paper"
    kind = task.rstrip("0123456789").partition("-")[0]
    own: dict[str, Any] = {}
    if args.protocol == "further":
        own = FURTHER.get((method, kind), {})
    elif args.protocol == "paper" and not args.search:
        own = PAPER.get((method, task)) or PAPER.get((method, kind), {})
    first: dict[str, Any] = {"rate": 1e-3 if caltech else 2e-3, "batch": 100, "options": {}}
    if not fresh and not own:
        first = chosen(args.json, method)
    epochs = (300 if caltech else 60) if fresh else (200 if cd else 50)
    decay = args.weight_decay if args.weight_decay is not None else own.get("weight_decay")
    start = args.start or own.get("start", "random")
    return {
        "protocol": args.protocol,
        "task": task,
        "method": method,
        "rate": args.rate or own.get("rate", first["rate"]),
        "batch": args.batch or own.get("batch", first["batch"]),
        "epochs": args.epochs or own.get("epochs", epochs),
        "hidden": 0 if method == "lr" else args.hidden or own.get("hidden", 256),
        "options": {
            **({} if args.search else first["options"]),
            **({"centred": True} if args.centred or own.get("centred") else {}),
            **({"weight_decay": decay} if decay else {}),
            **({"start": "data"} if start == "data" and method.startswith("cd-") else {}),
        },
        "average": args.average if args.average is not None else own.get("average"),
        "shifts": args.shifts if args.shifts is not None else own.get("shifts"),
        "initial": args.initial or own.get("initial"),
        "sweeps": args.sweeps or (10 if fresh else None),
        "rows": args.rows,
        "seed": seed,
    }


def chosen(path: Path | None, method: str) -> dict[str, Any]:
    """The rate and the batch that the search found best for a method, or a first guess."""
    runs = [run for run in read(path) if run["purpose"] == "search" and run["method"] == method]
    first = {"rate": 0.02, "batch": 40, "options": {}}
    return min(runs, key=lambda run: run["valid"], default=first)


def optimiser(run: dict[str, Any], steps: int) -> optax.GradientTransformation:
    if run["protocol"] != "paper":
        return optax.adam(optax.cosine_decay_schedule(run["rate"], run["epochs"] * steps))
    return optax.sgd(run["rate"], momentum=0.9)


def shifted(v: jax.Array, most: int, *, key: jax.Array) -> jax.Array:
    """Each image moved by up to so many pixels in both directions, its border repeated."""
    images = jnp.pad(v.reshape(-1, 28, 28), ((0, 0), (most, most), (most, most)), mode="edge")
    corners = jax.random.randint(key, (len(images), 2), 0, 2 * most + 1)
    moved = jax.vmap(lambda image, at: jax.lax.dynamic_slice(image, at, (28, 28)))(images, corners)
    return moved.reshape(v.shape)


def from_logistic(model: ebm.CRBM, pairs: Any, valid: Any, key: jax.Array) -> ebm.CRBM:
    """The model with the features and biases of the visible units of logistic regression."""
    fitted = ebm.fit(
        ebm.CRBM.init(784, 0, 784, key=key),
        ebm.MLE(ebm.BP(1)),
        pairs,
        optimizer=optax.sgd(0.05, momentum=0.9),
        epochs=12,
        batch_size=80,
        validation=ebm.Validation(valid, patience=3),
        average=0.999,
        key=key,
        progress=False,
    )
    return ebm.CRBM(
        model.weights,
        fitted.model.visible_features,
        model.hidden_features,
        fitted.model.visible_bias,
        model.hidden_bias,
    )


def train(run: dict[str, Any], purpose: str, work: Path | None, deadline: Deadline) -> dict | None:
    """Trains, validates each epoch, and tests the best model once. None if the time was over."""
    task = TASKS[run["task"]]
    data = task.data()
    keys = jax.random.split(jax.random.key(run["seed"]), 5)
    rows = slice(run["rows"])
    clean = data.train.x[rows]
    valid, test = (
        (task.corrupt(split.x[rows], key=key), split.x[rows])
        for split, key in zip((data.valid, data.test), keys, strict=False)
    )
    fresh = run["protocol"] != "paper"
    pairs: Any = clean if fresh else (task.corrupt(clean, key=keys[2]), clean)

    def augment(v: jax.Array, *, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        if run["shifts"]:
            key, own = jax.random.split(key)
            v = shifted(v, run["shifts"], key=own)
        return task.corrupt(v, key=key), v

    method = learner(run)
    began = time.monotonic()
    initial = ebm.CRBM.init(784, run["hidden"], 784, key=keys[3])
    if run["initial"] == "logistic":
        initial = from_logistic(initial, pairs, valid, keys[4])
    fitted = ebm.fit(
        initial,
        method,
        pairs,
        optimizer=optimiser(run, len(clean) // run["batch"]),
        epochs=run["epochs"],
        batch_size=run["batch"],
        validation=ebm.Validation(
            valid,
            patience=None if fresh or purpose == "search" else 10 if run["epochs"] <= 60 else 40,
        ),
        augment=augment if fresh else None,
        average=run["average"],
        checkpoint=work,
        callbacks=[deadline],
        key=keys[4],
        progress=False,
    )
    history = fitted.history.epochs
    finished = len(history["metric"]) == run["epochs"] or fitted.stopped == "patience"
    if not finished:
        return None
    out = {
        **run,
        "purpose": purpose,
        "valid": 100 * float(np.min(history["metric"])),
        "best_epoch": fitted.best_epoch,
        "valid_errors": [round(100 * float(x), 4) for x in history["metric"]],
        "converged": [round(float(x), 4) for x in history.get("converged", ())],
        "epoch_seconds": float(np.min(history["seconds"])),
        "seconds": time.monotonic() - began,
    }
    largest = float(jnp.abs(fitted.model.weights).max(initial=0))
    if run["protocol"] == "further" and largest > LARGEST:
        raise ValueError(f"Weights must be at most {LARGEST} here, got {largest}.")
    if purpose == "table":
        x, v = test
        found = method.predict(fitted.model, x, epoch=fitted.best_epoch)
        out["test"] = 100 * float(ebm.error_rate(found, v))
        out["test_changed"] = 100 * float(ebm.error_rate(found, v, where=x != jnp.asarray(v)))
    return out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", nargs="+", choices=(*TASKS, "all"), default=["all"])
    parser.add_argument("--method", nargs="+", choices=(*METHODS, "all"), default=["all"])
    parser.add_argument("--protocol", choices=("paper", "fresh", "further"), default="paper")
    parser.add_argument(
        "--search", action="store_true", help="choose rate and batch on the validation set"
    )
    parser.add_argument(
        "--purpose", choices=("table", "try", "speed"), default="table", help="only 'table' tests"
    )
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--sweeps", type=int, help="of belief propagation")
    parser.add_argument("--average", type=float)
    parser.add_argument("--weight-decay", type=float)
    parser.add_argument("--shifts", type=int, help="move images by up to so many pixels")
    parser.add_argument("--centred", action="store_true")
    parser.add_argument("--start", choices=("random", "data"), help="of the chains of CD")
    parser.add_argument("--initial", choices=("logistic",), help="train logistic regression first")
    parser.add_argument("--rows", type=int, help="use only so many rows of each part")
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    _slices.add_arguments(parser)


def wanted(args: argparse.Namespace) -> list[tuple[dict[str, Any], str]]:
    """The runs that the arguments ask for."""
    tasks = MAIN if "all" in args.task else args.task
    methods = METHODS if "all" in args.method else args.method
    if not args.search:
        kinds = [(t, m, s) for s in args.seed for t in tasks for m in methods]
        return [(settings(args, *kind), args.purpose) for kind in kinds]
    out = []
    for method in methods:
        for batch in (args.batch,) if args.batch else (20, 80):
            for rate in (args.rate,) if args.rate else (0.05, 0.02, 0.01, 0.005):
                run = settings(args, "noisy10", method, args.seed[0])
                run |= {"rate": rate, "batch": batch, "epochs": args.epochs or 5}
                out.append((run, "search"))
    return out


def main(args: argparse.Namespace) -> dict[str, Any]:
    def runs() -> Any:
        for run, purpose in wanted(args):
            yield run, functools.partial(train, run, purpose)

    return drive(args, runs, show)


def show(run: dict[str, Any]) -> None:
    """A line about a run, with the published figures beside it."""
    line = f"{run['protocol']:5} {run['task']:16} {run['method']:8} rate {run['rate']} batch"
    line += f" {run['batch']} hidden {run['hidden']} valid {run['valid']:.3f}"
    if "test" in run:
        line += f" test {run['test']:.3f}/{run['test_changed']:.3f}"
        if run["task"] in MAIN:
            published = PUBLISHED[run["method"]][MAIN.index(run["task"])]
            line += f" (published {published[0]:.3f}/{published[1]:.3f})"
    line += f" epoch {run['best_epoch'] + 1}/{len(run['valid_errors'])}"
    print(f"{line} {run['epoch_seconds']:.2f} s an epoch, {run['seconds']:.0f} s", flush=True)
