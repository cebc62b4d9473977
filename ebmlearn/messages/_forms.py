"""The forms of messages to a group, and of their sums: one log-odds for each binary unit, a row of
scores for each categorical one; and the base of the messages of all factors.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .._sentinels import CLAMPED, EXCLUDED, LIMIT, NOTHING
from .._types import AnyArray
from ._edge import split


# What messages do with the states of their sender: sum over them, or take the best; or the best of
# some units and the sum over the others.
Product = Literal["sum", "max", "mixed"]
# How messages are kept. Odds are faster, log-odds always exact; see `_edge.py`.
Form = Literal["odds", "log-odds"]
# Who sends in a sweep: the even layers, then the odd ones; or all at once.
Schedule = Literal["layers", "flooding"]
# The first messages: none in ±1 form, or none in {0, 1} form.
Start = Literal["centred", "plain"]
# How one end of a factor sends: it sums over its states, takes the best, or sends as if it were
# held at its likeliest state (the visible units of mixed-product to the hidden ones, Ping & Ihler
# 2017, eq. (15)); or each of its units in one of these ways.
Rule = Literal["sum", "max", "plug", "mixed"]


# How much a random message may say, in log-odds or scores. Odds stay inside their range.
LEANING = 4.0
# Messages that are damped, from old and new ones.
Damp = Callable[[Array, Array], Array]
Singles = Sequence[Float[Array, " _"]]
# Over which units of each end mixed-product maximises; None for other products.
Maximised = tuple[Bool[Array, " _"], ...] | None
# Log-odds as multiples of 1/64 and the rest, see `_edge.split`; other fields have no first part.
Sums = tuple[Any, Any]


class Heard(NamedTuple):
    """What a factor hears of a group.

    !!! example

        ```python
        from ebmlearn import messages

        messages.Heard(field=jnp.zeros(3), rows=jnp.zeros((3, 2)), open=jnp.ones((3, 2), bool))
        ```

    **Fields:**

    - `field`: what is known of its units, with those that are held.
    - `rows`: the scores of their states, if they have a few.
    - `open`: from which of these a factor takes off what it told itself.
    """

    field: Any
    rows: Any
    open: Any


class AbstractNumbered(eqx.Module):
    """The form of what is known of units of a few states, for one instance. `clamp` says which
    units are held, or is None.

    - `excluded`: the score of a state that evidence excludes.
    - `unheld`: the `clamp` of a unit that is free.
    """

    excluded: ClassVar[float]
    unheld: ClassVar[int]

    @abc.abstractmethod
    def posed(self, unary: Any, clamp: Any, temperature: Any) -> tuple[Any, Any]:
        """Unary terms of the model of $p^{1/T}$, and which units are held."""

    @abc.abstractmethod
    def alone(self, unary: Any) -> Sums:
        """What is known without messages, as sums to which these are added."""

    @abc.abstractmethod
    def field(self, sums: Sums, old: Any, clamp: Any) -> Any:
        """The field that follows from the sums. `old` is that of the last sweep, None at first."""

    @abc.abstractmethod
    def held(self, field: Any, clamp: Any) -> Any:
        """A field; units that are held leave no doubt of their states."""

    @abc.abstractmethod
    def told(self, sums: Sums, messages: Float[Array, "m ..."], members: Any) -> Sums:
        """Sums with messages to some units."""

    @abc.abstractmethod
    def message(self, rows: Float[Array, "... states"]) -> Float[Array, "..."]:
        """Scores of states as a message."""

    @abc.abstractmethod
    def rows(self, field: Any) -> Float[Array, "... states"]:
        """A field, or a message, as scores of states."""

    @abc.abstractmethod
    def left(self, rows: Float[Array, "n states"], clamp: Any) -> Bool[Array, "n states"]:
        """Which states evidence leaves."""

    @abc.abstractmethod
    def possible(self, unary: Any, clamp: Any) -> Bool[Array, "n states"]:
        """Which states are left by the evidence and the units themselves."""

    @abc.abstractmethod
    def chosen(self, field: Any) -> Any:
        """The `clamp` of units that are held at their likeliest states."""

    @abc.abstractmethod
    def p(self, field: Any) -> Float[Array, "..."]:
        """The probabilities that a field means."""

    @abc.abstractmethod
    def mode(self, belief: Any) -> Int[Array, " n"]:
        """The likeliest states."""

    @abc.abstractmethod
    def mixture(self, beliefs: Any, log_weights: Float[Array, " parts"]) -> Any:
        """The belief if each of several is right with its probability."""

    @abc.abstractmethod
    def linear(self, states: Int[Array, " n"], unary: Any) -> Float[Array, ""]:
        """The sum of the unary terms that states meet."""

    def free(self, clamp: Any) -> Bool[Array, " n"]:
        """Which units are not held."""
        return clamp == self.unheld

    def decided(self, belief: Any) -> Any:
        """The belief of units that are held at their likeliest states."""
        return self.held(belief, self.chosen(belief))

    def scores(
        self, field: Float[Array, " _"], like: Float[Array, "n states"]
    ) -> Float[Array, "n states"]:
        """The field of units as scores of their states."""
        return field.reshape(like.shape)

    def leaning(self, like: Float[Array, "..."], key: PRNGKeyArray) -> Float[Array, "..."]:
        """A random field."""
        return jax.random.uniform(key, like.shape, like.dtype, -LEANING, LEANING)

    def change(self, old: Any, new: Any, clamp: Any) -> Float[Array, ""]:
        """The largest change of a probability."""
        before, after = (self.p(self.held(x, clamp)) for x in (old, new))
        return jnp.abs(after - before).max(initial=0)

    def belief(self, field: Any, unary: Any, clamp: Any) -> Any:
        """What is to be said of the units."""
        return self.held(field, clamp)

    def expected(self, belief: Any) -> tuple[Float[Array, "..."], None]:
        """The means of the states; and None, since such units have no energy of their own."""
        return self.p(belief), None

    def heard(self, field: Any, clamp: Any) -> Heard:
        """What factors hear when they send."""
        rows = self.rows(field)
        if clamp is None:
            return Heard(field, rows, jnp.ones(rows.shape, bool))
        nothing = jnp.where(self.left(rows, clamp), 0.0, self.excluded).astype(rows.dtype)
        free = jnp.broadcast_to(self.free(clamp)[:, None], rows.shape)
        return Heard(self.held(field, clamp), jnp.where(free, rows, nothing), free)

    def shifted(self, field: Any, clamp: Any) -> tuple[Heard, Float[Array, " n"]]:
        """What factors hear when log Z is added up: scores less the largest of each unit, and
        that. What evidence excludes is no largest, and remains excluded.
        """
        rows = self.rows(field)
        left = jnp.ones(rows.shape, bool) if clamp is None else self.left(rows, clamp)
        top = jax.lax.stop_gradient(jnp.where(left, rows, -jnp.inf).max(-1))
        less = jnp.where(left, rows - top[:, None], jnp.asarray(self.excluded, rows.dtype))
        return Heard(field, less, left), top


class LogOdds(AbstractNumbered):
    """Binary units. `clamp` is 1 or -1 where a unit is held at 1 or 0, else 0."""

    # Fields of many strong weights may be larger than what excludes a state elsewhere.
    excluded: ClassVar[float] = NOTHING
    unheld: ClassVar[int] = 0

    def posed(self, unary: Float[Array, " n"], clamp: Any, temperature: Any) -> tuple[Any, Any]:
        return unary / temperature, clamp

    def alone(self, unary: Float[Array, " n"]) -> Sums:
        return split(unary)

    def field(self, sums: Sums, old: Any, clamp: Any) -> Float[Array, " n"]:
        return sums[0] + sums[1]

    def told(self, sums: Sums, messages: Float[Array, " m"], members: Any) -> Sums:
        return sums[0], sums[1].at[members].add(messages)

    def message(self, rows: Float[Array, "... 2"]) -> Float[Array, "..."]:
        return jnp.clip(rows[..., 1] - rows[..., 0], -LIMIT, LIMIT)

    def rows(self, field: Float[Array, "*n"]) -> Float[Array, "*n 2"]:
        return jnp.stack([jnp.zeros_like(field), field], -1)

    def held(self, field: Float[Array, " n"], clamp: Any) -> Float[Array, " n"]:
        return field if clamp is None else jnp.where(clamp == 0, field, clamp * CLAMPED)

    def possible(self, unary: Float[Array, " n"], clamp: Any) -> Bool[Array, "n 2"]:
        rows = self.rows(unary)
        return jnp.ones(rows.shape, bool) if clamp is None else self.left(rows, clamp)

    def chosen(self, field: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.where(field > 0, 1.0, -1.0).astype(field.dtype)

    def p(self, field: Float[Array, " n"]) -> Float[Array, " n"]:
        return jax.nn.sigmoid(field)

    def mode(self, belief: Float[Array, " n"]) -> Int[Array, " n"]:
        return (belief > 0).astype(jnp.int32)

    def mixture(
        self, beliefs: Float[Array, "parts n"], log_weights: Float[Array, " parts"]
    ) -> Float[Array, " n"]:
        own = log_weights[:, None]
        one, zero = jax.nn.log_sigmoid(beliefs), jax.nn.log_sigmoid(-beliefs)
        return jax.nn.logsumexp(own + one, axis=0) - jax.nn.logsumexp(own + zero, axis=0)

    def linear(self, states: Int[Array, " n"], unary: Float[Array, " n"]) -> Float[Array, ""]:
        return (unary * states.astype(unary.dtype)).sum()

    def left(self, rows: Float[Array, "n 2"], clamp: Any) -> Bool[Array, "n 2"]:
        return jnp.stack([clamp <= 0, clamp >= 0], -1)

    def scores(self, field: Float[Array, " n"], like: Float[Array, "n 2"]) -> Float[Array, "n 2"]:
        return self.rows(field)


class Scores(AbstractNumbered):
    """Units of several states. `clamp` is the state at which a unit is held, -1 where it is
    free.
    """

    excluded: ClassVar[float] = EXCLUDED
    unheld: ClassVar[int] = -1

    def posed(
        self, unary: Float[Array, "n states"], clamp: Any, temperature: Any
    ) -> tuple[Any, Any]:
        # What is excluded stays so.
        return jnp.where(unary < EXCLUDED / 2, unary, unary / temperature), clamp

    def alone(self, unary: Float[Array, "n states"]) -> Sums:
        return None, unary

    def field(self, sums: Sums, old: Any, clamp: Any) -> Float[Array, "n states"]:
        return sums[1]

    def told(self, sums: Sums, messages: Float[Array, "m states"], members: Any) -> Sums:
        return None, sums[1].at[members, : messages.shape[-1]].add(messages)

    def message(self, rows: Float[Array, "... states"]) -> Float[Array, "... states"]:
        return rows

    def rows(self, field: Float[Array, "... states"]) -> Float[Array, "... states"]:
        return field

    def held(self, field: Float[Array, "n states"], clamp: Any) -> Float[Array, "n states"]:
        if clamp is None:
            return field
        excluded = jnp.asarray(EXCLUDED, field.dtype)
        given = jnp.where(self.left(field, clamp), jnp.zeros_like(field), excluded)
        return jnp.where(jnp.broadcast_to(clamp[:, None] < 0, field.shape), field, given)

    def possible(self, unary: Float[Array, "n states"], clamp: Any) -> Bool[Array, "n states"]:
        there = unary > EXCLUDED / 2
        return there if clamp is None else there & self.left(unary, clamp)

    def chosen(self, field: Float[Array, "n states"]) -> Int[Array, " n"]:
        return self.mode(field)

    def p(self, field: Float[Array, "n states"]) -> Float[Array, "n states"]:
        return jax.nn.softmax(field, axis=-1)

    def mode(self, belief: Float[Array, "n states"]) -> Int[Array, " n"]:
        return belief.argmax(-1).astype(jnp.int32)

    def mixture(
        self, beliefs: Float[Array, "parts n states"], log_weights: Float[Array, " parts"]
    ) -> Float[Array, "n states"]:
        scores = jax.nn.log_softmax(beliefs, axis=-1)
        return jax.nn.logsumexp(log_weights[:, None, None] + scores, axis=0)

    def linear(self, states: Int[Array, " n"], unary: Float[Array, "n states"]) -> Float[Array, ""]:
        return jnp.take_along_axis(unary, states[:, None], axis=-1).sum()

    def left(
        self, rows: Float[Array, "n states"], clamp: Int[Array, " n"]
    ) -> Bool[Array, "n states"]:
        number = jnp.arange(rows.shape[-1], dtype=clamp.dtype)[None, :]
        return (clamp[:, None] < 0) | (clamp[:, None] == number)


class Pairs(Scores):
    """Binary units that tables join: scores of both states inside, log-odds outside. A table may
    exclude a state, and the sum of what others say of the other one remains exact.
    """

    def posed(self, unary: Float[Array, " n"], clamp: Any, temperature: Any) -> tuple[Any, Any]:
        states = None if clamp is None else jnp.where(clamp == 0, -1, (clamp > 0).astype(jnp.int32))
        return self.rows(unary / temperature), states

    def rows(self, field: Float[Array, "..."]) -> Float[Array, "... 2"]:
        """Log-odds have no axis of states."""
        return LogOdds().rows(field) if field.ndim == 1 else field

    def scores(self, field: Float[Array, " n"], like: Float[Array, "n 2"]) -> Float[Array, "n 2"]:
        return self.rows(field)

    def possible(self, unary: Float[Array, "n 2"], clamp: Any) -> Bool[Array, "n 2"]:
        return jnp.ones(unary.shape, bool) if clamp is None else self.left(unary, clamp)

    def chosen(self, field: Float[Array, "n 2"]) -> Int[Array, " n"]:
        return field.argmax(-1).astype(jnp.int32)

    def belief(self, field: Float[Array, "n 2"], unary: Any, clamp: Any) -> Float[Array, " n"]:
        rows = self.held(field, clamp)
        return jnp.clip(rows[:, 1] - rows[:, 0], -CLAMPED, CLAMPED)

    def expected(self, belief: Float[Array, " n"]) -> tuple[Float[Array, " n"], None]:
        return LogOdds().expected(belief)

    def decided(self, belief: Float[Array, " n"]) -> Float[Array, " n"]:
        return LogOdds().decided(belief)

    def mode(self, belief: Float[Array, " n"]) -> Int[Array, " n"]:
        return LogOdds().mode(belief)

    def mixture(
        self, beliefs: Float[Array, "parts n"], log_weights: Float[Array, " parts"]
    ) -> Float[Array, " n"]:
        return LogOdds().mixture(beliefs, log_weights)

    def linear(self, states: Int[Array, " n"], unary: Float[Array, "..."]) -> Float[Array, ""]:
        return super().linear(states, self.rows(unary))


class AbstractSent(eqx.Module):
    """The messages of a factor, for one instance. `ends` are the numbers of the groups that it
    joins, one for each of its axes. What is known of all groups comes as a list. `leaf` is a group
    that is joined to nothing else, a unit to a part: it sends before the first sweep, and hears
    after the last.
    """

    ends: eqx.AbstractVar[tuple[int, ...]]
    leaf: ClassVar[Any] = None

    @property
    def excludes(self) -> bool:
        """Whether it may exclude configurations."""
        return False

    @property
    def is_fast(self) -> bool:
        """Whether messages are kept in another form than their sums."""
        return False

    def as_logs(self, messages: PyTree, are_odds: bool | Bool[AnyArray, ""]) -> PyTree:
        """Messages as log-odds, if they are odds."""
        return messages

    def posed(self, instance: Any) -> Any:
        """An instance as these messages take it."""
        return instance

    @abc.abstractmethod
    def start(self, start: Start, heard: Sequence[Heard]) -> PyTree:
        """Messages before any sweep."""

    def is_silent(self, start: Start) -> bool:
        """Whether these add nothing to what is known."""
        return True

    def begun(self, messages: PyTree, fields: Sequence[Any]) -> PyTree:
        """First messages as they are kept."""
        return messages

    def inward(self, messages: PyTree, heard: Sequence[Heard]) -> PyTree:
        """The messages that are kept as they add up."""
        return messages

    def both(self, inward: PyTree, sent: PyTree) -> PyTree:
        """The messages in both directions, from those that were kept and what was sent since."""
        return sent

    def shifted(self, sums: Sums, group: int) -> Sums:
        """What is known of a group without messages, as these take it."""
        return sums

    def spread(self, fields: Sequence[Any], joined: Callable = jnp.subtract) -> PyTree:
        """Messages to each unit that say what its field does; None where there are no such ones.
        Where a message is one number for two scores, `joined` makes it of them.
        """
        return None

    @abc.abstractmethod
    def update(self, messages: PyTree, heard: Sequence[Heard], damp: Damp) -> PyTree:
        """New messages to all units."""

    def turn(
        self, messages: PyTree, heard: Sequence[Heard], sender: int, damp: Damp
    ) -> tuple[PyTree, PyTree]:
        """New messages from one group to the other: what is kept, and what was sent."""
        new = self.update(messages, heard, damp)
        both = zip(new, messages, self.ends, strict=True)
        kept = tuple(b if end == sender else a for a, b, end in both)
        return kept, kept

    @abc.abstractmethod
    def added(self, sums: Sums, sent: PyTree, group: int) -> Sums:
        """What is known of a group with these messages."""

    def normalisers(
        self, messages: PyTree, heard: Sequence[Heard], singles: Singles
    ) -> tuple[Float[Array, ""], Bool[Array, ""]] | None:
        """The sum of log Z of all parts of the factor, each less those of its units; and whether
        each part has a configuration left. None where that is not known.
        """
        return None

    @abc.abstractmethod
    def statistic(
        self, messages: PyTree, heard: Sequence[Heard], temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "..."], ...]:
        """The expected statistic of each parameter."""

    def left(self, messages: PyTree, group: int, possible: Bool[Array, "n states"]) -> Any:
        """Those of the states of units which no message excludes by itself: all of them where
        messages are of products.
        """
        return possible

    @abc.abstractmethod
    def counts(self, group: int, size: int) -> tuple[Int[AnyArray, " n"], Int[AnyArray, " n"]]:
        """The number of parts that each unit is in, and the most units of one of these."""


def counts_of_pairs(
    shape: tuple[int, ...], ends: tuple[int, ...], group: int, size: int
) -> tuple[Int[AnyArray, " n"], Int[AnyArray, " n"]]:
    """`counts` of messages between all units of two groups, or of one."""
    m, n = shape
    others = (m - 1) if ends[0] == ends[1] else (n if group == ends[0] else m)
    return jnp.full(size, others, jnp.int32), jnp.full(size, 2 if others > 0 else 0, jnp.int32)


def reduced(scores: Float[Array, "..."], axis: Any, product: Product) -> Float[Array, "..."]:
    """The logarithm of the sum of exponentials over an axis, or the maximum."""
    return scores.max(axis) if product == "max" else jax.nn.logsumexp(scores, axis=axis)
