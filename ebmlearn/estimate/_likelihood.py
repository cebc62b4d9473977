from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from .. import _checks
from .._types import AnyArray
from ..inference._posterior import is_closed
from ..models import AbstractLayeredModel, SemiRestrictedBM
from ..models._base import states
from ..samplers._base import binary_only
from ..samplers._sweep import field, marginal_energy


_FIELDS = 2**20  # How many hidden units' fields are held at once.


def log_likelihood(
    model: AbstractLayeredModel,
    data: Shaped[AnyArray, "rows visible"]
    | tuple[Shaped[AnyArray, "rows visible"], Int[AnyArray, " rows"]],
    log_partition: float | Float[Array, "*batch"],
) -> Float[Array, " rows"]:
    """The log-probability of each row of visible units, $-F(v) - \\log Z$, in nats.

    !!! example

        ```python
        exact = ebmlearn.Exact()(rbm).log_partition
        ebmlearn.log_likelihood(rbm, data, exact).mean()
        ```

    **Arguments:**

    - `model`: an RBM, a conditioned CRBM, a BoltzmannMachine, a SemiRestrictedBM, a GaussianRBM or
      an NNBM.
    - `data`: visible units. Where the model has label units, their labels are summed out, or taken
      from the pair `(visible, labels)`.
    - `log_partition`: log Z, from [`ebmlearn.Exact`][], [`ebmlearn.ais`][] or another inference.
    """
    if isinstance(model, SemiRestrictedBM) and model.num_labels:
        visible, labels = data if isinstance(data, (tuple, list)) else (data, None)
        visible = states("data", visible, model.num_visible, model.weights.dtype)
        _checks.rank("data", visible, 2, "[rows, visible]")
        _checks.binary_rows("data", visible)
        if labels is not None:
            _checks.labels("data[1]", labels, model.num_labels, visible.shape[0])
        free_energy = model.free_energy(visible, labels)
    else:
        if isinstance(data, (tuple, list)):
            raise ValueError("`data` must be one array where there are no label units, got a pair.")
        free_energy = marginal_energy(model, _rows(model, data))
    log_z = jnp.asarray(log_partition).astype(free_energy.dtype)
    if log_z.shape not in ((), free_energy.shape):
        raise ValueError(
            f"`log_partition` must be a number, or one for each of {free_energy.shape[0]} rows, got"
            f" {_checks.describe(log_z)}."
        )
    return -free_energy - jnp.broadcast_to(log_z, free_energy.shape)


def pseudo_log_likelihood(
    model: AbstractLayeredModel, data: Shaped[AnyArray, "rows visible"]
) -> Float[Array, " rows"]:
    """The sum over visible units of $\\log p(v_i \\mid v_j, j \\ne i)$, hidden units summed out, in
    nats. It needs no log Z.

    **Arguments:**

    - `model`: an RBM, a conditioned CRBM, a BoltzmannMachine or a SemiRestrictedBM.
    - `data`: visible units, 0 or 1.
    """
    layers = _rows(model, data)
    binary_only(model, "pseudo-likelihood")
    visible = layers[0]
    # What the log-potential gains when one unit is flipped.
    gains = (1 - 2 * visible) * field(model, layers, 0)
    for first, second, weights in model.blocks():
        if first == second:
            continue
        weights = weights if first == 0 else weights.T
        hidden = field(model, layers, max(first, second))

        def flipped(unit: Any, weights: Array = weights, hidden: Array = hidden) -> Array:
            row, v = unit
            moved = hidden + (1 - 2 * v)[:, None] * jnp.broadcast_to(row[None], hidden.shape)
            return (jax.nn.softplus(moved) - jax.nn.softplus(hidden)).sum(-1)

        # So many units at a time, and recomputed for gradients: the fields of all may be too many.
        at_once = max(1, min(_FIELDS // max(1, hidden.size), weights.shape[0]))
        moves = (weights, visible.T)
        gains = gains + jax.lax.map(jax.checkpoint(flipped), moves, batch_size=at_once).T
    return -jax.nn.softplus(gains).sum(-1)


def _rows(model: Any, data: Any) -> list[Float[Array, "rows _"]]:
    if not isinstance(model, AbstractLayeredModel) or not is_closed(model):
        raise TypeError(
            "`model` must be an RBM, a BoltzmannMachine, a SemiRestrictedBM, a GaussianRBM or an"
            f" NNBM, got a {type(model).__name__}."
        )
    unary = model.unary()
    visible = states("data", data, unary[0].shape[-1], unary[0].dtype)
    _checks.rank("data", visible, 2, "[rows, visible]")
    rows = {"gaussian": _checks.finite_rows, "nonnegative": _checks.nonnegative_rows}
    rows.get(model.kinds()[0], _checks.binary_rows)("data", visible)
    size = visible.shape[0]
    if model.batch_shape not in ((), (1,), (size,)):
        raise ValueError(
            f"`model` must be a single one, or one for each of {size} rows, got a batch of"
            f" {model.batch_shape}."
        )
    zeros = [jnp.zeros((size, bias.shape[-1]), bias.dtype) for bias in unary[1:]]
    return [visible, *zeros]
