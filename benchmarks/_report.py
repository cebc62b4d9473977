import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import jax

from ebmlearn import __version__


ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def machine(result: dict[str, Any]) -> str:
    """Where and with what a result was measured."""
    where, versions = result["environment"], result["environment"]["versions"]
    return f"{where['device']}, {where['cores']} cores, jax {versions['jax']}"


def stored(command: str, task: str) -> list[dict[str, Any]]:
    """The committed runs of a task."""
    runs = json.loads((RESULTS / f"{command}.json").read_text())["runs"]
    return [run for run in runs if run["task"] == task]


def environment() -> dict[str, Any]:
    """The machine and the versions that a figure belongs to."""
    device = jax.devices()[0]
    packages = ("jax", "jaxlib", "equinox", "optax", "numpy", "pgmax")
    versions: dict[str, str | None] = {"ebmlearn": __version__}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "device": device.device_kind if device.platform != "cpu" else _processor(),
        "platform": device.platform,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
    }


def arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of a command, as far as its figures depend on them."""
    given = {k: v for k, v in vars(args).items() if not isinstance(v, Path) and k != "name"}
    given.pop("json", None)
    given.pop("merge", None)
    return {"arguments": given}


def _processor() -> str:
    """The name of the processor, as far as the system tells it."""
    if shutil.which("lscpu"):
        out = subprocess.run(["lscpu"], capture_output=True, text=True).stdout
        for line in out.splitlines():
            if line.startswith("Model name:"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def write(path: Path, result: dict[str, Any]) -> None:
    """Writes a result with its environment, whole or not at all. Of many `runs`, each has its own
    arguments and environment, and a line of the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if "runs" in result:
        runs = ",\n".join(json.dumps(run) for run in result["runs"])
        text = f'{{"command": "{result["command"]}", "runs": [\n{runs}\n]}}\n'
    else:
        text = json.dumps({**result, "environment": environment()}, indent=1) + "\n"
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)
