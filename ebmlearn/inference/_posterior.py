from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..models import AbstractLayeredModel
from ..models._graph import AbstractGraphModel
from ._base import AbstractInference, Statistics
from ._graph import GraphProblem
from ._instances import chunk_of, each_and_mean, Problem


# What data say of a model: its visible units, these and one-hot labels, or states of variables.
Seen = (
    Float[Array, "batch visible"]
    | tuple[Float[Array, "batch _"], Float[Array, "batch _"]]
    | Int[Array, "batch variables"]
)


def _seen_layers(model: AbstractLayeredModel) -> tuple[int, ...]:
    """The layers that data tell: the visible one, and labels."""
    return (0, *(k for k, kind in enumerate(model.kinds()) if kind == "softmax"))


def is_closed(model: AbstractLayeredModel) -> bool:
    """Whether the hidden units are independent given what data tell: every edge then ends there."""
    seen = _seen_layers(model)
    return all(first in seen or second in seen for first, second, _ in model.blocks())


def posterior(
    model: AbstractLayeredModel | AbstractGraphModel,
    visible: Seen,
    inference: AbstractInference,
    product: Literal["sum", "max"] = "sum",
) -> Statistics:
    """Expected statistics given all visible units (`x` of a BoltzmannMachine) and labels, or those
    of the most likely hidden units if `product="max"`.

    They are exact where that is a formula; else, in a DBM or a graph, `inference` is asked with the
    visible units held.
    """
    if isinstance(model, AbstractGraphModel):
        assert not isinstance(visible, tuple)
        return _graph_posterior(model, visible, inference)
    if not is_closed(model):
        assert not isinstance(visible, tuple)
        observed = jnp.ones(visible.shape, bool)
        return inference._statistics(Problem(model, visible, observed, trusted=True))
    given = visible if isinstance(visible, tuple) else (visible,)
    known = dict(zip(_seen_layers(model), given, strict=True))
    size = given[0].shape[0]
    fields = [jnp.broadcast_to(bias, (size, bias.shape[-1])) for bias in model.unary()]
    for first, second, weights in model.blocks():
        if first in known and second not in known:
            fields[second] = fields[second] + known[first] @ weights
        elif second in known and first not in known:
            fields[first] = fields[first] + known[second] @ weights.T
    layers = []
    for k, field in enumerate(fields):
        if k in known:
            layers.append(known[k])
        elif product == "sum":
            layers.append(jax.nn.sigmoid(field))
        else:
            layers.append((field > 0).astype(field.dtype))
    return observed_statistics(model, tuple(layers))


def observed_statistics(
    model: AbstractLayeredModel,
    layers: tuple[Float[Array, "batch _"], ...],
    weights: Float[Array, " batch"] | None = None,
) -> Statistics:
    """The statistics of a batch in which no two units that share an edge are both uncertain:
    `pairwise` is then a product of two matrices. Instances may have weights that sum to 1.
    """
    size = layers[0].shape[0]
    heavy = layers
    if weights is not None:
        heavy = tuple(x * jnp.broadcast_to(size * weights[:, None], x.shape) for x in layers)
    pairs = tuple(heavy[a].T @ layers[b] / size for a, b, _ in model.blocks())
    return Statistics(
        units=model.units(heavy),
        pairwise=model.factors(pairs),
        converged=jnp.ones(size, bool),
        iterations=jnp.zeros(size, jnp.int32),
        residual=jnp.zeros(size, layers[0].dtype),
    )


def seen_statistics(model: AbstractGraphModel, rows: Int[Array, "batch variables"]) -> Statistics:
    """The statistics of configurations of a graph, in which all variables are known."""
    size = rows.shape[0]
    units, factors = each_and_mean(model.features, rows, (size,), chunk_of(model))
    return Statistics(
        units=model.units((units,)),
        pairwise=model.factors(factors),
        converged=jnp.ones(size, bool),
        iterations=jnp.zeros(size, jnp.int32),
        residual=jnp.zeros(size, model.unary()[0].dtype),
    )


def _graph_posterior(
    model: AbstractGraphModel, rows: Int[Array, "batch variables"], inference: AbstractInference
) -> Statistics:
    """Expected statistics given the states of some variables: where all are given, just those of
    the data.
    """
    return jax.lax.cond(
        (rows >= 0).all(),
        lambda: seen_statistics(model, rows),
        lambda: inference._statistics(GraphProblem(model, rows)),
    )
