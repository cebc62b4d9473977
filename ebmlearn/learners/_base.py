import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray, PyTree, Shaped

from .. import _checks
from .._types import AnyArray, Batch, Key
from ..estimate import error_rate, predict, pseudo_log_likelihood_of, require_conditionals
from ..inference import AbstractInference, BP, is_off, MeanField
from ..models import (
    AbstractModel,
    AbstractPlainModel,
    complete,
    complete_energies,
    Evidence,
    expected_energy,
    if_complete,
    Masks,
    only_trained,
    Problem,
    refuse,
    require_chains,
    Statistics,
    Told as States,
)


Model = TypeVar("Model", bound=AbstractModel)


class Schedule(eqx.Module):
    """An inference for each epoch."""

    function: Callable[[Any], AbstractInference]

    def __call__(self, epoch: int | Int[AnyArray, ""]) -> AbstractInference:
        """The inference of an epoch."""
        found = self.function(epoch)
        if not isinstance(found, AbstractInference):
            got = _checks.describe(found)
            raise TypeError(f"`inference` must return an inference for each epoch, got {got}.")
        return found


# An inference, or a function from the epoch to one: `lambda epoch: BP(7 + epoch, tol=1e-3)`.
Inference = AbstractInference | Schedule


def as_schedule(inference: Inference | Callable[[Any], AbstractInference]) -> Inference:
    """An inference, or a schedule of them from a function."""
    if isinstance(inference, AbstractInference | Schedule):
        return inference
    wanted = "an inference such as `BP(iterations=10)`, or a function from the epoch to one"
    _checks.function("inference", inference, wanted)
    return Schedule(function=inference)  # pyright: ignore


# Judges a model by data at an epoch; lower is better.
Metric = Callable[[PyTree, PyTree, int], float | Array]


class AbstractComparedMetric(eqx.Module):
    """A metric that can be compared with that of a simple model, which needs no training."""

    @abc.abstractmethod
    def __call__(self, model: AbstractModel, validation: Any, epoch: Any) -> float | Array:
        """Judges a model by data at an epoch; lower is better."""

    @abc.abstractmethod
    def simple(self, model: AbstractModel, data: Any, validation: Any) -> float:
        """The metric of the simple model of the training data."""

    @abc.abstractmethod
    def worse(self, value: float, simple: float) -> str:
        """What to tell the user if the metric has risen above that of the simple model."""


class StepInfo(NamedTuple):
    """What a learner reports about a step, averaged over the batch.

    !!! example

        ```python
        from ebmlearn import datasets

        rbm, learner, key = ebmlearn.RBM.init(64, 8), ebmlearn.CD(), jax.random.key(0)
        data = jnp.asarray(datasets.digits().train.x[:100])
        state = learner.init(rbm, key=key)
        gradient, state, info = learner.step(rbm, state, data, key=key, epoch=0)
        info.gap
        ```

    **Fields:**

    - `loss`: the loss whose gradient was taken, without weight decay, or NaN if it cannot be
      computed.
    - `gap`: the mean energy of the data minus the mean energy of the model's own configurations.
      With both held fixed, the step lowers it. It is zero at a maximum of the likelihood.
    - `converged`: the share of instances on which the inference converged, given the data or for
      the model, whichever is smaller; NaN if nothing was iterated.
    - `iterations`: the number of sweeps of the inference.
    - `accepted`: the share of proposals that a sampler accepted, or NaN if it made none.
    """

    loss: Float[Array, ""]
    gap: Float[Array, ""]
    converged: Float[Array, ""]
    iterations: Float[Array, ""]
    accepted: Float[Array, ""]


class AbstractLearner(eqx.Module):
    """Turns a model and a batch of data into a gradient, which any Optax optimizer can use.

    !!! example

        ```python
        learner = ebmlearn.MLE(ebmlearn.BP(iterations=10))
        state = learner.init(crbm, key=key)
        gradient, state, info = learner.step(crbm, state, (x, v), key=key, epoch=0)
        ```
    """

    @abc.abstractmethod
    def init(self, model: AbstractModel, *, key: Key) -> PyTree:
        """The state that the learner carries from step to step: a pytree of arrays, or None."""

    @abc.abstractmethod
    def step(
        self, model: Model, state: PyTree, batch: Batch, *, key: Key, epoch: int | Int[Array, ""]
    ) -> tuple[Model, PyTree, StepInfo]:
        """Computes the gradient of one step, for gradient descent.

        **Arguments:**

        - `model`: the model.
        - `state`: from `init`, or from the last step.
        - `batch`: visible units of shape `[batch, visible]`; for a CRBM the pair
          `(features, visible)`, for a model with label units `(visible, labels)`, for a
          graph a dictionary from groups of variables to states `[batch, *shape]`.
        - `key`: a seed, or a key such as `jax.random.key(0)`.
        - `epoch`: the number of finished epochs, for schedules.

        **Returns:**

        The gradient, with the structure of the model; the new state; a
        [`ebmlearn.learners.StepInfo`][].
        """

    @abc.abstractmethod
    def trained(self, model: AbstractModel) -> PyTree[bool]:
        """A boolean for each array of the model: whether it is trained. [`ebmlearn.fit`][] does not
        change the others, even if the optimizer decays weights.
        """

    @abc.abstractmethod
    def decoder(self, epoch: int | Int[Array, ""] = 0) -> AbstractInference:
        """The inference to use with a model that this learner trained."""

    @abc.abstractmethod
    def metric(self, model: AbstractModel) -> Metric | None:
        """The default metric of [`ebmlearn.fit`][] for a model of this kind: a function of the
        model, the validation data and the epoch; lower is better. None if there is none.
        """

    def predict(
        self,
        model: AbstractModel,
        features: Shaped[AnyArray, "*batch features"] | None = None,
        *,
        inference: AbstractInference | None = None,
        epoch: int | Int[Array, ""] = 0,
    ) -> PyTree:
        """Predicts the visible units with the inference of this learner, or with `inference`: see
        [`ebmlearn.predict`][].
        """
        chosen = self.decoder(epoch) if inference is None else inference
        return predict(model, features, inference=chosen)


def default_metric(learner: AbstractLearner, model: AbstractModel) -> Metric | None:
    """The share of wrong visible units where a model has features; elsewhere minus the
    pseudo-likelihood, or None for models that have none.
    """
    if model.conditional:
        return PredictionError(learner)
    try:
        require_conditionals(model, "pseudo-likelihood")
    except TypeError:
        return None
    return minus_pseudo_likelihood


def minus_pseudo_likelihood(model: AbstractModel, validation: Any, epoch: Any) -> Float[Array, ""]:
    """The mean over rows, without those of which some units are missing."""
    return _minus_pseudo_likelihood(model, model.as_batch(validation))


@eqx.filter_jit
def _minus_pseudo_likelihood(model: AbstractModel, batch: Batch) -> Float[Array, ""]:
    told = Told.by(model, batch)
    return -jnp.nanmean(pseudo_log_likelihood_of(told.model, told.seen, told.observed))


class PredictionError(eqx.Module):
    """The share of wrong visible units. Metrics of equal learners are equal."""

    learner: AbstractLearner

    def __call__(self, model: AbstractModel, validation: Any, epoch: Any) -> Float[Array, ""]:
        features, visible = validation
        return error_rate(self.learner.predict(model, features, epoch=epoch), visible)


def only(trained: PyTree[bool], tree: PyTree) -> PyTree:
    """A gradient, or updates, with zeros for what is not trained."""
    return jax.tree.map(
        lambda x, on: x if x is None or on else jnp.zeros_like(x),
        tree,
        trained,
        is_leaf=lambda x: x is None,
    )


class Told(NamedTuple):
    """What a batch tells, as `model.observe(batch)` gives it: the model given the features of the
    batch, the states of visible groups, and booleans for those that are observed, or None if all
    are.
    """

    model: AbstractPlainModel
    seen: States
    observed: Masks

    @classmethod
    def by(cls, model: AbstractModel, batch: Batch) -> "Told":
        """What a batch tells of a model."""
        found, seen, observed = model.observe(batch)
        if not isinstance(found, AbstractPlainModel):
            refuse(found, "be a plain one for this learner")
        return cls(found, seen, observed)

    @property
    def rows(self) -> int:
        """How many rows the batch has."""
        return jax.tree.leaves(self.seen)[0].shape[0]

    def held(self) -> Problem:
        """The problem in which all units that are observed are fixed, over which mixed-product
        maximises.
        """
        masks, evidence = self.observed or (None,) * len(self.seen), []
        for units, x, mask in zip(self.model.layers, self.states(), masks, strict=True):
            if x is None or units.numbered:
                evidence.append(None if x is None else Evidence(x))
            else:
                evidence.append(Evidence(x, jnp.ones(x.shape, bool) if mask is None else mask))
        return Problem(self.model, tuple(evidence), self.outputs(), trusted=True)

    def states(self) -> list[Num[Array, "rows _"] | None]:
        """The states of each visible group as users see them, -1 for units of finitely many states
        that are not observed; None for hidden groups.
        """
        out, masks = [], self.observed or (None,) * len(self.seen)
        for units, x, mask in zip(self.model.layers, self.seen, masks, strict=True):
            found: Any = None if x is None else units.decode(x)
            if found is not None and mask is not None and units.numbered:
                found = jnp.where(mask, found, -1)
            out.append(found)
        return out

    def outputs(self) -> Bool[Array, "rows units"] | None:
        """Which units data tell, where that is not the same in all rows."""
        return jnp.concatenate(self.observed, -1) if self.model.grouped else None  # pyright: ignore

    def posterior(self, inference: AbstractInference, mode: bool = False) -> Statistics:
        """Expected statistics given what is seen, or those of the most likely hidden units: by
        formula where there is one, else by an inference with what is seen held. Belief propagation
        takes the place of mean field if factors exclude configurations.
        """
        turns = self.model.turns
        if isinstance(inference, MeanField) and turns is not None and turns.no_moves() is not None:
            inference = BP(50, tol=1e-3)
        return if_complete(
            self.model,
            self.observed,
            lambda: complete(self.model, self.seen, mode),
            lambda: inference.statistics_of(self.held()),
        )

    def free_energy(self, inference: AbstractInference) -> Float[Array, " batch"]:
        """Minus the log-potential of what is seen, hidden units summed out: by formula where there
        is one, else by an inference with what is seen held.
        """
        return if_complete(
            self.model,
            self.observed,
            lambda: complete_energies(self.model, self.seen),
            lambda: -inference.beliefs_of(self.held()).log_partition,
        )

    def no_gaps(self, learner: AbstractLearner) -> None:
        """Raises `ValueError` if values of the data are missing."""
        if self.observed is not None and not self.model.grouped:
            name = type(learner).__name__
            raise ValueError(
                f"`batch` must hold no missing values for {name}, got NaN: use MLE, SAP or"
                " QueryTraining."
            )

    def one_visible(self, learner: AbstractLearner) -> None:
        """Raises an error if values are missing, or several layers of the model are visible."""
        self.no_gaps(learner)
        if not self.model.grouped and len(self.model.variables.seen) > 1:
            wanted = f"have one visible layer for {type(learner).__name__}"
            refuse(self.model, wanted, "take SAP or CD")


class Phases(NamedTuple):
    """The two sides of a contrastive gradient, and the loss and the share of accepted proposals if
    there are any.
    """

    positive: Statistics
    negative: Statistics
    loss: Float[Array, ""] | None = None
    accepted: Float[Array, ""] | None = None


class AbstractContrastive(AbstractLearner):
    """A learner that compares two sets of expected statistics: its gradient is that of the expected
    energy of the data minus the expected energy of the model's own configurations, with both sets
    of statistics held fixed.
    """

    centred: eqx.AbstractVar[bool]
    weight_decay: eqx.AbstractVar[float]

    def __check_init__(self):
        _checks.instance("centred", self.centred, bool, "a boolean")
        _checks.number("weight_decay", self.weight_decay, 0, float("inf"), "[0, inf)")

    def trained(self, model: AbstractModel) -> PyTree[bool]:
        """The arrays that the model marks as trained."""
        return model.trained()

    def metric(self, model: AbstractModel) -> Metric | None:
        """The share of wrong visible units, or minus the pseudo-likelihood."""
        return default_metric(self, model)

    @abc.abstractmethod
    def phases(
        self, told: Told, state: PyTree, *, key: PRNGKeyArray, epoch: Int[Array, ""]
    ) -> tuple[Phases, PyTree]:
        """The statistics of both sides, and the new state."""

    def step(
        self, model: Model, state: PyTree, batch: Batch, *, key: Key, epoch: int | Int[Array, ""]
    ) -> tuple[Model, PyTree, StepInfo]:
        """The gradient of one step: see [`ebmlearn.learners.AbstractLearner`][]."""
        model.check(batch)
        _checks.steps("epoch", epoch)
        own = model.as_batch(batch)
        return _step(self, model, state, own, _checks.as_key(key), jnp.asarray(epoch, jnp.int32))


class AbstractMemoryless(AbstractLearner):
    """A learner without a state."""

    def init(self, model: AbstractModel, *, key: Key) -> None:
        """Nothing: this learner carries no state."""
        return


def require_reached(model: AbstractModel, learner: AbstractLearner) -> None:
    """Raises `TypeError` for a model of which chains do not reach all configurations; that of a
    model with features is looked at in a step, when these are known.
    """
    if isinstance(model, AbstractPlainModel):
        require_chains(model, type(learner).__name__)


class AbstractInferring(AbstractLearner):
    """A learner with an inference that maximises what it needs."""

    inference: eqx.AbstractVar[Inference]
    maximises: ClassVar[str]

    def __check_init__(self):
        self.decoder()

    def decoder(self, epoch: int | Int[Array, ""] = 0) -> AbstractInference:
        """The inference of that epoch."""
        found = self.inference
        found = found(epoch) if isinstance(found, Schedule) else found
        if found.maximises != self.maximises:
            wanted, what, _ = _MAXIMISED[self.maximises]
            raise ValueError(
                f"`inference` must {what}, as `{wanted}` does, got {type(found).__name__}, which"
                f" {_MAXIMISED[found.maximises][2]}."
            )
        return found


@eqx.filter_jit
def _step(
    learner: AbstractContrastive,
    model: Model,
    state: PyTree,
    batch: Batch,
    key: PRNGKeyArray,
    epoch: Int[Array, ""],
) -> tuple[Model, PyTree, StepInfo]:
    phases, state = learner.phases(Told.by(model, batch), state, key=key, epoch=epoch)
    positive, negative, loss, accepted = phases

    def contrast(model: Model) -> Float[Array, ""]:
        given = only_trained(Told.by(model, batch).model)
        return expected_energy(given, positive) - expected_energy(given, negative)

    # By filter: the wires of a graph are integers.
    gap, gradient = eqx.filter_value_and_grad(contrast)(model)
    if learner.centred:
        gradient = _centred(model, gradient, batch, positive, negative)
    if not is_off(learner.weight_decay, 0):
        decay = learner.weight_decay
        gradient = jax.tree.map(
            lambda g, p: g + jnp.asarray(decay, p.dtype) * p, gradient, model.decayed()
        )
    nan = jnp.asarray(jnp.nan, gap.dtype)
    sides = positive, negative
    # Formulas and samples have nothing to converge.
    iterated = jnp.stack([(x.iterations > 0).any() for x in sides]).any()
    converged = jnp.stack([x.converged.mean(dtype=gap.dtype) for x in sides]).min()
    info = StepInfo(
        loss=nan if loss is None else loss,
        gap=gap,
        converged=jnp.where(iterated, converged, nan),
        iterations=negative.iterations.mean(dtype=gap.dtype),
        accepted=nan if accepted is None else accepted,
    )
    return gradient, state, info


def _centred(
    model: Model, gradient: Model, batch: Batch, positive: Statistics, negative: Statistics
) -> Model:
    """The gradient in the parameters of an energy of $x - \\mu$, as a direction in those of $x$,
    with $\\mu$ halfway between the means of both sides. It does not depend on which state is
    called 1.
    """

    def mean(x: Float[Array, "... n"]) -> Float[Array, " n"]:
        return x.mean(tuple(range(x.ndim - 1)))

    offsets = jax.tree.map(lambda a, b: (mean(a) + mean(b)) / 2, positive.units, negative.units)

    def uncentred(model: Model) -> Model:
        return model.uncentred(offsets, batch)

    # To the centred parameters and back, each by the derivative of what leads from them to ours.
    _, pull = jax.vjp(uncentred, model)
    (direction,) = pull(gradient.by_entries())
    return jax.jvp(uncentred, (model,), (direction.by_edges(),))[1]


def mean_field() -> MeanField:
    """The inference with which learners without an inference predict."""
    return MeanField(50, tol=1e-3)


# What an inference may maximise: how to get one, what it must do, and what it does.
_MAXIMISED = {
    "nothing": ("BP(10)", "give marginals", "gives marginals"),
    "all": ('BP(10, product="max")', "maximise over all units", "maximises over all units"),
    "visible": (
        'BP(10, product="mixed")',
        "maximise over the visible units",
        "maximises over the visible units",
    ),
}
