"""How the variables of a graph are drawn in turns."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .. import _checks
from .._sentinels import EXCLUDED, LEAST
from .._types import AnyArray
from ..models import AbstractTurns, excludes, given, put, refuse, taken, unless_held
from ._nnbm_group import NNBMFactor


class Following(AbstractTurns):
    """Variables that no others determine are drawn, and those that they determine follow them. If
    there are none of these, variables that share no factor are drawn at once.
    """

    model: Any

    @property
    def order(self) -> Int[AnyArray, "turns width"]:  # pyright: ignore
        return self.model.sites.turns

    def scores(
        self,
        rows: Int[Array, "rows variables"],
        members: Int[Array, " width"],
        held: Bool[Array, "rows variables"] | None,
    ) -> Float[Array, "rows width most"]:
        own = taken(rows, members)
        if self.model.sites.depth:
            states = jnp.arange(self.model.layout.max_states, dtype=rows.dtype)

            def of_member(member: Int[Array, ""]) -> Float[Array, "most rows"]:
                def with_state(state: Int[Array, ""]) -> Float[Array, " rows"]:
                    placed = jnp.broadcast_to(state, (rows.shape[0], 1))
                    new = self.placed(rows, member[None], placed)
                    return -self.model.energies(self.layers(new))

                return jax.vmap(with_state)(states)

            found = jnp.moveaxis(jax.lax.map(of_member, members), -1, 0)
            number = jnp.asarray(self.site_states, rows.dtype).at[members].get(mode="clip")
            there = jnp.broadcast_to(states, found.shape) < jnp.broadcast_to(
                number[:, None], found.shape
            )
            found = jnp.where(there, found, -jnp.inf)
        else:
            found = given(self.model, self.layers(rows)).at[:, members].get(mode="clip")
        found = jnp.where(found < EXCLUDED / 2, -jnp.inf, found)
        return unless_held(found, own, None if held is None else taken(held, members))

    def conditionals(
        self, rows: Int[Array, "rows variables"]
    ) -> tuple[Float[Array, "rows sites most"], Int[Array, "rows sites"]]:
        """Of each variable that others do not determine; those that they do follow it. A row that
        factors exclude has no likelihood.
        """
        sites = self.model.sites
        if sites.is_free:
            return given(self.model, self.layers(rows)), rows
        members = jnp.asarray(sites.turns)[:, 0] if sites.depth else jnp.arange(rows.shape[1])
        scores, own = self.scores(rows, members, None), taken(rows, members)
        broken = jnp.isinf(self.model.energies(self.layers(rows)))[:, None, None]
        here = jax.nn.one_hot(own, scores.shape[-1], dtype=bool)
        none = jnp.where(here, -jnp.inf, jnp.zeros_like(scores))
        return jnp.where(jnp.broadcast_to(broken, here.shape), none, scores), own

    def placed(
        self,
        rows: Int[Array, "rows variables"],
        members: Int[Array, " width"],
        states: Int[Array, "rows width"],
    ) -> Int[Array, "rows variables"]:
        return self.model.sites.followed(put(rows, members, states))

    def completed(
        self,
        rows: Int[Array, "rows variables"],
        fixed: Bool[Array, "rows variables"],
        key: PRNGKeyArray,
    ) -> Int[Array, "rows variables"]:
        """Variables of which configurations are excluded get possible ones, states that evidence
        excludes are left for the best ones, and what others determine follows.
        """
        model, new, most = self.model, rows, self.model.layout.max_states
        parts = [units.scores(x) for units, x in zip(model.layers, model.unary(), strict=True)]
        wide = [((0, 0), (0, most - x.shape[-1])) for x in parts]
        parts = [jnp.pad(x, w, constant_values=LEAST) for x, w in zip(parts, wide, strict=True)]
        scores = jnp.concatenate(parts)
        for k, part in enumerate(model.sites.possible):
            new = part.drawn(new, fixed, scores >= EXCLUDED / 2, jax.random.fold_in(key, k))
        scores = jnp.broadcast_to(scores, (*rows.shape, most))
        own = jnp.take_along_axis(scores, new[..., None], axis=-1)[..., 0]
        new = jnp.where(own < EXCLUDED / 2, scores.argmax(-1).astype(rows.dtype), new)
        return model.sites.followed(jnp.where(fixed, rows, new))

    @property
    def determined(self) -> Int[AnyArray, " _"]:
        return self.model.sites.children

    def log_number(self) -> Float[Array, ""]:
        model, sites = self.model, self.model.sites
        if not all(part.whole for part in sites.possible):
            refuse(model, "have fewer choices that pools share for annealing", "take `BP`")
        if not sites.is_free and any(map(excludes, model.evidence)):
            refuse(model, "exclude no states of variables by evidence for annealing", "take `BP`")
        pairs = zip(model.layers, model.unary(), strict=True)
        possible = [(units.scores(bias) >= EXCLUDED / 2).sum(-1) for units, bias in pairs]
        counts = jnp.log(jnp.concatenate(possible).astype(model.dtype))
        counts = counts.at[jnp.asarray(sites.children)].set(0.0)
        for part in sites.possible:
            members = jnp.asarray(part.members)
            # All of a set count at its first variable.
            counts = counts.at[members].set(0.0)
            counts = counts.at[members[:, 0]].set(math.log(len(part.rows)))
        return counts.sum()

    def no_chains(self) -> str | None:
        model, sites = self.model, self.model.sites
        if any(kind.type is NNBMFactor for kind in model.layout.kinds):
            return "the states of its quantised units have weights, which chains ignore; take `BP`"
        if sites.problem is not None:
            return f"{sites.problem}; take `PMP`"
        if any(excludes(x) for x in model.log_potentials):
            return (
                "its log-potentials exclude configurations, so that variables may not come past"
                " each other; take `PMP`, or factors that list possible configurations alone"
            )
        if len(sites.children) and self._is_held_back():
            return (
                "its evidence excludes states of variables that others determine, so that these may"
                " not come past each other; take `PMP`"
            )
        return None

    def _is_held_back(self) -> bool:
        """Whether evidence that is known excludes a state of a variable that others determine."""
        if not _checks.is_concrete((self.model.evidence, self.determined)):
            return False
        excluded = [
            (np.asarray(x).reshape(-1, x.shape[-1]) < EXCLUDED / 2).any(-1)
            for x in self.model.evidence
        ]
        return bool(np.concatenate(excluded)[np.asarray(self.determined)].any())

    def no_moves(self) -> str | None:
        reason = self.no_chains()
        if reason is None and not self.model.sites.is_free:
            return (
                "some of its factors exclude configurations; take `Gibbs`, which moves what they"
                " determine with what determines it"
            )
        return reason

    def mended(self, states: tuple[Array, ...], clamp: tuple[Any, ...]) -> tuple[Array, ...]:
        """Variables that others determine follow, unless factors contend for one of them."""
        held = None
        if any(x is not None for x in clamp):
            pairs = zip(states, clamp, strict=True)
            held = [jnp.zeros(x.shape, bool) if own is None else own >= 0 for x, own in pairs]
            held = jnp.concatenate(held)[None]
        rows = self.model.sites.followed(jnp.concatenate(states)[None], held)[0]
        return tuple(self.model.variables.cut(rows))
