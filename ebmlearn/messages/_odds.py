"""Messages between binary units: one number for each edge and direction, see `_edge.py`."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from .._types import AnyArray
from ._edge import hard, log_product, odds, ODDS_LIMIT, soft, summed, total
from ._forms import (
    AbstractSent,
    counts_of_pairs,
    Damp,
    Form,
    Heard,
    Maximised,
    Product,
    reduced,
    Rule,
    Singles,
    Start,
    Sums,
)
from ._kernel import Block, Rule as KernelRule, serves, sweep


# The sweeps of a kernel after which it is asked whether there are more, where these are of so few
# edges that asking takes longer than a sweep.
_AT_ONCE, _FEW = 16, 2**23


class OddsSent(AbstractSent):
    """All pairs of binary units of two groups, or of one.

    Messages are the pair of those towards the first and those towards the second end. Two cases
    need only one array: undamped groups that take turns (`in_place`), so that each message is
    overwritten by its answer; and inside a group the two directions are one matrix and its
    transpose. A group that plugs in its likeliest states in place needs a number for each unit: the
    weights and the sign of its log-odds are all that it sends, and from these follows what it is
    answered.

    `weights` are half of those of the model, or their exponentials where messages are odds.
    """

    weights: Float[Array, "m n"]
    shifts: tuple[Sums, Sums]
    maximised: Maximised
    ends: tuple[int, int] = eqx.field(static=True)
    form: Form = eqx.field(static=True)
    product: Product = eqx.field(static=True)
    rules: tuple[Rule, Rule] = eqx.field(static=True)
    leader: int | None = eqx.field(static=True)

    def __init__(
        self,
        weights: Float[Array, "m n"],
        beta: Float[AnyArray, ""],
        ends: tuple[int, int],
        form: Form,
        product: Product,
        maximised: tuple[Any, Any],
        leader: int | None,
    ):
        """`maximised` says over which units of each end messages maximise: all, none, or a mask.
        `leader` is the end that sends first, if messages are overwritten in place.
        """
        beta = jnp.asarray(beta)
        # Scaled after the sum, so that no scaled copy of the weights is kept for it.
        self.shifts = tuple(
            (beta / 2 * coarse, beta / 2 * rest)
            for coarse, rest in (summed(weights, 1), summed(weights, 0))
        )  # pyright: ignore
        self.weights = beta / 2 * weights
        if form == "odds":
            # Outside its range this form is not used; there, the clip keeps gradients finite.
            limit = ODDS_LIMIT / 2
            self.weights = jnp.exp(jnp.clip(self.weights, -limit, limit))
        whole = all(isinstance(x, bool) for x in maximised)
        self.maximised = None if whole else maximised
        self.rules = _rules(*maximised) if whole else ("mixed", "mixed")
        self.ends, self.form, self.product, self.leader = ends, form, product, leader

    @property
    def is_fast(self) -> bool:
        return self.form == "odds"

    def start(self, start: Start, heard: Sequence[Heard]) -> PyTree:
        w = self.weights
        if self.form == "odds":
            message = jnp.ones_like(w) if start == "centred" else 1 / w
        else:
            message = jnp.zeros_like(w) if start == "centred" else -w
        return (message,) if self._is_single else (message, message)

    def is_silent(self, start: Start) -> bool:
        return start == "centred"

    def shifted(self, sums: Sums, group: int) -> Sums:
        if group not in self.ends:
            return sums
        coarse, rest = self.shifts[self.ends.index(group)]
        return sums[0] + coarse, sums[1] + rest

    def spread(self, fields: Sequence[Any], joined: Callable = jnp.subtract) -> PyTree:
        pair = [
            jnp.broadcast_to(_aligned(fields[end], k), self.weights.shape)
            for k, end in enumerate(self.ends)
        ]
        if self._is_inside:
            # A unit sends nothing to itself.
            own = jnp.eye(len(self.weights), dtype=bool)
            pair = [jnp.where(own, jnp.zeros_like(pair[0]), pair[0])]
        if self.form == "odds":
            pair = [jnp.exp(x) for x in pair]
        if self._is_inside:
            return tuple(pair)
        return (pair[self.leader],) if self.leader is not None else tuple(pair)

    def begun(self, messages: PyTree, fields: Sequence[Any]) -> PyTree:
        if not self._is_plugged:
            return messages
        return (self._signs(fields[self.ends[self.leader]]),)  # pyright: ignore

    def update(self, messages: PyTree, heard: Sequence[Heard], damp: Damp) -> PyTree:
        one, two = (heard[end].field for end in self.ends)
        if self._is_inside:
            (to,) = messages
            return (damp(to, self._sent(1, two, to.T)),)
        to_first, to_second = messages
        return (
            damp(to_first, self._sent(1, two, to_second)),
            damp(to_second, self._sent(0, one, to_first)),
        )

    def turn(
        self, messages: PyTree, heard: Sequence[Heard], sender: int, damp: Damp
    ) -> tuple[PyTree, PyTree]:
        end = self.ends.index(sender)
        field = heard[sender].field
        if self._is_plugged:
            if end == self.leader:
                messages = (self._signs(field),)
            plugged = self._plug(self.leader, messages[0])  # pyright: ignore
            sent = plugged if end == self.leader else self._sent(end, field, plugged)
            return messages, (sent,)
        if self.leader is not None:
            sent = (self._sent(end, field, messages[0]),)
            return sent, sent
        pair = list(messages)
        pair[1 - end] = damp(pair[1 - end], self._sent(end, field, pair[end]))
        return tuple(pair), tuple(pair)

    def added(self, sums: Sums, sent: PyTree, group: int) -> Sums:
        end = self.ends.index(group)
        towards = sent[min(end, len(sent) - 1)]
        if self.form == "odds":
            return sums[0], sums[1] + log_product(towards, 1 - end)
        coarse, rest = total(towards, 1 - end, self.product == "max")
        return sums[0] + coarse, sums[1] + rest

    def inward(self, messages: PyTree, heard: Sequence[Heard]) -> PyTree:
        if not self._is_plugged:
            return messages
        assert self.leader is not None
        field = heard[self.ends[1 - self.leader]].field
        return (self._sent(1 - self.leader, field, self._plug(self.leader, messages[0])),)

    def both(self, inward: PyTree, sent: PyTree) -> tuple[Array, Array]:
        if self.leader is not None:
            return (inward[0], sent[0]) if self.leader == 0 else (sent[0], inward[0])
        return (inward[0], inward[0].T) if self._is_inside else inward

    def as_logs(self, messages: PyTree, are_odds: bool | Bool[AnyArray, ""]) -> PyTree:
        if are_odds is False:
            return messages

        def convert(x: Array) -> Array:
            return jnp.where(are_odds, jnp.log(jnp.where(are_odds, x, jnp.ones_like(x))), x)

        return jax.tree.map(convert, messages)

    def normalisers(
        self, messages: PyTree, heard: Sequence[Heard], singles: Singles
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        first, second = self.ends
        edge = reduced(self._scores(messages, heard), 0, self.product)
        edge = edge - singles[first][:, None] - singles[second][None, :]
        if self._is_inside:
            edge = jnp.triu(edge, 1)
        return edge.sum(), jnp.ones((), bool)

    def statistic(
        self, messages: PyTree, heard: Sequence[Heard], temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "m n"]]:
        both = jax.nn.softmax(temperature * self._scores(messages, heard), axis=0)[3]
        if self._is_inside:
            alone = jax.nn.softmax(temperature * heard[self.ends[0]].rows, axis=-1)[:, 1]
            both = jnp.where(jnp.eye(both.shape[0], dtype=bool), alone[:, None], both)
        return (both,)

    def in_turn(self, inward: PyTree, fields: Sequence[Array]) -> tuple[Float[Array, "m n"]]:
        """The expected statistic where ends take turns in place, in either form, from the log-odds
        after the first has sent: P(both) = P(b = 1) P(a = 1 | b = 1), for a at the end that sends
        first, needs one sigmoid an edge.
        """
        ends = [_aligned(fields[end], k) for k, end in enumerate(self.ends)]
        a, b = reversed(ends) if self.leader else ends
        w, (message,) = self.weights, inward
        own = jnp.log(w / message) if self.form == "odds" else w - message
        return (jax.nn.sigmoid(b) * jax.nn.sigmoid(a + own),)

    def counts(self, group: int, size: int) -> tuple[Int[AnyArray, " n"], Int[AnyArray, " n"]]:
        return counts_of_pairs(self.weights.shape, self.ends, group, size)

    @property
    def has_kernel(self) -> bool:
        """Whether a kernel sweeps, if this factor is alone between two groups."""
        plain = self.ends == (0, 1) and self.rules in (("sum", "sum"), ("max", "max"))
        return plain and _on_gpu() and serves(self.weights.shape, self.weights.dtype)

    @property
    def _is_inside(self) -> bool:
        return self.ends[0] == self.ends[1]

    @property
    def _is_single(self) -> bool:
        return self._is_inside or self.leader is not None

    @property
    def _is_plugged(self) -> bool:
        """Whether signs are kept in place of messages."""
        return self.leader is not None and self.rules[self.leader] == "plug"

    def _sent(
        self, end: int, field: Array, incoming: Array, rule: Rule | None = None
    ) -> Float[Array, "m n"]:
        """The messages that one end sends, given those that came to it."""
        w, rule = self.weights, rule or self.rules[end]
        if rule == "mixed":
            assert self.maximised is not None
            total, best, held = (
                self._sent(end, field, incoming, one) for one in ("sum", "max", "plug")
            )
            own, other = (_aligned(self.maximised[k], k) for k in (end, 1 - end))
            return jnp.where(own, jnp.where(other, best, held), total)
        if rule == "plug":
            return self._plug(end, self._signs(field))
        field = _aligned(field, end)
        if self.form == "odds":
            if rule == "max":
                return jnp.exp(hard(jnp.log(w), field - jnp.log(incoming)))
            return odds(w, field, incoming)
        return (soft if rule == "sum" else hard)(w, field - incoming)

    def _signs(self, field: Float[Array, " m"]) -> Float[Array, " m"]:
        """The signs of log-odds, as log-odds or odds."""
        sign = jnp.sign(field)
        return jnp.exp(sign) if self.form == "odds" else sign

    def _plug(self, end: int, signs: Float[Array, " _"]) -> Float[Array, "m n"]:
        """What units send as if they were held at their most likely states."""
        w, signs = self.weights, _aligned(signs, end)
        if self.form == "odds":
            return jnp.where(signs > 1, w, jnp.where(signs < 1, 1 / w, jnp.ones_like(w)))
        return w * jnp.sign(signs)

    def _scores(
        self, messages: tuple[Array, Array], heard: Sequence[Heard]
    ) -> Float[Array, "4 m n"]:
        """The logarithm of the unnormalised belief of each pair of states of each edge, 00 to 11.
        In log-odds form only.
        """
        w, ends = self.weights, []
        for k, (end, message) in enumerate(zip(self.ends, messages, strict=True)):
            zero, one = (_aligned(heard[end].rows[:, state], k) for state in (0, 1))
            ends.append(jnp.stack([jnp.broadcast_to(zero, w.shape), one - message - w]))
        pairs = ends[0][:, None] + ends[1][None, :]
        return pairs.at[1, 1].add(2 * w).reshape(4, *w.shape)


def _rules(first: bool, second: bool) -> tuple[Rule, Rule]:
    """How two ends send, of which messages maximise over all units or none."""
    if first == second:
        return ("max", "max") if first else ("sum", "sum")
    return ("plug", "sum") if first else ("sum", "plug")


def _on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def _aligned(x: Shaped[Array, " n"], end: int) -> Shaped[Array, "_ _"]:
    """Numbers of the units at one end, along the axis of an edge."""
    return x[None, :] if end else x[:, None]


@functools.partial(jax.custom_jvp, nondiff_argnums=(4, 5))
def by_kernel(
    engine: Any,
    state: Any,
    instance: Any,
    number: Int[Array, ""],
    at_once: int = 1,
    interpret: bool = False,
) -> tuple[Any, tuple[Float[Array, " _"], ...]]:
    """The same as `engine.one_by_one` for one factor between two groups, by the kernel.

    Whether a loop of unknown length goes on is asked on the host, which takes longer than a sweep
    of one instance. So it is asked once for `at_once` sweeps, of which those that are too many do
    nothing.
    """
    (part,) = engine.parts
    turns = "turns" if part.leader is not None else "damped"
    order = turns if engine.schedule == "layers" else "flooding"
    rule = KernelRule(part.form, part.rules[0], order, at_once > 1, interpret)
    clamp = instance.clamp[0]
    block = Block(
        part.weights,
        engine.alone(0, instance),
        jnp.zeros_like(state.fields[0]) if clamp is None else clamp,
        jnp.zeros((), part.weights.dtype) if engine.damping is None else engine.damping,
    )
    own = engine.alone(1, instance)
    sent, fields = list(state.messages), list(state.fields)
    some = number > 0
    if rule.order != "flooding":
        # The kernel begins with the second group, and is half a sweep ahead.
        engine.take_turn(0, sent, fields, instance)
        sent = _chosen(some, sent, list(state.messages))

    def once(carry: Any, active: Bool[Array, ""], rule: KernelRule = rule) -> Any:
        messages, first, second, before = carry
        held = engine.forms[1].held(second, instance.clamp[1])
        messages, first, sums = sweep(rule, block, messages, first, held, active)
        *coarse, rest = sums
        heard = sum(coarse, own[0]) + (own[1] + rest)
        return messages, first, *_chosen(active, (heard, second), (second, before))

    def several(carry: Any) -> Any:
        i, carry = carry
        for k in range(at_once):
            carry = once(carry, i + k < number - 1)
        return i + at_once, carry

    begin = jnp.zeros_like(number), (sent[0], *fields, state.fields[1])
    ended = jax.lax.while_loop(lambda c: c[0] < number - 1, several, begin)[1]
    messages, first, second, before = ended
    # The last sweep. Where groups take turns, `before` is what the second one sent with last.
    if rule.order == "flooding":
        messages, *fields, _ = once(ended, some)
        return type(state)((messages,), tuple(fields)), (first, second)
    if rule.order == "turns":
        messages, field, *_ = once(ended, some, rule._replace(last=True))
        fields = _chosen(some, (field, second), state.fields)
        return type(state)((messages,), fields), _chosen(some, (first, before), state.fields)
    rest, fields = [messages], [first, second]
    engine.take_turn(1, rest, fields, instance)
    new = type(state)(tuple(rest), tuple(fields)), (first, before)
    return _chosen(some, new, (state, state.fields))


def _chosen(yes: Bool[Array, ""], a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(lambda x, y: jnp.where(yes, x, y), a, b)


@by_kernel.defjvp
def _(at_once, interpret, primals, tangents):
    # The kernel has no derivative of its own.
    return jax.jvp(lambda engine, *rest: engine.one_by_one(*rest), primals, tangents)


def several_sweeps(engine: Any, state: Any, instance: Any, number: Any, rows: int) -> Any:
    """Sweeps by the kernel on GPUs, elsewhere one by one."""
    few = rows * engine.parts[0].weights.size <= _FEW
    kernel = functools.partial(by_kernel, at_once=_AT_ONCE if few else 1)
    return jax.lax.platform_dependent(
        engine, state, instance, number, cuda=kernel, default=lambda e, *rest: e.one_by_one(*rest)
    )
