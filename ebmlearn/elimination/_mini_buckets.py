"""Elimination with tables of a limited size: a bound of log Z, and draws that estimate it."""

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ._buckets import joined, kept_logs, log_sum, Part, scores_given
from ._network import aligned, Impossible, Network
from ._orders import Order


_DRAWS = 1000  # of a set
_SETS = 4  # without which nothing is said
_ENOUGH = 3e-3  # standard errors for which no more draws are made
# A number of a table takes so long to sum, in seconds.
_PER_NUMBER = 6e-8
_NARROWEST, _WIDEST = 8, 22
_MEMORY = 27  # the logarithm to base 2 of the size of all messages


class MiniBucket(NamedTuple):
    """A share of what is joined when a variable is eliminated.

    - `scope`: the variable, then those that its message is about, the next to be eliminated first.
    - `tables`: the tables of the network that belong to it.
    - `children`: the mini-buckets whose messages come here.
    """

    scope: tuple[int, ...]
    tables: tuple[int, ...]
    children: tuple[int, ...]


class Shares(NamedTuple):
    """The mini-buckets of each variable, in the order of elimination, and the logarithm to base 2
    of the sum of the sizes of their tables. Children are counted through all of them.
    """

    buckets: tuple[tuple[MiniBucket, ...], ...]
    work: float


def shared_out(
    counts: Sequence[int], scopes: Sequence[Sequence[int]], order: Order, most: float | int
) -> Shares:
    """The tables of each bucket shared out among mini-buckets of at most `2**most` entries each,
    where no table of the network is larger.
    """
    bits = [math.log2(n) for n in counts]
    at = {v: step for step, v in enumerate(order.variables)}
    # Scopes that arrive at each variable, with the number of a table or of a mini-bucket.
    arrived: list[list[tuple[frozenset[int], int, bool]]] = [[] for _ in at]
    for k, scope in enumerate(scopes):
        if scope:
            arrived[min(at[v] for v in scope)].append((frozenset(scope), k, True))
    out, number, work = [], 0, 0.0
    for step, v in enumerate(order.variables):
        groups: list[_Group] = []
        for scope, k, is_table in sorted(arrived[step], key=lambda x: (-len(x[0]), x[1])):
            group = _least_grown(groups, scope, bits, most)
            if group is None:
                group = _Group({v}, [], [])
                groups.append(group)
            group.scope.update(scope)
            (group.tables if is_table else group.children).append(k)
        own = []
        for group in groups or [_Group({v}, [], [])]:
            message = tuple(sorted(group.scope - {v}, key=at.__getitem__))
            own.append(MiniBucket((v, *message), tuple(group.tables), tuple(group.children)))
            work += 2.0 ** sum(bits[u] for u in group.scope)
            if message:
                arrived[at[message[0]]].append((frozenset(message), number, False))
            number += 1
        out.append(tuple(own))
    return Shares(tuple(out), math.log2(max(work, 1.0)))


class _Group(NamedTuple):
    """A mini-bucket that is being filled."""

    scope: set[int]
    tables: list[int]
    children: list[int]


def _least_grown(
    groups: list[_Group], scope: frozenset[int], bits: Sequence[float], most: float | int
) -> _Group | None:
    """The group that can take a scope and grows least, or None if all would be too large."""
    best, least = None, math.inf
    for group in groups:
        more = sum(bits[u] for u in scope - group.scope)
        if more < least and more + sum(bits[u] for u in group.scope) <= most:
            best, least = group, more
    return best


class Estimate(NamedTuple):
    """What draws say of a network.

    - `bound`: an upper bound of log Z.
    - `value`: the logarithm of an estimate of Z without bias.
    - `error`: the standard error of `value`.
    - `marginals`: the probabilities of the states of each variable.
    - `spread`: their standard error, the root mean square of all of them.
    - `sets`: how many independent sets of draws it rests on.
    """

    bound: float
    value: float
    error: float
    marginals: list[Float[np.ndarray, " _"]]
    spread: float
    sets: int


class MiniBuckets:
    """Weighted mini-bucket elimination (Liu and Ihler 2011).

    By Hölder's inequality, the sum over a variable of a product of functions is at most the product
    of their power sums, if the inverse powers add up to one. So each mini-bucket can send its own
    message, and `bound` is at least log Z. The bound is tighter if the functions first agree on the
    variables that they share. Raises `Impossible` if the bound of Z is zero.

    `estimate` draws the variables in reverse order, each from a mixture of what its mini-buckets
    say (Liu, Fisher and Ihler 2015). The potential of a configuration divided by its probability is
    an estimate of Z without bias, and never above the bound. It has one factor for each variable
    with several mini-buckets. As in a particle filter, draws with small factors are replaced on the
    way by copies of others.
    """

    def __init__(self, network: Network, shares: Shares):
        self.network, self.shares = network, shares
        self._messages: list[Part] = []
        self._matches: list[Part | None] = []
        self.bound = sum(
            float(x) for x, scope in zip(network.tables, network.scopes, strict=True) if not scope
        )
        for own in shares.buckets:
            weight = 1 / len(own)
            joints = [
                joined(self._parts(mini), mini.scope, network.counts) / weight for mini in own
            ]
            self._match([mini.scope for mini in own], joints)
            for mini, joint in zip(own, joints, strict=True):
                message = weight * log_sum(joint)
                self._messages.append((mini.scope[1:], message))
                if not message.ndim:
                    self.bound += float(message)
        if self.bound == -math.inf:
            raise Impossible

    def estimate(self, seconds: float | int, rng: np.random.Generator) -> Estimate | None:
        """Estimates from independent sets of draws, until the time is over or the errors are small.
        None if there was no time for some sets, or no draw was possible.
        """
        deadline = time.perf_counter() + seconds
        values, marginals, found = [], [], None
        while True:
            began = time.perf_counter()
            states, value = self.draw(_DRAWS, rng)
            values.append(value)
            marginals.append(self._shares_of_states(states))
            if len(values) >= _SETS and np.isfinite(max(values)):
                found = self._combined(np.array(values), np.array(marginals))
            now = time.perf_counter()
            done = found is not None and max(found.error, found.spread) < _ENOUGH
            if done or 2 * now - began > deadline:
                return found

    def draw(
        self, number: int, rng: np.random.Generator
    ) -> tuple[Int[np.ndarray, "number variables"], float]:
        """Configurations that are about distributed as the network says, and the logarithm of an
        estimate of Z.
        """
        states = np.zeros((number, len(self.network.counts)), np.int64)
        log_weights, value = np.zeros(number), self.bound
        last = len(self._messages)
        for own in reversed(self.shares.buckets):
            last -= len(own)
            v, weight = own[0].scope[0], 1 / len(own)
            told = [
                _normalised(self._scores(mini, last + k, states) / weight)
                for k, mini in enumerate(own)
            ]
            p = np.mean(np.exp(told), 0)
            total = p.sum(-1, keepdims=True)
            # All states are excluded only for draws of no weight.
            share = np.cumsum(np.where(total > 0, p, 1.0), -1)
            chosen = (rng.random((number, 1)) * share[:, -1:] >= share).sum(-1)
            states[:, v] = np.minimum(chosen, p.shape[-1] - 1)
            if len(own) == 1:
                continue
            each = np.stack([np.take_along_axis(x, states[:, v, None], -1)[:, 0] for x in told])
            with np.errstate(divide="ignore", invalid="ignore"):
                factor = each.mean(0) - np.log(np.exp(each).mean(0))
            log_weights += np.where(np.isfinite(each).all(0), factor, -np.inf)
            top = log_weights.max()
            if not np.isfinite(top):
                return states, -math.inf
            weights = np.exp(log_weights - top)
            if weights.sum() ** 2 < number / 2 * (weights**2).sum():
                value += float(top + np.log(weights.mean()))
                states = states[_resampled(weights, rng)]
                log_weights = np.zeros(number)
        top = log_weights.max()
        value += float(top + np.log(np.exp(log_weights - top).mean()))
        kept = _resampled(np.exp(log_weights - top), rng)
        return states[kept], value

    def _shares_of_states(self, states: Int[np.ndarray, "number variables"]) -> np.ndarray:
        """How often each state of each variable was drawn, one variable after the other."""
        ends = np.cumsum(self.network.counts)
        own = np.bincount((states + (ends - self.network.counts)).ravel(), minlength=ends[-1])
        return own / len(states)

    def _combined(self, values: np.ndarray, marginals: np.ndarray) -> Estimate:
        """The mean of sets of draws, each by its estimate of Z."""
        sets, top = len(values), values.max()
        ratios = np.exp(values - top)
        share = ratios / ratios.sum()
        mean = share @ marginals
        # The error of a ratio of two means.
        scale = sets / (sets - 1)
        off = np.sqrt(scale * (share**2 @ (marginals - mean) ** 2))
        error = math.sqrt(scale * float(((share - 1 / sets) ** 2).sum()))
        value = float(top + np.log(ratios.mean()))
        cut = np.split(mean, np.cumsum(self.network.counts)[:-1])
        spread = float(np.sqrt((off**2).mean()))
        return Estimate(self.bound, value, error, cut, spread, sets)

    def _parts(self, mini: MiniBucket) -> list[Part]:
        """The tables and messages of a mini-bucket with their scopes."""
        network = self.network
        own = [(network.scopes[k], network.tables[k]) for k in mini.tables]
        return own + [self._messages[k] for k in mini.children]

    def _match(self, scopes: list[tuple[int, ...]], joints: list[Float[np.ndarray, "..."]]) -> None:
        """Makes the sums of functions over all but the variables that they share equal."""
        if len(scopes) == 1:
            self._matches.append(None)
            return
        shared = tuple(v for v in scopes[0] if all(v in scope for scope in scopes))
        sums = [kept_logs(x, scope, shared) for x, scope in zip(joints, scopes, strict=True)]
        possible = np.all([np.isfinite(x) for x in sums], 0)
        sums = [np.where(possible, x, 0) for x in sums]
        mean = np.mean(sums, 0)
        for scope, joint, x in zip(scopes, joints, sums, strict=True):
            change = np.where(possible, mean - x, -np.inf)
            joint += aligned(change, shared, scope)
            self._matches.append((shared, change / len(scopes)))

    def _scores(
        self, mini: MiniBucket, place: int, states: Int[np.ndarray, "number variables"]
    ) -> Float[np.ndarray, "number states"]:
        """What a mini-bucket says of the states of its variable, given those drawn before."""
        v, match = mini.scope[0], self._matches[place]
        parts = self._parts(mini) + ([] if match is None else [match])
        return scores_given(parts, v, self.network.counts[v], states)


def estimated(
    network: Network, order: Order, seconds: float | int, rng: np.random.Generator
) -> Estimate | None:
    """An estimate of log Z with the largest mini-buckets for which half of the time suffices, or
    None if there is no time for small ones.
    """
    began = time.perf_counter()
    most = min(_MEMORY, math.log2(max(seconds / 2 / _PER_NUMBER, 1.0)))
    chosen = None
    for width in range(_NARROWEST, _WIDEST + 1):
        shares = shared_out(network.counts, network.scopes, order, width)
        if shares.work > most:
            break
        chosen = shares
        if all(len(own) == 1 for own in shares.buckets):
            break
    if chosen is None:
        return None
    buckets = MiniBuckets(network, chosen)
    return buckets.estimate(began + seconds - time.perf_counter(), rng)


def _normalised(scores: Float[np.ndarray, "number n"]) -> Float[np.ndarray, "number n"]:
    """Logarithms of probabilities; all minus infinity where all states are excluded."""
    total = log_sum(scores.T.copy())
    return scores - np.where(np.isfinite(total), total, 0.0)[:, None]


def _resampled(
    weights: Float[np.ndarray, " number"], rng: np.random.Generator
) -> Int[np.ndarray, " number"]:
    """Numbers of draws, each about as often as its weight says."""
    number = len(weights)
    points = (np.arange(number) + rng.random()) / number
    return np.minimum(np.searchsorted(np.cumsum(weights / weights.sum()), points), number - 1)
