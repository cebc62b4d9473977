"""Log Z with error bars against exact log Z, on trained RBMs.

RBMs of 20 hidden units are trained on binary 8×8 digits, each with its own seed, learning rate and
time. Their hidden units are enumerated for log Z. `--task time` instead compares `log_partition`
with annealing of 40,000 temperatures on an RBM of MNIST with 500 hidden units, which `equilibrium
--task likelihood --data mnist --work` saves: what they find, and how long they take once compiled.
`--task start` shows on that RBM how long chains remember where they started.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from scipy.special import stdtrit

import ebmlearn as ebm
from ebmlearn import datasets

from . import _logz_start, _logz_time


METHODS = ("bennett", "mbar", "ais", "reverse_ais")
HIDDEN = 20
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
EPOCHS = (3, 10, 30, 100)


def trained(number: int, seed: int) -> list[tuple[ebm.RBM, float, int]]:
    """The models, with the learning rate and the number of epochs of each."""
    data = datasets.digits().train.x
    rows = (np.asarray(data) > 0.5).astype(np.float32)
    out = []
    for epochs in EPOCHS:
        own = [seed + len(out) + k for k in range(number // len(EPOCHS))]
        rates = [RATES[k % len(RATES)] for k in range(len(own))]
        found = ebm.fit_many(
            [ebm.RBM.init(visible=rows.shape[1], hidden=HIDDEN, key=k) for k in own],
            ebm.SAP(num_chains=100),
            rows,
            optimizer=[optax.adam(rate) for rate in rates],
            key=own,
            epochs=epochs,
            batch_size=100,
            progress=False,
        )
        out += [(run.last, rate, epochs) for run, rate in zip(found, rates, strict=True)]
    return out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", choices=("coverage", "time", "start"), default="coverage")
    parser.add_argument("--model", type=Path, help="time, start: a file of an RBM of MNIST")
    parser.add_argument("--betas", type=int, default=40_000, help="time: of annealing")
    parser.add_argument("--chains", type=int, default=128, help="time, start: of `log_partition`")
    parser.add_argument("--repeats", type=int, default=3, help="time, start: runs")
    parser.add_argument("--calls", type=int, default=48, help="start: of 64 steps each")
    parser.add_argument("--models", type=int, default=100, help="how many RBMs")
    parser.add_argument("--within", type=float, default=0.1, help="half-width of the intervals")
    parser.add_argument("--seed", type=int, default=0)


def main(args: argparse.Namespace) -> dict[str, Any]:
    if args.task != "coverage":
        if args.model is None:
            raise SystemExit(f"--task {args.task} needs --model, which `equilibrium --work` saves")
        measure = {"time": _logz_time.compared, "start": _logz_start.remembered}[args.task]
        return measure(args)
    rows, chains = [], 0
    for k, (model, rate, epochs) in enumerate(trained(args.models, args.seed)):
        exact = float(ebm.Exact()(model).log_partition)
        start = time.perf_counter()
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            found = ebm.log_partition(
                model, key=jax.random.key(1000 + k), within=args.within, beside=False
            )
        row = {
            "rate": rate,
            "epochs": epochs,
            "exact": exact,
            "interval": found.interval,
            "disagree": found.disagree,
            "stopped": found.stopped,
            "steps": found.steps,
            "seconds": time.perf_counter() - start,
            "errors": {m: found.estimates[m].log_partition - exact for m in METHODS},
            "standard_errors": {m: found.estimates[m].standard_error for m in METHODS},
        }
        rows.append(row)
        chains = found.num_chains
        print(k, rate, epochs, *(f"{row['errors'][m]:+.3f}" for m in METHODS), flush=True)
    return {"rows": rows, "chains": chains, "summary": summary(rows, chains)}


def summary(rows: list[dict[str, Any]], chains: int) -> dict[str, Any]:
    """Errors of each method, and how many of its intervals contain the exact value."""
    width = float(stdtrit(chains - 1, 0.975))
    out: dict[str, Any] = {}
    for method in METHODS:
        errors = np.asarray([row["errors"][method] for row in rows])
        stated = np.asarray([row["standard_errors"][method] for row in rows])
        out[method] = {
            "mean": errors.mean(),
            "rms": float(np.sqrt((errors**2).mean())),
            "largest": np.abs(errors).max(),
            "stated": float(np.sqrt((stated**2).mean())),
            "covered": int((np.abs(errors) <= width * stated).sum()),
        }
        print(method, out[method])
    covered = [row["interval"][0] <= row["exact"] <= row["interval"][1] for row in rows]
    out["covered"] = sum(covered)
    print("intervals that contain log Z:", out["covered"], "of", len(rows))
    return out
