from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from .. import _checks
from ..estimate import pseudo_log_likelihood
from ..inference import AbstractInference, MeanField
from ..models import AbstractLayeredModel, CRBM
from ..samplers._base import binary_only
from ._base import AbstractLearner, at_epoch, Inference, StepInfo
from ._batch import check, conditioned, trainable


class PseudoLikelihood(AbstractLearner):
    """Maximum pseudo-likelihood (Besag 1975): each visible unit is to be likely given all others,
    hidden units summed out. No log Z, no sampling; for a model that is not right it gives another
    answer than maximum likelihood.
    """

    inference: Inference

    def __init__(self, inference: Inference | None = None):
        """**Arguments:**

        - `inference`: what to predict by; mean field if not given.
        """
        self.inference = MeanField(50, tol=1e-3) if inference is None else inference

    def __check_init__(self):
        at_epoch(self.inference, 0)

    def init(self, model: Any, *, key: PRNGKeyArray) -> None:
        """Nothing: this learner carries no state."""
        return

    def step(
        self,
        model: Any,
        state: PyTree,
        batch: Any,
        *,
        key: PRNGKeyArray,
        epoch: int | Int[Array, ""],
    ) -> tuple[Any, PyTree, StepInfo]:
        """One gradient, to be descended: see [`ebmlearn.AbstractLearner`][]."""
        trainable(model, self)
        check(model, batch)
        if not isinstance(model, (CRBM, AbstractLayeredModel)):
            got = _checks.describe(model)
            raise TypeError(f"`model` must be one of binary units for this learner, got {got}.")
        if not isinstance(model, CRBM):
            binary_only(model, "pseudo-likelihood")
        _checks.typed_key(key)
        gradient, loss = _step(model, batch)
        nan, one = jnp.full_like(loss, jnp.nan), jnp.ones_like(loss)
        return gradient, state, StepInfo(loss, nan, one, jnp.zeros_like(loss), nan)

    def decoder(self, epoch: int = 0) -> AbstractInference:
        """Mean field, unless another inference was given."""
        return at_epoch(self.inference, epoch)


@eqx.filter_jit
def _step(model: Any, batch: Any) -> tuple[Any, Array]:
    def loss(model: Any) -> Array:
        problem, visible = conditioned(model, batch)
        assert not isinstance(visible, tuple)
        return -pseudo_log_likelihood(problem, visible).mean()

    value, gradient = jax.value_and_grad(loss)(model)
    if hasattr(model, "couplings"):
        # An edge is one parameter that stands at two places, each of which got half its gradient.
        gradient = eqx.tree_at(lambda g: g.couplings, gradient, 2 * gradient.couplings)
    return gradient, value
