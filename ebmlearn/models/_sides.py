from collections.abc import Iterable


def two_sides(number: int, edges: Iterable[tuple[int, ...]]) -> list[int]:
    """0 or 1 for each of so many nodes, different for the two ends of every edge if there is no odd
    cycle. The first node of each connected part is on side 0.
    """
    around: list[list[int]] = [[] for _ in range(number)]
    for a, b in edges:
        around[a].append(b)
        around[b].append(a)
    side = [-1] * number
    for start in range(number):
        if side[start] < 0:
            side[start], waiting = 0, [start]
            while waiting:
                a = waiting.pop()
                for b in around[a]:
                    if side[b] < 0:
                        side[b] = 1 - side[a]
                        waiting.append(b)
    return side
