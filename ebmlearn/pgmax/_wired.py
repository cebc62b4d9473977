"""Messages of the factors of a PGMax graph: dense groups by matrices, logical and pool factors by
updates that lose no digits, all other factors by those that PGMax knows, at temperature 1 or 0.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

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
    Site,
    Start,
    Sums,
)
from ..models import as_flat, as_rows, cut_units
from ._factors import AbstractGraphFactor, DenseFactor, KindFactor


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
        own = self._by_group(as_rows(self._added(sent), self.factor.layout.every_count), group)
        return sums[0], sums[1] + own.reshape(sums[1].shape)

    def counts(self, group: int, size: int) -> tuple[Int[AnyArray, " n"], Int[AnyArray, " n"]]:
        found = (self._by_group(x[:, None], group, 1).reshape(size) for x in self._counts())
        degree, width = (jnp.round(x).astype(jnp.int32) for x in found)
        return degree, width

    def _by_group(self, rows: Shaped[Array, "variables _"], group: int, most: int = 0) -> Array:
        sizes = self.factor.layout.variables
        return cut_units(rows, tuple((shape, most or states) for shape, states in sizes))[group]

    def _flat(self, parts: Sequence[Array]) -> Array:
        """Values of the states of each group, as those of all variables."""
        layout = self.factor.layout
        wide = [jnp.pad(x, ((0, 0), (0, layout.max_states - x.shape[-1]))) for x in parts]
        return as_flat(jnp.concatenate(wide), layout.every_count)

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
        return self._flat(fields)[self.factor.states]

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
        layout, fine = self.factor.layout, self.normalised(messages) > EXCLUDED / 2
        flat = jnp.ones(len(self.factor.wires.variable), bool).at[self.factor.states].min(fine)
        return possible & self._by_group(as_rows(flat, layout.every_count), group).reshape(
            possible.shape
        )

    @property
    def _edges(self) -> Int[AnyArray, " edge_states"]:
        return self.factor.wires.edges[slice(*self.factor.kind.messages)]

    def _cavities(
        self, messages: Float[Array, " edge_states"], heard: Sequence[Heard]
    ) -> Float[Array, " edge_states"]:
        """Messages from variables: their scores less what came from the factor itself."""
        rows = self._flat([x.rows for x in heard])[self.factor.states]
        is_open = self._flat([x.open for x in heard])[self.factor.states]
        return jnp.where(is_open, rows - messages, rows)

    def _added(self, sent: Float[Array, " edge_states"]) -> Float[Array, " states"]:
        none = jnp.zeros(len(self.factor.wires.variable), sent.dtype)
        return none.at[self.factor.states].add(sent)

    def _counts(self) -> tuple[Float[Array, " variables"], Float[Array, " variables"]]:
        wires, states = self.factor.wires, self.factor.states
        variable = jnp.asarray(wires.variable)[states]
        first = (jnp.asarray(wires.local)[states] == 0).astype(self.factor.dtype)
        none = jnp.zeros(self.factor.layout.num_variables, self.factor.dtype)
        return none.at[variable].add(first), none.at[variable].max(self.factor.widths())


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
        flat = self._flat(fields)
        return self.pairs.spread([joined(flat[end + 1], flat[end]) for end in self.factor.ends])

    def update(self, messages: PyTree, heard: Sequence[Heard], damp: Damp) -> PyTree:
        return self.pairs.update(messages, self._chosen(heard), damp)

    def normalisers(
        self, messages: PyTree, heard: Sequence[Heard], singles: Sequence[Array]
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        own = self._of_variables(singles)
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
        flat, out = self._flat([x.rows for x in heard]), []
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


def _kind(factor: KindFactor, site: Site) -> KindSent:
    return KindSent(factor=factor.tempered(site.beta))  # pyright: ignore


def _selected(factor: DenseFactor, site: Site) -> SelectedSent:
    rules = (site.product,) * 2
    form = "log-odds" if site.is_damped else site.form
    pairs = OddsSent(factor.weights, site.beta, (0, 1), form, site.product, rules, None)  # pyright: ignore
    return SelectedSent(factor=factor.tempered(site.beta), pairs=pairs)  # pyright: ignore


def _fast(factor: DenseFactor, units: Any, temperature: Float[AnyArray, ""], damped: bool) -> Any:
    return None if damped else odds_serve((factor.weights,), temperature)


def register() -> None:
    """Makes the messages of these factors known."""
    MAKERS[KindFactor] = _kind
    MAKERS[DenseFactor] = _selected
    FAST[DenseFactor] = _fast
