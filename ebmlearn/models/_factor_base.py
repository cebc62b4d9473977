from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._sentinels import EXCLUDED, LEAST
from .._types import AnyArray, Batch
from ..factors import AbstractFactor, Stacks
from ..units import AbstractUnits
from ._base import only_trained
from ._block import Block
from ._graph import AbstractGraphModel, excludes
from ._groups import (
    as_flat,
    as_rows,
    cut_states,
    cut_units,
    Groups,
    likelihoods_of,
    place,
    rows_of,
    Sizes,
)
from ._statistics import Statistics
from ._turns import coloured, put, taken, unless_held


Factored = TypeVar("Factored", bound="AbstractFactorModel")


class AbstractFactorModel(AbstractGraphModel):
    """Groups of binary or categorical units, joined by factors. `counts` is the number of states of
    each variable, `colours` are classes of variables of which no two share a factor.
    """

    counts: eqx.AbstractVar[tuple[int, ...]]
    colours: eqx.AbstractVar[Int[AnyArray, "colours width"]]

    @property
    def num_states(self) -> Int[np.ndarray, " variables"]:
        return np.asarray(self.counts, np.int64)

    @property
    def num_variables(self) -> int:
        """The number of variables."""
        return len(self.counts)

    @property
    def kind(self) -> str:
        """Tables."""
        return "tables"

    @property
    def sizes(self) -> Sizes:
        kinds: Any = self.layers
        return tuple(((u.size,), u.number) for u in kinds)

    def project(self: Factored) -> Factored:
        """The model itself: its log-potentials may be any numbers."""
        return self

    def trained(self: Factored) -> Factored:
        """True in the place of each array."""
        return jax.tree.map(lambda _: True, self)

    def blocks(self) -> tuple[Block, ...]:
        return ()

    def places_of_groups(self) -> tuple[dict[str, AbstractUnits], dict[str, int]]:
        """The units of each group, and the number of the first of them among all."""
        starts = np.cumsum([0, *(u.size for u in self.layers)])[:-1].tolist()
        names = self.group_names
        return dict(zip(names, self.layers, strict=True)), dict(zip(names, starts, strict=True))

    def rows(self, data: Batch, name: str = "data") -> Int[AnyArray, "*batch variables"]:
        """Observed states as one array.

        **Arguments:**

        - `data`: from the names of groups to states `[*batch, size]`, integers or booleans, -1
          where not known; or an array as returned here.

        **Returns:**

        An array `[*batch, variables]`, -1 where a variable is not observed.
        """
        return rows_of(data, name, self.sizes, self.num_states, self._index)

    def likelihood(self, data: Batch) -> tuple[Batch, Float[Array, "*batch states"] | None]:
        """Takes what is no state but a likelihood of each from evidence: the rest of it, and the
        logarithms of the likelihoods.
        """
        data, parts = likelihoods_of(data, self.sizes, self.num_states, self._index)
        if parts is None:
            return data, None
        most = max(self.counts)
        wide = [jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, most - x.shape[-1])]) for x in parts]
        return data, self.flattened(jnp.concatenate(wide, -2))

    def units(self, layers: Sequence[Float[Array, "*batch variables most"]]) -> Groups:
        return Groups(cut_units(layers[0], self.sizes), self.group_names)

    def configuration(self, states: Int[AnyArray, "*batch variables"]) -> Groups:
        return Groups(cut_states(states, self.sizes), self.group_names)

    def padded(self, flat: Float[Array, "*batch states"]) -> Float[Array, "*batch variables most"]:
        return as_rows(flat, self.counts)

    def flattened(
        self, padded: Float[Array, "*batch variables most"]
    ) -> Float[Array, "*batch states"]:
        return as_flat(padded, self.counts)

    def log_potential(
        self, states: Int[Array, "*batch variables"], product: Literal["sum", "max"] = "max"
    ) -> Float[Array, "*batch"]:
        own = self._by_group(states)
        out = jnp.zeros(states.shape[:-1], self.dtype)
        for factor in self.factors(product):
            out = out - factor.energy(own)
        return out

    def features(
        self, states: Int[Array, " variables"]
    ) -> tuple[Float[Array, "variables most"], tuple[Float[Array, "..."], ...]]:
        units = jax.nn.one_hot(states, max(self.counts), dtype=self.dtype)
        return units, self._statistics(self._by_group(states))

    def expected_energy(self, statistics: Statistics) -> Float[Array, ""]:
        out = jnp.zeros((), self.dtype)
        model = only_trained(self)
        (unary,) = model.unary()
        means = cut_units(self.padded(unary), self.sizes)
        for own, x in zip(means, statistics.units.values, strict=True):
            out = out - (own * x.reshape(-1, *own.shape).mean(0)).sum()
        found = iter(statistics.pairwise.values)
        for factor in model.factors():
            own = tuple(next(found) for _ in factor.parameters)
            out = out + factor.mean_energy(own) if own else out
        return out

    def pulled(self, rows: Int[Array, "rows variables"]) -> Float[Array, "rows variables most"]:
        """What all factors say of every state of every variable given all others."""
        own, most = self._by_group(rows), max(self.counts)
        out = []
        for name, units in zip(self.group_names, self.layers, strict=True):
            field = jnp.zeros((rows.shape[0], units.width), self.dtype)
            for factor in self.factors():
                if name in factor.groups:
                    field = field + jnp.broadcast_to(factor.given(own, name), field.shape)
            found = units.scores(field)  # pyright: ignore
            out.append(jnp.pad(found, ((0, 0), (0, 0), (0, most - found.shape[-1]))))
        return jnp.concatenate(out, 1)

    def given(self, rows: Int[Array, "rows variables"]) -> Float[Array, "rows variables most"]:
        found = self.pulled(rows)
        found = found + jnp.broadcast_to(self.padded(self.unary()[0]), found.shape)
        there = jnp.broadcast_to(self.there, found.shape)
        return jnp.where(there, found, jnp.asarray(LEAST, found.dtype))

    def as_tables(self) -> Stacks | None:
        units, starts = self.places_of_groups()
        out = [factor.stacks(units, starts) for factor in self.factors()]
        found: Any = [x for x in out if x is not None]
        return sum(found, ()) if len(found) == len(out) else None

    def classes(self) -> Int[AnyArray, "colours width"]:
        """Variables in classes of which no two share a factor. Short rows are filled up with the
        number of variables.
        """
        return self.colours

    def expected_potential(self, q: Float[Array, "variables most"]) -> Float[Array, ""]:
        parts, own = cut_units(q, self.sizes), {}
        for name, units, p in zip(self.group_names, self.layers, parts, strict=True):
            inside, p = units.states_inside(q.dtype), p.reshape(units.size, -1)  # pyright: ignore
            own[name] = jnp.einsum("uk,ks->us", p, inside, precision="highest").reshape(-1)
        out = jnp.zeros((), q.dtype)
        for factor in self.factors():
            out = out - factor.energy(own)
        return out

    @property
    def site_states(self) -> Int[np.ndarray, " variables"]:
        return self.num_states

    def turns(self) -> Int[AnyArray, "colours width"]:
        return self.colours

    def scores(
        self,
        rows: Int[Array, "rows variables"],
        members: Int[Array, " width"],
        held: Bool[Array, "rows variables"] | None,
    ) -> Float[Array, "rows width most"]:
        found = self.given(rows).at[:, members].get(mode="clip")
        found = jnp.where(found < EXCLUDED / 2, -jnp.inf, found)
        return unless_held(
            found, taken(rows, members), None if held is None else taken(held, members)
        )

    def chosen(
        self, rows: Int[Array, "rows variables"], members: Int[Array, " width"]
    ) -> Int[Array, "rows width"]:
        return taken(rows, members)

    def placed(
        self,
        rows: Int[Array, "rows variables"],
        members: Int[Array, " width"],
        states: Int[Array, "rows width"],
    ) -> Int[Array, "rows variables"]:
        return put(rows, members, states)

    def completed(
        self, rows: Int[Array, "rows variables"], fixed: Bool[Array, "rows variables"]
    ) -> Int[Array, "rows variables"]:
        """The same: no table may exclude what is drawn."""
        return rows

    @property
    def determined(self) -> Int[AnyArray, " _"]:
        """None."""
        return np.zeros(0, np.int32)

    def base_log_partition(self, base: tuple[Float[Array, " _"], ...]) -> Float[Array, ""]:
        return jnp.log(jnp.asarray(self.counts, self.dtype)).sum()

    def no_chains(self) -> str | None:
        if any(excludes(x) for x in self.log_potentials):
            return (
                "its tables exclude configurations, so that variables may not come past each"
                " other; take `Exact`, `BP` or `PMP`"
            )
        return None

    def no_moves(self) -> str | None:
        return self.no_chains()

    @property
    def there(self) -> Bool[np.ndarray, "variables most"]:
        """Which states variables have, of as many as the one that has most."""
        return np.arange(max(self.counts))[None] < np.asarray(self.counts)[:, None]

    def _by_group(self, rows: Int[Array, "*batch variables"]) -> dict[str, Any]:
        parts = [x.reshape(*rows.shape[:-1], -1) for x in cut_states(rows, self.sizes)]
        return dict(zip(self.group_names, parts, strict=True))

    def _statistics(self, states: Any) -> tuple[Float[Array, "..."], ...]:
        """What configurations meet of each log-potential."""

        def potential(factors: tuple[AbstractFactor, ...]) -> Float[Array, ""]:
            return -jnp.stack(
                [jnp.zeros((), self.dtype), *(f.energy(states) for f in factors)]
            ).sum()

        factors = self.factors()
        found = eqx.filter_grad(potential)(factors)
        return sum((f.statistic(g) for f, g in zip(factors, found, strict=True)), ())

    def _index(self, group: Any, what: str) -> int:
        return place(self.group_names, group, what)


def colours_of(stacks: Stacks, variables: int) -> Int[np.ndarray, "colours width"]:
    """Variables in classes of which no two share a factor."""
    joined: list[list[tuple[int, int]]] = [[] for _ in range(variables)]
    side = 0
    for members, _ in stacks:
        for own in np.asarray(members).tolist():
            for v in own:
                joined[v].append((side, side))
            side += 1
    return coloured(joined)
