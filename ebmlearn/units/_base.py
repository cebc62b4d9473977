import abc
from typing import ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int, Num, PRNGKeyArray, Shaped

from .._types import AnyArray


Units = TypeVar("Units", bound="AbstractUnits")


class AbstractUnits(eqx.Module):
    """The units of a layer, independent of each other given all other layers.

    Internally a state is `width` floating-point numbers, which enter the energy of the rest of the
    model linearly. In a field $f$, units have the density
    $p(x) \\propto e^{f \\cdot x - E_0(x)}$ with their own energy $E_0$. Users see states of shape
    `[..., size]`: integers if the units are `finite`, else real numbers.

    Arrays that a kind of units holds have a last axis of length `width`, and may have leading ones.
    `evidence` is the interval in which what inferences may be told of a unit lies, or None if they
    take none: of binary units, likelihoods of 1. Units that are `linear` have no energy of their
    own. Those that are `numbered` have a few states each, and say which: see
    `AbstractNumberedUnits`.
    """

    evidence: ClassVar[tuple[float, float] | None] = None
    linear: ClassVar[bool] = False
    numbered: ClassVar[bool] = False

    size: eqx.AbstractVar[int]
    family: ClassVar[str]
    finite: ClassVar[bool]

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """The length of an internal state."""

    @property
    @abc.abstractmethod
    def support(self) -> tuple[str, *tuple[int, ...]]:
        """The name of NumPyro's constraint for one unit, and its arguments. Units that are `finite`
        have every integer of an `"integer_interval"` as a state, or are `"boolean"`.
        """

    @abc.abstractmethod
    def check(self, name: str, states: AnyArray) -> None:
        """Raises `ValueError` if an array whose values are known holds anything but states."""

    @abc.abstractmethod
    def encode(self, states: Shaped[AnyArray, "... _"], dtype: DTypeLike) -> Float[Array, "... _"]:
        """Converts states as users see them to internal states."""

    @abc.abstractmethod
    def decode(self, x: Float[Array, "... _"]) -> Num[Array, "... _"]:
        """Converts internal states to states as users see them."""

    @abc.abstractmethod
    def noise(
        self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike
    ) -> Float[Array, "rows _"]:
        """The random numbers that `draw` takes. `shape` is `(rows, width)`."""

    @abc.abstractmethod
    def draw(
        self, field: Float[Array, "rows _"], noise: Float[Array, "rows _"]
    ) -> Float[Array, "rows _"]:
        """Draws internal states in a field, which may be that of some of the units."""

    @abc.abstractmethod
    def sample(self, field: Float[Array, "rows _"], key: PRNGKeyArray) -> Float[Array, "rows _"]:
        """What `draw` gives with the `noise` of a key."""

    @abc.abstractmethod
    def at_random(self, field: Float[Array, "rows _"], key: PRNGKeyArray) -> Float[Array, "rows _"]:
        """Random states for the start of chains: uniform, or drawn in the field."""

    @abc.abstractmethod
    def mean(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """The mean of the internal state; for discrete units, probabilities."""

    @abc.abstractmethod
    def mode(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """The most likely internal state."""

    @abc.abstractmethod
    def variance(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """The variance of the internal state."""

    @abc.abstractmethod
    def natural(self, mean: Float[Array, "... _"]) -> Float[Array, "... _"]:
        """The field in which the internal state has this mean: the reverse of `mean`."""

    def natural_of(
        self, total: Float[Array, " n"], rows: Float[Array, " n"] | int
    ) -> Float[Array, " n"]:
        """The field in which units have the mean of some rows, given their sum and their number,
        and of two more rows at the mean of units in no field.
        """
        return self.natural((total + 2 * self.mean(jnp.zeros_like(total))) / (rows + 2))

    @abc.abstractmethod
    def log_normaliser(self, field: Float[Array, "... _"]) -> Float[Array, "..."]:
        """$\\log \\sum_x e^{f \\cdot x - E_0(x)}$ over the states of all units."""

    @abc.abstractmethod
    def statistics(self, x: Float[Array, "..."]) -> Float[Array, "..."] | None:
        """The statistics in which $E_0$ is linear; None if it is zero."""

    @abc.abstractmethod
    def mean_statistics(self, field: Float[Array, "..."]) -> Float[Array, "..."] | None:
        """The mean of `statistics` in a field."""

    @abc.abstractmethod
    def own_energy(self, statistics: Float[Array, "... _"]) -> Float[Array, "..."]:
        """$E_0$ from `statistics`."""

    @abc.abstractmethod
    def tempered(self: Units, beta: Float[Array, "..."] | float) -> Units:
        """The units of $\\beta E_0$. `beta` may have the axes of a batch, and a last one of 1."""

    def base_energy(self, x: Float[Array, "... _"]) -> Float[Array, "..."]:
        """$E_0$ of internal states."""
        statistics = self.statistics(x)
        if statistics is None:
            return jnp.zeros(x.shape[:-1], x.dtype)
        return self.own_energy(statistics)

    def take(self: Units, places: Int[AnyArray, "..."] | slice) -> Units:
        """The units as `draw` needs them for some places of the last axis."""
        return jax.tree.map(lambda x: x[..., places], self)


class AbstractLinearUnits(AbstractUnits):
    """Units without an energy of their own: all of it is linear in their states."""

    linear: ClassVar[bool] = True

    def statistics(self, x: Float[Array, "..."]) -> None:
        """Nothing: there is no energy of their own."""
        return

    def mean_statistics(self, field: Float[Array, "..."]) -> None:
        """Nothing: there is no energy of their own."""
        return

    def own_energy(self, statistics: Float[Array, "... _"]) -> Float[Array, "..."]:
        """Zero."""
        return jnp.zeros(statistics.shape[:-1], statistics.dtype)

    def tempered(self: Units, beta: Float[Array, "..."] | float) -> Units:
        """The same at all temperatures."""
        return self


class AbstractNumberedUnits(AbstractUnits):
    """Units with a few states each, which users see as integers from 0 on. Every function of a
    state is linear in it, up to a constant, so that units can be drawn by differences of energies,
    and are `AbstractLinearUnits`, too.
    """

    finite: ClassVar[bool] = True
    numbered: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def number(self) -> int:
        """How many states a unit has."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """How many states each unit has: `number`, or fewer."""
        return (self.number,) * self.size

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of a state inside, for energies that users write: units, and numbers of each
        where these are one-hot.
        """

    def states_inside(self, dtype: DTypeLike) -> Float[Array, "number step"]:
        """The internal states of a unit, a row for each."""
        every = jnp.repeat(jnp.arange(self.number)[:, None], max(self.size, 1), axis=1)
        return self.encode(every, dtype)[:, : self.width // max(self.size, 1)]

    def scores(self, field: Float[Array, "... _"]) -> Float[Array, "... n number"]:
        """What each state of each unit adds to the log-potential in a field."""
        inside = self.states_inside(field.dtype)
        split = field.reshape(*field.shape[:-1], self.size, inside.shape[1])
        if inside.shape[1] == 1:
            return split * inside[:, 0].reshape((1,) * (split.ndim - 1) + (-1,))
        return jnp.einsum("...us,ks->...uk", split, inside, precision="highest")

    def field_of(self, scores: Float[Array, "... n number"]) -> Float[Array, "... _"]:
        """The reverse of `scores`, up to a constant for each unit."""
        if self.width == self.size:
            return scores[..., 1] - scores[..., 0]
        return scores.reshape(*scores.shape[:-2], self.width)

    @abc.abstractmethod
    def others(self, x: Float[Array, "rows _"]) -> Float[Array, "rows n others step"]:
        """The states inside that each unit does not have, `step` numbers each."""

    @abc.abstractmethod
    def redraw(
        self, x: Float[Array, "rows _"], field: Float[Array, "rows _"], noise: Float[Array, "..."]
    ) -> Float[Array, "rows _"]:
        """As `draw`, by Metropolised Gibbs (Liu 1996): another state than the present one is
        proposed, in proportion to its probability, and accepted by the rule of Metropolis and
        Hastings.
        """


class AbstractRealUnits(AbstractUnits):
    """Units that are real numbers, one each, with an energy of their own that is linear in their
    squares.
    """

    finite: ClassVar[bool] = False

    def sample(self, field: Float[Array, "rows _"], key: PRNGKeyArray) -> Float[Array, "rows _"]:
        """Draws with the noise of a key."""
        return self.draw(field, self.noise(key, field.shape, field.dtype))

    @property
    def width(self) -> int:
        """One number per unit."""
        return self.size

    def encode(self, states: Shaped[AnyArray, "... n"], dtype: DTypeLike) -> Float[Array, "... n"]:
        """The same numbers, in the dtype of the model."""
        return jnp.asarray(states).astype(dtype)

    def decode(self, x: Float[Array, "... n"]) -> Float[Array, "... n"]:
        """The same numbers."""
        return x

    def statistics(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """$x^2$."""
        return x**2
