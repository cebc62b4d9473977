"""A model with evidence, and functions of its instances."""

import abc
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TYPE_CHECKING, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, PyTree

from .. import _checks
from .._sentinels import CLAMPED, EXCLUDED, LIMIT
from .._types import AnyArray, Targets
from ..units import AbstractUnits, Binary


if TYPE_CHECKING:
    from ._base import AbstractPlainModel

Posed = TypeVar("Posed", bound="AbstractProblem")
# The number of a group, and that of a unit in it.
Place = tuple[int, int]


class Evidence(NamedTuple):
    """What is known of the units of a group, with any leading axes.

    !!! example

        ```python
        evidence = ebmlearn.models.Evidence(states=jnp.array([1, -1, 0]))  # the second is free
        ```

    **Fields:**

    - `states`: the states that are held, `[..., size]`; where `observed` is None, -1 for units that
      are free. Of binary units, a number between 0 and 1 is the likelihood of 1 against 0.
    - `observed`: which of the states count.
    - `likelihood`: the likelihood of each state, `[..., size, states]`.
    - `scores`: the same as logarithms.
    """

    states: Num[AnyArray, "..."] | Bool[AnyArray, "..."] | None = None
    observed: Bool[AnyArray, "..."] | None = None
    likelihood: Float[AnyArray, "..."] | None = None
    scores: Float[AnyArray, "..."] | None = None


class Held(NamedTuple):
    """Evidence of a group for each instance: states, which of them are held, and the logarithms of
    the likelihoods of all states; None for what there is none of.
    """

    states: Num[Array, "instances size"] | None
    mask: Bool[Array, "instances size"] | None
    scores: Float[Array, "instances size number"] | None


class Instance(NamedTuple):
    """What may differ between instances of one model, by group. Instances have one leading axis.

    - `unary`: the log-odds of binary units, the scores `[units, states]` of categorical ones, the
      fields of real ones.
    - `clamp`: which units are held. None, or for binary units an array that is 1 or -1 where a unit
      is held at 1 or 0, else 0; for categorical ones the states, -1 where a unit is free; for real
      ones the pair of evidence and what of it counts.
    """

    unary: tuple[Any, ...]
    clamp: tuple[Any, ...]


def held_at(units: AbstractUnits, states: AnyArray, mask: AnyArray, dtype: Any) -> Array:
    """The `clamp` of units that are held at their states where a mask says so."""
    if isinstance(units, Binary):
        return jnp.where(mask, 2 * states.astype(dtype) - 1, jnp.zeros((), dtype))
    return jnp.where(mask, states.astype(jnp.int32), -1)


class AbstractProblem(eqx.Module):
    """A model with checked evidence, on which inferences work."""

    model: eqx.AbstractVar[Any]

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The batch shape."""

    @abc.abstractmethod
    def with_states(self: Posed, places: list[Place], states: tuple[int, ...]) -> Posed:
        """The same problem with the states of some units fixed too."""


class Problem(AbstractProblem):
    """A model of groups with evidence, checked.

    - `evidence`: for each group, or None.
    - `outputs`: the units over which mixed-product maximises. If None, it maximises over the
      visible layers; named groups need it.
    - `verified`: whether the values of evidence could be looked at, or need not be.

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(3, 2)
        seen = ebmlearn.models.Evidence(states=jnp.array([1, -1, 0]))
        ebmlearn.models.Problem(rbm, (seen, None)).evidence
        ```
    """

    model: Any
    evidence: tuple[Evidence | None, ...]
    outputs: Bool[Array, "*#batch units"] | None
    verified: bool = eqx.field(static=True)
    ranks: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        model: "AbstractPlainModel",
        evidence: tuple[Evidence | None, ...] = (),
        outputs: Bool[Array, "*#batch units"] | None = None,
        trusted: bool = False,
    ):
        """**Arguments:**

        - `model`: a plain model.
        - `evidence`: for each group, or None; none at all by default.
        - `outputs`: which units mixed-product maximises over.
        - `trusted`: that the values of the evidence need not be looked at.
        """
        self.model = model
        self.evidence = evidence or (None,) * len(model.layers)
        self.outputs = outputs
        self.verified = trusted or _checks.is_concrete(evidence)
        self.ranks = tuple(jnp.ndim(x) for x in jax.tree.leaves(model))

    @property
    def shape(self) -> tuple[int, ...]:
        """The batch shape."""
        if tuple(jnp.ndim(x) for x in jax.tree.leaves(self.model)) != self.ranks:
            raise ValueError(
                "`pairwise` and `log_partition` must be read inside the `vmap` that made these"
                " beliefs: outside, the model they belong to has gained an axis."
            )
        shapes = {"model": self.model.batch_shape}
        for k, said in enumerate(self.evidence):
            if said is not None:
                at = f"[{k}]" if self.model.grouped else ""
                for name, x in zip(("evidence", "observed"), said[:2], strict=True):
                    shapes |= {} if x is None else {f"{name}{at}": x.shape[:-1]}
                for x in said[2:]:
                    shapes |= {} if x is None else {f"likelihoods{at}": x.shape[:-2]}
        if self.outputs is not None:
            shapes["outputs"] = self.outputs.shape[:-1]
        return _checks.broadcastable(**shapes)

    def maximised(self) -> Bool[Array, "*#batch units"] | None:
        """The units over which mixed-product maximises; None if these are not known."""
        groups = self.model.variables.maximised
        if self.outputs is not None or groups is None:
            return self.outputs
        parts = [jnp.full(u.size, k in groups) for k, u in enumerate(self.model.layers)]
        return jnp.concatenate(parts)

    def with_outputs(self, outputs: Bool[Array, "*#batch units"]) -> "Problem":
        """The same with the units over which mixed-product maximises."""
        return Problem(self.model, self.evidence, outputs, trusted=self.verified)

    def flat(self, x: Array, axes: int = 1) -> Array:
        """An array with so many axes of its own, and one leading axis of instances."""
        own = x.shape[x.ndim - axes :]
        return jnp.broadcast_to(x, (*self.shape, *own)).reshape(math.prod(self.shape), *own)

    def held(self) -> tuple[Held, ...]:
        """Evidence for each instance, by group. It raises at run time what could not be found
        before.
        """
        return tuple(
            Held(None, None, None) if said is None else self._held(units, said)
            for units, said in zip(self.model.layers, self.evidence, strict=True)
        )

    def _held(self, units: Any, said: Evidence) -> Held:
        dtype, scores, states, mask = self.model.dtype, None, None, None
        if said.likelihood is not None:
            likelihood = jnp.asarray(said.likelihood, dtype)
            if not self.verified:
                wrong = ~(jnp.isfinite(likelihood) & (likelihood >= 0))
                message = "`evidence` must hold finite likelihoods >= 0."
                likelihood = eqx.error_if(likelihood, wrong, message)
            scores = self.flat(jnp.maximum(jnp.log(likelihood), -LIMIT), 2)
        if said.scores is not None:
            scores = self.flat(jnp.asarray(said.scores, dtype), 2)
        if said.states is None:
            return Held(None, None, scores)
        if said.observed is None:
            states = jnp.asarray(said.states).astype(jnp.int32)
            if not self.verified:
                most = jnp.asarray(units.numbers, jnp.int32)
                wrong = (states < -1) | (states >= jnp.broadcast_to(most, states.shape))
                message = "`evidence` must hold states of its variables, or -1 where not known."
                states = eqx.error_if(states, wrong, message)
            states = self.flat(states)
            return Held(states, states >= 0, scores)
        states = self.flat(jnp.asarray(said.states, dtype))
        mask = self.flat(jnp.asarray(said.observed))
        if not self.verified:
            wrong = mask & ~inside(states, units.evidence, jnp)
            message = f"`evidence` must {wanted(units.evidence)} where observed."
            states = eqx.error_if(states, wrong, message)
        if isinstance(units, Binary):
            sure = mask & ((states == 0) | (states == 1))
            likely = jnp.where(mask & ~sure, states, jnp.full_like(states, 0.5))
            soft = jax.scipy.special.logit(likely)
            soft, mask = jnp.stack([jnp.zeros_like(soft), soft], -1), sure
            scores = soft if scores is None else scores + soft
        return Held(states, mask, scores)

    def instances(self) -> Instance:
        """All instances along one leading axis. Units known for sure are held, those known by a
        likelihood have it added to their unary terms; `offset` has what log-odds do not tell.
        """
        terms, clamps = [], []
        for units, bias, (states, mask, scores) in zip(
            self.model.layers, self.model.unary(), self.held(), strict=True
        ):
            own: Any = units
            field = self.flat(bias)
            if not own.numbered:
                terms.append(field)
                clamps.append(None if states is None else (states, mask))
                continue
            clamp = None
            if states is not None and mask is not None:
                clamp = held_at(own, states, mask, self.model.dtype)
            field = field.reshape(len(field), *own.shape)
            if scores is not None and isinstance(own, Binary):
                low, high = scores[..., 0], scores[..., 1]
                sure = (low < EXCLUDED / 2) | (high < EXCLUDED / 2)
                field = jnp.where(sure, jnp.zeros_like(field), field + (high - low))
                only = jnp.where(sure, jnp.sign(high - low), jnp.zeros_like(field))
                clamp = only if clamp is None else jnp.where(clamp == 0, only, clamp)
            elif scores is not None:
                field = field + scores
            terms.append(field)
            clamps.append(clamp)
        return Instance(tuple(terms), tuple(clamps))

    @property
    def offset(self) -> Float[Array, "*batch"]:
        """What log Z has besides that of `instances`."""
        total = jnp.zeros(math.prod(self.shape), self.model.dtype)
        for units, bias, (states, mask, scores) in zip(
            self.model.layers, self.model.unary(), self.held(), strict=True
        ):
            if scores is None or not isinstance(units, Binary):
                continue
            low, high = scores[..., 0], scores[..., 1]
            sure = (low < EXCLUDED / 2) | (high < EXCLUDED / 2)
            one = self.flat(bias) + high
            left = jnp.where(low < high, one, low)
            if states is not None and mask is not None:
                left = jnp.where(mask, jnp.where(states == 1, one, low), left)
            # What is held and excluded, or excluded altogether, is impossible.
            left = jnp.where(left < EXCLUDED / 2, -jnp.inf, left)
            total = total + jnp.where(sure, left, low).sum(-1)
        return total.reshape(self.shape)

    def scores(
        self,
    ) -> tuple[Float[Array, "instances units most"], Bool[Array, "instances units most"]]:
        """What evidence and unary terms say of the states of each unit, and which states it has
        and may have; the instances along one leading axis.
        """
        parts, kinds = [], tuple[Any, ...](self.model.layers)
        most = max(units.number for units in kinds)
        for units, bias, (states, mask, scores) in zip(
            kinds, self.model.unary(), self.held(), strict=True
        ):
            rows = units.scores(self.flat(bias))
            rows = rows if scores is None else rows + scores
            told = rows if scores is None or not isinstance(units, Binary) else scores
            free = scores is None and isinstance(units, Binary)
            left = jnp.ones(rows.shape, bool) if free else told > EXCLUDED / 2
            if states is not None and mask is not None:
                own = states.astype(jnp.int32)[..., None]
                number = jnp.broadcast_to(jnp.arange(units.number, dtype=jnp.int32), rows.shape)
                met = number == jnp.broadcast_to(own, rows.shape)
                left = left & (met | ~jnp.broadcast_to(mask[..., None], rows.shape))
            wide = ((0, 0), (0, 0), (0, most - units.number))
            parts.append((jnp.pad(rows, wide), jnp.pad(left, wide)))
        rows, there = zip(*parts, strict=True)
        return jnp.concatenate(rows, 1), jnp.concatenate(there, 1)

    def told(self, beliefs: tuple[Any, ...]) -> PyTree:
        """Log-odds of units, or scores of their states, by name."""
        return self.model.named(self.model.variables.shown(beliefs, self.shape))

    def expected(self, units: tuple[Any, ...]) -> PyTree:
        """The means of units, or the probabilities of their states, by name."""
        return self.model.named(self.model.variables.shown(units, self.shape, lambda p: 1 - p))

    def named(self, scores: Float[Array, "*batch units most"]) -> PyTree:
        """Log-odds, or log-probabilities of states, by name, from scores of all states."""
        variables, out = self.model.variables, []
        for units, shape, own in zip(
            variables.units, variables.shapes, variables.cut(scores, -2), strict=True
        ):
            own = own[..., : units.number]
            if isinstance(units, Binary) and not variables.grouped:
                out.append(jnp.clip(own[..., 1] - own[..., 0], -CLAMPED, CLAMPED))
                continue
            sure = jax.nn.log_softmax(own, axis=-1)
            tail = (*shape, units.number) if variables.grouped else (units.width,)
            out.append(sure.reshape(*sure.shape[:-2], *tail))
        return self.model.named(out)

    def means(self, log_odds: PyTree) -> PyTree:
        """Probabilities from log-odds, by name; of categorical units a row of them for each."""
        grouped = self.model.grouped
        return self._each(
            log_odds, lambda u, x: jax.nn.softmax(x) if grouped else _probabilities(u, x)
        )

    def decode(self, log_odds: PyTree) -> PyTree:
        """The likeliest states from log-odds, by name, as users see them."""
        if self.model.grouped:
            return self._each(log_odds, lambda _, x: x.argmax(-1).astype(jnp.int32))
        return self._each(log_odds, lambda units, x: units.decode(units.mode(x)))

    def _each(self, log_odds: PyTree, fn: Callable[[Any, Array], Array]) -> PyTree:
        parts = self.model.variables.parts(log_odds)
        pairs = zip(self.model.layers, parts, strict=True)
        return self.model.named([x if x is None else fn(units, x) for units, x in pairs])

    @property
    def is_answered(self) -> bool:
        """Whether evidence is known to fix everything that is visible."""
        if not _checks.is_concrete(self.evidence):
            return False
        held = self.held()
        masks = [held[k].mask for k in self.model.variables.seen]
        if not self.model.grouped:
            masks = masks[:1]
        return all(mask is not None and bool(mask.all()) for mask in masks)

    def place(self, target: Targets) -> Place:
        """The place of a unit that a user names: by its number among the first group, or by its
        group and its index there.
        """
        variables = self.model.variables
        if not variables.grouped:
            units, unit = variables.units[0].size, whole(target)
            if unit is None or not -units <= unit < units:
                raise ValueError(f"`targets` must be indices below {units}, got {target!r}.")
            return 0, unit % units
        if not isinstance(target, (tuple, list)) or len(target) != 2:
            raise ValueError(f"`targets` must be pairs of a group and an index, got {target!r}.")
        group, index = target
        places = places_of(self.model, group, "targets")
        numbers = tuple(whole(i) for i in np.atleast_1d(index))
        if len(numbers) != places.ndim or any(
            i is None or not -n <= i < n for i, n in zip(numbers, places.shape, strict=True)
        ):
            raise ValueError(
                "`targets` must hold indices of variables in a group of shape"
                f" {places.shape}, got {index!r}."
            )
        unit = int(places[numbers])  # pyright: ignore
        k = int(np.searchsorted(variables.ends, unit, "right"))
        return k, unit - list(variables.starts.values())[k]

    def holds(self, places: list[Place]) -> bool:
        """Whether some of the units are known to be observed."""
        for k, unit in places:
            said = self.evidence[k]
            if said is None or said.states is None or not _checks.is_concrete(said):
                continue
            there = np.asarray(said.states) >= 0 if said.observed is None else said.observed
            if np.asarray(there)[..., unit].any():
                return True
        return False

    def with_states(self, places: list[Place], states: tuple[int, ...]) -> "Problem":
        """The same problem with the states of some units fixed too."""
        evidence, held, shape = list(self.evidence), self.held(), self.shape
        for (k, unit), state in zip(places, states, strict=True):
            size = self.model.layers[k].size
            said = evidence[k]
            if said is None or said.observed is not None or said.states is None:
                x, mask, scores = held[k]
                now = self.flat(jnp.full(size, -1))
                if x is not None and mask is not None:
                    now = jnp.where(mask, x.astype(now.dtype), now)
                scores = None if scores is None else scores.reshape(*shape, *scores.shape[1:])
                said = Evidence(now.reshape(*shape, size), scores=scores)
            filled = jnp.asarray(said.states).at[..., unit].set(state)
            evidence[k] = said._replace(states=filled)
        return Problem(self.model, tuple(evidence), self.outputs, trusted=True)

    def distribution(self, means: PyTree, place: Place) -> Float[Array, "*batch states"]:
        """The probabilities of the states of one unit."""
        (k, unit), variables = place, self.model.variables
        units, x = variables.units[k], variables.parts(means)[k]
        if isinstance(units, Binary) and not variables.grouped:
            return jnp.stack([1 - x[..., unit], x[..., unit]], -1)
        rank = len(variables.shapes[k]) + 1
        flat = x.reshape(*x.shape[: x.ndim - rank], units.size, x.shape[-1])
        return flat[..., unit, : units.numbers[unit]]

    def chosen(self, answer: Any, targets: Targets) -> PyTree:
        """The answers for some units, or for one group."""
        if self.model.grouped:
            answer.take(targets, "`targets`")  # or an error that names the argument
            return answer[targets]
        targets, units = np.asarray(targets), self.model.layers[0].size
        if not np.issubdtype(targets.dtype, np.integer) or (np.abs(targets + 0.5) > units).any():
            raise ValueError(f"`targets` must be indices below {units}, got {targets}.")
        return jax.tree.map(lambda x: x[..., targets], answer)

    def take(self, named: Any, name: Any) -> PyTree:
        """What belongs to a name of the vocabulary, `visible` for instance, or to a group."""
        if self.model.grouped:
            return named[name]
        if name not in named._fields:
            have = " and ".join(f"`{field}`" for field in named._fields)
            raise AttributeError(
                f"these beliefs have no `{name}`: the units of the model are {have}"
            )
        return getattr(named, name)

    def answer(self, means: PyTree) -> PyTree:
        """The part of the means that a query asks for: those of the first layer, or all groups."""
        return means if self.model.grouped else jax.tree.leaves(means)[0]

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of states of each unit."""
        return self.model.variables.counts


def _probabilities(units: Any, field: Float[Array, "... _"]) -> Float[Array, "..."]:
    """Means in a field, of one-hot units with the states along the last axis."""
    p = units.mean(field)
    if units.width == units.size:
        return p
    return p.reshape(*p.shape[:-1], p.shape[-1] // units.number, units.number)


def places_of(model: "AbstractPlainModel", group: Any, name: str) -> Int[np.ndarray, "..."]:
    """The numbers of the variables of a group among all, in its shape; an error names the
    argument.
    """
    if not model.grouped:
        named = repr(group) if isinstance(group, str) else type(group).__name__
        needed = "not be given" if name == "groups" else "be booleans, one per unit,"
        raise TypeError(
            f"`{name}` must {needed} for a model that is no graph, of type {type(model).__name__},"
            f" got the group {named}."
        )
    variables = model.variables
    parts = np.split(np.arange(variables.ends[-1]), variables.ends[:-1])
    pairs = zip(parts, variables.shapes, strict=True)
    numbers = model.named([x.reshape(shape) for x, shape in pairs])
    return np.asarray(numbers.take(group, f"`{name}`"))


def whole(x: Any) -> int | None:
    """An integer of any kind, or None."""
    try:
        return None if getattr(x, "dtype", type(x)) in (bool, np.bool_) else operator.index(x)
    except TypeError:
        return None


def inside(x: Any, interval: tuple[float, float], np: Any) -> Any:
    """Which values are finite and lie in an interval."""
    return np.isfinite(x) & (x >= interval[0]) & (x <= interval[1])


def wanted(interval: tuple[float, float]) -> str:
    """What values must do to lie in an interval, for errors."""
    low, high = interval
    return "be finite" if low == -math.inf else f"lie in [{low:g}, {high:g}]"


def each(fn: Callable[[Any], PyTree], batch: PyTree, shape: tuple[int, ...], chunk: int) -> PyTree:
    """Applies `fn` to every instance, at most `chunk` of them at a time, and restores the batch
    shape.
    """
    if shape == ():
        return fn(jax.tree.map(lambda x: x[0], batch))
    size = math.prod(shape)
    if size <= chunk:
        out = jax.vmap(fn)(batch)
    else:
        out = jax.lax.map(jax.vmap(fn), _parts(batch, size, chunk)[0])
        out = jax.tree.map(lambda x: _joined(x)[:size], out)
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), out)


def each_and_mean(
    fn: Callable[[Any], tuple[PyTree, PyTree]],
    batch: PyTree,
    shape: tuple[int, ...],
    chunk: int,
) -> tuple[PyTree, PyTree]:
    """As `each` for the first result of `fn`; the second is averaged over all instances, without
    ever holding it for more than a chunk.
    """
    if shape == ():
        return fn(jax.tree.map(lambda x: x[0], batch))
    size = math.prod(shape)
    if size == 0:
        raise ValueError(
            f"`model` must contain at least one instance, got a batch of shape {shape}."
        )

    def step(carry: PyTree, part: tuple[PyTree, Array]) -> tuple[PyTree, PyTree]:
        instances, real = part
        single, summed = jax.vmap(fn)(instances)
        summed = jax.tree.map(lambda x: jnp.tensordot(real.astype(x.dtype), x, 1), summed)
        return jax.tree.map(jnp.add, carry, summed), single

    if size <= chunk:
        single, summed = jax.vmap(fn)(batch)
        summed = jax.tree.map(lambda x: x.sum(0), summed)
    else:
        like = jax.eval_shape(fn, jax.tree.map(lambda x: x[0], batch))[1]
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
        summed, single = jax.lax.scan(step, zero, _parts(batch, size, chunk))
        single = jax.tree.map(lambda x: _joined(x)[:size], single)
    single = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), single)
    return single, jax.tree.map(lambda x: x / size, summed)


def _parts(batch: PyTree, size: int, chunk: int) -> tuple[PyTree, Bool[Array, "parts chunk"]]:
    """Cuts the leading axis into equal parts of at most `chunk`. The last instance is repeated to
    fill them; the mask says which instances are real.
    """
    number = -(-size // chunk)
    length = -(-size // number)

    def cut(x: Array) -> Array:
        fill = jnp.broadcast_to(x[-1:], (number * length - size, *x.shape[1:]))
        return jnp.concatenate([x, fill]).reshape(number, length, *x.shape[1:])

    real = jnp.arange(number * length) < size
    return jax.tree.map(cut, batch), real.reshape(number, length)


def _joined(x: Array) -> Array:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
