import os
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from .. import _checks
from . import _file
from ._history import History


_NAME = re.compile(r"step-(\d{9})\.ebm")


class Checkpoint(eqx.Module):
    """Where [`ebmlearn.fit`][] keeps what it needs to go on after it was stopped.

    The folder holds `step-000000100.ebm` and the like, each the whole state of a run after so many
    steps, and `best.ebm`, the best parameters so far, for [`ebmlearn.load`][].
    """

    folder: str = eqx.field(static=True)
    every: int | None = eqx.field(static=True, default=None)
    keep: int = eqx.field(static=True, default=3)

    def __init__(self, folder: str | os.PathLike, every: int | None = None, keep: int = 3):
        """**Arguments:**

        - `folder`: made if it is not there.
        - `every`: how many steps lie between two checkpoints; the end of an epoch if not given.
        - `keep`: how many of the last ones are kept.
        """
        if not isinstance(folder, (str, os.PathLike)):
            got = _checks.describe(folder)
            raise TypeError(f"`folder` must be the path of a folder, got {got}.")
        self.folder = os.fspath(folder)
        self.every = every
        self.keep = keep

    def __check_init__(self):
        if self.every is not None:
            _checks.count("every", self.every)
        _checks.count("keep", self.keep)


class Keeper:
    """Writes and reads the checkpoints of one run."""

    def __init__(self, settings: Checkpoint, about: dict[str, Any]):
        self.settings = settings
        self.about = about
        self.folder = _file.folder("checkpoint", settings.folder)
        self.best_step: int | None = None  # of the best parameters that were written
        for left in self.folder.glob(f"{_file.TEMPORARY}*"):
            left.unlink(missing_ok=True)  # of a run that was killed while it wrote

    def clear(self) -> None:
        """Removes what is there."""
        for path in (*self.paths().values(), self.folder / "best.ebm"):
            path.unlink(missing_ok=True)

    def due(self, step: int, end: bool) -> bool:
        """Whether a step, or one that ends an epoch, is followed by a checkpoint."""
        return end if self.settings.every is None else step % self.settings.every == 0

    def paths(self) -> dict[int, Path]:
        """The checkpoints that are there, by step, in order."""
        found = {}
        for path in self.folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match:
                found[int(match[1])] = path
        return dict(sorted(found.items()))

    def write(self, step: int, state: PyTree, best: PyTree, history: History, facts: dict) -> None:
        """Writes a checkpoint, and only then removes what is no longer kept."""
        info = {"run": self.about, "facts": facts}
        path = self.folder / f"step-{step:09d}.ebm"
        _file.save(path, {"state": state, "best": best, "history": history._asdict()}, info)
        if facts["best_step"] != self.best_step:
            _file.save(self.folder / "best.ebm", best, info)
            self.best_step = facts["best_step"]
        # Those after this step are of an earlier run that this one has replaced.
        kept = [k for k in self.paths() if k <= step][-self.settings.keep :]
        for other, old in self.paths().items():
            if other not in kept:
                old.unlink(missing_ok=True)

    def newest(self, state: PyTree, best: PyTree) -> tuple[PyTree, PyTree, History, dict] | None:
        """What the newest checkpoint holds, or None if there is none."""
        paths = self.paths()
        if not paths:
            return None
        path = list(paths.values())[-1]
        header, content = _file.read(path)
        self._check(path, header["info"].get("run", {}))
        stored = _file.arrays(header, content)
        history = History({}, {}, {})
        for name, values in stored.items():
            match = re.fullmatch(r"\['history'\]\['(steps|epochs|validations)'\]\['(\w+)'\]", name)
            if match:
                getattr(history, match[1])[match[2]] = np.array(values)
        like = {"state": state, "best": best, "history": history._asdict()}
        try:
            tree = _file.load(path, like)
        except ValueError as error:
            raise ValueError(
                "`checkpoint` must be that of the same `model` and `optimizer`. Name another"
                f" folder, or pass `resume=False` to start anew and replace it. {error}"
            ) from error
        return tree["state"], tree["best"], history, header["info"]["facts"]

    def _check(self, path: Path, was: dict[str, Any]) -> None:
        for name, value in self.about.items():
            if was.get(name, value if name == "data" else None) != value:
                raise ValueError(
                    f"`checkpoint` must be that of the same run: {path} was made with `{name}`"
                    f" {was.get(name)!r}, got {value!r}. Name another folder, or pass"
                    " `resume=False` to start anew and replace it."
                )
