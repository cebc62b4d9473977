"""What a configuration meets of stacks of tables, each of one shape."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._sentinels import EXCLUDED
from .._types import AnyArray


def strides(shape: Sequence[int]) -> list[int]:
    """How far apart neighbours along each axis of a table lie."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def met(
    table: Float[Array, "tables ..."], members: Int[AnyArray, "tables _"], states: Int[Array, " n"]
) -> Int[Array, " tables"]:
    """Where in each table, its axes laid out as one, a configuration lies."""
    own = states[members]
    at = jnp.zeros(table.shape[0], jnp.int32)
    for axis, stride in enumerate(strides(table.shape[1:])):
        at = at + stride * own[:, axis].astype(jnp.int32)
    return at


def log_potential(
    tables: tuple[Float[Array, "..."], ...],
    members: tuple[Int[AnyArray, "_ _"], ...],
    states: Int[Array, " variables"],
) -> Float[Array, ""]:
    """The sum of the log-potentials that one configuration meets, minus infinity where one
    excludes it.
    """
    out = jnp.zeros((), tables[0].dtype if tables else jnp.float32)
    for table, own in zip(tables, members, strict=True):
        flat = table.reshape(table.shape[0], -1)
        found = jnp.take_along_axis(flat, met(table, own, states)[:, None], axis=1)[:, 0]
        out = out + jnp.where(found < EXCLUDED / 2, -jnp.inf, found).sum()
    return out


def features(
    tables: tuple[Float[Array, "..."], ...],
    members: tuple[Int[AnyArray, "_ _"], ...],
    states: Int[Array, " variables"],
) -> tuple[Float[Array, "..."], ...]:
    """1 for each log-potential that one configuration meets."""
    return tuple(
        jax.nn.one_hot(met(x, own, states), math.prod(x.shape[1:]), dtype=x.dtype).reshape(x.shape)
        for x, own in zip(tables, members, strict=True)
    )


def given(
    tables: tuple[Float[Array, "..."], ...],
    members: tuple[Int[AnyArray, "_ _"], ...],
    states: Int[Array, " variables"],
    fields: Float[Array, "variables most"],
) -> Float[Array, "variables most"]:
    """Fields with the log-potential of each state of each variable given all others."""
    for table, own in zip(tables, members, strict=True):
        flat, shape = table.reshape(table.shape[0], -1), table.shape[1:]
        at = met(table, own, states)
        for axis, stride in enumerate(strides(shape)):
            first = at - stride * states[own[:, axis]].astype(jnp.int32)
            every = first[:, None] + stride * jnp.arange(shape[axis], dtype=jnp.int32)[None]
            found = jnp.take_along_axis(flat, every, axis=1)
            fields = fields.at[own[:, axis], : shape[axis]].add(found)
    return fields
