import abc
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Num, PRNGKeyArray, PyTree, Shaped

from .._checks import broadcastable, describe, number, typed_key
from .._types import AnyArray
from ._view import Block, Form, PairwiseView, Product, Schedule


Model = TypeVar("Model")
LayeredModel = TypeVar("LayeredModel", bound="AbstractLayeredModel")


class Layers(NamedTuple):
    """One value for each unit of a layered model: states, probabilities or log-odds.

    `hidden` is an array, or a tuple of arrays from the lowest layer up for a [`ebmlearn.DBM`][].
    """

    visible: Any
    hidden: Any


class Units(NamedTuple):
    """One value for each unit of a model without layers: states, probabilities or log-odds."""

    x: Any


class LabelledLayers(NamedTuple):
    """One value for each unit of a layered model with label units. States of the label units are
    one-hot: exactly one of them is 1.
    """

    visible: Any
    hidden: Any
    label: Any


# What the units of a layer may be: 0 or 1 each; one of them 1 and the others 0; real numbers; or
# real numbers that are not negative.
Kind = Literal["binary", "softmax", "gaussian", "nonnegative"]


class AbstractLayeredModel(eqx.Module):
    """Units in layers, whose energy holds products of one or two units. Samplers work on what
    subclasses say of their layers and blocks of weights.
    """

    @abc.abstractmethod
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of weights, each between two layers or inside one."""

    @abc.abstractmethod
    def unary(self) -> tuple[Float[Array, "... _"], ...]:
        """What is linear in the units of each layer, the visible layer first: their biases."""

    @abc.abstractmethod
    def with_unary(self: Model, unary: tuple[Float[Array, "... _"], ...]) -> Model:
        """The model with other biases, as `unary` gives them."""

    @abc.abstractmethod
    def kinds(self) -> tuple[Kind, ...]:
        """What the units of each layer are: `"binary"`, `"softmax"`, `"gaussian"` or
        `"nonnegative"`.
        """

    @abc.abstractmethod
    def units(self, layers: tuple[Any, ...]) -> Layers | LabelledLayers | Units:
        """Names the layers: [`ebmlearn.Layers`][], [`ebmlearn.LabelledLayers`][] or
        [`ebmlearn.Units`][].
        """

    @abc.abstractmethod
    def factors(self, blocks: tuple[Any, ...]) -> Any:
        """Names the blocks: one array, or a tuple of arrays in the order of the weights."""

    @abc.abstractmethod
    def tempered(self: Model, beta: float | Float[Array, ""]) -> Model:
        """The model of $p(x)^\\beta$."""

    @abc.abstractmethod
    def expected_energy(self, units: Any, pairwise: Any) -> Float[Array, ""]:
        """The mean energy under expected statistics: `units` of each instance, `pairwise` of all.

        Its gradient with the statistics held fixed is what learning needs.
        """

    def uncentred(self: LayeredModel, offsets: Any) -> LayeredModel:
        """The model whose energy is, up to a constant, this one's with $x - \\mu$ in place of $x$
        in all products of two units: biases less what the weights send from the offsets $\\mu$ of
        the units they join.
        """
        biases = list(self.unary())
        means = jax.tree.leaves(offsets)
        for first, second, weights in self.blocks():
            ends = {first: weights @ means[second], second: means[first] @ weights}
            for layer, sent in ends.items():
                biases[layer] = biases[layer] - jnp.broadcast_to(sent, biases[layer].shape)
        return self.with_unary(tuple(biases))

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the biases: `()` for a single model."""
        return jnp.broadcast_shapes(*(bias.shape[:-1] for bias in self.unary()))

    @property
    def is_bipartite(self) -> bool:
        """Whether units of even layers are joined to units of odd layers only."""
        return all((block.first - block.second) % 2 for block in self.blocks())


class AbstractPairwiseModel(AbstractLayeredModel):
    """Binary units in layers: $E(x) = -\\sum_i b_i x_i - \\sum_{i<j} W_{ij} x_i x_j$ with
    $x_i \\in \\lbrace 0, 1 \\rbrace$. Every inference works on that alone.
    """

    def view(
        self,
        product: Product,
        form: Form,
        schedule: Schedule,
        damping: Float[AnyArray, ""] | None,
        beta: Float[AnyArray, ""],
    ) -> PairwiseView:
        """The message-passing view of this model, its weights times `beta`."""
        sizes = tuple(bias.shape[-1] for bias in self.unary())
        return PairwiseView(self.blocks(), sizes, product, form, schedule, damping, beta)

    def tempered(self: Model, beta: float | Float[Array, ""]) -> Model:
        """The model of $p(x)^\\beta$: every parameter times `beta`."""
        return scaled(self, beta)

    def expected_energy(self, units: Any, pairwise: Any) -> Float[Array, ""]:
        """The mean energy under expected statistics: `units` of each instance, `pairwise` of all.

        Its gradient with the statistics held fixed is minus the statistics, which is all that
        learning needs. Couplings inside a layer hold each edge twice; an edge counts as one
        parameter, so that its gradient stands whole at both places.
        """
        out = jnp.zeros((), self.unary()[0].dtype)
        for bias, x in zip(self.unary(), jax.tree.leaves(units), strict=True):
            if bias.ndim == 1:
                out = out - bias @ x.mean(tuple(range(x.ndim - 1)))
            else:
                shape = jnp.broadcast_shapes(bias.shape, x.shape)
                both = jnp.broadcast_to(bias, shape) * jnp.broadcast_to(x, shape)
                out = out - both.sum(-1).mean()
        for block, pair in zip(self.blocks(), jax.tree.leaves(pairwise), strict=True):
            if block.first == block.second:
                out = out - (as_edges(block.weights) * pair).sum() / 2
            else:
                out = out - (block.weights * pair).sum()
        return out


def as_edges(couplings: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Symmetric couplings in which the gradient of an edge stands whole at both its places, rather
    than half at each.
    """
    return 2 * couplings - jax.lax.stop_gradient(couplings)


def by_entries(gradient: Any) -> Any:
    """A gradient of a learner, in which that of an edge inside a layer stands whole at both its
    places, by the entries of the matrix: half at each. This is what can be pulled back.
    """
    return _couplings_times(gradient, 0.5)


def by_edges(gradient: Any) -> Any:
    """The reverse of `by_entries`."""
    return _couplings_times(gradient, 2.0)


def _couplings_times(gradient: Any, factor: float) -> Any:
    couplings = getattr(gradient, "couplings", None)
    if not isinstance(gradient, AbstractLayeredModel) or couplings is None:
        return gradient
    own = jnp.eye(couplings.shape[0], dtype=bool)
    return eqx.tree_at(
        lambda model: model.couplings, gradient, jnp.where(own, couplings, factor * couplings)
    )


def scaled(model: Model, beta: float | Float[Array, ""]) -> Model:
    """Multiplies every array of a pytree by a scalar, keeping dtypes."""
    return jax.tree.map(lambda leaf: leaf * jnp.asarray(beta, leaf.dtype), model)


def states(name: str, x: Shaped[AnyArray, "..."], size: int, dtype: Any) -> Num[Array, "..."]:
    """Checks the last axis of an array of states and casts it to the dtype of the model."""
    x = jnp.asarray(x)
    if x.ndim == 0 or x.shape[-1] != size:
        raise ValueError(
            f"`{name}` must have shape (..., {size}), one value a unit, got {describe(x)}."
        )
    return x.astype(dtype)


def instancewise(fn: Callable) -> Callable:
    """Lifts a function of vectors to arrays of vectors, whose leading axes broadcast."""
    names = list(inspect.signature(fn).parameters)

    @functools.wraps(fn)
    def lifted(*args: Array) -> PyTree:
        labels = names if len(names) == len(args) else [f"layer {k}" for k in range(len(args))]
        shape = broadcastable(**{k: x.shape[:-1] for k, x in zip(labels, args, strict=True)})
        if shape == ():
            return fn(*args)
        axes = tuple(None if x.ndim == 1 else 0 for x in args)
        size = math.prod(shape)
        flat = tuple(
            x
            if x.ndim == 1
            else jnp.broadcast_to(x, (*shape, x.shape[-1])).reshape(size, x.shape[-1])
            for x in args
        )
        out = jax.vmap(fn, axes)(*flat)
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), out)

    return lifted


def gaussian(
    shape: tuple[int, ...], scale: float, dtype: DTypeLike | None, key: PRNGKeyArray
) -> Float[Array, "..."]:
    """Normal random weights of standard deviation `scale`."""
    typed_key(key)
    number("scale", scale, 0, float("inf"), "[0, inf)")
    dtype = jax.dtypes.canonicalize_dtype(float if dtype is None else dtype)
    return jnp.asarray(scale, dtype) * jax.random.normal(key, shape, dtype)


def symmetrised(couplings: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The symmetric part without its diagonal: what the energy means, also after an update that
    broke the symmetry or while differentiating.
    """
    n = couplings.shape[0]
    mean = (couplings + couplings.T) / 2
    return jnp.where(jnp.eye(n, dtype=bool), jnp.zeros((), couplings.dtype), mean)
