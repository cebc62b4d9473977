"""Enumeration of the states of some groups of units, the others being independent given those."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._sentinels import EXCLUDED
from ..factors import AbstractFactor
from ..messages import Product
from ..units import AbstractNumberedUnits


# Numbers in memory at a time: configurations of a chunk times units, and instances of a chunk
# times configurations.
CHUNK = 2**21
# Of more groups, those that are independent given the rest are chosen one by one, largest first.
_SEARCHED = 12
# No states of the units of a group.
_NEVER = -jnp.inf


@dataclasses.dataclass(frozen=True)
class Space:
    """The configurations of a model: its units, the number of states of each of them, which groups
    are listed, and which are independent given those.
    """

    names: tuple[str, ...]
    units: tuple[AbstractNumberedUnits, ...]
    counts: tuple[tuple[int, ...], ...]
    listed: tuple[int, ...]
    free: tuple[int, ...]

    @property
    def places(self) -> tuple[slice, ...]:
        """Where the units of each group stand among all."""
        ends = np.cumsum([len(own) for own in self.counts]).tolist()
        return tuple(slice(end - len(own), end) for own, end in zip(self.counts, ends, strict=True))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of states of the listed units."""
        return tuple(n for k in self.listed for n in self.counts[k])

    @property
    def total(self) -> int:
        """The number of configurations that are listed."""
        return math.prod(self.numbers)

    @property
    def members(self) -> Int[np.ndarray, " listed"]:
        """Where the listed units stand among all units."""
        found = [np.arange(x.start, x.stop) for x in self.places]
        return np.concatenate([np.zeros(0, int), *(found[k] for k in self.listed)])


def sides(
    names: tuple[str, ...],
    bits: tuple[float, ...],
    factors: tuple[AbstractFactor, ...],
    listed: tuple[int, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The groups to list and those that are independent given these: as many bits of the latter as
    possible. Some groups must be `listed`.
    """
    groups = range(len(bits))
    pairs = {frozenset(pair) for f in factors for pair in itertools.combinations(f.groups, 2)}
    open_ones = [
        k for k in groups if k not in listed and not any(f.is_inside(names[k]) for f in factors)
    ]

    def are_apart(some: Sequence[int]) -> bool:
        own = itertools.combinations([names[k] for k in some], 2)
        return not any(frozenset(x) in pairs for x in own)

    best: tuple[int, ...] = ()
    # Ties keep the later groups.
    if len(open_ones) > _SEARCHED:
        for k in sorted(reversed(open_ones), key=lambda k: -bits[k]):
            best = (*best, k) if are_apart((*best, k)) else best
        open_ones = []
    for size in range(1, len(open_ones) + 1):
        for some in itertools.combinations(reversed(open_ones), size):
            if are_apart(some) and sum(bits[k] for k in some) > sum(bits[k] for k in best):
                best = some
    return tuple(k for k in groups if k not in best), tuple(sorted(best))


class Answer(NamedTuple):
    """The result for one instance. For each state of each unit, the log of the sum over all
    configurations with that state, or the largest of them; the most likely states; and log Z or the
    largest log-potential.
    """

    scores: Float[Array, "variables most"]
    states: Int[Array, " variables"]
    value: Float[Array, ""]


class Table(eqx.Module):
    """One instance laid out for enumeration. `rows` are the unary scores of the states of all
    units, `there` the states that are possible, and `outputs` the units that are maximised over by
    mixed-product.
    """

    factors: tuple[AbstractFactor, ...]
    rows: Float[Array, "variables most"]
    there: Bool[Array, "variables most"]
    outputs: Bool[Array, " variables"]
    space: Space = eqx.field(static=True)
    product: Product = eqx.field(static=True)

    def value(self) -> Float[Array, ""]:
        """Log Z, or the largest log-potential; for mixed-product that of the best outputs. Its
        gradient in the factors is their expected statistic.
        """
        scores = self._scores()
        if self.product == "mixed":
            scores = self._of_best_outputs(scores)[0]
        found = _largest(scores) if self.product == "max" else log_sum(scores, 0)
        return found + self._tops().sum()

    def answer(self) -> Answer:
        """What is known of all units."""
        scores, hard = self._scores(), self.product == "max"
        found, best, sums = scores, jnp.argmax(scores), None
        if self.product == "mixed":
            found, sums, best = self._of_best_outputs(scores)
        marginals = self._marginals(found, jnp.max if hard else log_sum)
        if sums is not None:
            told = self._by_state(sums, jnp.max)
            marginals = jnp.where(self.outputs[:, None], told, marginals)
        states = marginals.argmax(-1).astype(jnp.int32)
        if self.product != "sum":
            # The best configuration itself: ties must be decided together.
            row = self._configurations(best[None].astype(jnp.int32))
            chosen = states.at[self.space.members].set(row[0])
            for k, own in self._free_scores(row).items():
                place = self.space.places[k]
                chosen = chosen.at[place].set(own[0].argmax(-1).astype(jnp.int32))
            states = jnp.where(self.outputs | hard, chosen, states)
        value = _largest(found) if hard else log_sum(found, 0)
        return Answer(marginals, states, value + self._tops().sum())

    def pairs(self) -> Float[Array, "variables most variables most"]:
        """For each pair of states of a listed unit and of any other, the largest log-potential
        that a configuration with both has.
        """
        scores, space = self._scores(), self.space
        most, members = self.rows.shape[1], space.members
        out = jnp.full((*self.rows.shape, *self.rows.shape), _NEVER, scores.dtype)
        if not len(members):
            return out

        def with_state(number: Int[Array, ""]) -> Float[Array, "variables most"]:
            unit, state = number // most, number % most
            own = self._digit(unit)
            return self._marginals(jnp.where(own == state, scores, _NEVER), jnp.max)

        found = jax.lax.map(with_state, jnp.arange(len(members) * most, dtype=jnp.int32))
        found = found.reshape(len(members), most, *self.rows.shape)
        out = out.at[members].set(found)
        return jnp.maximum(out, out.transpose(2, 3, 0, 1))

    @property
    def _chunk(self) -> int:
        """How many configurations are treated at once."""
        space = self.space
        width = sum(len(x) for x in space.counts) + sum(
            len(space.counts[k]) * space.units[k].number for k in space.free
        )
        return min(space.total, max(1, CHUNK // max(1, width)))

    def _parts(self) -> Int[Array, "chunks chunk"]:
        """The numbers of all configurations; those beyond the last fill the last chunk up."""
        total, chunk = self.space.total, self._chunk
        return jnp.arange(-(-total // chunk) * chunk, dtype=jnp.int32).reshape(-1, chunk)

    def _strides(self) -> Int[np.ndarray, " listed"]:
        numbers = np.asarray(self.space.numbers, np.int64)
        after = np.cumprod(np.concatenate([numbers[1:], [1]])[::-1])[::-1]
        return after[: len(numbers)].astype(np.int32)

    def _configurations(self, numbers: Int[Array, " k"]) -> Int[Array, "k listed"]:
        """The states of the listed units. The first unit is the highest digit of the number."""
        counts = np.asarray(self.space.numbers, np.int32)
        return numbers[:, None] // self._strides()[None] % counts[None]

    def _digit(self, unit: Int[Array, ""]) -> Int[Array, " configurations"]:
        """The state of one listed unit in all configurations."""
        counts = jnp.asarray(self.space.numbers, jnp.int32)
        numbers = jnp.arange(self.space.total, dtype=jnp.int32)
        return numbers // jnp.asarray(self._strides())[unit] % counts[unit]

    def _layers(self, states: Int[Array, "k listed"]) -> dict[str, Float[Array, "k _"]]:
        """The internal states of all groups, zero for those that are not listed."""
        space, dtype = self.space, self.rows.dtype
        out = [jnp.zeros((states.shape[0], u.width), dtype) for u in space.units]
        at = 0
        for k in space.listed:
            size = len(space.counts[k])
            out[k] = space.units[k].encode(states[:, at : at + size], dtype)
            at += size
        return dict(zip(space.names, out, strict=True))

    def _tops(self) -> Float[Array, "variables 1"]:
        """The largest unary score of each unit. Scores are relative to it, so that large biases do
        not swallow small terms.
        """
        top = jnp.where(self.there, self.rows, _NEVER).max(-1, keepdims=True)
        return jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top)))

    def _free_scores(self, states: Int[Array, "k listed"]) -> dict[int, Float[Array, "k n number"]]:
        """The scores of all states of the units that are not listed, by group."""
        layers, relative, out = self._layers(states), self.rows - self._tops(), {}
        for k in self.space.free:
            units, place, name = self.space.units[k], self.space.places[k], self.space.names[k]
            found = units.scores(jnp.zeros_like(layers[name]))
            for factor in self.factors:
                if name in factor.groups:
                    own = factor.scores(layers, name, units)
                    found = found + jnp.broadcast_to(own, found.shape)
            found = jnp.where(found < EXCLUDED / 2, _NEVER, found)
            own = relative[place, : found.shape[-1]]
            found = found + jnp.broadcast_to(own, found.shape)
            there = jnp.broadcast_to(self.there[place, : found.shape[-1]], found.shape)
            out[k] = jnp.where(there, found, _NEVER)
        return out

    def _scores(self) -> Float[Array, " configurations"]:
        """The log-potential of every listed configuration, all else summed out (or maximised),
        relative to the sum of `_tops`.
        """
        space, members = self.space, self.space.members
        relative = jnp.where(self.there, self.rows - self._tops(), _NEVER)[members]
        free = {space.names[k] for k in space.free}
        inner = [f for f in self.factors if not free.intersection(f.groups)]
        over: Callable = jnp.max if self.product == "max" else log_sum

        @jax.checkpoint
        def some(numbers: Int[Array, " k"]) -> Float[Array, " k"]:
            states = self._configurations(numbers)
            own = jax.nn.one_hot(states, relative.shape[-1], dtype=bool)
            out = jnp.where(own, relative[None], jnp.zeros_like(relative)[None]).sum((-2, -1))
            layers = self._layers(states)
            for factor in inner:
                out = out - factor.energy(layers)
            for found in self._free_scores(states).values():
                out = out + over(found, axis=-1).sum(-1)
            return jnp.where(numbers < space.total, out, jnp.full_like(out, _NEVER))

        return jax.lax.map(some, self._parts()).reshape(-1)[: space.total]

    def _of_best_outputs(
        self, scores: Float[Array, " configurations"]
    ) -> tuple[Float[Array, " configurations"], Float[Array, " configurations"], Int[Array, ""]]:
        """The scores of the configurations with the best outputs, all others being impossible; the
        sums of the configurations with the same outputs, at the number of the one whose other units
        are all 0; and the best of these numbers.
        """
        size = self.space.total
        strides = jnp.asarray(self._strides())
        own = jnp.where(self.outputs[self.space.members], strides, jnp.zeros_like(strides))
        of = self._configurations(jnp.arange(size, dtype=jnp.int32)) @ own
        top = jax.lax.stop_gradient(jax.ops.segment_max(scores, of, size))
        shift = jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top))
        mass = jnp.where(scores > _NEVER, jnp.exp(scores - shift[of]), jnp.zeros_like(scores))
        total = jax.ops.segment_sum(mass, of, size)
        some = total > 0
        sums = jnp.where(some, shift + jnp.log(jnp.where(some, total, 1)), _NEVER)
        best = jnp.argmax(sums).astype(of.dtype)
        return jnp.where(of == best, scores, _NEVER), sums, best

    def _marginals(
        self, scores: Float[Array, " configurations"], reduce: Callable
    ) -> Float[Array, "variables most"]:
        """The scores of all configurations with each state of each unit, added up, or the largest
        of them.
        """
        out = self._by_state(scores, reduce)
        if not self.space.free:
            return out
        chunk = self._chunk

        @jax.checkpoint
        def some(part: tuple[Array, Array]) -> dict[int, Array]:
            numbers, score = part
            found = self._free_scores(self._configurations(numbers))
            return {k: reduce(_shared(score, x, reduce), axis=0) for k, x in found.items()}

        parts = self._parts()
        padded = jnp.full(parts.size, _NEVER, scores.dtype).at[: scores.size].set(scores)
        found = jax.lax.map(some, (parts, padded.reshape(-1, chunk)))
        for k, x in found.items():
            out = out.at[self.space.places[k], : x.shape[-1]].set(reduce(x, axis=0))
        return out

    def _by_state(
        self, values: Float[Array, " configurations"], reduce: Callable
    ) -> Float[Array, "variables most"]:
        """The values of all configurations with each state of each listed unit, reduced; minus
        infinity for all other units.
        """
        found = []
        for number, run in itertools.groupby(self.space.numbers):
            # The digit of a unit is the first while it is looked at, then the last. So one step is
            # compiled, not one for each unit.
            def step(values: Array, _: None, number: int = number) -> tuple[Array, Array]:
                rows = values.reshape(number, -1)
                return rows.T.reshape(-1), reduce(rows, axis=1)

            values, own = jax.lax.scan(step, values, None, length=len(list(run)))
            wide = ((0, 0), (0, self.rows.shape[1] - number))
            found.append(jnp.pad(own, wide, constant_values=_NEVER))
        out = jnp.full_like(self.rows, _NEVER)
        return out.at[self.space.members].set(jnp.concatenate(found)) if found else out


def _shared(
    score: Float[Array, " k"], found: Float[Array, "k n number"], reduce: Callable
) -> Float[Array, "k n number"]:
    """The scores of configurations, shared out over the states of a unit of theirs."""
    whole = reduce(found, axis=-1)[..., None]
    whole = jnp.where(jnp.isfinite(whole), whole, jnp.zeros_like(whole))
    return jnp.broadcast_to(score[:, None, None], found.shape) + found - whole


def log_sum(x: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    """The logarithm of a sum of exponentials, whose gradient is finite where some, or all, of them
    are minus infinity.
    """
    top = jax.lax.stop_gradient(x.max(axis, keepdims=True))
    top = jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top))
    mass = jnp.where(x > _NEVER, jnp.exp(x - top), jnp.zeros_like(x)).sum(axis)
    some = mass > 0
    out = jnp.log(jnp.where(some, mass, jnp.ones_like(mass))) + top.squeeze(axis)
    return jnp.where(some, out, jnp.full_like(out, _NEVER))


def _largest(x: Float[Array, " n"]) -> Float[Array, ""]:
    """The largest number, whose gradient is that of one of them even if several are as large."""
    return x[jnp.argmax(x)]
