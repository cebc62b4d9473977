"""Learning and sampling at equilibrium: trajectory tempering beside Gibbs sampling.

`--task jumps` trains an RBM, keeps its trajectory, and counts how often chains move between the
clusters of the data. `--task likelihood` trains RBMs and estimates their log-likelihood on held-out
rows, with log Z by annealing both ways; the larger of the two counts. With `--purpose try` the
held-out rows are those of validation.
"""

import argparse
import functools
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import datasets
from ebmlearn.datasets._files import folder, unpacked

from . import _slices
from ._clusters import centres, nearest, shares
from ._slices import Deadline, drive
from .crbm import shifted
from .sap import both_ways, drawn


DATA = ("zero-one", "genomes", "mnist", "caltech")
TASKS = {
    "jumps": ("zero-one", "genomes"),
    "likelihood": ("mnist", "caltech", "genomes"),
}
# How long a chain must stay in another cluster.
STAY = 10
CLUSTERS = 3
# Chains of annealing.
CHAINS = 500
# The least number of steps of an epoch.
EPOCH = 100

# By the task, the data and the method: what differs from `FIRST`.
_SMALL = {
    "hidden": 20, "optimiser": "sgd", "rate": 0.02, "centred": True, "updates": 10_000,
    "annealing": 10_000,
}  # fmt: skip
SETTINGS: dict[tuple[str, str, str], dict[str, Any]] = {
    ("jumps", "zero-one", "trajectory"): _SMALL,
    ("jumps", "genomes", "trajectory"): _SMALL,
    ("likelihood", "mnist", "pcd"): {
        "hidden": 500, "optimiser": "sgd", "centred": True, "rate": 0.2, "weight_decay": 2e-5,
        "chains": 1_000, "updates": 250_000, "annealing": 20_000, "together": 3,
    },
    ("likelihood", "caltech", "pcd"): {
        "hidden": 1_000, "optimiser": "sgd", "centred": True, "rate": 0.02, "weight_decay": 1e-4,
        "chains": 1_000, "updates": 40_000, "shifts": 1, "annealing": 60_000, "validations": 15,
    },
    ("likelihood", "genomes", "pcd"): {
        "optimiser": "sgd", "centred": True, "rate": 5e-3, "updates": 80_000,
        "annealing": 20_000, "validations": 80, "budget": 45.0,
    },
    ("likelihood", "genomes", "trajectory"): {
        "optimiser": "sgd", "centred": True, "rate": 5e-3, "updates": 40_000, "capacity": 12,
        "chains": 250, "annealing": 20_000, "validations": 40, "budget": 45.0,
    },
}  # fmt: skip
FIRST = {
    "updates": 20_000, "hidden": 200, "optimiser": "adam", "rate": 1e-3, "batch": 500,
    "chains": 500, "steps": 1, "centred": False, "weight_decay": 0.0, "capacity": 32,
    "annealing": 4_000, "rows": None,
}  # fmt: skip
ONLY = {
    "jumps": {"sweeps": 10_000, "watched": 100},
    "likelihood": {
        "average": None, "shifts": 0, "validations": 0, "budget": None, "together": 0,
    },
}  # fmt: skip


def genomes() -> datasets.Dataset:
    """Human haplotypes at 805 sites of the 1000 Genomes Project (Yelmen et al. 2021), 3,150
    training, 450 validation and 900 test rows.
    """
    path = folder() / "genomes_805.npz"
    if not path.exists():
        raise FileNotFoundError(f"There is no {path}.")
    with np.load(path) as stored:
        arrays = dict(stored)
    parts = (f"{part}_packed" for part in ("train", "valid", "test"))
    return datasets.Dataset(*(datasets.Split(unpacked("genomes", arrays, k)) for k in parts))


class Rows(NamedTuple):
    """Training rows, the class of each if there are classes, and rows to validate and to test."""

    train: np.ndarray
    classes: np.ndarray | None
    valid: np.ndarray
    held: np.ndarray


def rows(name: str, purpose: str) -> Rows:
    """The rows of a data set; those of MNIST are grey levels, which are drawn anew in each step.
    Rows of MNIST for validation choose the settings, and are then trained on.
    """
    if name == "genomes":
        data = genomes()
    elif name == "caltech":
        data = datasets.caltech_silhouettes()
    else:
        data = datasets.mnist(threshold=None)
    parts = [data.train, data.valid, data.test]
    if name == "zero-one":
        parts = [datasets.Split(p.x[p.y < 2], p.y[p.y < 2]) for p in parts if p.y is not None]
    train, valid, test = parts
    if purpose == "try" or name in ("caltech", "genomes"):
        return Rows(train.x, train.y, valid.x, valid.x if purpose == "try" else test.x)
    y = [part.y for part in (train, valid) if part.y is not None]
    return Rows(np.concatenate([train.x, valid.x]), np.concatenate(y), valid.x, test.x)


def count_jumps(near: np.ndarray, stay: int = STAY) -> np.ndarray:
    """How often each chain moved to another cluster and stayed for some sweeps. `near` is the
    near cluster of each chain after each sweep, of shape `[sweeps, chains]`.
    """
    chains = near.shape[1]
    home, since, last = near[0].copy(), np.ones(chains, int), near[0]
    jumps = np.zeros(chains, int)
    for now in near[1:]:
        since = np.where(now == last, since + 1, 1)
        moved = (since >= stay) & (now != home)
        jumps += moved
        home, last = np.where(moved, now, home), now
    return jumps


@functools.partial(jax.jit, static_argnames=("sweeps",))
def visited(
    sampler: ebm.samplers.AbstractSampler,
    model: ebm.RBM,
    state: Any,
    means: jax.Array,
    key: jax.Array,
    sweeps: int,
) -> tuple[jax.Array, Any]:
    """The nearest cluster of each chain after each step, and the last state."""

    def step(state: Any, own: jax.Array) -> tuple[Any, jax.Array]:
        state, _ = sampler.step(model, state, key=own)
        near = nearest(model.encode(state.units)[0], means)
        return state, near.astype(jnp.int8)

    state, near = jax.lax.scan(step, state, jax.random.split(key, sweeps))
    return near, state


def measured(
    sampler: ebm.samplers.AbstractSampler,
    model: ebm.RBM,
    run: dict[str, Any],
    means: jax.Array,
    key: jax.Array,
) -> dict[str, Any]:
    """Jumps of all chains after a burn-in of a tenth of the sweeps, and the time."""
    one, two, three = jax.random.split(key, 3)
    state = sampler.init(model, run["watched"], key=one)
    _, state = visited(sampler, model, state, means, two, run["sweeps"] // 10)
    again = visited.lower(sampler, model, state, means, three, run["sweeps"]).compile()
    began = time.monotonic()
    near, state = jax.block_until_ready(again(sampler, model, state, means, three))
    seconds = time.monotonic() - began
    near = np.asarray(near)
    out = {"jumps": int(count_jumps(near).sum()), "seconds": seconds}
    if sampler.has_replicas:
        out["trips"] = int(state.trips.sum())
    return {**out, "shares": shares(near, len(means))}


def start(x: jax.Array, hidden: int, key: jax.Array) -> ebm.RBM:
    """An RBM whose visible units have the means of the data."""
    rbm = ebm.RBM.init(x.shape[1], hidden, key=key)
    return ebm.RBM(rbm.weights, ebm.estimate.base_rate(x), rbm.hidden_bias)


class Training:
    """A run: its data, its model, and how long it is trained."""

    def __init__(self, run: dict[str, Any]):
        self.run = run
        found = rows(run["data"], run["purpose"])
        first = slice(run["rows"])
        self.train, self.valid = found.train[first], found.valid[first]
        self.classes = None if found.classes is None else found.classes[first]
        self.grey = run["data"] in ("zero-one", "mnist")
        self.held = self._binary(found.held[first], jax.random.key(1))
        *self.keys, own = jax.random.split(jax.random.key(run["seed"]), 7)
        self.binary = self._binary(self.train, own)
        # An epoch of few steps would cost more on the host than on the device.
        times = max(1, EPOCH * run["batch"] // len(self.train))
        self.data = np.tile(self.train, (times, 1))
        self.model = start(self.binary, run["hidden"], self.keys[0])
        self.validating, self.began = 0.0, None

    def _binary(self, x: np.ndarray, key: jax.Array) -> jax.Array:
        return drawn(jnp.asarray(x), key=key) if self.grey else jnp.asarray(x)

    def learner(self) -> ebm.SAP:
        """Persistent chains of Gibbs sampling, or on a trajectory that grows."""
        run = self.run
        names = ("steps", "centred", "weight_decay")
        options = {"num_chains": run["chains"], **{name: run[name] for name in names}}
        if run["method"] == "pcd":
            return ebm.SAP(**options)
        trajectory = ebm.Trajectory.start(self.model, self.binary, capacity=run["capacity"])
        return ebm.SAP(ebm.TrajectoryTempering(trajectory), **options)

    def optimiser(self, updates: int) -> optax.GradientTransformation:
        """Gradient descent or Adam, whose rate falls to 0 unless the time decides when to stop."""
        run = self.run
        kind = {"adam": optax.adam, "sgd": optax.sgd}[run["optimiser"]]
        if run.get("budget"):
            return kind(run["rate"])
        return kind(optax.cosine_decay_schedule(run["rate"], updates))

    def augment(self, batch: jax.Array, *, key: jax.Array) -> jax.Array:
        """Pixels drawn from grey levels, and images moved by some pixels."""
        if self.grey:
            key, own = jax.random.split(key)
            batch = drawn(batch, key=own)
        shifts = self.run.get("shifts")
        return shifted(batch, shifts, key=key) if shifts else batch

    def loss(self, model: ebm.RBM, valid: jax.Array, epoch: int) -> float:
        """The mean of minus the log-likelihood of rows for validation, by a short annealing."""
        began = time.monotonic()
        base = ebm.estimate.base_rate(self.binary)
        betas = min(3_000, self.run["annealing"])
        log_z = ebm.ais(model, key=0, betas=betas, num_chains=200, base=base).log_partition
        found = -float(ebm.log_likelihood(model, valid, log_z).mean())
        self.validating += time.monotonic() - began
        return found

    def in_time(self, report: Any) -> bool:
        """Whether to stop: the time without the first epoch and without validation is over."""
        if self.began is None:
            self.began, self.validating = time.monotonic(), 0.0
        budget = self.run.get("budget")
        return bool(budget) and time.monotonic() - self.began - self.validating > budget

    def options(self) -> dict[str, Any]:
        """What training is told."""
        run = self.run
        per_epoch = len(self.data) // run["batch"]
        epochs = -(-run["updates"] // per_epoch)
        options: dict[str, Any] = {"epochs": epochs, "batch_size": run["batch"], "progress": False}
        options["optimizer"] = self.optimiser(epochs * per_epoch)
        options["average"] = run.get("average")
        if run.get("validations"):
            valid = self._binary(self.valid, jax.random.key(2))
            every = epochs * per_epoch // run["validations"]
            options["validation"] = ebm.Validation(valid, self.loss, every=every)
        if run.get("budget"):
            options["callbacks"] = [self.in_time]
        if self.grey or run.get("shifts"):
            options["augment"] = self.augment
        return options

    def fit(self, **more: Any) -> tuple[ebm.Fitted, float]:
        """What training found, and the seconds that it took, without those of validation."""
        began = time.monotonic()
        options = {**self.options(), **more}
        found = ebm.fit(self.model, self.learner(), self.data, key=self.keys[1], **options)
        return found, time.monotonic() - began - self.validating

    def log_z(self, model: ebm.RBM) -> dict[str, float]:
        """Log Z by annealing both ways, without the 10 bits to which GPUs round factors."""
        betas = self.run["annealing"]
        with jax.default_matmul_precision("float32"):
            return both_ways(model, self.binary, self.keys[2], betas, CHAINS, betas // 5)[0]


def jumps(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict | None:
    """Trains, with the trajectory recorded, and counts jumps."""
    training = Training(run)
    recorded = {"trajectory": run["capacity"]} if run["method"] == "pcd" else {}
    trained, seconds = training.fit(**recorded)
    model, recorded = trained.last, trained.trajectory
    assert recorded is not None
    trajectory = ebm.samplers.adapt_trajectory(model, recorded, key=training.keys[3])
    x = np.asarray(training.binary, np.float32)
    means = centres(x, training.classes, CLUSTERS)
    tempering = ebm.TrajectoryTempering(trajectory)
    samplers = {"gibbs": ebm.Gibbs(), "tempered": tempering}
    found = {
        name: measured(sampler, model, run, jnp.asarray(means), training.keys[4])
        for name, sampler in samplers.items()
    }
    return {
        **run,
        **training.log_z(model),
        "recorded": len(recorded),
        "replicas": len(trajectory),
        "clusters": len(means),
        "shares_of_data": shares(nearest(x, means), len(means)),
        **found,
        "training_seconds": seconds,
    }


@functools.cache
def side_by_side(run: tuple[tuple[str, Any], ...], seeds: tuple[int, ...]) -> tuple[Any, float]:
    """Models of some seeds that are trained at once, and the seconds of all."""
    every = [Training({**dict(run), "seed": seed}) for seed in seeds]
    began = time.monotonic()
    one = every[0]
    models, keys = [x.model for x in every], [x.keys[1] for x in every]
    found = ebm.fit_many(models, one.learner(), one.data, key=keys, **one.options())
    return dict(zip(seeds, found, strict=True)), time.monotonic() - began


def likelihood(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict | None:
    """Trains, and estimates the log-likelihood of held-out rows."""
    training = Training(run)
    if run["together"]:
        fixed = tuple((k, x) for k, x in run.items() if k not in ("seed", "together"))
        every, seconds = side_by_side(fixed, tuple(range(run["together"])))
        trained = every[run["seed"]]
    else:
        trained, seconds = training.fit()
    found, binary = trained.model, training.binary
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        ebm.save(work / "model.npz", found)
    log_z = training.log_z(found)
    larger = max(log_z["log_z"], log_z["log_z_reverse"])
    with jax.default_matmul_precision("float32"):
        log_p = np.asarray(ebm.log_likelihood(found, training.held, larger), np.float64)
        own = np.asarray(ebm.log_likelihood(found, binary[:10_000], larger), np.float64)
    metric = trained.history.validations.get("metric", [])
    return {
        **run,
        **log_z,
        "replicas": None if trained.trajectory is None else len(trained.trajectory),
        "held_out": float(log_p.mean()),
        "held_out_error": float(log_p.std() / np.sqrt(len(log_p))),
        "train": float(own.mean()),
        "updates_done": len(trained.history.steps["gap"]),
        "best_step": trained.best_step,
        "validation": [round(-float(x), 2) for x in metric],
        "seconds": seconds,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", choices=tuple(TASKS), default="jumps")
    parser.add_argument("--data", choices=DATA, default="zero-one")
    parser.add_argument("--method", choices=("pcd", "trajectory"), default="pcd")
    parser.add_argument("--purpose", choices=("table", "try"), default="table")
    parser.add_argument("--updates", type=int)
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--optimiser", choices=("adam", "sgd"))
    parser.add_argument("--rate", type=float)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--chains", type=int)
    parser.add_argument("--steps", type=int, help="sweeps between two updates")
    parser.add_argument("--capacity", type=int, help="of the trajectory")
    parser.add_argument("--centred", action="store_const", const=True)
    parser.add_argument("--average", type=float, help="decay of a mean of the parameters")
    parser.add_argument("--weight-decay", type=float)
    parser.add_argument("--shifts", type=int, help="move images by up to so many pixels")
    parser.add_argument("--validations", type=int, help="keep the best of so many models")
    parser.add_argument("--together", type=int, help="train so many seeds, from 0, at once")
    parser.add_argument("--budget", type=float, help="stop training after so many seconds")
    parser.add_argument("--sweeps", type=int, help="jumps: of each replica")
    parser.add_argument("--watched", type=int, help="jumps: chains that are watched")
    parser.add_argument("--annealing", type=int, help="temperatures of AIS")
    parser.add_argument("--rows", type=int, help="use only so many rows")
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    _slices.add_arguments(parser)  # `--work` keeps the models of likelihoods.


def settings(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """All that a run depends on."""
    run = {"task": args.task, "data": args.data, "method": args.method, "purpose": args.purpose}
    chosen = SETTINGS.get((args.task, args.data, args.method), {})
    for name, value in {**FIRST, **ONLY[args.task], **chosen}.items():
        given = getattr(args, name)
        run[name] = value if given is None else given
    if args.task == "likelihood" and args.method == "pcd":
        run.pop("capacity")
    return {**run, "seed": seed}


def main(args: argparse.Namespace) -> dict[str, Any]:
    if args.data not in TASKS[args.task]:
        raise SystemExit(f"--task {args.task} takes {', '.join(TASKS[args.task])}")
    do = {"jumps": jumps, "likelihood": likelihood}[args.task]

    def runs() -> Any:
        for seed in args.seed:
            run = settings(args, seed)
            yield run, functools.partial(do, run)

    return drive(args, runs, show)


def show(run: dict[str, Any]) -> None:
    """A line about a run."""
    line = f"{run['task']} {run['data']} {run['method']} seed {run['seed']}"
    if run["task"] == "jumps":
        one, other = run["gibbs"], run["tempered"]
        line += (
            f" jumps {one['jumps']} by Gibbs in {one['seconds']:.1f} s, {other['jumps']} by"
            f" {run['replicas']} replicas in {other['seconds']:.1f} s; shares {one['shares']},"
            f" {other['shares']}, of the data {run['shares_of_data']}"
        )
    else:
        line += (
            f" {run['updates']} updates, rate {run['rate']}, held out {run['held_out']:.2f} ±"
            f" {run['held_out_error']:.2f}, train {run['train']:.2f}, {run['seconds']:.0f} s"
        )
    print(f"{line}; log Z {run['log_z']:.2f} and in reverse {run['log_z_reverse']:.2f}", flush=True)
