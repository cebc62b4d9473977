"""Local search for the most likely states."""

import time
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int

from ..elimination import Network, reduced


# What an excluded entry of a table costs: more than others, and finite, so that the search finds
# states that are possible.
_EXCLUDED = -1e5
_LARGEST = 12  # variables that are changed at once


def improved(
    network: Network, states: Int[np.ndarray, " variables"], seconds: float | int, seed: int = 0
) -> tuple[Int[np.ndarray, " variables"], float]:
    """States at least as likely as those given: an iterated local search. Variables change one at a
    time while that helps. Then a few neighbours get random states, and what comes of it is kept
    unless it is worse.

    **Arguments:**

    - `network`: the tables.
    - `states`: where to start.
    - `seconds`: how long to go on.
    - `seed`: of the random changes.

    **Returns:**

    The states and their log-potential, minus infinity if tables exclude them.
    """
    deadline = time.perf_counter() + seconds
    rng = np.random.default_rng(seed)
    climb = _Climb(network, np.asarray(states).tolist())
    climb.settle(range(len(network.counts)))
    free = [v for v, n in enumerate(network.counts) if n > 1]
    while free and time.perf_counter() < deadline:
        climb.changed.clear()
        chosen = climb.patch(free[rng.integers(len(free))], int(rng.integers(1, _LARGEST)), rng)
        gain = sum(climb.put(v, int(rng.integers(network.counts[v]))) for v in chosen)
        around = {u for v in chosen for u in climb.near[v]} - set(chosen)
        if gain + climb.settle([*around, *chosen]) < -1e-9:
            climb.undo()
    found = np.asarray(climb.states, np.int64)
    return found, float(network.score(found))


def possible(
    network: Network, likely: Sequence[Float[np.ndarray, " _"]], seconds: float | int
) -> Int[np.ndarray, " variables"] | None:
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
        except ValueError:
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


class _Climb:
    """States that change one at a time."""

    def __init__(self, network: Network, states: list[int]):
        self.states = states
        # What was changed since the last `clear`, and from which state.
        self.changed: list[tuple[int, int]] = []
        self.near: list[list[int]] = [[] for _ in states]
        # For each variable its tables, as a row of scores for each setting of the others, and how
        # the states of these lead to the row.
        self._rows: list[list[tuple[np.ndarray, tuple[tuple[int, int], ...]]]]
        self._rows = [[] for _ in states]
        for scope, table in zip(network.scopes, network.tables, strict=True):
            finite = np.maximum(table, _EXCLUDED)
            for axis, v in enumerate(scope):
                others = (*scope[:axis], *scope[axis + 1 :])
                rows = np.moveaxis(finite, axis, -1).reshape(-1, table.shape[axis])
                sizes = [network.counts[u] for u in others]
                steps = np.cumprod([1, *reversed(sizes[1:])])[::-1].tolist() if others else []
                self._rows[v].append((rows, tuple(zip(others, steps, strict=True))))
                self.near[v] += others
        self.near = [list(dict.fromkeys(x)) for x in self.near]

    def settle(self, variables: Iterable[int]) -> float:
        """Gives variables their best state, and their neighbours after them, until nothing changes.
        Returns how much that adds to the log-potential.
        """
        waiting = deque(variables)
        queued, gain = set(waiting), 0.0
        while waiting:
            v = waiting.popleft()
            queued.discard(v)
            scores = self._scores(v)
            state = int(scores.argmax())
            more = float(scores[state] - scores[self.states[v]])
            if more > 1e-9:
                gain += more
                self.changed.append((v, self.states[v]))
                self.states[v] = state
                new = [u for u in self.near[v] if u not in queued]
                waiting.extend(new)
                queued.update(new)
        return gain

    def put(self, v: int, state: int) -> float:
        """Gives a variable a state. Returns how much that adds to the log-potential."""
        scores = self._scores(v)
        old = self.states[v]
        self.changed.append((v, old))
        self.states[v] = state
        return float(scores[state] - scores[old])

    def undo(self) -> None:
        """Takes all changes back."""
        for v, state in reversed(self.changed):
            self.states[v] = state

    def patch(self, v: int, size: int, rng: np.random.Generator) -> list[int]:
        """Variables around one, which a random walk finds."""
        found = {v: None}
        for _ in range(size - 1):
            if not self.near[v]:
                break
            v = self.near[v][rng.integers(len(self.near[v]))]
            found[v] = None
        return list(found)

    def _scores(self, v: int) -> Float[np.ndarray, " states"]:
        """The log-potential of each state of a variable given all others, but for a constant."""
        states, total = self.states, np.zeros(1)
        for rows, steps in self._rows[v]:
            at = 0
            for u, step in steps:
                at += step * states[u]
            total = total + rows[at]
        return total
