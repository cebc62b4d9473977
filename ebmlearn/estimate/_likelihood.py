from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from .. import _checks
from .._types import AnyArray
from ..models import (
    AbstractModel,
    AbstractPlainModel,
    complete_energies,
    is_closed,
    Masks,
    refuse,
    require_chains,
    require_layers,
    require_plain,
    seen_states,
    states_of,
    Told,
)
from ._ais import AISEstimate
from ._log_partition import LogPartition


_FIELDS = 2**20  # How many hidden units' fields are held at once.


def log_likelihood(
    model: AbstractPlainModel,
    data: Shaped[AnyArray, "rows visible"]
    | tuple[Shaped[AnyArray, "rows visible"], Int[AnyArray, " rows"]],
    log_partition: float | Float[Array, "*batch"] | LogPartition | AISEstimate,
) -> Float[Array, " rows"]:
    """The log-probability of each row of visible units, $-F(v) - \\log Z$, in nats.

    !!! example

        ```python
        from ebmlearn import datasets

        rbm = ebmlearn.RBM.init(64, 8)
        exact = ebmlearn.Exact()(rbm).log_partition
        ebmlearn.log_likelihood(rbm, datasets.digits().test.x, exact).mean()
        ```

    **Arguments:**

    - `model`: any layered model without connections between hidden layers. Condition a CRBM first.
    - `data`: visible units. For a model with label units, pass `(visible, labels)` for the joint
      probability, or only `visible` to sum over the labels.
    - `log_partition`: log Z, a number such as `Exact()(model).log_partition`; or the result of
      [`ebmlearn.ais`][] or [`ebmlearn.log_partition`][], of which the largest is taken if estimates
      disagree.
    """
    if isinstance(log_partition, LogPartition):
        log_partition = log_partition.quoted
    elif isinstance(log_partition, AISEstimate):
        log_partition = log_partition.log_partition
    free_energy = _free_energies(model, data)
    log_z = jnp.asarray(log_partition).astype(free_energy.dtype)
    if log_z.shape not in ((), free_energy.shape):
        raise ValueError(
            f"`log_partition` must be a number, or one for each of {free_energy.shape[0]} rows, got"
            f" {_checks.describe(log_z)}."
        )
    return -free_energy - jnp.broadcast_to(log_z, free_energy.shape)


def pseudo_log_likelihood(
    model: AbstractPlainModel,
    data: Shaped[AnyArray, "rows visible"]
    | tuple[Shaped[AnyArray, "rows ..."], ...]
    | Mapping[Any, AnyArray],
) -> Float[Array, " rows"]:
    """The sum over visible units of $\\log p(v_i \\mid v_j, j \\ne i)$ in nats, with hidden units
    summed out. It needs no log Z.

    !!! example

        ```python
        from ebmlearn import datasets

        rbm = ebmlearn.RBM.init(64, 8)
        ebmlearn.pseudo_log_likelihood(rbm, datasets.digits().test.x).mean()
        ```

    **Arguments:**

    - `model`: any layered model with binary or categorical visible units and without connections
      between hidden layers, or a graph of which [`ebmlearn.Gibbs`][] reaches all configurations:
      variables that OR, AND or other factors determine move with those that determine them, and
      have no term of their own. Condition a CRBM first.
    - `data`: visible units; for a model with several visible layers, an array for each, such as
      `(visible, labels)`; of a graph, the states of all variables.
    """
    found = require_conditionals(model, "pseudo-likelihood")
    seen = _seen(found, data)
    masks = found.observe(data, "data")[2] if found.grouped else None
    return _compiled(found, seen, masks)


def require_conditionals(model: AbstractModel, what: str) -> Any:
    """The model, or `TypeError` unless its visible units have a few states each, whose
    probabilities given all other visible units are known by formula.
    """
    found = require_plain(model, what)
    if not found.exact:
        refuse(model, f"be one of layers of units joined by weights for {what}")
    if not all(found.layers[k].numbered for k in found.variables.seen):
        refuse(model, f"have visible units that {what} takes, binary or categorical")
    require_chains(found, what)
    if not is_closed(found):
        refuse(model, "have hidden layers that are not joined")
    return found


def pseudo_log_likelihood_of(
    model: AbstractPlainModel, seen: Told, masks: Masks = None
) -> Float[Array, " rows"]:
    """The same of visible groups as they are inside, NaN where some of their states are missing."""
    layers = model.variables.filled(seen, model.dtype)
    if model.turns is not None:
        scores, own = model.turns.conditionals(model.turns.rows(layers))
        each = jnp.take_along_axis(jax.nn.log_softmax(scores, axis=-1), own[..., None], axis=-1)
        found = each[..., 0].sum(-1)
    else:
        found = jnp.stack([_of_layer(model, layers, k) for k in model.variables.seen]).sum(0)
    for mask in masks or ():
        found = found if mask is None else jnp.where(mask.all(-1), found, jnp.nan)
    return found


_compiled = eqx.filter_jit(pseudo_log_likelihood_of)


def _of_layer(
    model: AbstractPlainModel, layers: list[Float[Array, "rows _"]], k: int
) -> Float[Array, " rows"]:
    """The sum over the units of one layer."""
    units, x = model.layers[k], layers[k]
    others = units.others(x)  # pyright: ignore
    rows, size, number, step = others.shape
    moves = others - x.reshape(rows, size, 1, step)
    # What the log-potential gains when one unit takes another state.
    gains = (moves * model.field(layers, k).reshape(rows, size, 1, step)).sum(-1)
    for factor in model.factors():
        ends = [model.names.index(group) for group in factor.groups]
        hidden = [end for end in ends if end not in model.variables.seen]
        if k not in ends or not hidden:
            continue
        # Only the factors of layers are joined to hidden units, and these are dense.
        weights, (hidden,) = factor.parameters[0], hidden
        weights = (weights if ends[0] == k else weights.T).reshape(size, step, -1)
        normaliser, field = model.layers[hidden].log_normaliser, model.field(layers, hidden)

        def gained(unit: Any, normaliser: Any = normaliser, field: Array = field) -> Array:
            own, move = unit
            return jax.vmap(lambda m: normaliser(field + m @ own) - normaliser(field))(move)

        # So many units at a time, and recomputed for gradients: the fields of all may be too many.
        at_once = max(1, min(_FIELDS // max(1, field.size * number), size))
        each = (weights, moves.transpose(1, 2, 0, 3))
        found = jax.lax.map(jax.checkpoint(gained), each, batch_size=at_once)
        gains = gains + found.transpose(2, 0, 1)
    scores = jnp.concatenate([jnp.zeros((rows, size, 1), gains.dtype), gains], -1)
    return -jax.nn.logsumexp(scores, axis=-1).sum(-1)


def _free_energies(model: AbstractPlainModel, data: Any) -> Float[Array, " rows"]:
    """Of visible units, the hidden ones summed out; labels too, where data do not tell them."""
    _closed(model)
    parts = data if isinstance(data, (tuple, list)) else (data,)
    if len(parts) == 1 and len(model.variables.seen) > 1:
        return -jax.nn.logsumexp(label_scores(model, parts[0], "data"), axis=-1)
    return complete_energies(model, _seen(model, data))


def _seen(model: AbstractPlainModel, data: Any) -> Told:
    seen = seen_states(model, data, "data")
    rows = next(x.shape[0] for x in seen if x is not None)
    if model.batch_shape not in ((), (1,), (rows,)):
        raise ValueError(
            f"`model` must be a single model, or one for each of {rows} rows, got a batch of"
            f" {model.batch_shape}."
        )
    return seen


def label_scores(
    model: AbstractPlainModel, visible: AnyArray, name: str
) -> Float[Array, "rows labels"]:
    """Minus the free energy of visible units with each label, the states of the last layer that
    data tell.
    """
    _closed(model)
    first, *others = model.variables.seen
    units = model.layers[others[-1]] if others else model.layers[first]
    if len(others) != 1 or units.family != "categorical" or units.size != 1:
        refuse(model, "have visible units and one label")
    x = states_of(model.layers[first], name, visible, model.dtype)

    def score(label: Float[Array, " labels"]) -> Float[Array, " rows"]:
        rows = jnp.broadcast_to(label, (x.shape[0], units.width))
        states: list[Any] = [None] * len(model.layers)
        states[first], states[others[-1]] = x, rows
        return -complete_energies(model, tuple(states))

    return jax.vmap(score, out_axes=1)(jnp.eye(units.width, dtype=model.dtype))


def _closed(model: AbstractModel) -> None:
    if not is_closed(require_layers(model, "likelihoods")):
        refuse(model, "have hidden layers that are not joined")
