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
from ..messages import GaussianInstance
from ..models import Statistics
from ..models._problem import each, each_and_mean
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
        return problem.model.by_factor(_in_blocks(problem.model, _pairs(problem)))

    def log_partition(self, problem: Any, log_odds: Any) -> Float[Array, "*batch"]:
        return self.value


@eqx.filter_jit
def gaussian_exact(problem: Any) -> Beliefs:
    """The beliefs of all instances."""
    shape, dtype = problem.shape, problem.model.dtype

    def one(at: GaussianInstance) -> tuple[Array, ...]:
        return _moments(problem, at)[:4]

    found = each(one, messages.instances(problem), shape, _chunk(problem))
    mean, variance, log_odds, log_z = found
    log_z = log_z + _offset(problem)
    told = messages.told(problem, mean, variance, log_odds, jnp.zeros(shape, dtype))
    assert told.normal is not None
    return Beliefs(
        problem,
        _Mixture(log_z),
        log_odds=told.log_odds,
        converged=jnp.ones(shape, bool),
        iterations=jnp.zeros(shape, jnp.int32),
        residual=jnp.zeros(shape, dtype),
        guarded=told.guarded,
        normal=Normal(*told.normal),
    )


@eqx.filter_jit
def gaussian_statistics(problem: Any) -> Statistics:
    """The expected statistics of all instances."""
    model, shape = problem.model, problem.shape
    _, sigma = messages.standard(model)

    def one(at: GaussianInstance) -> tuple[Any, Any]:
        found = _moments(problem, at)
        hidden = jax.nn.sigmoid(found.log_odds)
        visible = sigma * (found.mean + at.origin)
        square = sigma**2 * found.variance + visible**2
        return (visible, hidden, square), _in_units(found, at, sigma)

    units, pairs = each_and_mean(one, messages.instances(problem), shape, _chunk(problem))
    visible, hidden, square = units
    return Statistics(
        units=model.units([visible, hidden]),
        pairwise=model.by_factor(_in_blocks(model, pairs)),
        squares=(square, None),
        converged=jnp.ones(shape, bool),
        iterations=jnp.zeros(shape, jnp.int32),
        residual=jnp.zeros(shape, model.dtype),
    )


@eqx.filter_jit
def _pairs(problem: Any) -> Float[Array, "*batch visible hidden"]:
    _, sigma = messages.standard(problem.model)

    def one(at: GaussianInstance) -> Array:
        return _in_units(_moments(problem, at), at, sigma)

    return each(one, messages.instances(problem), problem.shape, _chunk(problem))


def _in_blocks(model: Any, products: Array) -> tuple[Array, ...]:
    return messages.in_blocks([(b.first, b.second) for b in model.blocks()], products)


def _in_units(found: _Moments, at: GaussianInstance, sigma: Array) -> Array:
    """The means of $v h^\\top$."""
    hidden = jax.nn.sigmoid(found.log_odds)
    return sigma[:, None] * (found.products + at.origin[:, None] * hidden[None, :])


def _offset(problem: Any) -> Float[Array, "*batch"]:
    """What log Z gains where the energy is not the square of a difference from the origin."""
    units, bias = problem.model.layers[0], problem.model.unary()[0]
    place = units.mean(bias)
    origin = jnp.broadcast_to(units.origin, place.shape)
    gain = ((place - origin) * (place + origin) / units.variance(bias)).sum(-1) / 2
    return jnp.broadcast_to(gain, problem.shape)


def _chunk(problem: Any) -> int:
    return max(1, CHUNK // 2 ** problem.model.layers[1].size)


def _moments(problem: Any, at: GaussianInstance) -> _Moments:
    weights, sigma = messages.standard(problem.model)
    hidden = weights.shape[1]
    free = weights * at.free[:, None]
    products = free.T @ free
    bias = at.bias + at.value @ weights + jnp.diagonal(products) / 2
    couplings = jnp.where(jnp.eye(hidden, dtype=bool), 0, products)
    units = binary(hidden)
    space = Space(("hidden",), (units,), ((2,) * hidden,), (0,), ())
    rows = units.scores(bias)
    known = jnp.ones(rows.shape, bool), jnp.zeros(hidden, bool)

    def laid_out(factor: Dense) -> Table:
        return Table((factor,), rows, *known, space, "sum")

    machine = Dense("hidden", "hidden", couplings)
    answer = laid_out(machine).answer()
    gradient = jax.grad(lambda factor: laid_out(factor).value())(machine)
    (both,) = machine.statistic(gradient)
    p = jnp.diagonal(both)
    covariance = both - p[:, None] * p[None, :]
    volume = (jnp.log(sigma) + math.log(2 * math.pi) / 2) @ at.free
    return _Moments(
        free @ p + at.value,
        at.free + ((free @ covariance) * free).sum(1),
        answer.scores[:, 1] - answer.scores[:, 0],
        answer.value + volume - at.value @ at.value / 2,
        free @ both + at.value[:, None] * p[None, :],
    )
