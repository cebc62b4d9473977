import numpy as np
from jaxtyping import Int

from ..models import NNBM


def classes(model: NNBM) -> Int[np.ndarray, "colours width"]:
    """Units in classes of which no two are joined, so that a class can be drawn at once: a greedy
    colouring, units of many neighbours first. Short rows are filled up with the number of units.
    """
    n = model.num_units
    if model.edges is None:
        return np.arange(n, dtype=np.int32)[:, None]
    neighbours: list[list[int]] = [[] for _ in range(n)]
    for i, j in model.edges:
        neighbours[i].append(j)
        neighbours[j].append(i)
    colour = [-1] * n
    for i in sorted(range(n), key=lambda i: -len(neighbours[i])):
        taken = {colour[j] for j in neighbours[i]}
        colour[i] = next(c for c in range(n) if c not in taken)
    rows = [[i for i in range(n) if colour[i] == c] for c in range(max(colour) + 1)]
    width = max(map(len, rows))
    return np.array([row + [n] * (width - len(row)) for row in rows], np.int32)
