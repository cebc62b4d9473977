"""What all pictures share: axes, and numbers as NumPy has them."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from .. import _checks


def on(ax: Any, size: tuple[float, float] = (5.0, 3.5)) -> Axes:
    """The axes that were given, or those of a new figure."""
    if ax is None:
        return plt.subplots(figsize=size, layout="constrained")[1]
    if not isinstance(ax, Axes):
        raise TypeError(f"`ax` must be the axes of a Matplotlib figure, got {type(ax).__name__}.")
    return ax


def numbers(name: str, x: Any, *ranks: int) -> np.ndarray:
    """Real numbers with as many axes as one of `ranks`, and some of them."""
    array = np.asarray(x)
    if array.dtype == np.bool_ or np.issubdtype(array.dtype, np.integer):
        array = array.astype(np.float64)
    if not np.issubdtype(array.dtype, np.floating):
        # Extended precisions of JAX are no floating-point numbers to NumPy.
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


def places(x: Any, number: int, name: str = "x") -> np.ndarray:
    """Where a curve of so many points has them: at `x`, or at 1, 2, ..."""
    if x is None:
        return np.arange(1, number + 1, dtype=float)
    array = numbers(name, x, 1)
    if len(array) != number:
        raise ValueError(f"`{name}` must hold {number} numbers, one per point, got {len(array)}.")
    return array


def named(name: str, x: Any) -> dict[str | None, Any]:
    """Several things by their names; one alone has none."""
    if isinstance(x, Mapping):
        if not x:
            raise ValueError(f"`{name}` must not be empty, got {x!r}.")
        return dict(x)
    return {None: x}
