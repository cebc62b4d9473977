from dataclasses import KW_ONLY
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .. import _checks
from ..models import AbstractLayeredModel
from ..models._base import require
from ..units import _random
from ._base import AbstractSampler, ChainState, masks, start_chains, tree_where


class GibbsWithGradientsInfo(NamedTuple):
    """The energy of each chain after the step, and the share of its flips that were accepted."""

    energy: Float[Array, " chains"]
    accepted: Float[Array, " chains"]


class GibbsWithGradients(AbstractSampler):
    """Gibbs with gradients (Grathwohl et al. 2021). It proposes to flip one unit, with a higher
    probability the more the flip lowers the energy, and accepts by the Metropolis-Hastings rule.

    The gradient of the energy gives the change of each flip. This is exact here, because the energy
    is linear in each single unit. A step makes `flips` such proposals.
    """

    flips: int = eqx.field(static=True, default=1)
    _: KW_ONLY
    beta: float | Float[Array, ""] = 1.0

    def __check_init__(self):
        _checks.count("flips", self.flips)
        _checks.number("beta", self.beta, 0, float("inf"), "[0, inf)")

    def _check(self, model: Any) -> None:
        require(model, ("binary",), "GibbsWithGradients")

    def _start(
        self,
        model: AbstractLayeredModel,
        num_chains: int,
        key: PRNGKeyArray,
        start: Any,
        clamped: Any,
    ) -> ChainState:
        return start_chains(model, num_chains, key, start, clamped)

    def _step(
        self, model: AbstractLayeredModel, state: ChainState, key: PRNGKeyArray
    ) -> tuple[ChainState, GibbsWithGradientsInfo]:
        layers = model.encode(state.units)
        sizes = [x.shape[-1] for x in layers]
        dtype = layers[0].dtype
        beta = jnp.asarray(self.beta, dtype)
        held = masks(state.clamped)
        fixed = None
        if held is not None:
            parts = [
                jnp.zeros(x.shape, bool) if mask is None else mask
                for x, mask in zip(layers, held, strict=True)
            ]
            fixed = jnp.concatenate(parts, -1)

        def cut(x: Float[Array, "chains n"]) -> list[Float[Array, "chains _"]]:
            ends = [sum(sizes[: k + 1]) for k in range(len(sizes) - 1)]
            return jnp.split(x, ends, axis=-1)

        def fields(x: Float[Array, "chains n"]) -> Float[Array, "chains n"]:
            """The log-odds of every unit given all others."""
            cuts = cut(x)
            return jnp.concatenate([model.field(cuts, k) for k in range(len(cuts))], -1)

        def logits(x: Float[Array, "chains n"], given: Array) -> Float[Array, "chains n"]:
            """Of each flip, half of what it adds to the log-potential."""
            out = beta / 2 * (1 - 2 * x) * given
            return out if fixed is None else jnp.where(fixed, -jnp.inf, out)

        blocks = model.blocks()
        alone = len(sizes) == len(blocks) == 1

        def flip(carry: tuple[Array, Array, Array], key: PRNGKeyArray) -> tuple[Any, Array]:
            x, given, total = carry
            one, two = jax.random.split(key)
            gumbels = _random.choices(one, x.shape, dtype)
            unit = _random.choose(logits(x, given), gumbels)
            at = jax.nn.one_hot(unit, x.shape[-1], dtype=dtype)
            change = at * (1 - 2 * x)
            new = x + change
            # In one layer, a flip changes the fields by a row of the couplings.
            rows = change.sum(-1, keepdims=True) * blocks[0].weights[unit] if alone else None
            new_given = fields(new) if rows is None else given + rows
            new_total = jax.nn.logsumexp(logits(new, new_given), axis=-1)
            # A flip there and the flip back have opposite logits, so that what is left of the rule
            # of Metropolis and Hastings is the ratio of their normalisers.
            accepted = _random.accept(total - new_total, two)
            carry = tree_where(accepted, (new, new_given, new_total), carry)
            return carry, accepted

        x = jnp.concatenate(layers, -1)
        given = fields(x)
        carry = x, given, jax.nn.logsumexp(logits(x, given), axis=-1)
        (x, _, _), accepted = jax.lax.scan(flip, carry, jax.random.split(key, self.flips))
        layers = cut(x)
        info = GibbsWithGradientsInfo(model.energies(layers), accepted.mean(0))
        return ChainState(model.decode(layers), state.clamped), info


GibbsWithGradients.__init__.__doc__ = """**Arguments:**

- `flips`: the number of flips that a step proposes.
- `beta`: the inverse temperature.
"""
