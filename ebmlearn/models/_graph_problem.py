import math
from collections.abc import Hashable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .. import _checks
from .._sentinels import EXCLUDED, LEAST
from .._types import AnyArray, Targets
from ..units import Binary
from ._groups import cut_states, cut_units
from ._problem import AbstractSampled, Chained, held_at, Instance, whole


# Where a variable stands among all, its group and its index there.
Place = tuple[int, Hashable, tuple[int, ...]]


class GraphProblem(AbstractSampled):
    """A graph with evidence on some of its variables, checked. `outputs` are the variables over
    which mixed-product maximises, if they are known: those that training data tell.
    """

    model: Any
    held: Int[AnyArray, "*#batch variables"] | None
    log_likelihood: Float[Array, "*#batch states"] | None
    outputs: Bool[Array, "*#batch variables"] | None

    def __init__(self, model: Any, evidence: Any = None, observed: Any = None):
        self.model = model
        self.held = self.log_likelihood = self.outputs = None
        if observed is not None and evidence is None:
            raise ValueError("`evidence` and `observed` go together, got no `evidence`.")
        if evidence is None:
            return
        if observed is not None:
            evidence = masked(evidence, observed, "evidence", "observed")
        evidence, self.log_likelihood = model.likelihood(evidence)
        if not isinstance(evidence, Mapping) or evidence:
            self.held = model.rows(evidence, "evidence")

    def checked(self) -> "GraphProblem":
        """The same, whose evidence raises at run time what could not be found before."""
        out = self
        if out.held is not None and not _checks.is_concrete(out.held):
            held = jnp.asarray(out.held).astype(jnp.int32)
            most = jnp.asarray(self.model.num_states, jnp.int32)
            wrong = (held < -1) | (held >= jnp.broadcast_to(most, held.shape))
            message = "`evidence` must hold states of its variables, or -1 where not known."
            out = eqx.tree_at(lambda p: p.held, out, eqx.error_if(held, wrong, message))
        soft = out.log_likelihood
        if soft is not None and not _checks.is_concrete(soft):
            message = "`evidence` must hold finite likelihoods >= 0."
            # Logarithms of what is infinite, or below 0.
            soft = eqx.error_if(soft, jnp.isnan(soft) | (soft == jnp.inf), message)
            out = out.with_likelihood(soft)
        return out

    def maximised(self) -> tuple[int, ...] | None:
        """No whole groups: mixed-product maximises over `outputs`; None if these are not known."""
        return None if self.outputs is None else ()

    def with_likelihood(
        self, log_likelihood: Float[Array, "*#batch states"] | None
    ) -> "GraphProblem":
        """The same with another likelihood of the states of all variables."""
        return eqx.tree_at(
            lambda p: p.log_likelihood, self, log_likelihood, is_leaf=lambda x: x is None
        )

    def with_outputs(self, outputs: Bool[Array, "*#batch variables"]) -> "GraphProblem":
        """The same with the variables over which mixed-product maximises."""
        return eqx.tree_at(lambda p: p.outputs, self, outputs, is_leaf=lambda x: x is None)

    def with_rows(self, rows: Int[Array, "*batch variables"]) -> "GraphProblem":
        """The same with other states that are held."""
        return eqx.tree_at(lambda p: p.held, self, rows, is_leaf=lambda x: x is None)

    @property
    def shape(self) -> tuple[int, ...]:
        """The batch shape."""
        given = {
            "evidence": self.held,
            "likelihoods": self.log_likelihood,
            "outputs": self.outputs,
        }
        return _checks.broadcastable(**{k: x.shape[:-1] for k, x in given.items() if x is not None})

    @property
    def rows(self) -> Int[Array, "*batch variables"]:
        """The states that are held, for each instance, -1 where free."""
        size = len(self.model.num_states)
        held = jnp.full(size, -1, jnp.int32) if self.held is None else jnp.asarray(self.held)
        return jnp.broadcast_to(held, (*self.shape, size))

    def instances(self) -> Instance:
        """Of binary units the log-odds, and `offset` has the rest; those of which evidence excludes
        a state are held at the other.
        """
        model = self.model
        rows, there = self.scores()
        clamp: list[Any] = [None] * len(model.layers)
        kinds: Any = model.layers
        sizes = tuple(((u.size,), u.number) for u in kinds)
        if self.held is not None:
            held = self.flat(jnp.asarray(self.held).astype(jnp.int32))
            clamp = list(cut_states(held, sizes))
        parts = list(cut_units(jnp.where(there, rows, self._outside(rows)), sizes))
        for k, units in enumerate(model.layers):
            if isinstance(units, Binary):
                low, high = (cut_units(there, sizes)[k][..., s] for s in (0, 1))
                sure = ~(low & high)
                free = self.held is None and self.log_likelihood is None
                clamp[k] = None if free else held_at(units, high, sure, model.dtype)
                gap = cut_units(rows, sizes)[k]
                parts[k] = jnp.where(sure, 0.0, gap[..., 1] - gap[..., 0]).astype(rows.dtype)
        return Instance(tuple(parts), tuple(clamp))

    def _outside(self, rows: Float[Array, "rows variables most"]) -> Array:
        """What stands for the score of a state that is not there: less than any, if a variable does
        not have it.
        """
        has = self.model.padded(jnp.ones_like(self.model.unary()[0])) > 0
        has = jnp.broadcast_to(has, rows.shape)
        return jnp.where(has, rows, jnp.asarray(LEAST, rows.dtype))

    def scores(
        self,
    ) -> tuple[Float[Array, "instances variables most"], Bool[Array, "instances variables most"]]:
        (unary,) = self.model.unary()
        flat = self.flat(unary)
        if self.log_likelihood is not None:
            flat = flat + self.flat(self.log_likelihood.astype(flat.dtype))
        rows = self.model.padded(flat)
        there = (self.model.padded(jnp.ones_like(flat)) > 0) & (rows > EXCLUDED / 2)
        held = jnp.broadcast_to(self.flat(self.rows)[..., None], rows.shape)
        states = jnp.arange(rows.shape[-1], dtype=held.dtype)
        chosen = jnp.broadcast_to(states, rows.shape) == held
        return rows, there & (chosen | (held < 0))

    @property
    def offset(self) -> Float[Array, "*batch"]:
        rows, there = self.scores()
        total, at = jnp.zeros(rows.shape[0], rows.dtype), 0
        for units in self.model.layers:
            if isinstance(units, Binary):
                own = slice(at, at + units.size)
                low, high = (rows[:, own, s] for s in (0, 1))
                high = jnp.where(there[:, own, 1], high, -jnp.inf)
                total = total + jnp.where(there[:, own, 0], low, high).sum(-1)
            at += units.size
        return total.reshape(self.shape)

    def told(self, beliefs: tuple[Any, ...]) -> PyTree:
        """Scores of the states of variables, by group."""
        return self._joined(beliefs, jnp.zeros_like, LEAST)

    def expected(self, units: tuple[Any, ...]) -> PyTree:
        """Probabilities of the states of variables, by group."""
        return self._joined(units, lambda p: 1 - p, 0.0)

    def _joined(self, parts: tuple[Any, ...], other: Any, nothing: float) -> PyTree:
        """One number for each state of each variable, by group. Binary units have one for 1."""
        rows = [
            jnp.stack([other(x), x], -1) if isinstance(units, Binary) else x
            for units, x in zip(self.model.layers, parts, strict=True)
        ]
        most = max(x.shape[-1] for x in rows)
        wide = [
            jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, most - x.shape[-1])], constant_values=nothing)
            for x in rows
        ]
        return self.model.units((jnp.concatenate(wide, -2),))

    def flat(self, x: Array) -> Array:
        """An array of all variables, with one leading axis of instances."""
        x = jnp.broadcast_to(x, (*self.shape, x.shape[-1]))
        return x.reshape(math.prod(self.shape), x.shape[-1])

    def means(self, log_odds: PyTree) -> PyTree:
        """Probabilities of all states from scores, by group."""
        return each_group(jax.nn.softmax, log_odds)

    def decode(self, log_odds: PyTree) -> PyTree:
        """The likeliest states, by group."""
        return each_group(lambda x: x.argmax(-1).astype(jnp.int32), log_odds)

    def known(self) -> None:
        """Nothing: evidence is as strong as was learned."""
        return

    @property
    def is_answered(self) -> bool:
        """Whether evidence is known to fix everything."""
        rows = self.rows
        return _checks.is_concrete(rows) and bool((rows >= 0).all())

    def place(self, target: Targets) -> Place:
        """Where a variable stands among all, its group and its index there, or an error."""
        if not isinstance(target, (tuple, list)) or len(target) != 2:
            raise ValueError(f"`targets` must be pairs of a group and an index, got {target!r}.")
        group, index = target
        places = self.model.places(group, "targets")
        numbers = tuple(whole(k) for k in np.atleast_1d(index))
        if len(numbers) != places.ndim or any(
            k is None or not -n <= k < n for k, n in zip(numbers, places.shape, strict=True)
        ):
            raise ValueError(
                "`targets` must hold indices of variables in a group of shape"
                f" {places.shape}, got {index!r}."
            )
        return int(places[numbers]), group, numbers  # pyright: ignore

    def holds(self, places: list[Place]) -> bool:
        """Whether some of the variables are known to be observed."""
        rows = self.rows
        at = np.array([place for place, _, _ in places])
        return _checks.is_concrete(rows) and bool((rows[..., at] >= 0).any())

    def with_states(self, places: list[Place], states: tuple[int, ...]) -> "GraphProblem":
        """The same problem with the states of some variables fixed too."""
        at = np.array([place for place, _, _ in places], int)
        rows = self.rows.at[..., at].set(jnp.asarray(states, self.rows.dtype))
        return self.with_rows(rows)

    def distribution(self, means: Any, place: Place) -> Float[Array, "*batch states"]:
        """The probabilities of the states of one variable."""
        number, group, index = place
        states = slice(int(self.model.num_states[number]))
        return means.take(group, "`targets`")[(..., *index, states)]

    def chosen(self, answer: Any, targets: Targets) -> PyTree:
        """The answers for one group."""
        answer.take(targets, "`targets`")  # or an error that names the argument
        return answer[targets]

    def take(self, named: Any, name: Hashable) -> PyTree:
        """What belongs to a group."""
        return named[name]

    def answer(self, means: PyTree) -> PyTree:
        """What a query asks for: all groups."""
        return means

    def log_odds(self, means: PyTree) -> PyTree:
        """Logarithms of the probabilities, by group."""
        return each_group(jnp.log, means)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(np.asarray(self.model.num_states).tolist())

    def named(self, scores: Float[Array, "*batch variables most"]) -> PyTree:
        return self.model.units((jax.nn.log_softmax(scores, axis=-1),))

    def repeated(self, number: int, key: PRNGKeyArray) -> Chained | None:
        """The graph, and what is held of it in each chain; None if evidence has likelihoods."""
        if self.log_likelihood is not None:
            return None
        rows = jnp.tile(self.flat(self.rows), (number, 1))
        if self.held is None:
            return Chained(self.model, None, None)
        return Chained(self.model, rows, rows >= 0)

    def given_others(self, model: Any, units: PyTree, clamped: PyTree) -> PyTree:
        """The probabilities of all states given the states of all other variables, by group."""
        p = jax.nn.softmax(model.given(units))
        if clamped is not None:
            own = jax.nn.one_hot(units, p.shape[-1], dtype=p.dtype)
            p = jnp.where(jnp.broadcast_to(clamped[..., None], p.shape), own, p)
        return model.units((p,))

    def weakened(self, strength: Float[Array, ""]) -> tuple["GraphProblem", PyTree]:
        """The problem in which the states that are not observed lose so much score, and what of the
        scores was told of the variables themselves, by group: likelihoods are no answers.
        """
        graph, rows = self.model, self.rows
        most = int(graph.num_states.max())
        shape = (*rows.shape, most)

        def spread(x: Array) -> Array:
            return jnp.broadcast_to(x[..., None], shape)

        others = jnp.broadcast_to(jnp.arange(most), shape).astype(rows.dtype) != spread(rows)
        lost = jnp.where(others & spread(rows >= 0), -strength, jnp.zeros_like(strength))
        scores = graph.flattened(lost)
        soft, own = self.log_likelihood, None
        if soft is not None:
            soft = soft.astype(scores.dtype)
            scores = scores + soft
            own = graph.units((graph.padded(soft),))
        return GraphProblem(graph).with_likelihood(scores), own

    def surprise(
        self, log_odds: Any, rows: Int[Array, "rows variables"], targets: Bool[Array, "rows _"]
    ) -> Float[Array, " rows"]:
        """Minus the log-probability of the states of targets, each by itself, in nats."""
        asked = self.model.configuration(jnp.where(targets, rows, jnp.full_like(rows, -1)))
        sums = []
        for score, state in zip(log_odds.values, asked.values, strict=True):
            log_p = jax.nn.log_softmax(score)
            own = jnp.take_along_axis(log_p, jnp.maximum(state, 0)[..., None], axis=-1)[..., 0]
            own = jnp.where(state >= 0, own, jnp.zeros_like(own))
            sums.append(-own.reshape(own.shape[0], -1).sum(-1))
        return jnp.stack(sums).sum(0)


def each_group(fn: Any, named: Any, *more: Any) -> Any:
    """A function of the arrays of each group; what names the groups stays."""

    def of_one(x: Any, *others: Any) -> Any:
        return fn(x, *others) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(of_one, named, *more)


def masked(evidence: Any, observed: Any, name: str, mask_name: str) -> Any:
    """Evidence in which only what is observed counts; errors name both arguments."""
    if not isinstance(evidence, Mapping) or not isinstance(observed, Mapping):
        raise TypeError(
            f"`{name}` and `{mask_name}` must be dictionaries of groups of variables, got types"
            f" {type(evidence).__name__} and {type(observed).__name__}."
        )
    out = dict(evidence)
    for group, mask in observed.items():
        if group not in out:
            raise ValueError(f"`{mask_name}` must hold groups of `{name}` only, got another one.")
        if isinstance(out[group], Mapping):
            # By the names of variables; one mask may be for all of them.
            own = mask if isinstance(mask, Mapping) else dict.fromkeys(out[group], mask)
            out[group] = masked(out[group], own, name, mask_name)
            continue
        mask = mask if hasattr(mask, "dtype") else np.asarray(mask)
        if getattr(mask, "dtype", None) != jnp.bool_:
            raise TypeError(f"`{mask_name}` must hold booleans, got {_checks.describe(mask)}.")
        if not hasattr(out[group], "dtype") and not isinstance(out[group], int):
            got = _checks.describe(out[group])
            raise TypeError(f"`{name}` must hold arrays, got {got}.")
        given, mask = jnp.asarray(out[group]), jnp.asarray(mask)
        if jnp.issubdtype(given.dtype, jnp.floating):
            mask, nothing = mask[..., None], jnp.ones((), given.dtype)
        else:
            given = given.astype(jnp.int32)
            nothing = jnp.asarray(-1, jnp.int32)
        try:
            np.broadcast_shapes(mask.shape, given.shape)
        except ValueError:
            raise ValueError(
                f"`{mask_name}` must have the shape of the states of a group, {given.shape}, got"
                f" {_checks.describe(mask)}."
            ) from None
        with jax.numpy_rank_promotion("allow"):
            out[group] = jnp.where(mask, given, nothing)
    return out
