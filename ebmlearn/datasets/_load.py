from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

from .. import _checks, _extras
from . import _files
from ._border import beside, framed


class Split(NamedTuple):
    """Rows of a data set, and the class of each row if there are classes.

    !!! example

        ```python
        from ebmlearn import datasets

        x, y = datasets.digits().train
        ```

    **Fields:**

    - `x`: the rows.
    - `y`: the class of each row, or None.
    """

    x: Shaped[np.ndarray, "rows units"]
    y: Int[np.ndarray, " rows"] | None = None


class Dataset(NamedTuple):
    """A data set: training, validation and test rows.

    !!! example

        ```python
        from ebmlearn import datasets

        train, valid, test = datasets.digits()
        ```

    **Fields:**

    - `train`, `valid`, `test`: a [`Split`][ebmlearn.datasets.Split] each.
    """

    train: Split
    valid: Split
    test: Split


def digits(threshold: int | None = 7) -> Dataset:
    """The 8×8 digits of scikit-learn: 1,197 training, 300 validation and 300 test rows. No file is
    needed.

    !!! example

        ```python
        from ebmlearn import datasets

        digits = datasets.digits()
        digits.train.x.shape, digits.test.y  # (1197, 64), the classes 0 to 9
        ```

    **Arguments:**

    - `threshold`: grey levels (0 to 16) above it become 1, others 0. None keeps the grey levels.
    """
    x, y = _load_digits("datasets.digits")
    return _cut(_binarised(x, threshold), y, 1197, 1497)


def shifted_digits() -> Dataset:
    """The 8×8 digits of scikit-learn as grey levels in [0, 1], each in five copies: unchanged, and
    shifted by one pixel up, down, left and right (Lázaro-Gredilla et al. 2021, experiments). There
    are 6,000 training, 1,185 validation and 1,800 test rows. The digits are split at random before
    they are shifted, so all five copies of a digit are in the same part. The paper trains on the
    first two parts together. No file is needed.

    !!! example

        ```python
        from ebmlearn import datasets

        grey = datasets.shifted_digits().train.x  # [6000, 64], in [0, 1]
        ```
    """
    x, y = _load_digits("datasets.shifted_digits")
    images = x.astype(np.float32).reshape(-1, 8, 8) / 16
    order = np.random.default_rng(0).permutation(len(images))
    wide = framed(images)
    parts = []
    for rows in np.split(order, (1200, 1437)):
        moved = [
            wide[rows, 1 + down : 9 + down, 1 + across : 9 + across]
            for down, across in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
        ]
        labels = np.tile(y[rows], len(moved))
        parts.append(Split(np.concatenate(moved).reshape(-1, 64), labels))
    return Dataset(*parts)


def mnist(threshold: int | None = 127) -> Dataset:
    """MNIST, 28×28: 50,000 training, 10,000 validation and 10,000 test rows.

    !!! example

        ```python
        from ebmlearn import datasets

        images = datasets.mnist().train.x  # [50000, 784]
        ```

    **Arguments:**

    - `threshold`: grey levels (0 to 255) above it become 1, others 0. None keeps the grey levels.
    """
    stored = _files.read("mnist")
    sizes = {"x_train": 60000, "x_test": 10000}
    parts = [_pixels("mnist", key, stored[key], (n, 28, 28)) for key, n in sizes.items()]
    x = _binarised(np.concatenate(parts), threshold)
    return _cut(x, np.concatenate([stored["y_train"], stored["y_test"]]), 50000, 60000)


def mnist_zeros() -> Dataset:
    """The contours of the zeros among the 60,000 training digits of MNIST, 30×30: pixels beside,
    above or below the digit that do not belong to it (Lázaro-Gredilla et al. 2021, section 5.3).
    There are 5,000 training and 923 test rows, and no validation rows.

    !!! example

        ```python
        from ebmlearn import datasets

        contours = datasets.mnist_zeros().train.x  # [5000, 900]
        ```
    """
    data = mnist()
    x = np.concatenate([data.train.x, data.valid.x])
    y = np.concatenate([split.y for split in (data.train, data.valid) if split.y is not None])
    digit = framed(x[y == 0].reshape(-1, 28, 28))
    contour = beside(framed(digit)) & (1 - digit)
    return _cut(contour.reshape(-1, 900), None, 5000, 5000)


def caltech_silhouettes() -> Dataset:
    """The Caltech-101 silhouettes, 28×28: 4,100 training, 2,264 validation and 2,307 test rows of
    101 classes, numbered 1 to 101. The object is 0, the background 1.

    !!! example

        ```python
        from ebmlearn import datasets

        data = datasets.caltech_silhouettes()
        data.train.x, data.train.y  # [4100, 784], classes 1 to 101
        ```
    """
    return _unpacked("caltech", "x_")


def nade(name: str) -> Dataset:
    """One of the binary data sets of the NADE experiments.

    !!! example

        ```python
        from ebmlearn import datasets

        connect4 = datasets.nade("connect4")
        connect4.valid.x
        ```

    **Arguments:**

    - `name`: `"adult"`, `"connect4"`, `"dna"`, `"mushrooms"`, `"nips"`, `"ocr_letters"`, `"rcv1"`
      or `"web"`.
    """
    name = name.replace("-", "_") if isinstance(name, str) else name
    _checks.choice("name", name, _files.NADE)
    return _unpacked(name)


def frey_faces() -> Dataset:
    """The Frey faces, 28×20, as integer grey levels from 0 to 255: 1,572 training and 393 test
    rows, and no validation rows.

    !!! example

        ```python
        from ebmlearn import datasets

        faces = datasets.frey_faces().train.x  # [1572, 560], 0 to 255
        ```
    """
    x = _pixels("frey", "x", _files.read("frey")["x"], (1965, 28, 20))
    return _cut(x, None, 1572, 1572)


def _load_digits(caller: str) -> tuple[np.ndarray, np.ndarray]:
    """Grey levels 0 to 16 and classes of scikit-learn's digits."""
    _extras.need(caller, "data")
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return np.asarray(x, np.uint8), np.asarray(y, np.uint8)


def _pixels(name: str, key: str, x: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """Grey levels of images, a row each."""
    if x.shape != shape or x.dtype != np.uint8:
        got = _checks.describe(x)
        raise ValueError(f"`{key}` of {name!r} must be uint8 of shape {shape}, got {got}.")
    return x.reshape(len(x), -1)


def _unpacked(name: str, before: str = "") -> Dataset:
    """A data set of packed bits, in arrays whose names begin so."""
    stored = _files.read(name)
    parts = []
    for part in ("train", "valid", "test"):
        x = _files.unpacked(name, stored, f"{before}{part}_packed")
        parts.append(Split(x, stored.get(f"y_{part}")))
    return Dataset(*parts)


def _cut(x: np.ndarray, y: np.ndarray | None, first: int, second: int) -> Dataset:
    parts = slice(0, first), slice(first, second), slice(second, None)
    return Dataset(*(Split(x[part], None if y is None else y[part]) for part in parts))


def _binarised(x: np.ndarray, threshold: int | None) -> np.ndarray:
    if threshold is None:
        return x
    _checks.count("threshold", threshold, 0)
    return (x > threshold).astype(np.uint8)
