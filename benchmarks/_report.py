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


def environment() -> dict[str, Any]:
    """The machine and the versions that a figure belongs to."""
    device = jax.devices()[0]
    packages = ("ebmlearn", "jax", "jaxlib", "equinox", "numpy", "pgmax")
    versions = {}
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


def _processor() -> str:
    """The name of the processor, as far as the system tells it."""
    if shutil.which("lscpu"):
        out = subprocess.run(["lscpu"], capture_output=True, text=True).stdout
        for line in out.splitlines():
            if line.startswith("Model name:"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def write(path: Path, result: dict[str, Any]) -> None:
    """Writes a result with its environment, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**result, "environment": environment()}, indent=1) + "\n"
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)
