from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import AnyArray
from ..units import AbstractUnits
from ._base import AbstractFactor, States


class Function(AbstractFactor):
    """Any energy of the internal states of some groups. `function` is a callable pytree, whose
    arrays are the parameters; its states may have leading axes.

    !!! example

        ```python
        from ebmlearn.factors import Function

        ring = Function(lambda states: -jnp.sum(states["x"] * jnp.roll(states["x"], 1)), ("x",))
        ring.energy({"x": jnp.array([1.0, 1.0, 0.0])})  # -1.0
        ```

    **Arguments:**

    - `function`: a function of the internal states of the groups, by name, that returns the energy.
    - `joined`: the names of the groups.
    """

    function: Callable[[States], Float[Array, "..."]]
    joined: tuple[str, ...] = eqx.field(static=True)

    @property
    def groups(self) -> tuple[str, ...]:
        return self.joined * 2

    @property
    def parameters(self) -> tuple[Any, ...]:
        return tuple(jax.tree.leaves(eqx.filter(self.function, eqx.is_inexact_array)))

    def bound(self, units: Mapping[str, AbstractUnits]) -> NoReturn:
        """Raises `TypeError`: it has no tables and no messages."""
        raise TypeError(
            "`factors` must hold `Dense` or `Tables`, got a Function: take `EnergyModel`."
        )

    def energy(self, states: States) -> Float[Array, "..."]:
        return self.function(states)

    def given(self, states: States, group: str) -> Float[Array, "... _"]:
        """Minus the gradient of the energy."""

        def total(x: Array) -> Float[Array, ""]:
            return jnp.sum(self.function({**states, group: x}))

        return -jax.grad(total)(states[group])

    def tempered(self, beta: float | Float[AnyArray, ""]) -> "Function":
        return Function(_Scaled(self.function, beta), self.joined)

    def stacks(self, units: Mapping[str, AbstractUnits], starts: Mapping[str, int]) -> None:
        """None: it may be anything."""
        return

    def size(self, units: Mapping[str, AbstractUnits]) -> int:
        """None: there are no messages of any function."""
        return 0


class _Scaled(eqx.Module):
    """A function times a number."""

    function: Callable[[States], Float[Array, "..."]]
    beta: float | Float[AnyArray, ""]

    def __call__(self, states: States) -> Float[Array, "..."]:
        return jnp.asarray(self.beta) * self.function(states)
