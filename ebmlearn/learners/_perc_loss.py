from dataclasses import KW_ONLY

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .. import _checks
from ..inference import AbstractInference, NUMBER
from ..models import AbstractLayeredModel, require
from ..samplers import sweep
from ._base import AbstractContrastive, AbstractMemoryless, mean_field, Phases, Told


class PercLoss(AbstractMemoryless, AbstractContrastive):
    """CD-PercLoss (Mnih, Larochelle & Hinton 2011): a stochastic search for visible units that the
    model prefers to the data, and a perceptron step away from them.

    A chain of `k` Gibbs sweeps starts from the model without hidden units; for a CRBM this is its
    logistic regression. Each sweep proposes the most likely visible units given the hidden units of
    the chain, and $\\hat v$ is the proposal of lowest free energy. The loss of an instance is
    $\\max(0, F(v) - F(\\hat v))$; it is zero if no proposal is better than the data.

    **Arguments:**

    - `k`: the number of sweeps.
    - `centred`, `weight_decay`: as for [`ebmlearn.CD`][].
    """

    k: int = eqx.field(static=True, default=10)
    _: KW_ONLY
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(metadata=NUMBER, default=0.0)

    def __check_init__(self):
        _checks.count("k", self.k)

    def phases(
        self, told: Told, state: None, *, key: PRNGKeyArray, epoch: Int[Array, ""]
    ) -> tuple[Phases, None]:
        model = require(told.model, ("binary",), "PercLoss")
        told.one_visible(self)
        if not model.is_closed:
            kind = _checks.article(type(model).__name__)
            raise ValueError(f"`model` must have a closed free energy, got {kind}.")
        (visible,) = told.seen
        found, lowest = _search(model, told.rows, self.k, key)
        data = model.complete_energies(told.seen)
        # Where nothing better was found both sides are the same, and cancel.
        better = lowest < data
        rival = jnp.where(better[:, None], found, visible)
        loss = jnp.maximum(data - lowest, jnp.zeros_like(data)).mean()
        return Phases(model.complete(told.seen), model.complete((rival,)), loss), None

    def decoder(self, epoch: int | Int[Array, ""] = 0) -> AbstractInference:
        """Mean field, as in the paper."""
        return mean_field()


def _search(
    model: AbstractLayeredModel, size: int, k: int, key: PRNGKeyArray
) -> tuple[Float[Array, "batch visible"], Float[Array, " batch"]]:
    """The visible units of lowest free energy, among the most likely ones given the hidden units of
    each sweep and at the start, and that free energy.
    """
    first, rest = jax.random.split(key)
    keys = jax.random.split(rest, k)
    units = model.layers[0]
    bias = model.unary()[0]
    field = jnp.broadcast_to(bias, (size, bias.shape[-1]))
    layers = model.filled((units.sample(field, first),))
    found = units.mode(field)

    def one(i: Int[Array, ""], carry: tuple) -> tuple:
        layers, found, lowest = carry
        layers = sweep(model, layers, keys[i])
        candidate = units.mode(model.field(layers, 0))
        value = model.complete_energies((candidate,))
        found = jnp.where((value < lowest)[:, None], candidate, found)
        return layers, found, jnp.minimum(value, lowest)

    start = layers, found, model.complete_energies((found,))
    _, found, lowest = jax.lax.fori_loop(0, k, one, start)
    return found, lowest
