"""Whether a quadratic form is positive wherever no variable is negative."""

import itertools
from typing import NamedTuple

import numpy as np


# Faces of the simplex are looked at one by one up to so many units, 2**n - 1 of them.
EXACT_UNITS = 12
# A form is called positive if its least value on the simplex is above this part of its entries.
_MARGIN = 1e-10
_STARTS = 16


class Copositivity(NamedTuple):
    """The answer: `holds` is None where it is not known. `direction`, of sum 1, shows where the
    form is not positive; `reason` says how the answer was found.
    """

    holds: bool | None
    direction: np.ndarray | None
    reason: str


def copositivity(couplings: np.ndarray) -> Copositivity:
    """Whether $x^\\top W x > 0$ for all $x \\ge 0$ but zero: exact up to 12 units, for more by
    certificates and a search for a direction that refutes it.
    """
    matrix = np.asarray(couplings, np.float64)
    n = len(matrix)
    # Scaled, so that the equations of faces are well conditioned. The answer stays the same.
    matrix = matrix / (np.abs(matrix).max(initial=0) or 1.0)
    if _positive_definite(matrix):
        return Copositivity(True, None, "positive definite")
    # What is added to a positive definite matrix off the diagonal may not be negative.
    if _positive_definite(helpful(matrix)):
        return Copositivity(True, None, "positive definite without its positive couplings")
    if n <= EXACT_UNITS:
        value, direction = _least_on_simplex(matrix)
        if value <= _MARGIN:
            return Copositivity(False, direction, "a face of the simplex")
        if np.isfinite(value):
            return Copositivity(True, None, "positive on all faces of the simplex")
    value, direction = _descend(matrix)
    if value <= _MARGIN:
        return Copositivity(False, direction, "a local search")
    return Copositivity(None, None, "no certificate and no direction against it were found")


def helpful(matrix: np.ndarray) -> np.ndarray:
    """The matrix without positive entries off the diagonal."""
    return np.minimum(matrix, 0) + np.diag(np.maximum(np.diagonal(matrix), 0))


def _positive_definite(matrix: np.ndarray) -> bool:
    try:
        diagonal = np.diagonal(np.linalg.cholesky(matrix))
    except np.linalg.LinAlgError:
        return False
    return bool(diagonal.min(initial=np.inf) ** 2 > _MARGIN * np.diagonal(matrix).max(initial=0))


def _least_on_simplex(matrix: np.ndarray) -> tuple[float, np.ndarray]:
    """The least value of the form on the simplex and where it is.

    It lies inside some face, where $W x = \\lambda 1$ and $\\lambda$ is the value. A face on which
    these equations are singular need not be looked at: the form is constant along a line there,
    which leads to a smaller face.
    """
    n = len(matrix)
    best, where = np.inf, np.zeros(n)
    for size in range(1, n + 1):
        faces = np.array(list(itertools.combinations(range(n), size)))
        systems = np.ones((len(faces), size + 1, size + 1))
        systems[:, :size, :size] = matrix[faces[:, :, None], faces[:, None, :]]
        systems[:, :size, size] = -1
        systems[:, size, size] = 0
        regular = np.linalg.cond(systems) < 1e13
        faces, systems = faces[regular], systems[regular]
        right = np.zeros((len(faces), size + 1, 1))
        right[:, size] = 1
        solution = np.linalg.solve(systems, right)[:, :, 0]
        inside = (solution[:, :size] > 0).all(1)
        if inside.any():
            values = np.where(inside, solution[:, size], np.inf)
            k = int(values.argmin())
            if values[k] < best:
                best, where = float(values[k]), np.zeros(n)
                where[faces[k]] = solution[k, :size]
    return best, where


def _descend(matrix: np.ndarray) -> tuple[float, np.ndarray]:
    """The least value that pairwise descent on the simplex meets, from the middle, from where each
    pair of units is at its least, and from the eigenvector of the least eigenvalue.
    """
    n = len(matrix)
    vector = np.linalg.eigh(matrix)[1][:, 0]
    diagonal = np.diagonal(matrix)
    # The least value on each edge of the simplex, best first.
    first, second = np.triu_indices(n, 1)
    cross = matrix[first, second]
    bend = diagonal[first] + diagonal[second] - 2 * cross
    share = np.clip(
        np.where(bend > 0, (diagonal[second] - cross) / np.where(bend > 0, bend, 1), 0), 0, 1
    )
    value = share**2 * diagonal[first] + (1 - share) ** 2 * diagonal[second]
    value = value + 2 * share * (1 - share) * cross
    order = np.argsort(value)[:_STARTS]
    starts = [np.ones(n), np.maximum(vector, 0), np.maximum(-vector, 0)]
    for k in order:
        start = np.zeros(n)
        start[first[k]], start[second[k]] = share[k], 1 - share[k]
        starts.append(start)
    best, where = np.inf, np.ones(n) / n
    for start in starts:
        if start.sum() <= 0:
            continue
        x = start / start.sum()
        for _ in range(10 * n):
            gradient = matrix @ x
            low = int(gradient.argmin())
            used = np.flatnonzero(x > 0)
            high = int(used[gradient[used].argmax()])
            gain = gradient[high] - gradient[low]
            if gain <= 1e-14 * np.abs(matrix).max():
                break
            curve = matrix[low, low] + matrix[high, high] - 2 * matrix[low, high]
            step = x[high] if curve * x[high] <= gain else gain / curve
            x[low] += step
            x[high] = x[high] - step
        value = float(x @ matrix @ x)
        if value < best:
            best, where = value, x
    return best, where
