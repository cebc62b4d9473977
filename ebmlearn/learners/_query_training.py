import operator
import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from .. import _checks
from .._types import Batch, Key
from ..estimate import cross_entropy, independent_entropy, mean_entropy
from ..inference import AbstractInference, Network
from ..models import AbstractModel, QueryModel
from ..queries import AbstractQueries, as_queries, check_told, draw, RandomTargets
from ._base import AbstractComparedMetric, AbstractLearner, Metric, Model, only, StepInfo


# What a query model learns beside its parameters, if it should.
_NUMBERS = ("temperature", "scale", "strength")


def _half_if_none(queries: AbstractQueries | Callable | None) -> AbstractQueries:
    return RandomTargets(0.5) if queries is None else as_queries(queries)


class QueryTraining(AbstractLearner):
    """Query training (Lázaro-Gredilla et al. 2021). Each step draws a query for each row of data,
    that is, which units are evidence and which are targets. It answers the queries by belief
    propagation and lowers the cross-entropy of the targets. The trained model answers queries about
    any units given any others, with the inference it was trained with.

    A unit that is NaN in a row of data is neither evidence nor target in that row.

    With one target, no hidden units, `scale=1` and strong evidence this is pseudo-likelihood.

    !!! example

        ```python
        from ebmlearn import datasets

        digits = datasets.digits()
        learner = ebmlearn.QueryTraining(ebmlearn.queries.RandomTargets(0.5))
        model = ebmlearn.QueryModel(ebmlearn.RBM.init(64, 8))
        fitted = ebmlearn.fit(model, learner, digits.train.x, optimizer=optax.adam(1e-2), epochs=2)
        ebmlearn.query(fitted.model, digits.test.x[0], observed=jnp.arange(64) < 32)
        ```

    **Arguments:**

    - `queries`: a distribution of queries, `RandomTargets(0.5)` by default, or a function: see
      [`ebmlearn.queries.AbstractQueries`][].
    - `iterations`: the number of message updates in training; by default that of the model.
    - `temperature`, `scale`, `strength`: whether these numbers of the [`ebmlearn.QueryModel`][] are
      learned; otherwise they stay at their initial values.
    """

    queries: AbstractQueries = eqx.field(default=None, converter=_half_if_none)
    _: KW_ONLY
    iterations: int | None = eqx.field(static=True, default=None)
    temperature: bool = eqx.field(static=True, default=True)
    scale: bool = eqx.field(static=True, default=True)
    strength: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        if self.iterations is not None:
            _checks.count("iterations", self.iterations)
        for name in _NUMBERS:
            _checks.instance(name, getattr(self, name), bool, "a boolean")

    def init(self, model: AbstractModel, *, key: Key) -> None:
        """Nothing: this learner carries no state."""
        model = _checked(model)
        if self.iterations not in (None, model.iterations):
            warnings.warn(
                f"The model is trained with {self.iterations} iterations but answers with"
                f" {model.iterations}: give `QueryModel` the same number.",
                stacklevel=2,
            )

    def step(
        self, model: Model, state: PyTree, batch: Batch, *, key: Key, epoch: int | Int[Array, ""]
    ) -> tuple[Model, PyTree, StepInfo]:
        """The gradient of one step: see [`ebmlearn.learners.AbstractLearner`][]. The loss is the
        mean over targets, in nats.
        """
        seen = self._seen(model, batch)
        gradient, loss, settled = _step(self, model, seen, _checks.as_key(key))
        nan = jnp.full_like(loss, jnp.nan)
        sweeps = jnp.full_like(loss, self.iterations or _checked(model).iterations)
        return gradient, state, StepInfo(loss, nan, settled, sweeps, nan)

    def _seen(self, model: AbstractModel, batch: Batch) -> PyTree:
        """What a batch tells, checked."""
        model = _checked(model)
        check_told(self.queries, model, batch)
        _, seen, _ = model.observe(batch)
        return seen

    def trained(self, model: AbstractModel) -> PyTree[bool]:
        """The parameters, and those of the three numbers that are learned."""
        out = model.trained()
        for name in _NUMBERS:
            own = operator.attrgetter(f"log_{name}")
            if own(model) is not None:
                out = eqx.tree_at(own, out, getattr(self, name))
        return out

    def metric(self, model: AbstractModel) -> Metric:
        """The cross-entropy on a fixed set of queries, in bits."""
        return _Entropy(self.queries)

    def decoder(self, epoch: int | Int[Array, ""] = 0) -> AbstractInference:
        """The inference of the model itself."""
        return Network(iterations=self.iterations)

    def loss(self, model: QueryModel, batch: Batch, *, key: Key) -> Float[Array, ""]:
        """The cross-entropy of the targets of a batch in nats, on average over them."""
        return _loss(model, self, self._seen(model, batch), _checks.as_key(key))[0]


class _Entropy(AbstractComparedMetric):
    """The cross-entropy on a fixed set of queries. Metrics of equal queries are equal. The model
    answers with its own number of iterations, not with that of training. The simple model is one of
    independent units.
    """

    queries: AbstractQueries
    network: Network = Network()

    def __call__(self, model: AbstractModel, validation: Any, epoch: Any) -> Float[Array, ""]:
        return mean_entropy(_checked(model), validation, self.queries, self.network, key=0)

    def simple(self, model: AbstractModel, data: Any, validation: Any) -> float:
        return independent_entropy(_checked(model), data, validation, self.queries, key=0)

    def worse(self, value: float, simple: float) -> str:
        return (
            f"The validation loss has risen to {value:.3g} bits, above the {simple:.3g} bits of"
            " independent units: use fewer steps (`patience` stops in time), a smaller learning"
            " rate or weight decay (`optax.adamw`)."
        )


def _checked(model: AbstractModel) -> QueryModel:
    _checks.instance("model", model, QueryModel, "a QueryModel, such as `QueryModel(rbm)`")
    return model  # pyright: ignore


@eqx.filter_jit
def _loss(
    model: QueryModel, learner: QueryTraining, rows: Any, key: PRNGKeyArray
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    asked = draw(learner.queries, model, rows.shape[0], key=key)
    sums, targets, settled = cross_entropy(model, rows, asked, learner.decoder())
    number = jnp.maximum(targets.sum(), 1).astype(sums.dtype)
    return sums.sum() / number, settled


@eqx.filter_jit
def _step(
    learner: QueryTraining, model: Model, rows: Any, key: PRNGKeyArray
) -> tuple[Model, Float[Array, ""], Float[Array, ""]]:
    function = eqx.filter_value_and_grad(_loss, has_aux=True)
    (loss, settled), gradient = function(model, learner, rows, key)  # pyright: ignore
    return only(learner.trained(model), gradient), loss, settled
