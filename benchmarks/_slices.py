"""Experiments that are done in slices: finished runs are kept, unfinished ones go on."""

import argparse
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ebmlearn as ebm
from ebmlearn.training import EpochReport

from . import _report


class Deadline:
    """Stops a run once the time is over."""

    def __init__(self, seconds: float):
        self.end = time.monotonic() + seconds
        self.restart()

    def restart(self) -> None:
        """Forgets how long the epochs of the last run took."""
        self.longest, self.last = 0.0, time.monotonic()

    @property
    def over(self) -> bool:
        return time.monotonic() + self.longest > self.end

    def options(self, work: Path | None) -> dict[str, Any]:
        """What `fit` is told: to stop in time, and where to keep what there is until then."""
        checkpoint = None if work is None else ebm.Checkpoint(work, keep=1)
        return {"checkpoint": checkpoint, "callbacks": [self], "progress": False}

    def __call__(self, report: EpochReport | None = None) -> bool:
        now = time.monotonic()
        self.longest, self.last = now - self.last, now
        return self.over


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, help="stop after so long")
    parser.add_argument("--work", type=Path, help="a folder for checkpoints")
    parser.add_argument("--merge", nargs="+", type=Path, help="only take the runs of other results")


def read(path: Path | None) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["runs"] if path is not None and path.exists() else []


def drive(
    args: argparse.Namespace,
    wanted: Callable[[], Iterable[tuple[dict[str, Any], Callable[..., dict[str, Any] | None]]]],
    show: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Does the runs that are wanted and not done, each by a function of a folder for checkpoints
    and the deadline, which returns None if the time was over.
    """
    runs = read(args.json)
    if args.merge:
        for run in [run for path in args.merge for run in read(path)]:
            if run not in runs:
                runs.append(run)
        return {"runs": runs}
    deadline = Deadline(args.seconds or float("inf"))
    for run, train in wanted():
        if any({k: done.get(k) for k in run} == run for done in runs):
            continue
        if deadline.over:
            break
        deadline.restart()
        parts = (len(x) if isinstance(x, dict) else x for x in run.values())
        work = None if args.work is None else args.work / "-".join(map(str, parts))
        result = train(work, deadline)
        if result is None:
            print(f"{run['task']} {run['method']}: to be continued")
            break
        runs.append({**result, "environment": _report.environment()})
        show(result)
        if args.json is not None:
            _report.write(args.json, {"command": args.name, "runs": runs})
    return {"runs": runs}
