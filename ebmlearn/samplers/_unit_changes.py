"""Changes of single units in all layers: how much each would gain, and how they are made.

A move takes one unit to one of its other states. The moves of all units lie along one axis, those
of a unit beside each other.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .. import _checks
from ..models import AbstractModel, AbstractPlainModel, require_numbered
from ..units import _random
from ._base import AbstractSampler, ChainState, tree_where
from ._sweep import joined, Layers


class AbstractMoving(AbstractSampler):
    """A sampler that proposes moves by the gradient of the energy."""

    beta: eqx.AbstractVar[float | Float[Array, ""]]

    def __check_init__(self):
        _checks.number("beta", self.beta, 0, float("inf"), "[0, inf)")

    def _check(self, model: AbstractModel) -> None:
        require_numbered(model, type(self).__name__)


class Moves:
    """The moves of chains of a model at an inverse temperature, where each has a penalty.

    - `owners`: which unit each move changes, all layers being numbered on.
    - `free`: which units may change, `[chains, units]`; None if all may.
    """

    def __init__(
        self,
        model: AbstractPlainModel,
        state: ChainState,
        beta: float | Float[Array, ""],
        penalty: float | Float[Array, ""] = 0.0,
    ):
        self.model, self.kinds = model, tuple[Any, ...](model.layers)
        self.beta, self.penalty = jnp.asarray(beta, model.dtype), jnp.asarray(penalty, model.dtype)
        others = np.concatenate([np.full(units.size, units.number - 1) for units in self.kinds])
        self.owners = np.repeat(np.arange(len(others)), others)
        chains = jax.tree.leaves(state.units)[0].shape[0]
        held = joined(model, model.variables.masks(state.clamped), chains)
        self.free = None if held is None else ~held

    def logits(self, layers: Layers, fields: Layers) -> Float[Array, "chains moves"]:
        """Of each move, half of what it adds to the log-potential as fields tell it, less the
        penalty.
        """
        parts = []
        for change, field in zip(self._changes(layers), fields, strict=True):
            by_unit = field.reshape(*change.shape[:2], 1, change.shape[3])
            gain = (change * jnp.broadcast_to(by_unit, change.shape)).sum(-1)
            parts.append(_flat(gain))
        out = self.beta / 2 * jnp.concatenate(parts, -1) - self.penalty
        return out if self.free is None else jnp.where(self.free[:, self.owners], out, -jnp.inf)

    def made(
        self, layers: Layers, chosen: Float[Array, "chains moves"]
    ) -> list[Float[Array, "chains _"]]:
        """The states after all moves at which `chosen` is 1, at most one of each unit."""
        out = []
        parts = zip(layers, self._changes(layers), self._by_layer(chosen), strict=True)
        for x, change, own in parts:
            moved = change * jnp.broadcast_to(own[..., None], change.shape)
            out.append(x + moved.sum(2).reshape(x.shape))
        return out

    def differences(self, old: Layers, new: Layers, fields: Layers) -> Float[Array, "chains units"]:
        """The gain of moving each unit from its old state to its new one, by the fields."""
        parts = []
        for a, b, field, units in zip(old, new, fields, self.kinds, strict=True):
            gain = (b - a) * field
            parts.append(gain.reshape(*a.shape[:1], units.size, _columns(units)).sum(-1))
        return jnp.concatenate(parts, -1)

    def changed(self, old: Layers, new: Layers) -> Array:
        """Which units have another state."""
        parts = [
            (a != b).reshape(*a.shape[:1], units.size, _columns(units)).any(-1)
            for a, b, units in zip(old, new, self.kinds, strict=True)
        ]
        return jnp.concatenate(parts, -1)

    def by_unit(self, logits: Float[Array, "chains moves"]) -> Float[Array, "chains units"]:
        """The logarithm of the sum of exponentials over the moves of each unit."""
        # Of two states, there is one to move to; of one, none.
        sums = {0: lambda x: jnp.full(x.shape[:2], -jnp.inf, x.dtype), 1: lambda x: x[..., 0]}
        out = [
            sums.get(part.shape[2], lambda x: jax.nn.logsumexp(x, axis=-1))(part)
            for part in self._by_layer(logits)
        ]
        return jnp.concatenate(out, -1)

    def one_each(
        self, logits: Float[Array, "chains moves"], key: PRNGKeyArray, stay: bool
    ) -> Float[Array, "chains moves"]:
        """1 for one move of each unit, drawn by its logits; or none, where units may stay, whose
        logit is 0.
        """
        parts, out = self._by_layer(logits), []
        for part, own in zip(parts, jax.random.split(key, len(parts)), strict=True):
            others = part.shape[2]
            if others < 2:
                out.append(
                    _random.decided(_flat(part), own) if stay else jnp.ones_like(_flat(part))
                )
                continue
            if stay:
                part = jnp.concatenate([jnp.zeros((*part.shape[:2], 1), part.dtype), part], -1)
            state = _random.choose(part, _random.choices(own, part.shape, part.dtype))
            made = jax.nn.one_hot(state, part.shape[-1], dtype=part.dtype)[..., -others:]
            out.append(_flat(made))
        return jnp.concatenate(out, -1)

    def accepted(
        self, state: ChainState, old: Layers, new: Layers, log_ratio: Array, key: PRNGKeyArray
    ) -> tuple[ChainState, Float[Array, " chains"], Float[Array, " chains"]]:
        """Accepts new states or keeps the old ones by the rule of Metropolis and Hastings, where
        `log_ratio` is that of the proposals back and forth. Returns the state of the chains, their
        energies, and whether each was accepted.
        """
        before, after = self.model.energies(old), self.model.energies(new)
        accepted = _random.accept(self.beta * (before - after) + log_ratio, key)
        units = self.model.decode(tree_where(accepted, new, old))
        energy = jnp.where(accepted > 0, after, before)
        return ChainState(units, state.clamped), energy, accepted

    def _changes(self, layers: Layers) -> list[Float[Array, "chains n others _"]]:
        """From the state of each unit to each of its others."""
        out = []
        for units, x in zip(self.kinds, layers, strict=True):
            others = units.others(x)
            own = x.reshape(*others.shape[:2], 1, others.shape[3])
            out.append(others - jnp.broadcast_to(own, others.shape))
        return out

    def _by_layer(self, x: Float[Array, "chains moves"]) -> list[Float[Array, "chains n others"]]:
        """Numbers of all moves, by layer and unit."""
        out, at = [], 0
        for units in self.kinds:
            others = units.number - 1
            part = x[:, at : at + units.size * others]
            out.append(part.reshape(x.shape[0], units.size, others))
            at += units.size * others
        return out


def _flat(x: Float[Array, "chains n others"]) -> Float[Array, "chains moves"]:
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2])


def _columns(units: Any) -> int:
    """How many columns of a layer belong to a unit."""
    return units.width // max(units.size, 1)
