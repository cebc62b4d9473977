from collections.abc import Iterable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from .. import _checks
from ._file import checksum


class Feed(eqx.Module):
    """The source of batches on the device: all rows, shuffled in each epoch, or one batch."""

    data: PyTree
    steps: int = eqx.field(static=True)  # of an epoch
    batch_size: int | None = eqx.field(static=True)  # None if `data` is a batch

    @property
    def rows(self) -> int:
        return jax.tree.leaves(self.data)[0].shape[0]

    def order(self, key: PRNGKeyArray, epoch: Int[Array, ""]) -> Int[Array, " rows"]:
        """The order of the rows in an epoch."""
        if self.batch_size is None:
            return jnp.zeros(0, jnp.int32)
        own = jax.random.fold_in(key, epoch)
        return jax.random.permutation(own, self.rows).astype(jnp.int32)

    def batch(self, order: Int[Array, " rows"], k: Int[Array, ""]) -> PyTree:
        """The `k`-th batch in an order."""
        if self.batch_size is None:
            return self.data
        rows = jax.lax.dynamic_slice(order, (k * self.batch_size,), (self.batch_size,))
        return jax.tree.map(lambda x: x.at[rows].get(mode="promise_in_bounds"), self.data)

    def first(self) -> PyTree:
        """Rows to check the model against."""
        return jax.tree.map(lambda x: x[: self.batch_size], self.data)

    def about(self) -> dict[str, Any]:
        data = checksum(jax.tree.leaves(self.data))
        return {"rows": self.rows, "batch_size": self.batch_size, "data": data}


def _in_memory(data: PyTree, batch_size: int | None) -> Feed:
    """Arrays of rows as a source of batches, checked."""
    leaves = jax.tree.leaves(data)
    if not leaves:
        raise ValueError(f"`data` must contain at least one array, got {_checks.describe(data)}.")
    for leaf in leaves:
        if not hasattr(leaf, "shape") or not leaf.shape:
            got = _checks.describe(leaf)
            raise TypeError(f"`data` must hold arrays of shape [rows, ...], got {got}.")
    lengths = [leaf.shape[0] for leaf in leaves]
    rows = lengths[0]
    if len(set(lengths)) > 1:
        got = ", ".join(map(str, lengths))
        raise ValueError(f"`data` must hold arrays of the same length, got {got} rows.")
    if rows == 0:
        raise ValueError("`data` must contain at least one row, got 0.")
    batch_size = min(100, rows) if batch_size is None else batch_size
    _checks.count("batch_size", batch_size)
    if batch_size > rows:
        raise ValueError(
            f"`batch_size` must be at most the {rows} rows of `data`, got {batch_size}."
        )
    return Feed(jax.tree.map(jnp.asarray, data), rows // batch_size, batch_size)


class Batches:
    """Data as an iterable of batches, which is iterated once in each epoch."""

    def __init__(self, data: Iterable, batch_size: int | None):
        wanted = "an array, a tuple of arrays, or an iterable of batches"
        _checks.instance("data", data, Iterable, wanted)
        if isinstance(data, Iterator):
            raise ValueError(
                "`data` must be an iterable that can be iterated again in each epoch, such as a"
                f" list or a loader, got {_checks.describe(data)}."
            )
        if batch_size is not None:
            raise ValueError(
                f"`batch_size` must be None if `data` yields batches, got {batch_size}."
            )
        self.data, self.batch_size = data, None
        self.steps: int | None = len(data) if hasattr(data, "__len__") else None  # pyright: ignore

    def first(self) -> PyTree:
        """A batch to check the model against."""
        for batch in self.data:
            return batch
        raise ValueError("`data` must yield at least one batch, got 0.")

    def about(self) -> dict[str, Any]:
        return {"rows": None, "batch_size": None}


def source(data: Any, batch_size: int | None) -> Feed | Batches:
    return _in_memory(data, batch_size) if is_in_memory(data) else Batches(data, batch_size)


def is_in_memory(data: Any) -> bool:
    """Whether data are arrays, or tuples and dictionaries of them."""
    return isinstance(data, (tuple, dict, np.ndarray, jax.Array))
