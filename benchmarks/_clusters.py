"""Clusters of data, and their shares."""

from typing import Any

import numpy as np


def centres(x: np.ndarray, y: np.ndarray | None, number: int) -> np.ndarray:
    """The means of the classes of the data, or of clusters: Lloyd's algorithm on the leading
    principal components, from rows that are far apart.
    """
    if y is not None:
        return np.stack([x[y == k].mean(0) for k in np.unique(y)])
    middle = x - x.mean(0)
    _, _, directions = np.linalg.svd(middle, full_matrices=False)
    low = middle @ directions[:number].T
    found = [low[np.argmax((low**2).sum(1))]]
    while len(found) < number:
        away = np.min([((low - c) ** 2).sum(1) for c in found], axis=0)
        found.append(low[np.argmax(away)])
    means, own = np.stack(found), np.zeros(len(x), int)
    for _ in range(100):
        own = ((low[:, None] - means) ** 2).sum(-1).argmin(1)
        means = np.stack([low[own == k].mean(0) for k in range(number)])
    return np.stack([x[own == k].mean(0) for k in range(number)])


def nearest(x: Any, means: Any) -> Any:
    """The nearest cluster of each row."""
    return ((means**2).sum(1)[None] - 2 * x @ means.T).argmin(-1)


def shares(found: np.ndarray, clusters: int) -> list[float]:
    """The share of each cluster."""
    return [float((found == k).mean()) for k in range(clusters)]
