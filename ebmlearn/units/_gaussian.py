import math
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray

from .. import _checks
from .._types import AnyArray
from . import _random
from ._base import AbstractRealUnits


class Gaussian(AbstractRealUnits):
    """Real units, $E_0 = (x^2 + o^2) / 2 \\sigma^2$. In a field $f$ their mean is $\\sigma^2 f$ and
    their variance $\\sigma^2$.

    !!! example

        ```python
        ebmlearn.Gaussian(64)  # scales of 1
        ```
    """

    size: int = eqx.field(static=True)
    log_scale: Float[Array, "*#batch _"]
    origin: Float[Array, "*#batch _"]
    family: ClassVar[str] = "gaussian"
    evidence: ClassVar[tuple[float, float] | None] = (-math.inf, math.inf)

    def __init__(
        self,
        size: int,
        log_scale: Float[AnyArray, "*#batch _"] | None = None,
        origin: Float[AnyArray, "*#batch _"] | None = None,
    ):
        """**Arguments:**

        - `size`: the number of units.
        - `log_scale`: $\\log \\sigma$, zero by default.
        - `origin`: $o$, zero by default. With a bias of $o / \\sigma^2$ the energy is
          $(x - o)^2 / 2 \\sigma^2$.
        """
        _checks.count("size", size, 0)
        self.size = size
        log_scale = jnp.zeros(size) if log_scale is None else log_scale
        self.log_scale = _checks.parameter("log_scale", log_scale)
        origin = jnp.zeros_like(self.log_scale) if origin is None else origin
        self.origin = _checks.parameter("origin", origin)
        _checks.trailing("log_scale", self.log_scale, (size,), "one number a unit")
        _checks.trailing("origin", self.origin, (size,), "one number a unit")

    @property
    def support(self) -> tuple[str]:
        """All real numbers."""
        return ("real",)

    def check(self, name: str, states: AnyArray) -> None:
        """Raises `ValueError` unless all are finite, as far as values are known."""
        _checks.finite_rows(name, states)

    def noise(
        self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike
    ) -> Float[Array, "rows _"]:
        """Normal numbers."""
        return _random.normals(key, shape, dtype)

    def draw(
        self, field: Float[Array, "rows _"], noise: Float[Array, "rows _"]
    ) -> Float[Array, "rows _"]:
        """Normal numbers of mean $\\sigma^2 f$."""
        sigma = jnp.exp(self._over(self.log_scale, field))
        return sigma**2 * field + sigma * noise

    def at_random(self, field: Float[Array, "rows _"], key: PRNGKeyArray) -> Float[Array, "rows _"]:
        """Drawn as if all other units were 0."""
        return self.draw(field, _random.normals(key, field.shape, field.dtype))

    def mean(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """$\\sigma^2 f$."""
        return self.variance(field) * field

    def mode(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """The mean."""
        return self.mean(field)

    def variance(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """$\\sigma^2$."""
        return jnp.exp(2 * self._over(self.log_scale, field))

    def natural(self, mean: Float[Array, "... n"]) -> Float[Array, "... n"]:
        """$m / \\sigma^2$."""
        return mean / self.variance(mean)

    def log_normaliser(self, field: Float[Array, "... n"]) -> Float[Array, "..."]:
        """$\\sum \\tfrac12 (\\sigma f)^2 - o^2 / 2 \\sigma^2 + \\log \\sqrt{2 \\pi} \\sigma$."""
        log_scale, origin = self._over(self.log_scale, field), self._over(self.origin, field)
        spread = (jnp.exp(log_scale) * field) ** 2 - (jnp.exp(-log_scale) * origin) ** 2
        return (spread / 2 + log_scale + math.log(2 * math.pi) / 2).sum(-1)

    def mean_statistics(self, field: Float[Array, "..."]) -> Float[Array, "..."]:
        """$E x^2$."""
        return self.variance(field) + self.mean(field) ** 2

    def own_energy(self, statistics: Float[Array, "... n"]) -> Float[Array, "..."]:
        """$\\sum (x^2 + o^2) / 2 \\sigma^2$."""
        precision = jnp.exp(-2 * self._over(self.log_scale, statistics))
        return ((statistics + self._over(self.origin, statistics) ** 2) * precision).sum(-1) / 2

    def tempered(self, beta: Float[Array, "..."] | float) -> "Gaussian":
        """The units of variance $\\sigma^2 / \\beta$."""
        shift = jnp.log(jnp.asarray(beta, self.log_scale.dtype)) / 2
        shape = jnp.broadcast_shapes(self.log_scale.shape, shift.shape)
        log_scale = jnp.broadcast_to(self.log_scale, shape) - jnp.broadcast_to(shift, shape)
        return Gaussian(self.size, log_scale, self.origin)

    def _over(self, x: Float[Array, "..."], like: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.broadcast_to(x, like.shape)
