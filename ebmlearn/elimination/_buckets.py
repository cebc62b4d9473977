"""Elimination of variables one by one, on the host: sums, maxima, marginals and samples."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ._network import aligned, Impossible, Network, Reduced, reduced
from ._orders import find_order, Order


# A table and its scope.
Part = tuple[tuple[int, ...], np.ndarray]
# How much wider than allowed an order may become before it is given up.
HOPELESS = 2


class Bucket(NamedTuple):
    """What is joined when a variable is eliminated.

    - `scope`: the variable, then those that its message is about, the next to be eliminated first.
    - `tables`: the tables that it is the first to be eliminated of.
    - `children`: the buckets whose messages come here.
    - `is_summed`: whether the variable is summed over rather than maximised.
    """

    scope: tuple[int, ...]
    tables: tuple[int, ...]
    children: tuple[int, ...]
    is_summed: bool


class Plan(NamedTuple):
    """The buckets in the order of elimination, and what it costs."""

    buckets: tuple[Bucket, ...]
    order: Order


class TooWide(ValueError):
    """Tables on the way would be larger than allowed."""


def planned(
    counts: Sequence[int],
    scopes: Sequence[Sequence[int]],
    *,
    maximised: frozenset[int] = frozenset(),
    most: float | int = 24,
    seconds: float | int = 1,
) -> Plan:
    """The buckets of a network. Variables that are maximised over come last.

    Raises `TooWide` where a table would have more than `2**most` entries.
    """
    order = find_order(counts, scopes, last=maximised, most=HOPELESS * most, seconds=seconds)
    if order.width > most:
        raise TooWide(
            f"elimination needs tables of 2**{order.width:.1f} numbers, and at most 2**{most:g} are"
            " allowed"
        )
    return bucketed(scopes, order, maximised)


def bucketed(
    scopes: Sequence[Sequence[int]],
    order: Order,
    maximised: frozenset[int] | None = frozenset(),
) -> Plan:
    """The buckets of an order, which has all variables of the scopes. All variables are maximised
    over if `maximised` is None.
    """
    at = {v: step for step, v in enumerate(order.variables)}
    tables: list[list[int]] = [[] for _ in at]
    for k, scope in enumerate(scopes):
        if scope:
            tables[min(at[v] for v in scope)].append(k)
    children: list[list[int]] = [[] for _ in at]
    buckets = []
    below: list[tuple[int, ...]] = []
    for step, v in enumerate(order.variables):
        found = {u for k in tables[step] for u in scopes[k]}
        found.update(u for child in children[step] for u in below[child])
        found.discard(v)
        message = tuple(sorted(found, key=at.__getitem__))
        below.append(message)
        if message:
            children[at[message[0]]].append(step)
        own = tuple(tables[step]), tuple(children[step])
        is_summed = maximised is not None and v not in maximised
        buckets.append(Bucket((v, *message), *own, is_summed))
    return Plan(tuple(buckets), order)


class Solution:
    """A network whose variables have been eliminated. `value` is log Z, or the largest
    log-potential, or the largest after hidden variables were summed out. Raises `Impossible` if
    tables exclude all configurations.
    """

    def __init__(self, network: Network, plan: Plan):
        self.network, self.plan = network, plan
        self._messages: list[np.ndarray] = []
        value = 0.0
        for table, scope in zip(network.tables, network.scopes, strict=True):
            if not scope:
                value += float(table)
        for bucket in plan.buckets:
            joint = self._joint(bucket)
            message = log_sum(joint) if bucket.is_summed else np.asarray(joint.max(0))
            self._messages.append(message)
            if not message.ndim:
                value += float(message)
        if value == -np.inf:
            raise Impossible
        self.value = value

    def marginals(
        self, of_tables: bool = False
    ) -> tuple[list[Float[np.ndarray, " _"]], list[Float[np.ndarray, "..."]]]:
        """The probabilities of the states of each variable, and of the entries of each table if
        asked for. All variables must be summed over.
        """
        network, buckets = self.network, self.plan.buckets
        variables: list[np.ndarray] = [np.ones(1)] * len(network.counts)
        tables = [np.ones(()) for _ in network.tables]
        outer: list[np.ndarray | None] = [None] * len(buckets)
        for step in reversed(range(len(buckets))):
            bucket = buckets[step]
            log_p = self._joint(bucket)
            above = outer[step]
            # Alone, messages add up to what normalises the others.
            log_p += -self._messages[step] if above is None else above[None]
            outer[step] = None
            p = np.exp(log_p, out=log_p)
            variables[bucket.scope[0]] = _kept(p, bucket.scope, bucket.scope[:1])
            for child in bucket.children:
                message = buckets[child].scope[1:]
                with np.errstate(divide="ignore"):
                    log_own = np.log(_kept(p, bucket.scope, message))
                sent = self._messages[child]
                possible = np.isfinite(sent)
                outer[child] = np.where(possible, log_own - np.where(possible, sent, 0), -np.inf)
            if of_tables:
                for k in bucket.tables:
                    tables[k] = _kept(p, bucket.scope, network.scopes[k])
        return variables, tables

    def best(self) -> Int[np.ndarray, " variables"]:
        """The most likely states of the variables that are maximised over; -1 for the others."""
        return self._walk(1, None)[0]

    def samples(self, number: int, rng: np.random.Generator) -> Int[np.ndarray, "number variables"]:
        """Independent draws. All variables must be summed over."""
        return self._walk(number, rng)

    def _walk(
        self, number: int, rng: np.random.Generator | None
    ) -> Int[np.ndarray, "number variables"]:
        """Chooses variables, the last to be eliminated first, given those before."""
        states = np.full((number, len(self.network.counts)), -1, np.int64)
        for bucket in reversed(self.plan.buckets):
            if rng is None and bucket.is_summed:
                continue
            v = bucket.scope[0]
            scores = scores_given(self._parts(bucket), v, self.network.counts[v], states)
            if rng is not None:
                scores = scores + rng.gumbel(size=scores.shape)
            states[:, v] = scores.argmax(-1)
        return states

    def _parts(self, bucket: Bucket) -> list[Part]:
        """The tables and messages of a bucket with their scopes."""
        network, buckets = self.network, self.plan.buckets
        own = [(network.scopes[k], network.tables[k]) for k in bucket.tables]
        return own + [(buckets[k].scope[1:], self._messages[k]) for k in bucket.children]

    def _joint(self, bucket: Bucket) -> Float[np.ndarray, "..."]:
        """The sum of the tables and messages of a bucket, the variable along the first axis."""
        return joined(self._parts(bucket), bucket.scope, self.network.counts)


def joined(
    parts: Sequence[Part], scope: Sequence[int], counts: Sequence[int]
) -> Float[np.ndarray, "..."]:
    """The sum of tables, with an axis for each variable of `scope`."""
    shape = tuple(counts[v] for v in scope)
    out = np.zeros((1,) * len(shape))
    # Small tables are added up before they meet large ones.
    for own, table in sorted(parts, key=lambda part: part[1].size):
        more = aligned(table, own, scope)
        if all(a >= b for a, b in zip(out.shape, more.shape, strict=True)):
            out += more
        else:
            out = out + more
    return out if out.shape == shape else np.broadcast_to(out, shape).copy()


def scores_given(
    parts: Sequence[Part], v: int, count: int, states: Int[np.ndarray, "number variables"]
) -> Float[np.ndarray, "number states"]:
    """The sum of tables for each state of variable `v`, given the states of the others."""
    out = np.zeros((len(states), count))
    for scope, table in parts:
        at = scope.index(v)
        # The axis of the variable and the last one change places.
        others = [states[:, u] for u in scope]
        others[at] = others[-1]
        out += table.swapaxes(at, -1)[tuple(others[:-1])]
    return out


def log_sum(x: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "..."]:
    """The logarithm of the sum of exponentials over the first axis. `x` is overwritten."""
    top = x.max(0)
    shift = np.where(np.isfinite(top), top, 0.0)
    x -= shift
    total = np.exp(x, out=x).sum(0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(total) + shift)


def _kept(
    p: Float[np.ndarray, "..."], scope: Sequence[int], kept: Sequence[int]
) -> Float[np.ndarray, "..."]:
    """Probabilities of some variables, in their order."""
    gone = tuple(a for a, v in enumerate(scope) if v not in kept)
    left = [v for v in scope if v in kept]
    summed = np.asarray(p.sum(gone)) if gone else p
    return np.transpose(summed, [left.index(v) for v in kept])


def kept_logs(
    x: Float[np.ndarray, "..."], scope: Sequence[int], kept: Sequence[int]
) -> Float[np.ndarray, "..."]:
    """The logarithm of the sum of exponentials over all variables but some, in their order."""
    gone = tuple(a for a, v in enumerate(scope) if v not in kept)
    top = x.max(gone, keepdims=True) if gone else x
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(_kept(np.exp(x - top), scope, kept)) + _kept(top, scope, kept)


def solve(
    network: Network,
    evidence: Int[np.ndarray, " variables"] | None = None,
    *,
    maximised: frozenset[int] | None = frozenset(),
    most: float | int = 24,
    seconds: float | int = 1,
) -> tuple[Solution, Reduced]:
    """Eliminates all variables of a network with evidence.

    **Arguments:**

    - `network`: the tables.
    - `evidence`: the states of variables, -1 where not known.
    - `maximised`: the variables to maximise over; None for all. All others are summed over.
    - `most`: the logarithm to base 2 of the size of the largest table that is allowed.
    - `seconds`: how long to look for a better order.
    """
    small = reduced(network, evidence)
    every = frozenset(range(len(network.counts)))
    top = every if maximised is None else frozenset(maximised)
    plan = planned(
        small.network.counts, small.network.scopes, maximised=top, most=most, seconds=seconds
    )
    return Solution(small.network, plan), small
