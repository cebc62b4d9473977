"""A model with evidence, and functions of its instances."""

import abc
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num, PRNGKeyArray, PyTree

from .. import _checks
from .._sentinels import CLAMPED, EXCLUDED
from .._types import AnyArray, Evidence, Observed, Targets
from ..units import Binary


Posed = TypeVar("Posed", bound="AbstractProblem")


class Partial(NamedTuple):
    """Rows, with zeros for what is missing, and which values are there."""

    states: Num[AnyArray, "rows units"]
    observed: Bool[AnyArray, "rows units"]


def apart(x: Any) -> tuple[Any, Any]:
    """Rows, and which of their values are there; None if all are. NaN is a missing value, where
    values can be looked at.
    """
    if isinstance(x, Partial):
        return x
    if not has_nan(x):
        return x, None
    there = ~np.isnan(x)
    return np.where(there, x, np.zeros_like(x)), there


def marked(x: PyTree) -> PyTree:
    """Rows as `Partial`, if some of their values are missing."""
    states, observed = apart(x)
    return x if observed is None else Partial(states, observed)


def observed_evidence(evidence: Evidence, observed: Observed) -> tuple[Any, Any]:
    """Evidence in which NaN is a unit that is not observed."""
    found, there = apart(evidence)
    if there is None:
        return evidence, observed
    if observed is None:
        return found, there
    with jax.numpy_rank_promotion("allow"):
        return found, jnp.asarray(observed) & there


def has_nan(x: Any) -> bool:
    """Whether an array, whose values can be looked at, holds NaN."""
    if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.floating):
        return False
    return _checks.is_concrete(x) and bool(np.isnan(x).any())


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


def held_at(units: Any, states: AnyArray, mask: AnyArray, dtype: Any) -> Array:
    """The `clamp` of units that are held at their states where a mask says so."""
    if isinstance(units, Binary):
        return jnp.where(mask, 2 * states.astype(dtype) - 1, jnp.zeros((), dtype))
    return jnp.where(mask, states.astype(jnp.int32), -1)


class Chained(NamedTuple):
    """A model with an instance for each chain, states to start from, and which of them are held."""

    model: Any
    start: PyTree
    clamped: PyTree


class AbstractProblem(eqx.Module):
    """A model with checked evidence, on which inferences work."""

    model: eqx.AbstractVar[Any]

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The batch shape."""

    @abc.abstractmethod
    def place(self, target: Targets) -> PyTree:
        """The place of a unit or a variable; raises an error if there is none."""

    @abc.abstractmethod
    def holds(self, places: list[PyTree]) -> bool:
        """Whether some of these are known to be observed."""

    @abc.abstractmethod
    def with_states(self: Posed, places: list[PyTree], states: tuple[int, ...]) -> Posed:
        """The same problem with the states of some units fixed too."""

    @abc.abstractmethod
    def distribution(self, means: PyTree, place: PyTree) -> Float[Array, "*batch states"]:
        """The probabilities of the states of one of these."""

    @abc.abstractmethod
    def chosen(self, answer: PyTree, targets: Targets) -> PyTree:
        """The answers for some of these."""


class AbstractSampled(AbstractProblem):
    """A problem whose model can be sampled."""

    @abc.abstractmethod
    def log_odds(self, means: PyTree) -> PyTree:
        """The reverse of `means`, up to a constant for the states of a variable."""

    @property
    @abc.abstractmethod
    def counts(self) -> tuple[int, ...]:
        """The number of states of each variable."""

    @abc.abstractmethod
    def instances(self) -> Instance:
        """All instances along one leading axis. Units known for sure are held, those known by a
        likelihood have it added to their unary terms.
        """

    def scores(
        self,
    ) -> tuple[Float[Array, "instances variables most"], Bool[Array, "instances variables most"]]:
        """What evidence and unary terms say of the states of each variable, and which states it has
        and may have; the instances along one leading axis.
        """
        units, parts = self.model.layers, []
        most = max(own.number for own in units)
        for own, rows, clamp in zip(units, *self.instances(), strict=True):
            rows = own.scores(rows.reshape(len(rows), own.width))
            left = jnp.ones(rows.shape, bool)
            if not isinstance(own, Binary):
                left = rows > EXCLUDED / 2
            elif clamp is not None:
                clamp = jnp.where(clamp == 0, -1, (clamp > 0).astype(int))
            if clamp is not None:
                number = jnp.arange(own.number, dtype=clamp.dtype)
                held = jnp.broadcast_to(clamp[..., None], rows.shape)
                left = left & ((held < 0) | (held == jnp.broadcast_to(number, rows.shape)))
            wide = ((0, 0), (0, 0), (0, most - own.number))
            parts.append((jnp.pad(rows, wide), jnp.pad(left, wide)))
        rows, there = zip(*parts, strict=True)
        return jnp.concatenate(rows, 1), jnp.concatenate(there, 1)

    @property
    def offset(self) -> Float[Array, "*batch"]:
        """What log Z has besides that of `instances`."""
        return jnp.zeros(self.shape, self.model.dtype)

    @abc.abstractmethod
    def named(self, scores: Float[Array, "*batch variables most"]) -> PyTree:
        """Log-odds, or log-probabilities of states, by name, from scores of all states."""

    @abc.abstractmethod
    def repeated(self, number: int, key: PRNGKeyArray) -> "Chained | None":
        """What samplers need for so many chains of each instance, those of one instance `shape`
        apart; None if evidence is of a form that they do not take.
        """

    @abc.abstractmethod
    def given_others(self, model: Any, units: PyTree, clamped: PyTree) -> PyTree:
        """The means of all units given the states of all others, by name; what is clamped keeps
        its state.
        """


class Problem(AbstractSampled):
    """A model of layers with evidence on its first layer, checked."""

    model: Any
    evidence: Num[AnyArray, "*#batch units"] | Bool[AnyArray, "*#batch units"] | None
    observed: Bool[AnyArray, "*#batch units"] | None
    verified: bool = eqx.field(static=True)
    ranks: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self, model: Any, evidence: Any = None, observed: Any = None, trusted: bool = False
    ):
        """**Arguments:**

        - `model`, `evidence`, `observed`: as inferences take them.
        - `trusted`: that the values of the evidence need not be looked at.
        """
        self.model = model
        self.evidence = evidence
        self.observed = observed
        # Whether values can be looked at before anything is traced, or need not be.
        self.verified = trusted or _checks.is_concrete((evidence, observed))
        self.ranks = tuple(jnp.ndim(x) for x in jax.tree.leaves(model))

    def __check_init__(self):
        evidence, observed, units = self.evidence, self.observed, self.model.layers[0]
        check_evidence(evidence, observed, units.size)
        if evidence is None or observed is None:
            return
        if units.evidence is None:
            names = ", ".join(f"`{name}`" for name in self.model.names)
            kind = _checks.article(type(self.model).__name__)
            raise ValueError(
                f"`evidence` must be None for {kind}: fix units {names} with"
                " `sample(..., clamped=...)` instead."
            )
        shape = (*self.shape, units.size)
        if _checks.is_concrete((evidence, observed)):
            given = np.broadcast_to(evidence, shape)
            wrong = np.broadcast_to(observed, shape) & ~_inside(given, units.evidence, np)
            if wrong.any():
                wanted = _wanted(units.evidence)
                raise ValueError(f"`evidence` must {wanted} where observed, got {given[wrong][0]}.")

    @property
    def shape(self) -> tuple[int, ...]:
        """The batch shape."""
        if tuple(jnp.ndim(x) for x in jax.tree.leaves(self.model)) != self.ranks:
            raise ValueError(
                "`pairwise` and `log_partition` must be read inside the `vmap` that made these"
                " beliefs: outside, the model they belong to has gained an axis."
            )
        shapes = {"model": self.model.batch_shape}
        if self.evidence is not None and self.observed is not None:
            shapes |= {"evidence": self.evidence.shape[:-1], "observed": self.observed.shape[:-1]}
        return _checks.broadcastable(**shapes)

    def maximised(self) -> tuple[int, ...]:
        """The groups over which mixed-product maximises: the visible ones."""
        return self.model.seen

    def given(self) -> tuple[Float[Array, "*batch units"], Bool[Array, "*batch units"]] | None:
        """Evidence and what of it counts, for each instance; it raises at run time what could not
        be found before. None if there is none.
        """
        if self.evidence is None or self.observed is None:
            return None
        units = self.model.layers[0]
        shape = (*self.shape, units.size)
        evidence = jnp.broadcast_to(jnp.asarray(self.evidence, self.model.dtype), shape)
        observed = jnp.broadcast_to(self.observed, shape)
        if not self.verified:
            wrong = observed & ~_inside(evidence, units.evidence, jnp)
            message = f"`evidence` must {_wanted(units.evidence)} where observed."
            evidence = eqx.error_if(evidence, wrong, message)
        return evidence, observed

    def instances(self) -> Instance:
        model, given = self.model, self.given()
        unary: list[Any] = list(model.unary())
        clamp: list[Any] = [None] * len(model.layers)
        if given is not None:
            evidence, observed = given
            if model.layers[0].finite:
                sure = observed & ((evidence == 0) | (evidence == 1))
                clamp[0] = self.flat(held_at(model.layers[0], evidence, sure, model.dtype))
                likely = jnp.where(observed & ~sure, evidence, jnp.full_like(evidence, 0.5))
                first = jnp.broadcast_to(unary[0], evidence.shape)
                unary[0] = first + jax.scipy.special.logit(likely)
            else:
                clamp[0] = self.flat(evidence), self.flat(observed)
        return Instance(model.by_group([self.flat(x) for x in unary]), tuple(clamp))

    def told(self, beliefs: tuple[Any, ...]) -> PyTree:
        """Log-odds of units, or scores of their states, by name."""
        return self.expected(beliefs)

    def expected(self, units: tuple[Any, ...]) -> PyTree:
        """The means of units, by name."""
        pairs = zip(self.model.layers, units, strict=True)
        return self.model.units(
            [x if x is None else x.reshape(*self.shape, own.width) for own, x in pairs]
        )

    def flat(self, x: Array) -> Array:
        """An array of the units of a layer, with one leading axis of instances."""
        x = jnp.broadcast_to(x, (*self.shape, x.shape[-1]))
        return x.reshape(math.prod(self.shape), x.shape[-1])

    def means(self, log_odds: PyTree) -> PyTree:
        """Probabilities from log-odds, by name; of categorical units a row of them for each."""
        layers = jax.tree.leaves(log_odds, is_leaf=lambda x: x is None)
        pairs = zip(self.model.layers, layers, strict=True)
        return self.model.units([x if x is None else _by_state(units, x) for units, x in pairs])

    def decode(self, log_odds: PyTree) -> PyTree:
        """The likeliest states from log-odds, by name, as users see them."""
        layers = jax.tree.leaves(log_odds, is_leaf=lambda x: x is None)
        pairs = zip(self.model.layers, layers, strict=True)
        return self.model.units(
            [x if x is None else units.decode(units.mode(x)) for units, x in pairs]
        )

    def weakened(self, strength: Float[Array, "2"] | None) -> tuple["Problem", PyTree]:
        """The problem in which evidence is log-odds of this strength, and what of the log-odds was
        told of the units themselves: likelihoods are no answers. Without a strength, evidence is
        exact.
        """
        given = self.given()
        if strength is None or given is None:
            return self, None
        evidence, observed = given
        first, *others = self.model.unary()
        told = jnp.where(observed, _log_odds(evidence, strength), jnp.zeros_like(evidence))
        model = self.model.with_unary((jnp.broadcast_to(first, told.shape) + told, *others))
        own = jnp.where((evidence > 0) & (evidence < 1), told, jnp.zeros_like(told))
        return Problem(model), model.units([own] + [jnp.zeros((), own.dtype)] * len(others))

    def known(self) -> tuple[Bool[Array, "*batch units"], Float[Array, "*batch units"]] | None:
        """Which binary units of the first layer are known for sure, and their states as ±1."""
        given = self.given()
        if given is None or self.model.kind != "binary":
            return None
        evidence, observed = given
        return observed & ((evidence == 0) | (evidence == 1)), jnp.sign(2 * evidence - 1)

    @property
    def is_answered(self) -> bool:
        """Whether evidence is known to fix everything."""
        if not _checks.is_concrete((self.evidence, self.observed)) or self.observed is None:
            return False
        x, low = np.asarray(self.evidence), self.model.layers[0].evidence[0]
        sure = (x == 0) | (x == 1) | (low == -math.inf)
        return bool((np.asarray(self.observed) & sure).all())

    def place(self, target: Targets) -> int:
        """The number of a unit, counted from the first, or an error."""
        units, unit = self.model.layers[0].size, whole(target)
        if unit is None or not -units <= unit < units:
            raise ValueError(f"`targets` must be indices below {units}, got {target!r}.")
        return unit % units

    def holds(self, places: list[int]) -> bool:
        """Whether some of the units are known to be observed."""
        if self.observed is None or not _checks.is_concrete(self.observed):
            return False
        return bool(np.asarray(self.observed)[..., np.array(places)].any())

    def with_states(self, places: list[int], states: tuple[int, ...]) -> "Problem":
        """The same problem with the states of some units fixed too."""
        units = self.model.layers[0]
        given = self.given()
        if units.evidence != (0.0, 1.0):
            kind = _checks.article(type(self.model).__name__)
            raise TypeError(f"`model` must be discrete, got {kind}.")
        if given is None:
            zeros = jnp.zeros((*self.shape, units.size), self.model.dtype)
            given = zeros, zeros != 0
        x, mask = given
        at = np.array(places, int)
        x = x.at[..., at].set(jnp.asarray(states, x.dtype))
        return Problem(self.model, x, mask.at[..., at].set(True), trusted=True)

    def distribution(self, means: PyTree, place: int) -> Float[Array, "*batch 2"]:
        """The probabilities of the states of one unit."""
        p = self.answer(means)[..., place]
        return jnp.stack([1 - p, p], -1)

    def chosen(self, answer: PyTree, targets: Targets) -> PyTree:
        """The answers for some units."""
        targets, units = np.asarray(targets), self.model.layers[0].size
        if not np.issubdtype(targets.dtype, np.integer) or (np.abs(targets + 0.5) > units).any():
            raise ValueError(f"`targets` must be indices below {units}, got {targets}.")
        return jax.tree.map(lambda x: x[..., targets], answer)

    def take(self, named: Any, name: str) -> PyTree:
        """What belongs to a name of the vocabulary, `visible` for instance."""
        if name not in named._fields:
            have = " and ".join(f"`{field}`" for field in named._fields)
            raise AttributeError(
                f"these beliefs have no `{name}`: the units of the model are {have}"
            )
        return getattr(named, name)

    def surprise(
        self, log_odds: PyTree, rows: Float[Array, "rows units"], targets: Bool[Array, "rows units"]
    ) -> Float[Array, " rows"]:
        """Minus the log-probability of the states of targets, each by itself, in nats."""
        value = jax.tree.leaves(log_odds)[0]
        each = jax.nn.softplus(value) - rows * value
        return jnp.where(targets, each, jnp.zeros_like(each)).sum(-1)

    def answer(self, means: PyTree) -> PyTree:
        """The part of the means that a query asks for: those of the first layer."""
        return jax.tree.leaves(means)[0]

    def log_odds(self, means: PyTree) -> PyTree:
        """The log-odds of binary units, by name."""
        return jax.tree.map(lambda p: jnp.log(p) - jnp.log1p(-p), means)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(units.number for units in self.model.layers for _ in range(units.size))

    def named(self, scores: Float[Array, "*batch variables most"]) -> PyTree:
        ends = np.cumsum([units.size for units in self.model.layers])[:-1]
        out = []
        for units, own in zip(self.model.layers, jnp.split(scores, ends, axis=-2), strict=True):
            if units.width == units.size:
                out.append(jnp.clip(own[..., 1] - own[..., 0], -CLAMPED, CLAMPED))
            else:
                flat = jax.nn.log_softmax(own[..., : units.number], axis=-1)
                out.append(flat.reshape(*flat.shape[:-2], units.width))
        return self.model.units(out)

    def repeated(self, number: int, key: PRNGKeyArray) -> Chained:
        """The model with an instance for each chain. Evidence that is certain is held; likelihoods
        are added to the biases.
        """
        given, known = self.given(), self.known()
        first, *others = self.model.unary()
        start = clamped = None
        if given is not None and known is not None:
            held, signs = known
            soft = given[1] & ~held
            inside = jnp.where(soft, given[0], jnp.full_like(given[0], 0.5))
            first = jnp.broadcast_to(first, inside.shape) + jax.scipy.special.logit(inside)
            none = [None] * len(others)
            masks, states = self._tiled(held, number), self._tiled(signs > 0, number)
            states = jnp.where(masks, states, jax.random.bernoulli(key, 0.5, states.shape))
            start = self.model.units([states.astype(jnp.int32), *none])
            clamped = self.model.units([masks, *none])
        unary = tuple(self._tiled(x, number) for x in (first, *others))
        return Chained(self.model.with_unary(unary), start, clamped)

    def _tiled(self, x: Array, number: int) -> Array:
        return jnp.tile(self.flat(x), (number, 1))

    def given_others(self, model: Any, units: PyTree, clamped: PyTree) -> PyTree:
        """The means of all units given the states of all others, by name."""
        layers, held = model.encode(units), model.masks(clamped)
        means = [own.mean(x) for own, x in zip(model.layers, model.fields(layers), strict=True)]
        if held is not None:
            means = [
                p if mask is None else jnp.where(mask, x, p)
                for p, x, mask in zip(means, layers, held, strict=True)
            ]
        return model.units(means)


def _by_state(units: Any, field: Float[Array, "... _"]) -> Float[Array, "..."]:
    """Means in a field, of one-hot units with the states along the last axis."""
    p = units.mean(field)
    if units.width == units.size:
        return p
    return p.reshape(*p.shape[:-1], p.shape[-1] // units.number, units.number)


def whole(x: Any) -> int | None:
    """An integer of any kind, or None."""
    try:
        return None if getattr(x, "dtype", type(x)) in (bool, np.bool_) else operator.index(x)
    except TypeError:
        return None


def check_evidence(evidence: Any, observed: Any, units: int) -> None:
    """Raises unless there is no evidence, or some of the right form for so many units, whatever its
    values.
    """
    if evidence is None and observed is None:
        return
    if evidence is None or observed is None:
        missing = "evidence" if evidence is None else "observed"
        raise ValueError(f"`evidence` and `observed` go together, got no `{missing}`.")
    for name, x in (("evidence", evidence), ("observed", observed)):
        if not hasattr(x, "shape"):
            raise TypeError(f"`{name}` must be an array, got {_checks.describe(x)}.")
        _checks.trailing(name, x, (units,), "one value a unit")
    _checks.real_numbers("evidence", evidence)
    if observed.dtype != jnp.bool_:
        got = _checks.describe(observed)
        raise TypeError(f"`observed` must be a mask of booleans, got {got}.")


def check_inside(name: str, x: Any, interval: tuple[float, float] | None) -> None:
    """Raises `ValueError` if values that are known lie outside an interval."""
    if interval is not None and _checks.is_concrete(x):
        values = np.asarray(x)
        wrong = ~_inside(values, interval, np)
        if wrong.any():
            got = values[wrong].flat[0]
            raise ValueError(f"`{name}` must {_wanted(interval)}, got {got}.")


def _log_odds(
    evidence: Float[Array, "*shape"], strength: Float[Array, "2"]
) -> Float[Array, "*shape"]:
    """Of what is observed, at most as strong as evidence is taken to be."""
    low, high = strength
    sure = (evidence <= 0) | (evidence >= 1)
    inside = jnp.where(sure, jnp.full_like(evidence, 0.5), evidence)
    soft = jnp.clip(jax.scipy.special.logit(inside), -low, high)
    return jnp.where(evidence <= 0, -low, jnp.where(evidence >= 1, high, soft))


def _inside(x: Any, interval: tuple[float, float], np: Any) -> Any:
    return np.isfinite(x) & (x >= interval[0]) & (x <= interval[1])


def _wanted(interval: tuple[float, float]) -> str:
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
