"""Models as networks of tables on the host, and back."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from .._sentinels import EXCLUDED
from ..elimination import Network, Reduced
from ..inference import Beliefs
from .. import messages
from ..models import TableModel
from ..models._require import Refused


def shapes_and_tables(problem: Any) -> tuple[int, int] | None:
    """How many shapes the tables of a model have, and how many tables there are; None if its
    factors are not tables.
    """
    try:
        stacks = problem.model.as_tables()
    except Refused:
        return None
    return len(stacks), sum(len(members) for members, _ in stacks)


def networks_of(problem: Any) -> list[Network]:
    """A network for each instance. Evidence is in the tables of single variables."""
    model = problem.model
    unary, there = messages.rows_of(problem)
    rows = np.where(np.asarray(there), np.asarray(unary, np.float64), -np.inf)
    if hasattr(model, "group_names"):
        rows = np.where(rows < EXCLUDED / 2, -np.inf, rows)
    # Without evidence variables have all their states.
    _, every = messages.rows_of(model.problem(None, None))
    counts = tuple(np.asarray(every[0]).sum(-1).tolist())
    scopes, tables = [], []
    for members, stack in model.as_tables():
        stack = np.asarray(stack, np.float64)
        scopes += map(tuple, np.asarray(members).tolist())
        tables += list(np.where(stack < EXCLUDED / 2, -np.inf, stack))
    scopes += [(v,) for v in range(len(counts))]
    singles = [[x[:n] for x, n in zip(own, counts, strict=True)] for own in rows]
    return [Network(counts, tuple(scopes), (*tables, *own)) for own in singles]


def beliefs_of(problem: Any, marginals: Sequence[Sequence[Float[np.ndarray, " _"]]]) -> PyTree:
    """The log-odds by name, from the probabilities of the states of all variables, by instance."""
    most = max(map(len, marginals[0]))
    p = np.array([[np.pad(x, (0, most - len(x))) for x in own] for own in marginals])
    scores = jnp.log(jnp.asarray(p, problem.model.dtype))
    scores = scores.reshape(*problem.shape, *scores.shape[1:])
    return problem.told(messages.by_group(problem.model.layers, scores))


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
