import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._sentinels import EXCLUDED
from .._types import AnyArray
from ..messages import Product
from ._layout import Kind, Layout, Wires
from ._normalisers import NORMALISERS
from ._scopes import SCOPES


class Tables(eqx.Module):
    """The log-potentials of a graph, and what configurations meet of them. `weights` are those of
    dense groups, `potentials` all others, one after the other.
    """

    layout: Layout = eqx.field(static=True)
    wires: Wires
    potentials: Float[Array, " configurations"]
    weights: tuple[Float[Array, "_ _"], ...]

    def log_potential(self, states: Int[Array, " variables"], product: Product) -> Float[Array, ""]:
        """The sum of the log-potentials that one configuration meets, minus infinity if it breaks a
        factor.
        """
        scores = self.chosen(states)
        vtof = scores[self.wires.states]
        out = jnp.zeros((), scores.dtype)
        for k, kind in enumerate(self.layout.kinds):
            met = self.normalisers(k, vtof[slice(*kind.messages)], product)
            out = out + jnp.where(met < EXCLUDED / 2, -jnp.inf, met).sum()
        for w, (first, second) in zip(self.weights, self.wires.ends, strict=True):
            out = out + self.is_one(scores, first) @ w @ self.is_one(scores, second)
        return out

    def features(
        self, states: Int[Array, " variables"], product: Product
    ) -> tuple[Float[Array, "..."], ...]:
        """The statistics of one configuration: 1 for each log-potential that it meets."""
        scores = self.chosen(states)
        dense = [
            self.is_one(scores, first)[:, None] * self.is_one(scores, second)[None, :]
            for first, second in self.wires.ends
        ]
        one = jnp.ones((), scores.dtype)
        return self.by_group(self.expected(scores[self.wires.states], product, one), dense)

    def expected_potential(self, q: Float[Array, " states"]) -> Float[Array, ""]:
        """The mean log-potential of independent variables with these probabilities of states, where
        all factors are dense groups or list their configurations.
        """
        # Not quite zero, so that a derivative is the product of the other probabilities there too.
        log_q = jnp.log(q + jnp.asarray(1e-20, q.dtype))[self.wires.states]
        out = jnp.zeros((), q.dtype)
        for k, kind in enumerate(self.layout.kinds):
            arguments, potentials = self.wires.arguments[k], self.potentials_of(kind)
            met = log_q[slice(*kind.messages)][arguments["factor_configs_edge_states"]]
            of = arguments["factor_configs_indices"]
            out = out + potentials @ jnp.exp(jax.ops.segment_sum(met, of, potentials.shape[0]))
        for w, (first, second) in zip(self.weights, self.wires.ends, strict=True):
            out = out + q[first + 1] @ w @ q[second + 1]
        return out

    def chosen(self, states: Int[Array, " variables"]) -> Float[Array, " states"]:
        """Scores that hold every variable at its state."""
        met = states[self.wires.variable] == self.wires.local
        dtype = self.potentials.dtype
        return jnp.where(met, jnp.zeros((), dtype), jnp.asarray(EXCLUDED, dtype))

    def is_one(
        self, chosen: Float[Array, " states"], first: Int[AnyArray, " n"]
    ) -> Float[Array, " n"]:
        """The states of binary variables whose scores hold them, from where their states begin."""
        return 1 + chosen[first + 1] / -EXCLUDED

    def expected(
        self, vtof: Float[Array, " edge_states"], product: Product, scale: Float[Array, ""]
    ) -> Float[Array, " configurations"]:
        """The belief of every configuration, given messages and log-potentials times `scale`."""
        parts = [jnp.zeros(0, vtof.dtype)]
        for k, kind in enumerate(self.layout.kinds):
            if kind.potentials[0] < kind.potentials[1]:
                messages = vtof[slice(*kind.messages)]
                parts.append(
                    jax.grad(lambda p, k=k, m=messages: self._log_z(k, m, p, product).sum())(
                        scale * self.potentials_of(kind)
                    )
                )
        return jnp.concatenate(parts)

    def normalisers(self, k: int, vtof: Float[Array, " _"], product: Product) -> Float[Array, " _"]:
        """Log Z of each factor of a kind, given messages towards it."""
        return self._log_z(k, vtof, self.potentials_of(self.layout.kinds[k]), product)

    def over_factors(self, k: int, x: Float[Array, " _"]) -> Float[Array, " _"]:
        """Numbers of the edges of a kind, for each of their states, added up over the edges of the
        same factor.
        """
        kind = self.layout.kinds[k]
        return SCOPES[kind.type](x, **self.wires.arguments[k], **kind.arguments())

    def potentials_of(self, kind: Kind) -> Float[Array, " _"]:
        """The log-potentials of all factors of a kind."""
        return self.potentials[slice(*kind.potentials)]

    def by_group(
        self, flat: Float[Array, " configurations"], dense: Sequence[Float[Array, "_ _"]]
    ) -> tuple[Float[Array, "..."], ...]:
        """Values of all log-potentials in the shapes of their groups."""
        out, at, blocks = [], 0, iter(dense)
        for shape, is_dense in self.layout.groups:
            if is_dense:
                out.append(next(blocks))
            else:
                size = math.prod(shape)
                out.append(flat[at : at + size].reshape(shape))
                at += size
        return tuple(out)

    def _log_z(self, k: int, vtof: Array, potentials: Array, product: Product) -> Array:
        kind = self.layout.kinds[k]
        own = {} if self.wires.factors[k] is None else {"factors": self.wires.factors[k]}
        return NORMALISERS[kind.type](
            vtof, potentials, product, **self.wires.arguments[k], **kind.arguments(), **own
        )
