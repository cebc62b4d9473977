from dataclasses import KW_ONLY
from typing import get_args, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from .. import _checks
from .._types import Key
from ..inference import AbstractInference, is_off, NUMBER
from ..models import (
    AbstractModel,
    AbstractPlainModel,
    complete,
    complete_energies,
    held_states,
    if_complete,
    require_single,
    Statistics,
    statistics,
    summed,
)
from ..samplers import PMP, PMPInfo, PMPState
from ._base import AbstractContrastive, Phases, Told


Hidden = Literal["sampled", "exact"]
# Samples whose messages still change by more than this have not settled.
_SETTLED = 1e-3


class PMPLearner(AbstractContrastive):
    """Learning from perturb-and-max-product samples (Lázaro-Gredilla, Dedieu & George 2021,
    Algorithm 1): samples of the hidden units given the data, and samples of the whole model.

    It learns parameters for which samples of [`ebmlearn.PMP`][] look like the data. These are not
    the parameters of maximum likelihood, so use `PMP` to sample from the learned model.

    !!! example

        ```python
        from ebmlearn import datasets

        data = datasets.digits().train.x
        learner = ebmlearn.PMPLearner(ebmlearn.PMP(20))
        ebmlearn.fit(ebmlearn.RBM.init(64, 8), learner, data, optimizer=optax.sgd(0.01), epochs=2)
        ```

    The reported loss is the approximate negative log-likelihood of eq. (3). The gradient is that of
    this loss if the samples are maxima of the perturbed models.

    **Arguments:**

    - `sampler`: a [`ebmlearn.PMP`][]. If its `renewal` is below 1, noise and messages persist from
      step to step.
    - `num_chains`: the number of samples of the model; by default the number of rows of a batch.
    - `hidden`: `"exact"` replaces samples of hidden units by their probabilities given the visible
      units (in a DBM, odd layers given even ones). It has less noise, and the experiments of the
      paper use it. `"sampled"` follows Algorithm 1 exactly. Hidden variables of a graph are always
      sampled.
    - `centred`, `weight_decay`: as for [`ebmlearn.CD`][].
    """

    sampler: PMP = PMP()
    _: KW_ONLY
    num_chains: int | None = eqx.field(static=True, default=None)
    hidden: Hidden = eqx.field(static=True, default="exact")
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(metadata=NUMBER, default=0.0)

    def __check_init__(self):
        _checks.instance("sampler", self.sampler, PMP, "a `PMP`", ": use `SAP` for other samplers")
        if self.num_chains is not None:
            _checks.count("num_chains", self.num_chains)
        elif not is_off(self.sampler.renewal, 1):
            raise ValueError("`num_chains` must be given if `renewal` is below 1, got None.")
        _checks.choice("hidden", self.hidden, get_args(Hidden))

    def init(self, model: AbstractModel, *, key: Key) -> PMPState | None:
        """Nothing, or noise and messages that persist."""
        if is_off(self.sampler.renewal, 1):
            return None
        assert self.num_chains is not None
        return self.sampler.init(model, self.num_chains, key=key)

    def phases(
        self, told: Told, state: PMPState | None, *, key: PRNGKeyArray, epoch: Int[Array, ""]
    ) -> tuple[Phases, PMPState | None]:
        one, two, three = jax.random.split(key, 3)
        model, begin = told.model, state
        if begin is None:
            own = model.batch_shape != () or self.num_chains is None
            number = told.rows if own else self.num_chains
            assert number is not None
            begin = self.sampler.init(model, number, key=one)
        else:
            require_single(model)
        end, info = self.sampler.step(model, begin, key=two)
        negative = self._statistics(model, end.units, info)
        positive, data = self._positive(told, three)
        loss = info.perturbed.mean() - data
        return Phases(positive, negative, loss), None if state is None else end

    def _positive(self, told: Told, key: PRNGKeyArray) -> tuple[Statistics, Float[Array, ""]]:
        """The statistics of the data, and their mean log-potential with hidden units summed out or,
        where these are sampled, the perturbed maximum over them.
        """
        model, seen, observed = told

        def formula() -> tuple[Statistics, Float[Array, ""]]:
            return complete(model, seen), -complete_energies(model, seen).mean()

        def sampled() -> tuple[Statistics, Float[Array, ""]]:
            one, two = jax.random.split(key)
            start, clamped = held_states(model, seen, observed)
            begin = self.sampler.holding(model, start, clamped, key=one)
            end, info = self.sampler.step(model, begin, key=two)
            return self._statistics(model, end.units, info), info.perturbed.mean()

        if self.hidden == "sampled" and model.variables.unseen:
            return sampled()
        return if_complete(model, observed, formula, sampled)

    def _statistics(self, model: AbstractPlainModel, units: PyTree, info: PMPInfo) -> Statistics:
        """The statistics of samples. Those that break a factor have not converged."""
        free = summed(model) if self.hidden == "exact" else ()
        out = statistics(model, model.encode(units), free)
        settled = (info.residual <= _SETTLED) & jnp.isfinite(info.energy)
        iterations = jnp.full(settled.shape, self.sampler.iterations, jnp.int32)
        return eqx.tree_at(
            lambda s: (s.converged, s.iterations, s.residual),
            out,
            (settled, iterations, info.residual),
        )

    def decoder(self, epoch: int | Int[Array, ""] = 0) -> AbstractInference:
        """The same max-product without noise."""
        return self.sampler.max_product()
