"""What the inferences of Gaussian RBMs share: the problem, in standard units, and its beliefs."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from .. import _checks
from .._types import AnyArray
from ..models import GaussianRBM, Layers
from ._instances import check_evidence


class Gaussian(NamedTuple):
    """The mean and the variance of each visible unit of a Gaussian RBM, given the observed ones.
    Those that were observed have their evidence as mean, and variance 0.
    """

    mean: Float[Array, "*batch visible"]
    variance: Float[Array, "*batch visible"]


class GaussianBeliefs(eqx.Module):
    """What an inference says about the units of a Gaussian RBM, for each instance of the batch.
    Whether it converged is never hidden: see `converged`, `iterations`, `residual`, `guarded`.

    - `mean`, `variance`: of the visible units; the evidence and 0 where they were observed.
    - `log_odds`: of the hidden units; `hidden` are their probabilities of 1.
    - `residual`: how much the last sweep changed a probability of a hidden unit, a mean in standard
      deviations of its visible unit, or a variance relative to itself, whichever changed most.
    - `guarded`: the share of the unobserved visible units whose precision came out lower than any
      hidden units could make it, in the last two sweeps. Such precisions are replaced by possible
      ones, so that all stays finite; but answers that needed it are not to be trusted.
    """

    mean: Float[Array, "*batch visible"]
    variance: Float[Array, "*batch visible"]
    log_odds: Float[Array, "*batch hidden"]
    converged: Bool[Array, "*batch"]
    iterations: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]
    guarded: Float[Array, "*batch"]

    @property
    def hidden(self) -> Float[Array, "*batch hidden"]:
        """Probabilities of 1 of the hidden units."""
        return jax.nn.sigmoid(self.log_odds)

    @property
    def marginals(self) -> Gaussian:
        """The means and the variances together, as [`ebmlearn.query`][] gives them."""
        return Gaussian(self.mean, self.variance)

    def decode(self) -> Layers:
        """The means of the visible units, which are the guess of least squared error, and the most
        likely states of the hidden ones, 0 or 1.
        """
        return Layers(self.mean, (self.log_odds > 0).astype(jnp.int32))


class GaussianInstance(NamedTuple):
    """One instance in standard units $z = (v - b) / \\sigma$, of energy
    $\\frac12 \\|z\\|^2 - z^\\top W h - c^\\top h$.

    - `bias`: that $c$, which is the model's with $W^\\top b / \\sigma$ added.
    - `value`: the observed $z$, 0 where there is none.
    - `free`: 1 where nothing was observed, 0 elsewhere.
    - `origin`: $b / \\sigma$, so that $v = 0$ is at minus this.
    """

    bias: Float[Array, "*rows hidden"]
    value: Float[Array, "*rows visible"]
    free: Float[Array, "*rows visible"]
    origin: Float[Array, "*rows visible"]


class GaussianProblem(eqx.Module):
    """A Gaussian RBM with evidence on its visible units, checked."""

    model: GaussianRBM
    evidence: Num[AnyArray, "*#batch units"] | Bool[AnyArray, "*#batch units"] | None
    observed: Bool[AnyArray, "*#batch units"] | None
    verified: bool = eqx.field(static=True)

    def __init__(
        self,
        model: GaussianRBM,
        evidence: Any = None,
        observed: Any = None,
        trusted: bool = False,
    ):
        self.model = model
        self.evidence = evidence
        self.observed = observed
        # Whether the values of the evidence can be looked at before anything is traced, or need
        # not be.
        self.verified = trusted or _checks.is_concrete((evidence, observed))

    def __check_init__(self):
        evidence, observed = self.evidence, self.observed
        units = self.model.num_visible
        check_evidence(evidence, observed, units)
        shape = self.shape
        if evidence is None or observed is None or not _checks.is_concrete((evidence, observed)):
            return
        evidence = np.broadcast_to(evidence, (*shape, units))
        wrong = np.broadcast_to(observed, evidence.shape) & ~np.isfinite(evidence)
        if wrong.any():
            first = evidence[wrong][0]
            raise ValueError(f"`evidence` must be finite where observed, got {first}.")

    @property
    def shape(self) -> tuple[int, ...]:
        """The batch shape."""
        shapes = {"model": self.model.batch_shape}
        if self.evidence is not None and self.observed is not None:
            shapes["evidence"] = self.evidence.shape[:-1]
            shapes["observed"] = self.observed.shape[:-1]
        return _checks.broadcastable(**shapes)

    def checked(self) -> "GaussianProblem":
        """The same, whose evidence raises at run time what could not be found before."""
        if self.evidence is None or self.observed is None or self.verified:
            return self
        evidence = self._over(self.evidence)
        wrong = self._over(self.observed) & ~jnp.isfinite(evidence)
        evidence = eqx.error_if(evidence, wrong, "`evidence` must be finite where observed.")
        return eqx.tree_at(lambda x: x.evidence, self, evidence)

    def instances(self) -> GaussianInstance:
        """The instances along one leading axis."""
        size, visible = math.prod(self.shape), self.model.num_visible
        place = self.model.visible_bias
        origin = place / jnp.broadcast_to(self.model.sigma, place.shape)
        bias, sent = (
            jnp.broadcast_to(x, (*self.shape, self.model.num_hidden))
            for x in (
                self.model.hidden_bias,
                jnp.matmul(origin, self.model.weights, precision="highest"),
            )
        )
        place, origin, sigma = (self._over(x) for x in (place, origin, self.model.sigma))
        value, free = jnp.zeros_like(place), jnp.ones_like(place)
        if self.evidence is not None and self.observed is not None:
            observed = self._over(self.observed)
            evidence = self._over(jnp.asarray(self.evidence, place.dtype))
            value = jnp.where(observed, (jnp.where(observed, evidence, 0) - place) / sigma, 0)
            free = (~observed).astype(place.dtype)
        rows = (x.reshape(size, visible) for x in (value, free, origin))
        return GaussianInstance((bias + sent).reshape(size, self.model.num_hidden), *rows)

    def beliefs(
        self,
        mean: Float[Array, "*batch visible"],
        variance: Float[Array, "*batch visible"],
        **rest: Any,
    ) -> GaussianBeliefs:
        """Beliefs from the moments of the visible units in standard units."""
        sigma = self._over(self.model.sigma)
        mean = self._over(self.model.visible_bias) + sigma * mean
        if self.evidence is not None and self.observed is not None:
            evidence = self._over(jnp.asarray(self.evidence, mean.dtype))
            mean = jnp.where(self._over(self.observed), evidence, mean)
        return GaussianBeliefs(mean=mean, variance=sigma**2 * variance, **rest)

    def _over(self, x: AnyArray) -> Array:
        """Something of the visible units for each instance."""
        return jnp.broadcast_to(x, (*self.shape, self.model.num_visible))
