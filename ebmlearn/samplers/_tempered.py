from dataclasses import KW_ONLY
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .. import _checks
from ..inference import NUMBER
from ..models import AbstractModel, AbstractPlainModel, require_chains
from ..units import _random
from ._base import AbstractSingle, ChainState, ladder, no_improper, tree_where
from ._sweep import sweep


class TemperedTransitionsInfo(NamedTuple):
    """For each chain: the energy after the step, whether the proposal was accepted, and the log of
    the acceptance ratio.

    !!! example

        ```python
        sampler = ebmlearn.TemperedTransitions(jnp.linspace(0.5, 1, 11))
        _, info = ebmlearn.sample_with_info(ebmlearn.RBM.init(16, 8), sampler, 1000)
        info.accepted.mean()
        ```

    **Fields:**

    - `energy`: the energy.
    - `accepted`: whether the proposal was accepted.
    - `log_ratio`: the log of the acceptance ratio.
    """

    energy: Float[Array, " chains"]
    accepted: Float[Array, " chains"]
    log_ratio: Float[Array, " chains"]


class TemperedTransitions(AbstractSingle):
    """Tempered transitions (Neal 1996; Salakhutdinov 2009, Algorithm 2): a step heats the chains
    along a ladder of temperatures, cools them again, and accepts or rejects the result.

    On the way back each sweep visits layers and units in reverse order, which is necessary to keep
    the distribution invariant. A step costs twice as many sweeps as the ladder has intervals.

    !!! example

        ```python
        ebmlearn.TemperedTransitions(jnp.linspace(0.1, 1, 51))  # 50 intervals
        ```

    **Arguments:**

    - `betas`: inverse temperatures that increase to 1; the last is 1.
    - `sweeps`: the number of sweeps at each temperature, in each direction.
    """

    betas: tuple[float, ...] = eqx.field(metadata=NUMBER, converter=ladder)
    _: KW_ONLY
    sweeps: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        _checks.count("sweeps", self.sweeps)

    def _check(self, model: AbstractModel) -> None:
        no_improper(require_chains(model, "TemperedTransitions"), self.betas)

    def _step(
        self, model: AbstractPlainModel, state: ChainState, key: PRNGKeyArray
    ) -> tuple[ChainState, TemperedTransitionsInfo]:
        old = model.encode(state.units)
        clamp = model.variables.masks(state.clamped)
        dtype = model.dtype
        heating = jnp.asarray(self.betas[::-1], dtype)
        up, down, last = jax.random.split(key, 3)

        def run(layers: Any, beta: Float[Array, ""], key: PRNGKeyArray, reverse: bool) -> Any:
            keys = jax.random.split(key, self.sweeps)
            for k in range(self.sweeps):
                layers = sweep(model, layers, keys[k], beta.reshape(1, 1), reverse, clamp)
            return layers

        def heat(carry: Any, step: Any) -> Any:
            layers, ratio = carry
            before, beta, key = step
            ratio = ratio + (before - beta) * model.energies(layers)
            return (run(layers, beta, key, False), ratio), None

        def cool(carry: Any, step: Any) -> Any:
            layers, ratio = carry
            after, beta, key = step
            layers = run(layers, beta, key, True)
            return (layers, ratio + (beta - after) * model.energies(layers)), None

        number = len(self.betas) - 1
        none = jnp.zeros(old[0].shape[0], dtype)
        steps = heating[:-1], heating[1:], jax.random.split(up, number)
        (layers, ratio), _ = jax.lax.scan(heat, (old, none), steps)
        steps = heating[:-1][::-1], heating[1:][::-1], jax.random.split(down, number)
        (layers, ratio), _ = jax.lax.scan(cool, (layers, ratio), steps)
        accepted = _random.accept(ratio, last)
        layers = tree_where(accepted, layers, old)
        info = TemperedTransitionsInfo(model.energies(layers), accepted, ratio)
        return ChainState(model.decode(layers), state.clamped), info
