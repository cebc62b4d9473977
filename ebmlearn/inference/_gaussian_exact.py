"""Exact inference in a Gaussian RBM: a mixture of Gaussians, one for each configuration of the
hidden units. With the unobserved visible units integrated out, these are a Boltzmann machine.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import messages
from ..factors import Dense
from ..messages import Given
from ..models import Statistics
from ..models._problem import each, each_and_mean, Instance
from ..models._require import refuse
from ..units._binary import binary
from ._beliefs import AbstractDerived, Beliefs, Normal
from ._enumeration import CHUNK, Space, Table


class _Moments(NamedTuple):
    """Of one instance in standard units: means and variances of the visible units, log-odds of the
    hidden ones, log Z, and the means of $z h^\\top$.
    """

    mean: Float[Array, "*batch visible"]
    variance: Float[Array, "*batch visible"]
    log_odds: Float[Array, "*batch hidden"]
    log_z: Float[Array, "*batch"]
    products: Float[Array, "*batch visible hidden"]


class _Mixture(AbstractDerived):
    """What the mixture says beyond single units."""

    value: Float[Array, "*batch"]

    def pairwise(self, problem: Any, log_odds: Any) -> Any:
        return problem.model.by_factor(_pairs(problem))

    def log_partition(self, problem: Any, log_odds: Any) -> Float[Array, "*batch"]:
        return self.value


@eqx.filter_jit
def gaussian_exact(problem: Any) -> Beliefs:
    """The beliefs of all instances."""
    shape, dtype, posed = problem.shape, problem.model.dtype, _Posed(problem.model)

    def one(instance: Instance) -> tuple[Array, ...]:
        at = posed.engine.posed(instance)
        found = posed.moments(at)
        return *posed.in_units(found, at.clamp[0]), found.log_odds, found.log_z

    found = each(one, problem.instances(), shape, _chunk(problem))
    mean, variance, log_odds, log_z = found
    return Beliefs(
        problem,
        _Mixture(log_z + _offset(problem)),
        log_odds=problem.told((None, log_odds)),
        converged=jnp.ones(shape, bool),
        iterations=jnp.zeros(shape, jnp.int32),
        residual=jnp.zeros(shape, dtype),
        guarded=jnp.zeros(shape, dtype),
        normal=Normal(mean, variance),
    )


@eqx.filter_jit
def gaussian_statistics(problem: Any) -> Statistics:
    """The expected statistics of all instances."""
    model, shape, posed = problem.model, problem.shape, _Posed(problem.model)

    def one(instance: Instance) -> tuple[Any, Any]:
        at = posed.engine.posed(instance)
        found = posed.moments(at)
        mean, variance = posed.in_units(found, at.clamp[0])
        means = mean, jax.nn.sigmoid(found.log_odds), variance + mean**2
        return means, posed.products(found, at.clamp[0])

    units, pairs = each_and_mean(one, problem.instances(), shape, _chunk(problem))
    visible, hidden, square = units
    return Statistics(
        units=problem.expected((visible, hidden)),
        pairwise=model.by_factor(pairs),
        squares=(square, None),
        converged=jnp.ones(shape, bool),
        iterations=jnp.zeros(shape, jnp.int32),
        residual=jnp.zeros(shape, model.dtype),
    )


@eqx.filter_jit
def _pairs(problem: Any) -> tuple[Float[Array, "*batch _ _"], ...]:
    posed = _Posed(problem.model)

    def one(instance: Instance) -> tuple[Array, ...]:
        at = posed.engine.posed(instance)
        return posed.products(posed.moments(at), at.clamp[0])

    return each(one, problem.instances(), problem.shape, _chunk(problem))


def _offset(problem: Any) -> Float[Array, "*batch"]:
    """What log Z gains where the energy is not the square of a difference from the origin."""
    units, bias = problem.model.layers[0], problem.model.unary()[0]
    place = units.mean(bias)
    origin = jnp.broadcast_to(units.origin, place.shape)
    gain = ((place - origin) * (place + origin) / units.variance(bias)).sum(-1) / 2
    return jnp.broadcast_to(gain, problem.shape)


def _chunk(problem: Any) -> int:
    return max(1, CHUNK // 2 ** problem.model.layers[1].size)


class _Posed:
    """A model in standard units."""

    def __init__(self, model: Any):
        if any(len(set(factor.groups)) == 1 for factor in model.factors()):
            refuse(model, "have one block of weights, between its layers, for exact inference")
        self.engine = messages.engine(model, temperature=jnp.ones((), model.dtype))
        form: Any = self.engine.forms[0]
        self.sigma, self.hidden = form.sigma, model.layers[1].size
        parts: Any = self.engine.parts
        none = jnp.zeros((len(self.sigma), self.hidden), model.dtype)
        self.weights = sum((part.weights for part in parts), none)

    def in_units(self, found: _Moments, at: Given) -> tuple[Array, Array]:
        """Means and variances of the visible units, as the model has them."""
        mean = jnp.where(at.free > 0, self.sigma * (found.mean + at.origin), at.evidence)
        return mean, self.sigma**2 * found.variance

    def products(self, found: _Moments, at: Given) -> tuple[Float[Array, "_ _"], ...]:
        """The means of $v h^\\top$ for each factor."""
        hidden = jax.nn.sigmoid(found.log_odds)
        both = self.sigma[:, None] * (found.products + at.origin[:, None] * hidden[None, :])
        parts: Any = self.engine.parts
        return tuple(both.T if part.is_turned else both for part in parts)

    def moments(self, instance: Instance) -> _Moments:
        """Those of one instance."""
        at, weights = instance.clamp[0], self.weights
        free = weights * at.free[:, None]
        products = free.T @ free
        bias = instance.unary[1] + at.value @ weights + jnp.diagonal(products) / 2
        couplings = jnp.where(jnp.eye(self.hidden, dtype=bool), 0, products)
        units = binary(self.hidden)
        space = Space(("hidden",), (units,), ((2,) * self.hidden,), (0,), ())
        rows = units.scores(bias)
        known = jnp.ones(rows.shape, bool), jnp.zeros(self.hidden, bool)

        def laid_out(factor: Dense) -> Table:
            return Table((factor,), rows, *known, space, "sum")

        machine = Dense("hidden", "hidden", couplings)
        answer = laid_out(machine).answer()
        gradient = jax.grad(lambda factor: laid_out(factor).value())(machine)
        (both,) = machine.statistic(gradient)
        p = jnp.diagonal(both)
        covariance = both - p[:, None] * p[None, :]
        volume = (jnp.log(self.sigma) + math.log(2 * math.pi) / 2) @ at.free
        return _Moments(
            free @ p + at.value,
            at.free + ((free @ covariance) * free).sum(1),
            answer.scores[:, 1] - answer.scores[:, 0],
            answer.value + volume - at.value @ at.value / 2,
            free @ both + at.value[:, None] * p[None, :],
        )
