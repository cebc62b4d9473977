"""Perturb-and-max-product: Lázaro-Gredilla, Dedieu & George 2021, section 5.

`--task toy` learns four spins, `logz` bounds log Z, `zeros` trains Ising models of the contours of
MNIST's zeros, `lattice` and `erdos` those of samples of known ones, `rbm` restricted Boltzmann
machines of MNIST, `hidden` small ones of 8×8 digits in several variants, `deconvolution` takes
images apart, and `speed` times the samplers alone. Finished runs are kept in the result file and
not done again; a run that `--seconds` cuts short goes on from its checkpoint.
"""

import argparse
import dataclasses
import functools
import itertools
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import datasets

from . import _slices, _twins
from ._ising import (
    chains,
    exchanged,
    free_spins,
    log_partition_of_torus,
    random_graph,
    spins,
    torus,
)
from ._slices import Deadline, drive


SWEEPS = (5, 10, 25, 50, 100)
BATCH = 100


def toy(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict:
    """Learns θ of four spins, all joined, from all that there is to know of those of θ = 0.5."""
    states = np.array(list(itertools.product((0, 1), repeat=4)))
    pairs = ((2 * states - 1).sum(1) ** 2 - 4) / 2

    def gibbs(theta: float) -> np.ndarray:
        p = np.exp(theta * pairs)
        return p / p.sum()

    def build(theta: jax.Array) -> ebm.BoltzmannMachine:
        couplings = theta * (1 - jnp.eye(4))
        return ebm.BoltzmannMachine.from_spins(couplings, jnp.zeros(4))

    true = gibbs(0.5)
    # Each configuration as often as it is likely.
    rows = np.repeat(states, np.round(10_000 * true).astype(int), axis=0)
    one, two = jax.random.split(jax.random.key(run["seed"]))
    fitted = ebm.fit(
        jnp.zeros(()),
        ebm.PMPLearner(ebm.PMP(100), num_chains=100),
        rows,
        build=build,
        optimizer=optax.adam(0.01),
        epochs=run["updates"],
        batch_size=len(rows),
        key=one,
        progress=False,
    )
    theta = float(fitted.parameters)
    out = {**run, "theta": theta, "kl_to_gibbs": float((true * np.log(true / gibbs(0.331))).sum())}
    for name, value in (("learned", theta), ("published", 0.331)):
        drawn = ebm.sample(build(jnp.asarray(value)), ebm.PMP(100), run["samples"], key=two)
        x = np.asarray(drawn.x)
        share = np.bincount(x @ [8, 4, 2, 1], minlength=16) / len(x)
        out[f"kl_{name}"] = float((true * np.log(true / share)).sum())
        out[f"means_{name}"] = [round(float(m), 4) for m in x.mean(0)]
    return out


def logz(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict:
    """Bounds of log Z by max-product and by MPLP on the same perturbations, less the truth."""
    size, key = run["size"], jax.random.key(run["seed"])
    if run["method"] == "lattice":
        models = [spins(torus(size, 0.1))]
        truth = [log_partition_of_torus(size, 0.1) + exchanged(models[0])]
    else:
        rng = np.random.default_rng(run["seed"])
        models, truth = [], []
        for _ in range(run["models"]):
            upper = np.triu(rng.uniform(-2, 2, (size, size)), 1)
            field = rng.uniform(-0.1, 0.1, size).astype(np.float32)
            models.append(spins((upper + upper.T).astype(np.float32), field))
            truth.append(float(ebm.Exact()(models[-1]).log_partition))
    solvers = {"pmp": ebm.PMP(200), "mplp": ebm.MPLP(2000)}
    if run["method"] != "lattice":
        solvers["exact"] = ebm.Exact(product="max")
    errors, errors_of_mean, seconds = {}, {}, {}
    for name, solver in solvers.items():
        bounds = []
        for number, model in enumerate(models):
            own = jax.random.fold_in(key, number)
            bound = ebm.pmp_bound(model, key=own, num_samples=run["samples"], solver=solver)
            bounds.append(bound)
        errors[name] = [float(b.log_partition) - t for b, t in zip(bounds, truth, strict=True)]
        errors_of_mean[name] = [float(b.standard_error) for b in bounds]
        seconds[name] = _clock(
            lambda key, solver=solver: (
                ebm.pmp_bound(models[0], key=key, num_samples=run["samples"], solver=solver).values
            )
        )
    return {
        **run,
        "log_z": [round(t, 4) for t in truth],
        "error": {k: [round(e, 4) for e in x] for k, x in errors.items()},
        "standard_error": {k: [round(e, 4) for e in x] for k, x in errors_of_mean.items()},
        "seconds": seconds,
    }


def learner(method: str, sweeps: int, units: int, num_chains: int) -> ebm.learners.AbstractLearner:
    """A way to train a model without hidden units; a sweep of GWG is a flip for each unit."""
    name, _, kind = method.partition("-")
    if name == "pmp":
        renewal = float(kind) if kind else 1.0
        return ebm.PMPLearner(ebm.PMP(sweeps, renewal=renewal), num_chains=num_chains)
    persistent = kind != "reset"
    if name == "gibbs":
        return ebm.SAP(ebm.Gibbs(), num_chains=num_chains, steps=sweeps, persistent=persistent)
    flips = ebm.GibbsWithGradients(units)
    return ebm.SAP(flips, num_chains=num_chains, steps=sweeps, persistent=persistent)


def draw(method: str, model: Any, sweeps: int, number: int, key: jax.Array) -> Any:
    """Samples by so many sweeps of the sampler that a model was trained with."""
    if method.startswith("pmp"):
        return ebm.sample(model, ebm.PMP(sweeps), number, key=key)
    sampler = ebm.Gibbs()
    if method.startswith("gwg"):
        sampler = ebm.GibbsWithGradients(len(model.bias))
    return ebm.sample(model, sampler, number, key=key, num_chains=number, burn_in=sweeps - 1)


def discrepancy(x: Any, y: Any) -> float:
    """The logarithm of the squared maximum mean discrepancy."""
    with jax.default_matmul_precision("highest"):
        return float(jnp.log(ebm.estimate.mmd(x, y)))


def ising(
    run: dict[str, Any],
    train: np.ndarray,
    rate: float,
    num_chains: int,
    work: Path | None,
    deadline: Deadline,
) -> Any:
    """Trains a fully connected Ising model, in the parameters of spins."""
    units = train.shape[1]
    build, free = free_spins(units)
    return ebm.fit(
        free,
        learner(run["method"], run["sweeps"], units, num_chains),
        train.astype(np.uint8),
        build=build,
        optimizer=optax.adam(rate),
        epochs=-(-run["updates"] // (len(train) // BATCH)),
        batch_size=BATCH,
        key=jax.random.key(run["seed"]),
        **deadline.options(work),
    )


def zeros(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict | None:
    """An Ising model of 30×30 pixels."""
    data = datasets.mnist_zeros()
    train = data.train.x[: run["rows"]]
    if run["method"] in _twins.METHODS:
        # A folder for checkpoints keeps both models: the second is done when the first is.
        file = None if work is None else work.with_name(work.name.replace("-reset", "") + ".npz")
        both = _twins.trained(run, train, 0.001, 100, BATCH, file, deadline)
        if both is None:
            return None
        model, done = both[run["method"]]
    else:
        fitted = ising(run, train, 0.001, 100, work, deadline)
        if fitted.stopped == "callback" and deadline.over:
            return None
        model, done = fitted.last, len(fitted.history.steps["gap"])
    key = jax.random.key(run["seed"] + 1)
    number = run["samples"]
    curve, pictures = {}, None
    for sweeps in run["sampling"]:
        x = draw(run["method"], model, sweeps, number, key).x
        curve[sweeps] = discrepancy(x, data.test.x)
        if sweeps == 50:
            pictures = packed(x[:20])
    return {
        **run,
        "updates_done": done,
        "log_mmd": curve,
        "log_mmd_of_data": discrepancy(data.train.x[: len(data.test.x)], data.test.x),
        "pictures": pictures,
    }


def known(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict | None:
    """An Ising model of samples of a known one: `lattice` or `erdos`."""
    if run["task"] == "lattice":
        couplings, rate = torus(run["size"], -0.1), 0.001
    else:
        couplings, rate = random_graph(run["size"], 4, 0.5, seed=run["seed"]), 0.01
    true = spins(couplings)
    one, two, three = jax.random.split(jax.random.key(run["seed"]), 3)
    train, test = (chains(true, 2000, run["mixing"], k) for k in (one, two))
    fitted = ising(run, np.asarray(train), rate, 20, work, deadline)
    if fitted.stopped == "callback" and deadline.over:
        return None
    found, _ = fitted.last.to_spins()
    curve = {
        sweeps: discrepancy(draw(run["method"], fitted.last, sweeps, 2000, three).x, test)
        for sweeps in run["sampling"]
    }
    return {
        **run,
        "updates_done": len(fitted.history.steps["gap"]),
        "log_mmd": curve,
        "log_mmd_of_data": discrepancy(train, test),
        "rmse": float(jnp.sqrt(((found - couplings) ** 2).mean())),
    }


def rbm(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict | None:
    """A restricted Boltzmann machine of MNIST, by the initialisation and rate of the paper."""
    data = datasets.mnist()
    hidden, method, sweeps = run["hidden"], run["method"], run["sweeps"]
    one, two, three, four, five = jax.random.split(jax.random.key(run["seed"]), 5)
    start = ebm.RBM.init(784, hidden, key=one)
    biases = jax.random.normal(two, (784,)), jax.random.normal(three, (hidden,))
    learners: dict[str, Callable[[], ebm.learners.AbstractLearner]] = {
        "pmp": lambda: ebm.PMPLearner(ebm.PMP(sweeps)),
        "gibbs-reset": lambda: ebm.SAP(num_chains=BATCH, steps=sweeps, persistent=False),
        "pcd-1": lambda: ebm.SAP(num_chains=BATCH),
        "pcd-100": lambda: ebm.SAP(num_chains=BATCH, steps=sweeps),
    }
    fitted = ebm.fit(
        ebm.RBM(start.weights, *biases),
        learners[method](),
        data.train.x[: run["rows"]],
        optimizer=optax.sgd(0.01),
        epochs=run["epochs"],
        batch_size=BATCH,
        key=four,
        **deadline.options(work),
    )
    if fitted.stopped == "callback" and deadline.over:
        return None
    curve, pictures = {}, None
    for number in run["sampling"]:
        x = draw(method, fitted.last, number, run["samples"], five).visible
        curve[number] = discrepancy(x, data.test.x)
        if number == 100:
            pictures = packed(x[:40])
    valid = discrepancy(data.valid.x, data.test.x)
    return {**run, "log_mmd": curve, "log_mmd_of_data": valid, "pictures": pictures}


def hidden(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict | None:
    """Variants of PMP on a small RBM of 8×8 digits: hidden units sampled or as probabilities, and
    noise and messages that persist.
    """
    data = datasets.digits()
    kind, renewal = run["method"].split("-")
    key = jax.random.split(jax.random.key(run["seed"]), 3)
    sampler = ebm.PMP(run["sweeps"], renewal=float(renewal))
    fitted = ebm.fit(
        ebm.RBM.init(64, run["hidden"], key=key[0]),
        ebm.PMPLearner(sampler, num_chains=BATCH, hidden=kind),  # pyright: ignore
        data.train.x,
        optimizer=optax.adam(0.003),
        epochs=run["epochs"],
        batch_size=BATCH,
        key=key[1],
        progress=False,
    )
    curve = {}
    for sweeps in run["sampling"]:
        x = ebm.sample(fitted.last, ebm.PMP(sweeps), run["samples"], key=key[2]).visible
        curve[sweeps] = discrepancy(x, data.valid.x)
    other = discrepancy(data.train.x, data.valid.x)
    return {**run, "log_mmd": curve, "log_mmd_of_data": other}


def deconvolution(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict:
    """Posterior samples of features and locations given images, by one run of max-product or, with
    "turns", by several that hold features.
    """
    from ._deconvolution import built, in_turns, recovered, sampled

    data = datasets.binary_convolution(
        run["images"], size=run["size"], seed=run["data"], density=run["density"]
    )
    began = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    problem = built(data.images, run["features"], run["side"], *run["log_odds"])
    building = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sampler = ebm.PMP(run["sweeps"], damping=run["damping"])
    if run["method"] == "turns":
        sampler = in_turns(problem, run["sweeps"], run["damping"])
    best = sampled(problem, sampler, run["samples"], run["seed"])
    seconds = time.monotonic() - began - building
    # The run on all variables alone, of the same noise.
    first = best
    if run["method"] == "turns":
        plain = dataclasses.replace(sampler, turns=[])
        first = sampled(problem, plain, run["samples"], run["seed"])
    features, locations, energy, residual = best
    pairs = zip(features, locations, strict=True)
    made = np.stack([datasets.convolved(*pair, run["size"]) for pair in pairs])
    overlap = [recovered(x, data.features) for x in features]
    return {
        **run,
        "overlap": [[round(x, 3) for x in row] for row in overlap],
        "recovered": [all(x >= 0.9 for x in row) for row in overlap],
        "recovered_first": [min(recovered(x, data.features)) >= 0.9 for x in first.features],
        "energy": [float(x) for x in energy],
        "energy_first": [float(x) for x in first.energy],
        "explained": [round(float(x), 5) for x in (made == data.images).mean((1, 2, 3))],
        "placed": [int(x) for x in locations.sum((1, 2, 3, 4))],
        "placed_in_truth": int(data.locations.sum()),
        "residual": [round(float(x), 4) for x in residual],
        "pictures": [packed(x) for x in features],
        "images_drawn": packed(data.images[:10]),
        "true_features": packed(data.features),
        "variables": problem.model.num_variables,
        "seconds_to_build": building,
        "mib_to_build": (peak - before) / 1024,
        "seconds": seconds,
    }


def speed(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict:
    """Times of the samplers on their own: 100 samples of 100 sweeps of an RBM with 500 hidden
    units, and of 50 sweeps of an Ising model of 900 units, in milliseconds.
    """
    one, two = jax.random.split(jax.random.key(0))
    machine = ebm.RBM.init(784, run["hidden"], key=one, scale=0.1)
    ising = ebm.BoltzmannMachine.init(run["size"], key=two, scale=0.1)
    if run["method"] == "rbm":
        samplers = {
            "pmp": (ebm.PMP(100), 1),
            "pmp, chunks of 10": (ebm.PMP(100, chunk=10), 1),
            "gibbs": (ebm.Gibbs(), 100),
        }
        model = machine
    else:
        flips = ebm.GibbsWithGradients(run["size"])
        samplers = {"pmp": (ebm.PMP(50), 1), "gibbs": (ebm.Gibbs(), 50), "gwg": (flips, 50)}
        model = ising
    times = {}
    for name, (sampler, steps) in samplers.items():
        drawn = jax.jit(
            lambda key, sampler=sampler, steps=steps: ebm.sample(
                model, sampler, 100, key=key, num_chains=100, burn_in=steps - 1
            )
        )
        times[name] = 1000 * _clock(drawn)
    return {**run, "milliseconds": times}


def packed(x: Any) -> list[str]:
    """Binary images as text."""
    return [np.packbits(np.asarray(row).reshape(-1).astype(np.uint8)).tobytes().hex() for row in x]


def _clock(function: Callable[[jax.Array], Any], repeats: int = 5) -> float:
    """The median of times in seconds, the first call left out."""
    times = []
    for k in range(repeats + 1):
        began = time.perf_counter()
        jax.block_until_ready(function(jax.random.key(k)))
        times.append(time.perf_counter() - began)
    return float(np.median(times[1:]))


TASKS = {
    "toy": toy,
    "logz": logz,
    "zeros": zeros,
    "lattice": known,
    "erdos": known,
    "rbm": rbm,
    "hidden": hidden,
    "deconvolution": deconvolution,
    "speed": speed,
}
METHODS = {
    "toy": ("pmp",),
    "logz": ("lattice", "full"),
    "zeros": ("pmp", "gibbs", "gibbs-reset", "gwg", "gwg-reset"),
    "lattice": ("pmp", "pmp-0.1", "gibbs", "gibbs-reset", "gwg-reset"),
    "erdos": ("pmp", "pmp-0.1", "gibbs", "gibbs-reset", "gwg-reset"),
    "rbm": ("pmp", "pcd-1", "pcd-100", "gibbs-reset"),
    "hidden": ("exact-1", "sampled-1", "exact-0.1"),
    "deconvolution": ("pmp", "turns"),
    "speed": ("rbm", "ising"),
}


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """What a task needs to be told, the paper's numbers unless others are asked for."""
    sweeps, sampling = args.sweeps, args.sampling or list(SWEEPS)
    known = {
        "sweeps": sweeps or 50,
        "updates": args.updates or 1000,
        "sampling": sampling,
        "mixing": args.mixing or 2000,
    }
    return {
        "toy": lambda: {"updates": args.updates or 200, "samples": args.samples or 100_000},
        "logz": lambda: {
            "size": args.size or 5,
            "models": args.models or 100,
            "samples": args.samples or 100,
        },
        "zeros": lambda: {
            "sweeps": sweeps or 50,
            "updates": args.updates or 1000,
            "sampling": sampling,
            "samples": args.samples or 1000,
            "rows": args.rows,
        },
        "lattice": lambda: {"size": args.size or 25, **known},
        "erdos": lambda: {"size": args.size or 200, **known},
        "rbm": lambda: {
            "hidden": args.hidden or 500,
            "sweeps": sweeps or 100,
            "epochs": args.epochs or 50,
            "sampling": [*sampling, 200] if args.sampling is None else sampling,
            "samples": args.samples or 10_000,
            "rows": args.rows,
        },
        "hidden": lambda: {
            "hidden": args.hidden or 50,
            "sweeps": sweeps or 50,
            "epochs": args.epochs or 100,
            "sampling": sampling,
            "samples": args.samples or 2000,
        },
        "deconvolution": lambda: {
            "images": args.images or 100,
            "size": args.size or 14,
            "features": 5,
            "side": 6,
            "sweeps": sweeps or 1000,
            "samples": args.samples or 10,
            "density": args.density,
            "damping": args.damping,
            "log_odds": args.log_odds,
            "data": args.data,
        },
        "speed": lambda: {"hidden": args.hidden or 500, "size": args.size or 900},
    }[args.task]()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", choices=tuple(TASKS), default="toy")
    parser.add_argument("--method", nargs="+", default=["all"])
    parser.add_argument("--sweeps", type=int, help="sweeps in training, or of a posterior sample")
    parser.add_argument("--sampling", nargs="+", type=int, help="sweeps when sampling")
    for name in ("updates", "epochs", "samples", "size", "hidden", "models", "mixing"):
        parser.add_argument(f"--{name}", type=int, help="the paper's, or ours, by default")
    parser.add_argument("--rows", type=int, help="use only so many rows")
    parser.add_argument("--images", type=int, help="of the deconvolution")
    parser.add_argument("--data", type=int, default=0, help="seed of the images to deconvolve")
    parser.add_argument(
        "--log-odds",
        nargs=3,
        type=float,
        default=[-1.1, -400.0, 300.0],
        help="of a pixel of a feature, of a location, and that a pixel is as it was seen",
    )
    parser.add_argument("--density", type=float, default=0.01, help="of features in images")
    parser.add_argument(
        "--damping",
        type=float,
        default=0.3,
        help="of the deconvolution",
    )
    parser.add_argument("--seed", type=int, default=0)
    _slices.add_arguments(parser)


def main(args: argparse.Namespace) -> dict[str, Any]:
    def runs() -> Any:
        known = METHODS[args.task]
        for method in known if "all" in args.method else args.method:
            if method not in known:
                raise SystemExit(f"{args.task} knows {', '.join(known)}, not {method}")
            run = {"task": args.task, "method": method, **settings(args), "seed": args.seed}
            yield run, functools.partial(TASKS[args.task], run)

    return drive(args, runs, show)


def show(run: dict[str, Any]) -> None:
    """A line about a run."""
    kept = ("theta", "kl_learned", "log_mmd", "rmse", "recovered", "milliseconds", "seconds")
    print(run["task"], run["method"], {k: run[k] for k in kept if k in run}, flush=True)
