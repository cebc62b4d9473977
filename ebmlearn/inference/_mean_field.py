from dataclasses import KW_ONLY
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._sentinels import NOTHING
from .._types import AnyArray
from ..factors import AbstractFactor, inner
from ..models import AbstractModel, AbstractPlainModel, Statistics
from ._base import (
    AbstractInference,
    check_limits,
    each,
    each_and_mean,
    KEPT,
    limited,
    Limits,
    Posed,
    posed,
    Problem,
    require_possible,
    statistics_of,
    traced,
)
from ._beliefs import AbstractDerived, Beliefs, Went


# Fields of the units of each group, or their means.
ByGroup: TypeAlias = dict[str, Float[Array, "... _"]]


class MeanField(AbstractInference):
    """Naive mean field: the distribution of independent units that is closest to the model, found
    by coordinate ascent on a lower bound of log Z.

    It takes models of binary and categorical units that exclude no configuration. A sweep updates a
    group of units at a time, from the last to the first, then the groups whose units are joined to
    each other: all units at a time of which no two share a factor. So the bound, `log_partition`,
    never falls.

    !!! example

        ```python
        beliefs = ebmlearn.MeanField()(ebmlearn.RBM.init(16, 8))
        beliefs.visible, beliefs.log_partition
        ```

    **Arguments:**

    - `iterations`: the largest number of sweeps; 1000 if not given. A new number needs no
      compilation.
    - `damping`: the share of its old value that a log-odds keeps, in [0, 1).
    - `tol`: stop an instance when no probability would change by more than this in a sweep without
      damping; 1e-5 if `iterations` is not given either. If only `iterations` is given, all sweeps
      are made, and `converged` uses a tolerance of 1e-3.
    """

    iterations: int | Int[Array, ""] | None = None
    _: KW_ONLY
    damping: float | Float[Array, ""] = 0.0
    tol: float | Float[Array, ""] | None = None
    takes = ("binary", "categorical")

    def __check_init__(self):
        check_limits(self.iterations, self.damping, self.tol)

    def accepts(self, model: AbstractModel) -> bool:
        """Whether all units are binary or categorical, and the energy is linear in each of them."""
        return getattr(model, "numbered", False) and getattr(model, "exact", False)

    def _beliefs(self, problem: Problem) -> Beliefs:
        log_odds, fields, went = _solved(self._settings(problem.model), problem)
        return Beliefs(problem, _Independent(fields), log_odds=log_odds, **went._asdict())

    def _statistics(self, problem: Problem) -> Statistics:
        return _statistics(self._settings(problem.model), problem)

    def _settings(self, model: AbstractPlainModel) -> "_Settings":
        require_possible(model, "MeanField")
        limits = limited(self.iterations, self.tol, model.dtype)
        return _Settings(limits, traced(self.damping, model.dtype))


class _Independent(AbstractDerived):
    """What independent units in some fields say of factors, and the lower bound of log Z: minus the
    expected energy, plus the entropy.
    """

    fields: ByGroup

    @eqx.filter_jit
    def pairwise(self, problem: Problem) -> PyTree:
        model = problem.model

        def one(own: ByGroup) -> tuple[Float[Array, "..."], ...]:
            q = _means(_units(model), own)
            return _products(model, eqx.filter_grad(_energy)(_factors(model), q), q)

        fields = _flat(problem, self.fields)
        return model.by_factor(each(one, fields, problem.shape, _chunk(model)))

    @eqx.filter_jit
    def log_partition(self, problem: Problem) -> Float[Array, "*batch"]:
        model = problem.model

        def one(args: tuple[Posed, ByGroup]) -> Float[Array, ""]:
            # The bound is stationary in the probabilities once they have converged, so its gradient
            # needs none through them.
            at, own = args[0], jax.lax.stop_gradient(args[1])
            log_p = jax.nn.log_softmax(_scores(model, own), axis=-1)
            rows = jnp.where(at.there, at.rows, jnp.zeros_like(at.rows))
            alone = (jnp.exp(log_p) * (rows - log_p)).sum()
            bound = alone - _energy(_factors(model), _means(_units(model), own))
            return jnp.where(_is_possible(at), bound, -jnp.inf)

        instances = posed(problem), _flat(problem, self.fields)
        return each(one, instances, problem.shape, _chunk(model))


class _Settings(eqx.Module):
    limits: Limits
    damping: Float[AnyArray, ""]

    def run(self, model: AbstractPlainModel, at: Posed) -> tuple[ByGroup, Went]:
        """Fields, and how it went, by coordinate ascent."""
        units, factors = _units(model), _factors(model)
        # The field of what is impossible is beyond all others.
        rows = model.variables.cut(jnp.where(at.there, at.rows, NOTHING), 0)
        unary = {
            name: u.field_of(own[:, : u.number])
            for (name, u), own in zip(units.items(), rows, strict=True)
        }
        tight = [name for name in reversed(units) if any(f.is_inside(name) for f in factors)]
        loose = [name for name in reversed(units) if name not in tight]

        def field(q: ByGroup, name: str, which: Any = factors) -> Float[Array, " _"]:
            out = unary[name]
            for factor in which:
                if name in factor.groups:
                    out = out + factor.given(q, name)
            return out

        def sweep(old: ByGroup) -> tuple[ByGroup, Float[Array, ""]]:
            before = _means(units, old)
            new, q = dict(old), dict(before)
            for name in loose:
                new[name] = self._damped(old[name], field(q, name))
                q[name] = units[name].mean(new[name])
            if tight:
                new = self._by_class(model, field, tight, new, q)
            # Where damped steps aim: a small step alone says nothing of how far a fixed point is.
            whole = jnp.asarray(1 - self.damping)
            aims = {name: old[name] + (new[name] - old[name]) / whole for name in old}
            after = _means(units, aims)
            gaps = [jnp.abs(after[name] - before[name]) for name in old]
            return new, jax.lax.stop_gradient(jnp.concatenate(gaps).max(initial=0))

        # The start is one update of every unit from states that are all as likely, so that
        # exchanging states changes nothing.
        even = _means(units, {name: jnp.zeros_like(x) for name, x in unary.items()})
        start = {name: field(even, name) for name in units}
        fields, iterations, residual = self.limits.iterate(sweep, start)
        residual = jnp.where(_is_possible(at), residual, jnp.inf)
        return fields, Went(residual <= self.limits.tol, iterations, residual)

    def _by_class(
        self, model: AbstractPlainModel, field: Any, tight: list[str], fields: ByGroup, q: ByGroup
    ) -> ByGroup:
        """Fields after the units of some groups, which are joined to each other, were updated: all
        units of a class at once, of which no two share a factor.
        """
        units, factors, starts = _units(model), _factors(model), model.variables.starts
        still = [f for f in factors if sum(group in tight for group in f.groups) < 2]
        moving = [f for f in factors if sum(group in tight for group in f.groups) > 1]
        outside = {name: field(q, name, still) for name in tight}
        # Unit by unit, couplings are taken by row: a sweep is one product with them.
        rest, couplings = [f for f in moving if not inner([f])], {}
        for factor in inner(moving):
            couplings[factor.first] = couplings.get(factor.first, 0) + factor.weights
        if model.turns is None:
            parts = [starts[name] + np.arange(units[name].size) for name in tight]
            classes = jnp.asarray(np.concatenate(parts)[:, None])
        else:
            classes = jnp.asarray(model.turns.order)

        def turn(k: Any, at: tuple[ByGroup, ByGroup]) -> tuple[ByGroup, ByGroup]:
            fields, q = map(dict, at)
            for name in tight:
                own, step = units[name], units[name].width // max(units[name].size, 1)
                members = classes[k] - starts[name]
                # What is not of this group lies beyond its end.
                members = jnp.where((members >= 0) & (members < own.size), members, own.size)
                steps = jnp.arange(step, dtype=members.dtype)
                places = (members[:, None] * step + steps[None]).reshape(-1)
                told = [f.given(q, name) for f in rest if name in f.groups]
                new = _taken(sum(told, outside[name]), places)
                if name in couplings:
                    new = new + _taken(couplings[name], places) @ q[name]
                new = self._damped(_taken(fields[name], places), new)
                fields[name] = fields[name].at[places].set(new, mode="drop")
                q[name] = q[name].at[places].set(own.mean(new), mode="drop")
            return fields, q

        return jax.lax.fori_loop(0, classes.shape[0], turn, (fields, q))[0]

    def _damped(self, old: Array, new: Array) -> Array:
        return old + jnp.asarray(1 - self.damping) * (new - old)


def _units(model: AbstractPlainModel) -> dict[str, Any]:
    return dict(zip(model.names, model.layers, strict=True))


def _factors(model: AbstractPlainModel) -> tuple[AbstractFactor, ...]:
    return model.factors("mean")


def _means(units: dict[str, Any], fields: ByGroup) -> ByGroup:
    return {name: u.mean(fields[name]) for name, u in units.items()}


def _taken(x: Array, places: Int[Array, " _"]) -> Array:
    """Rows of an array, the last one for places beyond it."""
    return x.at[places].get(mode="clip")


def _is_possible(at: Posed) -> Bool[Array, ""]:
    """Whether evidence leaves each unit a state."""
    return at.there.any(-1).all()


def _scores(model: AbstractPlainModel, fields: ByGroup) -> Float[Array, "*batch variables most"]:
    """The scores of all states in some fields."""
    found = [u.scores(fields[name]) for name, u in _units(model).items()]
    most = max(x.shape[-1] for x in found)
    wide = [
        jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, most - x.shape[-1])], constant_values=NOTHING)
        for x in found
    ]
    return jnp.concatenate(wide, -2)


def _chunk(model: AbstractPlainModel) -> int:
    """How many instances are treated at once."""
    numbers = sum(x.size for f in _factors(model) for x in f.parameters)
    return max(1, KEPT // max(1, numbers))


def _energy(factors: tuple[AbstractFactor, ...], q: ByGroup) -> Float[Array, ""]:
    zero = jnp.zeros((), jax.tree.leaves(q)[0].dtype)
    return sum((f.energy(q) for f in factors), zero)


def _products(model: AbstractPlainModel, found: Any, q: ByGroup) -> tuple[Float[Array, "..."], ...]:
    """The statistics of factors, from the gradient of the energy in them. A unit is not independent
    of itself.
    """
    out, units = [], _units(model)
    for factor, gradient in zip(_factors(model), found, strict=True):
        statistic = tuple(-x for x in factor.statistic(gradient))
        out += factor.with_own(statistic, q, units)
    return tuple(out)


@eqx.filter_jit
def _solved(settings: _Settings, problem: Problem) -> tuple[PyTree, ByGroup, Went]:
    """The log-odds by name, the fields by group, and how it went."""
    model = problem.model
    fields, went = each(
        lambda at: settings.run(model, at), posed(problem), problem.shape, _chunk(model)
    )
    return problem.named(_scores(model, fields)), fields, went


def _flat(problem: Problem, fields: ByGroup) -> ByGroup:
    """Fields of all instances along one leading axis."""
    return {name: problem.flat(x) for name, x in fields.items()}


@eqx.filter_jit
def _statistics(settings: _Settings, problem: Problem) -> Statistics:
    model, shape, chunk = problem.model, problem.shape, _chunk(problem.model)
    units = _units(model)

    def one(at: Posed) -> tuple[Any, ByGroup]:
        found = settings.run(model, at)
        return found, _means(units, found[0])

    (fields, went), q = each_and_mean(one, posed(problem), shape, chunk)
    every = _means(units, _flat(problem, fields))

    def energy(factors: tuple[AbstractFactor, ...]) -> Float[Array, ""]:
        """The mean over all instances: its gradient is never held for each of them."""
        return each(jax.checkpoint(lambda q: _energy(factors, q)), every, shape, chunk).mean()

    pairs = _products(model, eqx.filter_grad(energy)(_factors(model)), q)
    p = jax.nn.softmax(_scores(model, fields), axis=-1)
    return statistics_of(problem, p, pairs, went)
