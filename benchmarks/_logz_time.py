"""How long log Z of a large RBM takes."""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import ebmlearn as ebm
from ebmlearn import datasets

from .sap import drawn, images


# Chains of annealing.
ANNEALED = (100, 500)


def compared(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds and errors of annealing and of `log_partition`, by turns, once each is compiled."""
    model = ebm.load(args.model)
    data = datasets.mnist(threshold=None)
    binary = drawn(images(data.train, data.valid)[0], key=jax.random.key(0))
    base = ebm.estimate.base_rate(binary)

    def annealed(chains: int) -> Callable[[jax.Array], dict[str, Any]]:
        def run(key: jax.Array) -> dict[str, Any]:
            found = ebm.ais(model, key=key, betas=args.betas, num_chains=chains, base=base)
            error = float(found.standard_error)
            return {"log_z": float(found.log_partition), "standard_error": error}

        return run

    def tempered(within: float) -> Callable[[jax.Array], dict[str, Any]]:
        def run(key: jax.Array) -> dict[str, Any]:
            options: dict[str, Any] = {"within": within, "num_chains": args.chains}
            found = ebm.log_partition(model, key=key, beside=False, **options)
            names = ("interval", "stopped", "disagree", "steps", "places", "trips", "num_chains")
            out = {name: getattr(found, name) for name in names}
            error = found.estimates["bennett"].standard_error
            return {"log_z": found.log_partition, "standard_error": error, **out}

        return run

    methods = {f"ais {chains}": annealed(chains) for chains in ANNEALED}
    methods |= {f"within {x}": tempered(x) for x in (args.within, 2 * args.within)}
    rows = []
    for k in range(-1, args.repeats):
        for name, method in methods.items():
            began = time.perf_counter()
            found = method(jax.random.key(100 + k))
            seconds = time.perf_counter() - began
            print(name, found, f"{seconds:.2f} s", "" if k >= 0 else "(compiled)", flush=True)
            if k >= 0:
                rows.append({"method": name, "seconds": seconds, **found})
    seconds = {
        name: float(np.median([row["seconds"] for row in rows if row["method"] == name]))
        for name in methods
    }
    return {"shape": list(model.weights.shape), "rows": rows, "seconds": seconds}
