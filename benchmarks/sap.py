"""Stochastic approximation with and without tempered transitions: Salakhutdinov 2009, section 5.

`--task toy` trains RBMs of 784×10 units, whose likelihood is exact, by five methods of equally many
Gibbs steps. Finished runs are kept in the result file and not done again; a run that `--seconds`
cuts short goes on from its checkpoint.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import datasets

from . import _report
from .crbm import Deadline, read


METHODS = ("exact", "sap", "trans-sap", "pseudo-likelihood", "mcmc-mle")
BATCH = 100
CHAINS = 100


def pixels(*splits: datasets.Split) -> jax.Array:
    """The grey levels of images as probabilities."""
    return jnp.asarray(np.concatenate([split.x for split in splits]) / 255, jnp.float32)


def drawn(grey: jax.Array, *, key: jax.Array) -> jax.Array:
    """Images whose pixels are 1 with the probability that their grey level is."""
    return jax.random.bernoulli(key, grey).astype(jnp.uint8)


def toy_learner(method: str, updates: int) -> ebm.AbstractLearner:
    """A method of the toy experiment: the schedule of the paper, in proportion to `updates`."""
    betas = np.linspace(0.9, 1, 51)
    refresh = max(1, updates // 100)
    return {
        "exact": lambda: ebm.MLE(ebm.Exact()),
        "sap": lambda: ebm.SAP(num_chains=CHAINS),
        "trans-sap": lambda: ebm.TransSAP(betas, 200, updates // 2, num_chains=CHAINS),
        "pseudo-likelihood": lambda: ebm.PseudoLikelihood(),
        "mcmc-mle": lambda: ebm.MCMCMLE(num_chains=CHAINS, steps=refresh, refresh=refresh),
    }[method]()


def toy_updates(method: str, updates: int) -> int:
    """A tempered run of 50 intervals, after each 200 updates of the second half, costs 100 Gibbs
    steps, during which nothing is updated.
    """
    return updates // 2 + updates // 2 * 2 // 3 if method == "trans-sap" else updates


def toy(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict | None:
    """Trains an RBM whose partition function is a sum over its few hidden units."""
    data = datasets.mnist(threshold=None)
    keys = jax.random.split(jax.random.key(run["seed"]), 4)
    train = drawn(pixels(data.train, data.valid)[: run["rows"]], key=keys[0])
    test = drawn(pixels(data.test)[: run["rows"]], key=keys[1])
    updates, method = run["updates"], run["method"]
    rbm = ebm.RBM.init(784, run["hidden"], key=keys[2])
    rbm = ebm.RBM(rbm.weights, ebm.base_rate(train), rbm.hidden_bias)

    @jax.jit
    def negative_log_probability(model: ebm.RBM, rows: jax.Array) -> jax.Array:
        log_z = ebm.Exact()(model).log_partition
        return -ebm.log_likelihood(model, rows, log_z).mean()

    schedule = ebm.robbins_monro(0.01, hold=updates // 10, a=10, b=1000)
    began = time.monotonic()
    fitted = ebm.fit(
        rbm,
        toy_learner(method, updates),
        train,
        optimizer=optax.sgd(schedule),
        epochs=-(-toy_updates(method, updates) // (len(train) // BATCH)),
        batch_size=BATCH,
        validation=train,
        metric=lambda model, rows, epoch: negative_log_probability(model, rows),
        checkpoint=None if work is None else ebm.Checkpoint(work, keep=1),
        callbacks=[deadline],
        key=keys[3],
        progress=False,
    )
    history = fitted.history
    if fitted.stopped == "callback" and deadline.over:
        return None
    curve = -np.asarray(history.epochs["metric"])
    accepted = np.asarray(history.epochs["accepted"]) if "accepted" in history.epochs else []
    return {
        **run,
        "updates_done": len(history.steps["loss"]),
        "train_log_probability": float(-negative_log_probability(fitted.last, train)),
        "test_log_probability": float(-negative_log_probability(fitted.last, test)),
        "curve": [round(float(x), 3) for x in curve],
        "accepted": [round(float(x), 4) for x in accepted],
        "singular_values": [round(float(x), 3) for x in ebm.singular_values(fitted.last)[0]],
        "seconds": time.monotonic() - began,
    }


TASKS = {"toy": toy}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", choices=tuple(TASKS), default="toy")
    parser.add_argument("--method", nargs="+", choices=(*METHODS, "all"), default=["all"])
    parser.add_argument("--updates", type=int, help="how many Gibbs steps; the paper's by default")
    parser.add_argument("--hidden", type=int, help="units; the paper's by default")
    parser.add_argument("--rows", type=int, help="use only so many rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="stop after so long")
    parser.add_argument("--work", type=Path, help="a folder for checkpoints")
    parser.add_argument("--merge", nargs="+", type=Path, help="only take the runs of other results")


def main(args: argparse.Namespace) -> dict[str, Any]:
    runs = read(args.json)
    if args.merge:
        for run in [run for path in args.merge for run in read(path)]:
            if run not in runs:
                runs.append(run)
        return {"runs": runs}
    deadline = Deadline(args.seconds or float("inf"))
    for method in METHODS if "all" in args.method else args.method:
        run = {
            "task": args.task,
            "method": method,
            "updates": args.updates or 100_000,
            "hidden": args.hidden or 10,
            "rows": args.rows,
            "seed": args.seed,
        }
        if any({k: done.get(k) for k in run} == run for done in runs):
            continue
        if deadline.over:
            break
        deadline.last, deadline.longest = time.monotonic(), 0.0
        work = None if args.work is None else args.work / "-".join(map(str, run.values()))
        result = TASKS[args.task](run, work, deadline)
        if result is None:
            print(f"{args.task} {method}: to be continued")
            break
        runs.append({**result, "environment": _report.environment()})
        print(
            f"{args.task} {method:18} train {result['train_log_probability']:.2f}"
            f" test {result['test_log_probability']:.2f} after {result['updates_done']:,} updates,"
            f" {result['seconds']:.0f} s",
            flush=True,
        )
        if args.json is not None:
            _report.write(args.json, {"command": "sap", "runs": runs})
    return {"runs": runs}
