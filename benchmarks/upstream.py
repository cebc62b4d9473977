"""PGMax's own tests, with and without `import ebmlearn.pgmax`.

They are those of its repository, of which the wheel installs a part. The tests of linear programmes
need CVXPY and ECOS.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

from . import _report


# Without the plugin, PGMax still needs what has moved inside JAX.
SHIM = "import jax.lib, jax.extend.backend\njax.lib.xla_bridge = jax.extend.backend\n"
PLUGIN = "import ebmlearn.pgmax\n"


def outcomes(tests: Path, plugin: bool, chosen: str | None) -> dict[str, str]:
    """What came of each test."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(tests, Path(folder, "tests"))
        Path(folder, "conftest.py").write_text(PLUGIN if plugin else SHIM)
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["--import-mode=importlib", f"--junitxml={report}", "tests"]
        command += ["-k", chosen] if chosen else []
        path = [str(_report.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(path)}
        out = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        if not report.exists():
            raise SystemExit(out.stdout[-2000:] + out.stderr[-2000:])
        found = {}
        for case in ET.parse(report).iter("testcase"):
            kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
            name = f"{case.get('classname')}::{case.get('name')}"
            found[name] = kinds[0] if kinds else "passed"
        return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pgmax", type=Path, required=True, help="a checkout of PGMax")
    parser.add_argument("--chosen", help="which tests, as `pytest -k` takes it; all if not given")


def main(args: argparse.Namespace) -> dict[str, Any]:
    tests = args.pgmax / "tests"
    if not tests.is_dir():
        raise FileNotFoundError(f"`--pgmax` must be a checkout of PGMax, got {args.pgmax}.")
    runs = []
    for plugin in (False, True):
        runs.append(outcomes(tests, plugin, args.chosen))
        print(f"with the plugin {plugin}: {dict(Counter(runs[-1].values()))}", flush=True)
    without, with_plugin = runs
    differ = [name for name in without | with_plugin if without.get(name) != with_plugin.get(name)]
    counts = {
        "without": dict(Counter(without.values())),
        "with": dict(Counter(with_plugin.values())),
    }
    print(f"tests that differ: {differ or 'none'}")
    failed = sorted(name for name, outcome in without.items() if outcome != "passed")
    return {"counts": counts, "differ": differ, "failed_either_way": failed}
