"""Measures what `fit` compiles: seconds in XLA and the size of its program, beside a commit."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ._report import ROOT


SCRIPT = """
import json, sys, time
import jax, numpy as np, optax
import ebmlearn as ebm

seconds = []

def listen(event, duration, **_):
    if event.endswith("backend_compile_duration"):
        seconds.append(duration)

rng = np.random.default_rng(0)
x, v = rng.integers(0, 2, (2, 200, 64)).astype(np.float32)
model = ebm.CRBM.init(visible=64, hidden=32, features=64, key=jax.random.key(0))
learner = ebm.MLE(ebm.BP(iterations=10))
jax.monitoring.register_event_duration_secs_listener(listen)
began = time.perf_counter()
ebm.fit(model, learner, (x, v), optimizer=optax.adam(1e-2), epochs=1, batch_size=50,
        key=jax.random.key(1), progress=False)
whole = time.perf_counter() - began
print(json.dumps({"fit": whole, "compile": max(seconds), "all_compiles": sum(seconds)}))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--before", default="e27649a", help="the commit to compare with")
    parser.add_argument("--repeats", type=int, default=3)


def main(args: argparse.Namespace) -> dict[str, Any]:
    rows: dict[str, list[dict[str, float]]] = {args.before: [], "now": []}
    with tempfile.TemporaryDirectory() as name:
        archive = subprocess.run(
            ["git", "archive", args.before, "ebmlearn"], cwd=ROOT, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", name], input=archive.stdout, check=True)
        # In turns, so that whatever else the machine does falls on both.
        for _ in range(args.repeats):
            rows[args.before].append(_measured(Path(name)))
            rows["now"].append(_measured(ROOT))
    best = {
        version: {k: min(run[k] for run in runs) for k in runs[0]} for version, runs in rows.items()
    }
    ratios = {k: best["now"][k] / best[args.before][k] for k in best["now"]}
    for k, ratio in ratios.items():
        print(f"{k:14} {best[args.before][k]:12.3f} {best['now'][k]:12.3f}  {ratio:.0%}")
    return {"rows": rows, "best": best, "ratios": ratios}


def _measured(root: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as dump:
        flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*advance.*"
        env = os.environ | {"PYTHONPATH": str(root), "XLA_FLAGS": flags}
        env.pop("JAX_COMPILATION_CACHE_DIR", None)
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=env, cwd=dump, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        sizes = {}
        for stage in ("before", "after"):
            found = Path(dump).glob(f"*{stage}_optimizations.txt")
            sizes[f"hlo_{stage}"] = float(max(path.stat().st_size for path in found))
        return json.loads(done.stdout.strip().splitlines()[-1]) | sizes
