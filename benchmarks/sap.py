"""Stochastic approximation with and without tempered transitions: Salakhutdinov 2009, section 5.

`--task toy` trains RBMs of 784×10 units, whose likelihood is exact, by five methods of equally many
Gibbs steps, in whole epochs. `--task semi-restricted` trains semi-restricted Boltzmann machines of
MNIST with 500 hidden units and labels by SAP and Trans-SAP. `--task modes` trains RBMs of 784×12
units of data whose modes are far apart, with several learning rates and numbers of chains. Finished
runs are kept in the result file and not done again; a run that `--seconds` cuts short goes on from
its checkpoint.
"""

import argparse
import functools
import itertools
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import datasets

from . import _sap_modes, _slices
from ._slices import Deadline, drive


PUBLISHED = {"sap": -87.12, "trans-sap": -85.91}  # Nats per test image, semi-restricted.
METHODS = ("exact", "sap", "trans-sap", "pseudo-likelihood", "mcmc-mle")
BATCH = 100
CHAINS = 100


def images(*splits: datasets.Split) -> tuple[jax.Array, jax.Array]:
    """Grey levels, 0 to 255, and labels."""
    x = np.concatenate([split.x for split in splits])
    y = np.concatenate([split.y for split in splits if split.y is not None])
    return jnp.asarray(x), jnp.asarray(y, jnp.int32)


def drawn(grey: jax.Array, *, key: jax.Array) -> jax.Array:
    """Images whose pixels are 1 with the probability that their grey level is."""
    return jax.random.bernoulli(key, grey.astype(jnp.float32) / 255).astype(jnp.uint8)


def both_ways(
    model: Any, data: jax.Array, key: jax.Array, betas: int, chains: int, warm: int
) -> tuple[dict[str, float], Any]:
    """Log Z by annealing forward and in reverse, the latter from the end of parallel tempering of
    `warm` steps: as far as that has come to the model, it bounds log Z from above.
    """
    one, two, three = jax.random.split(key, 3)
    base = ebm.estimate.base_rate(data)
    forward = ebm.ais(model, key=one, betas=betas, num_chains=chains, base=base)
    ladder = ebm.ParallelTempering(np.linspace(0.05, 1, 20))
    start = ebm.sample(model, ladder, chains, key=two, num_chains=chains, burn_in=warm)
    back = ebm.reverse_ais(model, start, key=three, betas=betas, base=base)
    return {
        "log_z": float(forward.log_partition),
        "log_z_error": float(forward.standard_error),
        "log_z_reverse": float(back.log_partition),
        "log_z_reverse_error": float(back.standard_error),
        "effective_chains": float(forward.effective_chains),
    }, start


def toy_learner(method: str, updates: int) -> ebm.learners.AbstractLearner:
    """A method of the toy experiment: the schedule of the paper, in proportion to `updates`."""
    betas = np.linspace(0.9, 1, 51)
    refresh = max(1, updates // 100)
    return {
        "exact": lambda: ebm.MLE(ebm.Exact()),
        "sap": lambda: ebm.SAP(num_chains=CHAINS),
        "trans-sap": lambda: ebm.TransSAP(betas, every=200, begin=updates // 2, num_chains=CHAINS),
        "pseudo-likelihood": lambda: ebm.PseudoLikelihood(),
        "mcmc-mle": lambda: ebm.MCMCMLE(num_chains=CHAINS, steps=refresh, refresh=refresh),
    }[method]()


def toy_updates(method: str, updates: int, equal: str | None) -> int:
    """A tempered run of 50 intervals, after each 200 updates of the second half, costs 100 Gibbs
    steps, during which nothing is updated: at equal steps there are fewer updates.
    """
    fewer = method == "trans-sap" and equal != "updates"
    return updates // 2 + updates // 2 * 2 // 3 if fewer else updates


def toy(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict | None:
    """Trains an RBM whose partition function is a sum over its few hidden units."""
    data = datasets.mnist(threshold=None)
    keys = jax.random.split(jax.random.key(run["seed"]), 5)
    train = drawn(images(data.train, data.valid)[0][: run["rows"]], key=keys[0])
    test = drawn(images(data.test)[0][: run["rows"]], key=keys[1])
    updates, method = run["updates"], run["method"]
    rbm = ebm.RBM.init(784, run["hidden"], key=keys[2])
    rbm = ebm.RBM(rbm.weights, ebm.estimate.base_rate(train), rbm.hidden_bias)

    @jax.jit
    def negative_log_probability(model: ebm.RBM, rows: jax.Array) -> jax.Array:
        log_z = ebm.Exact()(model).log_partition
        return -ebm.log_likelihood(model, rows, log_z).mean()

    schedule = ebm.learners.robbins_monro(0.01, hold=updates // 10, a=10, b=1000)
    began = time.monotonic()
    fitted = ebm.fit(
        rbm,
        toy_learner(method, updates),
        train,
        optimizer=optax.sgd(schedule),
        epochs=-(-toy_updates(method, updates, run.get("equal")) // (len(train) // BATCH)),
        batch_size=BATCH,
        validation=ebm.Validation(
            train, lambda model, rows, epoch: negative_log_probability(model, rows)
        ),
        key=keys[3],
        **deadline.options(work),
    )
    history = fitted.history
    if fitted.stopped == "callback" and deadline.over:
        return None
    curve = -np.asarray(history.epochs["metric"])
    accepted = np.asarray(history.epochs["accepted"]) if "accepted" in history.epochs else []
    seconds = time.monotonic() - began
    log_z, _ = both_ways(fitted.last, train, keys[4], run["annealing"], 500, run["annealing"] // 5)
    return {
        **run,
        **log_z,
        "log_z_exact": float(ebm.Exact()(fitted.last).log_partition),
        "updates_done": len(history.steps["loss"]),
        "train_log_probability": float(-negative_log_probability(fitted.last, train)),
        "test_log_probability": float(-negative_log_probability(fitted.last, test)),
        "curve": [round(float(x), 3) for x in curve],
        "accepted": [round(float(x), 4) for x in accepted],
        "singular_values": [
            round(float(x), 3) for x in ebm.samplers.singular_values(fitted.last)[0]
        ],
        "seconds": seconds,
    }


def semi_restricted(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict | None:
    """Trains a model of images and labels, whose visible units are all joined to each other."""
    data = datasets.mnist(threshold=None)
    keys = jax.random.split(jax.random.key(run["seed"]), 7)
    rows = slice(run["rows"])
    grey, labels = (x[rows] for x in images(data.train, data.valid))
    test_grey, test_labels = (x[rows] for x in images(data.test))
    test = drawn(test_grey, key=keys[0])
    updates, method = run["updates"], run["method"]
    if method not in ("sap", "trans-sap"):
        raise SystemExit(f"semi-restricted is trained by sap and trans-sap, not by {method}")
    model = ebm.SemiRestrictedBM.init(784, run["hidden"], 10, key=keys[1])
    base = ebm.estimate.base_rate(drawn(grey, key=keys[2]))
    model = model.with_unary((base, *model.unary()[1:]))
    # The paper's: 500 intervals every 1000 updates of the second half, of 200,000 Gibbs steps.
    intervals = max(1, updates // 400)
    begin, every = updates // 2, 2 * intervals
    if method == "sap":
        learner, total = ebm.SAP(num_chains=CHAINS), updates
    else:
        betas = np.linspace(0.9, 1, intervals + 1)
        learner = ebm.TransSAP(betas, every=every, begin=begin, num_chains=CHAINS)
        total = begin + (updates - begin) // 2

    def error(model: Any) -> float:
        found = jnp.concatenate(
            [ebm.classify(model, part).argmax(-1) for part in jnp.array_split(test, 10)]
        )
        return 100 * float((found != test_labels).mean())

    began = time.monotonic()
    schedule = ebm.learners.robbins_monro(0.05, hold=updates // 4, a=100, b=2000)
    fitted = ebm.fit(
        model,
        learner,
        (grey, labels),
        optimizer=optax.sgd(schedule),
        epochs=-(-total // (len(grey) // BATCH)),
        batch_size=BATCH,
        augment=lambda batch, key: (drawn(batch[0], key=key), batch[1]),
        key=keys[3],
        **deadline.options(work),
    )
    if fitted.stopped == "callback" and deadline.over:
        return None
    seconds = time.monotonic() - began
    annealing = run["annealing"]
    sample = drawn(grey, key=keys[2])
    log_z, particles = both_ways(fitted.last, sample, keys[4], annealing, 200, annealing // 5)
    log_p = ebm.log_likelihood(fitted.last, test, log_z["log_z"])
    joint = ebm.log_likelihood(fitted.last, (test, test_labels), log_z["log_z"])
    # What a tempered run does to particles that Gibbs has left where they are.
    start = jax.tree.map(lambda x: x[:CHAINS], particles)
    gibbs = ebm.sample(
        fitted.last, ebm.Gibbs(), CHAINS, key=keys[5], num_chains=CHAINS, burn_in=1000, start=start
    )
    ladder = ebm.TemperedTransitions(np.linspace(0.9, 1, intervals + 1))
    moved, info = ebm.sample_with_info(
        fitted.last, ladder, CHAINS, key=keys[6], num_chains=CHAINS, start=gibbs
    )
    pictures = [np.packbits(np.asarray(x.visible[:20]), axis=1) for x in (gibbs, moved)]
    accepted = np.asarray(fitted.history.epochs["accepted"])
    return {
        **run,
        **log_z,
        "updates_done": len(fitted.history.steps["gap"]),
        "test_error": error(fitted.last),
        "test_log_probability": float(log_p.mean()),
        "joint_log_probability": float(joint.mean()),
        "accepted": float(np.nanmean(accepted)) if np.isfinite(accepted).any() else None,
        "accepted_after": float(info.accepted.mean()),
        "particles": [[row.tobytes().hex() for row in picture] for picture in pictures],
        "seconds": seconds,
    }


TASKS = {"toy": toy, "semi-restricted": semi_restricted, "modes": _sap_modes.modes}
# Gibbs steps, hidden units, temperatures of AIS.
DEFAULTS = {
    "toy": (100_000, 10, 10_000),
    "semi-restricted": (200_000, 500, 40_000),
    "modes": (20_000, 12, 0),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", choices=tuple(TASKS), default="toy")
    known = dict.fromkeys((*METHODS, *_sap_modes.METHODS, "all"))
    parser.add_argument("--method", nargs="+", choices=known, default=["all"])
    parser.add_argument("--updates", type=int, help="how many Gibbs steps; the paper's by default")
    parser.add_argument("--hidden", type=int, help="units; the paper's by default")
    parser.add_argument("--annealing", type=int, help="temperatures of AIS")
    parser.add_argument("--rows", type=int, help="use only so many rows")
    parser.add_argument(
        "--equal",
        choices=("steps", "updates"),
        default="steps",
        help="toy: whether tempered runs cost updates",
    )
    parser.add_argument("--data", choices=_sap_modes.DATA, default="zero-one", help="modes")
    parser.add_argument("--chains", type=int, nargs="+", default=_sap_modes.CHAINS, help="modes")
    parser.add_argument("--rates", type=float, nargs="+", default=_sap_modes.RATES, help="modes")
    parser.add_argument("--seeds", type=int, nargs="+", default=_sap_modes.SEEDS, help="modes")
    parser.add_argument("--centred", action="store_true", help="modes: the centred gradient")
    parser.add_argument("--seed", type=int, default=0)
    _slices.add_arguments(parser)


def main(args: argparse.Namespace) -> dict[str, Any]:
    methods = {"toy": METHODS, "modes": _sap_modes.METHODS}.get(args.task, ("sap", "trans-sap"))
    updates, hidden, annealing = DEFAULTS[args.task]

    def grid(method: str) -> Any:
        """Runs of the task `modes`, of which those of all rates and seeds are done at once."""
        run = {"task": "modes", "data": args.data, "method": method}
        run |= {"updates": args.updates or updates, "hidden": args.hidden or hidden}
        run |= {"centred": args.centred, "rates": list(args.rates), "seeds": list(args.seeds)}
        for chains in args.chains if method != "exact" else (0,):
            for rate, seed in itertools.product(args.rates, args.seeds):
                own = {**run, "chains": chains, "rate": rate, "seed": seed}
                yield own, functools.partial(_sap_modes.modes, own)

    def runs() -> Any:
        for method in methods if "all" in args.method else args.method:
            if args.task == "modes":
                yield from grid(method)
                continue
            run = {
                "task": args.task,
                "method": method,
                "updates": args.updates or updates,
                "hidden": args.hidden or hidden,
                "annealing": args.annealing or annealing,
                "rows": args.rows,
                "seed": args.seed,
            }
            if args.equal == "updates":
                run["equal"] = "updates"
            yield run, functools.partial(TASKS[args.task], run)

    return drive(args, runs, show)


def show(run: dict[str, Any]) -> None:
    """A line about a run."""
    if run["task"] == "modes":
        centred = ", centred" if run["centred"] else ""
        print(
            f"{run['data']} {run['method']:13}{centred}, {run['chains']} chains, rate"
            f" {run['rate']}, seed {run['seed']}: test {run['test_log_probability']:.2f} nats,"
            f" train {run['train_log_probability']:.2f}, shares off by {run['share_error']:.3f},"
            f" {run['left']:.3f} leave, accepted {run['accepted']}, {run['seconds']:.0f} s",
            flush=True,
        )
        return
    print(
        f"{run['task']} {run['method']:18} test {run['test_log_probability']:.2f} nats after"
        f" {run['updates_done']:,} updates, log Z {run['log_z']:.2f} and in reverse"
        f" {run['log_z_reverse']:.2f}, {run['seconds']:.0f} s",
        flush=True,
    )
