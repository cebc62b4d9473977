import functools
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Int, PRNGKeyArray, Shaped

from .. import _checks
from .._types import AnyArray
from . import _random
from ._base import AbstractLinearUnits, AbstractNumberedUnits


class Categorical(AbstractNumberedUnits, AbstractLinearUnits):
    """Units of several states, also known as Potts or softmax units. Users see integers from 0 on;
    inside, and in weights and biases, each unit is one-hot: `states` numbers beside each other.

    !!! example

        ```python
        ebmlearn.Categorical(53, states=21)  # the sites of a protein
        ```

    Units that have fewer `states` than others say so in `counts`, one number a unit. The model must
    then exclude the rest of their states by its biases.

    **Arguments:**

    - `size`: the number of units.
    - `states`: the largest number of states of a unit.
    - `counts`: the number of states of each unit, if they differ.
    """

    size: int = eqx.field(static=True)
    states: int = eqx.field(static=True)
    counts: tuple[int, ...] | None = eqx.field(static=True, default=None)
    family: ClassVar[str] = "categorical"

    def __check_init__(self):
        _checks.count("size", self.size, 0)
        _checks.count("states", self.states)

    @property
    def numbers(self) -> tuple[int, ...]:
        """`counts`, or `states` for each unit."""
        return (self.states,) * self.size if self.counts is None else self.counts

    @property
    def width(self) -> int:
        """One number per state of each unit."""
        return self.size * self.states

    @property
    def number(self) -> int:
        """As many as `states`."""
        return self.states

    @property
    def shape(self) -> tuple[int, int]:
        """A row for each unit."""
        return (self.size, self.states)

    @property
    def support(self) -> tuple[str, int, int]:
        """Integers from 0 on."""
        return ("integer_interval", 0, self.states - 1)

    def check(self, name: str, states: AnyArray) -> None:
        """Raises `ValueError` unless all are integers of the right range, as far as known."""
        _checks.labels(name, states, self.states)
        if self.counts is not None and _checks.is_concrete(states):
            wrong = np.asarray(states) >= np.asarray(self.counts)
            if wrong.any():
                got = np.asarray(states)[wrong][0]
                raise ValueError(f"`{name}` must hold states that its units have, got {got}.")

    def encode(self, states: Shaped[AnyArray, "... n"], dtype: DTypeLike) -> Float[Array, "... _"]:
        """One-hot."""
        return _flat(jax.nn.one_hot(jnp.asarray(states), self.states, dtype=dtype))

    def decode(self, x: Float[Array, "... _"]) -> Int[Array, "... n"]:
        """The numbers of the states."""
        return self._by_unit(x).argmax(-1).astype(jnp.int32)

    def scores(self, field: Float[Array, "... _"]) -> Float[Array, "... n states"]:
        """The field itself, a row for each unit."""
        return self._by_unit(field)

    def noise(
        self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike
    ) -> Float[Array, "rows _"]:
        """A Gumbel number for each state."""
        return _random.choices(key, shape, dtype)

    def draw(
        self, field: Float[Array, "rows _"], noise: Float[Array, "rows _"]
    ) -> Float[Array, "rows _"]:
        """A state of each unit, by its log-probabilities."""
        chosen = _random.choose(self._by_unit(field), self._by_unit(noise))
        return _flat(jax.nn.one_hot(chosen, self.states, dtype=field.dtype))

    def sample(self, field: Float[Array, "rows _"], key: PRNGKeyArray) -> Float[Array, "rows _"]:
        """Draws with the noise of a key."""
        return self.draw(field, self.noise(key, field.shape, field.dtype))

    def others(self, x: Float[Array, "rows _"]) -> Float[Array, "rows n others states"]:
        """The next state of each unit, the one after that, and so on in a circle."""
        by_unit = self._by_unit(x)
        turned = [jnp.roll(by_unit, k, axis=-1) for k in range(1, self.states)]
        return jnp.stack(turned, -2) if turned else by_unit[..., None, :][..., :0, :]

    def redraw(
        self, x: Float[Array, "rows _"], field: Float[Array, "rows _"], noise: Float[Array, "..."]
    ) -> Float[Array, "rows _"]:
        """A state among the others, accepted with probability min(1, (1 - q) / (1 - p)), where q is
        the probability of the present state and p that of the proposed one.
        """
        old, scores, gumbels = self._by_unit(x), self._by_unit(field), self._by_unit(noise)
        if self.states < 2:
            return x
        own = old > 0
        # Both sums leave out one state; that without the present one is (1 - q) Z.
        without_old = jax.nn.logsumexp(jnp.where(own, -jnp.inf, scores), axis=-1)
        alone = without_old == -jnp.inf  # No other state is possible.
        chosen = _random.choose(jnp.where(own & ~alone[..., None], -jnp.inf, scores), gumbels)
        new = jax.nn.one_hot(chosen, self.states, dtype=field.dtype)
        without_new = jax.nn.logsumexp(jnp.where(new > 0, -jnp.inf, scores), axis=-1)
        ratio = jnp.where(alone, jnp.zeros_like(without_old), without_old - without_new)
        # The number of the present state was not used to choose.
        spare = jnp.where(own, gumbels, jnp.zeros_like(gumbels)).sum(-1)
        moved = _random.accept_by_gumbel(ratio, spare)
        return _flat(jnp.where(moved[..., None] > 0, new, old))

    def at_random(self, field: Float[Array, "rows _"], key: PRNGKeyArray) -> Float[Array, "rows _"]:
        """Each state as likely as another."""
        shape = (field.shape[0], field.shape[1] // self.states)
        most = self.states if self.counts is None else jnp.asarray(self.counts)[None]
        return self.encode(jax.random.randint(key, shape, 0, most), field.dtype)

    def mean(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """The probability of each state."""
        return _flat(jax.nn.softmax(self._by_unit(field), axis=-1))

    def mode(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """The state of the largest field, one-hot."""
        return self.encode(self.decode(field), field.dtype)

    def variance(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """$p (1 - p)$ of each state."""
        p = self.mean(field)
        return p * (1 - p)

    def natural(self, mean: Float[Array, "... _"]) -> Float[Array, "... _"]:
        """The logarithms of the probabilities."""
        return jnp.log(mean)

    def log_normaliser(self, field: Float[Array, "... _"]) -> Float[Array, "..."]:
        """$\\sum \\log \\sum_s e^{f_s}$."""
        return jax.nn.logsumexp(self._by_unit(field), axis=-1).sum(-1)

    def _by_unit(self, x: Float[Array, "... _"]) -> Float[Array, "... _ states"]:
        return x.reshape(*x.shape[:-1], x.shape[-1] // self.states, self.states)


def _flat(x: Float[Array, "... n states"]) -> Float[Array, "... _"]:
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


@functools.lru_cache(maxsize=256)
def categorical(size: int, counts: tuple[int, ...]) -> Categorical:
    """Units of these numbers of states, made once: models are asked for them several times in each
    call, and Equinox looks at each number.
    """
    most = max(counts)
    return Categorical(size, most, None if min(counts) == most else counts)
