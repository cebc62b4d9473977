"""The contents of data files, and where their originals are published."""

import io
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..training._file import write as write_file


class File(NamedTuple):
    """A file `name`.npz: the arrays it must hold, and how to make it."""

    name: str
    arrays: str
    origin: str
    convert: str


_LIBSVM = "from the LIBSVM data sets"
_NADE = {
    "adult": _LIBSVM,
    "connect4": _LIBSVM,
    "dna": _LIBSVM,
    "mushrooms": _LIBSVM,
    "nips": "NIPS 0-12 (Roweis), as amat files",
    "ocr_letters": "OCR letters (Kassel; Taskar et al. 2003)",
    "rcv1": "Reuters RCV1, the 150 most frequent words, as amat files",
    "web": _LIBSVM,
}
NADE = tuple(_NADE)
FILES = {
    "mnist": File(
        "mnist",
        "x_train, y_train, x_test, y_test",
        "the MNIST database of handwritten digits (LeCun, Cortes & Burges), four idx files",
        "mnist FOLDER_OF_IDX_FILES",
    ),
    "caltech": File(
        "caltech101_silhouettes_28",
        "x_train_packed, x_valid_packed, x_test_packed, y_train, y_valid, y_test, n_vis",
        "the CalTech 101 Silhouettes data set (Marlin et al. 2010),"
        " caltech101_silhouettes_28_split1.mat",
        "caltech MAT_FILE",
    ),
    "frey": File(
        "frey_faces",
        "x",
        "the Frey faces (Roweis & Saul 2000), frey_rawface.mat",
        "frey MAT_FILE",
    ),
    "border": File(
        "border_ownership",
        "noisy_train, contour_train, in_train, noisy_test, contour_test, in_test, p_contour_train,"
        " n_vis",
        "made at random from the MNIST database of handwritten digits (LeCun, Cortes & Burges),"
        " four idx files",
        "border FOLDER_OF_IDX_FILES",
    ),
    **{
        name: File(
            f"nade_{name}",
            "train_packed, valid_packed, test_packed, n_vis",
            "the binary data sets of the NADE experiments (Larochelle & Murray 2011), three text"
            f" files; {origin}",
            f"{name} TRAIN_FILE VALID_FILE TEST_FILE",
        )
        for name, origin in _NADE.items()
    },
}


def folder() -> Path:
    """The folder of the data sets."""
    path = os.environ.get("EBMLEARN_DATA")
    if not path:
        raise FileNotFoundError(
            "The environment variable `EBMLEARN_DATA` must name the folder of the data sets, got"
            " nothing: set it, or use `ebmlearn.datasets.digits`, which needs no files."
        )
    if not Path(path).is_dir():
        raise FileNotFoundError(f"`EBMLEARN_DATA` must name a folder, got {path!r}.")
    return Path(path)


def read(name: str) -> dict[str, np.ndarray]:
    """The arrays of a data set."""
    file = FILES[name]
    path = folder() / f"{file.name}.npz"
    if not path.exists():
        raise FileNotFoundError(
            f"There is no {path}. To make it from {file.origin}, run"
            f" `python -m ebmlearn.datasets convert {file.convert}`."
        )
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
    except (EOFError, OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"`{path}` must be an npz file of plain arrays, got: {error}.") from error
    if not arrays.keys() >= set(file.arrays.split(", ")):
        raise ValueError(f"`{path}` must hold the arrays {file.arrays}, got {', '.join(arrays)}.")
    return arrays


def unpacked(name: str, arrays: dict[str, np.ndarray], key: str) -> np.ndarray:
    """Binary rows from their bits."""
    units, packed = int(arrays["n_vis"]), arrays[key]
    if packed.ndim != 2 or packed.dtype != np.uint8 or packed.shape[1] != -(-units // 8):
        raise ValueError(
            f"`{key}` of {name!r} must be uint8 of shape (rows, {-(-units // 8)}), the bits of"
            f" {units} units, got {packed.dtype} of shape {packed.shape}."
        )
    return np.unpackbits(packed, axis=1, count=units)


def write(name: str, arrays: dict[str, Any], to: Path) -> Path:
    """Writes a data set, whole or not at all."""
    if not to.is_dir():
        raise FileNotFoundError(f"`--to` must name a folder, got {str(to)!r}.")
    path, content = to / f"{FILES[name].name}.npz", io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_file(path, content.getvalue())
    return path
