import numpy as np
from jaxtyping import Int


def classes(number: int, edges: tuple[tuple[int, int], ...]) -> Int[np.ndarray, "colours width"]:
    """Units in classes of which no two are joined, so that a class can be drawn at once: a greedy
    colouring, units of many neighbours first. Short rows are filled up with the number of units.
    """
    neighbours: list[list[int]] = [[] for _ in range(number)]
    for i, j in edges:
        neighbours[i].append(j)
        neighbours[j].append(i)
    colour = [-1] * number
    for i in sorted(range(number), key=lambda i: -len(neighbours[i])):
        taken = {colour[j] for j in neighbours[i]}
        colour[i] = next(c for c in range(number) if c not in taken)
    rows = [[i for i in range(number) if colour[i] == c] for c in range(max(colour) + 1)]
    width = max(map(len, rows))
    return np.array([row + [number] * (width - len(row)) for row in rows], np.int32)
