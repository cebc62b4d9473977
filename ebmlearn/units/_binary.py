import functools
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int, PRNGKeyArray, Shaped

from .. import _checks
from .._types import AnyArray
from . import _random
from ._base import AbstractLinearUnits, AbstractNumberedUnits


class Binary(AbstractNumberedUnits, AbstractLinearUnits):
    """Units that are 0 or 1. Their field is their log-odds.

    !!! example

        ```python
        rbm = ebmlearn.LayeredModel.init(
            {"visible": ebmlearn.Binary(64), "hidden": ebmlearn.Binary(32)}, [("visible", "hidden")]
        )
        ```

    **Arguments:**

    - `size`: the number of units.
    """

    size: int = eqx.field(static=True)
    family: ClassVar[str] = "binary"
    evidence: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    def __check_init__(self):
        _checks.count("size", self.size, 0)

    @property
    def width(self) -> int:
        """One number per unit."""
        return self.size

    @property
    def number(self) -> int:
        """Two."""
        return 2

    @property
    def shape(self) -> tuple[int]:
        """One number a unit."""
        return (self.size,)

    @property
    def support(self) -> tuple[str]:
        """0 and 1."""
        return ("boolean",)

    def check(self, name: str, states: AnyArray) -> None:
        """Raises `ValueError` unless all are 0 or 1, as far as values are known."""
        _checks.binary_rows(name, states)

    def encode(self, states: Shaped[AnyArray, "... n"], dtype: DTypeLike) -> Float[Array, "... n"]:
        """The same as floating-point numbers."""
        return jnp.asarray(states).astype(dtype)

    def decode(self, x: Float[Array, "... n"]) -> Int[Array, "... n"]:
        """The same as integers."""
        return x.astype(jnp.int32)

    def noise(
        self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike
    ) -> Float[Array, "rows _"]:
        """Uniform numbers."""
        return _random.uniforms(key, shape, dtype)

    def draw(
        self, field: Float[Array, "rows _"], noise: Float[Array, "rows _"]
    ) -> Float[Array, "rows _"]:
        """1 with the probability that the log-odds mean."""
        return _random.decide(field, noise)

    def sample(self, field: Float[Array, "rows _"], key: PRNGKeyArray) -> Float[Array, "rows _"]:
        """Draws with the noise of a key."""
        return _random.decided(field, key)

    def others(self, x: Float[Array, "rows n"]) -> Float[Array, "rows n 1 1"]:
        """1 for 0, and 0 for 1."""
        return (1 - x)[..., None, None]

    def redraw(
        self, x: Float[Array, "rows n"], field: Float[Array, "rows n"], noise: Float[Array, "..."]
    ) -> Float[Array, "rows n"]:
        """Flips with probability min(1, p / q), where q is the probability of the present state and
        p that of the other.
        """
        turned = 1 - 2 * x
        return x + _random.accept_by(turned * field, noise) * turned

    def at_random(self, field: Float[Array, "rows _"], key: PRNGKeyArray) -> Float[Array, "rows _"]:
        """0 or 1, each with probability one half."""
        return jax.random.bernoulli(key, 0.5, field.shape).astype(field.dtype)

    def mean(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """The probability of 1."""
        return jax.nn.sigmoid(field)

    def mode(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """1 where the log-odds are positive."""
        return (field > 0).astype(field.dtype)

    def variance(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """$p (1 - p)$."""
        return jax.nn.sigmoid(field) * jax.nn.sigmoid(-field)

    def natural(self, mean: Float[Array, "... n"]) -> Float[Array, "... n"]:
        """The log-odds."""
        return jnp.log(mean / (1 - mean))

    def log_normaliser(self, field: Float[Array, "... n"]) -> Float[Array, "..."]:
        """$\\sum \\log(1 + e^f)$."""
        return jax.nn.softplus(field).sum(-1)


@functools.lru_cache(maxsize=256)
def binary(size: int) -> Binary:
    """`Binary(size)`, made once: models are asked for their layers several times in each call."""
    return Binary(size)
