"""Models as networks of tables on the host, and back."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._sentinels import EXCLUDED
from ..elimination import Network, Reduced
from ..inference import Beliefs
from ..messages import MAKERS
from ..models import TableModel
from ..models._require import Refused


def shapes_and_tables(problem: Any) -> tuple[int, int] | None:
    """How many shapes the tables of a model have, and how many tables there are; None if its
    factors are not tables.
    """
    try:
        stacks = MAKERS[problem.model.kind].tables(problem.model)
    except Refused:
        return None
    return len(stacks), sum(len(members) for members, _ in stacks)


def networks_of(problem: Any) -> list[Network]:
    """A network for each instance. Evidence is in the tables of single variables; all variables
    have as many states as the one that has most, of which those that do not exist are excluded.
    """
    model, maker = problem.model, MAKERS[problem.model.kind]
    unary, there = jax.vmap(lambda x: maker.rows(model, x))(maker.instances(problem))
    rows = np.where(np.asarray(there), np.asarray(unary, np.float64), -np.inf)
    if maker.of_graphs:
        rows = np.where(rows < EXCLUDED / 2, -np.inf, rows)
    _, variables, most = rows.shape
    scopes, tables = [], []
    for members, stack in maker.tables(model):
        for own, table in zip(np.asarray(members).tolist(), np.asarray(stack), strict=True):
            scopes.append(tuple(own))
            tables.append(_padded(np.asarray(table, np.float64), most))
    scopes += [(v,) for v in range(variables)]
    counts = (most,) * variables
    return [Network(counts, tuple(scopes), (*tables, *own)) for own in rows]


def beliefs_of(problem: Any, scores: Float[Array, "instances variables most"]) -> PyTree:
    """The log-odds by name of log-probabilities of the states of all variables."""
    maker, shape = MAKERS[problem.model.kind], problem.shape
    beliefs = jax.vmap(maker.scored)(scores, maker.instances(problem))
    beliefs = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), beliefs)
    return maker.told(problem, beliefs, jnp.ones((), problem.model.dtype)).log_odds


def tabled(network: Network) -> tuple[TableModel, float]:
    """The model of a network, and the sum of the largest entries of tables, which are kept apart
    because messages are in float32.
    """
    tops = [float(x.max()) for x in network.tables]
    shifted = [np.asarray(x - top) for x, top in zip(network.tables, tops, strict=True)]
    return TableModel(network.counts, network.scopes, shifted), sum(tops)


def marginals_of(beliefs: Beliefs, small: Reduced) -> list[np.ndarray]:
    """The probabilities of the states of each variable of a network that is a model."""
    rows = np.asarray(beliefs["x"], np.float64)
    own = [row[:n] for row, n in zip(rows, small.network.counts, strict=True)]
    return [p / p.sum() for p in own]


def _padded(table: np.ndarray, most: int) -> np.ndarray:
    """A table with as many states for all variables; those beyond its own are excluded."""
    out = np.full((most,) * table.ndim, -np.inf)
    out[tuple(map(slice, table.shape))] = np.where(table < EXCLUDED / 2, -np.inf, table)
    return out
