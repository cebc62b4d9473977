import abc
import functools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Num, PRNGKeyArray

from .. import _checks
from .._types import AnyArray
from ..models import AbstractModel, num_asked, places_of, structure_of


_Masks: TypeAlias = Bool[Array, "rows units"]
# The units that may be targets.
_Members: TypeAlias = Bool[np.ndarray, " units"]


class Query(NamedTuple):
    """The units that are observed and the units that are asked for, as booleans.

    !!! example

        ```python
        queries = ebmlearn.queries.RandomTargets(0.5)
        query = queries(ebmlearn.RBM.init(16, 8), 5, key=jax.random.key(0))
        query.observed, query.targets  # booleans, [5, 16]
        ```

    **Fields:**

    - `observed`: the units that are observed.
    - `targets`: the units that are asked for.
    """

    observed: _Masks
    targets: _Masks


class AbstractQueries(eqx.Module):
    """A distribution of queries, for training ([`ebmlearn.QueryTraining`][]) and testing
    ([`ebmlearn.query_entropy`][]).

    Both also take a plain function `f(shape, key=key)`, with shape `[rows, units]`. It returns
    booleans, the observed units, and all others are targets; or a pair of such arrays, observed and
    targets. A subclass is called with the model instead of the shape. Either is compiled: draw from
    `key` with `jax.random`, because NumPy's random numbers would be the same at every step.
    """

    @abc.abstractmethod
    def __call__(self, model: AbstractModel, rows: int, *, key: PRNGKeyArray) -> Query:
        """Draws a query for each row of data.

        **Arguments:**

        - `model`: the model that is asked, for its visible units or for all variables of a graph.
          Values that are missing in the data are neither evidence nor targets.
        - `rows`: the number of queries.
        - `key`: a typed key.

        **Returns:**

        A pair of arrays of booleans `[rows, units]`: the observed units and the targets. No unit is
        both.
        """


def _as_groups(groups: Sequence[Hashable] | None) -> tuple[Hashable, ...] | None:
    """A list of groups, checked, or None."""
    if groups is None:
        return None
    if not isinstance(groups, (list, tuple)):
        got = _checks.describe(groups)
        raise TypeError(f"`groups` must be a list of groups of variables, got {got}.")
    if not groups:
        raise ValueError("`groups` must contain at least one group, got 0.")
    return tuple(groups)


class _Grouped(AbstractQueries):
    """Queries in which all units are targets or observed, or those of some groups of a graph."""

    _: KW_ONLY
    groups: tuple[Hashable, ...] | None = eqx.field(converter=_as_groups, default=None)

    @abc.abstractmethod
    def _targets(
        self, model: AbstractModel, asked: _Members, rows: int, key: PRNGKeyArray
    ) -> _Masks:
        """Draws the targets of each row. Only those count that are `asked` about."""

    def __call__(self, model: AbstractModel, rows: int, *, key: PRNGKeyArray) -> Query:
        members = _members(model, self.groups, "groups")
        targets, own = self._targets(model, members, rows, key), members[None, :]
        return Query(~targets & own, targets & own)


class RandomTargets(_Grouped):
    """Each unit is independently a target with the same probability; the others are observed.

    !!! example

        ```python
        learner = ebmlearn.QueryTraining(ebmlearn.queries.RandomTargets(0.5))
        ```

    **Arguments:**

    - `probability`: the probability that a unit is a target.
    - `groups`: for a graph, the groups whose variables are targets or observed; variables of other
      groups are neither. All groups by default. Missing values are always neither.
    """

    probability: float = 0.5

    def __check_init__(self):
        _checks.number("probability", self.probability, 0, 1, "(0, 1]")

    def _targets(
        self, model: AbstractModel, asked: _Members, rows: int, key: PRNGKeyArray
    ) -> _Masks:
        return jax.random.bernoulli(key, self.probability, (rows, asked.size))


class TargetCount(_Grouped):
    """A fixed number of targets, chosen uniformly; all other units are observed.

    !!! example

        ```python
        learner = ebmlearn.QueryTraining(ebmlearn.queries.TargetCount(8))
        ```

    **Arguments:**

    - `number`: the number of targets.
    - `groups`: for a graph, the groups whose variables are targets or observed; variables of other
      groups are neither. All groups by default. If the graph has hidden variables, name the groups
      in the data: hidden targets do not count.
    """

    number: int = eqx.field(static=True)

    def __check_init__(self):
        _checks.count("number", self.number)

    def _targets(
        self, model: AbstractModel, asked: _Members, rows: int, key: PRNGKeyArray
    ) -> _Masks:
        most, what = int(asked.sum()), "variables of `groups`" if self.groups else "units"
        if self.number > most:
            raise ValueError(f"`number` must be at most the {most} {what}, got {self.number}.")
        place = jax.random.uniform(key, (rows, asked.size))
        # All others come last.
        place = jnp.where(asked[None, :], place, jnp.full_like(place, 2))
        return place.argsort(-1).argsort(-1) < self.number


class LeaveOneOut(_Grouped):
    """One target; all other units are observed. Training with these queries is pseudo-likelihood if
    the model has no hidden units, the scale is 1 and evidence is strong enough to be certain. A
    [`ebmlearn.QueryModel`][] of binary units has another scale and weaker evidence by default.

    !!! example

        ```python
        learner = ebmlearn.QueryTraining(ebmlearn.queries.LeaveOneOut())
        ```

    **Arguments:**

    - `groups`: for a graph, the groups whose variables are targets or observed; variables of other
      groups are neither. All groups by default. If the graph has hidden variables, name the groups
      in the data: hidden targets do not count.
    """

    def _targets(
        self, model: AbstractModel, asked: _Members, rows: int, key: PRNGKeyArray
    ) -> _Masks:
        return TargetCount(1, groups=self.groups)._targets(model, asked, rows, key)


def _pair(name: str, x: Sequence[int] | Int[np.ndarray, "2"]) -> tuple[int, int]:
    """A height and a width, checked."""
    if not isinstance(x, (list, tuple, np.ndarray)) or np.ndim(x) != 1:
        got = _checks.describe(x)
        raise TypeError(f"`{name}` must be a pair, a height and a width, got {got}.")
    if len(x) != 2:
        raise ValueError(f"`{name}` must be a pair, a height and a width, got {len(x)} numbers.")
    for k in x:
        _checks.count(name, k)
    return int(x[0]), int(x[1])


class BlockTargets(_Grouped):
    """The targets are a block at a random place of an image; the rest is observed.

    !!! example

        ```python
        # A block of 3×3 pixels of an image of 8×8.
        learner = ebmlearn.QueryTraining(ebmlearn.queries.BlockTargets((8, 8), (3, 3)))
        ```

    **Arguments:**

    - `image`: the height and width of an image, which is flattened row by row in the data.
    - `block`: the height and width of the block.
    - `groups`: for a graph, groups with one variable per pixel, such as the channels of a
      [`ebmlearn.GridMRF`][]. The same block of each group is asked for given the rest; variables
      of other groups are neither targets nor observed. By default all variables together are one
      image. If the graph has hidden variables, name the groups in the data.
    """

    image: tuple[int, int] = eqx.field(static=True, converter=functools.partial(_pair, "image"))
    block: tuple[int, int] = eqx.field(static=True, converter=functools.partial(_pair, "block"))

    def __check_init__(self):
        if self.block[0] > self.image[0] or self.block[1] > self.image[1]:
            raise ValueError(f"`block` must fit in the image, {self.image}, got {self.block}.")

    def _targets(
        self, model: AbstractModel, asked: _Members, rows: int, key: PRNGKeyArray
    ) -> _Masks:
        places = [np.arange(asked.size)]
        if self.groups is not None:
            places = [
                places_of(structure_of(model), group, "groups").reshape(-1) for group in self.groups
            ]
        pixels = math.prod(self.image)
        for own in places:
            if own.size != pixels:
                raise ValueError(
                    f"`image` must have {own.size} pixels, one for each unit or, with `groups`, for"
                    f" each variable of a group, got {self.image}."
                )
        inside = []
        for own, length, size in zip(jax.random.split(key), self.image, self.block, strict=True):
            first = jax.random.randint(own, (rows, 1), 0, length - size + 1)
            at = jnp.arange(length)[None, :]
            inside.append((at >= first) & (at < first + size))
        block = (inside[0][:, :, None] & inside[1][:, None, :]).reshape(rows, pixels)
        targets = jnp.zeros((rows, asked.size), bool)
        for own in places:
            targets = targets.at[:, own].set(block)
        return targets


# Which units, or the groups of a graph.
_Units = Bool[AnyArray, " units"] | Sequence[Hashable]


class FixedTargets(AbstractQueries):
    """The same observed units and targets in every query.

    !!! example

        ```python
        upper = np.arange(64) < 32
        learner = ebmlearn.QueryTraining(ebmlearn.queries.FixedTargets(upper, ~upper))
        ```
    """

    observed: Bool[np.ndarray, " units"] | tuple[Hashable, ...]
    targets: Bool[np.ndarray, " units"] | tuple[Hashable, ...]

    def __init__(self, observed: _Units, targets: _Units):
        """**Arguments:**

        - `observed`, `targets`: booleans `[units]`, the units that are observed and the units that
          are asked for; for a graph, lists of groups of variables.
        """
        given = {"observed": _mask(observed), "targets": _mask(targets)}
        are_masks = all(hasattr(x, "dtype") for x in given.values())
        for (name, x), other in zip(given.items(), ("targets", "observed"), strict=True):
            got = _checks.describe(x)
            if are_masks and (x.dtype != np.bool_ or x.ndim != 1):
                raise TypeError(f"`{name}` must be booleans of shape [units], got {got}.")
            if not are_masks and not isinstance(x, (list, tuple)):
                raise TypeError(
                    f"`{name}` must be booleans, one per unit, or a list of groups, as `{other}`"
                    f" must be, got {got}."
                )
        one, two = map(np.asarray if are_masks else tuple, given.values())
        if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
            _checks.exact_shape("targets", two, one.shape, "as `observed` has")
            _check_apart(one, two)
        self.observed, self.targets = one, two

    def __call__(self, model: AbstractModel, rows: int, *, key: PRNGKeyArray) -> Query:
        masks = []
        for name, x in (("observed", self.observed), ("targets", self.targets)):
            masks.append(_members(model, x, name) if isinstance(x, tuple) else x)
            _checks.exact_shape(name, masks[-1], (num_asked(model),), "one value a unit")
        if isinstance(self.targets, tuple):
            _check_apart(*masks)
        return Query(*(jnp.broadcast_to(jnp.asarray(x), (rows, x.size)) for x in masks))


class MixedTargets(AbstractQueries):
    """A mixture: each query is drawn from one of several distributions.

    !!! example

        ```python
        few, many = ebmlearn.queries.TargetCount(4), ebmlearn.queries.TargetCount(32)
        learner = ebmlearn.QueryTraining(ebmlearn.queries.MixedTargets([few, many], [0.8, 0.2]))
        ```
    """

    parts: tuple[AbstractQueries, ...]
    weights: tuple[float, ...] = eqx.field(static=True)

    def __init__(
        self,
        parts: Iterable[AbstractQueries],
        weights: Sequence[float | int] | Num[AnyArray, " parts"] | None = None,
    ):
        """**Arguments:**

        - `parts`: distributions of queries, or functions.
        - `weights`: relative frequencies of the parts; equal by default.
        """
        if isinstance(parts, AbstractQueries) or not isinstance(parts, Iterable):
            got = _checks.describe(parts)
            raise TypeError(f"`parts` must be a list of distributions of queries, got {got}.")
        self.parts = tuple(as_queries(part, "parts") for part in parts)
        each = [1.0] * len(self.parts) if weights is None else weights
        if np.ndim(each) != 1:
            got = _checks.describe(weights)
            raise TypeError(f"`weights` must be a list of numbers, got {got}.")
        for x in each:
            _checks.number("weights", x, 0, math.inf, "(0, inf)")
        self.weights = tuple(map(float, each))

    def __check_init__(self):
        if not self.parts or len(self.parts) != len(self.weights):
            raise ValueError(
                "`parts` must contain at least one distribution, and `weights` one number each, got"
                f" {len(self.parts)} and {len(self.weights)}."
            )

    def __call__(self, model: AbstractModel, rows: int, *, key: PRNGKeyArray) -> Query:
        choose, *own = jax.random.split(key, len(self.parts) + 1)
        drawn = [draw(part, model, rows, key=k) for part, k in zip(self.parts, own, strict=True)]
        which = jax.random.categorical(choose, jnp.log(jnp.asarray(self.weights)), shape=(rows,))
        at = jnp.arange(rows)
        return Query(*(jnp.stack(masks)[which, at] for masks in zip(*drawn, strict=True)))


class _Function(AbstractQueries):
    """What a user's function says."""

    function: Callable = eqx.field(static=True)

    def __call__(self, model: AbstractModel, rows: int, *, key: PRNGKeyArray) -> Any:
        drawn = self.function((rows, num_asked(model)), key=key)
        return (drawn, jnp.logical_not(drawn)) if hasattr(drawn, "dtype") else drawn


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


def draw(queries: AbstractQueries, model: AbstractModel, rows: int, *, key: PRNGKeyArray) -> Query:
    """A query for each row, checked."""
    drawn, shape = queries(model, rows, key=key), (rows, num_asked(model))
    is_function = isinstance(queries, _Function)
    if not isinstance(drawn, tuple) or len(drawn) != 2:
        more = ", or one of those that are observed" if is_function else ""
        raise TypeError(
            f"`queries` must return two arrays of booleans {shape}, observed and targets{more}, got"
            f" {_came(drawn)}."
        )
    observed, targets = map(_booleans, Query._fields, drawn, (shape, shape))
    if is_function:
        message = "`queries` must return at least one target, got none."
        targets = _error_if(targets, ~targets.any(), message)
    # The other classes of this module return valid queries, or check them.
    if is_function or type(queries).__module__ != __name__:
        message = "`queries` must return targets that are not observed, got some that are."
        targets = _error_if(targets, (observed & targets).any(), message)
    return Query(observed, targets)


def _booleans(name: str, x: Any, shape: tuple[int, int]) -> _Masks:
    is_array = hasattr(x, "dtype")
    if not is_array or x.dtype != np.bool_ or x.shape != shape:
        error = ValueError if is_array else TypeError
        raise error(f"`queries` must return {name} as booleans {shape}, got {_came(x)}.")
    return jnp.asarray(x)


def _error_if(x: _Masks, wrong: Bool[Array, ""], message: str) -> _Masks:
    """Raises at once if values are known, else at run time."""
    if not _checks.is_concrete(wrong):
        return eqx.error_if(x, wrong, message)
    if bool(wrong):
        raise ValueError(message)
    return x


def _came(x: Any) -> str:
    """Describes what a function returned, without values that are traced."""
    if x is None:
        return "None"
    if isinstance(x, (list, tuple)):
        return f"{_checks.article(type(x).__name__)} of length {len(x)}"
    return _checks.describe(x) if hasattr(x, "dtype") else f"a value of type {type(x).__name__}"


def _mask(x: Any) -> Any:
    """A list of booleans as an array."""
    listed = isinstance(x, (list, tuple)) and len(x) > 0
    return np.array(x) if listed and all(isinstance(k, (bool, np.bool_)) for k in x) else x


def _members(model: AbstractModel, groups: tuple[Hashable, ...] | None, name: str) -> _Members:
    """Which variables belong to some groups, all of them without groups."""
    out = np.full(num_asked(model), groups is None)
    for group in groups or ():
        out[places_of(structure_of(model), group, name).reshape(-1)] = True
    return out


def _check_apart(observed: _Members, targets: _Members) -> None:
    if not targets.any():
        raise ValueError("`targets` must contain at least one unit, got none.")
    if (observed & targets).any():
        raise ValueError("`targets` must not be observed, got units that are in both.")


def check_told(queries: AbstractQueries, model: AbstractModel, batch: Any) -> None:
    """Raises if all targets are missing in the data."""
    asked = (
        queries.targets if isinstance(queries, FixedTargets) else getattr(queries, "groups", None)
    )
    if asked is None or not isinstance(batch, Mapping):
        return
    if isinstance(asked, tuple):
        asked = _members(model, asked, "queries")
    if not (asked & _members(model, tuple(batch), "batch")).any():
        raise ValueError(
            "`queries` must have at least one target with a value in `batch`, got none."
        )
