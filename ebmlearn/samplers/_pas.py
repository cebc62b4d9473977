from dataclasses import KW_ONLY
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .. import _checks
from ..models import AbstractPlainModel, fields_of
from ..units import _random
from ._base import AbstractSingle, ChainState
from ._unit_changes import AbstractMoving, Layers, Moves


class PASInfo(NamedTuple):
    """Of each chain: the energy after the step, whether its path was accepted, and how many units
    it would have changed.

    !!! example

        ```python
        _, info = ebmlearn.sample_with_info(ebmlearn.RBM.init(16, 8), ebmlearn.PAS(), 1000)
        info.accepted.mean(), info.length.mean()
        ```

    **Fields:**

    - `energy`: the energy.
    - `accepted`: whether the path was accepted.
    - `length`: the number of changes of the path.
    """

    energy: Float[Array, " chains"]
    accepted: Float[Array, " chains"]
    length: Int[Array, " chains"]


class PAS(AbstractMoving, AbstractSingle):
    """The path auxiliary sampler (Sun et al. 2022): a step proposes a path of changes, each of
    another unit, with probabilities that grow with what a change would gain, and accepts where it
    ends by the rule of Metropolis and Hastings, as if it had come back the same way.

    This is the fast form of the paper, in which gains are read from the gradient of the energy at
    both ends of the path alone, so that a step costs two gradients however long the path is. Paths
    are of 1 to $2R - 1$ changes, each number as likely as another, where $R$ is `radius`. With a
    radius of 1 it is [`ebmlearn.GibbsWithGradients`][]. A larger radius changes more units and is
    accepted less often; an acceptance of 0.5 to 0.6 is about best (Sun et al. 2022b).

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(16, 8)
        samples = ebmlearn.sample(rbm, ebmlearn.PAS(radius=5), 1000, burn_in=100)
        ```

    **Arguments:**

    - `radius`: the mean length of a path; the longest has `2 * radius - 1` changes.
    - `beta`: the inverse temperature.
    """

    radius: int = eqx.field(static=True, default=5)
    _: KW_ONLY
    beta: float | Float[Array, ""] = 1.0

    def __check_init__(self):
        _checks.count("radius", self.radius)

    def _step(
        self, model: AbstractPlainModel, state: ChainState, key: PRNGKeyArray
    ) -> tuple[ChainState, PASInfo]:
        old = model.encode(state.units)
        chains, dtype = old[0].shape[0], old[0].dtype
        moves = Moves(model, state, self.beta)
        most = min(2 * self.radius - 1, len(set(moves.owners.tolist())))
        one, two, three, four = jax.random.split(key, 4)
        lengths = jnp.zeros((chains, most), dtype)
        length = 1 + _random.choose(lengths, _random.choices(one, lengths.shape, dtype))
        if moves.free is not None:
            length = jnp.minimum(length, moves.free.sum(-1))
        fields = fields_of(model, old)
        there = moves.logits(old, fields)
        # Units in the order of the path, then the state that each would move to.
        each = moves.by_unit(there)
        noise = _random.choices(two, each.shape, dtype)
        path = _random.choose_several(each, noise, most)
        real = jnp.broadcast_to(jnp.arange(most), path.shape) < length[:, None]
        at = jnp.broadcast_to(jnp.arange(chains)[:, None], path.shape)
        changed = jnp.zeros(each.shape, bool).at[at, path].max(real)
        states = moves.one_each(there, four, stay=False)
        new = moves.made(old, states * changed[:, moves.owners].astype(dtype))
        new_fields = fields_of(model, new)

        def walk(a: Layers, b: Layers, fields: Layers, logits: Array, reverse: bool) -> Array:
            """The logarithm of the probability of the path from one end to the other: of each
            change, its share of all that could still be made.
            """
            each = moves.by_unit(logits)
            rest = jax.nn.logsumexp(jnp.where(changed, -jnp.inf, each), axis=-1)
            own = jnp.where(real, each[at, path], -jnp.inf)
            # There, what comes later in the path can still be changed; back, what came before.
            later = jax.lax.cumlogsumexp(own, axis=1, reverse=not reverse)
            left = jnp.logaddexp(jnp.broadcast_to(rest[:, None], later.shape), later)
            gain = (moves.beta / 2 * moves.differences(a, b, fields))[at, path]
            return jnp.where(real, gain - left, jnp.zeros_like(gain)).sum(-1)

        forward = walk(old, new, fields, there, False)
        back = walk(new, old, new_fields, moves.logits(new, new_fields), True)
        state, energy, accepted = moves.accepted(state, old, new, back - forward, three)
        return state, PASInfo(energy, accepted, length)
