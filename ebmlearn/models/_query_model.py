import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .. import _checks
from .._types import AnyArray, Batch, Evidence as Told, Observed
from ._base import (
    AbstractModel,
    AbstractPlainModel,
    families,
    is_binary,
    refuse,
    scaled,
    shifted,
)
from ._observed import asked_rows
from ._problem import AbstractProblem, Evidence, Held, Place, Problem


# How far evidence moves log-odds: of 0 and of 1, one number for both, or not at all.
Strength = float | tuple[float, float] | None


class QueryModel(AbstractModel):
    """A model together with its inference: belief propagation with a fixed number of iterations,
    which [`ebmlearn.QueryTraining`][] trains as one network (Lázaro-Gredilla et al. 2021).

    It holds the parameters in centred form, for units ±1: with $W = 2 W'$, $b = c_v - W' 1$ and
    $c = c_h - W'^\\top 1$ (their eq. (1)), the trained parameters are $W'$, $c_v$ and $c_h$. Three
    more numbers can be trained:

    - `temperature`: the temperature of the messages; 1 is sum-product, towards 0 max-product.
    - `scale`: the factor of the log-odds of an answer. Soft evidence about the unit itself is added
      afterwards, without the factor.
    - `strength`: the log-odds of an observed unit.

    [`ebmlearn.query`][] asks a trained QueryModel like any other model, without an `inference`.

    !!! example

        ```python
        from ebmlearn import datasets

        digits = datasets.digits()
        model = ebmlearn.QueryModel(ebmlearn.RBM.init(64, 8))
        model = ebmlearn.fit(model, ebmlearn.QueryTraining(), digits.train.x, epochs=2).model
        answer = ebmlearn.query(model, digits.test.x[0], observed=jnp.arange(64) < 32)
        ```
    """

    centred: Any
    log_temperature: Float[Array, ""] | None
    log_scale: Float[Array, ""]
    log_strength: Float[Array, "*states"] | None
    iterations: int = eqx.field(static=True)
    hint: ClassVar[str] = (
        "train it with `QueryTraining`, ask it with `query`, or use `model.to_model()`"
    )

    def __init__(
        self,
        model: AbstractPlainModel,
        iterations: int = 10,
        *,
        temperature: float | None = 1.0,
        scale: float | None = None,
        strength: float | tuple[float, float] | Float[AnyArray, "..."] | None = None,
    ):
        """**Arguments:**

        - `model`: a model of binary units, or of Gaussian visible and binary hidden units, or a
          graph. It may be untrained.
        - `iterations`: the number of message updates. In layered models of binary units only half
          of the messages reach the answer, and only these are computed. With Gaussian units, an
          even number is computed as half as many sweeps by layers, an odd number by flooding; the
          answers differ for few iterations and agree for many.
        - `temperature`: the initial temperature. None fixes it at 1, as for Gaussian units.
        - `scale`: the initial scale; by default 5 for binary units, else 1.
        - `strength`: the initial strength. For binary units a pair: the log-odds of an observed 0
          are minus the first number, those of an observed 1 the second; by default `(1000, 9.21)`.
          For graphs, how far the scores of other states are below that of the observed state; by
          default 1000. Gaussian units have none, because their evidence is exact.
        """
        if not isinstance(model, AbstractPlainModel):
            got = _checks.describe(model)
            raise TypeError(f"`model` must be a model such as an RBM, got {got}.")
        defaults = query_defaults(model)
        if defaults is None:
            refuse(model, "have messages to be sent for a QueryModel")
        if model.batch_shape != ():
            raise ValueError(
                "`model` must be a single model, got biases with batch axes of shape"
                f" {model.batch_shape}."
            )
        _checks.count("iterations", iterations)
        dtype = model.dtype
        for name, x in (("temperature", temperature), ("scale", scale)):
            if x is not None:
                _positive(name, x, dtype)
        usual, weak = defaults
        if weak is None and (temperature not in (None, 1) or strength is not None):
            name = "strength" if strength is not None else "temperature"
            kind = _checks.article(type(model).__name__)
            raise ValueError(f"`{name}` must not be given for {kind}, got {locals()[name]}.")
        self.centred = centred_form(model)
        fixed = weak is None or temperature is None
        self.log_temperature = None if fixed else jnp.log(jnp.asarray(temperature, dtype))
        self.log_scale = jnp.log(jnp.asarray(usual if scale is None else scale, dtype))
        self.log_strength = None if weak is None else _log_strength(strength, weak, dtype)
        self.iterations = int(iterations)

    @property
    def temperature(self) -> Float[Array, ""] | float:
        """The temperature of the messages."""
        return 1.0 if self.log_temperature is None else jnp.exp(self.log_temperature)

    @property
    def scale(self) -> Float[Array, ""]:
        """The factor of the log-odds of an answer."""
        return jnp.exp(self.log_scale)

    @property
    def strength(self) -> Float[Array, "*states"] | None:
        """How far evidence moves the log-odds of what is observed: of 0 and of 1, or of graphs one
        number.
        """
        return None if self.log_strength is None else jnp.exp(self.log_strength)

    def to_model(self) -> AbstractPlainModel:
        """The plain model without the three numbers, for [`ebmlearn.BP`][] and samplers. It fits
        the data worse than a model trained by maximum likelihood, and other inferences answer worse
        with it than the QueryModel does.
        """
        return plain_form(self.centred)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the parameters."""
        return self.log_scale.dtype

    def observe(self, batch: Batch, name: str = "batch") -> tuple["QueryModel", Array, None]:
        """Checks a batch of data. Numbers between 0 and 1 are shares."""
        return self, asked_rows(self.centred, batch, name), None

    def check(self, batch: Batch, name: str = "batch") -> None:
        """Raises an error if a batch does not fit the plain model."""
        asked_rows(self.centred, batch, name)

    def as_batch(self, batch: Batch) -> PyTree:
        """A batch as arrays alone."""
        return self.centred.as_batch(batch)

    def bare(self) -> AbstractPlainModel:
        """The model of which messages are sent, at its temperature."""
        return self.to_model().tempered(1 / self.temperature)

    def problem(self, evidence: Told, observed: Observed) -> "QueryProblem":
        """The model with checked evidence."""
        return QueryProblem(self, self.to_model().problem(evidence, observed))

    def trained(self) -> "QueryModel":
        """Booleans in the place of arrays: of those that the plain model does not want trained,
        False.
        """
        out = jax.tree.map(lambda _: True, self)
        return eqx.tree_at(lambda model: model.centred, out, self.centred.trained())

    def project(self) -> "QueryModel":
        """The model with its parameters projected as the plain model requires."""
        return eqx.tree_at(lambda model: model.centred, self, self.centred.project())

    def tempered(self, beta: float | Float[Array, ""]) -> "QueryModel":
        """Raises `TypeError`: it has a temperature of its own."""
        return refuse(self, "be a plain one to be tempered")

    def decayed(self) -> "QueryModel":
        """Raises `TypeError`."""
        return refuse(self, "be a plain one for weight decay")

    def uncentred(self, offsets: PyTree, batch: Batch | None = None) -> "QueryModel":
        """Raises `TypeError`: it is centred already."""
        return refuse(self, "be a plain one to be centred")


class QueryProblem(AbstractProblem):
    """A `QueryModel` with evidence, checked."""

    model: QueryModel
    plain: Problem

    @property
    def shape(self) -> tuple[int, ...]:
        """The batch shape."""
        return self.plain.shape

    def with_states(self, places: list[Place], states: tuple[int, ...]) -> "QueryProblem":
        """The same problem with the states of some units fixed too."""
        return QueryProblem(self.model, self.plain.with_states(places, states))

    def posed(self) -> tuple[Problem, PyTree]:
        """The problem of the plain model in which evidence is as strong as was learned, and what
        of the log-odds was told of the units themselves, by name, or None: likelihoods are no
        answers.
        """
        model, strength = self.plain.model, self.model.strength
        if strength is None:
            return self.plain, None
        evidence, own, shape = [], [], self.plain.shape
        for units, held in zip(model.layers, self.plain.held(), strict=True):
            soft = jnp.zeros((), model.dtype)
            if held == (None, None, None):
                evidence.append(None)
                own.append(soft)
                continue
            weak = _weak_group if model.grouped else _weak_layer
            scores, soft = weak(units, held, strength, model.dtype)
            scores = jnp.broadcast_to(scores, (math.prod(shape), *scores.shape[-2:]))
            evidence.append(Evidence(scores=scores.reshape(*shape, *scores.shape[1:])))
            own.append(soft if soft.ndim == 0 else soft.reshape(*shape, *soft.shape[1:]))
        shown = [
            x.reshape(*shape, *own_shape, x.shape[-1]) if model.grouped and x.ndim else x
            for x, own_shape in zip(own, model.shapes, strict=True)
        ]
        return Problem(model, tuple(evidence), trusted=True), model.named(shown)


def _weak_layer(units: Any, held: Held, strength: Array, dtype: Any) -> tuple[Array, Array]:
    """The scores of both states of binary units, of which evidence has so much strength against 0
    and against 1; and the log-odds of what is only likely.
    """
    low, high = strength
    assert held.states is not None and held.mask is not None and held.scores is not None
    soft = jnp.clip(held.scores[..., 1] - held.scores[..., 0], -low, high)
    sure = jnp.where(held.states > 0, high, -low)
    told = jnp.where(held.mask, sure, soft)
    own = jnp.where(held.mask, jnp.zeros_like(soft), soft)
    return jnp.stack([jnp.zeros_like(told), told], -1), own


def _weak_group(units: Any, held: Held, strength: Array, dtype: Any) -> tuple[Array, Array]:
    """The scores of all states of units, of which the states that are not observed lose so much;
    and those of what is only likely.
    """
    soft = jnp.zeros((), dtype) if held.scores is None else held.scores
    lost = jnp.zeros((1, units.size, units.number), dtype)
    if held.states is not None and held.mask is not None:
        shape = (*held.states.shape, units.number)
        number = jnp.broadcast_to(jnp.arange(units.number, dtype=jnp.int32), shape)
        other = number != jnp.broadcast_to(held.states[..., None], shape)
        seen = jnp.broadcast_to(held.mask[..., None], shape)
        lost = jnp.where(other & seen, -strength, jnp.zeros_like(strength))
    return lost + soft, soft


def query_defaults(model: AbstractPlainModel) -> tuple[float, Strength] | None:
    """The initial scale and strength of a [`ebmlearn.QueryModel`][] of a model; None if there can
    be none.
    """
    if model.grouped:
        return 1.0, 1000.0
    if is_binary(model):
        return 5.0, (1000.0, 9.21)
    return (1.0, None) if set(families(model)) == {"gaussian", "binary"} else None


def centred_form(model: AbstractPlainModel) -> AbstractPlainModel:
    """The parameters for units ±1, in a model of the same class, if its units are binary."""
    return scaled(shifted(model, -0.5), 0.5, 1.0) if is_binary(model) else model


def plain_form(model: AbstractPlainModel) -> AbstractPlainModel:
    """The reverse of `centred_form`."""
    return shifted(scaled(model, 2.0, 1.0), 0.5) if is_binary(model) else model


def num_asked(model: AbstractModel) -> int:
    """The number of units that queries are about: those of the first layer, or all of a graph."""
    plain = structure_of(model)
    return plain.variables.ends[-1] if plain.grouped else plain.layers[0].size


def structure_of(model: AbstractModel) -> AbstractPlainModel:
    """The plain model whose groups a model has: its own, unless it is a QueryModel."""
    return model.centred if isinstance(model, QueryModel) else model  # pyright: ignore


def _positive(name: str, x: Any, dtype: Any) -> None:
    """Raises unless a number is positive, in a dtype too."""
    _checks.number(name, x, 0, math.inf, "(0, inf)")
    if _checks.is_concrete(x) and not 0 < float(np.asarray(x, dtype)) < math.inf:
        raise ValueError(f"`{name}` must lie in (0, inf) as {dtype}, got {float(x)}.")


def _log_strength(strength: Any, usual: Any, dtype: Any) -> Float[Array, "*states"]:
    """Of a pair, for 0 and for 1, if that is usual, or of one number."""
    given = usual if strength is None else strength
    if not isinstance(usual, tuple):
        _positive("strength", given, dtype)
        return jnp.log(jnp.asarray(given, dtype))
    shape = getattr(given, "shape", None)
    if shape == (2,):
        given = tuple(given)
    elif isinstance(given, (int, float)) or shape == ():
        given = (given, given)
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        got = _checks.describe(strength)
        raise TypeError(f"`strength` must be a pair of numbers, of 0 and of 1, got {got}.")
    for k, x in enumerate(given):
        _positive(f"strength[{k}]", x, dtype)
    return jnp.log(jnp.stack([jnp.asarray(x, dtype) for x in given]))
