from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from .. import _checks
from .._types import Batch, Key
from ..estimate._likelihood import pseudo_log_likelihood_of
from ..inference import AbstractInference
from ..models import AbstractModel
from ..models._base import require, with_inside
from ._base import AbstractLearner, mean_field, Metric, Model, prediction_error, StepInfo


class PseudoLikelihood(AbstractLearner):
    """Maximum pseudo-likelihood (Besag 1975): maximises the probability of each visible unit given
    all others, with hidden units summed out. It needs neither log Z nor sampling. If the model
    cannot represent the data, the result differs from maximum likelihood.
    """

    def init(self, model: AbstractModel, *, key: Key) -> None:
        """Nothing: this learner carries no state."""
        return

    def trained(self, model: AbstractModel) -> PyTree[bool]:
        """The arrays that the model marks as trained."""
        return model.trained()

    def metric(self, model: AbstractModel) -> Metric | None:
        """The share of wrong visible units, if the model has features."""
        return prediction_error(self, model)

    def step(
        self,
        model: Model,
        state: PyTree,
        batch: Batch,
        *,
        key: Key,
        epoch: int | Int[Array, ""],
    ) -> tuple[Model, PyTree, StepInfo]:
        """The gradient of one step: see [`ebmlearn.AbstractLearner`][]."""
        model.check(batch)
        _checks.as_key(key)
        gradient, loss = _step(model, batch)
        nan, one = jnp.full_like(loss, jnp.nan), jnp.ones_like(loss)
        return gradient, state, StepInfo(loss, nan, one, jnp.zeros_like(loss), nan)

    def decoder(self, epoch: int | Int[Array, ""] = 0) -> AbstractInference:
        """Mean field."""
        return mean_field()


@eqx.filter_jit
def _step(model: Any, batch: Any) -> tuple[Any, Array]:
    def loss(model: Any) -> Array:
        given, seen, _ = model.observe(batch)
        require(given, ("binary",), "PseudoLikelihood")
        return -pseudo_log_likelihood_of(given, seen[0]).mean()

    value, gradient = jax.value_and_grad(loss)(model)
    # An edge is one parameter that stands at two places, each of which got half its gradient.
    return with_inside(gradient, lambda x: 2 * x), value
