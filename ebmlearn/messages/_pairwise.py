import functools
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .._sentinels import CLAMPED
from .._types import AnyArray
from ..models import AbstractLayeredModel
from ._edge import hard, log_product, odds, ODDS_LIMIT, soft, split, summed, total
from ._kernel import Block as EdgeBlock, Rule, serves, sweep
from ._types import Form, Product, Schedule, Start
from ._view import AbstractView, Expected, LEANING, one_by_one


# The sweeps of a kernel after which it is asked whether there are more, where these are of so few
# edges that asking takes longer than a sweep.
_AT_ONCE, _FEW = 16, 2**23


class Instance(NamedTuple):
    """What may differ between instances of one model: the unary log-odds of each layer, and for
    layers with observed units an array that is 1 or -1 where a unit is held at 1 or 0, else 0.
    """

    unary: tuple[Float[Array, " _"], ...]
    clamp: tuple[Float[Array, " _"] | None, ...]

    def tempered(self, temperature: Float[AnyArray, ""]) -> "Instance":
        """That of the model of $p^{1/T}$."""
        return self._replace(unary=tuple(u / temperature for u in self.unary))


class State(NamedTuple):
    """Messages of each block, and the log-odds of each layer that they add up to.

    A block holds the pair (messages towards its first layer, messages towards its second layer).
    Two cases need only one array: undamped layers take turns, so that each message is overwritten
    by its answer; and inside a layer the two directions are one matrix and its transpose. Undamped
    mixed-product needs a number for each visible unit on side 0: the weights and the sign of its
    log-odds are all that it sends to hidden units, and from these follows what it is answered.
    """

    messages: tuple[tuple[Float[Array, "..."], ...], ...]
    fields: tuple[Float[Array, " _"], ...]


class PairwiseView(AbstractView):
    """Message passing on binary units in layers, written for one instance.

    Belief propagation, max-product and mixed-product differ only in the rule by which each layer
    sends: `sum` and `max` as their names say, `plug` as if the layer were held at its most likely
    state (the visible units of mixed-product to the hidden ones, Ping & Ihler 2017, eq. (15)).

    With the schedule `layers`, those on side 0 of the model send first, then those on side 1.
    """

    weights: tuple[Float[Array, "_ _"], ...]
    shifts: tuple[tuple[Float[Array, " _"], Float[Array, " _"]], ...]
    damping: Float[Array, ""] | None
    edges: tuple[tuple[int, int], ...] = eqx.field(static=True)
    sides: tuple[int, ...] | None = eqx.field(static=True)
    seen: tuple[int, ...] = eqx.field(static=True)
    product: Product = eqx.field(static=True)
    form: Form = eqx.field(static=True)
    schedule: Schedule = eqx.field(static=True)

    def __init__(
        self,
        model: AbstractLayeredModel,
        product: Product,
        form: Form,
        schedule: Schedule,
        damping: Float[AnyArray, ""] | None,
        beta: Float[AnyArray, ""],
    ):
        beta, blocks = jnp.asarray(beta), model.blocks()
        if form == "odds":
            # Outside its range this form is not used; there, the clip keeps gradients finite.
            limit = ODDS_LIMIT / 2
            half = (jnp.clip(beta / 2 * b.weights, -limit, limit) for b in blocks)
            self.weights = tuple(jnp.exp(w) for w in half)
        else:
            self.weights = tuple(beta / 2 * b.weights for b in blocks)
        shifts = [split(jnp.zeros(bias.shape[-1], beta.dtype)) for bias in model.unary()]
        for first, second, weights, _ in blocks:
            shifts[first] = _plus(shifts[first], summed(weights, 1))
            if first != second:
                shifts[second] = _plus(shifts[second], summed(weights, 0))
        # Scaled after the sum, so that no scaled copy of the weights is kept for it.
        self.shifts = tuple((beta / 2 * coarse, beta / 2 * rest) for coarse, rest in shifts)
        self.damping = None if damping is None else jnp.asarray(damping)
        self.edges = tuple((block.first, block.second) for block in blocks)
        self.sides, self.seen = model.sides, model.seen
        self.product = product
        self.form = form
        self.schedule = schedule

    def start(self, instance: Instance, start: Start) -> State:
        """No messages in ±1 form (`centred`), or no messages in {0, 1} form (`plain`)."""
        messages = []
        for (first, second), w in zip(self.edges, self.weights, strict=True):
            if self.form == "odds":
                message = jnp.ones_like(w) if start == "centred" else 1 / w
            else:
                message = jnp.zeros_like(w) if start == "centred" else -w
            single = first == second or self._in_place
            messages.append((message,) if single else (message, message))
        return self._begun(messages, [] if start == "centred" else messages, instance)

    def leaning(self, instance: Instance, key: PRNGKeyArray, sign: Float[Array, ""]) -> State:
        keys = jax.random.split(key, len(instance.unary))
        lean = [
            sign * jax.random.uniform(k, u.shape, u.dtype, -LEANING, LEANING)
            for k, u in zip(keys, instance.unary, strict=True)
        ]
        messages = []
        for k, ((first, second), w) in enumerate(zip(self.edges, self.weights, strict=True)):
            pair = [
                jnp.broadcast_to(x, w.shape) for x in (_column(lean[first]), _row(lean[second]))
            ]
            if self.form == "odds":
                pair = [jnp.exp(x) for x in pair]
            if first == second:
                pair = pair[:1]
            elif self._in_place:
                pair = [pair[self._end(k)]]
            messages.append(tuple(pair))
        return self._begun(messages, messages, instance)

    def _begun(self, messages: list, sent: list, instance: Instance) -> State:
        """Messages, and the log-odds that those of `sent` add up to."""
        layers = range(len(instance.unary))
        fields = tuple(self._field(layer, sent, instance) for layer in layers)
        for k in range(len(messages)):
            if self._is_plugged(k):
                messages[k] = (self._signs(fields[self.edges[k][self._end(k)]]),)
        return State(tuple(messages), fields)

    def update(self, state: State, instance: Instance) -> State:
        """One sweep: every message is sent once."""
        messages, fields = list(state.messages), list(state.fields)
        if self.schedule == "layers":
            for turn in (0, 1):
                self._send_layers(turn, messages, fields, instance)
        else:
            held = [self._held(layer, fields, instance) for layer in range(len(fields))]
            for k, (first, second) in enumerate(self.edges):
                if first == second:
                    (to,) = messages[k]
                    messages[k] = (self._damped(to, self._sent(k, 1, held[first], to.T)),)
                else:
                    to_first, to_second = messages[k]
                    messages[k] = (
                        self._damped(to_first, self._sent(k, 1, held[second], to_second)),
                        self._damped(to_second, self._sent(k, 0, held[first], to_first)),
                    )
            for layer in range(len(fields)):
                fields[layer] = self._field(layer, messages, instance)
        return State(tuple(messages), tuple(fields))

    def sweeps(
        self, state: State, instance: Instance, number: Int[Array, ""], rows: int = 1
    ) -> tuple[State, tuple[Float[Array, " _"], ...]]:
        """So many sweeps: by a kernel on GPUs, where the model is one block between two layers."""
        if not self._has_kernel:
            return one_by_one(self, state, instance, number)
        few = rows * self.weights[0].size <= _FEW
        kernel = functools.partial(by_kernel, at_once=_AT_ONCE if few else 1)
        parts = self, state, instance, number
        return jax.lax.platform_dependent(*parts, cuda=kernel, default=one_by_one)

    def beliefs(self, state: State, instance: Instance) -> tuple[Float[Array, " _"], ...]:
        """The log-odds of every unit."""
        layers = range(len(state.fields))
        return tuple(self._held(layer, list(state.fields), instance) for layer in layers)

    def mixture(
        self, beliefs: tuple[Float[Array, "parts _"], ...], log_weights: Float[Array, " parts"]
    ) -> tuple[Float[Array, " _"], ...]:
        own = log_weights[:, None]
        return tuple(
            jax.nn.logsumexp(own + jax.nn.log_sigmoid(x), axis=0)
            - jax.nn.logsumexp(own + jax.nn.log_sigmoid(-x), axis=0)
            for x in beliefs
        )

    def resume(self, state: State, instance: Instance) -> State:
        """Messages of another instance, with what they add up to here."""
        layers = range(len(instance.unary))
        messages = self._inward(state, instance)
        return state._replace(fields=tuple(self._field(k, messages, instance) for k in layers))

    def change(self, old: State, new: State, instance: Instance) -> Float[Array, ""]:
        """The largest change of a probability between two states."""
        return change(self.beliefs(old, instance), self.beliefs(new, instance))

    def is_possible(self, state: Any, instance: Any) -> Bool[Array, ""]:
        """Always: these models exclude nothing."""
        return jnp.ones((), bool)

    def decode(self, beliefs: tuple[Float[Array, " _"], ...]) -> tuple[Float[Array, " _"], ...]:
        """The likelier state of each unit."""
        return tuple((x > 0).astype(x.dtype) for x in beliefs)

    def given(
        self, states: tuple[Float[Array, " _"], ...], instance: Instance
    ) -> tuple[Float[Array, " _"], ...]:
        """The log-odds of every unit given all others. In log-odds form only."""
        fields = list(instance.unary)
        for (first, second), w in zip(self.edges, self.weights, strict=True):
            fields[first] = fields[first] + 2 * jnp.matmul(w, states[second], precision="highest")
            if first != second:
                sent = jnp.matmul(states[first], w, precision="highest")
                fields[second] = fields[second] + 2 * sent
        return tuple(fields)

    def linear(
        self, states: tuple[Float[Array, " _"], ...], unary: tuple[Float[Array, " _"], ...]
    ) -> Float[Array, ""]:
        """The sum of the unary terms that states meet."""
        return jnp.stack([(u * x).sum() for u, x in zip(unary, states, strict=True)]).sum()

    def score(self, states: tuple[Float[Array, " _"], ...], instance: Instance) -> Float[Array, ""]:
        """The log-potential of one configuration. In log-odds form only."""
        # Each pair is met from both of its ends.
        given = self.given(states, instance)
        return (self.linear(states, given) + self.linear(states, instance.unary)) / 2

    def is_peak(
        self, states: tuple[Float[Array, " _"], ...], instance: Instance
    ) -> Bool[Array, ""]:
        """Whether no change of one unit raises the log-potential. In log-odds form only."""
        worse = [
            ((1 - 2 * x) * field <= 0).all()
            if clamp is None
            else (((1 - 2 * x) * field <= 0) | (clamp != 0)).all()
            for x, field, clamp in zip(
                states, self.given(states, instance), instance.clamp, strict=True
            )
        ]
        return jnp.stack(worse).all()

    def log_partition(self, state: State, instance: Instance) -> Float[Array, ""]:
        """The Bethe approximation of log Z, or of the largest log-potential for max-product, over
        the configurations that agree with the clamped units.
        """
        pairs, fields, instance = self._both_ways(state, instance)
        masks = [_mask(clamp, field) for clamp, field in zip(instance.clamp, fields, strict=True)]
        single = [self._reduce(_states(*unit)) for unit in zip(fields, masks, strict=True)]
        out = sum(scores.sum() for scores in single)
        for (first, second), w, (to_first, to_second) in zip(
            self.edges, self.weights, pairs, strict=True
        ):
            scores = self._pair_scores(first, second, w, to_first, to_second, fields, masks)
            edge = self._reduce(scores.reshape(4, *w.shape))
            edge = edge - _column(single[first]) - _row(single[second])
            if first == second:
                edge = jnp.triu(edge, 1)
            out = out + edge.sum()
        return jnp.asarray(out)

    def pairwise(
        self, state: State, instance: Instance, temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "_ _"], ...]:
        """The belief that both units of an edge are 1, for every block."""
        pairs, fields, instance = self._both_ways(state, instance)
        masks = [_mask(clamp, field) for clamp, field in zip(instance.clamp, fields, strict=True)]
        out = []
        for (first, second), w, (to_first, to_second) in zip(
            self.edges, self.weights, pairs, strict=True
        ):
            scores = self._pair_scores(first, second, w, to_first, to_second, fields, masks)
            both = jax.nn.softmax(temperature * scores.reshape(4, *w.shape), axis=0)[3]
            if first == second:
                alone = jax.nn.softmax(temperature * _states(fields[first], masks[first]), axis=0)
                both = jnp.where(jnp.eye(w.shape[0], dtype=bool), _column(alone[1]), both)
            out.append(both)
        return tuple(out)

    def statistics(self, state: State, instance: Instance) -> Expected:
        """The gradient of `log_partition` at a fixed point: probabilities of units, and of pairs.

        Where layers take turns, P(both) = P(b = 1) · P(a = 1 | b = 1) for a on side 0 and b on side
        1 needs one sigmoid an edge, in either form. What is maximised is 0 or 1.
        """
        none = (None,) * len(state.fields)
        if self.product == "max":
            units = tuple(
                (field > 0).astype(field.dtype) for field in self.beliefs(state, instance)
            )
            pairs = tuple(_column(units[a]) * _row(units[b]) for a, b in self.edges)
            return Expected(units, pairs, none)
        plugged = self._plugged(state, instance)
        if not self._in_place:
            one = jnp.ones((), state.fields[0].dtype)
            units = tuple(jax.nn.sigmoid(field) for field in self.beliefs(state, plugged))
            return Expected(units, self.pairwise(state, instance, one), none)
        inward = self._inward(state, instance)
        fields, instance = list(state.fields), plugged
        self._send_layers(0, list(state.messages), fields, instance)
        fields = [self._held(layer, fields, instance) for layer in range(len(fields))]
        pairs = []
        for k, ((first, second), w, (message,)) in enumerate(
            zip(self.edges, self.weights, inward, strict=True)
        ):
            ends = _column(fields[first]), _row(fields[second])
            a, b = reversed(ends) if self._end(k) else ends
            own = jnp.log(w / message) if self.form == "odds" else w - message
            pairs.append(jax.nn.sigmoid(b) * jax.nn.sigmoid(a + own))
        return Expected(tuple(jax.nn.sigmoid(field) for field in fields), tuple(pairs), none)

    @property
    def tells_statistics(self) -> bool:
        return self.form == "log-odds" or self._in_place

    @property
    def _in_place(self) -> bool:
        return self.schedule == "layers" and self.damping is None

    @property
    def _has_kernel(self) -> bool:
        one = self.edges == ((0, 1),) and self.product != "mixed"
        return one and _on_gpu() and serves(self.weights[0].shape, self.weights[0].dtype)

    def _end(self, k: int) -> int:
        """The end of a block that is on side 0."""
        assert self.sides is not None
        return self.sides[self.edges[k][0]]

    def _rule(self, k: int, sender: int) -> Literal["sum", "max", "plug"]:
        """How one end of a block sends to the other."""
        if self.product != "mixed":
            return self.product
        layer, other = self.edges[k][sender], self.edges[k][1 - sender]
        if layer not in self.seen:
            return "sum"
        return "max" if other in self.seen else "plug"

    def _send_layers(self, turn: int, messages: list, fields: list, instance: Instance) -> None:
        """Sends from the layers on a side to the others, changing the lists."""
        assert self.sides is not None
        kept = messages
        messages = list(kept)
        for k, edge in enumerate(self.edges):
            end = self._end(k)
            sender = 1 - end if turn else end
            field = self._held(edge[sender], fields, instance)
            if self._is_plugged(k):
                if turn == 0:
                    kept[k] = (self._signs(field),)
                plugged = self._plug(k, end, kept[k][0])
                messages[k] = (plugged if turn == 0 else self._sent(k, sender, field, plugged),)
                continue
            if self._in_place:
                messages[k] = (self._sent(k, sender, field, messages[k][0]),)
            else:
                pair = list(messages[k])
                sent = self._sent(k, sender, field, pair[sender])
                pair[1 - sender] = self._damped(pair[1 - sender], sent)
                messages[k] = tuple(pair)
            kept[k] = messages[k]
        for layer, side in enumerate(self.sides):
            if side != turn:
                fields[layer] = self._field(layer, messages, instance)

    def _sent(self, k: int, sender: int, field: Array, incoming: Array) -> Array:
        """The messages that one end of a block sends, given those that came to it."""
        w, rule = self.weights[k], self._rule(k, sender)
        align = _row if sender else _column
        if rule == "plug":
            return self._plug(k, sender, self._signs(field))
        if self.form == "odds":
            if rule == "max":
                return jnp.exp(hard(jnp.log(w), align(field) - jnp.log(incoming)))
            return odds(w, align(field), incoming)
        return (soft if rule == "sum" else hard)(w, align(field) - incoming)

    def _is_plugged(self, k: int) -> bool:
        """Whether a block keeps the signs of visible units in place of messages."""
        return self._in_place and self._rule(k, self._end(k)) == "plug"

    def _signs(self, field: Float[Array, " m"]) -> Float[Array, " m"]:
        """The signs of log-odds, as log-odds or odds."""
        sign = jnp.sign(field)
        return jnp.exp(sign) if self.form == "odds" else sign

    def _plug(self, k: int, sender: int, signs: Float[Array, " _"]) -> Float[Array, "m n"]:
        """What visible units send as if they were held at their most likely states."""
        w, signs = self.weights[k], (_row if sender else _column)(signs)
        if self.form == "odds":
            return jnp.where(signs > 1, w, jnp.where(signs < 1, 1 / w, jnp.ones_like(w)))
        return w * jnp.sign(signs)

    def _inward(self, state: State, instance: Instance) -> list[tuple[Array, ...]]:
        """The messages of a state, with all those towards the layers on side 0."""
        messages = list(state.messages)
        for k, (signs, *_) in enumerate(state.messages):
            if self._is_plugged(k):
                end = self._end(k)
                field = self._held(self.edges[k][1 - end], list(state.fields), instance)
                messages[k] = (self._sent(k, 1 - end, field, self._plug(k, end, signs)),)
        return messages

    def _damped(self, old: Array, new: Array) -> Array:
        return new if self.damping is None else self.damping * old + (1 - self.damping) * new

    def _field(self, layer: int, messages: list, instance: Instance) -> Array:
        """The log-odds of a layer: its unary terms and all messages towards it."""
        coarse, rest = self._alone(layer, instance)
        for edge, message in zip(self.edges, messages, strict=False):
            if layer in edge:
                end = edge.index(layer)
                towards = message[min(end, len(message) - 1)]
                if self.form == "odds":
                    rest = rest + log_product(towards, 1 - end)
                else:
                    clipped = self.product == "max"
                    coarse, rest = _plus((coarse, rest), total(towards, 1 - end, clipped))
        return coarse + rest

    def _alone(self, layer: int, instance: Instance) -> tuple[Array, Array]:
        """The log-odds of a layer without messages: multiples of 1/64, and the rest."""
        return _plus(split(instance.unary[layer]), self.shifts[layer])

    def _held(self, layer: int, fields: list, instance: Instance) -> Array:
        """The log-odds of a layer, those of clamped units far beyond any message."""
        field, clamp = fields[layer], instance.clamp[layer]
        return field if clamp is None else jnp.where(clamp == 0, field, clamp * CLAMPED)

    def _plugged(self, state: State, instance: Instance) -> Instance:
        """Mixed-product: the visible units held at their most likely states."""
        if self.product != "mixed":
            return instance
        clamp = list(instance.clamp)
        for k in self.seen:
            held = self._held(k, list(state.fields), instance)
            clamp[k] = jnp.where(held > 0, 1.0, -1.0).astype(held.dtype)
        return instance._replace(clamp=tuple(clamp))

    def _both_ways(self, state: State, instance: Instance) -> tuple[list, list, Instance]:
        """The messages in both directions, with the fields that they add up to. The fields are
        added up again, so that a gradient with the messages held fixed is complete.
        """
        inward = self._inward(state, instance)
        layers = range(len(state.fields))
        fields = [self._field(layer, inward, instance) for layer in layers]
        instance = self._plugged(state, instance)
        if not self._in_place:
            pairs = [pair if len(pair) == 2 else (pair[0], pair[0].T) for pair in inward]
            return pairs, fields, instance
        outward = list(state.messages)
        self._send_layers(0, outward, fields, instance)
        pairs = []
        for k, ((to,), (back,)) in enumerate(zip(inward, outward, strict=True)):
            end = self._end(k)
            back = self._plug(k, end, back) if self._is_plugged(k) else back
            pairs.append((back, to) if end else (to, back))
        return pairs, fields, instance

    def _pair_scores(
        self,
        first: int,
        second: int,
        w: Array,
        to_first: Array,
        to_second: Array,
        fields: list,
        masks: list,
    ) -> Float[Array, "2 2 m n"]:
        """The logarithm of the unnormalised belief of each pair of states of each edge."""
        one = _states(_column(fields[first]) - to_first - w, masks[first][:, :, None])
        two = _states(_row(fields[second]) - to_second - w, masks[second][:, None, :])
        return (one[:, None] + two[None, :]).at[1, 1].add(2 * w)

    def _reduce(self, scores: Float[Array, "s *shape"]) -> Float[Array, "*shape"]:
        return scores.max(0) if self.product == "max" else jax.nn.logsumexp(scores, axis=0)


def _on_gpu() -> bool:
    return jax.default_backend() == "gpu"


@functools.partial(jax.custom_jvp, nondiff_argnums=(4, 5))
def by_kernel(
    view: PairwiseView,
    state: State,
    instance: Instance,
    number: Int[Array, ""],
    at_once: int = 1,
    interpret: bool = False,
) -> tuple[State, tuple[Float[Array, " _"], ...]]:
    """The same as `one_by_one` for one block between two layers, by the kernel.

    Whether a loop of unknown length goes on is asked on the host, which takes longer than a sweep
    of one instance. So it is asked once for `at_once` sweeps, of which those that are too many do
    nothing.
    """
    product = "max" if view.product == "max" else "sum"
    turns = "turns" if view._in_place else "damped"
    order = turns if view.schedule == "layers" else "flooding"
    rule = Rule(view.form, product, order, at_once > 1, interpret)
    clamp = instance.clamp[0]
    block = EdgeBlock(
        view.weights[0],
        view._alone(0, instance),
        jnp.zeros_like(state.fields[0]) if clamp is None else clamp,
        jnp.zeros((), view.weights[0].dtype) if view.damping is None else view.damping,
    )
    own = view._alone(1, instance)
    sent, fields = list(state.messages), list(state.fields)
    some = number > 0
    if rule.order != "flooding":
        # The kernel begins with the second layer, and is half a sweep ahead.
        view._send_layers(0, sent, fields, instance)
        sent = _chosen(some, sent, list(state.messages))

    def once(carry: Any, active: Bool[Array, ""], rule: Rule = rule) -> Any:
        messages, first, second, before = carry
        held = view._held(1, [first, second], instance)
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
    # The last sweep. Where layers take turns, `before` is what the second one sent with last.
    if rule.order == "flooding":
        messages, *fields, _ = once(ended, some)
        return State((messages,), tuple(fields)), (first, second)
    if rule.order == "turns":
        messages, field, *_ = once(ended, some, rule._replace(last=True))
        fields = _chosen(some, (field, second), state.fields)
        return State((messages,), fields), _chosen(some, (first, before), state.fields)
    rest, fields = [messages], [first, second]
    view._send_layers(1, rest, fields, instance)
    new = State(tuple(rest), tuple(fields)), (first, before)
    return _chosen(some, new, (state, state.fields))


def _chosen(yes: Bool[Array, ""], a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(lambda x, y: jnp.where(yes, x, y), a, b)


@by_kernel.defjvp
def _(at_once, interpret, primals, tangents):
    # The kernel has no derivative of its own.
    return jax.jvp(one_by_one, primals, tangents)


def change(old: PyTree, new: PyTree) -> Float[Array, ""]:
    """The largest change of a probability, from log-odds."""
    gaps = [
        jnp.abs(jax.nn.sigmoid(b) - jax.nn.sigmoid(a))
        for a, b in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True)
    ]
    return jax.lax.stop_gradient(jnp.concatenate(gaps).max(initial=0))


def _plus(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    return a[0] + b[0], a[1] + b[1]


def _column(x: Float[Array, " n"]) -> Float[Array, "n 1"]:
    return x[:, None]


def _row(x: Float[Array, " n"]) -> Float[Array, "1 n"]:
    return x[None, :]


def _mask(clamp: Float[Array, " n"] | None, like: Float[Array, " n"]) -> Float[Array, "2 n"]:
    """What is added to the scores of the states 0 and 1: minus infinity excludes a state."""
    if clamp is None:
        return jnp.zeros((2, *like.shape), like.dtype)
    infinite = jnp.asarray(-jnp.inf, like.dtype)
    zero = jnp.zeros((), like.dtype)
    return jnp.stack([jnp.where(clamp > 0, infinite, zero), jnp.where(clamp < 0, infinite, zero)])


def _states(log_odds: Float[Array, "*n"], mask: Float[Array, "2 *m"]) -> Float[Array, "2 *n"]:
    """The scores of the states 0 and 1."""
    return jnp.stack([jnp.zeros_like(log_odds), log_odds]) + jnp.broadcast_to(
        mask, (2, *log_odds.shape)
    )
