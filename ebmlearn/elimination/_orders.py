"""In which order variables are eliminated."""

import heapq
import math
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph


# The first order goes from end to end, the second is greedy by fill. They are always tried. The
# third is greedy by size. All later ones are greedy by turns, with random ties.
_END_TO_END, _BY_FILL, _BY_SIZE = range(3)


class Order(NamedTuple):
    """An order of elimination.

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
    restarts: int = 30,
    seed: int = 0,
) -> Order:
    """The best of several orders. The first goes through the network from one end to the other,
    which is best for grids and chains. In greedy ones the variable that costs least is eliminated
    next, where the cost is the number of edges that it adds, or the size of its table. After one of
    each kind, ties and near ties of greedy ones are broken at random.

    **Arguments:**

    - `counts`: the number of states of each variable.
    - `scopes`: the variables of each table.
    - `last`: variables that come after all others.
    - `most`: orders but the first are given up once their tables have `2**most` entries in all.
    - `seconds`: how long to go on. The second order is always tried, so that a slow machine takes
      no wider order than the better one of the first two.
    - `restarts`: the largest number of orders to try.
    - `seed`: of the ties.
    """
    rng = np.random.default_rng(seed)
    around = neighbours(len(counts), scopes)
    bits = [math.log2(n) for n in counts]
    began = time.perf_counter()
    best: Order | None = None
    for k in range(max(_BY_SIZE + 1, restarts)):
        noise = 0.0 if k <= _BY_SIZE else (0.1, 0.5, 1.0)[k % 3]
        ranks = _end_to_end(around) if k == _END_TO_END else None
        by_fill = k == _BY_FILL or (k > _BY_SIZE and k % 2 == 0)
        limit = math.inf if best is None else min(best.work, most)
        found = _greedy(
            bits, around, last, by_fill=by_fill, ranks=ranks, noise=noise, rng=rng, most=limit
        )
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
    near = [set(x) for x in around]
    size = [bits[v] + sum(bits[u] for u in near[v]) for v in range(len(near))]
    done = [b == 0 for b in bits]
    stamp = [0] * len(near)
    order, width, work = [], 0.0, 0.0
    heap: list[tuple[float, int, int]] = []

    def changed(variables: Iterable[int]) -> None:
        for u in variables:
            stamp[u] += 1
            heapq.heappush(heap, (size[u] * jitter[u], u, stamp[u]))

    def removed(v: int) -> set[int]:
        done[v] = True
        for u in near[v]:
            near[u].discard(v)
            size[u] -= bits[v]
        return near[v]

    for v in held:
        removed(v)
    changed(v for v in range(len(near)) if not done[v])
    while heap:
        _, v, version = heapq.heappop(heap)
        if done[v] or version != stamp[v]:
            continue
        if size[v] > most:
            fixed = max((v, *near[v]), key=ranks.__getitem__)
            changed(removed(fixed))
            if fixed != v:
                changed((v,))
            continue
        order.append(v)
        width, work = max(width, size[v]), work + 2.0 ** size[v]
        own = removed(v)
        for u in own:
            new = own - near[u]
            new.discard(u)
            if new:
                near[u] |= new
                size[u] += sum(bits[w] for w in new)
        changed(own)
    return Order(tuple(order), width, math.log2(max(work, 1.0)))


def neighbours(number: int, scopes: Iterable[Sequence[int]]) -> list[set[int]]:
    """The variables that share a table with each variable."""
    around: list[set[int]] = [set() for _ in range(number)]
    for scope in scopes:
        for v in scope:
            around[v].update(scope)
    for v, near in enumerate(around):
        near.discard(v)
    return around


def _end_to_end(around: list[set[int]]) -> list[int]:
    """The place of each variable in an order in which neighbours are close."""
    rows = np.repeat(np.arange(len(around)), [len(x) for x in around])
    columns = np.array([u for near in around for u in near], np.int64)
    joined = scipy.sparse.csr_array(
        (np.ones(len(rows)), (rows, columns)), shape=(len(around), len(around))
    )
    order = scipy.sparse.csgraph.reverse_cuthill_mckee(joined, symmetric_mode=True)
    return np.argsort(order).tolist()


def _greedy(
    bits: list[float],
    around: list[set[int]],
    last: frozenset[int],
    *,
    by_fill: bool,
    ranks: Sequence[int] | None,
    noise: float,
    rng: np.random.Generator,
    most: float | int,
) -> Order | None:
    """One order, or None once its tables have `2**most` entries in all."""
    near = [set(x) for x in around]
    size = [bits[v] + sum(bits[u] for u in near[v]) for v in range(len(near))]

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

    heap = [(*cost(v), v, 0) for v in range(len(near))]
    heapq.heapify(heap)
    stamp, done = [0] * len(near), [False] * len(near)
    order, width, work = [], 0.0, 0.0
    limit = math.inf if math.isinf(most) else 2.0 ** min(most, 1000)
    while heap:
        *_, v, version = heapq.heappop(heap)
        if done[v] or version != stamp[v]:
            continue
        done[v] = True
        order.append(v)
        width, work = max(width, size[v]), work + 2.0 ** min(size[v], 1000)
        if work >= limit:
            return None
        own = near[v]
        changed = set(own)
        for u in own:
            near[u].discard(v)
            size[u] -= bits[v]
        for u in own:
            new = own - near[u]
            new.discard(u)
            if new:
                near[u] |= new
                size[u] += sum(bits[w] for w in new)
                if by_fill and ranks is None:
                    changed |= near[u]
        for u in changed:
            if not done[u]:
                stamp[u] += 1
                heapq.heappush(heap, (*cost(u), u, stamp[u]))
    return Order(tuple(order), width, math.log2(max(work, 1.0)))
