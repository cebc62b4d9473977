"""How long the chains of `log_partition` remember where they started."""

import argparse
import time
from typing import Any

import jax
import numpy as np

import ebmlearn as ebm
from ebmlearn._watch import Watch
from ebmlearn.estimate._log_partition import _Run
from ebmlearn.estimate._path import CALL


# Calls that make up a row.
TOGETHER = 4


def remembered(args: argparse.Namespace) -> dict[str, Any]:
    """Estimates log Z from every few calls alone, and from the second half of all calls."""
    if args.calls % (2 * TOGETHER):
        raise SystemExit(f"--calls must be a multiple of {2 * TOGETHER}, got {args.calls}")
    model = ebm.load(args.model)
    rows = []
    for k in range(args.repeats):
        began = time.perf_counter()
        one, two = jax.random.split(jax.random.key(args.seed + k))
        run = _Run(model, None, args.chains, one, Watch("logz", args.calls))
        run.extend(args.calls, two)
        firsts = range(0, args.calls, TOGETHER)
        each = [run.bennett(first, first + TOGETHER) for first in firsts]
        late = run.bennett(args.calls // 2, args.calls)
        trips = np.cumsum([float(found.trips) for found in run.found])
        rows.append(
            {
                "trips": trips[TOGETHER - 1 :: TOGETHER].tolist(),
                "log_z": [found.log_partition for found in each],
                "standard_errors": [found.standard_error for found in each],
                "late": late.log_partition,
                "late_standard_error": late.standard_error,
                "places": len(run.places),
                "seconds": time.perf_counter() - began,
            }
        )
        print(rows[-1], flush=True)
    return {"shape": list(model.weights.shape), "steps": TOGETHER * CALL, "rows": rows}
