"""What all pictures share: axes, and numbers as NumPy has them."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from .. import _checks


def on(ax: Any, size: tuple[float, float] = (5.0, 3.5)) -> Axes:
    """The axes that were given, or those of a new figure."""
    if ax is None:
        return plt.subplots(figsize=size, layout="constrained")[1]
    instance("ax", ax, Axes, "be the axes of a Matplotlib figure")
    return ax


def labelled(ax: Axes, x: str, y: str, whole: str = "") -> Axes:
    """The axes with the names of both; those named in `whole` count. There is a legend, where there
    is something to tell apart.
    """
    ax.set(xlabel=x, ylabel=y)
    for name in whole:
        getattr(ax, f"{name}axis").set_major_locator(MaxNLocator(integer=True))
    if ax.get_legend_handles_labels()[1]:
        ax.legend(fontsize="small")
    return ax


def instance(name: str, x: Any, kind: type, what: str) -> None:
    """Raises `TypeError` unless `x` is of a class."""
    if not isinstance(x, kind):
        raise TypeError(f"`{name}` must {what}, got {type(x).__name__}.")


def below(name: str, k: int, number: int) -> None:
    """Raises unless `k` is the index of one of so many."""
    _checks.count(name, k, 0)
    if k >= number:
        raise ValueError(f"`{name}` must be below {number}, got {k}.")


def numbers(name: str, x: Any, *ranks: int) -> np.ndarray:
    """Real numbers with as many axes as one of `ranks`, and some of them."""
    array = np.asarray(x)
    if not np.issubdtype(array.dtype, np.floating):
        # Extended precisions of JAX are no floating-point numbers to NumPy either.
        try:
            array = array.astype(np.float64, casting="safe")
        except TypeError as error:
            raise TypeError(
                f"`{name}` must hold real numbers, got {_checks.describe(array)}."
            ) from error
    if array.ndim not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise ValueError(f"`{name}` must have {wanted} axes, got {_checks.describe(array)}.")
    if array.size == 0:
        raise ValueError(f"`{name}` must not be empty, got {_checks.describe(array)}.")
    return array


def several(name: str, x: Any, number: int) -> np.ndarray:
    """So many real numbers."""
    array = numbers(name, x, 1)
    if len(array) != number:
        raise ValueError(f"`{name}` must hold {number} numbers, got {len(array)}.")
    return array


def places(x: Any, number: int) -> np.ndarray:
    """Where a curve of so many points has them: at `x`, or at 1, 2, ..."""
    return np.arange(1, number + 1, dtype=float) if x is None else several("x", x, number)


def named(name: str, x: Any) -> dict[str | None, Any]:
    """Several things by their names; one alone has none."""
    if isinstance(x, Mapping):
        if not x:
            raise ValueError(f"`{name}` must not be empty, got {x!r}.")
        return dict(x)
    return {None: x}
