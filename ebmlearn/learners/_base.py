import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Shaped

from .. import _checks
from .._types import AnyArray
from ..estimate import predict
from ..inference import AbstractInference, Statistics
from ..inference._posterior import Seen
from ..models import AbstractLayeredModel, CRBM, NNBM
from ..models._base import by_edges, by_entries
from ..models._graph import AbstractGraphModel
from ._batch import check, conditioned, trainable


# An inference, or a function from the epoch to one: `lambda epoch: BP(7 + epoch, tol=1e-3)`.
Inference = AbstractInference | Callable[[Int[AnyArray, ""] | int], AbstractInference]


class StepInfo(NamedTuple):
    """What a learner says about a step, all of it averaged over the batch.

    - `loss`: the loss whose gradient was taken, without what `weight_decay` adds, or NaN where none
      can be computed.
    - `gap`: the energy of the data less that of the model's own configurations, which is what the
      step lowers with both held fixed. At a maximum of the likelihood it is zero.
    - `converged`: the share of instances on which the inference converged, of the data or of the
      model, whichever is smaller.
    - `iterations`: how many sweeps it took.
    - `accepted`: the share of proposals that a sampler accepted in this step, or NaN where none
      were made.
    """

    loss: Float[Array, ""]
    gap: Float[Array, ""]
    converged: Float[Array, ""]
    iterations: Float[Array, ""]
    accepted: Float[Array, ""]


class AbstractLearner(eqx.Module):
    """Turns a model and a batch of data into a gradient, which any Optax optimiser may follow.

    !!! example

        ```python
        learner = ebmlearn.MLE(ebmlearn.BP(iterations=10))
        state = learner.init(crbm, key=key)
        gradient, state, info = learner.step(crbm, state, (x, v), key=key, epoch=0)
        ```
    """

    @abc.abstractmethod
    def init(self, model: Any, *, key: PRNGKeyArray) -> PyTree:
        """The state that the learner carries from step to step: a pytree of arrays, or None."""

    @abc.abstractmethod
    def step(
        self,
        model: Any,
        state: PyTree,
        batch: Any,
        *,
        key: PRNGKeyArray,
        epoch: int | Int[Array, ""],
    ) -> tuple[Any, PyTree, StepInfo]:
        """One gradient, to be descended.

        **Arguments:**

        - `model`: the model.
        - `state`: from `init`, or from the last step.
        - `batch`: visible units, 0 or 1, of shape `[batch, visible]`; for a CRBM the pair
          `(features, visible)`, for a model with label units `(visible, labels)`, for a
          FactorGraphModel a dictionary from groups of variables to states `[batch, *shape]`.
        - `key`: a typed key.
        - `epoch`: how many epochs have been finished, for schedules.

        **Returns:**

        The gradient, shaped as the model; the new state; a [`ebmlearn.StepInfo`][].
        """

    def trained(self, model: Any) -> PyTree[bool]:
        """Which arrays of a model are trained, a boolean for each: [`ebmlearn.fit`][] leaves the
        others alone, whatever the optimiser does, such as weight decay. By default those of which
        the model says so, `model.trained()`, or all.
        """
        return model.trained() if hasattr(model, "trained") else jax.tree.map(lambda _: True, model)

    @abc.abstractmethod
    def decoder(self, epoch: int = 0) -> AbstractInference:
        """The inference that goes with a model trained by this learner."""

    def predict(
        self,
        model: CRBM | AbstractLayeredModel | AbstractGraphModel,
        features: Shaped[AnyArray, "*batch features"] | None = None,
        *,
        epoch: int = 0,
    ) -> Any:
        """The most likely visible units, decoded as suits this learner: see
        [`ebmlearn.predict`][].
        """
        return predict(model, features, inference=self.decoder(epoch))


def only(trained: PyTree[bool], tree: PyTree) -> PyTree:
    """A gradient, or updates, with zeros for what is not trained."""
    return jax.tree.map(
        lambda x, on: x if x is None or on else jnp.zeros_like(x),
        tree,
        trained,
        is_leaf=lambda x: x is None,
    )


class Phases(NamedTuple):
    """The two sides of a contrastive gradient, and the loss and the share of accepted proposals if
    there are any.
    """

    positive: Statistics
    negative: Statistics
    loss: Float[Array, ""]
    accepted: Float[Array, ""] | None = None


class AbstractContrastive(AbstractLearner):
    """A learner whose gradient is that of the expected energy of the data less the expected energy
    of what the model would rather have, with both held fixed.
    """

    centred: eqx.AbstractVar[bool]
    weight_decay: eqx.AbstractVar[float]
    on_graphs: ClassVar[bool] = False

    def __check_init__(self):
        if not isinstance(self.centred, bool):
            got = _checks.describe(self.centred)
            raise TypeError(f"`centred` must be a boolean, got {got}.")
        _checks.number("weight_decay", self.weight_decay, 0, float("inf"), "[0, inf)")

    @abc.abstractmethod
    def phases(
        self,
        model: Any,
        state: PyTree,
        visible: Seen,
        *,
        key: PRNGKeyArray,
        epoch: Int[Array, ""],
    ) -> tuple[Phases, PyTree]:
        """The statistics of both sides, for a model that has been conditioned on its features, and
        the new state.
        """

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
        if isinstance(model, AbstractGraphModel):
            self._check_graph(model)
            # One array, so that what is compiled holds on to no group of the graph.
            batch = jnp.asarray(model.rows(batch, "batch"))
        _checks.typed_key(key)
        _checks.steps("epoch", epoch)
        return _step(self, model, state, batch, key, jnp.asarray(epoch, jnp.int32))

    def _check_graph(self, model: AbstractGraphModel) -> None:
        if not self.on_graphs:
            raise TypeError(
                f"`model` must not be a {type(model).__name__} for {type(self).__name__}; `MLE`"
                " and `PMPLearner` train it."
            )
        if self.centred or self.weight_decay:
            name = "centred" if self.centred else "weight_decay"
            raise ValueError(
                f"`{name}` must not be set for a {type(model).__name__}, whose parameters are of"
                " many kinds; `optax.add_decayed_weights` takes a mask of them."
            )


class AbstractMemoryless(AbstractContrastive):
    """A contrastive learner without a state."""

    def init(self, model: Any, *, key: PRNGKeyArray) -> None:
        """Nothing: this learner carries no state."""
        return

    def phases(
        self,
        model: AbstractLayeredModel | AbstractGraphModel,
        state: None,
        visible: Seen,
        *,
        key: PRNGKeyArray,
        epoch: Int[Array, ""],
    ) -> tuple[Phases, None]:
        """The statistics of both sides."""
        if isinstance(visible, tuple):
            raise TypeError(
                "`model` must have no label units for this learner, got a"
                f" {type(model).__name__} with some; `SAP` and `TransSAP` train it."
            )
        return self.sides(model, visible, key=key, epoch=epoch), None

    @abc.abstractmethod
    def sides(
        self,
        model: Any,
        visible: Any,
        *,
        key: PRNGKeyArray,
        epoch: Int[Array, ""],
    ) -> Phases:
        """The statistics of both sides, for a model that has been conditioned on its features."""


@eqx.filter_jit
def _step(
    learner: AbstractContrastive,
    model: Any,
    state: PyTree,
    batch: Any,
    key: PRNGKeyArray,
    epoch: Int[Array, ""],
) -> tuple[Any, PyTree, StepInfo]:
    problem, visible = conditioned(model, batch)
    phases, state = learner.phases(problem, state, visible, key=key, epoch=epoch)
    positive, negative, loss, accepted = phases

    def contrast(model: Any) -> Float[Array, ""]:
        problem, _ = conditioned(model, batch)
        data = problem.expected_energy(positive.units, positive.pairwise)
        return data - problem.expected_energy(negative.units, negative.pairwise)

    # By filter: the wires of a graph are integers.
    gap, gradient = eqx.filter_value_and_grad(contrast)(model)
    if learner.centred:
        gradient = _centred(model, gradient, batch, positive, negative)
    if learner.weight_decay:
        decay, weights = learner.weight_decay, model
        if isinstance(model, NNBM):  # its diagonal holds precisions
            weights = eqx.tree_at(lambda model: model.couplings, model, model.off_diagonal)
        gradient = jax.tree.map(lambda g, p: g + decay * p if p.ndim == 2 else g, gradient, weights)
    info = StepInfo(
        loss=loss,
        gap=gap,
        converged=jnp.minimum(
            positive.converged.mean(dtype=gap.dtype), negative.converged.mean(dtype=gap.dtype)
        ),
        iterations=negative.iterations.mean(dtype=gap.dtype),
        accepted=jnp.asarray(jnp.nan, gap.dtype) if accepted is None else accepted,
    )
    return gradient, state, info


def _centred(
    model: Any, gradient: Any, batch: Any, positive: Statistics, negative: Statistics
) -> Any:
    """The gradient in the parameters of an energy of $x - \\mu$, as a direction in those of $x$,
    with $\\mu$ halfway between the means of both sides. It does not depend on which state is
    called 1.
    """

    def mean(x: Float[Array, "... n"]) -> Float[Array, " n"]:
        return x.mean(tuple(range(x.ndim - 1)))

    offsets = jax.tree.map(lambda a, b: (mean(a) + mean(b)) / 2, positive.units, negative.units)
    if isinstance(model, CRBM):
        offsets = offsets, mean(batch[0].astype(model.weights.dtype))
    else:
        offsets = (offsets,)

    def uncentred(model: Any) -> Any:
        return model.uncentred(*offsets)

    # To the centred parameters and back, each by the derivative of what leads from them to ours.
    _, pull = jax.vjp(uncentred, model)
    (direction,) = pull(by_entries(gradient))
    return jax.jvp(uncentred, (model,), (by_edges(direction),))[1]


def at_epoch(
    inference: Inference, epoch: int | Int[Array, ""], product: str | None = None
) -> AbstractInference:
    """The inference of an epoch, of the product that a learner needs."""
    if not isinstance(inference, AbstractInference):
        if not callable(inference):
            raise TypeError(
                "`inference` must be an inference such as `BP(iterations=10)`, or a function from"
                f" the epoch to one, got {_checks.describe(inference)}."
            )
        inference = inference(epoch)
        if not isinstance(inference, AbstractInference):
            got = _checks.describe(inference)
            raise TypeError(f"`inference` must give an inference for each epoch, got {got}.")
    if product is not None and getattr(inference, "product", "sum") != product:
        got = getattr(inference, "product", type(inference).__name__)
        raise ValueError(
            f'`inference` must have `product="{product}"`, as `BP(10, product="{product}")` has,'
            f" got {got!r}."
        )
    return inference
