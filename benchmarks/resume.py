"""Kills runs of `fit` at random moments with SIGKILL, resumes them, and compares every bit."""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np


SCRIPT = """
import sys
import jax, numpy as np, optax
import ebmlearn as ebm
from ebmlearn import datasets
v = datasets.digits().train.x
x = datasets.flip(v, 0.1, key=jax.random.key(2))
fitted = ebm.fit(
    ebm.CRBM.init(64, 32, 64, key=jax.random.key(0)), ebm.CD(1, start="random"), (x, v),
    optimizer=optax.adam(0.01), epochs=60, batch_size=50, key=jax.random.key(1), progress=False,
    checkpoint=ebm.Checkpoint(sys.argv[1], every=5), validation=(x[:50], v[:50]), average=0.9,
)
ebm.save(sys.argv[2], (fitted.model, fitted.last))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)


def main(args: argparse.Namespace) -> dict[str, Any]:
    rng = np.random.default_rng(args.seed)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def start(name: str) -> subprocess.Popen:
            paths = [str(folder / name), str(folder / f"{name}.ebm")]
            return subprocess.Popen([sys.executable, "-c", SCRIPT, *paths])

        def first(name: str, process: subprocess.Popen) -> None:
            """Waits for the first checkpoint, so that it is training that is disturbed."""
            while process.poll() is None and not list((folder / name).glob("step-*")):
                time.sleep(0.005)

        process = start("whole")
        first("whole", process)
        began = time.monotonic()
        if process.wait() != 0:
            raise RuntimeError("The undisturbed run failed.")
        whole = (folder / "whole.ebm").read_bytes()
        length = time.monotonic() - began
        k = -1
        while len(rows) < args.runs:
            k += 1
            process = start(f"run{k}")
            first(f"run{k}", process)
            after = float(rng.uniform(0, 1)) * length
            try:
                process.wait(after)
                continue  # it was done before it could be killed
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
            found = sorted((folder / f"run{k}").glob("step-*"))
            step = int(found[-1].stem.split("-")[1]) if found else 0
            status = start(f"run{k}").wait()
            same = status == 0 and (folder / f"run{k}.ebm").read_bytes() == whole
            rows.append({"seconds": after, "from_step": step, "same": same})
            print(f"killed after {after:.2f} s, went on from step {step}, same: {same}", flush=True)
    print(f"{sum(row['same'] for row in rows)} of {len(rows)} runs ended bit by bit as undisturbed")
    return {"rows": rows}
