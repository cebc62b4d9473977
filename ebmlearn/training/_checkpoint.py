import os
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from .. import _checks
from . import _file


_NAME = re.compile(r"step-(\d{9})\.ebm")


class Checkpoint(eqx.Module):
    """A folder in which [`ebmlearn.fit`][] saves a run, so that a stopped run can be resumed.

    It holds files such as `step-000000100.ebm`, the whole state of the run after that many steps,
    and `best.ebm`, the best parameters so far, which [`ebmlearn.load`][] reads.

    !!! example

        ```python
        from ebmlearn import datasets

        data = datasets.digits().train.x
        checkpoint = ebmlearn.Checkpoint("run", every=10, keep=2)
        ebmlearn.fit(ebmlearn.RBM.init(64, 8), ebmlearn.CD(), data, checkpoint=checkpoint)
        ```
    """

    folder: str = eqx.field(static=True)
    every: int | None = eqx.field(static=True, default=None)
    keep: int = eqx.field(static=True, default=3)
    resume: bool = eqx.field(static=True, default=True)

    def __init__(
        self,
        folder: str | os.PathLike,
        every: int | None = None,
        keep: int = 3,
        *,
        resume: bool = True,
    ):
        """**Arguments:**

        - `folder`: created if it does not exist.
        - `every`: the number of steps between two checkpoints. By default `fit` writes one at the
          end of each epoch.
        - `keep`: how many of the latest checkpoints to keep.
        - `resume`: if False, start again and replace the checkpoints in the folder.
        """
        _checks.instance("folder", folder, (str, os.PathLike), "the path of a folder")
        self.folder = os.fspath(folder)
        self.every = every
        self.keep = keep
        self.resume = resume

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
        self.best_step: int | None = None  # the step of the best parameters on disk
        for left in self.folder.glob(f"{_file.TEMPORARY}*"):
            left.unlink(missing_ok=True)  # left by a run that was killed while writing

    def clear(self) -> None:
        """Removes all checkpoints in the folder."""
        for path in (*self.paths().values(), self.folder / "best.ebm"):
            path.unlink(missing_ok=True)

    def paths(self) -> dict[int, Path]:
        """The checkpoints in the folder, by step, in order."""
        found = [(_NAME.fullmatch(path.name), path) for path in self.folder.iterdir()]
        return dict(sorted((int(name[1]), path) for name, path in found if name))

    def write(self, tree: dict[str, PyTree], model: PyTree, facts: dict[str, Any]) -> None:
        """Writes a checkpoint, then removes those that are no longer kept. `model` has the best
        parameters, and what is not trained.
        """
        info, step = {"run": self.about, "facts": facts}, facts["step"]
        _file.save(self.folder / f"step-{step:09d}.ebm", tree, info)
        if facts["best_step"] != self.best_step:
            _file.save(self.folder / "best.ebm", model, info)
            self.best_step = facts["best_step"]
        # Later steps belong to an earlier run that this one has replaced.
        kept = [k for k in self.paths() if k <= step][-self.settings.keep :]
        for other, old in self.paths().items():
            if other not in kept:
                old.unlink(missing_ok=True)

    def newest(self, like: dict[str, PyTree]) -> tuple[dict[str, PyTree], dict[str, Any]] | None:
        """Reads the newest checkpoint, what was written and its facts; None if there is none. Of
        `history`, it need not be known which arrays there are.
        """
        paths = self.paths()
        if not paths:
            return None
        path = list(paths.values())[-1]
        header, stored = _file.read(path)
        self._check(path, header["info"].get("run", {}))
        history: dict[str, Any] = {"steps": {}, "epochs": {}, "validations": {}}
        for name, values in stored.items():
            match = re.fullmatch(r"\['history'\]\['(steps|epochs|validations)'\]\['(\w+)'\]", name)
            if match:
                history[match[1]][match[2]] = np.array(values)
        try:
            tree = _file.load(path, {**like, "history": history})
        except ValueError as error:
            raise ValueError(
                "`checkpoint` must come from the same `model` and `optimizer`: use another folder,"
                f" or `Checkpoint(folder, resume=False)` to replace it. {error}"
            ) from error
        return tree, header["info"]["facts"]

    def _check(self, path: Path, was: dict[str, Any]) -> None:
        for name, value in self.about.items():
            if was.get(name, value if name == "data" else None) != value:
                raise ValueError(
                    f"`checkpoint` must come from the same run: {path} was written with `{name}`"
                    f" {was.get(name)!r}, got {value!r}. Use another folder,"
                    " or `Checkpoint(folder, resume=False)` to replace it."
                )
