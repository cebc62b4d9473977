"""The factors of a PGMax graph."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Int
from pgmax import factor

from .. import _checks
from .._sentinels import EXCLUDED, LIMIT
from .._types import AnyArray
from ..factors import AbstractFactor, scaled_potentials, Stacks, States
from ..messages import Start
from ..units import AbstractUnits
from ._kinds import NORMALISERS, UPDATES
from ._layout import Kind, Layout, Wires
from ._sparse_tables import Listed


Own = TypeVar("Own", bound="AbstractGraphFactor")


class AbstractGraphFactor(AbstractFactor):
    """Some factors of a graph, which may join variables of all groups: those of this `number`.
    Inside, the states of all variables stand one after the other.
    """

    layout: Layout = eqx.field(static=True)
    wires: Wires
    number: int = eqx.field(static=True)
    potentials: Float[Array, "..."]

    @property
    def groups(self) -> tuple[str, ...]:
        return self.layout.names * 2

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the log-potentials."""
        return self.potentials.dtype

    def bound(self: Own, units: Mapping[str, AbstractUnits]) -> Own:
        """The same: its graph was checked."""
        return self

    def cut(self, fields: Float[Array, "... states"], group: str) -> Float[Array, "... _"]:
        """What belongs to a group, of values of all states."""
        own = self.layout.by_group(fields)[self.layout.names.index(group)]
        return own.reshape(*fields.shape[:-1], -1)

    def flat(self, states: States) -> Float[Array, "... states"]:
        """The probabilities of the states of all variables."""
        parts = []
        for name, (shape, number) in zip(self.layout.names, self.layout.variables, strict=True):
            x = states[name]
            if jnp.issubdtype(x.dtype, jnp.integer):
                parts.append(jax.nn.one_hot(x, number, dtype=self.dtype))
            else:
                parts.append(x.reshape(*x.shape[:-1], math.prod(shape), number))
        return self.layout.flat(parts)


class DenseFactor(AbstractGraphFactor):
    """A dense group: the weights of all pairs of two selections of binary variables, which count
    where both are 1. `start` is how its messages begin, if the graph says so.
    """

    start: Start | None = eqx.field(static=True)

    @property
    def weights(self) -> Float[Array, "m n"]:
        """One for each pair."""
        return self.potentials

    @property
    def parameters(self) -> tuple[Any, ...]:
        return (self.potentials,)

    @property
    def ends(self) -> tuple[Int[AnyArray, " m"], Int[AnyArray, " n"]]:
        """Where the states of the variables of both sides begin."""
        return self.wires.ends[self.number]

    def energy(self, states: States) -> Float[Array, "..."]:
        one, two = self._ones(self.flat(states))
        return -((one @ self.weights) * two).sum(-1)

    def given(self, states: States, group: str) -> Float[Array, "... _"]:
        q = self.flat(states)
        (first, second), (one, two) = self.ends, self._ones(q)
        out = jnp.zeros_like(q)
        out = out.at[..., first + 1].add(jnp.matmul(two, self.weights.T, precision="highest"))
        out = out.at[..., second + 1].add(jnp.matmul(one, self.weights, precision="highest"))
        return self.cut(out, group)

    def tempered(self, beta: float | Float[AnyArray, ""]) -> "DenseFactor":
        scaled = jnp.asarray(beta, self.dtype) * self.weights
        return eqx.tree_at(lambda f: f.potentials, self, scaled)

    def stacks(self, units: Mapping[str, AbstractUnits], starts: Mapping[str, int]) -> Stacks:
        """A table for each pair."""
        known = _checks.is_concrete(self.wires)
        array: Any = np if known else jnp
        one, two = (array.asarray(self.wires.variable)[array.asarray(end)] for end in self.ends)
        sizes = self.weights.shape
        members = array.stack([array.repeat(one, sizes[1]), array.tile(two, sizes[0])], 1)
        pairs = jnp.zeros((self.weights.size, 2, 2), self.dtype)
        return ((members, pairs.at[:, 1, 1].set(self.weights.reshape(-1))),)

    def size(self, units: Mapping[str, AbstractUnits]) -> int:
        return 2 * self.weights.size

    def _ones(self, q: Float[Array, "... states"]) -> tuple[Float[Array, "... _"], ...]:
        """The probabilities that variables of both sides are 1."""
        return tuple(q[..., end + 1] for end in self.ends)


class KindFactor(AbstractGraphFactor):
    """All factors of one type, but for dense groups: those that list their configurations, OR, AND
    and pool factors, or those of quantised units. PGMax sends the messages of one type at once.
    `potentials` are the log-potentials of all groups of that type, one after the other; `product`
    says whether the states of quantised units have weights.
    """

    product: str = eqx.field(static=True)
    listed: Listed | None

    @property
    def kind(self) -> Kind:
        """The type, and where messages and log-potentials are."""
        return self.layout.kinds[self.number]

    @property
    def states(self) -> Int[AnyArray, " edge_states"]:
        """The state that each message is about, among those of all variables."""
        return self.wires.states[slice(*self.kind.messages)]

    @property
    def parameters(self) -> tuple[Any, ...]:
        return self.by_group(self.potentials)

    def by_group(self, flat: Float[Array, " configurations"]) -> tuple[Float[Array, "..."], ...]:
        """Values of all log-potentials in the shapes of their groups."""
        shapes = [self.layout.groups[k][0] for k in self.kind.owned]
        ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
        parts = jnp.split(flat, ends) if shapes else ()
        return tuple(x.reshape(shape) for x, shape in zip(parts, shapes, strict=True))

    def energy(self, states: States) -> Float[Array, "..."]:
        def met(q: Float[Array, " states"]) -> Float[Array, " factors"]:
            return self.normalisers(self._chosen(q))

        found = self._each(self._mean if self._is_mean(states) else met, self.flat(states))
        return -jnp.where(found < EXCLUDED / 2, -jnp.inf, found).sum(-1)

    def given(self, states: States, group: str) -> Float[Array, "... _"]:
        def one(q: Float[Array, " states"]) -> Float[Array, " states"]:
            vtof = self._chosen(q)
            sent = self._given_listed(vtof) if self._lists else self.messages(vtof, "max")
            sent = jnp.maximum(sent.astype(q.dtype), jnp.asarray(EXCLUDED, q.dtype))
            return jnp.zeros_like(q).at[self.states].add(sent)

        if self._is_mean(states):
            one = jax.grad(lambda q: self._mean(q).sum())
        return self.cut(self._each(one, self.flat(states)), group)

    def tempered(self, beta: float | Float[AnyArray, ""]) -> "KindFactor":
        scaled = jnp.clip(scaled_potentials(self.potentials, beta), -LIMIT, LIMIT)
        return eqx.tree_at(lambda f: f.potentials, self, scaled)

    def stacks(
        self, units: Mapping[str, AbstractUnits], starts: Mapping[str, int]
    ) -> Stacks | None:
        """Tables of one shape together. Wide factors are split, and helper variables join their
        parts; see `_split.py`. None for quantised units.
        """
        if self.listed is None:
            return None
        members = (x.members for x in self.listed.listings)
        return tuple(zip(members, self.stacked(self.potentials), strict=True))

    def stacked(self, potentials: Float[Array, " configurations"]) -> list[Float[Array, "..."]]:
        """The tables of these log-potentials, those of one shape together."""
        assert self.listed is not None
        return [x.stack(potentials) for x in self.listed.listings]

    @property
    def helpers(self) -> tuple[int, ...]:
        return () if self.listed is None else self.listed.helpers

    def size(self, units: Mapping[str, AbstractUnits]) -> int:
        return len(self.states)

    def normalisers(self, vtof: Float[Array, " edge_states"]) -> Float[Array, " factors"]:
        """Log Z of each factor, or its maximum, given messages towards it."""
        log_z = NORMALISERS[self.kind.type]
        return log_z(vtof, self.potentials, self.product, **self._arguments)

    def expected(
        self, vtof: Float[Array, " edge_states"], scale: Float[Array, ""]
    ) -> tuple[Float[Array, "..."], ...]:
        """The belief of every configuration, given messages and log-potentials times `scale`."""

        def total(potentials: Float[Array, " configurations"]) -> Float[Array, ""]:
            own = eqx.tree_at(lambda f: f.potentials, self, potentials)
            return own.normalisers(vtof).sum()

        return self.by_group(jax.grad(total)(scale * self.potentials))

    def messages(self, vtof: Float[Array, " edge_states"], product: str) -> Any:
        """New messages, given those towards the factors."""
        update = UPDATES.get(self.kind.type, factor.FAC_TO_VAR_UPDATES[self.kind.type])
        arguments = self._arguments
        arguments.pop("factors", None)
        # PGMax mixes dtypes and ranks, which a user may have forbidden.
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return update(
                vtof_msgs=vtof,
                log_potentials=self.potentials,
                temperature=0.0 if product == "max" else 1.0,
                normalize=True,
                **arguments,
            )

    @property
    def _arguments(self) -> dict[str, Any]:
        return {**self.wires.arguments[self.number], **self.kind.arguments()}

    @property
    def _lists(self) -> bool:
        """Whether these factors list their configurations."""
        return self.kind.type is factor.EnumFactor

    def _is_mean(self, states: States) -> bool:
        """Whether these are probabilities, of which there are means."""
        hard = all(jnp.issubdtype(x.dtype, jnp.integer) for x in states.values())
        return self._lists and not hard

    def _each(self, fn: Any, q: Float[Array, "... states"]) -> Float[Array, "... _"]:
        """A function of one configuration, of each."""
        flat = jax.vmap(fn)(q.reshape(-1, q.shape[-1]))
        return flat.reshape(*q.shape[:-1], flat.shape[-1])

    def _chosen(self, q: Float[Array, " states"]) -> Float[Array, " edge_states"]:
        """Messages that hold every variable at its state."""
        zero = jnp.zeros((), q.dtype)
        return jnp.where(q > 0.5, zero, jnp.asarray(EXCLUDED, q.dtype))[self.states]

    def _mean(self, q: Float[Array, " states"]) -> Float[Array, " factors"]:
        """The mean log-potential of each factor that lists its configurations, of independent
        variables with these probabilities of states.
        """
        # Not quite zero, so that a derivative is the product of the other probabilities there too.
        log_q = jnp.log(q + jnp.asarray(1e-30, q.dtype))[self.states]
        arguments = self._arguments
        factors = arguments["factors"]
        of, size = arguments["factor_configs_indices"], self.potentials.shape[0]
        met = log_q[arguments["factor_configs_edge_states"]]
        met = jnp.exp(jax.ops.segment_sum(met, of, size))
        number = arguments["num_factors"]
        mean = jax.ops.segment_sum(self.potentials * met, factors, number)
        # What is not listed is excluded.
        some = jax.ops.segment_sum(met, factors, number) > 0.5
        return jnp.where(some, mean, jnp.asarray(EXCLUDED, mean.dtype))

    def _given_listed(self, vtof: Float[Array, " edge_states"]) -> Array:
        """Of factors that list their configurations: the log-potential at each state of each of
        their variables, the others being as chosen.
        """
        arguments = self._arguments
        at, of = arguments["factor_configs_edge_states"], arguments["factor_configs_indices"]
        differs = (vtof < 0).astype(jnp.int32)[at]
        elsewhere = jax.ops.segment_sum(differs, of, self.potentials.shape[0])[of] - differs
        met = jnp.where(elsewhere == 0, self.potentials[of], jnp.asarray(EXCLUDED, vtof.dtype))
        return jnp.full_like(vtof, EXCLUDED).at[at].max(met)


def factors_of(
    layout: Layout,
    wires: Wires,
    listed: Sequence[Listed | None],
    log_potentials: Sequence[Float[Array, "..."]],
    product: str,
    dtype: DTypeLike,
    start: Start | None = None,
) -> tuple[DenseFactor | KindFactor, ...]:
    """The factors of a graph, in the order of their log-potentials."""
    found: dict[tuple[int, int, int], DenseFactor | KindFactor] = {}
    for i, k in enumerate(layout.dense):
        found[k, 0, i] = DenseFactor(layout, wires, i, log_potentials[k], start)
    place = 0
    for i, kind in enumerate(layout.kinds):
        parts = [jnp.zeros(0, dtype), *(log_potentials[k].reshape(-1) for k in kind.owned)]
        own = KindFactor(layout, wires, i, jnp.concatenate(parts), product, listed[i])
        # A kind without log-potentials follows the one before it.
        place = (*kind.owned, place)[0]
        found[place, 1, i] = own
    return tuple(own for _, own in sorted(found.items(), key=lambda x: x[0]))
