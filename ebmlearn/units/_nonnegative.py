from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray

from .. import _checks
from .._types import AnyArray
from . import _random
from ._base import AbstractRealUnits
from ._rectified import Rectified, rectified


class TruncatedNormal(NamedTuple):
    """Normal distributions of mean `location` and standard deviation `scale`, cut off below 0.

    !!! example

        ```python
        normal = ebmlearn.units.TruncatedNormal(jnp.array([-1.0, 0.0, 2.0]), jnp.ones(3))
        normal.mean, normal.variance
        ```

    **Fields:**

    - `location`: the mean before it is cut off.
    - `scale`: the standard deviation before it is cut off.
    """

    location: Float[Array, "..."]
    scale: Float[Array, "..."]

    @property
    def mean(self) -> Float[Array, "..."]:
        """The mean of what is left."""
        return rectified(self.location / self.scale**2, 1 / self.scale**2).mean

    @property
    def variance(self) -> Float[Array, "..."]:
        """The variance of what is left."""
        return rectified(self.location / self.scale**2, 1 / self.scale**2).variance


class Nonnegative(AbstractRealUnits):
    """Real units $x \\ge 0$ with $E_0 = r x^2 / 2$: in a field $f$ a normal distribution of mean
    $f / r$ and variance $1 / r$, cut off below 0.

    !!! example

        ```python
        ebmlearn.Nonnegative(10)  # precisions of 1
        ```
    """

    size: int = eqx.field(static=True)
    precision: Float[Array, "*batch _"]
    family: ClassVar[str] = "nonnegative"

    def __init__(self, size: int, precision: Float[AnyArray, "*batch _"] | None = None):
        """**Arguments:**

        - `size`: the number of units.
        - `precision`: $r$, positive; one by default.
        """
        _checks.count("size", size, 0)
        self.size = size
        precision = jnp.ones(size) if precision is None else precision
        self.precision = _checks.parameter("precision", precision)
        _checks.trailing("precision", self.precision, (size,), "one number a unit")

    @property
    def support(self) -> tuple[str]:
        """Numbers that are not negative."""
        return ("nonnegative",)

    def check(self, name: str, states: AnyArray) -> None:
        """Raises `ValueError` unless all are finite and not negative, as far as known."""
        _checks.nonnegative_rows(name, states)

    def noise(
        self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike
    ) -> Float[Array, "rows _"]:
        """Uniform numbers."""
        return _random.uniforms(key, shape, dtype)

    def draw(
        self, field: Float[Array, "rows _"], noise: Float[Array, "rows _"]
    ) -> Float[Array, "rows _"]:
        """Truncated normal numbers."""
        return _random.rectify(field, self._over(field), noise)

    def at_random(self, field: Float[Array, "rows _"], key: PRNGKeyArray) -> Float[Array, "rows _"]:
        """Drawn as if all other units were 0."""
        return self.draw(field, _random.uniforms(key, field.shape, field.dtype))

    def mean(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """The mean of a truncated normal distribution."""
        return self._moments(field).mean

    def mode(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """$f / r$, or 0."""
        return jnp.maximum(field / self._over(field), 0)

    def variance(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """The variance of a truncated normal distribution."""
        return self._moments(field).variance

    def natural(self, mean: Float[Array, "... n"]) -> Float[Array, "... n"]:
        """By Newton's method, which converges from any start: the mean is convex in the field."""

        def step(_: Array | int, field: Array) -> Array:
            return field + (mean - self.mean(field)) / self.variance(field)

        # Right for small means, of an exponential distribution, and large ones, of a normal one.
        start = mean * self._over(mean) - 1 / mean
        return jax.lax.fori_loop(0, 20, step, start)

    def log_normaliser(self, field: Float[Array, "... n"]) -> Float[Array, "..."]:
        """$\\sum \\log \\int_0^\\infty e^{f x - r x^2 / 2} dx$."""
        return self._moments(field).log_partition.sum(-1)

    def mean_statistics(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """$E x^2$."""
        return self._moments(field).second_moment

    def own_energy(self, statistics: Float[Array, "... n"]) -> Float[Array, "..."]:
        """$\\sum r x^2 / 2$."""
        return (statistics * self._over(statistics)).sum(-1) / 2

    def tempered(self, beta: Float[Array, "..."] | float) -> "Nonnegative":
        """The units of precision $\\beta r$."""
        beta = jnp.asarray(beta, self.precision.dtype)
        shape = jnp.broadcast_shapes(self.precision.shape, beta.shape)
        precision = jnp.broadcast_to(self.precision, shape) * jnp.broadcast_to(beta, shape)
        return Nonnegative(self.size, precision)

    def _moments(self, field: Float[Array, "..."]) -> Rectified:
        return rectified(field, self._over(field))

    def _over(self, like: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.broadcast_to(self.precision, like.shape)
