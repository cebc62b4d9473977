"""Exact inference in a Gaussian RBM: a mixture of Gaussians, one for each configuration of the
hidden units. With the unobserved visible units integrated out, these are a Boltzmann machine.
"""

import math
from collections.abc import Callable
from typing import Any, cast, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .. import messages
from .._sentinels import CLAMPED
from ..factors import Dense
from ..models import AbstractPlainModel, refuse, Statistics
from ..units import binary
from ._base import each, each_and_mean, Instance, Problem
from ._beliefs import Beliefs, Found, Normal, without_sweeps
from ._enumeration import CHUNK, Space, Table


class _Found(NamedTuple):
    """What is found of an instance: log-odds of the hidden units, log Z, means and variances of the
    visible units.
    """

    log_odds: Float[Array, "*batch hidden"]
    log_z: Float[Array, "*batch"]
    normal: Normal


# The means of $v h^\top$ for each factor.
_Pairs: TypeAlias = tuple[Float[Array, "*batch _ _"], ...]


@eqx.filter_jit
def gaussian_exact(problem: Problem) -> Beliefs:
    """The beliefs of all instances."""
    shape, dtype, finder = problem.shape, problem.model.dtype, _finder(problem.model)
    found = each(lambda at: finder(at)[0], problem.instances(), shape, _chunk(problem))
    return Beliefs(
        problem,
        Found(found.log_z + _offset(problem), jax.tree_util.Partial(_pairwise), "Exact"),
        log_odds=problem.told(_placed(problem.model, None, found.log_odds)),
        guarded=jnp.zeros(shape, dtype),
        normal=found.normal,
        **without_sweeps(jnp.ones(shape, bool), dtype)._asdict(),
    )


@eqx.filter_jit
def gaussian_statistics(problem: Problem) -> Statistics:
    """The expected statistics of all instances."""
    model, shape = problem.model, problem.shape
    found, pairs = each_and_mean(_finder(model), problem.instances(), shape, _chunk(problem))
    mean, variance = found.normal
    return Statistics(
        problem.expected(_placed(model, mean, jax.nn.sigmoid(found.log_odds))),
        model.by_factor(pairs),
        _placed(model, variance + mean**2, None),
        *without_sweeps(jnp.ones(shape, bool), model.dtype),
    )


@eqx.filter_jit
def _pairwise(problem: Problem) -> PyTree:
    """Pairs take as much memory as the weights for each instance."""
    model, finder = problem.model, _finder(problem.model)
    pairs = each(lambda at: finder(at)[1], problem.instances(), problem.shape, _chunk(problem))
    return model.by_factor(pairs)


def _offset(problem: Problem) -> Float[Array, "*batch"]:
    """What log Z gains where the energy is not the square of a difference from the origin."""
    real, _ = _groups(problem.model)
    units: Any = problem.model.layers[real]
    bias = problem.model.unary()[real]
    place = units.mean(bias)
    origin = jnp.broadcast_to(units.origin, place.shape)
    gain = ((place - origin) * (place + origin) / units.variance(bias)).sum(-1) / 2
    return jnp.broadcast_to(gain, problem.shape)


def _groups(model: AbstractPlainModel) -> tuple[int, int]:
    """The number of the Gaussian group, and that of the binary one."""
    return (1, 0) if model.layers[0].numbered else (0, 1)


def _placed(model: AbstractPlainModel, real: Any, binary: Any) -> tuple[Any, Any]:
    """What belongs to the Gaussian group and to the binary one, in the order of the model."""
    return (binary, real) if model.layers[0].numbered else (real, binary)


def _chunk(problem: Problem) -> int:
    _, hidden = _groups(problem.model)
    return max(1, CHUNK // 2 ** problem.model.layers[hidden].size)


def _finder(model: AbstractPlainModel) -> Callable[[Instance], tuple[_Found, _Pairs]]:
    """A function from an instance to what is found of it, and of pairs. Sums are in standard units,
    answers in those of the model.
    """
    if any(len(set(factor.groups)) == 1 for factor in model.factors()):
        refuse(model, "have one block of weights, between its layers, for exact inference")
    engine = messages.engine(model, temperature=jnp.ones((), model.dtype))
    first, second = _groups(model)
    hidden = model.layers[second].size
    form, parts = cast(tuple[Any, Any], (engine.forms[first], engine.parts))
    sigma, units = form.sigma, binary(hidden)
    weights = sum((part.weights for part in parts), jnp.zeros((len(sigma), hidden), model.dtype))
    space = Space(("hidden",), (units,), ((2,) * hidden,), (0,), ())

    def found(instance: Instance) -> tuple[_Found, _Pairs]:
        instance = engine.posed(instance)
        at = instance.clamp[first]
        free = weights * at.free[:, None]
        products = free.T @ free
        bias = instance.unary[second] + at.value @ weights + jnp.diagonal(products) / 2
        couplings = jnp.where(jnp.eye(hidden, dtype=bool), 0, products)
        rows = units.scores(bias)
        held = instance.clamp[second]
        held = jnp.zeros_like(bias) if held is None else held
        known = jnp.stack([held <= 0, held >= 0], -1), jnp.zeros(hidden, bool)

        def laid_out(factor: Dense) -> Table:
            return Table((factor,), rows, *known, space, "sum")

        machine = Dense("hidden", "hidden", couplings)
        answer = laid_out(machine).answer()
        gradient = jax.grad(lambda factor: laid_out(factor).value())(machine)
        (both,) = machine.statistic(gradient)
        p = jnp.diagonal(both)
        covariance = both - p[:, None] * p[None, :]
        volume = (jnp.log(sigma) + math.log(2 * math.pi) / 2) @ at.free
        mean = sigma * (free @ p + at.value + at.origin)
        variance = at.free + ((free @ covariance) * free).sum(1)
        both = sigma[:, None] * (free @ both + (at.value + at.origin)[:, None] * p[None, :])
        own = _Found(
            jnp.where(held == 0, answer.scores[:, 1] - answer.scores[:, 0], CLAMPED * held),
            answer.value + volume - at.value @ at.value / 2,
            Normal(jnp.where(at.free > 0, mean, at.evidence), sigma**2 * variance),
        )
        return own, tuple(both.T if part.is_turned else both for part in parts)

    return found
