"""In which order variables are eliminated."""

import heapq
import math
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np


# The first order goes from end to end, the second is greedy by fill. They are always tried. The
# third is greedy by size. All later ones are greedy by turns, with random ties.
_END_TO_END, _BY_FILL, _BY_SIZE = range(3)
_ORDERS = 30  # that are tried at most


class Order(NamedTuple):
    """An order of elimination.

    !!! example

        ```python
        from ebmlearn.elimination import find_order

        order = find_order([2, 2, 2], [(0, 1), (1, 2)])
        order.variables, order.width, order.work
        ```

    **Fields:**

    - `variables`: first to last.
    - `width`: the logarithm to base 2 of the size of the largest table on the way.
    - `work`: the same of the sum of the sizes of all tables.
    """

    variables: tuple[int, ...]
    width: float
    work: float


def find_order(
    counts: Sequence[int],
    scopes: Iterable[Sequence[int]],
    *,
    last: frozenset[int] = frozenset(),
    most: float | int = math.inf,
    seconds: float | int = 1,
) -> Order:
    """The best of several orders. The first goes through the network from one end to the other,
    which is best for grids and chains. In greedy ones the variable that costs least is eliminated
    next, where the cost is the number of edges that it adds, or the size of its table. After one of
    each kind, ties and near ties of greedy ones are broken at random.

    !!! example

        ```python
        from ebmlearn.elimination import find_order

        order = find_order([2, 2, 2], [(0, 1), (1, 2)])  # a chain
        order.variables, order.width  # the largest table has 2**2 entries
        ```

    **Arguments:**

    - `counts`: the number of states of each variable.
    - `scopes`: the variables of each table.
    - `last`: variables that come after all others.
    - `most`: orders but the first are given up once their tables have `2**most` entries in all.
    - `seconds`: how long to go on. The second order is always tried, so that a slow machine takes
      no wider order than the better one of the first two.
    """
    rng = np.random.default_rng(0)
    around = neighbours(len(counts), scopes)
    bits = [math.log2(n) for n in counts]
    began = time.perf_counter()
    best: Order | None = None
    for k in range(_ORDERS):
        noise = 0.0 if k <= _BY_SIZE else (0.1, 0.5, 1.0)[k % 3]
        ranks = _end_to_end(around) if k == _END_TO_END else None
        by_fill = k == _BY_FILL or (k > _BY_SIZE and k % 2 == 0)
        limit = math.inf if best is None else min(best.work, most)
        left = _Left(bits, around)
        found = _greedy(left, last, limit, by_fill, ranks, noise, rng)
        if found is not None and (best is None or found.work < best.work):
            best = found
        # Small tables are summed in less time than a better order takes to find.
        late = k >= _BY_FILL and time.perf_counter() - began > seconds
        if best is not None and (best.work < 14 or late):
            break
    assert best is not None
    return best


def find_part(
    bits: Sequence[float],
    around: Sequence[set[int]],
    most: float | int,
    ranks: Sequence[float],
    jitter: Sequence[float],
    held: Sequence[int] = (),
) -> Order:
    """An order of a part of the variables whose tables have at most `2**most` entries if the others
    are fixed. The variable of the smallest table is eliminated next; if that is too large, the one
    of the highest rank among it and its neighbours is fixed.

    **Arguments:**

    - `bits`: the logarithm to base 2 of the number of states of each variable. Variables of one
      state are left out.
    - `around`: the neighbours of each variable.
    - `most`: the logarithm to base 2 of the size of the largest table.
    - `ranks`: which variables are fixed first: those of higher rank.
    - `jitter`: factors of the sizes by which variables are compared.
    - `held`: variables that are fixed in any case.
    """
    left = _Left(bits, around)
    push, size = left.push, left.size
    left.done = [b == 0 for b in bits]
    for v in held:
        left.remove(v)
    waiting: Iterable[int] = [v for v, done in enumerate(left.done) if not done]
    while True:
        for u in waiting:
            push(u, size[u] * jitter[u])
        v = left.pop()
        if v is None:
            return left.found()
        if size[v] > most:
            waiting = left.remove(max((v, *left.near[v]), key=ranks.__getitem__))
        else:
            waiting, _ = left.eliminate(v)


class _Left:
    """The variables that are left, their neighbours, the logarithm to base 2 of the size of the
    table of each, which variables are next, and the order so far.
    """

    def __init__(self, bits: Sequence[float], around: Sequence[set[int]]):
        self.bits, self.near = bits, [set(x) for x in around]
        self.size = [b + sum(bits[u] for u in x) for b, x in zip(bits, self.near, strict=True)]
        self.done, self.stamp = [False] * len(bits), [0] * len(bits)
        self.heap: list[tuple] = []
        self.order, self.width, self.work = [], 0.0, 0.0

    def push(self, v: int, *cost: float | int) -> None:
        """Sets what a variable costs. The cheapest comes next."""
        self.stamp[v] += 1
        heapq.heappush(self.heap, (*cost, v, self.stamp[v]))

    def pop(self) -> int | None:
        """The next variable; None at the end."""
        while self.heap:
            *_, v, version = heapq.heappop(self.heap)
            if not self.done[v] and version == self.stamp[v]:
                return v
        return None

    def remove(self, v: int) -> set[int]:
        """Takes a variable away, and returns its neighbours."""
        near, size, own = self.near, self.size, self.bits[v]
        self.done[v] = True
        for u in near[v]:
            near[u].discard(v)
            size[u] -= own
        return near[v]

    def eliminate(self, v: int) -> tuple[set[int], list[int]]:
        """Takes a variable away and joins its neighbours: these, and those that got new ones."""
        self.order.append(v)
        self.width = max(self.width, self.size[v])
        self.work += 2.0 ** min(self.size[v], 1000)
        own, joined, near, bits = self.remove(v), [], self.near, self.bits
        for u in own:
            new = own - near[u]
            new.discard(u)
            if new:
                near[u] |= new
                self.size[u] += sum([bits[w] for w in new])
                joined.append(u)
        return own, joined

    def found(self) -> Order:
        return Order(tuple(self.order), self.width, math.log2(max(self.work, 1.0)))


def neighbours(number: int, scopes: Iterable[Sequence[int]]) -> list[set[int]]:
    """The variables that share a table with each variable."""
    around: list[set[int]] = [set() for _ in range(number)]
    for scope in scopes:
        for v in scope:
            around[v].update(scope)
    for v, near in enumerate(around):
        near.discard(v)
    return around


def fewest_first(number: int, scopes: Iterable[Sequence[int]]) -> list[int]:
    """An order of so many variables in which the next one is always joined to the fewest of those
    that are left. On trees, where each has one such neighbour, sums in this order are exact.
    """
    left, order = _Left([0.0] * number, neighbours(number, scopes)), []
    changed: Iterable[int] = range(number)
    while True:
        for u in changed:
            left.push(u, len(left.near[u]))
        v = left.pop()
        if v is None:
            return order
        order.append(v)
        changed = left.remove(v)


def _end_to_end(around: list[set[int]]) -> list[int]:
    """The place of each variable in an order in which neighbours are close."""
    rows = np.repeat(np.arange(len(around)), [len(x) for x in around])
    columns = np.array([u for near in around for u in near], np.int64)
    import scipy.sparse.csgraph  # here, since it takes long to import

    joined = scipy.sparse.csr_array(
        (np.ones(len(rows)), (rows, columns)), shape=(len(around), len(around))
    )
    order = scipy.sparse.csgraph.reverse_cuthill_mckee(joined, symmetric_mode=True)
    return np.argsort(order).tolist()


def _greedy(
    left: _Left,
    last: frozenset[int],
    most: float | int,
    by_fill: bool,
    ranks: Sequence[int] | None,
    noise: float,
    rng: np.random.Generator,
) -> Order | None:
    """One order, or None once its tables have `2**most` entries in all."""
    bits, near, size = left.bits, left.near, left.size

    def fill(v: int) -> float:
        """The weight of the edges that are missing around a variable."""
        own, missing = near[v], 0.0
        for u in own:
            missing += bits[u] * (sum(bits[w] for w in own - near[u]) - bits[u])
        return missing / 2

    def cost(v: int) -> tuple[bool, float, float]:
        if ranks is not None:
            return v in last, float(ranks[v]), 0.0
        own = fill(v) if by_fill else size[v]
        scale = 1 + noise * rng.random() if noise else 1.0
        return v in last, own * scale, size[v]

    limit = math.inf if math.isinf(most) else 2.0 ** min(most, 1000)
    changed: Iterable[int] = range(len(near))
    while True:
        for u in changed:
            left.push(u, *cost(u))
        v = left.pop()
        if v is None:
            return left.found()
        own, joined = left.eliminate(v)
        if left.work >= limit:
            return None
        changed = set(own)
        if by_fill and ranks is None:
            changed.update(*(near[u] for u in joined))
