"""What messages to the units of a group are, and what they add up to: one log-odds for a binary
unit, a row of scores for a categorical one.
"""

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._sentinels import CLAMPED, EXCLUDED, LIMIT, NOTHING
from ._edge import split
from ._types import Product


# How much a random message may say, in log-odds or scores. Odds stay inside their range.
LEANING = 4.0
# Log-odds as multiples of 1/64 and the rest, see `_edge.split`; other fields have no first part.
Sums = tuple[Any, Any]


class Heard(NamedTuple):
    """What a factor hears of a group.

    - `field`: what is known of its units, with those that are held.
    - `rows`: the scores of their states, if they have a few.
    - `open`: from which of these a factor takes off what it told itself.
    """

    field: Any
    rows: Any
    open: Any


class AbstractForm(eqx.Module):
    """The form of what is known of a group, for one instance. `clamp` says which units are held, or
    is None.
    """

    @abc.abstractmethod
    def posed(self, unary: Any, clamp: Any, temperature: Any) -> tuple[Any, Any]:
        """Unary terms of the model of $p^{1/T}$, and which units are held."""

    @abc.abstractmethod
    def alone(self, unary: Any) -> Sums:
        """What is known without messages, as sums to which these are added."""

    @abc.abstractmethod
    def field(self, sums: Sums, old: Any, clamp: Any) -> Any:
        """What the sums say. `old` is what was known a sweep ago, None at the start."""

    @abc.abstractmethod
    def heard(self, field: Any, clamp: Any) -> Heard:
        """What factors hear when they send."""

    @abc.abstractmethod
    def change(self, old: Any, new: Any, clamp: Any) -> Float[Array, ""]:
        """The largest change of a probability."""

    @abc.abstractmethod
    def belief(self, field: Any, unary: Any, clamp: Any) -> Any:
        """What is to be said of the units."""

    @abc.abstractmethod
    def expected(self, belief: Any) -> tuple[Float[Array, "..."], Float[Array, "..."] | None]:
        """The means of the states and, where units have an energy of their own, of their
        squares.
        """

    @abc.abstractmethod
    def shifted(self, field: Any, clamp: Any) -> tuple[Heard, Float[Array, "..."]]:
        """What factors hear when log Z is added up: scores less the largest of each unit, and
        that. What evidence excludes is no largest, and remains excluded.
        """


class AbstractNumbered(AbstractForm):
    """Units of a few states. `excluded` is the score of a state that evidence excludes."""

    excluded: ClassVar[float]

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
    def free(self, clamp: Any) -> Bool[Array, " n"]:
        """Which units are not held."""

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
    def mode(self, field: Any) -> Int[Array, " n"]:
        """The likeliest states."""

    @abc.abstractmethod
    def mixture(self, fields: Any, log_weights: Float[Array, " parts"]) -> Any:
        """The field if each of several is right with its probability."""

    @abc.abstractmethod
    def linear(self, states: Int[Array, " n"], unary: Any) -> Float[Array, ""]:
        """The sum of the unary terms that states meet."""

    def decided(self, field: Any) -> Any:
        """The field of units that are held at their likeliest states."""
        return self.held(field, self.chosen(field))

    def leaning(self, like: Float[Array, "..."], key: PRNGKeyArray) -> Float[Array, "..."]:
        """A random field."""
        return jax.random.uniform(key, like.shape, like.dtype, -LEANING, LEANING)

    def change(self, old: Any, new: Any, clamp: Any) -> Float[Array, ""]:
        before, after = (self.p(self.held(x, clamp)) for x in (old, new))
        return jnp.abs(after - before).max(initial=0)

    def belief(self, field: Any, unary: Any, clamp: Any) -> Any:
        return self.held(field, clamp)

    def expected(self, belief: Any) -> tuple[Float[Array, "..."], None]:
        return self.p(belief), None

    def heard(self, field: Any, clamp: Any) -> Heard:
        rows = self.rows(field)
        if clamp is None:
            return Heard(field, rows, jnp.ones(rows.shape, bool))
        nothing = jnp.where(self.left(rows, clamp), 0.0, self.excluded).astype(rows.dtype)
        free = jnp.broadcast_to(self.free(clamp)[:, None], rows.shape)
        return Heard(self.held(field, clamp), jnp.where(free, rows, nothing), free)

    def shifted(self, field: Any, clamp: Any) -> tuple[Heard, Float[Array, " n"]]:
        rows = self.rows(field)
        left = jnp.ones(rows.shape, bool) if clamp is None else self.left(rows, clamp)
        top = jax.lax.stop_gradient(jnp.where(left, rows, -jnp.inf).max(-1))
        less = jnp.where(left, rows - top[:, None], jnp.asarray(self.excluded, rows.dtype))
        return Heard(field, less, left), top


class LogOdds(AbstractNumbered):
    """Binary units. `clamp` is 1 or -1 where a unit is held at 1 or 0, else 0."""

    # Fields of many strong weights may be larger than what excludes a state elsewhere.
    excluded: ClassVar[float] = NOTHING

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

    def mode(self, field: Float[Array, " n"]) -> Int[Array, " n"]:
        return (field > 0).astype(jnp.int32)

    def mixture(
        self, fields: Float[Array, "parts n"], log_weights: Float[Array, " parts"]
    ) -> Float[Array, " n"]:
        own = log_weights[:, None]
        one, zero = jax.nn.log_sigmoid(fields), jax.nn.log_sigmoid(-fields)
        return jax.nn.logsumexp(own + one, axis=0) - jax.nn.logsumexp(own + zero, axis=0)

    def linear(self, states: Int[Array, " n"], unary: Float[Array, " n"]) -> Float[Array, ""]:
        return (unary * states.astype(unary.dtype)).sum()

    def left(self, rows: Float[Array, "n 2"], clamp: Any) -> Bool[Array, "n 2"]:
        return jnp.stack([clamp <= 0, clamp >= 0], -1)

    def free(self, clamp: Float[Array, " n"]) -> Bool[Array, " n"]:
        return clamp == 0


class Scores(AbstractNumbered):
    """Units of several states. `clamp` is the state at which a unit is held, -1 where it is
    free.
    """

    excluded: ClassVar[float] = EXCLUDED

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

    def mode(self, field: Float[Array, "n states"]) -> Int[Array, " n"]:
        return field.argmax(-1).astype(jnp.int32)

    def mixture(
        self, fields: Float[Array, "parts n states"], log_weights: Float[Array, " parts"]
    ) -> Float[Array, "n states"]:
        scores = jax.nn.log_softmax(fields, axis=-1)
        return jax.nn.logsumexp(log_weights[:, None, None] + scores, axis=0)

    def linear(self, states: Int[Array, " n"], unary: Float[Array, "n states"]) -> Float[Array, ""]:
        return jnp.take_along_axis(unary, states[:, None], axis=-1).sum()

    def left(
        self, rows: Float[Array, "n states"], clamp: Int[Array, " n"]
    ) -> Bool[Array, "n states"]:
        number = jnp.arange(rows.shape[-1], dtype=clamp.dtype)[None, :]
        return (clamp[:, None] < 0) | (clamp[:, None] == number)

    def free(self, clamp: Int[Array, " n"]) -> Bool[Array, " n"]:
        return clamp < 0


def reduced(scores: Float[Array, "..."], axis: Any, product: Product) -> Float[Array, "..."]:
    """The logarithm of the sum of exponentials over an axis, or the maximum."""
    return scores.max(axis) if product == "max" else jax.nn.logsumexp(scores, axis=axis)
