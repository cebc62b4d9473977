from dataclasses import KW_ONLY
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from .. import _checks
from .._types import Key
from ..inference import NUMBER
from ..models import AbstractModel, refuse, require_fields
from ..samplers import AbstractSampler, after_steps, Gibbs, require_sampler
from ._base import (
    AbstractContrastive,
    AbstractInferring,
    as_schedule,
    Inference,
    mean_field,
    Phases,
    Told,
)
from ._sap import start


class MCMCMLEState(NamedTuple):
    """The chains, the model they were drawn from, and how many updates there were."""

    chains: PyTree
    reference: Any
    updates: Int[Array, ""]


class MCMCMLE(AbstractInferring, AbstractContrastive):
    """Markov chain Monte Carlo maximum likelihood (Geyer 1991; Salakhutdinov 2009, section 2.2). It
    draws configurations from a reference model $\\theta_0$ and weights them by
    $p_\\theta(x) / p_{\\theta_0}(x)$ while the model $\\theta$ changes. With each update fewer
    configurations carry the weight, so they must be drawn again from time to time; `info.accepted`
    is the share that effectively counts.

    !!! example

        ```python
        ebmlearn.MCMCMLE(num_chains=1000, steps=1000, refresh=1000)
        ```

    **Arguments:**

    - `sampler`: the sampler of the configurations; Gibbs by default.
    - `num_chains`: the number of configurations, one from each chain.
    - `steps`: the number of steps of the sampler before the configurations are taken. The chains
      continue from their last states.
    - `refresh`: the number of updates after which configurations are drawn again; None draws them
      only once, before the first update.
    - `inference`, `centred`, `weight_decay`: as for [`ebmlearn.SAP`][].
    """

    sampler: AbstractSampler = eqx.field(default_factory=Gibbs)
    _: KW_ONLY
    num_chains: int = eqx.field(static=True, default=100)
    steps: int = eqx.field(static=True, default=1000)
    refresh: int | None = eqx.field(static=True, default=1000)
    inference: Inference = eqx.field(default_factory=mean_field, converter=as_schedule)
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(metadata=NUMBER, default=0.0)
    maximises: ClassVar[str] = "nothing"

    def __check_init__(self):
        require_sampler(self.sampler)
        _checks.count("num_chains", self.num_chains)
        _checks.count("steps", self.steps)
        if self.refresh is not None:
            _checks.count("refresh", self.refresh)

    def init(self, model: AbstractModel, *, key: Key) -> MCMCMLEState:
        """The chains, at random states; the first step moves them."""
        chains = start(model, self.sampler, self.num_chains, key)
        if not require_fields(model, "MCMCMLE").finite:
            refuse(model, "have units of finitely many states for MCMCMLE")
        return MCMCMLEState(chains, model, jnp.zeros((), jnp.int32))

    def phases(
        self, told: Told, state: MCMCMLEState, *, key: PRNGKeyArray, epoch: Int[Array, ""]
    ) -> tuple[Phases, MCMCMLEState]:
        model, (chains, reference, updates) = require_fields(told.model, "MCMCMLE"), state
        due = updates == 0 if self.refresh is None else updates % self.refresh == 0

        def draw(chains: PyTree, reference: Any) -> tuple[PyTree, Any]:
            return after_steps(self.sampler, model, chains, key, self.steps), model

        chains, reference = jax.lax.cond(due, draw, lambda *kept: kept, chains, reference)
        layers = model.encode(chains.units)
        moved = reference.marginal_energies(layers) - model.marginal_energies(layers)
        weights = jax.nn.softmax(moved)
        negative = model.conditional_statistics(layers, model.summed, weights)
        positive = told.posterior(self.decoder(epoch))
        effective = 1 / (self.num_chains * (weights**2).sum())
        phases = Phases(positive, negative, accepted=effective)
        return phases, MCMCMLEState(chains, reference, updates + 1)
