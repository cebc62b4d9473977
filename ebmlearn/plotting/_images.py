import math
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Bool, Shaped
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from .. import _checks
from .._types import AnyArray
from ..models import AbstractPlainModel, CRBM
from ._axes import below, numbers, on


_FRAME = "0.85"  # between images
# 0 and 1 where they are known.
_KNOWN = LinearSegmentedColormap.from_list("known", ["#cfe3f7", "#0b3c73"])


def images(
    x: Shaped[AnyArray, "*rows pixels"],
    shape: tuple[int, int],
    *,
    columns: int | None = None,
    signed: bool = False,
    limits: tuple[float | int, float | int] | None = None,
    gap: int = 1,
    ax: Axes | None = None,
) -> Axes:
    """Draws images side by side: samples, data or reconstructions.

    !!! example

        ```python
        from ebmlearn import datasets, plotting

        ax = plotting.images(datasets.digits().test.x[:50], (8, 8))
        ax.figure.savefig("digits.png")
        ```

    **Arguments:**

    - `x`: the pixels of one image, or of several, `[rows, pixels]`, each flattened row by row.
    - `shape`: the height and width of an image.
    - `columns`: the number of images in a row; by default at most ten.
    - `signed`: True draws signed numbers in blue and red with white at 0; False draws in grey, with
      the highest number black.
    - `limits`: the lowest and the highest number of the colour scale. The default is 0 and 1 if all
      numbers are between them, else their lowest and highest; with `signed`, plus and minus the
      largest magnitude.
    - `gap`: the width of the frame between images, in pixels.
    - `ax`: the axes to draw on; a new figure by default.

    **Returns:**

    The axes, with one picture of all images.
    """
    rows = _rows("x", x, shape)
    finite = rows[np.isfinite(rows)]
    if limits is not None:
        low, high = limits
        if not low < high:
            raise ValueError(f"`limits` must be a lower and a higher number, got {limits}.")
    elif signed:
        high = float(np.abs(finite).max(initial=0)) or 1.0
        low = -high
    elif finite.min(initial=0) >= 0 and finite.max(initial=1) <= 1:
        low, high = 0.0, 1.0
    else:
        low, high = float(finite.min()), float(finite.max())
    colours = matplotlib.colormaps["RdBu_r" if signed else "gray_r"].with_extremes(bad=_FRAME)
    tiles = rows.reshape(-1, *shape)
    return _mosaic(ax, tiles, columns, gap, np.nan, cmap=colours, vmin=low, vmax=high)


def filters(
    model: AbstractPlainModel | CRBM,
    shape: tuple[int, int],
    *,
    layer: int = 0,
    number: int | None = None,
    columns: int | None = None,
    limits: tuple[float | int, float | int] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws the weights of each hidden unit as an image.

    !!! example

        ```python
        from ebmlearn import plotting

        plotting.filters(ebmlearn.RBM.init(64, 32), (8, 8), number=20)
        ```

    **Arguments:**

    - `model`: a model with `weights`, such as an RBM, a CRBM or a DBM, whose visible units are
      the pixels of an image.
    - `shape`: the height and width of the image.
    - `layer`: for a DBM, the index of the hidden layer; 0 is the first. Its weights are multiplied
      with those of the layers below.
    - `number`: draw only this many hidden units, those with the largest weights first. By default
      all are drawn, in their order.
    - `columns`, `limits`, `ax`: as for [`ebmlearn.plotting.images`][].

    **Returns:**

    The axes.
    """
    weights = getattr(model, "weights", None)
    if weights is None:
        got = _checks.article(type(model).__name__)
        raise TypeError(f"`model` must have weights to hidden units, got {got}.")
    blocks = weights if isinstance(weights, tuple) else (weights,)
    below("layer", layer, len(blocks))
    product = np.asarray(blocks[0])
    for block in blocks[1 : layer + 1]:
        product = product @ np.asarray(block)
    found = product.T
    if found.shape[0] == 0:
        raise ValueError("`model` must have hidden units, got none.")
    if number is not None:
        _checks.count("number", number)
        found = found[np.argsort(-np.linalg.norm(found, axis=1), kind="stable")[:number]]
    if found.shape[1] != math.prod(shape):
        raise ValueError(
            f"`shape` must have {found.shape[1]} pixels, one per visible unit, got {shape}."
        )
    return images(found, shape, columns=columns, signed=True, limits=limits, ax=ax)


def marginals(
    probabilities: Shaped[AnyArray, "*rows pixels"],
    shape: tuple[int, int],
    *,
    observed: Bool[AnyArray, "... pixels"] | None = None,
    evidence: Shaped[AnyArray, "... pixels"] | None = None,
    columns: int | None = None,
    gap: int = 1,
    ax: Axes | None = None,
) -> Axes:
    """Draws probabilities of pixels in grey, and observed pixels in blue.

    !!! example

        ```python
        from ebmlearn import datasets, plotting

        image, upper = datasets.digits().test.x[0], np.arange(64) < 32
        answer = ebmlearn.query(ebmlearn.RBM.init(64, 8), image, observed=upper)
        plotting.marginals(answer, (8, 8), observed=upper)
        ```

    **Arguments:**

    - `probabilities`: the probabilities of 1 of the pixels of one image or of several,
      `[rows, pixels]`, as [`ebmlearn.query`][] returns them.
    - `shape`: the height and width of an image.
    - `observed`: booleans, the observed pixels of all images or of each.
    - `evidence`: the values of the observed pixels, from 0 to 1; their probabilities by default.
    - `columns`, `gap`, `ax`: as for [`ebmlearn.plotting.images`][].

    **Returns:**

    The axes, with one picture of all images.
    """
    rows = _unit("probabilities", _rows("probabilities", probabilities, shape))
    shades = np.repeat(1 - rows[..., None], 3, axis=-1)
    if observed is None:
        if evidence is not None:
            raise ValueError("`observed` must say which pixels `evidence` is about, got None.")
    else:
        mask = np.asarray(observed)
        if mask.dtype != np.bool_:
            raise TypeError(f"`observed` must hold booleans, got {_checks.describe(mask)}.")
        mask = _like("observed", mask, rows)
        known = rows
        if evidence is not None:
            # What is not observed may be anything.
            values = _like("evidence", numbers("evidence", evidence, 1, 2), rows)
            known = _unit("evidence", np.where(mask, values, 0.0))
        shades = np.where(mask[..., None], _KNOWN(known)[..., :3], shades)
    return _mosaic(ax, shades.reshape(-1, *shape, 3), columns, gap, float(_FRAME))


def _rows(name: str, x: Any, shape: Any) -> np.ndarray:
    """Images as rows of pixels."""
    if len(shape) != 2 or any(isinstance(n, bool) or int(n) != n or n < 1 for n in shape):
        raise ValueError(f"`shape` must be height and width of an image, got {shape}.")
    rows = np.atleast_2d(numbers(name, x, 1, 2))
    if rows.shape[1] != math.prod(shape):
        raise ValueError(
            f"`{name}` must have {math.prod(shape)} pixels an image, as `shape` {tuple(shape)} has,"
            f" got {_checks.describe(np.asarray(x))}."
        )
    return rows


def _unit(name: str, x: np.ndarray) -> np.ndarray:
    """Numbers from 0 to 1, up to rounding."""
    if not ((x >= -1e-6) & (x <= 1 + 1e-6)).all():
        raise ValueError(f"`{name}` must lie in [0, 1], got numbers from {x.min()} to {x.max()}.")
    return x.clip(0, 1)


def _like(name: str, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """`x` for each row, where it may have been given for all of them."""
    if x.shape not in (rows.shape, rows.shape[1:]):
        raise ValueError(
            f"`{name}` must have shape {rows.shape[1:]} or {rows.shape}, got {_checks.describe(x)}."
        )
    return np.broadcast_to(x, rows.shape)


def _mosaic(
    ax: Axes | None, tiles: np.ndarray, columns: int | None, gap: int, frame: float, **style: Any
) -> Axes:
    """Draws tiles `[number, height, width, ...]` side by side, with frames between them."""
    number, height, width, *rest = tiles.shape
    columns = 10 if columns is None else columns
    _checks.count("columns", columns)
    _checks.count("gap", gap, 0)
    columns = min(columns, number)
    lines = -(-number // columns)
    down, across = height + gap, width + gap
    out = np.full((lines * down - gap, columns * across - gap, *rest), frame, np.float64)
    for k, tile in enumerate(tiles):
        top, left = (k // columns) * down, (k % columns) * across
        out[top : top + height, left : left + width] = tile
    # In inches: seven at most, an eighth for a pixel at most.
    scale = min(7 / max(out.shape[:2]), 1 / 8)
    ax = on(ax, (max(out.shape[1] * scale, 1.0), max(out.shape[0] * scale, 1.0)))
    ax.imshow(out, **style)
    ax.set_axis_off()
    full, left = divmod(number, columns)
    if left:
        # No frame where the last line has no images.
        corner = (left * across - gap - 0.5, full * down - 0.5)
        size = ((columns - left) * across, height)
        ax.add_patch(Rectangle(corner, *size, facecolor="white", edgecolor="none"))
    return ax
