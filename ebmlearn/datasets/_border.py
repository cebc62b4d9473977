from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from .. import _checks
from . import _files


# The labels of pixels, in this order everywhere.
CONTOUR, OUT, IN = 0, 1, 2
_SIDE = 30
_DROPPED = 0.2
_SPURIOUS = 8
# The chance of an edge where none was ever seen; its logarithm is finite.
_LEAST = 1e-10
# From the middle of a spurious edge to its ends: across, down, and along both diagonals.
_DIRECTIONS = np.array([(0, 1), (1, 0), (1, 1), (1, -1)])


class Segmentation(NamedTuple):
    """Noisy images of contours, 1 where an edge is seen, and the label of each pixel: 0 on a
    contour, 1 outside, 2 inside.

    !!! example

        ```python
        from ebmlearn import datasets

        images, labels = datasets.border_ownership().test
        ```

    **Fields:**

    - `images`: `[rows, 30, 30]`, 1 where an edge is seen.
    - `labels`: of the same shape, 0, 1 or 2.
    """

    images: UInt8[np.ndarray, "rows 30 30"]
    labels: UInt8[np.ndarray, "rows 30 30"]


class BorderOwnership(NamedTuple):
    """The border ownership data, and the probability of seeing an edge at a pixel of each label,
    counted in the training images.

    !!! example

        ```python
        from ebmlearn import datasets

        train, test, p_contour = datasets.border_ownership()
        ```

    **Fields:**

    - `train`, `test`: a [`Segmentation`][ebmlearn.datasets.Segmentation] each.
    - `p_contour`: the probability of an edge at a pixel of label 0, 1 and 2.
    """

    train: Segmentation
    test: Segmentation
    p_contour: Float[np.ndarray, " 3"]


def border_ownership() -> BorderOwnership:
    """Border ownership: which side of a contour is the object (Lázaro-Gredilla et al. 2021, section
    on the grid MRF). The images are 30×30 contours of MNIST digits; each pixel is missing with
    probability 0.2, and 8 spurious edges of 3 pixels are added. There are 60,000 training and
    10,000 test images; set some training images aside for validation.

    !!! example

        ```python
        from ebmlearn import datasets

        data = datasets.border_ownership()
        data.train.images, data.train.labels, data.p_contour
        ```
    """
    stored = _files.read("border")
    if int(stored["n_vis"]) != _SIDE**2:
        raise ValueError(f"`n_vis` of 'border' must be {_SIDE**2}, got {int(stored['n_vis'])}.")
    parts = []
    for part in ("train", "test"):
        noisy, contour, inside = (
            _files.unpacked("border", stored, f"{name}_{part}").reshape(-1, _SIDE, _SIDE)
            for name in ("noisy", "contour", "in")
        )
        if not len(noisy) == len(contour) == len(inside):
            raise ValueError(
                f"`noisy_{part}` of 'border' must have the same rows as `contour_{part}` and"
                f" `in_{part}`, got {len(noisy)}, {len(contour)} and {len(inside)}."
            )
        parts.append(Segmentation(noisy, _labels(contour, inside)))
    seen = stored["p_contour_train"]
    _checks.exact_shape("p_contour_train", seen, (3,), "of contour, outside and inside")
    return BorderOwnership(*parts, p_contour=seen)


def made_from(
    images: UInt8[np.ndarray, "rows 28 28"], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Noisy contours, contours, insides, packed, and how likely an edge is seen, from digits. A
    contour is made of pixels beside, above or below one of the digit; a pixel of the digit is above
    127. The frame around the 28×28 pixels of MNIST is always outside.

    Spurious edges run across, down or along a diagonal. Each has its middle at a random pixel with
    nothing within two pixels, neither digit nor contour nor another such edge.
    """
    inside = framed(images > 127)
    contour = framed(beside(inside)) & ~inside
    noisy = contour & (rng.random(contour.shape) >= _DROPPED)
    spurious = np.zeros_like(inside)
    each = np.arange(len(inside))
    for _ in range(_SPURIOUS):
        free = _free(inside | contour | spurious)
        chance = np.where(free, rng.random(free.shape), -1).reshape(len(free), -1)
        middle = chance.argmax(1)
        if (chance[each, middle] < 0).any():
            raise ValueError("`images` must leave room for spurious edges, got one too full.")
        rows, columns = np.divmod(middle, _SIDE)
        down, across = _DIRECTIONS[rng.integers(0, 4, len(each))].T
        for step in (-1, 0, 1):
            spurious[each, rows + step * down, columns + step * across] = True
    noisy = noisy | spurious
    seen = [noisy[x].mean() if x.any() else 0.0 for x in (contour, ~(contour | inside), inside)]
    packed = {"noisy": noisy, "contour": contour, "in": inside}
    return {
        **{k: np.packbits(x.reshape(len(x), -1), axis=1) for k, x in packed.items()},
        "p_contour": np.maximum(seen, _LEAST),
    }


def framed(images: np.ndarray) -> np.ndarray:
    """Images with a frame of zeros, one pixel wide."""
    return np.pad(images, ((0, 0), (1, 1), (1, 1)))


def beside(images: np.ndarray) -> np.ndarray:
    """What is to the left, to the right, above or below each pixel that is not at the edge."""
    return images[:, :-2, 1:-1] | images[:, 2:, 1:-1] | images[:, 1:-1, :-2] | images[:, 1:-1, 2:]


def _free(taken: np.ndarray) -> np.ndarray:
    """Where the 5×5 pixels around hold nothing."""
    room = np.ones((len(taken), _SIDE - 4, _SIDE - 4), bool)
    for down, across in np.ndindex(5, 5):
        room &= ~taken[:, down : down + _SIDE - 4, across : across + _SIDE - 4]
    return np.pad(room, ((0, 0), (2, 2), (2, 2)))


def _labels(contour: np.ndarray, inside: np.ndarray) -> UInt8[np.ndarray, "rows 30 30"]:
    if (contour & inside).any():
        raise ValueError("`contour` of 'border' must be apart from `in`, got pixels of both.")
    return np.where(contour == 1, CONTOUR, np.where(inside == 1, IN, OUT)).astype(np.uint8)
