import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num, Shaped

from .. import _checks
from .._sentinels import EXCLUDED
from .._types import AnyArray
from ..units import AbstractUnits
from ._base import AbstractFactor, scaled_potentials, Stacks, States


# From the first end of an edge to its second, for the eight neighbours of a pixel: down, right,
# along the diagonal, along the antidiagonal.
OFFSETS = ((1, 0), (0, 1), (1, 1), (1, -1))


class Lattice(AbstractFactor):
    """One table of log-potentials for all pairs of units of two grids that lie an offset apart,
    $-\\sum_p T(x_p, y_{p + o})$. The grids may be one and the same. Units are categorical, and
    stand row by row.

    !!! example

        ```python
        from ebmlearn.factors import Lattice

        # Each pixel and the one below it; each pixel and what is seen of it.
        down = Lattice("state", "state", jnp.eye(3), (30, 30), (1, 0))
        seen = Lattice("state", "seen", jnp.eye(3), (30, 30), (0, 0))
        ```
    """

    first: str = eqx.field(static=True)
    second: str = eqx.field(static=True)
    table: Float[Array, "m n"]
    shape: tuple[int, ...] = eqx.field(static=True)
    offset: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        first: str,
        second: str,
        table: Float[AnyArray, "m n"],
        shape: tuple[int, ...],
        offset: tuple[int, ...],
    ):
        """**Arguments:**

        - `first`, `second`: the names of the groups, which may be one and the same.
        - `table`: with a row for each state of a unit of the first group, and a column for each of
          the second; minus infinity excludes a pair of states.
        - `shape`: the shape of the grid, such as its height and its width.
        - `offset`: where the second unit of a pair is, seen from the first, along each axis.
        """
        self.first, self.second = first, second
        self.table = table  # pyright: ignore
        self.shape, self.offset = tuple(shape), tuple(offset)

    @property
    def groups(self) -> tuple[str, ...]:
        return (self.first, self.second)

    @property
    def parameters(self) -> tuple[Any, ...]:
        return (self.table,)

    def bound(self, units: Mapping[str, AbstractUnits]) -> "Lattice":
        name = f"Lattice({self.first!r}, {self.second!r})"
        ends: list[Any] = [units[group] for group in self.groups]
        for group, own in zip(self.groups, ends, strict=True):
            if own.family != "categorical":
                raise TypeError(
                    f"`{name}` must join categorical units, got {type(own).__name__} in {group!r}."
                )
            if math.prod(self.shape) != own.size:
                raise ValueError(
                    f"`{name}.shape` must have a place for each of {own.size} units of {group!r},"
                    f" got {self.shape}."
                )
        if len(self.offset) != len(self.shape):
            raise ValueError(
                f"`{name}.offset` must have {len(self.shape)} numbers, got {self.offset}."
            )
        if self.first == self.second and not any(self.offset):
            raise ValueError(f"`{name}.offset` must join no unit to itself, got {self.offset}.")
        table = _checks.log_potentials(f"{name}.table", self.table)
        numbers = tuple(own.number for own in ends)
        _checks.exact_shape(f"{name}.table", table, numbers, "as units have states")
        return self._with(table)

    def energy(self, states: States) -> Float[Array, "..."]:
        first, second = ends(self.shape, self.offset)
        one, two = self._placed(states, 0), self._placed(states, 1)
        if _numbered(one) and _numbered(two):
            met = self.table[one[..., *first], two[..., *second]]
        else:
            pulled = self._pulled(states, 0)[..., *first, :]
            if _numbered(two):
                two = jax.nn.one_hot(two, self.table.shape[1], dtype=self.table.dtype)
            met = (pulled * two[..., *second, :]).sum(-1)
        # Mean field differentiates in probabilities of what is excluded, too.
        never = jnp.where(met < EXCLUDED / 2, -jnp.inf, jnp.zeros_like(met))
        met = met + jax.lax.stop_gradient(never)
        return -met.sum(tuple(range(met.ndim - len(self.shape), met.ndim)))

    def given(self, states: States, group: str) -> Float[Array, "... _"]:
        parts = []
        if group == self.second:
            parts.append(moved(self._pulled(states, 0), self.offset))
        if group == self.first:
            back = tuple(-step for step in self.offset)
            parts.append(moved(self._pulled(states, 1), back))
        out = sum(parts[1:], parts[0])
        kept = out.ndim - len(self.shape) - 1
        return out.reshape(*out.shape[:kept], math.prod(out.shape[kept:]))

    def tempered(self, beta: float | Float[AnyArray, ""]) -> "Lattice":
        return self._with(scaled_potentials(self.table, beta))

    def stacks(self, units: Mapping[str, AbstractUnits], starts: Mapping[str, int]) -> Stacks:
        """The table at each place."""
        at = np.arange(math.prod(self.shape), dtype=np.int32).reshape(self.shape)
        first, second = (at[own].ravel() for own in ends(self.shape, self.offset))
        if not first.size:
            return ()
        members = np.stack([first + starts[self.first], second + starts[self.second]], 1)
        tables = jnp.broadcast_to(self.table, (len(members), *self.table.shape))
        return ((members.astype(np.int32), tables),)

    def size(self, units: Mapping[str, AbstractUnits]) -> int:
        pairs = math.prod(max(n - abs(d), 0) for n, d in zip(self.shape, self.offset, strict=True))
        return pairs * sum(self.table.shape)

    def _with(self, table: Float[Array, "m n"]) -> "Lattice":
        return Lattice(self.first, self.second, table, self.shape, self.offset)

    def _placed(self, states: States, axis: int) -> Num[Array, "..."]:
        """The states at one end as a grid: integers, or a last axis of probabilities."""
        x = states[self.groups[axis]]
        own = self.shape if _numbered(x) else (*self.shape, self.table.shape[axis])
        return x.reshape(*x.shape[:-1], *own)

    def _pulled(self, states: States, axis: int) -> Float[Array, "..."]:
        """What the units at one end say of each state of the other."""
        x, table = self._placed(states, axis), self.table.T if axis else self.table
        return table[x] if _numbered(x) else jnp.matmul(x, table, precision="highest")


def ends(shape: tuple[int, ...], offset: tuple[int, ...]) -> tuple[tuple, tuple]:
    """Where the first and the second ends of all pairs that lie an offset apart are."""
    axes = list(zip(shape, offset, strict=True))
    first = tuple(slice(max(-d, 0), max(n - max(d, 0), 0)) for n, d in axes)
    return first, tuple(slice(max(d, 0), max(n - max(-d, 0), 0)) for n, d in axes)


def moved(x: Shaped[Array, "... states"], offset: tuple[int, ...]) -> Shaped[Array, "... states"]:
    """An array moved by an offset, zero where nothing comes from."""
    same = [(0, 0, 0)] * (x.ndim - len(offset) - 1)
    steps = [(step, -step, 0) for step in offset]
    return jax.lax.pad(x, jnp.zeros((), x.dtype), [*same, *steps, (0, 0, 0)])


def _numbered(x: Num[Array, "..."]) -> bool:
    """Whether states are integers."""
    return jnp.issubdtype(x.dtype, jnp.integer)
