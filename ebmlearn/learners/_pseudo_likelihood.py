import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from .. import _checks
from .._types import Batch, Key
from ..estimate import pseudo_log_likelihood_of, require_conditionals
from ..inference import AbstractInference
from ..models import AbstractModel, with_inside
from ._base import (
    AbstractLearner,
    default_metric,
    mean_field,
    Metric,
    Model,
    require_reached,
    StepInfo,
    Told,
)


class PseudoLikelihood(AbstractLearner):
    """Maximum pseudo-likelihood (Besag 1975): each visible unit is to be likely given all others,
    hidden units summed out. No log Z, no sampling; for a model that is not right it gives another
    answer than maximum likelihood. Of a graph, data must tell all variables.

    !!! example

        ```python
        from ebmlearn import datasets

        data = datasets.digits().train.x
        ebmlearn.fit(ebmlearn.RBM.init(64, 8), ebmlearn.PseudoLikelihood(), data, epochs=2)
        ```
    """

    def init(self, model: AbstractModel, *, key: Key) -> None:
        """Nothing: this learner carries no state."""
        require_reached(model, self)

    def trained(self, model: AbstractModel) -> PyTree[bool]:
        """The arrays that the model marks as trained."""
        return model.trained()

    def metric(self, model: AbstractModel) -> Metric | None:
        """The share of wrong visible units, or minus the pseudo-likelihood."""
        return default_metric(self, model)

    def step(
        self, model: Model, state: PyTree, batch: Batch, *, key: Key, epoch: int | Int[Array, ""]
    ) -> tuple[Model, PyTree, StepInfo]:
        """The gradient of one step: see [`ebmlearn.learners.AbstractLearner`][]."""
        model.check(batch)
        _checks.as_key(key)
        gradient, loss = _step(self, model, model.as_batch(batch))
        nan = jnp.full_like(loss, jnp.nan)
        return gradient, state, StepInfo(loss, nan, nan, jnp.zeros_like(loss), nan)

    def decoder(self, epoch: int | Int[Array, ""] = 0) -> AbstractInference:
        """Mean field."""
        return mean_field()


@eqx.filter_jit
def _step(learner: PseudoLikelihood, model: Model, batch: Batch) -> tuple[Model, Array]:
    def loss(model: Model) -> Array:
        told = Told.by(model, batch)
        require_conditionals(told.model, "PseudoLikelihood")
        told.no_gaps(learner)
        return -pseudo_log_likelihood_of(told.model, told.seen, told.observed).mean()

    # By filter: the wires of a graph are integers.
    value, gradient = eqx.filter_value_and_grad(loss)(model)
    # An edge is one parameter that stands at two places, each of which got half its gradient.
    return with_inside(gradient, lambda x: 2 * x), value
