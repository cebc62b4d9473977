"""Checks of arguments, and conversion of data frames, lists, sparse matrices and foreign arrays to
arrays. Each error names the argument, what was expected and what was given.
"""

import contextlib
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._sentinels import LIMIT
from .._types import AnyArray


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
# Longer values are described by their type alone.
_SHORT = 120
_DTYPES = (jnp.dtype(jnp.float32), jnp.dtype(jnp.float64))


def usage(
    example: str, **instead: str
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Makes a function say what to write if arguments are missing or unknown: `example`, or what
    stands under the name of the argument.
    """

    def decorate(fn: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        signature = inspect.signature(fn)

        @functools.wraps(fn)
        def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                name = getattr(fn, "__qualname__", "this")
                unknown = next((k for k in kwargs if k not in signature.parameters), "")
                near = difflib.get_close_matches(unknown, signature.parameters, 1)
                shown = instead.get(unknown, f"{near[0]}=" if near else example)
                said = f"has no argument `{unknown}`" if unknown else _said(error)
                raise TypeError(f"`{name}` {said}: write `{shown}`.") from None
            return fn(*args, **kwargs)

        return checked

    return decorate


def _said(error: TypeError) -> str:
    """The message of `bind`, as the rest of a sentence that begins with the function."""
    text = str(error)
    for old, new in (
        ("missing a required argument:", "is missing the argument"),
        ("missing a required keyword-only argument:", "is missing the argument"),
        ("too many positional arguments", "takes fewer positional arguments"),
    ):
        if text.startswith(old):
            return new + text[len(old) :].replace("'", "`")
    return text


def is_concrete(x: Any) -> bool:
    """Whether the values in a pytree can be looked at: not under `jit`, `vmap` or `grad`."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(x))


def describe(x: Any) -> str:
    """A short description of a value: shape and dtype of an array, else value and type."""
    kind = type(x).__name__
    if isinstance(x, type):
        return f"the class {x.__name__} instead of an object such as `{x.__name__}()`"
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"an array of shape {tuple(x.shape)} and dtype {x.dtype}"
    if isinstance(x, Mapping):
        return f"{article(kind)} with {', '.join(map(repr, x)) or 'no keys'}"
    shown = repr(x)
    return f"{shown} of type {kind}" if len(shown) <= _SHORT else article(kind)


def instance(name: str, x: Any, kind: type | tuple[type, ...], wanted: str, hint: str = "") -> None:
    """Raises `TypeError` unless `x` is of a class. `wanted` says in words what it must be."""
    if not isinstance(x, kind):
        raise TypeError(f"`{name}` must be {wanted}, got {describe(x)}{hint}.")


def function(name: str, x: Any, what: str = "a function") -> None:
    """Raises `TypeError` unless `x` can be called."""
    if not callable(x):
        raise TypeError(f"`{name}` must be {what}, got {describe(x)}.")


def parameter(name: str, x: Any) -> Array:
    """Converts a model parameter to a float32 or float64 array, or raises `TypeError`."""
    try:
        array = jnp.asarray(x)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`{name}` must be an array of floats, got {describe(x)}.") from error
    if array.dtype not in _DTYPES:
        raise TypeError(f"`{name}` must have dtype float32 or float64, got {describe(array)}.")
    return array


def finite(**parameters: Array) -> None:
    """Raises `ValueError` if a parameter whose values are known holds a NaN or an infinity."""
    for name, x in parameters.items():
        # In NumPy, which compiles nothing.
        if is_concrete(x) and not np.isfinite(x).all():
            kind = "NaN" if np.isnan(x).any() else "infinity"
            raise ValueError(f"`{name}` must be finite, got {describe(x)} that holds {kind}.")


def log_potentials(name: str, x: Any) -> Array:
    """Log-potentials, checked. What they exclude is made finite."""
    array = parameter(name, x)
    if is_concrete(array):
        top = np.max(array, initial=-np.inf)
        if not top < np.inf:
            raise ValueError(f"`{name}` must be finite or minus infinity, got NaN or infinity.")
        if top > LIMIT:
            raise ValueError(
                f"`{name}` must hold log-potentials of at most {LIMIT:g}, or minus infinity, got"
                f" {top:g}: subtract the largest, which changes no probability."
            )
    return jnp.clip(array, -LIMIT, LIMIT)


def one_dtype(**parameters: Array) -> None:
    """Raises `TypeError` unless all parameters have the same dtype."""
    if len({x.dtype for x in parameters.values()}) > 1:
        got = ", ".join(f"`{name}` {x.dtype}" for name, x in parameters.items())
        raise TypeError(f"All parameters must have one dtype, got {got}.")


def trailing(name: str, x: AnyArray, shape: tuple[int, ...], meaning: str) -> None:
    """Raises `ValueError` unless the last axes of `x` are `shape`."""
    if x.shape[max(x.ndim - len(shape), 0) :] != shape:
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"`{name}` must have shape (..., {wanted}), {meaning}, got {describe(x)}.")


def exact_shape(name: str, x: AnyArray, shape: tuple[int, ...], meaning: str) -> None:
    """Raises `ValueError` unless the shape of `x` is `shape`."""
    if getattr(x, "shape", None) != shape:
        raise ValueError(f"`{name}` must have shape {shape}, {meaning}, got {describe(x)}.")


def rank(name: str, x: AnyArray, ndim: int, meaning: str) -> None:
    """Raises `ValueError` unless `x` has `ndim` axes."""
    if getattr(x, "ndim", None) != ndim:
        raise ValueError(f"`{name}` must have {ndim} axes, {meaning}, got {describe(x)}.")


def broadcastable(**shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape of the leading (batch) axes, or `ValueError`."""
    try:
        return np.broadcast_shapes(*shapes.values())
    except ValueError as error:
        got = ", ".join(f"`{name}` {shape}" for name, shape in shapes.items())
        raise ValueError(f"The leading (batch) axes must broadcast together, got {got}.") from error


def symmetric(name: str, x: AnyArray) -> None:
    """Raises `ValueError` unless `x` is a square, symmetric matrix with zero diagonal."""
    if x.ndim != 2 or x.shape[0] != x.shape[1]:
        raise ValueError(f"`{name}` must be a square matrix, got {describe(x)}.")
    if not is_concrete(x):
        return
    known = np.asarray(x)
    gap = np.abs(known - known.T).max(initial=0)
    peak = np.abs(np.diagonal(known)).max(initial=0)
    if gap > 0:
        raise ValueError(
            f"`{name}` must be symmetric, got {describe(x)} whose entries (i, j) and (j, i) differ"
            f" by up to {gap:.3g}."
        )
    if peak > 0:
        raise ValueError(
            f"`{name}` must have a zero diagonal, got {describe(x)} with a diagonal entry of"
            f" magnitude {peak:.3g}."
        )


def as_key(key: Any) -> Array:
    """Converts a typed key, an integer seed or an old-style key to a typed PRNG key."""
    if type(key) is int or isinstance(key, np.integer):
        return jax.random.key(int(key))
    dtype = getattr(key, "dtype", None)
    if dtype == jnp.uint32 and jnp.shape(key) == (2,):
        return jax.random.wrap_key_data(jnp.asarray(key))
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        raise TypeError(
            "`key` must be an integer seed, or a key such as `jax.random.key(0)`, got"
            f" {describe(key)}."
        )
    if key.shape != ():
        raise ValueError(f"`key` must be a single key, got {describe(key)}.")
    return key


def key(x: Any) -> None:
    """Raises unless `x` is a key or a seed. Seeds compile nothing: defaults are made on import."""
    if not (type(x) is int or isinstance(x, np.integer)):
        as_key(x)


def count(name: str, x: Any, least: int = 1) -> None:
    """Raises unless `x` is a Python integer of at least `least`."""
    if isinstance(x, bool) or not isinstance(x, (int, np.integer)):
        raise TypeError(f"`{name}` must be an integer, got {describe(x)}.")
    if x < least:
        raise ValueError(f"`{name}` must be at least {least}, got {x}.")


def steps(name: str, x: Any) -> None:
    """Raises unless `x` is a nonnegative integer, in Python or as a scalar array."""
    if isinstance(x, bool) or not (
        isinstance(x, (int, np.integer))
        or (hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.integer) and jnp.shape(x) == ())
    ):
        raise TypeError(f"`{name}` must be an integer, got {describe(x)}.")
    if is_concrete(x) and int(x) < 0:
        raise ValueError(f"`{name}` must not be negative, got {int(x)}.")
    if is_concrete(x) and int(x) >= 2**31:
        raise ValueError(f"`{name}` must be below 2**31, got {int(x)}.")


def number(name: str, x: Any, low: float | int, high: float | int, interval: str) -> None:
    """Raises unless `x` is a real scalar inside `interval`; its brackets say which ends count."""
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        real = isinstance(x, (int, float)) and not isinstance(x, bool)
    else:
        real = jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)
    if not real:
        raise TypeError(f"`{name}` must be a number in {interval}, got {describe(x)}.")
    if jnp.shape(x) != ():
        raise ValueError(f"`{name}` must be a scalar in {interval}, got {describe(x)}.")
    if is_concrete(x):
        value = float(x)
        above = value > low or (interval[0] == "[" and value == low)
        below = value < high or (interval[-1] == "]" and value == high)
        if not (above and below):
            raise ValueError(f"`{name}` must lie in {interval}, got {value}.")


def choice(name: str, x: Any, options: Iterable[str]) -> None:
    """Raises `ValueError` unless `x` is one of `options`."""
    if x not in tuple(options):
        wanted = ", ".join(repr(option) for option in options)
        raise ValueError(f"`{name}` must be one of {wanted}, got {x!r}.")


def real_numbers(name: str, x: Any) -> None:
    """Raises `TypeError` unless an array holds real numbers or booleans."""
    real = jnp.issubdtype(x.dtype, jnp.number) or x.dtype == np.bool_
    if not real or jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"`{name}` must hold real numbers, got {describe(x)}.")


def binary_rows(name: str, x: Any) -> None:
    """Raises `ValueError` if an array whose values are known holds anything but 0 and 1."""
    if is_concrete(x) and x.dtype != np.bool_:
        _all_entries(name, x, (np.asarray(x) == 0) | (np.asarray(x) == 1), "hold 0 and 1 only")


def finite_rows(name: str, x: Any) -> None:
    """Raises `ValueError` if an array whose values are known holds a NaN or an infinity."""
    if is_concrete(x):
        _all_entries(name, x, np.isfinite(np.asarray(x)), "be finite")


def nonnegative_rows(name: str, x: Any) -> None:
    """Raises `ValueError` if an array whose values are known holds a NaN, an infinity or a number
    below 0.
    """
    finite_rows(name, x)
    if is_concrete(x):
        _all_entries(name, x, np.asarray(x) >= 0, "not be negative")


def _all_entries(name: str, x: Any, right: np.ndarray, wanted: str) -> None:
    """Raises `ValueError` unless all entries of an array are right."""
    if not right.all():
        row, got = int(np.argwhere(~right)[0][0]), np.asarray(x)[~right][0]
        raise ValueError(f"`{name}` must {wanted}, got {got} in row {row}.")


def labels(name: str, y: Any, number: int) -> None:
    """Raises `ValueError` unless `y` holds integers from 0 to `number` - 1."""
    dtype = getattr(y, "dtype", np.asarray(y).dtype if isinstance(y, (int, bool)) else None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.integer):
        raise ValueError(f"`{name}` must hold integers, got {describe(y)}.")
    if is_concrete(y):
        values = np.asarray(y)
        wrong = (values < 0) | (values >= number)
        if wrong.any():
            got = values[wrong].flat[0]
            raise ValueError(f"`{name}` must hold labels 0 to {number - 1}, got {got}.")


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
        return jnp.from_dlpack(x)
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
    if x.dtype.kind not in "OUS":
        return x
    if not any(isinstance(v, str | bytes) for v in x.ravel()):
        with contextlib.suppress(TypeError, ValueError):
            missing = np.array([v is None for v in x.ravel()], bool).reshape(x.shape)
            return np.where(missing, np.nan, x).astype(float)
    wrong = next(v for v in x.ravel().tolist() if v is not None and not _is_number(v))
    raise TypeError(
        f"`{name}` must hold numbers, got {wrong!r}: convert text to numbers first, for instance"
        " with `pandas.get_dummies`."
    )
