import abc
from collections.abc import Hashable, Sequence
from typing import Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Int, PRNGKeyArray, PyTree

from .. import _checks
from .._types import AnyArray, Batch, Evidence, Observed
from ..units import AbstractUnits
from ._base import AbstractPlainModel
from ._chains import chains
from ._names import by_layer, HIDDEN, named, TUPLES
from ._problem import apart, check_inside, marked, observed_evidence, Partial, Problem


Named = TypeVar("Named", bound="AbstractNamedModel")


class AbstractNamedModel(AbstractPlainModel):
    """Layers of units that have names, whatever their energy is. Layers named `hidden`, or
    `hidden_1`, `hidden_2` and so on, are hidden: data tell all others.
    """

    @property
    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """The names of the layers: `visible` and `hidden`, or `x`."""

    @property
    @abc.abstractmethod
    def summed(self) -> tuple[int, ...]:
        """Layers other than the first that are independent of each other given the rest, hidden or
        not, so that chains can draw them first and sum them out.
        """

    @property
    @abc.abstractmethod
    def is_closed(self) -> bool:
        """Whether hidden units are independent given what data tell."""

    def units(self, layers: Sequence[PyTree]) -> PyTree:
        """Names the layers: [`ebmlearn.Layers`][], [`ebmlearn.Units`][], or a tuple like them."""
        usual = TUPLES.get(self.names)
        return named(self.names, layers) if usual is None else usual(*layers)

    def encode(self, units: PyTree) -> list[Float[Array, "... _"]]:
        """Converts states of all units, by name, to a list of internal states of layers."""
        pairs = zip(self.layers, jax.tree.leaves(units), strict=True)
        return [layer.encode(x, self.dtype) for layer, x in pairs]

    def decode(self, layers: Sequence[Float[Array, "... _"]]) -> PyTree:
        """The reverse of `encode`."""
        return self.units([u.decode(x) for u, x in zip(self.layers, layers, strict=True)])

    def masks(self, clamped: PyTree) -> Sequence[Bool[Array, "rows _"] | None] | None:
        """Which units of each layer are held, from what chains keep of it; None if none are."""
        if clamped is None:
            return None
        return jax.tree.leaves(clamped, is_leaf=lambda x: x is None)

    def base_log_partition(self, base: tuple[Float[Array, " _"], ...]) -> Float[Array, ""]:
        """The sum of the logarithms of the units' own normalisers."""
        pairs = zip(self.layers, base, strict=True)
        return jnp.stack([units.log_normaliser(bias) for units, bias in pairs]).sum()

    @property
    def seen(self) -> tuple[int, ...]:
        """The visible layers."""
        return tuple(k for k, name in enumerate(self.names) if not HIDDEN.fullmatch(name))

    @property
    def unseen(self) -> tuple[int, ...]:
        """The hidden layers."""
        return tuple(k for k in self._places if k not in self.seen)

    def as_batch(self, batch: Batch) -> PyTree:
        """The batch, with a mask of missing values if there are any."""
        if isinstance(batch, (tuple, list)) and not isinstance(batch, Partial):
            return type(batch)(map(marked, batch))
        return marked(batch)

    def problem(self, evidence: Evidence, observed: Observed) -> Problem:
        """The model with evidence on its first layer, checked. NaN is a unit that is not
        observed.
        """
        return Problem(self, *observed_evidence(evidence, observed))

    def holding(
        self,
        seen: Sequence[Float[Array, "rows _"]],
        observed: Bool[Array, "rows _"] | None,
    ) -> Problem:
        """The problem in which all visible units that are not missing are fixed."""
        if len(seen) > 1:
            names = ", ".join(self.names[k] for k in self.seen)
            raise ValueError(
                "`model` must have one visible layer if hidden units need an inference, as those"
                f" do that are joined to each other, got {names}: put visible units into one layer."
            )
        held = jnp.ones(seen[0].shape, bool) if observed is None else observed
        return Problem(self, seen[0], held, trusted=True)

    @property
    def num_asked(self) -> int:
        """The number of units that queries are about."""
        return self.layers[0].size

    def places(self, group: Hashable, name: str) -> NoReturn:
        """Raises `TypeError`: there are no groups of variables."""
        named = repr(group) if isinstance(group, str) else type(group).__name__
        wanted = "not be given" if name == "groups" else "be booleans, one per unit,"
        raise TypeError(
            f"`{name}` must {wanted} for a model that is no graph, of type {type(self).__name__},"
            f" got the group {named}."
        )

    def asked_rows(self, data: Batch, name: str) -> Float[Array, "rows units"]:
        """Checked rows of data that queries are about: any evidence that inferences take."""
        units, (x, there) = self.layers[0], apart(data)
        x = array_of(name, x, "[rows, visible]")
        _checks.rank(name, x, 2, "[rows, visible]")
        _checks.trailing(name, x, (units.size,), "one value a unit")
        _checks.finite_rows(name, x)
        check_inside(name, x, units.evidence)
        x = jnp.asarray(x).astype(self.dtype)
        return x if there is None else jnp.where(there, x, jnp.full_like(x, jnp.nan))

    def told_in(self, rows: Float[Array, "rows units"]) -> Bool[Array, "rows units"]:
        """Which values of rows are not missing."""
        return ~jnp.isnan(rows)

    def row_problem(self, rows: Float[Array, "rows units"], observed: Array) -> Problem:
        """The model with evidence that has been checked."""
        return Problem(self, rows, observed, trusted=True)

    def chains(
        self, num_chains: int, key: PRNGKeyArray, start: PyTree, clamped: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Checked states for chains to start from, by name, and which are fixed, or None."""
        return chains(self, num_chains, key, start, clamped)

    def chains_of(self, units: PyTree, clamped: PyTree) -> tuple[PyTree, PyTree]:
        """The same for states that have been checked; missing ones become zeros."""
        states = by_layer("units", self.names, units)
        rows = next(x.shape[0] for x in states if x is not None)
        zeros = [u.decode(jnp.zeros((rows, u.width), self.dtype)) for u in self.layers]
        filled = [z if x is None else x for x, z in zip(states, zeros, strict=True)]
        return self.units(filled), clamped

    def from_view(self, states: Sequence[Int[Array, "rows _"]]) -> PyTree:
        """Converts states that messages decode to states of samplers."""
        return self.units(list(states))

    def by_group(
        self, unary: Sequence[Float[Array, "rows _"]], nothing: float = 0.0
    ) -> tuple[Float[Array, "rows ..."], ...]:
        """Unary terms of rows by layer: log-odds of binary units, scores of states of others."""
        kinds: Any = self.layers
        shapes = [units.shape if units.numbered else (units.size,) for units in kinds]
        return tuple(x.reshape(len(x), *own) for x, own in zip(unary, shapes, strict=True))

    @property
    def is_seen(self) -> bool:
        """Whether all layers are visible."""
        return not self.unseen

    def held_states(
        self,
        seen: Sequence[Float[Array, "rows _"]],
        observed: Bool[Array, "rows _"] | None,
    ) -> tuple[PyTree, PyTree]:
        """States for samplers to start from, and booleans for those that the data fix."""
        given = dict(zip(self.seen, seen, strict=True))
        states = [self.layers[k].decode(given[k]) if k in given else None for k in self._places]
        masks = [None if x is None else jnp.ones(x.shape, bool) for x in states]
        if observed is not None:
            masks[self.seen[0]] = observed
        return self.units(states), self.units(masks)

    @property
    def _places(self) -> range:
        return range(len(self.names))

    def observe(
        self, batch: Batch, name: str = "batch"
    ) -> tuple[
        "AbstractNamedModel",
        tuple[Float[Array, "rows _"], ...],
        Bool[Array, "rows _"] | None,
    ]:
        """Checks a batch of data. Returns the model itself, the states of all visible layers, and
        booleans for the first layer if some of its values are missing.
        """
        if self.batch_shape != ():
            raise ValueError(
                "`model` must be a single model to be trained, got biases with batch axes of shape"
                f" {self.batch_shape}: train the CRBM that they come from."
            )
        return self, *self._told(batch, name)

    def seen_states(self, batch: Batch, name: str) -> tuple[Float[Array, "rows _"], ...]:
        """The checked states of all visible layers, in their internal form."""
        states, observed = self._told(batch, name)
        if observed is not None:
            raise ValueError(f"`{name}` must hold no missing values here, got NaN.")
        return states

    def _told(
        self, batch: Batch, name: str
    ) -> tuple[tuple[Float[Array, "rows _"], ...], Bool[Array, "rows _"] | None]:
        """The checked states of all visible layers, in their internal form, and booleans for the
        first layer if some of its values are missing.
        """
        seen = self.seen
        several = isinstance(batch, (tuple, list)) and not isinstance(batch, Partial)
        parts: Any = batch if several else (batch,)
        if len(parts) != len(seen):
            what = " and ".join(f"`{self.names[k]}`" for k in seen)
            wanted = (
                f"{len(seen)} arrays, {what}," if len(seen) > 1 else "one array of visible units"
            )
            kind = _checks.article(type(self).__name__)
            raise ValueError(f"`{name}` must be {wanted} for {kind}, got {len(parts)}.")
        # Units that take no evidence must all be there.
        gaps = [self.layers[k].evidence is not None for k in seen]
        found = [apart(x) if gap else (x, None) for x, gap in zip(parts, gaps, strict=True)]
        out, (first, *others) = [], found
        for at, (k, (x, there)) in enumerate(zip(seen, [first, *others], strict=True)):
            label = f"{name}[{at}]" if len(seen) > 1 else name
            if there is not None and others:
                raise ValueError(
                    f"`{label}` must hold no missing values if there are labels, got NaN."
                )
            out.append(states_of(self.layers[k], label, x, self.dtype))
        rows = [x.shape[0] for x in out]
        if len(set(rows)) > 1:
            got = " and ".join(map(str, rows))
            raise ValueError(f"`{name}` must hold arrays with the same number of rows, got {got}.")
        return tuple(out), None if first[1] is None else jnp.asarray(first[1])

    def filled(self, seen: Sequence[Float[Array, "rows _"]]) -> list[Float[Array, "rows _"]]:
        """States of all layers, with zeros for hidden ones."""
        given = dict(zip(self.seen, seen, strict=True))
        shape = seen[0].shape[:-1]
        return [
            given[k] if k in given else jnp.zeros((*shape, units.width), self.dtype)
            for k, units in enumerate(self.layers)
        ]


def states_of(units: AbstractUnits, name: str, x: Any, dtype: DTypeLike) -> Float[Array, "rows _"]:
    """Rows of states as they are inside, checked."""
    if getattr(x, "ndim", None) == 1 and units.size == 1:
        x = x[:, None]
    x = rows_of(name, x, units.size, "[rows, units]")
    units.check(name, x)
    return units.encode(x, dtype)


def rows_of(name: str, x: Any, columns: int, meaning: str) -> AnyArray:
    """Rows of real numbers, checked."""
    x = array_of(name, x, meaning)
    _checks.rank(name, x, 2, meaning)
    _checks.trailing(name, x, (columns,), "one value per unit")
    if x.shape[0] == 0:
        raise ValueError(f"`{name}` must contain at least one row, got {_checks.describe(x)}.")
    _checks.real_numbers(name, x)
    return x


def array_of(name: str, x: Any, meaning: str) -> AnyArray:
    """What has the shape and the dtype of an array, or `TypeError`."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise TypeError(f"`{name}` must be an array {meaning}, got {_checks.describe(x)}.")
    return x
