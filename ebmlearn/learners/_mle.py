from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..inference import AbstractInference
from ..inference._posterior import posterior
from ..models import AbstractLayeredModel
from ..models._graph import AbstractGraphModel
from ._base import AbstractMemoryless, at_epoch, Inference, Phases
from ._cost import free_energy


class MLE(AbstractMemoryless):
    """Maximum likelihood, its intractable expectation by an inference: MLE-BP and MLE-MF of Ping &
    Ihler 2017 (eq. (5)), exact maximum likelihood with [`ebmlearn.Exact`][], and for a CRBM without
    hidden units logistic regression, whose marginals any inference finds in a sweep.

    The gradient is the expected statistics given the data less those of the model. The first are
    exact but for a DBM or a FactorGraphModel, where the inference finds them with what is observed
    held.

    !!! example

        ```python
        ebmlearn.MLE(ebmlearn.BP(iterations=10))
        ebmlearn.MLE(lambda epoch: ebmlearn.BP(7 + epoch, tol=1e-3))  # more sweeps each epoch
        ```
    """

    inference: Inference
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(static=True, default=0.0)
    loss: bool = eqx.field(static=True, default=False)
    on_graphs: ClassVar[bool] = True

    def __init__(
        self,
        inference: Inference,
        centred: bool = False,
        weight_decay: float = 0.0,
        loss: bool = False,
    ):
        """**Arguments:**

        - `inference`: an inference of marginals, or a function from the epoch to one.
        - `centred`: follow the gradient of the centred energy instead.
        - `weight_decay`: the strength of a penalty $\\tfrac12 \\lambda |W|^2$ on all weights.
        - `loss`: report the negative log-likelihood, with the inference's own log Z. It costs a
          second run of the inference.
        """
        self.inference = inference
        self.centred = centred
        self.weight_decay = weight_decay
        self.loss = loss

    def __check_init__(self):
        at_epoch(self.inference, 0, "sum")

    def sides(
        self,
        model: AbstractLayeredModel | AbstractGraphModel,
        visible: Float[Array, "batch visible"] | Int[Array, "batch variables"],
        *,
        key: PRNGKeyArray,
        epoch: Int[Array, ""],
    ) -> Phases:
        inference: Any = at_epoch(self.inference, epoch, "sum")
        positive = posterior(model, visible, inference)
        negative = inference.statistics(model)
        loss = jnp.asarray(jnp.nan, model.unary()[0].dtype)
        if self.loss:
            data = free_energy(model, visible, inference).mean()
            loss = data + inference(model).log_partition.mean()
        return Phases(positive, negative, loss)

    def decoder(self, epoch: int = 0) -> AbstractInference:
        """The inference of that epoch: marginals."""
        return at_epoch(self.inference, epoch, "sum")
