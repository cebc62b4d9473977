"""Elimination of variables one by one, on the host: sums, maxima, marginals and draws."""

import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ._orders import find_order, Order
from ._table_network import aligned, Impossible, Network, Reduced, reduced, States, Table


# A table and its scope.
Part = tuple[tuple[int, ...], np.ndarray]
# How much wider than allowed an order may become before it is given up.
HOPELESS = 2


class Bucket(NamedTuple):
    """What is joined when a variable is eliminated, or a share of it: a mini-bucket.

    !!! example

        ```python
        from ebmlearn.elimination import planned

        ((first,), *others) = planned([2, 2, 2], [(0, 1), (1, 2)]).buckets
        first.scope
        ```

    **Fields:**

    - `scope`: the variable, then those that its message is about, the next to be eliminated first.
    - `tables`: the tables of the network that belong to it.
    - `children`: the buckets whose messages come here.
    - `is_summed`: whether the variable is summed over rather than maximised.
    """

    scope: tuple[int, ...]
    tables: tuple[int, ...]
    children: tuple[int, ...]
    is_summed: bool


class Plan(NamedTuple):
    """The buckets of each variable, in the order of elimination, and the logarithm to base 2 of the
    sum of the sizes of their tables. Children are counted through all of them.

    !!! example

        ```python
        from ebmlearn.elimination import planned

        plan = planned([2, 2, 2], [(0, 1), (1, 2)])
        plan.is_whole, plan.work
        ```

    **Fields:**

    - `buckets`: the buckets of each variable, in the order of elimination.
    - `work`: the logarithm to base 2 of the sum of the sizes of their tables.
    """

    buckets: tuple[tuple[Bucket, ...], ...]
    work: float

    @property
    def is_whole(self) -> bool:
        """Whether each variable has one bucket, so that elimination is exact."""
        return all(len(own) == 1 for own in self.buckets)


class TooWide(ValueError):
    """Tables on the way would be larger than allowed.

    !!! example

        ```python
        from ebmlearn.elimination import planned, TooWide

        try:
            planned([2] * 3, [(0, 1, 2)], most=2)
        except TooWide as error:
            print(error)
        ```
    """


def planned(
    counts: Sequence[int],
    scopes: Iterable[Sequence[int]],
    *,
    maximised: frozenset[int] = frozenset(),
    most: float | int = 24,
) -> Plan:
    """The buckets of a network. Variables that are maximised over come last. The last plans are
    kept.

    Raises `TooWide` where a table would have more than `2**most` entries.

    !!! example

        ```python
        from ebmlearn.elimination import planned

        planned([2, 2, 2], [(0, 1), (1, 2)]).buckets
        ```

    **Arguments:**

    - `counts`: the number of states of each variable.
    - `scopes`: the variables of each table.
    - `maximised`: the variables to maximise over; all others are summed over.
    - `most`: the logarithm to base 2 of the size of the largest table that is allowed.
    """
    return _planned(tuple(counts), tuple(map(tuple, scopes)), maximised, most)


@functools.lru_cache(maxsize=256)
def _planned(
    counts: tuple[int, ...],
    scopes: tuple[tuple[int, ...], ...],
    maximised: frozenset[int],
    most: float | int,
) -> Plan:
    order = find_order(counts, scopes, last=maximised, most=HOPELESS * most)
    if order.width > most:
        raise TooWide(
            f"elimination needs tables of 2**{order.width:.1f} numbers, and at most 2**{most:g} are"
            " allowed"
        )
    return bucketed(counts, scopes, order, maximised)


def bucketed(
    counts: Sequence[int],
    scopes: Sequence[Sequence[int]],
    order: Order,
    maximised: frozenset[int] | None = frozenset(),
    most: float | int = math.inf,
) -> Plan:
    """The buckets of an order, which has all variables of the scopes. What arrives at a variable is
    shared out among buckets of at most `2**most` entries each, where no table of the network is
    larger. All variables are maximised over if `maximised` is None.
    """
    bits = [math.log2(n) for n in counts]
    at = {v: step for step, v in enumerate(order.variables)}
    # Scopes that arrive at each variable, with the number of a table or of a bucket.
    arrived: list[list[tuple[Sequence[int], int, bool]]] = [[] for _ in at]
    for k, scope in enumerate(scopes):
        if scope:
            arrived[min(at[v] for v in scope)].append((scope, k, True))
    buckets, number, work = [], 0, 0.0
    for step, v in enumerate(order.variables):
        groups: list[tuple[set[int], list[int], list[int]]] = []
        here = arrived[step]
        if most < math.inf:
            here.sort(key=lambda x: (-len(x[0]), x[1]))
        for scope, k, is_table in here:
            best, least = groups[0] if groups and most == math.inf else None, math.inf
            for group in groups if best is None else ():
                more = sum(bits[u] for u in scope if u not in group[0])
                if more < least and more + sum(bits[u] for u in group[0]) <= most:
                    best, least = group, more
            if best is None:
                best = {v}, [], []
                groups.append(best)
            best[0].update(scope)
            (best[1] if is_table else best[2]).append(k)
        own, is_summed = [], maximised is not None and v not in maximised
        for joint, tables, children in groups or [({v}, [], [])]:
            work += 2.0 ** sum(map(bits.__getitem__, joint))
            joint.discard(v)
            message = tuple(sorted(joint, key=at.__getitem__))
            own.append(Bucket((v, *message), tuple(tables), tuple(children), is_summed))
            if message:
                arrived[at[message[0]]].append((message, number, False))
            number += 1
        buckets.append(tuple(own))
    return Plan(tuple(buckets), math.log2(max(work, 1.0)))


class Solution:
    """A network whose variables have been eliminated. `value` is log Z, or the largest
    log-potential, or the largest after hidden variables were summed out. Raises `Impossible` if
    tables exclude all configurations.

    If a plan shares tables out, this is weighted mini-bucket elimination (Liu and Ihler 2011), and
    `value` is an upper bound. By Hölder's inequality, the sum over a variable of a product of
    functions is at most the product of their power sums, if the inverse powers add up to one. So
    each bucket can send its own message. The bound is tighter if the functions first agree on the
    variables that they share.

    !!! example

        ```python
        from ebmlearn.elimination import Network, planned, Solution

        chain = Network((2, 3), ((0, 1),), (np.eye(2, 3),))
        solution = Solution(chain, planned(chain.counts, chain.scopes))
        states, _ = solution.draw(5, np.random.default_rng(0))
        ```

    **Arguments:**

    - `network`: the tables.
    - `plan`: the buckets, as [`ebmlearn.elimination.planned`][] finds them.
    """

    def __init__(self, network: Network, plan: Plan):
        self.network, self.plan = network, plan
        self._messages: list[Part] = []
        # What made buckets of one variable agree, by the numbers of buckets.
        self._matches: dict[int, Part] = {}
        pairs = zip(network.tables, network.scopes, strict=True)
        value = sum(float(table) for table, scope in pairs if not scope)
        for own in plan.buckets:
            joints = [self._joint(bucket) for bucket in own]
            if len(own) > 1:
                self._match([bucket.scope for bucket in own], joints)
            for bucket, joint in zip(own, joints, strict=True):
                message = log_sum(joint) if bucket.is_summed else np.asarray(joint.max(0))
                if len(own) > 1:
                    message = message / len(own)
                self._messages.append((bucket.scope[1:], message))
                if not message.ndim:
                    value += float(message)
        if value == -np.inf:
            raise Impossible
        self.value = value

    def marginals(
        self, of_tables: bool = False
    ) -> tuple[list[Float[np.ndarray, " _"]], list[Table]]:
        """The probabilities of the states of each variable, and of the entries of each table if
        asked for. All variables must be summed over, each in one bucket.
        """
        network, buckets = self.network, [bucket for (bucket,) in self.plan.buckets]
        variables: list[np.ndarray] = [np.ones(1)] * len(network.counts)
        tables = [np.ones(()) for _ in network.tables]
        outer: list[np.ndarray | None] = [None] * len(buckets)
        for step in reversed(range(len(buckets))):
            bucket = buckets[step]
            log_p = self._joint(bucket)
            above = outer[step]
            # Alone, messages add up to what normalises the others.
            log_p += -self._messages[step][1] if above is None else above[None]
            outer[step] = None
            p = np.exp(log_p, out=log_p)
            variables[bucket.scope[0]] = _kept(p, bucket.scope, bucket.scope[:1])
            for child in bucket.children:
                about, sent = self._messages[child]
                with np.errstate(divide="ignore"):
                    log_own = np.log(_kept(p, bucket.scope, about))
                possible = np.isfinite(sent)
                outer[child] = np.where(possible, log_own - np.where(possible, sent, 0), -np.inf)
            if of_tables:
                for k in bucket.tables:
                    tables[k] = _kept(p, bucket.scope, network.scopes[k])
        return variables, tables

    def best(self) -> States:
        """The most likely states of the variables that are maximised over, each in one bucket; -1
        for the others.
        """
        states = np.full((1, len(self.network.counts)), -1, np.int64)
        for (bucket,) in reversed(self.plan.buckets):
            if not bucket.is_summed:
                states[:, bucket.scope[0]] = self._scores(bucket, states).argmax(-1)
        return states[0]

    def draw(
        self, number: int, rng: np.random.Generator
    ) -> tuple[Int[np.ndarray, "number variables"], float]:
        """Configurations, and the logarithm of an estimate of Z. All variables must be summed over.
        With one bucket a variable, draws are independent, and the estimate is exact.

        Otherwise variables are drawn in reverse order, each from a mixture of what its buckets say
        (Liu, Fisher and Ihler 2015). The potential of a configuration divided by its probability is
        an estimate of Z without bias, and never above the bound. It has one factor for each
        variable with several buckets. As in a particle filter, draws with small factors are
        replaced on the way by copies of others.
        """
        states = np.full((number, len(self.network.counts)), -1, np.int64)
        log_weights, value = np.zeros(number), self.value
        last = len(self._messages)
        for own in reversed(self.plan.buckets):
            last, v = last - len(own), own[0].scope[0]
            told = [self._scores(x, states, self._matches.get(k)) for k, x in enumerate(own, last)]
            if len(own) == 1:
                states[:, v] = (told[0] + rng.gumbel(size=told[0].shape)).argmax(-1)
                continue
            told = [_normalised(len(own) * x) for x in told]
            with np.errstate(divide="ignore", invalid="ignore"):
                mixed = np.log(np.mean(np.exp(told), 0))
                factors = np.mean(told, 0) - mixed
            states[:, v] = (mixed + rng.gumbel(size=mixed.shape)).argmax(-1)
            factor = np.take_along_axis(factors, states[:, v, None], -1)[:, 0]
            log_weights += np.where(np.isfinite(factor), factor, -np.inf)
            top = log_weights.max()
            if not np.isfinite(top):
                return states, -math.inf
            weights = np.exp(log_weights - top)
            if weights.sum() ** 2 < number / 2 * (weights**2).sum():
                states, more = _resampled(states, log_weights, rng)
                value, log_weights = value + more, np.zeros(number)
        if log_weights.any():
            states, more = _resampled(states, log_weights, rng)
            value += more
        return states, value

    def _parts(self, bucket: Bucket) -> list[Part]:
        """The tables and messages of a bucket with their scopes."""
        network = self.network
        own = [(network.scopes[k], network.tables[k]) for k in bucket.tables]
        return own + [self._messages[k] for k in bucket.children]

    def _joint(self, bucket: Bucket) -> Table:
        """The sum of the tables and messages of a bucket, the variable along the first axis."""
        shape = tuple(self.network.counts[v] for v in bucket.scope)
        out = np.zeros((1,) * len(shape))
        # Small tables are added up before they meet large ones.
        for own, table in sorted(self._parts(bucket), key=lambda part: part[1].size):
            more = aligned(table, own, bucket.scope)
            if all(a >= b for a, b in zip(out.shape, more.shape, strict=True)):
                out += more
            else:
                out = out + more
        return out if out.shape == shape else np.broadcast_to(out, shape).copy()

    def _match(self, scopes: list[tuple[int, ...]], joints: list[Table]) -> None:
        """Raises functions to their powers, and makes their sums over all but the variables that
        they share equal.
        """
        for joint in joints:
            joint *= len(joints)
        shared = tuple(v for v in scopes[0] if all(v in scope for scope in scopes))
        sums = [_kept_logs(x, scope, shared) for x, scope in zip(joints, scopes, strict=True)]
        possible = np.all([np.isfinite(x) for x in sums], 0)
        sums = [np.where(possible, x, 0) for x in sums]
        mean = np.mean(sums, 0)
        first = len(self._messages)
        for k, (scope, joint, x) in enumerate(zip(scopes, joints, sums, strict=True), first):
            change = np.where(possible, mean - x, -np.inf)
            joint += aligned(change, shared, scope)
            self._matches[k] = shared, change / len(scopes)

    def _scores(
        self, bucket: Bucket, states: Int[np.ndarray, "number variables"], match: Part | None = None
    ) -> Float[np.ndarray, "number states"]:
        """What a bucket says of each state of its variable, given the states of the others."""
        v = bucket.scope[0]
        out = np.zeros((len(states), self.network.counts[v]))
        for scope, table in self._parts(bucket) + ([] if match is None else [match]):
            at = scope.index(v)
            # The axis of the variable and the last one change places.
            others = [states[:, u] for u in scope]
            others[at] = others[-1]
            out += table.swapaxes(at, -1)[tuple(others[:-1])]
        return out


def log_sum(x: Float[np.ndarray, "n ..."]) -> Table:
    """The logarithm of the sum of exponentials over the first axis. `x` is overwritten."""
    top = x.max(0)
    shift = np.where(np.isfinite(top), top, 0.0)
    x -= shift
    total = np.exp(x, out=x).sum(0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(total) + shift)


def _kept(p: Table, scope: Sequence[int], kept: Sequence[int]) -> Table:
    """Probabilities of some variables, in their order."""
    gone = tuple(a for a, v in enumerate(scope) if v not in kept)
    left = [v for v in scope if v in kept]
    summed = np.asarray(p.sum(gone)) if gone else p
    return np.transpose(summed, [left.index(v) for v in kept])


def _kept_logs(x: Table, scope: Sequence[int], kept: Sequence[int]) -> Table:
    """The logarithm of the sum of exponentials over all variables but some, in their order."""
    gone = tuple(a for a, v in enumerate(scope) if v not in kept)
    top = x.max(gone, keepdims=True) if gone else x
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(_kept(np.exp(x - top), scope, kept)) + _kept(top, scope, kept)


def _normalised(scores: Float[np.ndarray, "number n"]) -> Float[np.ndarray, "number n"]:
    """Logarithms of probabilities; all minus infinity where all states are excluded."""
    total = log_sum(scores.T.copy())
    return scores - np.where(np.isfinite(total), total, 0.0)[:, None]


def _resampled(
    states: Int[np.ndarray, "number variables"],
    log_weights: Float[np.ndarray, " number"],
    rng: np.random.Generator,
) -> tuple[Int[np.ndarray, "number variables"], float]:
    """Draws, each about as often as its weight says, and the logarithm of the mean weight."""
    top, number = log_weights.max(), len(states)
    weights = np.exp(log_weights - top)
    points = (np.arange(number) + rng.random()) / number
    chosen = np.searchsorted(np.cumsum(weights / weights.sum()), points)
    return states[np.minimum(chosen, number - 1)], float(top + np.log(weights.mean()))


def solve(
    network: Network,
    evidence: States | None = None,
    *,
    maximised: frozenset[int] | None = frozenset(),
    most: float | int = 24,
) -> tuple[Solution, Reduced]:
    """Eliminates all variables of a network with evidence.

    !!! example

        ```python
        from ebmlearn.elimination import Network, solve

        chain = Network((2, 3), ((0, 1),), (np.eye(2, 3),))
        solution, small = solve(chain)
        solution.value, solution.marginals()  # log Z, and probabilities
        ```

    **Arguments:**

    - `network`: the tables.
    - `evidence`: the states of variables, -1 where not known.
    - `maximised`: the variables to maximise over; None for all. All others are summed over.
    - `most`: the logarithm to base 2 of the size of the largest table that is allowed.
    """
    small = reduced(network, evidence)
    top = frozenset(range(len(network.counts))) if maximised is None else maximised
    plan = planned(small.network.counts, small.network.scopes, maximised=top, most=most)
    return Solution(small.network, plan), small
