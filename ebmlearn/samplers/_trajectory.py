from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .. import _checks
from .._types import AnyArray, Batch
from ..models import (
    AbstractModel,
    AbstractPlainModel,
    Masks,
    require_chains,
    require_model,
    Told,
)


class Trajectory(eqx.Module):
    """Models of one shape, one after the other, such as those that training went through: from one
    that is easy to sample to the last. [`ebmlearn.TrajectoryTempering`][] runs chains on all of
    them.

    The parameters are arrays with a leading axis of fixed length, the capacity, so that code is
    compiled once however many models there are. The models are at its end.

    !!! example

        ```python
        models = [ebmlearn.RBM.init(16, 8, scale=scale) for scale in (0.1, 0.5, 1.0)]
        trajectory = ebmlearn.Trajectory(models)
        len(trajectory), trajectory[0], trajectory[-1]
        ```
    """

    models: PyTree
    count: Int[Array, ""]

    def __init__(self, models: Sequence[AbstractModel], capacity: int | None = None):
        """**Arguments:**

        - `models`: models of one shape, the easiest first.
        - `capacity`: how many models there is room for; by default as many as are given. A step of
          [`ebmlearn.TrajectoryTempering`][] costs as much as if there were so many.
        """
        if isinstance(models, AbstractModel) or not isinstance(models, Sequence) or not models:
            got = _checks.describe(models)
            raise TypeError(f"`models` must be a list of models of one shape, got {got}.")
        capacity = len(models) if capacity is None else capacity
        _checks.count("capacity", capacity)
        if capacity < len(models):
            raise ValueError(
                f"`capacity` must be at least the number of models, {len(models)}, got {capacity}."
            )
        for model in models:
            require_model(model)
            if not jax.tree.leaves(parameters(model)):
                kind = _checks.article(type(model).__name__)
                raise ValueError(f"`models` must have parameters, got {kind} without any.")
            require_shape("models", models[0], model)
        # Places that are not in use hold the first model.
        every = [*[models[0]] * (capacity - len(models)), *models]
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *map(parameters, every))
        self.models = eqx.combine(stacked, models[0])
        self.count = jnp.asarray(len(models), jnp.int32)

    @classmethod
    def start(cls, model: AbstractPlainModel, data: Batch, capacity: int = 32) -> "Trajectory":
        """A trajectory of two models, to grow while `model` is trained. The first is the base-rate
        model: its units are independent, and its visible units have the means of the data. For a
        graph all possible configurations are as likely; for an [`ebmlearn.EnergyModel`][] it is the
        model itself.

        !!! example

            ```python
            trajectory = ebmlearn.Trajectory.start(rbm, data)
            learner = ebmlearn.SAP(ebmlearn.TrajectoryTempering(trajectory))
            ```

        **Arguments:**

        - `model`: the model to train.
        - `data`: as [`ebmlearn.fit`][] takes it.
        - `capacity`: how many models there is room for.
        """
        require_chains(model, "a trajectory")
        _checks.count("capacity", capacity, 2)
        _, seen, observed = model.observe(_checks.as_data("data", data), "data")
        return cls([_independent(model, seen, observed), model], capacity)

    @property
    def capacity(self) -> int:
        """How many models there is room for."""
        return jax.tree.leaves(parameters(self.models))[0].shape[0]

    @property
    def first(self) -> Int[Array, ""]:
        """The first place that is in use."""
        return self.capacity - self.count

    def __len__(self) -> int:
        return int(self.count)

    def __getitem__(self, k: int) -> Any:
        size = len(self)
        if not -size <= k < size:
            raise IndexError(f"`k` must be a number from {-size} to {size - 1}, got {k}.")
        place = self.capacity - size + k % size
        return eqx.combine(jax.tree.map(lambda x: x[place], parameters(self.models)), self.models)

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def condition(self, features: AnyArray) -> "Trajectory":
        """The models given their features, for instance those of [`ebmlearn.CRBM`][]s."""
        return Trajectory([model.given_features(features) for model in self], self.capacity)

    def ending(self, model: AbstractModel) -> "Trajectory":
        """The trajectory with another last model."""
        require_shape("trajectory", self.shape, model)
        stacked = jax.tree.map(
            lambda a, b: a.at[-1].set(b), parameters(self.models), parameters(model)
        )
        return eqx.tree_at(lambda t: t.models, self, eqx.combine(stacked, self.models))

    def extended(self, model: AbstractModel) -> "Trajectory":
        """The trajectory with another last model, after which the same model follows once more.
        There must be room for it.
        """

        def after(x: Array, new: Array) -> Array:
            return jnp.roll(x, -1, axis=0).at[-2].set(new).at[-1].set(new)

        stacked = jax.tree.map(after, parameters(self.models), parameters(model))
        return eqx.tree_at(
            lambda t: (t.models, t.count), self, (eqx.combine(stacked, self.models), self.count + 1)
        )

    def interpolated(self, position: Float[Array, ""]) -> Any:
        """The model at a position, from 0 for the first: parameters change evenly from one model to
        the next.
        """
        last = self.capacity - 1
        place = jnp.clip(self.first.astype(position.dtype) + position, 0, last)
        before = jnp.floor(place)
        share = place - before
        k = before.astype(jnp.int32)

        def between(x: Array) -> Array:
            one, other = x[k], x[jnp.minimum(k + 1, last)]
            part = share.astype(x.dtype)
            # Where both are infinite they stay so.
            return jnp.where(one == other, one, (1 - part) * one + part * other)

        return eqx.combine(jax.tree.map(between, parameters(self.models)), self.models)

    @property
    def shape(self) -> Any:
        """One model, whose parameters have shapes and dtypes but no values."""

        def one(x: Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)

        return eqx.combine(jax.tree.map(one, parameters(self.models)), self.models)


def parameters(model: PyTree) -> Any:
    """The arrays of a model that a trajectory stacks."""
    return eqx.filter(model, _is_parameter)


def on_each(function: Callable[..., Any], models: PyTree, shape: Any, *arrays: PyTree) -> Any:
    """A function of each of some models and of what belongs to it: `models` are their parameters,
    stacked, and `shape` is any of them.
    """
    return jax.vmap(lambda own, *x: function(eqx.combine(own, shape), *x))(models, *arrays)


def _is_parameter(x: Any) -> bool:
    if isinstance(x, jax.ShapeDtypeStruct):
        return bool(jnp.issubdtype(x.dtype, jnp.inexact))
    return eqx.is_inexact_array(x)


def require_shape(name: str, one: Any, other: Any) -> None:
    """Raises `ValueError` unless two models have one shape."""
    a, b = parameters(one), parameters(other)
    same = jax.tree.structure(a) == jax.tree.structure(b)
    shapes = [[(x.shape, x.dtype) for x in jax.tree.leaves(tree)] for tree in (a, b)]
    if not same or shapes[0] != shapes[1]:
        hint = ""
        if type(one) is not type(other) and hasattr(one, "condition"):
            hint = ": write `trajectory.condition(features)`"
        raise ValueError(
            f"`{name}` must hold models of one shape, got {_described(one)} and"
            f" {_described(other)}{hint}."
        )


def _described(model: AbstractModel) -> str:
    shapes = ", ".join(str(x.shape) for x in jax.tree.leaves(parameters(model))[:4])
    return f"{_checks.article(type(model).__name__)} with parameters of shape {shapes}"


def _independent(model: AbstractPlainModel, seen: Told, masks: Masks) -> AbstractPlainModel:
    """A model of the same shape that is easy to sample: without factors between units, and with
    visible units that have the means of the data, to which two rows at the mean of units in no
    field are added.
    """
    if model.turns is not None:
        return model.tempered(0.0) if model.grouped else model
    biases, there = list(model.unary()), masks or (None,) * len(seen)
    for k, (x, mask, units) in enumerate(zip(seen, there, model.layers, strict=True)):
        if x is None:
            continue
        known = jnp.ones(x.shape, bool)
        if mask is not None:
            known = jnp.repeat(mask, x.shape[-1] // units.size, axis=-1)
        total = jnp.where(known, x, jnp.zeros_like(x)).sum(0)
        biases[k] = units.natural_of(total, known.sum(0).astype(x.dtype))
    none = tuple(jnp.zeros_like(x) for factor in model.factors() for x in factor.parameters)
    return model.remade(model.layers, none, tuple(biases))
