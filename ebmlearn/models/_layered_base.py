import abc
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from .. import _checks
from .._types import Batch
from ..factors import AbstractFactor, Dense
from ..units import AbstractUnits
from ._alone import by_frequency, by_normal
from ._base import matrices_of, Result, States, Strength
from ._named_base import AbstractNamedModel
from ._sides import two_sides
from ._statistics import Statistics


Layered = TypeVar("Layered", bound="AbstractLayeredModel")


class AbstractLayeredModel(AbstractNamedModel):
    """Layers of units, whose energy holds products of one or two units:

    $E(x) = \\sum_k E_0(x_k) - \\sum_k b_k \\cdot x_k - \\sum_{kl} x_k^\\top W_{kl} x_l$.

    Subclasses say what their layers, biases and blocks of weights are.
    """

    @abc.abstractmethod
    def remade(
        self: Layered,
        layers: tuple[AbstractUnits, ...],
        blocks: tuple[Float[Array, "_ _"], ...],
        unary: tuple[Float[Array, "... _"], ...],
    ) -> Layered:
        """The model with other units of the same kinds, other weights and other biases."""

    def factors(self, product: str = "sum") -> tuple[AbstractFactor, ...]:
        """A dense factor for each block of weights."""
        names = self.names
        return tuple(Dense(names[b.first], names[b.second], b.weights) for b in self.blocks())

    def with_unary(self: Layered, unary: tuple[Float[Array, "... _"], ...]) -> Layered:
        """The model with other biases, as `unary` gives them."""
        return self.remade(self.layers, tuple(b.weights for b in self.blocks()), tuple(unary))

    def tempered(self: Layered, beta: float | Float[Array, ""]) -> Layered:
        """The model of $p(x)^\\beta$, for a positive $\\beta$ where units are real."""
        if not self.finite:
            _checks.number("beta", beta, 0, float("inf"), "(0, inf)")
        beta = jnp.asarray(beta, self.dtype)
        return self.remade(
            tuple(layer.tempered(beta) for layer in self.layers),
            tuple(beta * block.weights for block in self.blocks()),
            tuple(beta * bias for bias in self.unary()),
        )

    def batched(self: Layered, shape: tuple[int, ...]) -> Layered:
        """The model with an instance for each row of a batch of this shape, along one axis; itself
        if it is a single one.
        """
        if self.batch_shape == ():
            return self
        size = math.prod(shape)
        biases = [
            b if b.ndim == 1 else jnp.broadcast_to(b, (*shape, b.shape[-1])).reshape(size, -1)
            for b in self.unary()
        ]
        return self.with_unary(tuple(biases))

    def uncentred(self: Layered, offsets: PyTree, batch: Batch | None = None) -> Layered:
        """The model whose energy is, up to a constant, this one's with $x - \\mu$ in place of $x$
        in all products of two units: biases less what the weights send from the offsets $\\mu$ of
        the units they join.
        """
        biases = list(self.unary())
        means = jax.tree.leaves(offsets)
        for first, second, weights, _ in self.blocks():
            ends = {first: weights @ means[second], second: means[first] @ weights}
            for layer, sent in ends.items():
                biases[layer] = biases[layer] - jnp.broadcast_to(sent, biases[layer].shape)
        return self.with_unary(tuple(biases))

    @property
    def kind(self) -> str:
        """`"binary"`, or else the families of all layers in order."""
        families = [layer.family for layer in self.layers]
        return families[0] if set(families) == {"binary"} else " ".join(families)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the biases: `()` for a single model."""
        return np.broadcast_shapes(*(bias.shape[:-1] for bias in type(self).unary(self)))

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the parameters."""
        return type(self).unary(self)[0].dtype

    @property
    def is_bipartite(self) -> bool:
        """Whether layers have two sides, and units are joined to units of the other side only."""
        return self.sides is not None

    @property
    def sides(self) -> tuple[int, ...] | None:
        """The side of each layer, 0 or 1, if no two units of a side are joined: in a DBM, 1 for the
        odd layers. None if there are no such sides.
        """
        edges = [(block.first, block.second) for block in type(self).blocks(self)]
        sides = two_sides(len(self.names), edges)
        return None if any(sides[a] == sides[b] for a, b in edges) else tuple(sides)

    @property
    def summed(self) -> tuple[int, ...]:
        """Layers other than the first that are independent of each other given the rest, hidden or
        not, so that chains can draw them first and sum them out: the odd ones of a DBM.
        """
        joined = {frozenset((block.first, block.second)) for block in self.blocks()}
        out: list[int] = []
        for k in range(1, len(self.names)):
            if not any(frozenset((k, other)) in joined for other in (*out, k)):
                out.append(k)
        return tuple(out)

    @property
    def is_closed(self) -> bool:
        """Whether hidden units are independent given what data tell: each edge then ends there."""
        return all(b.first in self.seen or b.second in self.seen for b in self.blocks())

    def decayed(self: Layered) -> Layered:
        """What weight decay pulls on: all weights, without what lies on the diagonals of couplings
        inside a layer.
        """
        return matrices_of(self)

    def if_complete(
        self,
        seen: PyTree,
        observed: Bool[Array, "rows _"] | None,
        formula: Callable[[], Result],
        infer: Callable[[], Result],
    ) -> Result:
        """What `formula` gives where hidden units are independent given what is seen and nothing
        is missing, else what `infer` gives.
        """
        return formula() if self.is_closed and observed is None else infer()

    def complete(self, seen: Sequence[Float[Array, "rows _"]], mode: bool = False) -> Statistics:
        """The statistics given what is seen, by formula; or those of the most likely hidden
        units.
        """
        return self.conditional_statistics(self.filled(seen), self.unseen, mode=mode)

    def complete_energies(self, seen: Sequence[Float[Array, "rows _"]]) -> Float[Array, " rows"]:
        """Minus the log-potential of what is seen, hidden units summed out, by formula."""
        return self._without(self.unseen, self.filled(seen))

    @property
    def query_defaults(self) -> tuple[float, Strength] | None:
        """Of a [`ebmlearn.QueryModel`][], where the scale of answers and the strength of evidence
        start; None if it can be of no such model.
        """
        return {"binary": (5.0, (1000.0, 9.21)), "gaussian binary": (1.0, None)}.get(self.kind)

    def surprise_alone(
        self, train: Float[Array, "_ units"], rows: Float[Array, "rows units"]
    ) -> Float[Array, "rows units"]:
        """By the frequencies of binary units, or the means and variances of Gaussian ones."""
        return {"binary": by_frequency, "gaussian binary": by_normal}[self.kind](train, rows)

    def centred_form(self: Layered) -> Layered:
        """Its parameters in the form of units ±1, in a model of the same class, if its units are
        binary.
        """
        if self.kind != "binary":
            return self
        offsets = [jnp.full_like(bias, -0.5) for bias in self.unary()]
        return times_weights(self.uncentred(offsets), 0.5)

    def plain_form(self: Layered) -> Layered:
        """The reverse of `centred_form`."""
        if self.kind != "binary":
            return self
        plain = times_weights(self, 2.0)
        return plain.uncentred([jnp.full_like(bias, 0.5) for bias in plain.unary()])

    def sampled_statistics(self, units: PyTree, means: bool) -> Statistics:
        """The statistics of samples; with `means`, layers that can be summed out are replaced by
        their means given the others.
        """
        return self.conditional_statistics(self.encode(units), self.summed if means else ())

    def field(self, layers: States, layer: int, inside: bool = True) -> Float[Array, "rows _"]:
        """The field of a layer: the biases and what all other units send, with or without the
        couplings inside the layer. States are in their internal form.
        """
        out = jnp.broadcast_to(self.unary()[layer], layers[layer].shape)
        for first, second, weights, _ in self.blocks():
            if second == layer and (inside or first != layer):
                out = out + layers[first] @ weights
            elif first == layer and second != layer:
                out = out + layers[second] @ weights.T
        return out

    def near(self, units: PyTree, key: PRNGKeyArray) -> list[Float[Array, "rows _"]]:
        """The states that data tell. Of hidden layers, those that a sweep begins with need no
        states; the others are drawn.
        """
        layers = jax.tree.leaves(units)
        for k, own in enumerate(jax.random.split(key, len(layers))):
            if k not in self.seen and k not in self.summed:
                layers[k] = self.layers[k].sample(self.field(layers, k), own)
        return layers

    def fields(self, layers: States) -> list[Float[Array, "rows _"]]:
        """What all other units send to those of each layer, and their biases."""
        return [self.field(layers, k) for k in range(len(layers))]

    def between(
        self: Layered, base: tuple[Float[Array, " _"], ...], beta: Float[Array, ""]
    ) -> Layered:
        """The model of $p_0^{1-\\beta} p^\\beta$, where the units of $p_0$ are independent and in
        the fields `base`.
        """
        biases = [
            (1 - beta) * start + beta * end for start, end in zip(base, self.unary(), strict=True)
        ]
        return self.tempered(beta).with_unary(tuple(biases))

    def independent(
        self: Layered,
        seen: Sequence[Float[Array, "rows _"]],
        observed: Bool[Array, "rows _"] | None,
    ) -> Layered:
        """The model without weights whose visible units have the means of the data, to which two
        rows at the mean of units in no field are added.
        """
        biases = list(self.unary())
        for k, x in zip(self.seen, seen, strict=True):
            units = self.layers[k]
            there = jnp.ones(x.shape, bool)
            if observed is not None and k == self.seen[0]:
                there = jnp.repeat(observed, x.shape[-1] // units.size, axis=-1)
            total = jnp.where(there, x, jnp.zeros_like(x)).sum(0)
            rows = there.sum(0).astype(x.dtype)
            biases[k] = units.natural_of(total, rows)
        weights = tuple(jnp.zeros_like(block.weights) for block in self.blocks())
        return self.remade(self.layers, weights, tuple(biases))

    def energies(self, layers: States) -> Float[Array, " rows"]:
        """The energy of internal states of all layers."""
        out = jnp.zeros(layers[0].shape[0], layers[0].dtype)
        for bias, x in zip(self.unary(), layers, strict=True):
            out = out - (jnp.broadcast_to(bias, x.shape) * x).sum(-1)
        for first, second, weights, _ in self.blocks():
            share = 0.5 if first == second else 1.0
            out = out - share * ((layers[first] @ weights) * layers[second]).sum(-1)
        return self._with_base(out, layers, range(len(layers)))

    def marginal_energies(
        self, layers: States, beta: Float[Array, "rows 1"] | None = None
    ) -> Float[Array, " rows"]:
        """Minus the log-potential of states, with the layers `summed` summed out; at inverse
        temperature `beta`, if given, which may differ from row to row.
        """
        return self._without(self.summed, layers, beta)

    def _without(
        self, summed: tuple[int, ...], layers: States, beta: Float[Array, "rows 1"] | None = None
    ) -> Float[Array, " rows"]:
        """The same with other layers summed out, of which no two are joined."""
        out = jnp.zeros(layers[0].shape[0], layers[0].dtype)
        normalisers = jnp.zeros_like(out)
        for k, x in enumerate(layers):
            if k in summed:
                units, field = self.layers[k], self.field(layers, k)
                if beta is not None:
                    units, field = units.tempered(beta), jnp.broadcast_to(beta, x.shape) * field
                normalisers = normalisers + units.log_normaliser(field)
            else:
                out = out - (jnp.broadcast_to(self.unary()[k], x.shape) * x).sum(-1)
        for first, second, weights, _ in self.blocks():
            if first not in summed and second not in summed:
                share = 0.5 if first == second else 1.0
                out = out - share * ((layers[first] @ weights) * layers[second]).sum(-1)
        out = self._with_base(out, layers, [k for k in range(len(layers)) if k not in summed])
        return (out if beta is None else beta[:, 0] * out) - normalisers

    def _with_base(self, out: Array, layers: States, which: Sequence[int]) -> Array:
        for k in which:
            if not self.layers[k].linear:
                out = out + self.layers[k].base_energy(layers[k])
        return out

    def conditional_statistics(
        self,
        layers: States,
        free: tuple[int, ...],
        weights: Float[Array, " rows"] | None = None,
        mode: bool = False,
    ) -> Statistics:
        """The statistics of states in which the units of some layers, of which no two are joined,
        are replaced by their means given the others, or by their most likely states. Rows may have
        weights that sum to 1.
        """
        size = layers[0].shape[0]
        means, squares = list(layers), []
        for k, units in enumerate(self.layers):
            field = self.field(layers, k) if k in free else None
            if field is not None:
                means[k] = units.mode(field) if mode else units.mean(field)
            if units.linear:
                squares.append(None)
            elif field is None or mode:
                squares.append(units.statistics(means[k]))
            else:
                squares.append(units.mean_statistics(field))
        heavy = means
        if weights is not None:
            shares = size * weights[:, None]
            heavy = [x * jnp.broadcast_to(shares, x.shape) for x in means]
            squares = [
                None if x is None else x * jnp.broadcast_to(shares, x.shape) for x in squares
            ]
        pairs = tuple(heavy[b.first].T @ means[b.second] / size for b in self.blocks())
        return Statistics(
            units=self.units(heavy),
            pairwise=self.by_factor(pairs),
            squares=tuple(squares),
            converged=jnp.ones(size, bool),
            iterations=jnp.zeros(size, jnp.int32),
            residual=jnp.zeros(size, layers[0].dtype),
        )

    def expected_energy(self, statistics: Statistics) -> Float[Array, ""]:
        """The mean energy under expected statistics. Its gradient with the statistics held fixed is
        minus the statistics, which is all that learning needs. Couplings inside a layer hold each
        edge twice; an edge counts as one parameter, so that its gradient stands whole at both
        places.
        """
        out = jnp.zeros((), self.dtype)
        for bias, x in zip(self.unary(), jax.tree.leaves(statistics.units), strict=True):
            if bias.ndim == 1:
                out = out - bias @ x.mean(tuple(range(x.ndim - 1)))
            else:
                shape = jnp.broadcast_shapes(bias.shape, x.shape)
                both = jnp.broadcast_to(bias, shape) * jnp.broadcast_to(x, shape)
                out = out - both.sum(-1).mean()
        pairs = jax.tree.leaves(statistics.pairwise)
        for block, pair in zip(self.blocks(), pairs, strict=True):
            if block.first == block.second:
                out = out - (as_edges(block.weights) * pair).sum() / 2
            else:
                out = out - (block.weights * pair).sum()
        for layer, x in zip(self.layers, statistics.squares, strict=True):
            if x is not None:
                out = out + layer.own_energy(x).mean()
        return out


def as_edges(couplings: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Symmetric couplings in which the gradient of an edge stands whole at both its places, rather
    than half at each.
    """
    return 2 * couplings - jax.lax.stop_gradient(couplings)


def times_weights(model: Layered, factor: float) -> Layered:
    """The model with its matrices times a number."""
    return jax.tree.map(lambda x: x * jnp.asarray(factor, x.dtype) if x.ndim == 2 else x, model)
