"""Runs that diverge."""

import warnings
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Float, PyTree

from ..learners import StepInfo


# A run diverges if its loss or gap becomes this many times its first value.
GROWTH = 1e4
# So does one of units of finitely many states whose largest parameter becomes this many times its
# first value, and this many nats: odds of e^100. Parameters of real units have the scale of data.
LARGE = 100.0


class Growth:
    """Compares the loss, the gap and the largest parameter of each lane with their first values."""

    def __init__(self, parameters: Sequence[PyTree], bounded: bool, many: bool):
        """`parameters` are those of each lane. `bounded` says whether they have a known scale."""
        self.bounded, self.many = bounded, many
        self.began = [{"largest parameter": x} for x in map(_largest, parameters)]
        self.told: set[int] = set()

    def look(
        self, infos: Sequence[Float[np.ndarray, "infos _"]], largest: np.ndarray, step: int
    ) -> None:
        """Warns, once for each lane, of those that diverge in these steps."""
        found = {}
        for k, (own, size) in enumerate(zip(infos, largest.tolist(), strict=True)):
            if own.shape[1] and k not in self.told and (text := self._grown(k, own, size)):
                found[k] = text
        self.told.update(found)
        if not found:
            return
        where = ""
        if self.many:
            word = "run" if len(found) == 1 else "runs"
            where = f" in {word} {', '.join(map(str, found))}, counted from 0"
        what = next(iter(found.values()))
        warnings.warn(
            f"The {what} by step {step}{where}: training diverges. Try a smaller learning rate.",
            stacklevel=7,
        )

    def _grown(self, k: int, infos: Float[np.ndarray, "infos _"], size: float) -> str:
        """What has grown far beyond its first value, or nothing."""
        own = np.abs([infos[StepInfo._fields.index(name)] for name in ("loss", "gap")])
        limits = {"loss": (own[0], GROWTH), "gap": (own[1], GROWTH)}
        if self.bounded:
            limits["largest parameter"] = np.array([size]), LARGE
        for name, (sizes, most) in limits.items():
            sizes = sizes[np.isfinite(sizes)]
            if not sizes.size:
                continue
            began = self.began[k].setdefault(name, float(sizes[0]))
            if sizes.max() > most * max(began, 1.0):
                return f"{name} has grown from {began:.3g} to {sizes.max():.3g}"
        return ""


def _largest(parameters: PyTree) -> float:
    sizes = [np.abs(x).max(initial=0) for x in jax.tree.leaves(jax.device_get(parameters))]
    return float(max(sizes, default=0))
