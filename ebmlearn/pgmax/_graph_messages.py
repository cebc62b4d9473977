"""Messages of the factors of a PGMax graph: dense groups by matrices, logical and pool factors by
updates that lose no digits, all other factors by those that PGMax knows, at temperature 1 or 0.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._sentinels import EXCLUDED, LEAST
from .._types import AnyArray
from ..messages import (
    AbstractSent,
    Damp,
    FAST,
    Heard,
    MAKERS,
    odds_serve,
    OddsSent,
    Scores,
    Site,
    Start,
    Sums,
    TablesSent,
)
from ._factors import AbstractGraphFactor, DenseFactor, KindFactor
from ._flat import as_flat, cut_states


class AbstractWired(AbstractSent):
    """Messages of factors that may join variables of all groups. Inside, the states of all
    variables stand one after the other.
    """

    factor: eqx.AbstractVar[AbstractGraphFactor]

    @abc.abstractmethod
    def _added(self, sent: PyTree) -> Float[Array, " states"]:
        """What messages say of the states of all variables."""

    @abc.abstractmethod
    def _counts(self) -> tuple[Float[Array, " variables"], Float[Array, " variables"]]:
        """The number of factors that each variable is in, and of the variables of the largest."""

    @property
    def ends(self) -> tuple[int, ...]:  # pyright: ignore
        return tuple(range(len(self.factor.layout.variables)))

    def is_silent(self, start: Start) -> bool:
        return False

    def turn(self, messages: PyTree, heard: Any, sender: int, damp: Damp) -> tuple[PyTree, PyTree]:
        """All send at once."""
        new = self.update(messages, heard, damp)
        return new, new

    def added(self, sums: Sums, sent: PyTree, group: int) -> Sums:
        own = self.factor.layout.by_group(self._added(sent))[group]
        return sums[0], sums[1] + own.reshape(sums[1].shape)

    def counts(self, group: int, size: int) -> tuple[Int[AnyArray, " n"], Int[AnyArray, " n"]]:
        found = (jnp.round(x).astype(jnp.int32) for x in self._counts())
        sizes = self.factor.layout.variables
        degree, width = (cut_states(x, sizes)[group].reshape(size) for x in found)
        return degree, width

    def _rows(self, parts: Sequence[Array]) -> Array:
        """Values of the states of each group, with a row for each variable."""
        most = self.factor.layout.max_states
        return jnp.concatenate([jnp.pad(x, ((0, 0), (0, most - x.shape[-1]))) for x in parts])

    def _of_variables(self, x: Sequence[Float[Array, " _"]]) -> Float[Array, " states"]:
        """A value of each variable for each of its states."""
        return jnp.concatenate(x)[self.factor.wires.variable]


class KindSent(AbstractWired):
    """All factors of one type, but for dense groups. Messages are a number for each state of each
    edge.
    """

    factor: KindFactor  # pyright: ignore

    @property
    def excludes(self) -> bool:
        return True

    def start(self, start: Start, heard: Sequence[Heard]) -> PyTree:
        return jnp.zeros(len(self.factor.states), self.factor.dtype)

    def spread(self, fields: Sequence[Any], joined: Callable = jnp.subtract) -> PyTree:
        return self.factor.layout.flat(fields)[self.factor.states]

    def update(self, messages: PyTree, heard: Sequence[Heard], damp: Damp) -> PyTree:
        sent = self.factor.messages(self._cavities(messages, heard), self.factor.product)
        return self.normalised(damp(messages, sent.astype(messages.dtype)))

    def normalised(self, messages: Float[Array, " edge_states"]) -> Float[Array, " edge_states"]:
        """Messages less the largest of each edge."""
        edges, number = self._edges, self.factor.layout.num_edges
        top = jax.ops.segment_max(messages, edges, number)
        return jnp.maximum(messages - top[edges], jnp.asarray(LEAST, messages.dtype))

    def normalisers(
        self, messages: PyTree, heard: Sequence[Heard], singles: Sequence[Array]
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        found = self.factor.normalisers(self._cavities(messages, heard))
        own = (jnp.concatenate(singles) * self._counts()[0]).sum()
        return found.sum() - own, (found > EXCLUDED / 2).all()

    def statistic(
        self, messages: PyTree, heard: Sequence[Heard], temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "..."], ...]:
        return self.factor.expected(temperature * self._cavities(messages, heard), temperature)

    def left(self, messages: PyTree, group: int, possible: Bool[Array, "n states"]) -> Any:
        fine = self.normalised(messages) > EXCLUDED / 2
        flat = jnp.ones(len(self.factor.wires.variable), bool).at[self.factor.states].min(fine)
        return possible & self.factor.layout.by_group(flat)[group].reshape(possible.shape)

    @property
    def _edges(self) -> Int[AnyArray, " edge_states"]:
        return self.factor.wires.edges[slice(*self.factor.kind.messages)]

    def _cavities(
        self, messages: Float[Array, " edge_states"], heard: Sequence[Heard]
    ) -> Float[Array, " edge_states"]:
        """Messages from variables: their scores less what came from the factor itself."""
        rows, is_open = (
            self.factor.layout.flat(x)[self.factor.states]
            for x in ([x.rows for x in heard], [x.open for x in heard])
        )
        return jnp.where(is_open, rows - messages, rows)

    def _added(self, sent: Float[Array, " edge_states"]) -> Float[Array, " states"]:
        none = jnp.zeros(len(self.factor.wires.variable), sent.dtype)
        return none.at[self.factor.states].add(sent)

    def _counts(self) -> tuple[Float[Array, " variables"], Float[Array, " variables"]]:
        wires, states = self.factor.wires, self.factor.states
        variable = jnp.asarray(wires.variable)[states]
        first = (jnp.asarray(wires.local)[states] == 0).astype(self.factor.dtype)
        none = jnp.zeros(self.factor.layout.num_variables, self.factor.dtype)
        factors = wires.factors[slice(*self.factor.kind.messages)]
        width = jax.ops.segment_sum(first, factors, self.factor.layout.num_edges)[factors]
        return none.at[variable].add(first), none.at[variable].max(width)


class ListedSent(AbstractWired):
    """All factors of one type as tables, those of one shape together. With mixed-product each table
    sums over some of its variables and maximises over others, for which other updates have no
    formula. Messages are those of `tables`, of which all variables are one group.
    """

    factor: KindFactor  # pyright: ignore
    tables: tuple[TablesSent, ...]

    @property
    def excludes(self) -> bool:
        return True

    def start(self, start: Start, heard: Sequence[Heard]) -> PyTree:
        return tuple(own.start(start, heard) for own in self.tables)

    def spread(self, fields: Sequence[Any], joined: Callable = jnp.subtract) -> PyTree:
        return tuple(own.spread([self._rows(fields)]) for own in self.tables)

    def update(self, messages: PyTree, heard: Sequence[Heard], damp: Damp) -> PyTree:
        both = zip(self.tables, messages, strict=True)
        return tuple(own.update(x, self._all(heard), damp) for own, x in both)

    def normalisers(
        self, messages: PyTree, heard: Sequence[Heard], singles: Sequence[Array]
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        alone, known = [jnp.concatenate(singles)], self._all(heard)
        both = zip(self.tables, messages, strict=True)
        found = [own.normalisers(x, known, alone) for own, x in both]
        return jnp.stack([x for x, _ in found]).sum(), jnp.stack([x for _, x in found]).all()

    def statistic(
        self, messages: PyTree, heard: Sequence[Heard], temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "..."], ...]:
        p = [
            own.statistic(x, self._all(heard), temperature)[0]
            for own, x in zip(self.tables, messages, strict=True)
        ]
        # How often a log-potential is met, from how often the entries of tables are.
        (met,) = jax.vjp(self.factor.stacked, self.factor.potentials)[1](p)
        return self.factor.by_group(met)

    def left(self, messages: PyTree, group: int, possible: Bool[Array, "n states"]) -> Any:
        layout = self.factor.layout
        fine = jnp.ones((layout.num_variables, layout.max_states), bool)
        for own, x in zip(self.tables, messages, strict=True):
            fine = own.left(x, 0, fine)
        own = self.factor.layout.by_group(as_flat(fine, layout.every_count))[group]
        return possible & own.reshape(possible.shape)

    def _all(self, heard: Sequence[Heard]) -> list[Heard]:
        """What is known of all variables, as of one group."""
        rows, is_open = (self._rows([x[k] for x in heard]) for k in (1, 2))
        return [Heard(None, rows, is_open)]

    def _added(self, sent: PyTree) -> Float[Array, " states"]:
        layout = self.factor.layout
        sums = None, jnp.zeros((layout.num_variables, layout.max_states), self.factor.dtype)
        for own, x in zip(self.tables, sent, strict=True):
            sums = own.added(sums, x, 0)
        return as_flat(sums[1], layout.every_count)

    def _counts(self) -> tuple[Float[Array, " variables"], Float[Array, " variables"]]:
        found = [own.counts(0, self.factor.layout.num_variables) for own in self.tables]
        degrees, widths = (jnp.stack(x).astype(self.factor.dtype) for x in zip(*found, strict=True))
        return degrees.sum(0), widths.max(0)


class SelectedSent(AbstractWired):
    """A dense group: all pairs of two selections of binary variables. A message is one number for
    each edge and direction, as `pairs` sends them.
    """

    factor: DenseFactor  # pyright: ignore
    pairs: OddsSent

    @property
    def is_fast(self) -> bool:
        return self.pairs.is_fast

    def as_logs(self, messages: PyTree, are_odds: bool | Bool[AnyArray, ""]) -> PyTree:
        return self.pairs.as_logs(messages, are_odds)

    def start(self, start: Start, heard: Sequence[Heard]) -> PyTree:
        return self.pairs.start(self.factor.start or start, heard)

    def spread(self, fields: Sequence[Any], joined: Callable = jnp.subtract) -> PyTree:
        flat = self.factor.layout.flat(fields)
        return self.pairs.spread([joined(flat[end + 1], flat[end]) for end in self.factor.ends])

    def update(self, messages: PyTree, heard: Sequence[Heard], damp: Damp) -> PyTree:
        return self.pairs.update(messages, self._chosen(heard), damp)

    def normalisers(
        self, messages: PyTree, heard: Sequence[Heard], singles: Sequence[Array]
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        own = jnp.concatenate(singles)[self.factor.wires.variable]
        chosen = [own[end] for end in self.factor.ends]
        return self.pairs.normalisers(messages, self._chosen(heard), chosen)

    def statistic(
        self, messages: PyTree, heard: Sequence[Heard], temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "m n"]]:
        return self.pairs.statistic(messages, self._chosen(heard), temperature)

    def left(self, messages: PyTree, group: int, possible: Any) -> Any:
        """All of them: products exclude nothing."""
        return possible

    def _chosen(self, heard: Sequence[Heard]) -> list[Heard]:
        """What is known of both selections."""
        flat, out = self.factor.layout.flat([x.rows for x in heard]), []
        for end in self.factor.ends:
            rows = jnp.stack([flat[end], flat[end + 1]], -1)
            out.append(Heard(rows[:, 1] - rows[:, 0], rows, None))
        return out

    def _added(self, sent: PyTree) -> Float[Array, " states"]:
        out = jnp.zeros(len(self.factor.wires.variable), self.factor.dtype)
        for k, end in enumerate(self.factor.ends):
            none = jnp.zeros(len(end), self.factor.dtype)
            coarse, rest = self.pairs.added(self.pairs.shifted((none, none), k), sent, k)
            out = out.at[end + 1].add(coarse + rest)
        return out

    def _counts(self) -> tuple[Float[Array, " variables"], Float[Array, " variables"]]:
        degree = width = jnp.zeros(self.factor.layout.num_variables, self.factor.dtype)
        variable = jnp.asarray(self.factor.wires.variable)
        for end, others in zip(self.factor.ends, reversed(self.factor.weights.shape), strict=True):
            degree = degree.at[variable[end]].add(others)
            width = width.at[variable[end]].max(2 if others else 1)
        return degree, width


def _kind(factor: KindFactor, site: Site) -> KindSent | ListedSent:
    factor, masks = factor.tempered(site.beta), site.masks()
    if masks is None:
        return KindSent(factor=factor)  # pyright: ignore
    if factor.listed is None or factor.helpers:
        raise ValueError(
            '`product="mixed"` needs factors that are tables of at most 256 entries, got'
            f" {factor.kind.type.__name__}s that are not: take `LSSVM` to train it."
        )
    tables = []
    for own, stack in zip(factor.listed.listings, factor.stacked(factor.potentials), strict=True):
        width = len(own.shape)
        tables.append(
            TablesSent(
                tables=stack,
                members=own.members,
                forms=(Scores(),) * width,
                maximised=(jnp.concatenate(masks),) * width,
                ends=(0,) * width,
                product=site.product,
            )
        )
    return ListedSent(factor=factor, tables=tuple(tables))  # pyright: ignore


def _selected(factor: DenseFactor, site: Site) -> SelectedSent:
    over, masks = (site.product == "max",) * 2, site.masks()
    if masks is not None:
        variable = jnp.asarray(factor.wires.variable)
        over = tuple(jnp.concatenate(masks)[variable[end]] for end in factor.ends)
    form = "log-odds" if site.is_damped else site.form
    pairs = OddsSent(factor.weights, site.beta, (0, 1), form, site.product, over, None)  # pyright: ignore
    return SelectedSent(factor=factor.tempered(site.beta), pairs=pairs)  # pyright: ignore


def _fast(factor: DenseFactor, units: Any, temperature: Float[AnyArray, ""], damped: bool) -> Any:
    return None if damped else odds_serve((factor.weights,), temperature)


def register() -> None:
    """Makes the messages of these factors known."""
    MAKERS[KindFactor] = _kind
    MAKERS[DenseFactor] = _selected
    FAST[DenseFactor] = _fast
