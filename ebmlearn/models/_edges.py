import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .. import _checks
from ._layered_base import AbstractLayeredModel


def edges_of(
    model: AbstractLayeredModel,
) -> tuple[Int[np.ndarray, "edges 2"], Float[Array, " edges"]]:
    """The units that edges join, all layers being numbered on, and their weights; without those of
    weight zero where values are known.
    """
    sizes = [bias.shape[-1] for bias in model.unary()]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    places, weights = [np.zeros((0, 2), np.int64)], [jnp.zeros(0, model.unary()[0].dtype)]
    for first, second, w, _ in model.blocks():
        if 0 in w.shape:
            continue
        rows, columns = np.indices(w.shape).reshape(2, -1)
        if first == second:
            rows, columns = rows[rows < columns], columns[rows < columns]
        places.append(np.stack([rows + starts[first], columns + starts[second]], 1))
        weights.append(w[rows, columns])
    joined = jnp.concatenate(weights)
    edges = np.concatenate(places).astype(np.int32)
    if _checks.is_concrete(joined):
        kept = np.flatnonzero(np.asarray(joined))
        edges, joined = edges[kept], joined[kept]
    return edges, joined
