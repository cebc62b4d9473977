import abc
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from .._sentinels import EXCLUDED
from .._types import AnyArray
from ..units import AbstractNumberedUnits, AbstractUnits


Factor = TypeVar("Factor", bound="AbstractFactor")
# States of groups by name, with any leading axes: internal states, or integers where a group has
# finitely many states.
States: TypeAlias = Mapping[str, Num[Array, "... _"]]
# Tables of one shape: the variables of each, and its log-potentials.
Stacks: TypeAlias = tuple[tuple[Int[AnyArray, "_ _"], Float[Array, "..."]], ...]


class AbstractFactor(eqx.Module):
    """A term of the energy that joins the units of some groups. Its arrays are its parameters, and
    it is linear in them.
    """

    @property
    @abc.abstractmethod
    def groups(self) -> tuple[str, ...]:
        """The names of the groups that it joins; twice for one whose units it joins."""

    @abc.abstractmethod
    def bound(self: Factor, units: Mapping[str, AbstractUnits]) -> Factor:
        """The same factor between these groups, checked."""

    @abc.abstractmethod
    def energy(self, states: States) -> Float[Array, "..."]:
        """Its share of the energy, infinite for configurations that it excludes. It is linear in
        the internal state of each unit, so that probabilities may stand for states.
        """

    @abc.abstractmethod
    def given(self, states: States, group: str) -> Float[Array, "... _"]:
        """The field of the units of a group: what each number of their internal state adds to the
        log-potential, all else known.
        """

    @abc.abstractmethod
    def tempered(self: Factor, beta: float | Float[AnyArray, ""]) -> Factor:
        """The factor with its energy times `beta`; what it excludes stays excluded."""

    @abc.abstractmethod
    def stacks(
        self, units: Mapping[str, AbstractUnits], starts: Mapping[str, int]
    ) -> Stacks | None:
        """Itself as stacks of tables; None if it has no such form. `starts` are the numbers of the
        first unit of each group among all.
        """

    @abc.abstractmethod
    def size(self, units: Mapping[str, AbstractUnits]) -> int:
        """How many numbers its messages are."""

    @property
    @abc.abstractmethod
    def parameters(self) -> tuple[Any, ...]:
        """Its arrays of log-potentials. Of any type, for `equinox.tree_at` to find their places."""

    @property
    def helpers(self) -> tuple[int, ...]:
        """The numbers of states of the variables that its stacks add, which come after those of the
        model and of the factors before it.
        """
        return ()

    def scores(
        self, states: States, group: str, units: AbstractNumberedUnits
    ) -> Float[Array, "... n number"]:
        """What each state of each unit of a group adds to the log-potential, all else known."""
        return units.scores(self.given(states, group))

    def is_inside(self, group: str) -> bool:
        """Whether it joins units of one group to each other."""
        return self.groups.count(group) > 1

    def statistic(self, gradient: Any) -> tuple[Float[Array, "..."], ...]:
        """The expected statistic of each parameter, from the gradient of log Z in this factor."""
        return gradient.parameters

    def with_own(
        self,
        statistic: tuple[Float[Array, "..."], ...],
        means: Mapping[str, Float[Array, " _"]],
        units: Mapping[str, AbstractUnits],
    ) -> tuple[Float[Array, "..."], ...]:
        """The expected statistics of pairs of units, with those of units with themselves, from the
        means of internal states.
        """
        return statistic

    def mean_energy(self, statistic: tuple[Float[Array, "..."], ...]) -> Float[Array, ""]:
        """The mean energy under expected statistics."""
        pairs = zip(self.parameters, statistic, strict=True)
        return -jnp.stack([(own * x).sum() for own, x in pairs]).sum()


def scaled_potentials(x: Float[Array, "..."], beta: Any) -> Float[Array, "..."]:
    """Log-potentials times `beta`; what they exclude stays excluded."""
    return jnp.where(x < EXCLUDED / 2, x, jnp.asarray(beta, x.dtype) * x)
