import warnings
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from .. import _checks
from ..estimate._nce import as_rows, cross_entropy
from ..inference import BP, FixedTargets, RandomTargets
from ..inference._queries import AbstractQueries, as_queries, draw
from ..inference._query_groups import members_of
from ..models import QueryModel
from ._base import AbstractLearner, only, StepInfo


class QueryTraining(AbstractLearner):
    """Query training (Lázaro-Gredilla et al. 2021): each step draws a query for each row of data,
    which units are evidence and which are targets, and descends the cross-entropy of the targets
    as belief propagation answers for them. The model that comes out is trained for that inference,
    and may be asked for any unit given any others.

    With one target, no hidden units, `scale=1` and strong evidence this is pseudo-likelihood.

    !!! example

        ```python
        fitted = ebmlearn.fit(
            ebmlearn.QueryModel(rbm),
            ebmlearn.QueryTraining(ebmlearn.RandomTargets(0.5)),
            data, optimizer=optax.adam(1e-2), epochs=100, batch_size=500, key=key,
        )
        ebmlearn.query(fitted.model, v, observed=mask)
        ```
    """

    queries: AbstractQueries
    layers: int | None = eqx.field(static=True)
    temperature: bool = eqx.field(static=True)
    scale: bool = eqx.field(static=True)
    evidence: bool = eqx.field(static=True)

    def __init__(
        self,
        queries: Any = None,
        layers: int | None = None,
        *,
        temperature: bool = True,
        scale: bool = True,
        evidence: bool = True,
    ):
        """**Arguments:**

        - `queries`: a distribution of queries, `RandomTargets(0.5)` if not given, or a function:
          see [`ebmlearn.AbstractQueries`][].
        - `layers`: how many layers to train with; by default as many as the model answers with.
        - `temperature`, `scale`, `evidence`: whether these numbers of the
          [`ebmlearn.QueryModel`][] are learned; else they stay where they start.
        """
        self.queries = RandomTargets(0.5) if queries is None else as_queries(queries)
        self.layers = layers
        self.temperature = temperature
        self.scale = scale
        self.evidence = evidence

    def __check_init__(self):
        if self.layers is not None:
            _checks.count("layers", self.layers)
        for name in ("temperature", "scale", "evidence"):
            if not isinstance(getattr(self, name), bool):
                got = _checks.describe(getattr(self, name))
                raise TypeError(f"`{name}` must be a boolean, got {got}.")

    def init(self, model: Any, *, key: PRNGKeyArray) -> None:
        """Nothing: this learner carries no state."""
        _check_model(model)
        if self.layers not in (None, model.layers):
            warnings.warn(
                f"Trained with {self.layers} layers, the model answers with {model.layers}: give"
                f" `QueryModel` the same number.",
                stacklevel=2,
            )

    def step(
        self,
        model: Any,
        state: PyTree,
        batch: Any,
        *,
        key: PRNGKeyArray,
        epoch: int | Int[Array, ""],
    ) -> tuple[Any, PyTree, StepInfo]:
        """One gradient, to be descended: see [`ebmlearn.AbstractLearner`][]. The loss is the mean
        over targets, in nats.
        """
        _check_model(model)
        _checks.typed_key(key)
        _check_told(model, self.queries, batch)
        gradient, loss, settled = _step(self, model, as_rows(model, batch, "batch"), key)
        nan = jnp.full_like(loss, jnp.nan)
        layers = jnp.full_like(loss, self.layers or model.layers)
        return gradient, state, StepInfo(loss, nan, settled, layers, nan)

    def trained(self, model: QueryModel) -> PyTree[bool]:
        out = super().trained(model)
        for name, learned in self._numbers().items():
            if getattr(model, name) is not None:
                out = eqx.tree_at(lambda m, n=name: getattr(m, n), out, learned)
        return out

    def _numbers(self) -> dict[str, bool]:
        """Which of the numbers beside the parameters are learned."""
        return {
            "log_temperature": self.temperature,
            "log_scale": self.scale,
            "log_strength": self.evidence,
        }

    def decoder(self, epoch: int = 0) -> BP:
        """Belief propagation of as many layers. A [`ebmlearn.QueryModel`][] brings its own, which
        [`ebmlearn.query`][] uses.
        """
        return BP(self.layers or 10, schedule="flooding")

    def loss(self, model: QueryModel, batch: Any, *, key: PRNGKeyArray) -> Float[Array, ""]:
        """The cross-entropy of the targets of a batch in nats, on average over them."""
        _check_model(model)
        _checks.typed_key(key)
        _check_told(model, self.queries, batch)
        return _loss(model, self, as_rows(model, batch, "batch"), key)[0]


def _check_model(model: Any) -> None:
    if not isinstance(model, QueryModel):
        got = _checks.describe(model)
        raise TypeError(f"`model` must be a QueryModel, such as `QueryModel(rbm)`, got {got}.")


def _check_told(model: QueryModel, queries: AbstractQueries, batch: Any) -> None:
    """Raises if data never tell what alone is asked for."""
    asked = (
        queries.targets if isinstance(queries, FixedTargets) else getattr(queries, "groups", None)
    )
    if asked is None or not isinstance(batch, Mapping):
        return
    if isinstance(asked, tuple):
        asked = members_of(model, asked, "queries")
    if not (asked & members_of(model, tuple(batch), "batch")).any():
        raise ValueError("`queries` must ask for what `batch` tells, got no such target.")


@eqx.filter_jit
def _loss(
    model: QueryModel, learner: QueryTraining, rows: Any, key: PRNGKeyArray
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    asked = draw(learner.queries, model, rows.shape[0], key=key)
    sums, targets, settled = cross_entropy(model, rows, asked, layers=learner.layers)
    number = jnp.maximum(targets.sum(), 1).astype(sums.dtype)
    return sums.sum() / number, settled


@eqx.filter_jit
def _step(
    learner: QueryTraining, model: QueryModel, rows: Any, key: PRNGKeyArray
) -> tuple[QueryModel, Float[Array, ""], Float[Array, ""]]:
    (loss, settled), gradient = eqx.filter_value_and_grad(_loss, has_aux=True)(
        model, learner, rows, key
    )
    return only(learner.trained(model), gradient), loss, settled
