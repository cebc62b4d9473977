from dataclasses import KW_ONLY
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .. import _checks
from ..models import AbstractPlainModel
from ..models._require import require_numbered
from ..units import _random
from . import _moves
from ._base import AbstractSampler, ChainState, start_chains, tree_where
from ._moves import Layers


class DMALAInfo(NamedTuple):
    """Of each chain: the energy after the step, and whether its proposal was accepted."""

    energy: Float[Array, " chains"]
    accepted: Float[Array, " chains"]


class DMALA(AbstractSampler):
    """The discrete Metropolis-adjusted Langevin algorithm (Zhang, Liu & Liu 2022): all units are
    proposed anew at once, each on its own, by what the gradient of the energy says of its states
    and a penalty on changes; the rule of Metropolis and Hastings accepts all of it or nothing.

    Unit $i$ in state $x_i$ moves to $y_i \\ne x_i$ with log-odds
    $\\tfrac12 f_i \\cdot (y_i - x_i) - 1 / (2 \\alpha)$, where $f$ is minus the gradient of the
    energy and $\\alpha$ is `step_size`. A larger step changes more units and is accepted less
    often; at an acceptance of about a half, chains move fastest.

    !!! example

        ```python
        sampler = ebmlearn.DMALA(step_size=0.2)
        samples, info = ebmlearn.sample(model, sampler, 1000, key=0, with_info=True)
        info.accepted.mean()
        ```

    **Arguments:**

    - `step_size`: how freely units change, $\\alpha$ above.
    - `beta`: the inverse temperature.
    """

    step_size: float | Float[Array, ""] = 0.2
    _: KW_ONLY
    beta: float | Float[Array, ""] = 1.0

    def __check_init__(self):
        _checks.number("step_size", self.step_size, 0, float("inf"), "(0, inf)")
        _checks.number("beta", self.beta, 0, float("inf"), "[0, inf)")

    def _check(self, model: Any) -> None:
        require_numbered(model, "DMALA")

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
    ) -> tuple[ChainState, DMALAInfo]:
        old = model.encode(state.units)
        dtype = model.dtype
        beta = jnp.asarray(self.beta, dtype)
        penalty = 1 / (2 * jnp.asarray(self.step_size, dtype))
        owners = _moves.owners(model)
        free = _moves.free(model, model.masks(state.clamped), old[0].shape[0])
        one, two = jax.random.split(key)

        def logits(layers: Layers, fields: Layers) -> Float[Array, "chains moves"]:
            """Of each move, against staying."""
            out = beta / 2 * _moves.gains(model, layers, fields) - penalty
            return out if free is None else jnp.where(free[:, owners], out, -jnp.inf)

        def normalisers(logits: Float[Array, "chains moves"]) -> Float[Array, "chains units"]:
            return jax.nn.softplus(_moves.over_moves(model, logits))

        fields = model.fields(old)
        there = logits(old, fields)
        new = _moves.moved(model, old, _moves.one_each(model, there, one, stay=True))
        new_fields = model.fields(new)
        changed = _changed(model, old, new)

        def path(a: Layers, b: Layers, fields: Layers) -> Float[Array, "chains units"]:
            gain = beta / 2 * _moves.differences(model, a, b, fields) - penalty
            return jnp.where(changed, gain, jnp.zeros_like(gain))

        forward = path(old, new, fields) - normalisers(there)
        back = path(new, old, new_fields) - normalisers(logits(new, new_fields))
        before, after = model.energies(old), model.energies(new)
        accepted = _random.accept(beta * (before - after) + (back - forward).sum(-1), two)
        info = DMALAInfo(jnp.where(accepted > 0, after, before), accepted)
        return ChainState(model.decode(tree_where(accepted, new, old)), state.clamped), info


def _changed(model: AbstractPlainModel, old: Layers, new: Layers) -> Array:
    """Which units have another state."""
    parts = []
    for a, b, units in zip(old, new, model.layers, strict=True):
        by_unit = (a != b).reshape(a.shape[0], units.size, units.width // max(units.size, 1))
        parts.append(by_unit.any(-1))
    return jnp.concatenate(parts, -1)
