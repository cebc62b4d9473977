from dataclasses import KW_ONLY
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .. import _checks
from ..models import AbstractPlainModel
from ..models._require import require_numbered
from ..units import _random
from . import _moves
from ._base import AbstractSampler, ChainState, start_chains, tree_where
from ._moves import Layers


class PASInfo(NamedTuple):
    """Of each chain: the energy after the step, whether its path was accepted, and how many units
    it would have changed.
    """

    energy: Float[Array, " chains"]
    accepted: Float[Array, " chains"]
    length: Int[Array, " chains"]


class PAS(AbstractSampler):
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
        samples = ebmlearn.sample(model, ebmlearn.PAS(radius=5), 1000, key=0, burn_in=100)
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
        _checks.number("beta", self.beta, 0, float("inf"), "[0, inf)")

    def _check(self, model: Any) -> None:
        require_numbered(model, "PAS")

    def _start(
        self,
        model: AbstractPlainModel,
        num_chains: int,
        key: PRNGKeyArray,
        start: Any,
        clamped: Any,
    ) -> ChainState:
        return start_chains(model, num_chains, key, start, clamped)

    def _step(
        self, model: AbstractPlainModel, state: ChainState, key: PRNGKeyArray
    ) -> tuple[ChainState, PASInfo]:
        old = model.encode(state.units)
        chains, dtype = old[0].shape[0], old[0].dtype
        beta = jnp.asarray(self.beta, dtype)
        owners = _moves.owners(model)
        free = _moves.free(model, model.masks(state.clamped), chains)
        most = min(2 * self.radius - 1, len(set(owners.tolist())))
        one, two, three, four = jax.random.split(key, 4)

        def logits(layers: Layers, fields: Layers) -> Float[Array, "chains moves"]:
            out = beta / 2 * _moves.gains(model, layers, fields)
            return out if free is None else jnp.where(free[:, owners], out, -jnp.inf)

        lengths = jnp.zeros((chains, most), dtype)
        length = 1 + _random.choose(lengths, _random.choices(one, lengths.shape, dtype))
        if free is not None:
            length = jnp.minimum(length, free.sum(-1))
        fields = model.fields(old)
        there = logits(old, fields)
        # Units in the order of the path, then the state that each would move to.
        each = _moves.over_moves(model, there)
        noise = _random.choices(two, each.shape, dtype)
        path = _random.choose_several(each, noise, most)
        real = jnp.broadcast_to(jnp.arange(most), path.shape) < length[:, None]
        at = jnp.broadcast_to(jnp.arange(chains)[:, None], path.shape)
        changed = jnp.zeros(each.shape, bool).at[at, path].max(real)
        states = _moves.one_each(model, there, four, stay=False)
        new = _moves.moved(model, old, states * changed[:, owners].astype(dtype))
        new_fields = model.fields(new)

        def walk(a: Layers, b: Layers, fields: Layers, logits: Array, reverse: bool) -> Array:
            """The logarithm of the probability of the path from one end to the other: of each
            change, its share of all that could still be made.
            """
            each = _moves.over_moves(model, logits)
            rest = jax.nn.logsumexp(jnp.where(changed, -jnp.inf, each), axis=-1)
            own = jnp.where(real, each[at, path], -jnp.inf)
            # There, what comes later in the path can still be changed; back, what came before.
            later = jax.lax.cumlogsumexp(own, axis=1, reverse=not reverse)
            left = jnp.logaddexp(jnp.broadcast_to(rest[:, None], later.shape), later)
            gain = (beta / 2 * _moves.differences(model, a, b, fields))[at, path]
            return jnp.where(real, gain - left, jnp.zeros_like(gain)).sum(-1)

        forward = walk(old, new, fields, there, False)
        back = walk(new, old, new_fields, logits(new, new_fields), True)
        before, after = model.energies(old), model.energies(new)
        accepted = _random.accept(beta * (before - after) + back - forward, three)
        info = PASInfo(jnp.where(accepted > 0, after, before), accepted, length)
        return ChainState(model.decode(tree_where(accepted, new, old)), state.clamped), info
