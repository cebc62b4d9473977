"""Likely states of networks that are too wide: parts of them are eliminated, again and again."""

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ._buckets import bucketed, Solution
from ._orders import find_part, neighbours, Order
from ._table_network import Impossible, Marginals, Network, Numbers, reduced, States


# What an excluded entry of a table costs: more than others, and finite, so that states that tables
# exclude lead to states that they allow.
_EXCLUDED = -1e5
_WIDTH = 14.0  # of a part that is eliminated
_MOVES = 30  # of a round
_HELD = 3  # moves of a round that leave the variables of a kick as they are
_FREE = (4, 8, 16, 32, 64)  # numbers of variables that are not fixed if others can be
_TEMPERATURES = (0.3, 1.0, 3.0)


class Found(NamedTuple):
    """Likely states, their log-potential, which is minus infinity if tables exclude them, and the
    number of parts that were eliminated.

    !!! example

        ```python
        from ebmlearn.elimination import likely_states, Network

        chain = Network((2, 3), ((0, 1),), (np.eye(2, 3),))
        found = likely_states(chain, [np.full(2, 1 / 2), np.full(3, 1 / 3)], 0.1)
        found.states, found.value
        ```

    **Fields:**

    - `states`: the states.
    - `value`: their log-potential.
    - `moves`: the number of parts.
    """

    states: States
    value: float
    moves: int


def likely_states(
    network: Network,
    beliefs: Marginals,
    seconds: float | int,
    seed: int = 0,
    bound: float = math.inf,
) -> Found:
    """The most likely states that a search finds. A move fixes variables until the rest is narrow,
    and gives the rest its best states given those. Which ones it fixes changes from move to move:
    variables with many tables, except for some that beliefs are unsure of, that cost much, or that
    are neighbours.

    Moves come in rounds. After the first, they take turns: a round draws states at a temperature
    that falls, from the best ones so far; or it gives a few unsure variables other states than the
    best ones, and holds them for some moves; or it begins anew with states that beliefs draw. It
    ends with the best combination of where it came to with the best states.

    !!! example

        ```python
        from ebmlearn.elimination import likely_states, Network

        chain = Network((2, 3), ((0, 1),), (np.eye(2, 3),))
        likely_states(chain, [np.full(2, 1 / 2), np.full(3, 1 / 3)], 0.1).states
        ```

    **Arguments:**

    - `network`: the tables.
    - `beliefs`: probabilities of the states of each variable, from where to start.
    - `seconds`: how long to go on; one round is always made.
    - `seed`: of all that is random.
    - `bound`: no states are known to be better than this; the search ends if it is reached.
    """
    deadline = time.perf_counter() + seconds
    search = _Search(network, beliefs, np.random.default_rng(seed))
    start = search.likely()
    if not np.isfinite(network.score(start)):
        found = possible(network, beliefs, seconds / 4)
        start = start if found is None else found
    if not search.free.any():
        return Found(start, float(network.score(start)), 0)
    search.round(start, deadline, _MOVES)
    rounds = 0
    while time.perf_counter() < deadline and search.value < bound:
        rounds += 1
        if rounds % 3 == 1:
            temperature = float(search.rng.choice(_TEMPERATURES))
            end = search.round(search.best, deadline, _MOVES, temperature=temperature)
        elif rounds % 3 == 2:
            kicked, held = search.kicked()
            end = search.round(kicked, deadline, _MOVES // 3, held=held)
        else:
            end = search.round(search.drawn_states(), deadline, _MOVES // 3)
        search.combine(end)
    return Found(search.best, float(network.score(search.best)), search.moves)


def possible(network: Network, likely: Marginals, seconds: float | int) -> States | None:
    """States that no table excludes, or None if none are found. Variables are fixed in parts, the
    surest first, and what tables then exclude is left out before the next part.

    **Arguments:**

    - `network`: the tables.
    - `likely`: for each variable a number for each state; larger ones are preferred.
    - `seconds`: how long to go on.
    """
    deadline = time.perf_counter() + seconds
    scores = [np.array(x, np.float64) for x in likely]
    states = np.full(len(network.counts), -1)
    left = sorted(range(len(states)), key=lambda v: -float(scores[v].max()))
    size = max(1, len(left) // 8)
    while left and time.perf_counter() < deadline:
        trial = states.copy()
        trial[left[:size]] = [int(scores[v].argmax()) for v in left[:size]]
        try:
            allowed = reduced(network, trial).states
        except Impossible:
            if size > 1:
                size = max(1, size // 4)
                continue
            # What is fixed so far excludes this state.
            scores[left[0]][trial[left[0]]] = -np.inf
            if not np.isfinite(scores[left[0]]).any():
                return None
            continue
        for v, own in enumerate(allowed):
            states[v] = own[0] if len(own) == 1 else -1
            scores[v][np.setdiff1d(np.arange(len(scores[v])), own)] = -np.inf
        left = [v for v in left if states[v] < 0]
        size = max(1, min(2 * size, len(left) // 4))
    return None if left else states


class _Search:
    def __init__(self, network: Network, beliefs: Marginals, rng: np.random.Generator):
        self.rng, self.moves = rng, 0
        tables = tuple(np.maximum(x, _EXCLUDED) for x in network.tables)
        self.network = network._replace(tables=tables)
        self.tops = np.array([float(x.max()) for x in tables])
        self.beliefs = beliefs
        counts = np.array(network.counts)
        self.free = counts > 1
        self.bits = np.log2(counts).tolist()
        self.near = neighbours(len(counts), network.scopes)
        self.listed = [list(x) for x in self.near]
        members = [v for scope in network.scopes for v in scope]
        self.degrees = np.bincount(members, minlength=len(counts)).astype(np.float64)
        self.unsure = np.array([-(p * np.log(np.maximum(p, 1e-12))).sum() for p in beliefs])
        self.best = np.zeros(len(counts), np.int64)
        self.value = -np.inf

    def likely(self) -> States:
        return np.array([int(np.argmax(p)) for p in self.beliefs], np.int64)

    def drawn_states(self) -> States:
        return np.array([self.rng.choice(len(p), p=p) for p in self.beliefs], np.int64)

    def round(
        self,
        states: States,
        deadline: float,
        moves: int,
        *,
        temperature: float = 0.0,
        held: Sequence[int] = (),
    ) -> States:
        """Moves from some states; returns where they lead to."""
        for k in range(moves):
            if k and time.perf_counter() > deadline:
                break
            cooled = max(0.0, temperature * (1 - k / (0.7 * moves)))
            states = self.move(states, self.ranks(states), cooled, held if k < _HELD else ())
        return states

    def kicked(self) -> tuple[States, list[int]]:
        """The best states with other ones for a few variables, and which these are."""
        chosen = self.drawn(self.unsure * self.degrees, int(self.rng.integers(1, 4)))
        states = self.best.copy()
        for v in chosen:
            n = self.network.counts[v]
            states[v] = (states[v] + self.rng.integers(1, n)) % n
        return states, chosen

    def combine(self, states: States) -> None:
        """Looks for states better than the best ones where others differ from them."""
        ranks = np.where(states != self.best, 0.0, self.jittered())
        self.move(self.best, ranks, 0.0, ())

    def move(
        self, states: States, ranks: Numbers, temperature: float, held: Sequence[int]
    ) -> States:
        """The best states of a part of the variables given the others, or a draw of them."""
        jitter = 1 + self.rng.random() * self.rng.random(len(ranks))
        order = find_part(self.bits, self.near, _WIDTH, ranks.tolist(), jitter.tolist(), held)
        network = self.given(states, order, temperature)
        maximised = frozenset() if temperature else None
        solution = Solution(network, bucketed(network.counts, network.scopes, order, maximised))
        part = solution.draw(1, self.rng)[0][0] if temperature else solution.best()
        states = np.where(part >= 0, part, states)
        value = float(self.network.score(states))
        if value > self.value:
            self.best, self.value = states, value
        self.moves += 1
        return states

    def given(self, states: States, order: Order, temperature: float) -> Network:
        """The tables of a part of the variables, the others at their states."""
        own = np.zeros(len(states), bool)
        own[list(order.variables)] = True
        inside, held = own.tolist(), states.tolist()
        scopes, tables = [], []
        for scope, table in zip(self.network.scopes, self.network.tables, strict=True):
            left = tuple(v for v in scope if inside[v])
            if not left:
                continue
            if len(left) < len(scope):
                table = table[tuple(slice(None) if inside[v] else held[v] for v in scope)]
            scopes.append(left)
            tables.append(table / temperature if temperature else table)
        return Network(self.network.counts, tuple(scopes), tuple(tables))

    def ranks(self, states: States) -> Numbers:
        """Which variables to fix first: those of higher rank. Rank 0 is for those to leave free."""
        kept = self.rng.random(len(states)) < self.rng.choice((0.0, 0.01, 0.05, 0.2))
        number = int(self.rng.choice(_FREE))
        kind = self.rng.integers(3)
        if kind == 0:
            kept[self.drawn((self.unsure + 1e-3) * self.degrees, number)] = True
        elif kind == 1:
            kept[self.drawn((self.unsure + 0.01) * self.losses(states), number)] = True
        else:
            v = int(self.rng.choice(np.flatnonzero(self.free)))
            for _ in range(4 * number):
                kept[v] = True
                if self.listed[v]:
                    v = self.listed[v][self.rng.integers(len(self.listed[v]))]
        return np.where(kept, 0.0, self.jittered())

    def jittered(self) -> Numbers:
        return self.degrees * (1 + self.rng.random(len(self.degrees)))

    def drawn(self, weights: Numbers, number: int) -> list[int]:
        """Different variables, drawn by their weights."""
        weights = np.where(self.free, weights, 0.0)
        some = int((weights > 0).sum())
        if not some:
            return []
        p = weights / weights.sum()
        return self.rng.choice(len(p), min(number, some), replace=False, p=p).tolist()

    def losses(self, states: States) -> Numbers:
        """How far the tables of each variable are below their largest entries."""
        out, held = np.zeros(len(states)), states.tolist()
        for scope, table, top in zip(
            self.network.scopes, self.network.tables, self.tops, strict=True
        ):
            lost = top - float(table[tuple(held[v] for v in scope)])
            for v in scope:
                out[v] += lost
        return out
