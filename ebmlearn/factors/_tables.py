import math
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .. import _checks
from .._sentinels import EXCLUDED
from .._types import AnyArray
from ..units import AbstractUnits
from ._base import AbstractFactor, scaled_potentials, Stacks, States


class Tables(AbstractFactor):
    """Log-potentials of the states of a few units: any number of tables of one shape,
    $-\\sum_k T_k(x_{s_k})$.

    !!! example

        ```python
        # Species 0 and 1 belong to genus 0, species 2 to genus 1.
        belongs = jnp.array([[True, True, False], [False, False, True]])
        ebmlearn.Tables(("genus", "species"), jnp.where(belongs, 0.0, -jnp.inf))
        ```
    """

    axes: tuple[str, ...] = eqx.field(static=True)
    layout: tuple[tuple[int, int, bool], ...] = eqx.field(static=True)
    members: Int[AnyArray, "tables _"]
    log_potentials: Float[Array, "tables ..."]

    def __init__(
        self,
        groups: Sequence[str],
        log_potentials: Float[AnyArray, "..."],
        members: Int[AnyArray, "tables _"] | None = None,
        layout: tuple[tuple[int, int, bool], ...] = (),
    ):
        """**Arguments:**

        - `groups`: the name of the group of each axis of a table; a name may stand several times.
        - `log_potentials`: with an axis for each of these; minus infinity excludes a
          configuration. With `members` a first axis for the tables.
        - `members`: for each table and each axis, the number of the unit in its group. Without it
          there is one table, of the first unit of each group.
        - `layout`: for each axis the size of its group, the number of states of its units, and
          whether these are one-hot inside; the model sets it.
        """
        self.axes = (groups,) if isinstance(groups, str) else tuple(groups)
        if members is None:
            log_potentials = jnp.asarray(log_potentials)[None]
            members = np.zeros((1, len(self.axes)), np.int32)
        self.members = members
        self.log_potentials = log_potentials  # pyright: ignore
        self.layout = layout

    @property
    def groups(self) -> tuple[str, ...]:
        return self.axes

    @property
    def parameters(self) -> tuple[Any, ...]:
        return (self.log_potentials,)

    def bound(self, units: Mapping[str, AbstractUnits]) -> "Tables":
        name = f"Tables({self.axes!r})"
        table = _checks.log_potentials(f"{name}.log_potentials", self.log_potentials)
        states = tuple(_number(name, group, units[group]) for group in self.axes)
        shape = (len(self.members), *states)
        _checks.exact_shape(f"{name}.log_potentials", table, shape, "as units have states")
        members = np.asarray(self.members)
        if members.shape != (len(table), len(self.axes)) or members.dtype.kind != "i":
            raise ValueError(
                f"`{name}.members` must be integers of shape {(len(table), len(self.axes))}, got"
                f" {_checks.describe(self.members)}."
            )
        for axis, group in enumerate(self.axes):
            own, size = members[:, axis], units[group].size
            if ((own < 0) | (own >= size)).any():
                raise ValueError(
                    f"`{name}.members` must be below {size}, the number of units of {group!r}, got"
                    f" {int(own[(own < 0) | (own >= size)][0])}."
                )
        for a in range(len(self.axes)):
            for b in range(a):
                twice = members[:, a] == members[:, b]
                if self.axes[a] == self.axes[b] and twice.any():
                    raise ValueError(
                        f"`{name}.members` must hold each unit once in a table, got unit"
                        f" {int(members[:, a][twice][0])} of {self.axes[a]!r} twice."
                    )
        kinds: list[Any] = [units[group] for group in self.axes]
        layout = tuple((u.size, u.number, u.width != u.size) for u in kinds)
        return Tables(self.axes, table, members.astype(np.int32), layout)

    def energy(self, states: States) -> Float[Array, "..."]:
        found = self._met(states)
        return -jnp.where(found < EXCLUDED / 2, -jnp.inf, found).sum(-1)

    def given(self, states: States, group: str) -> Float[Array, "... _"]:
        _, _, one_hot = self.layout[self.axes.index(group)]
        out = self.scores(states, group)
        if one_hot:
            return out.reshape(*out.shape[:-2], math.prod(out.shape[-2:]))
        return out[..., 1] - out[..., 0]

    def scores(self, states: States, group: str, units: Any = None) -> Float[Array, "... n number"]:
        axes = [axis for axis, own in enumerate(self.axes) if own == group]
        size, number, _ = self.layout[axes[0]]
        out: Any = 0.0
        for axis in axes:
            found = self._open(states, axis)
            rows = jnp.zeros((*found.shape[:-2], size, number), found.dtype)
            out = out + rows.at[..., self.members[:, axis], : found.shape[-1]].add(found)
        return out

    def tempered(self, beta: float | Float[AnyArray, ""]) -> "Tables":
        scaled = scaled_potentials(self.log_potentials, beta)
        return Tables(self.axes, scaled, self.members, self.layout)

    def stacks(self, units: Mapping[str, AbstractUnits], starts: Mapping[str, int]) -> Stacks:
        first = np.asarray([starts[group] for group in self.axes], np.int32)
        return ((self.members + first[None], self.log_potentials),)

    def size(self, units: Mapping[str, AbstractUnits]) -> int:
        return len(self.members) * sum(self.log_potentials.shape[1:])

    def _met(self, states: States) -> Float[Array, "... tables"]:
        """The log-potential of each table."""
        if not self.axes:
            return self.log_potentials
        found = self._open(states, 0)
        own = self._probabilities(states, 0)
        return jnp.einsum("...tz,...tz->...t", found, own, precision="highest")

    def _open(self, states: States, axis: int) -> Float[Array, "... tables number"]:
        """The log-potentials of the states of one unit of each table, the others as they are."""
        others = [k for k in range(len(self.axes)) if k != axis]
        table = jnp.moveaxis(self.log_potentials, axis + 1, -1)
        if all(jnp.issubdtype(states[self.axes[k]].dtype, jnp.integer) for k in others):
            flat = table.reshape(table.shape[0], -1, table.shape[-1])
            at: Any = jnp.zeros((), jnp.int32)
            for k in others:
                own = states[self.axes[k]][..., self.members[:, k]].astype(jnp.int32)
                at = at * self.log_potentials.shape[k + 1] + own
            return flat[jnp.arange(table.shape[0]), at] if others else flat[:, 0]
        # One axis after the other, the last first.
        left = list("abcdefghijklmnopqrs"[: len(others)])
        for k in reversed(others):
            last, inner = left.pop(), "".join(left)
            rule = f"...t{inner}{last}z,...t{last}->...t{inner}z"
            table = jnp.einsum(rule, table, self._probabilities(states, k), precision="highest")
        return table

    def _probabilities(self, states: States, axis: int) -> Float[Array, "... tables number"]:
        """Those of the states of the units along an axis."""
        x, members = states[self.axes[axis]], self.members[:, axis]
        own, (size, number, one_hot) = self.log_potentials.shape[axis + 1], self.layout[axis]
        if jnp.issubdtype(x.dtype, jnp.integer):
            return jax.nn.one_hot(x[..., members], own, dtype=self.log_potentials.dtype)
        if one_hot:
            return x.reshape(*x.shape[:-1], size, number)[..., members, :own]
        return jnp.stack([1 - x, x], -1)[..., members, :]


def _number(name: str, group: str, units: Any) -> int:
    if not units.numbered:
        raise TypeError(
            f"`{name}` must join binary or categorical units, got {type(units).__name__} in"
            f" {group!r}."
        )
    return units.number
