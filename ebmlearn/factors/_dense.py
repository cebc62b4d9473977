from collections.abc import Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .. import _checks
from .._types import AnyArray
from ..units import AbstractUnits
from ._base import AbstractFactor, Stacks, States


class Dense(AbstractFactor):
    """Products of the internal states of two groups, $-x_a^\\top W x_b$; of a group with itself,
    $-\\tfrac12 x_a^\\top W x_a$ with $W$ symmetric and zero within each unit.

    !!! example

        ```python
        ebmlearn.Dense("visible", "hidden", np.zeros((16, 8)))
        ```
    """

    first: str = eqx.field(static=True)
    second: str = eqx.field(static=True)
    weights: Float[Array, "m n"]
    edges: tuple[tuple[int, int], ...] | None = eqx.field(static=True)

    def __init__(
        self,
        first: str,
        second: str,
        weights: Float[AnyArray, "m n"],
        edges: tuple[tuple[int, int], ...] | None = None,
    ):
        """**Arguments:**

        - `first`, `second`: the names of the groups, which may be one and the same.
        - `weights`: an array with a row for each number of the internal state of the first group,
          and a column for each of the second: one number a binary unit, one for each state of a
          categorical unit.
        - `edges`: the pairs of units of one group that are joined, if not all of them are. Units
          that are not joined are drawn at once.
        """
        self.first, self.second, self.edges = first, second, edges
        self.weights = weights  # pyright: ignore

    @property
    def groups(self) -> tuple[str, ...]:
        return (self.first, self.second)

    @property
    def parameters(self) -> tuple[Any, ...]:
        return (self.weights,)

    def bound(self, units: Mapping[str, AbstractUnits]) -> "Dense":
        name = f"Dense({self.first!r}, {self.second!r}).weights"
        weights = _checks.parameter(name, self.weights)
        one, two = units[self.first], units[self.second]
        _checks.exact_shape(name, weights, (one.width, two.width), "as the groups are wide")
        _checks.finite(**{name: weights})
        if self.first == self.second:
            _checks.symmetric(name, weights)
        return self._with(weights)

    def energy(self, states: States) -> Float[Array, "..."]:
        share = 0.5 if self.first == self.second else 1.0
        one, two = self._inside(states, self.first, 0), self._inside(states, self.second, 1)
        return -share * ((one @ self.weights) * two).sum(-1)

    def given(self, states: States, group: str) -> Float[Array, "... _"]:
        if group == self.second:
            return self._inside(states, self.first, 0) @ self.weights
        return self._inside(states, self.second, 1) @ self.weights.T

    def tempered(self, beta: float | Float[AnyArray, ""]) -> "Dense":
        return self._with(jnp.asarray(beta, self.weights.dtype) * self.weights)

    def stacks(self, units: Mapping[str, AbstractUnits], starts: Mapping[str, int]) -> Stacks:
        """A table for each pair of units."""
        pairs = self.pairs(units)
        first, second = np.indices(pairs.shape[:2]).reshape(2, -1)
        if self.first == self.second:
            first, second = np.triu_indices(pairs.shape[0], 1)
        members = np.stack([first + starts[self.first], second + starts[self.second]], 1)
        return ((members.astype(np.int32), pairs[first, second]),)

    def pairs(self, units: Mapping[str, AbstractUnits]) -> Float[Array, "m n _ _"]:
        """The log-potentials of the states of each pair of units."""
        ends: list[Any] = [units[self.first], units[self.second]]
        one, two = (u.states_inside(self.weights.dtype) for u in ends)
        # An edge inside a group stands twice, and both places have their share of its gradient.
        whole = self.weights
        if self.first == self.second:
            whole = (whole + whole.T) / 2
        split = whole.reshape(ends[0].size, one.shape[1], ends[1].size, two.shape[1])
        return jnp.einsum("mxny,ax,by->mnab", split, one, two, precision="highest")

    def size(self, units: Mapping[str, AbstractUnits]) -> int:
        one, two = (units[group] for group in self.groups)
        if one.width == one.size and two.width == two.size:
            return one.size * two.size
        return one.width * two.size + one.size * two.width

    def statistic(self, gradient: Any) -> tuple[Float[Array, "m n"]]:
        """The mean of $x_a x_b^\\top$. Inside a group each edge stands twice."""
        twice = 2 if self.first == self.second else 1
        return (twice * gradient.weights,)

    def with_own(
        self,
        statistic: tuple[Float[Array, "..."], ...],
        means: Mapping[str, Float[Array, " _"]],
        units: Mapping[str, AbstractUnits],
    ) -> tuple[Float[Array, "..."], ...]:
        if self.first != self.second:
            return statistic
        within, own = _within(units[self.first]), jnp.diag(means[self.first])
        return (jnp.where(within, own, statistic[0]),)

    def mean_energy(self, statistic: tuple[Float[Array, "..."], ...]) -> Float[Array, ""]:
        """Inside a group an edge is one parameter, whose gradient stands whole at both its
        places.
        """
        (pair,) = statistic
        if self.first != self.second:
            return -(self.weights * pair).sum()
        edges = 2 * self.weights - jax.lax.stop_gradient(self.weights)
        return -(edges * pair).sum() / 2

    def _inside(self, states: States, group: str, axis: int) -> Float[Array, "... _"]:
        """The internal states of a group."""
        x, width = states[group], self.weights.shape[axis]
        if not jnp.issubdtype(x.dtype, jnp.integer):
            return x
        if x.shape[-1] == width:
            return x.astype(self.weights.dtype)
        number = width // x.shape[-1]
        return jax.nn.one_hot(x, number, dtype=self.weights.dtype).reshape(*x.shape[:-1], width)

    def projected(self, units: AbstractUnits) -> "Dense":
        """The factor inside a group, made symmetric. Of two states of one unit at most one is
        taken: couplings between them mean nothing, and are zero.
        """
        both = (self.weights + self.weights.T) / 2
        own = _within(units)
        return self._with(jnp.where(own, jnp.zeros_like(both), both))

    def _with(self, weights: Float[Array, "m n"]) -> "Dense":
        return Dense(self.first, self.second, weights, self.edges)


def _within(units: AbstractUnits) -> Bool[np.ndarray, "m m"]:
    """Which pairs of internal numbers of a group belong to one unit."""
    owner = np.arange(units.width) // max(units.width // max(units.size, 1), 1)
    return owner[:, None] == owner[None, :]


def inner(factors: Iterable[AbstractFactor]) -> list[Dense]:
    """The dense factors inside groups."""
    return [f for f in factors if isinstance(f, Dense) and f.first == f.second]
