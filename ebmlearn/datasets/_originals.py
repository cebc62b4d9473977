"""From the files of the original distributions to those that the loaders read."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from . import _files
from ._border import made_from


def mnist(folder: Path) -> dict[str, np.ndarray]:
    """From the four idx files, compressed or not."""
    out = {}
    for part, start in (("train", "train"), ("test", "t10k")):
        for key, name in (("x", f"{start}-images"), ("y", f"{start}-labels")):
            found = sorted(folder.glob(f"{name}*ubyte*")) if folder.is_dir() else []
            if not found:
                raise FileNotFoundError(f"`{folder}` must hold an idx file {name}*, got none.")
            out[f"{key}_{part}"] = idx(found[0])
    return out


def idx(path: Path) -> np.ndarray:
    """An array of bytes in the idx format."""
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"`{path}` must be a whole gzip file, got: {error}.") from error
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise ValueError(
            f"`{path}` must be an idx file of bytes, got one beginning {content[:4]!r}."
        )
    ndim = content[3]
    head = 4 + 4 * ndim
    if len(content) < head:
        raise ValueError(f"`{path}` must name {ndim} sizes, got {len(content)} bytes: truncated.")
    shape = struct.unpack(f">{ndim}I", content[4:head])
    if len(content) - head != int(np.prod(shape)):
        raise ValueError(
            f"`{path}` must hold {int(np.prod(shape))} bytes after its header, got"
            f" {len(content) - head}."
        )
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def border(folder: Path) -> dict[str, np.ndarray]:
    """Noisy contours with labels, from the four idx files of MNIST. The noise is the same each
    time, but not that of the authors of the data, whose seed is not known.
    """
    digits = mnist(folder)
    out: dict[str, np.ndarray] = {}
    for seed, part in enumerate(("train", "test")):
        images = digits[f"x_{part}"]
        if images.shape[1:] != (28, 28):
            raise ValueError(f"`{folder}` must hold images of 28×28, got {images.shape[1:]}.")
        made = made_from(images, np.random.default_rng(seed))
        out |= {f"{key}_{part}": value for key, value in made.items()}
    return {**out, "n_vis": np.asarray(900)}


def caltech(path: Path) -> dict[str, np.ndarray]:
    """From caltech101_silhouettes_28_split1.mat; images are turned from columns to rows."""
    out: dict[str, np.ndarray] = {}
    for part, name in (("train", "train"), ("valid", "val"), ("test", "test")):
        x, y = _mat(path, f"{name}_data"), _mat(path, f"{name}_labels")
        upright = x.reshape(len(x), 28, 28).transpose(0, 2, 1).reshape(len(x), 784)
        out[f"x_{part}_packed"] = _packed(path, upright)
        out[f"y_{part}"] = y.ravel().astype(np.uint8)
    names = [str(name[0]) for name in _mat(path, "classnames").ravel()]
    return {**out, "classnames": np.array(names), "n_vis": np.asarray(784)}


def frey(path: Path) -> dict[str, np.ndarray]:
    """From frey_rawface.mat, whose columns are images."""
    faces = _mat(path, "ff")
    if faces.shape[0] != 560:
        raise ValueError(f"`ff` of {path} must have 560 rows, got {faces.shape}.")
    return {"x": np.ascontiguousarray(faces.T).reshape(-1, 28, 20).astype(np.uint8)}


def nade(paths: list[Path], units: int | None, style: str | None) -> dict[str, np.ndarray]:
    """From three text files: libsvm (`label index:value ...`, indices from 1) or amat (numbers, the
    label last).
    """
    parts = []
    for path in paths:
        kind = style or path.suffix.removeprefix(".")
        parts.append(amat(path) if kind == "amat" else libsvm(path))
    wide = max(x.shape[1] for x, _ in parts)
    units = wide if units is None else units
    if wide > units:
        raise ValueError(f"`--units` must be at least {wide}, as the files have, got {units}.")
    out: dict[str, np.ndarray] = {}
    for part, path, (x, labels) in zip(("train", "valid", "test"), paths, parts, strict=True):
        out[f"{part}_packed"] = _packed(path, np.pad(x, ((0, 0), (0, units - x.shape[1]))))
        if (labels == labels.round()).all():
            out[f"y_{part}"] = labels.astype(np.int32)
    return {**out, "n_vis": np.asarray(units)}


def libsvm(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A dense array, and the labels, from `label index:value ...` lines."""
    rows, labels = [], []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            label, *words = line.split("#")[0].split()
            pairs = [word.split(":") for word in words]
            labels.append(float(label))
            rows.append({int(index): float(value) for index, value in pairs})
        except ValueError as error:
            raise ValueError(
                f"`{path}` must hold `label index:value ...`, got line {number}: {line[:60]!r}."
            ) from error
    if not rows:
        raise ValueError(f"`{path}` must contain at least one row, got 0.")
    if min(min(row, default=1) for row in rows) < 1:
        raise ValueError(f"`{path}` must count indices from 1, got a smaller one.")
    out = np.zeros((len(rows), max(max(row, default=1) for row in rows)))
    for k, row in enumerate(rows):
        out[k, np.array([*row], int) - 1] = [*row.values()]
    return out, np.array(labels)


def amat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A dense array, and the labels, from lines of numbers whose last is the label."""
    try:
        rows = np.loadtxt(path, ndmin=2)
        return rows[:, :-1], rows[:, -1]
    except ValueError as error:
        raise ValueError(f"`{path}` must hold lines of the same length, got: {error}.") from error


def _packed(path: Path, x: np.ndarray) -> np.ndarray:
    wrong = (x != 0) & (x != 1)
    if wrong.any():
        raise ValueError(f"`{path}` must hold 0 and 1 only, got {x[wrong][0]}.")
    return np.packbits(x.astype(np.uint8), axis=1)


def _mat(path: Path, key: str) -> np.ndarray:
    """One array of a .mat file."""
    import scipy.io

    if not path.is_file():
        raise FileNotFoundError(f"`{path}` must be a .mat file, got none.")
    try:
        stored = scipy.io.loadmat(path)
    except (ValueError, TypeError, NotImplementedError, scipy.io.matlab.MatReadError) as error:
        raise ValueError(f"`{path}` must be a .mat file, got: {error}.") from error
    if key not in stored:
        got = ", ".join(name for name in stored if not name.startswith("__"))
        raise ValueError(f"`{path}` must hold `{key}`, got {got}.")
    return stored[key]


def convert(name: str, paths: list[Path], units: int | None, style: str | None) -> dict:
    """The arrays of a data set, from the files of its original distribution."""
    if name in _files.NADE:
        if len(paths) != 3:
            raise ValueError(f"`{name}` must be made from three files, got {len(paths)}.")
        return nade(paths, units, style)
    if len(paths) != 1:
        raise ValueError(f"`{name}` must be made from one path, got {len(paths)}.")
    makers = {"mnist": mnist, "border": border, "caltech": caltech, "frey": frey}
    return makers[name](paths[0])
