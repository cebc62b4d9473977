"""Belief propagation on any groups of units and any factors, for one instance."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .._types import AnyArray
from ..factors import AbstractFactor
from ..models import Instance
from ._expectation import Gaussians
from ._forms import (
    AbstractNumbered,
    AbstractSent,
    Heard,
    Product,
    reduced,
    Schedule,
    Start,
    Sums,
)
from ._odds import OddsSent, several_sweeps


class State(NamedTuple):
    """The messages of each factor, and what they add up to for each group.

    !!! example

        ```python
        from ebmlearn import messages
        from ebmlearn.models import Instance

        rbm = ebmlearn.RBM.init(4, 3)
        engine = messages.engine(rbm, temperature=jnp.ones(()))
        state = engine.start(engine.posed(Instance(rbm.unary(), (None, None))), "centred")
        state.fields
        ```

    **Fields:**

    - `messages`: the messages of each factor.
    - `fields`: what they add up to for each group.
    """

    messages: tuple[PyTree, ...]
    fields: tuple[Any, ...]


class Expected(NamedTuple):
    """Expected statistics of one instance.

    !!! example

        ```python
        from ebmlearn import messages
        from ebmlearn.models import Instance

        rbm = ebmlearn.RBM.init(4, 3)
        engine = messages.engine(rbm, temperature=jnp.ones(()))
        instance = engine.posed(Instance(rbm.unary(), (None, None)))
        found = messages.statistics(engine, engine.start(instance, "centred"), instance)
        found.units, found.pairs
        ```

    **Fields:**

    - `units`: the mean of each unit, by group: a probability where units are binary, one for each
      state where they are variables.
    - `pairs`: the mean of what each parameter of each factor is multiplied by.
    - `squares`: what the units' own energy needs, by group: the means of the squares of Gaussian
      units. None where there is nothing.
    """

    units: tuple[Float[Array, "..."], ...]
    pairs: tuple[Float[Array, "..."], ...]
    squares: tuple[Float[Array, "..."] | None, ...]


class Engine(eqx.Module):
    """Passes the messages of factors between groups. It knows how groups send, all at once or, with
    the schedule `layers`, those on side 0 and then those on side 1; what messages are, the `parts`
    know, and what they add up to, the `forms` of the groups.

    `maximised` says over which units of each group mixed-product maximises.

    !!! example

        ```python
        from ebmlearn import messages

        engine = messages.engine(ebmlearn.RBM.init(4, 3), temperature=jnp.ones(()))
        engine.names, engine.parts
        ```

    **Fields:**

    - `parts`: the messages of each factor.
    - `forms`: what the messages to each group add up to.
    - `factors`: the factors.
    - `damping`, `temperature`, `product`, `schedule`: as for [`ebmlearn.messages.engine`][].
    - `maximised`: over which units of each group mixed-product maximises.
    - `names`: the names of the groups.
    - `sides`: the side of each group of a bipartite model; else None.
    """

    parts: tuple[AbstractSent, ...]
    forms: tuple[AbstractNumbered | Gaussians, ...]
    factors: tuple[AbstractFactor, ...]
    damping: Float[AnyArray, ""] | None
    temperature: Float[AnyArray, ""]
    maximised: tuple[Bool[Array, " _"], ...] | None
    names: tuple[str, ...] = eqx.field(static=True)
    sides: tuple[int, ...] | None = eqx.field(static=True)
    product: Product = eqx.field(static=True)
    schedule: Schedule = eqx.field(static=True)

    def posed(self, instance: Instance) -> Instance:
        """An instance of the model as one of the model of $p^{1/T}$, of which messages are sent."""
        parts = zip(self.forms, *instance, strict=True)
        found = [form.posed(u, clamp, self.temperature) for form, u, clamp in parts]
        instance = Instance(tuple(u for u, _ in found), tuple(c for _, c in found))
        for part in self.parts:
            instance = part.posed(instance)
        return instance

    def start(self, instance: Instance, start: Start) -> State:
        """The state before any sweep."""
        alone = [self._field(g, (), instance, None) for g in range(len(self.forms))]
        heard = self._heard(alone, instance)
        messages = [part.start(start, heard) for part in self.parts]
        # Nothing is added up where messages say nothing.
        pairs = zip(self.parts, messages, strict=True)
        sent = [None if part.is_silent(start) else own for part, own in pairs]
        for k, leaf, _ in self._leaves:
            messages[k], sent[k] = self.parts[k].turn(messages[k], heard, leaf, _whole)
        return self._begun(messages, sent, instance)

    def leaning(self, instance: Instance, key: PRNGKeyArray, sign: Float[Array, ""]) -> State:
        """Another state before any sweep: all messages to a unit say the same, which is random. For
        a `sign` of -1 they say the opposite.
        """
        keys = jax.random.split(key, len(self.forms))
        lean = [
            sign * form.leaning(u, own)
            for form, u, own in zip(self.numbered, instance.unary, keys, strict=True)
        ]
        messages = [part.spread(lean) for part in self.parts]
        for k, _, _ in self._leaves:
            messages[k] = self.start(instance, "plain").messages[k]
        return self._begun(messages, messages, instance)

    def update(self, state: State, instance: Instance) -> State:
        """One sweep: every message is sent once."""
        messages, fields = list(state.messages), list(state.fields)
        if self.schedule == "layers":
            for turn in (0, 1):
                self.take_turn(turn, messages, fields, instance)
            return State(tuple(messages), tuple(fields))
        heard = self._heard(fields, instance)
        pairs = zip(self.parts, messages, strict=True)
        messages = [
            own if part.leaf is not None else part.update(own, heard, self._damped)
            for part, own in pairs
        ]
        return self.summed(messages, instance, fields)

    def take_turn(self, turn: int, messages: list, fields: list, instance: Instance) -> list:
        """Sends from the groups on a side to the others, changing the lists: what was sent."""
        assert self.sides is not None
        heard, sent = self._heard(fields, instance), list(messages)
        for k, part in enumerate(self.parts):
            senders = [end for end in part.ends if self.sides[end] == turn]
            if senders:
                parts = messages[k], heard, senders[0], self._damped
                messages[k], sent[k] = part.turn(*parts)
        for group, side in enumerate(self.sides):
            if side != turn:
                fields[group] = self._field(group, sent, instance, fields[group])
        return sent

    def sweeps(
        self, state: State, instance: Instance, number: Int[Array, ""], rows: int = 1
    ) -> tuple[State, tuple[Any, ...]]:
        """So many sweeps: the last state, and the fields before the last of them. `rows` is how
        many instances are swept together.
        """
        if len(self.parts) == 1 and len(self.forms) == 2:
            (part,) = self.parts
            if isinstance(part, OddsSent) and part.has_kernel:
                return several_sweeps(self, state, instance, number, rows)
        return self.one_by_one(state, instance, number)

    def one_by_one(
        self, state: State, instance: Instance, number: Int[Array, ""]
    ) -> tuple[State, tuple[Any, ...]]:
        """The same, one after the other."""

        def step(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            return self.update(carry[0], instance), carry[0].fields

        return jax.lax.fori_loop(0, number, step, (state, state.fields))

    @property
    def excludes(self) -> bool:
        """Whether some factor may exclude configurations."""
        return any(part.excludes for part in self.parts)

    def resume(self, state: State, instance: Instance) -> State:
        """Messages of another instance, with what they add up to here."""
        inward = self.inward(state, instance)
        return state._replace(fields=self.summed(inward, instance, state.fields).fields)

    def change(self, old: State, new: State, instance: Instance) -> Float[Array, ""]:
        """The largest change of a probability between two states."""
        parts = zip(self.forms, old.fields, new.fields, instance.clamp, strict=True)
        gaps = [form.change(a, b, clamp) for form, a, b, clamp in parts]
        return jax.lax.stop_gradient(jnp.stack(gaps).max())

    def beliefs(self, state: State, instance: Instance) -> tuple[Any, ...]:
        """What the messages say of all units, by group."""
        fields = self.finished(state, instance).fields
        parts = zip(self.forms, fields, *instance, strict=True)
        return tuple(form.belief(*own) for form, *own in parts)

    def decode(self, beliefs: Sequence[Any]) -> tuple[Int[Array, " _"], ...]:
        """The likeliest state of each unit."""
        return tuple(form.mode(own) for form, own in zip(self.numbered, beliefs, strict=True))

    def as_logs(self, state: State, are_odds: bool | Bool[AnyArray, ""]) -> State:
        """The state with messages as log-odds, if they are odds; damped ones never are."""
        if self.damping is not None:
            return state
        pairs = zip(self.parts, state.messages, strict=True)
        return state._replace(messages=tuple(part.as_logs(own, are_odds) for part, own in pairs))

    def alone(self, group: int, instance: Instance) -> Sums:
        """What is known of a group without messages."""
        sums = self.forms[group].alone(instance.unary[group])
        for part in self.parts:
            sums = part.shifted(sums, group)
        return sums

    @property
    def numbered(self) -> list[AbstractNumbered]:
        """The forms of groups whose units have a few states each."""
        return [form for form in self.forms if isinstance(form, AbstractNumbered)]

    @property
    def in_place(self) -> bool:
        """Whether groups send in turn, and their messages whole."""
        return self.schedule == "layers" and self.damping is None

    @property
    def _leaves(self) -> list[tuple[int, int, int]]:
        """The parts with a group that hears nothing before the end, that group, and the other."""
        return [
            (k, part.leaf, next(end for end in part.ends if end != part.leaf))
            for k, part in enumerate(self.parts)
            if part.leaf is not None
        ]

    def finished(self, state: State, instance: Instance) -> State:
        """The state after each group has received the last messages."""
        messages, fields = list(state.messages), list(state.fields)
        if not self._leaves:
            return state
        heard = self._heard(fields, instance)
        for k, leaf, other in self._leaves:
            messages[k], _ = self.parts[k].turn(messages[k], heard, other, _whole)
            fields[leaf] = self._field(leaf, messages, instance, fields[leaf])
        return State(tuple(messages), tuple(fields))

    def known(self, fields: Sequence[Any], instance: Instance) -> Any:
        """The form, the field and the units that are held of each group."""
        return zip(self.forms, fields, instance.clamp, strict=True)

    def _heard(self, fields: Sequence[Any], instance: Instance) -> list[Heard]:
        return [form.heard(*own) for form, *own in self.known(fields, instance)]

    def _damped(self, old: Array, new: Array) -> Array:
        if self.damping is None:
            return new
        return jnp.asarray(self.damping) * old + jnp.asarray(1 - self.damping) * new

    def _begun(self, messages: list, sent: list, instance: Instance) -> State:
        fields = self.summed(sent, instance, (None,) * len(self.forms)).fields
        pairs = zip(self.parts, messages, strict=True)
        return State(tuple(part.begun(own, fields) for part, own in pairs), fields)

    def summed(self, messages: Sequence[PyTree], instance: Instance, old: Sequence[Any]) -> State:
        """Messages, and what they add up to."""
        fields = [self._field(g, messages, instance, old[g]) for g in range(len(self.forms))]
        return State(tuple(messages), tuple(fields))

    def _field(self, group: int, sent: Sequence[PyTree], instance: Instance, old: Any) -> Any:
        """What is known of a group with all messages towards it."""
        sums = self.alone(group, instance)
        for part, own in zip(self.parts, sent, strict=False):
            if group in part.ends and own is not None:
                sums = part.added(sums, own, group)
        return self.forms[group].field(sums, old, instance.clamp[group])

    def inward(self, state: State, instance: Instance) -> list[PyTree]:
        """The messages of a state as they add up."""
        heard = self._heard(state.fields, instance)
        pairs = zip(self.parts, state.messages, strict=True)
        return [part.inward(own, heard) for part, own in pairs]


def statistics(engine: Engine, state: State, instance: Instance) -> Expected:
    """The gradient of `log_partition` at a fixed point; what is maximised is 0 or 1.

    !!! example

        ```python
        from ebmlearn import messages
        from ebmlearn.models import Instance

        rbm = ebmlearn.RBM.init(4, 3)
        engine = messages.engine(rbm, temperature=jnp.ones(()))
        instance = engine.posed(Instance(rbm.unary(), (None, None)))
        messages.statistics(engine, engine.start(instance, "centred"), instance).units
        ```

    **Arguments:**

    - `engine`: the engine.
    - `state`: the messages, at a fixed point.
    - `instance`: the unary terms and evidence of one instance.
    """
    if engine.product == "max":
        found = engine.beliefs(state, instance)
        pairs = zip(engine.numbered, found, strict=True)
        units = tuple(form.expected(form.decided(x))[0] for form, x in pairs)
        return Expected(units, _met(engine, engine.decode(found)), (None,) * len(units))
    plugged = _plugged(engine, state, instance)
    if engine.in_place and engine.parts and all(isinstance(p, OddsSent) for p in engine.parts):
        inward, fields = engine.inward(state, instance), list(state.fields)
        engine.take_turn(0, list(state.messages), fields, plugged)
        state = state._replace(fields=tuple(fields))
        known = [form.held(*own) for form, *own in engine.known(fields, plugged)]
        both: Any = zip(engine.parts, inward, strict=True)
        pairs = tuple(x for part, own in both for x in part.in_turn(own, known))
    else:
        dtype = jax.tree.leaves(instance.unary)[0].dtype
        pairs = pairwise(engine, state, instance, jnp.ones((), dtype))
    found = [
        form.expected(x)
        for form, x in zip(engine.forms, engine.beliefs(state, plugged), strict=True)
    ]
    return Expected(tuple(x for x, _ in found), pairs, tuple(x for _, x in found))


def tells_statistics(engine: Engine) -> bool:
    """Whether `statistics` are known in the form of messages at hand; in log-odds they are."""
    return engine.in_place or not any(part.is_fast for part in engine.parts)


def pairwise(
    engine: Engine, state: State, instance: Instance, temperature: Float[Array, ""]
) -> tuple[Float[Array, "..."], ...]:
    """The expected statistic of each parameter, at a temperature of which this is the engine at
    1. In log-odds form only.
    """
    messages, fields, instance = _both_ways(engine, state, instance)
    heard = [form.shifted(*own)[0] for form, *own in engine.known(fields, instance)]
    pairs = zip(engine.parts, messages, strict=True)
    return tuple(x for part, own in pairs for x in part.statistic(own, heard, temperature))


def log_partition(engine: Engine, state: State, instance: Instance) -> Float[Array, ""]:
    """The Bethe approximation of log Z, or of the largest log-potential for max-product, over
    the configurations that agree with what is held. In log-odds form only.

    The log-normalisers of the factors, plus those of the units times one minus the number of
    factors that they are in.
    """
    if len(engine.numbered) < len(engine.forms):
        raise NotImplementedError(
            "`log_partition` is not known of Gaussian messages; `Exact` may give it."
        )
    value, some = _normalised(engine, state, instance)
    return jnp.where(some, value, -jnp.inf)


def is_possible(engine: Engine, state: State, instance: Instance) -> Bool[Array, ""]:
    """Whether messages leave a configuration; on a tree, whether there is one. Only such
    messages count as each exclude a state: those that are merely low may add up to as much.
    """
    return _normalised(engine, state, instance)[1]


def score(
    engine: Engine, states: Sequence[Int[Array, " _"]], instance: Instance
) -> Float[Array, ""]:
    """The log-potential of one configuration with its unary terms, minus infinity where it
    breaks a factor.
    """
    with jax.default_matmul_precision("highest"):
        own = dict(zip(engine.names, states, strict=True))
        met = [-factor.energy(own) for factor in engine.factors]
    return jnp.stack([linear(engine, states, instance.unary), *met]).sum()


def linear(engine: Engine, states: Sequence[Int[Array, " _"]], unary: Any) -> Float[Array, ""]:
    """The sum of the unary terms that states meet."""
    parts = zip(engine.numbered, states, unary, strict=True)
    return jnp.stack([form.linear(x, u) for form, x, u in parts]).sum()


def _plugged(engine: Engine, state: State, instance: Instance) -> Instance:
    """Mixed-product: the maximised units held at their most likely states."""
    if engine.maximised is None:
        return instance
    clamp = []
    for form, mask, field, own in zip(
        engine.numbered, engine.maximised, state.fields, instance.clamp, strict=True
    ):
        chosen = form.chosen(form.held(field, own))
        free = jnp.full_like(chosen, form.unheld) if own is None else own
        clamp.append(jnp.where(mask, chosen, free))
    return instance._replace(clamp=tuple(clamp))


def _both_ways(engine: Engine, state: State, instance: Instance) -> tuple[list, list, Instance]:
    """The messages in both directions, with the fields that they add up to. The fields are
    added up again, so that a gradient with the messages held fixed is complete.
    """
    state = engine.finished(state, instance)
    inward = engine.inward(state, instance)
    fields = list(engine.summed(inward, instance, state.fields).fields)
    instance = _plugged(engine, state, instance)
    sent: list = inward
    if engine.in_place:
        sent = engine.take_turn(0, list(state.messages), fields, instance)
    parts = zip(engine.parts, inward, sent, strict=True)
    return [part.both(own, back) for part, own, back in parts], fields, instance


def _normalised(
    engine: Engine, state: State, instance: Instance
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """The Bethe approximation of log Z, and whether a state of each unit and a configuration of
    each factor are left.
    """
    messages, fields, posed = _both_ways(engine, state, instance)
    known = engine.known(fields, posed)
    found = [form.shifted(*own) for form, *own in known]  # pyright: ignore
    heard, tops = [x for x, _ in found], [top for _, top in found]
    singles = [reduced(x.rows, -1, engine.product) for x in heard]
    values, possible = [x.sum() for x in (*tops, *singles)], []
    for part, own in zip(engine.parts, messages, strict=True):
        told = part.normalisers(own, heard, singles)
        assert told is not None
        values.append(told[0])
        possible.append(told[1])
    for group, form in enumerate(engine.numbered):
        left = form.possible(posed.unary[group], posed.clamp[group])
        for part, own in zip(engine.parts, messages, strict=True):
            if group in part.ends:
                left = part.left(own, group, left)
        possible.append(left.any(-1).all())
    return jnp.stack(values).sum(), jnp.stack(possible).all()


def _met(engine: Engine, states: Sequence[Int[Array, " _"]]) -> tuple[Float[Array, "..."], ...]:
    """How often one configuration meets each parameter."""
    own = dict(zip(engine.names, states, strict=True))

    if not engine.factors:
        return ()

    def potential(factors: tuple[AbstractFactor, ...]) -> Float[Array, ""]:
        return -jnp.stack([factor.energy(own) for factor in factors]).sum()

    found = eqx.filter_grad(potential)(engine.factors)
    return sum((f.statistic(g) for f, g in zip(engine.factors, found, strict=True)), ())


def _whole(old: Array, new: Array) -> Array:
    """Messages without damping."""
    return new
