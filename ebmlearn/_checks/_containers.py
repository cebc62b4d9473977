"""Conversion of data frames, lists, sparse matrices and foreign arrays to arrays."""

import contextlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree


def as_data(name: str, x: Any) -> PyTree:
    """Converts data to arrays: a DataFrame, lists of lists, a sparse matrix, an array of another
    library, or tuples and dictionaries of these. Missing values of data frames and masked arrays
    become NaN. Anything else, such as a loader, is returned unchanged.
    """
    if x is None or isinstance(x, (jax.Array, str)):
        return x
    if isinstance(x, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(x), np.nan, x.data) if np.ma.is_masked(x) else x.data
    if isinstance(x, np.ndarray):
        return _numeric(name, x)
    if isinstance(x, Mapping):
        return {key: as_data(f"{name}[{key!r}]", part) for key, part in x.items()}
    if type(x) in (tuple, list):
        return _of_parts(name, x)
    if hasattr(x, "_fields"):
        return type(x)(*(as_data(f"{name}.{k}", v) for k, v in zip(x._fields, x, strict=True)))
    if hasattr(x, "with_format"):
        raise TypeError(
            f"`{name}` must be an array, got {article(type(x).__name__)}: pass a column as an"
            ' array, such as `dataset.with_format("numpy")["pixels"][:]`.'
        )
    if hasattr(x, "nnz") and hasattr(x, "toarray"):
        return _numeric(name, x.toarray())
    if hasattr(x, "to_numpy"):
        return _of_frame(name, x)
    if hasattr(x, "__array__"):
        return _numeric(name, np.asarray(x))
    if hasattr(x, "__dlpack__"):
        return jax.numpy.from_dlpack(x)
    return x


def article(name: str) -> str:
    """The name of a class with its article, as it is pronounced: an EnergyModel, an RBM, a CRBM."""
    vowels = "AEFHILMNORSX" if name[:2].isupper() else "AEIO"
    return f"an {name}" if name[0].upper() in vowels else f"a {name}"


def _of_parts(name: str, x: Any) -> Any:
    """A list of numbers becomes one array; other tuples and lists hold arrays."""
    if not x:
        return x
    first = x[0]
    entry = first[0] if isinstance(first, (tuple, list)) and first else first
    if isinstance(entry, str):
        return _numeric(name, np.asarray(x, object))
    if _is_number(entry):
        try:
            return _numeric(name, np.asarray(x))
        except ValueError:
            lengths = sorted({len(row) for row in x if isinstance(row, (tuple, list))})
            raise ValueError(
                f"`{name}` must hold rows of one length, got rows of {lengths} numbers."
            ) from None
    return type(x)(as_data(f"{name}[{k}]", part) for k, part in enumerate(x))


def _is_number(x: Any) -> bool:
    return x is None or isinstance(x, (bool, int, float, np.bool_, np.integer, np.floating))


def _of_frame(name: str, x: Any) -> np.ndarray:
    """A data frame or a series, with NaN where a value is missing."""
    found = np.asarray(x.to_numpy())
    if found.dtype == object:
        with contextlib.suppress(TypeError, ValueError):
            found = np.asarray(x.to_numpy(dtype=float, na_value=np.nan))
    return _numeric(name, found)


def _numeric(name: str, x: np.ndarray) -> np.ndarray:
    """Converts an array to numbers; None is a missing value."""
    if x.dtype != object:
        return x
    try:
        missing = np.array([v is None for v in x.ravel()], bool).reshape(x.shape)
        return np.where(missing, np.nan, x).astype(float)
    except (TypeError, ValueError):
        wrong = next(v for v in x.ravel() if v is not None and not _is_number(v))
        raise TypeError(
            f"`{name}` must hold numbers, got {wrong!r}: convert text to numbers first, for"
            " instance with `pandas.get_dummies`."
        ) from None
