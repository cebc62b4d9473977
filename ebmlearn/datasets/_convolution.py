from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

from .. import _checks
from .._types import AnyArray


# Four shapes of lines, 5×5, none of which is made of parts of another: a diagonal cross, a square,
# a step and a winding line.
_SHAPES = (
    "#...# .#.#. ..#.. .#.#. #...#",
    "##### #...# #...# #...# #####",
    "..### ..#.. ###.. #.... #....",
    "#.... ##... .###. ...## ....#",
)


class Convolution(NamedTuple):
    """Binary images made of features: `images[n]` is 1 at the pixels of the features that
    `locations[n]` places.

    !!! example

        ```python
        from ebmlearn import datasets

        images, features, locations = datasets.binary_convolution(10)
        ```

    **Fields:**

    - `images`: 0 and 1, `[images, rows, columns]`.
    - `features`: 0 and 1, `[features, rows, columns]`.
    - `locations`: 0 and 1, where each feature is in each image.
    """

    images: Int[np.ndarray, "images height width"]
    features: Int[np.ndarray, "features rows columns"]
    locations: Int[np.ndarray, "images features down across"]


def binary_convolution(
    num_images: int = 100,
    *,
    seed: int = 0,
    size: int = 14,
    density: float = 0.01,
    features: Shaped[AnyArray, "features rows columns"] | None = None,
) -> Convolution:
    """Random images by binary convolution (Lázaro-Gredilla et al. 2021, section 5.6). Each feature
    appears at each location with a small probability, and overlapping features are combined by OR.
    No image is empty.

    !!! example

        ```python
        from ebmlearn import datasets

        found = datasets.binary_convolution(10, seed=0)
        found.images.shape, found.locations.shape  # (10, 14, 14), (10, 4, 10, 10)
        ```

    **Arguments:**

    - `num_images`: how many images.
    - `seed`: the seed of the random locations.
    - `size`: the height and width of an image.
    - `density`: the probability that a feature is at a location.
    - `features`: 0 and 1, `[features, rows, columns]`; by default four shapes of 5×5 lines.
    """
    _checks.count("num_images", num_images)
    _checks.count("seed", seed, 0)
    _checks.number("density", density, 0, 1, "(0, 1)")
    if features is None:
        rows = [[[c == "#" for c in row] for row in shape.split()] for shape in _SHAPES]
        shapes = np.array(rows, np.int32)
    else:
        _checks.rank("features", features, 3, "[features, rows, columns]")
        _checks.binary_rows("features", features)
        shapes = np.asarray(features).astype(np.int32)
        if not len(shapes) or not shapes.any((1, 2)).all():
            raise ValueError(
                "`features` must contain at least one feature, with a 1 in each, got"
                f" {_checks.describe(shapes)}."
            )
    least = max(shapes.shape[1:])
    _checks.count("size", size, least)
    rng = np.random.default_rng(seed)
    room = size - shapes.shape[1] + 1, size - shapes.shape[2] + 1
    locations = np.zeros((num_images, len(shapes), *room), np.int32)
    empty = np.arange(num_images)
    while len(empty):
        locations[empty] = rng.random((len(empty), *locations.shape[1:])) < density
        empty = empty[locations[empty].sum((1, 2, 3)) == 0]
    return Convolution(convolved(shapes, locations, size), shapes, locations)


def convolved(
    features: Int[np.ndarray, "features rows columns"],
    locations: Int[np.ndarray, "images features down across"],
    size: int,
) -> Int[np.ndarray, "images height width"]:
    """The images that features make at locations.

    !!! example

        ```python
        from ebmlearn import datasets

        found = datasets.binary_convolution(10)
        images = datasets.convolved(found.features, found.locations, 14)
        assert (images == found.images).all()
        ```

    **Arguments:**

    - `features`: 0 and 1, `[features, rows, columns]`.
    - `locations`: 0 and 1, where each feature is, `[images, features, rows, columns]`.
    - `size`: the height and width of an image.
    """
    images = np.zeros((len(locations), size, size), np.int32)
    down, across = locations.shape[2:]
    for row, column in np.ndindex(*features.shape[1:]):
        placed = np.einsum("nfij,f->nij", locations, features[:, row, column])
        images[:, row : row + down, column : column + across] |= (placed > 0).astype(np.int32)
    return images
