from dataclasses import KW_ONLY
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .. import _checks
from ..factors import inner
from ..models import AbstractPlainModel, fields_of
from ..units import _random
from ._base import AbstractSingle, ChainState, tree_where
from ._unit_changes import AbstractMoving, Layers, Moves


class GibbsWithGradientsInfo(NamedTuple):
    """The energy of each chain after the step, and the share of its flips that were accepted.

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(16, 8)
        _, info = ebmlearn.sample_with_info(rbm, ebmlearn.GibbsWithGradients(4), 1000)
        info.accepted.mean()
        ```

    **Fields:**

    - `energy`: the energy.
    - `accepted`: the share.
    """

    energy: Float[Array, " chains"]
    accepted: Float[Array, " chains"]


class GibbsWithGradients(AbstractMoving, AbstractSingle):
    """Gibbs with gradients (Grathwohl et al. 2021): a change of one unit is proposed with a
    probability that grows with what it would gain, and accepted by the rule of Metropolis and
    Hastings.

    What a change gains is read from the gradient of the energy. That is exact for models of layers,
    whose energy is linear in any one unit, and a guess for an [`ebmlearn.EnergyModel`][]. A step is
    `flips` such proposals.

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(16, 8)
        samples = ebmlearn.sample(rbm, ebmlearn.GibbsWithGradients(4), 1000, burn_in=100)
        ```

    **Arguments:**

    - `flips`: how many changes are proposed in a step, one after the other.
    - `beta`: the inverse temperature.
    """

    flips: int = eqx.field(static=True, default=1)
    _: KW_ONLY
    beta: float | Float[Array, ""] = 1.0

    def __check_init__(self):
        _checks.count("flips", self.flips)

    def _step(
        self, model: AbstractPlainModel, state: ChainState, key: PRNGKeyArray
    ) -> tuple[ChainState, GibbsWithGradientsInfo]:
        layers = model.encode(state.units)
        dtype = model.dtype
        moves = Moves(model, state, self.beta)
        beta, number = moves.beta, len(moves.owners)

        def value(layers: Layers) -> Float[Array, " chains"]:
            """The log-potential, where it does not follow from the fields."""
            none = jnp.zeros(layers[0].shape[0], dtype)
            return none if model.exact else -beta * model.energies(layers)

        factors = model.factors()
        inside = inner(factors)
        alone = len(layers) == len(factors) == len(inside) == 1 and number == layers[0].shape[1]

        def flip(carry: tuple[Any, ...], key: PRNGKeyArray) -> tuple[Any, Array]:
            old, fields, total, score = carry
            one, two = jax.random.split(key)
            there = moves.logits(old, fields)
            move = _random.choose(there, _random.choices(one, there.shape, dtype))
            new = moves.made(old, jax.nn.one_hot(move, number, dtype=dtype))
            if alone:
                # In one layer, a flip changes the fields by a row of the couplings.
                change = (new[0] - old[0]).sum(-1, keepdims=True)
                new_fields = [fields[0] + change * inside[0].weights[move]]
            else:
                new_fields = fields_of(model, new)
            new_total = jax.nn.logsumexp(moves.logits(new, new_fields), axis=-1)
            # Where fields are exact, a flip there and the flip back have opposite logits, so that
            # what is left of the rule of Metropolis and Hastings is the ratio of their normalisers.
            ratio, new_score = total - new_total, value(new)
            if not model.exact:
                gain = moves.differences(old, new, fields).sum(-1)
                back = moves.differences(new, old, new_fields).sum(-1)
                ratio = ratio + new_score - score + beta / 2 * (back - gain)
            accepted = _random.accept(ratio, two)
            return tree_where(accepted, (new, new_fields, new_total, new_score), carry), accepted

        fields = fields_of(model, layers)
        total = jax.nn.logsumexp(moves.logits(layers, fields), axis=-1)
        carry = layers, fields, total, value(layers)
        (layers, *_), accepted = jax.lax.scan(flip, carry, jax.random.split(key, self.flips))
        info = GibbsWithGradientsInfo(model.energies(layers), accepted.mean(0))
        return ChainState(model.decode(layers), state.clamped), info
