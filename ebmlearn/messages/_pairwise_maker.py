from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._types import AnyArray
from ..models._edges import edges_of
from ._edge import odds_serve
from ._pairwise import Instance, PairwiseView
from ._registry import AbstractMaker, Stacks
from ._types import Form, Product, Schedule
from ._view import Expected, Told


class PairwiseMaker(AbstractMaker):
    """Messages of binary units in layers."""

    def instances(self, problem: Any) -> Instance:
        """Units known for sure are clamped, those known by a likelihood have it added to their
        unary terms.
        """
        unary, given = problem.model.unary(), problem.given()
        clamp: list[Any] = [None] * len(unary)
        if given is not None:
            evidence, observed = given
            bias = jnp.broadcast_to(unary[0], evidence.shape)
            sure = observed & ((evidence == 0) | (evidence == 1))
            clamp[0] = jnp.where(sure, 2 * evidence - 1, jnp.zeros_like(evidence))
            likely = jnp.where(observed & ~sure, evidence, jnp.full_like(evidence, 0.5))
            unary = (bias + jax.scipy.special.logit(likely), *unary[1:])
        return Instance(
            tuple(problem.flat(x) for x in unary),
            tuple(None if x is None else problem.flat(x) for x in clamp),
        )

    def perturbed(
        self, model: Any, units: Any, clamped: Any, noise: tuple[Float[Array, "rows _"], ...]
    ) -> tuple[Instance, tuple[Float[Array, "rows _"], ...]]:
        clamp: list[Any] = [None] * len(noise)
        if clamped is not None:
            held = jax.tree.leaves(clamped, is_leaf=lambda x: x is None)
            for k, (mask, x) in enumerate(zip(held, model.encode(units), strict=True)):
                if mask is not None:
                    clamp[k] = jnp.where(mask, 2 * x - 1, jnp.zeros_like(x))
            noise = tuple(
                n if mask is None else jnp.where(mask, jnp.zeros_like(n), n)
                for n, mask in zip(noise, held, strict=True)
            )
        pairs = zip(model.unary(), noise, strict=True)
        unary = tuple(jnp.broadcast_to(u, n.shape) + n for u, n in pairs)
        return Instance(unary, tuple(clamp)), noise

    def noise_in(
        self, model: Any, noise: tuple[Float[Array, "rows _"], ...], groups: tuple[Hashable, ...]
    ) -> tuple[Float[Array, "rows _"], ...]:
        for group in groups:
            if group not in model.names:
                wanted = ", ".join(repr(name) for name in model.names)
                raise ValueError(f"`perturb` must hold some of {wanted}, got {group!r}.")
        pairs = zip(model.names, noise, strict=True)
        return tuple(x if name in groups else jnp.zeros_like(x) for name, x in pairs)

    def told(
        self, problem: Any, beliefs: tuple[Array, ...], temperature: Float[AnyArray, ""]
    ) -> Told:
        return Told(problem.model.units([temperature * x for x in beliefs]))

    def view(
        self,
        model: Any,
        product: Product,
        form: Form,
        schedule: Schedule,
        damping: Float[AnyArray, ""] | None,
        beta: Float[AnyArray, ""],
    ) -> PairwiseView:
        return PairwiseView(model, product, form, schedule, damping, beta)

    def check(self, model: Any, product: Product, temperature: float | Float[AnyArray, ""]) -> None:
        """Nothing is beyond these messages."""

    def check_mixed(self, model: Any, argument: str) -> None:
        """Nothing is beyond these messages."""

    def fits(
        self, model: Any, temperature: Float[AnyArray, ""], damped: bool
    ) -> bool | Bool[AnyArray, ""]:
        return False if damped else odds_serve(type(model).blocks(model), temperature)

    def takes_turns(self, model: Any) -> bool:
        return model.is_bipartite

    def tables(self, model: Any) -> Stacks:
        """An edge is a table of the states of two units."""
        edges, weights = edges_of(model)
        both = jnp.zeros((len(edges), 2, 2), weights.dtype).at[:, 1, 1].set(weights)
        return ((edges, both),)

    def mended(self, model: Any, states: Any, instance: Instance) -> Any:
        """The states as they are: no factor determines a unit."""
        return states

    def rows(
        self, model: Any, instance: Instance
    ) -> tuple[Float[Array, "variables 2"], Bool[Array, "variables 2"]]:
        unary = jnp.concatenate(instance.unary)
        held = [
            jnp.zeros_like(u) if c is None else c
            for u, c in zip(instance.unary, instance.clamp, strict=True)
        ]
        clamp = jnp.concatenate(held)
        return jnp.stack([jnp.zeros_like(unary), unary], 1), jnp.stack([clamp <= 0, clamp >= 0], 1)

    def scored(
        self, scores: Float[Array, "variables 2"], instance: Instance
    ) -> tuple[Float[Array, " _"], ...]:
        ends = np.cumsum([u.shape[0] for u in instance.unary])[:-1]
        return tuple(jnp.split(scores[:, 1] - scores[:, 0], ends))

    def expected(
        self,
        model: Any,
        members: tuple[Int[AnyArray, "edges 2"], ...],
        p: Float[Array, "variables 2"],
        joint: tuple[Float[Array, "edges 2 2"], ...],
    ) -> Expected:
        sizes = [bias.shape[-1] for bias in model.unary()]
        ends = np.cumsum(sizes).tolist()
        (edges,), (both,) = members, joint
        # Units without an edge are independent.
        one = p[:, 1]
        pairs = one[:, None] * one[None, :]
        for a, b in ((0, 1), (1, 0)):
            pairs = pairs.at[edges[:, a], edges[:, b]].set(both[:, 1, 1])
        pairs = jnp.where(jnp.eye(pairs.shape[0], dtype=bool), one[:, None], pairs)
        spans = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        blocks = tuple(pairs[spans[b.first], spans[b.second]] for b in model.blocks())
        return Expected(tuple(one[span] for span in spans), blocks, (None,) * len(sizes))

    def size(self, model: Any, schedule: Schedule) -> int:
        return sum(block.weights.size for block in type(model).blocks(model))
