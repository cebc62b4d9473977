import abc
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray

from .. import _checks
from ..models import QueryModel
from ..models._graph import AbstractGraphModel
from ._answers import places_of


class Query(NamedTuple):
    """Which units are given, and which are asked for; others are neither."""

    observed: Bool[Array, "rows units"]
    targets: Bool[Array, "rows units"]


class AbstractQueries(eqx.Module):
    """A distribution of queries, to train with ([`ebmlearn.QueryTraining`][]) and to test by
    ([`ebmlearn.nce`][]). Both take a plain function in its place, `f(shape, key=key)`, which gives
    booleans of that shape, `[rows, units]`: which units are observed, all others being targets; or
    a pair of such arrays, observed and targets.
    """

    @abc.abstractmethod
    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        """A query for each row of data.

        **Arguments:**

        - `model`: whose units are asked for: the visible ones, or all variables of a graph. What
          data do not tell can be neither evidence nor target.
        - `rows`: how many queries.
        - `key`: a typed key.
        """


class RandomTargets(AbstractQueries):
    """Each unit is a target with the same probability, on its own, and else observed."""

    probability: float

    def __init__(self, probability: float = 0.5):
        """**Arguments:**

        - `probability`: of being a target.
        """
        self.probability = probability

    def __check_init__(self):
        _checks.number("probability", self.probability, 0, 1, "(0, 1]")

    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        targets = jax.random.bernoulli(key, self.probability, (rows, num_units(model)))
        return Query(~targets, targets)


class TargetCount(AbstractQueries):
    """So many targets, each set of them as likely as another, and all other units observed."""

    number: int = eqx.field(static=True)

    def __init__(self, number: int):
        """**Arguments:**

        - `number`: of targets.
        """
        self.number = number

    def __check_init__(self):
        _checks.count("number", self.number)

    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        units = num_units(model)
        if self.number > units:
            raise ValueError(f"`number` must be at most the {units} units, got {self.number}.")
        order = jax.random.uniform(key, (rows, units)).argsort(-1).argsort(-1)
        return Query(order >= self.number, order < self.number)


class LeaveOneOut(AbstractQueries):
    """One target, all other units observed. Without hidden units this is pseudo-likelihood."""

    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        return TargetCount(1)(model, rows, key=key)


class BlockTargets(AbstractQueries):
    """A block of an image, anywhere in it, is asked for given the rest."""

    image: tuple[int, int] = eqx.field(static=True)
    block: tuple[int, int] = eqx.field(static=True)

    def __init__(self, image: tuple[int, int], block: tuple[int, int]):
        """**Arguments:**

        - `image`: the height and width of an image, whose rows follow one another in the data.
        - `block`: the height and width of the block.
        """
        self.image = image[0], image[1]
        self.block = block[0], block[1]

    def __check_init__(self):
        for name, x in (("image", self.image), ("block", self.block)):
            for k in x:
                _checks.count(name, k)
        if self.block[0] > self.image[0] or self.block[1] > self.image[1]:
            raise ValueError(f"`block` must fit in the image, {self.image}, got {self.block}.")

    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        units = num_units(model)
        if math.prod(self.image) != units:
            raise ValueError(
                f"`image` must have as many pixels as units, {units}, got {self.image}."
            )
        inside = []
        for own, length, size in zip(jax.random.split(key), self.image, self.block, strict=True):
            first = jax.random.randint(own, (rows, 1), 0, length - size + 1)
            at = jnp.arange(length)[None, :]
            inside.append((at >= first) & (at < first + size))
        targets = (inside[0][:, :, None] & inside[1][:, None, :]).reshape(rows, units)
        return Query(~targets, targets)


class FixedTargets(AbstractQueries):
    """Inputs and outputs that are the same in every query."""

    observed: Any
    targets: Any

    def __init__(self, observed: Any, targets: Any):
        """**Arguments:**

        - `observed`, `targets`: booleans `[units]`, which units are given and which asked for; of a
          graph, lists of groups of its variables.
        """
        if hasattr(observed, "dtype") and hasattr(targets, "dtype"):
            for name, x in (("observed", observed), ("targets", targets)):
                if x.dtype != np.bool_ or x.ndim != 1:
                    got = _checks.describe(x)
                    raise TypeError(f"`{name}` must be booleans of shape [units], got {got}.")
            _checks.exact_shape("targets", targets, observed.shape, "as `observed` has")
            _check_apart(np.asarray(observed), np.asarray(targets))
            self.observed, self.targets = np.asarray(observed), np.asarray(targets)
            return
        for name, x in (("observed", observed), ("targets", targets)):
            if not isinstance(x, (list, tuple)):
                got = _checks.describe(x)
                raise TypeError(
                    f"`{name}` must be booleans, one a unit, or a list of groups, got {got}."
                )
        self.observed, self.targets = tuple(observed), tuple(targets)

    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        units = num_units(model)
        masks = []
        for name, x in (("observed", self.observed), ("targets", self.targets)):
            if isinstance(x, tuple):
                plain = model.to_model() if isinstance(model, QueryModel) else model
                if not isinstance(plain, AbstractGraphModel):
                    kind = type(plain).__name__
                    raise TypeError(f"`{name}` must be booleans, one a unit, for a {kind}.")
                x = _members(plain, x)
            _checks.exact_shape(name, x, (units,), "one value a unit")
            masks.append(x)
        if isinstance(self.targets, tuple):
            _check_apart(*masks)
        return Query(*(jnp.broadcast_to(jnp.asarray(x), (rows, units)) for x in masks))


class MixedTargets(AbstractQueries):
    """Each query is of one of several kinds."""

    parts: tuple[AbstractQueries, ...]
    weights: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, parts: Sequence[Any], weights: Sequence[float | int] | None = None):
        """**Arguments:**

        - `parts`: distributions of queries, or functions.
        - `weights`: how often each is drawn, in any unit; all alike if not given.
        """
        self.parts = tuple(as_queries(part, "parts") for part in parts)
        self.weights = tuple(map(float, weights or [1.0] * len(self.parts)))

    def __check_init__(self):
        if not self.parts or len(self.parts) != len(self.weights):
            raise ValueError(
                "`parts` must hold a distribution at least, and `weights` as many numbers, got"
                f" {len(self.parts)} and {len(self.weights)}."
            )
        for x in self.weights:
            _checks.number("weights", x, 0, math.inf, "(0, inf)")

    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        choose, *own = jax.random.split(key, len(self.parts) + 1)
        drawn = [part(model, rows, key=k) for part, k in zip(self.parts, own, strict=True)]
        which = jax.random.categorical(choose, jnp.log(jnp.asarray(self.weights)), shape=(rows,))
        at = jnp.arange(rows)
        return Query(*(jnp.stack(masks)[which, at] for masks in zip(*drawn, strict=True)))


class _Function(AbstractQueries):
    """What a user's function says."""

    function: Callable = eqx.field(static=True)

    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        shape = (rows, num_units(model))
        drawn = self.function(shape, key=key)
        pair = drawn if isinstance(drawn, tuple) else (drawn, None)
        if len(pair) != 2:
            raise ValueError(f"`queries` must give booleans, or a pair of them, got {len(pair)}.")
        for name, x in zip(("observed", "targets"), pair, strict=True):
            if x is None:
                continue
            if getattr(x, "dtype", None) != np.bool_ or x.shape != shape:
                got = _checks.describe(x)
                raise ValueError(f"`queries` must give {name} as booleans {shape}, got {got}.")
        observed = jnp.asarray(pair[0])
        targets = ~observed if pair[1] is None else jnp.asarray(pair[1])
        wrong = (observed & targets).any() | ~targets.any()
        message = "`queries` must give targets, and none that are observed."
        return Query(observed, eqx.error_if(targets, wrong, message))


def as_queries(queries: Any, name: str = "queries") -> AbstractQueries:
    """A distribution of queries, or a user's function as one."""
    if isinstance(queries, AbstractQueries):
        return queries
    if isinstance(queries, type) or not callable(queries):
        got = _checks.describe(queries)
        raise TypeError(
            f"`{name}` must be a distribution of queries such as `RandomTargets(0.5)`, or a"
            f" function, got {got}."
        )
    return _Function(queries)


def num_units(model: Any) -> int:
    """How many units can be given or asked for."""
    if isinstance(model, QueryModel):
        model = model.centred
    if isinstance(model, AbstractGraphModel):
        return len(model.num_states)
    return model.unary()[0].shape[-1]


def _members(graph: AbstractGraphModel, groups: tuple[Any, ...]) -> Bool[np.ndarray, " variables"]:
    """Which variables belong to some groups."""
    out = np.zeros(len(graph.num_states), bool)
    for group in groups:
        out[places_of(graph, group).reshape(-1)] = True
    return out


def _check_apart(observed: Bool[np.ndarray, " n"], targets: Bool[np.ndarray, " n"]) -> None:
    if not targets.any():
        raise ValueError("`targets` must hold a unit at least, got none.")
    if (observed & targets).any():
        raise ValueError("`targets` must not be observed, got units that are both.")
