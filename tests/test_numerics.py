"""Runs the tests of `numerics.py` as users compile, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import programs
import pytest


@pytest.mark.slow
def test_numerics_as_users_compile():
    path = Path(__file__).with_name("numerics.py")
    command = [sys.executable, "-m", "pytest", str(path), "-n", "0", "-q", "--durations=0"]
    env = programs.as_users()
    done = subprocess.run(command, capture_output=True, text=True, cwd=path.parents[1], env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
