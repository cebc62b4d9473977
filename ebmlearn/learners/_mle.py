from dataclasses import KW_ONLY
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._types import Batch
from ..inference import BP, NUMBER
from ..models import AbstractModel
from ._base import (
    AbstractContrastive,
    AbstractInferring,
    AbstractMemoryless,
    as_schedule,
    Inference,
    Metric,
    Phases,
    Told,
)


class MLE(AbstractMemoryless, AbstractInferring, AbstractContrastive):
    """Maximum likelihood with an inference for the intractable expectation: MLE-BP and MLE-MF of
    Ping & Ihler 2017 (eq. (5)), or exact maximum likelihood with [`ebmlearn.Exact`][]. For a CRBM
    without hidden units it is logistic regression, and any inference is exact after one sweep.

    The gradient is the difference of the expected statistics given the data and those of the model.
    Those given the data are exact, except for a DBM, a graph or missing values: there the inference
    estimates them with the observed units fixed.

    !!! example

        ```python
        ebmlearn.MLE(ebmlearn.BP(10))
        ebmlearn.MLE(lambda epoch: ebmlearn.BP(7 + epoch, tol=1e-3))  # more sweeps each epoch
        ```

    **Arguments:**

    - `inference`: an inference of marginals, or a function from the epoch to one; `BP()` by
      default.
    - `centred`: follow the gradient of the centred energy instead.
    - `weight_decay`: the strength of a penalty $\\tfrac12 \\lambda |W|^2$ on all weights.
    - `loss`: whether to report the negative log-likelihood, with the inference's estimate of log Z.
      It costs a second run of the inference.
    """

    inference: Inference = eqx.field(converter=as_schedule, default=BP())
    _: KW_ONLY
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(metadata=NUMBER, default=0.0)
    loss: bool = eqx.field(static=True, default=False)
    maximises: ClassVar[str] = "nothing"

    def phases(
        self, told: Told, state: None, *, key: PRNGKeyArray, epoch: Int[Array, ""]
    ) -> tuple[Phases, None]:
        inference = self.decoder(epoch)
        phases = Phases(told.posterior(inference), inference.statistics(told.model))
        if self.loss:
            data = told.free_energy(inference).mean()
            phases = phases._replace(loss=data + inference(told.model).log_partition.mean())
        return phases, None

    def metric(self, model: AbstractModel) -> Metric | None:
        """The share of wrong visible units, minus the pseudo-likelihood, or minus the likelihood by
        the inference, if it knows log Z.
        """
        found = super().metric(model)
        if found is not None:
            return found
        try:
            eqx.filter_eval_shape(lambda m: self.decoder()(m).log_partition, model)
        except (NotImplementedError, TypeError):
            return None
        return _MinusLikelihood(self)


class _MinusLikelihood(eqx.Module):
    """The mean negative log-likelihood, with the inference's estimate of log Z."""

    learner: MLE

    def __call__(self, model: AbstractModel, validation: Any, epoch: Any) -> Float[Array, ""]:
        return self._of(model, model.as_batch(validation), jnp.asarray(epoch, jnp.int32))

    @eqx.filter_jit
    def _of(self, model: AbstractModel, batch: Batch, epoch: Int[Array, ""]) -> Float[Array, ""]:
        told, inference = Told.by(model, batch), self.learner.decoder(epoch)
        return told.free_energy(inference).mean() + inference(told.model).log_partition.mean()
