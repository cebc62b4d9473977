"""Models as networks of tables on the host, and back."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from ..elimination import Network, Reduced
from ..factors import Stacks
from ..inference import Beliefs
from ..messages import MAKERS
from ..models import TableModel
from ..models._listed import stacks_of, told
from ..models._require import Refused


def tables_of(model: Any) -> Stacks | None:
    """The tables of a model; None if its factors are not tables."""
    try:
        found = stacks_of(model)
        return told(MAKERS[model.kind].tables(model) if found is None else found)
    except Refused:
        return None


def beliefs_of(problem: Any, marginals: Sequence[Sequence[Float[np.ndarray, " _"]]]) -> PyTree:
    """The log-odds by name, from the probabilities of the states of all variables, by instance."""
    most = max(map(len, marginals[0]))
    p = np.array([[np.pad(x, (0, most - len(x))) for x in own] for own in marginals])
    scores = jnp.log(jnp.asarray(p, problem.model.dtype))
    return problem.named(scores.reshape(*problem.shape, *scores.shape[1:]))


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
