import abc
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Num, PRNGKeyArray

from .. import _checks
from .._types import AnyArray
from ._query_groups import as_groups, chosen, members_of, places_in


class Query(NamedTuple):
    """The units that are observed and the units that are asked for, as booleans."""

    observed: Bool[Array, "rows units"]
    targets: Bool[Array, "rows units"]


_BOTH = "`queries` must return targets that are not observed, got some that are."


class AbstractQueries(eqx.Module):
    """A distribution of queries, for training ([`ebmlearn.QueryTraining`][]) and testing
    ([`ebmlearn.query_entropy`][]).

    Both also take a plain function `f(shape, key=key)`, with shape `[rows, units]`. It returns
    booleans, the observed units, and all others are targets; or a pair of such arrays, observed and
    targets. A subclass is called with the model instead of the shape. Either is compiled: draw from
    `key` with `jax.random`, because NumPy's random numbers would be the same at every step.
    """

    @abc.abstractmethod
    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
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


class RandomTargets(AbstractQueries):
    """Each unit is independently a target with the same probability; the others are observed."""

    probability: float
    groups: tuple[Hashable, ...] | None

    def __init__(self, probability: float = 0.5, *, groups: Sequence[Hashable] | None = None):
        """**Arguments:**

        - `probability`: the probability that a unit is a target.
        - `groups`: for a graph, the groups whose variables are targets or observed; variables of
          other groups are neither. All groups by default. Missing values are always neither.
        """
        self.probability = probability
        self.groups = as_groups(groups)

    def __check_init__(self):
        _checks.number("probability", self.probability, 0, 1, "(0, 1]")

    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        targets = jax.random.bernoulli(key, self.probability, (rows, model.num_asked))
        return _among(chosen(model, self.groups), targets)


class TargetCount(AbstractQueries):
    """A fixed number of targets, chosen uniformly; all other units are observed."""

    number: int = eqx.field(static=True)
    groups: tuple[Hashable, ...] | None

    def __init__(self, number: int, *, groups: Sequence[Hashable] | None = None):
        """**Arguments:**

        - `number`: the number of targets.
        - `groups`: for a graph, the groups whose variables are targets or observed; variables of
          other groups are neither. All groups by default. If the graph has hidden variables, name
          the groups in the data: hidden targets do not count.
        """
        self.number = number
        self.groups = as_groups(groups)

    def __check_init__(self):
        _checks.count("number", self.number)

    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        units = model.num_asked
        members = chosen(model, self.groups)
        most, what = units, "units"
        if members is not None:
            most, what = int(members.sum()), "variables of `groups`"
        if self.number > most:
            raise ValueError(f"`number` must be at most the {most} {what}, got {self.number}.")
        place = jax.random.uniform(key, (rows, units))
        if members is not None:
            # All others come last.
            place = jnp.where(members[None, :], place, jnp.full_like(place, 2))
        order = place.argsort(-1).argsort(-1)
        return _among(members, order < self.number)


class LeaveOneOut(AbstractQueries):
    """One target; all other units are observed. Training with these queries is pseudo-likelihood if
    the model has no hidden units, the scale is 1 and evidence is strong enough to be certain. A
    [`ebmlearn.QueryModel`][] of binary units has another scale and weaker evidence by default.
    """

    groups: tuple[Hashable, ...] | None

    def __init__(self, *, groups: Sequence[Hashable] | None = None):
        """**Arguments:**

        - `groups`: for a graph, the groups whose variables are targets or observed; variables of
          other groups are neither. All groups by default. If the graph has hidden variables, name
          the groups in the data: hidden targets do not count.
        """
        self.groups = as_groups(groups)

    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        return TargetCount(1, groups=self.groups)(model, rows, key=key)


class BlockTargets(AbstractQueries):
    """The targets are a block at a random place of an image; the rest is observed."""

    image: tuple[int, int] = eqx.field(static=True)
    block: tuple[int, int] = eqx.field(static=True)
    groups: tuple[Hashable, ...] | None

    def __init__(
        self,
        image: tuple[int, int],
        block: tuple[int, int],
        *,
        groups: Sequence[Hashable] | None = None,
    ):
        """**Arguments:**

        - `image`: the height and width of an image, which is flattened row by row in the data.
        - `block`: the height and width of the block.
        - `groups`: for a graph, groups with one variable per pixel, such as the channels of a
          [`ebmlearn.GridMRF`][]. The same block of each group is asked for given the rest;
          variables of other groups are neither targets nor observed. By default all variables
          together are one image. If the graph has hidden variables, name the groups in the data.
        """
        self.image = _height_and_width("image", image)
        self.block = _height_and_width("block", block)
        self.groups = as_groups(groups)

    def __check_init__(self):
        for name, x in (("image", self.image), ("block", self.block)):
            for k in x:
                _checks.count(name, k)
        if self.block[0] > self.image[0] or self.block[1] > self.image[1]:
            raise ValueError(f"`block` must fit in the image, {self.image}, got {self.block}.")

    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        units = model.num_asked
        pixels = math.prod(self.image)
        places = None
        if self.groups is None:
            if pixels != units:
                raise ValueError(
                    f"`image` must have {units} pixels, one per unit, or `groups` must be given for"
                    f" a graph, got {self.image}."
                )
        else:
            places = places_in(model, self.groups)
            for own in places:
                if own.size != pixels:
                    raise ValueError(
                        f"`image` must have {own.size} pixels, one per variable of each group, got"
                        f" {self.image}."
                    )
        inside = []
        for own, length, size in zip(jax.random.split(key), self.image, self.block, strict=True):
            first = jax.random.randint(own, (rows, 1), 0, length - size + 1)
            at = jnp.arange(length)[None, :]
            inside.append((at >= first) & (at < first + size))
        block = (inside[0][:, :, None] & inside[1][:, None, :]).reshape(rows, pixels)
        if places is None:
            return _among(None, block)
        targets = jnp.zeros((rows, units), bool)
        for own in places:
            targets = targets.at[:, own].set(block)
        return _among(chosen(model, self.groups), targets)


# Which units, or the groups of a graph.
Units = Bool[AnyArray, " units"] | Sequence[Hashable]


class FixedTargets(AbstractQueries):
    """The same observed units and targets in every query."""

    observed: Bool[np.ndarray, " units"] | tuple[Hashable, ...]
    targets: Bool[np.ndarray, " units"] | tuple[Hashable, ...]

    def __init__(self, observed: Units, targets: Units):
        """**Arguments:**

        - `observed`, `targets`: booleans `[units]`, the units that are observed and the units that
          are asked for; for a graph, lists of groups of variables.
        """
        given: list[Any] = [_mask(observed), _mask(targets)]
        pairs = list(zip(("observed", "targets"), given, strict=True))
        if all(hasattr(x, "dtype") for x in given):
            for name, x in pairs:
                if x.dtype != np.bool_ or x.ndim != 1:
                    got = _checks.describe(x)
                    raise TypeError(f"`{name}` must be booleans of shape [units], got {got}.")
            _checks.exact_shape("targets", given[1], given[0].shape, "as `observed` has")
            self.observed, self.targets = map(np.asarray, given)
            _check_apart(self.observed, self.targets)
            return
        for name, x in pairs:
            if hasattr(x, "dtype"):
                other = "targets" if name == "observed" else "observed"
                got = _checks.describe(x)
                raise TypeError(f"`{name}` must be a list of groups, as `{other}` is, got {got}.")
            if not isinstance(x, (list, tuple)):
                got = _checks.describe(x)
                raise TypeError(
                    f"`{name}` must be booleans, one per unit, or a list of groups, got {got}."
                )
        self.observed, self.targets = map(tuple, given)

    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        units = model.num_asked
        masks = []
        for name, x in (("observed", self.observed), ("targets", self.targets)):
            if isinstance(x, tuple):
                x = members_of(model, x, name)
            _checks.exact_shape(name, x, (units,), "one value a unit")
            masks.append(x)
        if isinstance(self.targets, tuple):
            _check_apart(*masks)
        return Query(*(jnp.broadcast_to(jnp.asarray(x), (rows, units)) for x in masks))


class MixedTargets(AbstractQueries):
    """A mixture: each query is drawn from one of several distributions."""

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
        try:
            each = list(each)
        except TypeError:
            got = _checks.describe(weights)
            raise TypeError(f"`weights` must be a list of numbers, got {got}.") from None
        for x in each:
            _checks.number("weights", x, 0, math.inf, "(0, inf)")
        self.weights = tuple(map(float, each))

    def __check_init__(self):
        if not self.parts or len(self.parts) != len(self.weights):
            raise ValueError(
                "`parts` must contain at least one distribution, and `weights` one number each, got"
                f" {len(self.parts)} and {len(self.weights)}."
            )

    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        choose, *own = jax.random.split(key, len(self.parts) + 1)
        drawn = [draw(part, model, rows, key=k) for part, k in zip(self.parts, own, strict=True)]
        which = jax.random.categorical(choose, jnp.log(jnp.asarray(self.weights)), shape=(rows,))
        at = jnp.arange(rows)
        return Query(*(jnp.stack(masks)[which, at] for masks in zip(*drawn, strict=True)))


class _Function(AbstractQueries):
    """What a user's function says."""

    function: Callable = eqx.field(static=True)

    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        shape = (rows, model.num_asked)
        drawn = self.function(shape, key=key)
        if hasattr(drawn, "dtype"):
            drawn = drawn, None
        if not isinstance(drawn, tuple) or len(drawn) != 2:
            raise TypeError(
                f"`queries` must return booleans {shape}, or a pair of such arrays, got"
                f" {_came(drawn)}."
            )
        observed = _booleans("observed", drawn[0], shape)
        targets = ~observed if drawn[1] is None else _booleans("targets", drawn[1], shape)
        none = ~targets.any()
        targets = _error_if(targets, none, "`queries` must return at least one target, got none.")
        return Query(observed, _error_if(targets, (observed & targets).any(), _BOTH))


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


def draw(queries: AbstractQueries, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
    """A query for each row, checked."""
    drawn = queries(model, rows, key=key)
    shape = (rows, model.num_asked)
    if not isinstance(drawn, tuple) or len(drawn) != 2:
        raise TypeError(
            f"`queries` must return two arrays of booleans {shape}, observed and targets, got"
            f" {_came(drawn)}."
        )
    observed = _booleans("observed", drawn[0], shape)
    targets = _booleans("targets", drawn[1], shape)
    # The classes of this module return valid queries, or check them.
    if type(queries).__module__ != __name__:
        targets = _error_if(targets, (observed & targets).any(), _BOTH)
    return Query(observed, targets)


def _booleans(name: str, x: Any, shape: tuple[int, int]) -> Bool[Array, "rows units"]:
    if not hasattr(x, "dtype"):
        raise TypeError(f"`queries` must return {name} as booleans {shape}, got {_came(x)}.")
    if x.dtype != np.bool_ or x.shape != shape:
        got = _checks.describe(x)
        raise ValueError(f"`queries` must return {name} as booleans {shape}, got {got}.")
    return jnp.asarray(x)


def _error_if(
    x: Bool[Array, "rows units"], wrong: Bool[Array, ""], message: str
) -> Bool[Array, "rows units"]:
    """Raises at once if values are known, else at run time."""
    if _checks.is_concrete(wrong):
        if bool(wrong):
            raise ValueError(message)
        return x
    return eqx.error_if(x, wrong, message)


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


def _height_and_width(name: str, x: Any) -> tuple[int, int]:
    if not isinstance(x, (list, tuple, np.ndarray)) or np.ndim(x) != 1:
        got = _checks.describe(x)
        raise TypeError(f"`{name}` must be a pair, a height and a width, got {got}.")
    if len(x) != 2:
        raise ValueError(f"`{name}` must be a pair, a height and a width, got {len(x)} numbers.")
    height, width = (int(k) if isinstance(k, np.integer) else k for k in x)
    return height, width


def _among(
    members: Bool[np.ndarray, " variables"] | None, targets: Bool[Array, "rows units"]
) -> Query:
    """Targets, with all others observed; restricted to `chosen` variables if given."""
    if members is None:
        return Query(~targets, targets)
    own = members[None, :]
    return Query(~targets & own, targets & own)


def _check_apart(observed: Bool[np.ndarray, " n"], targets: Bool[np.ndarray, " n"]) -> None:
    if not targets.any():
        raise ValueError("`targets` must contain at least one unit, got none.")
    if (observed & targets).any():
        raise ValueError("`targets` must not be observed, got units that are in both.")


def check_told(queries: AbstractQueries, model: Any, batch: Any) -> None:
    """Raises if all targets are missing in the data."""
    asked = (
        queries.targets if isinstance(queries, FixedTargets) else getattr(queries, "groups", None)
    )
    if asked is None or not isinstance(batch, Mapping):
        return
    if isinstance(asked, tuple):
        asked = members_of(model, asked, "queries")
    if not (asked & members_of(model, tuple(batch), "batch")).any():
        raise ValueError(
            "`queries` must have at least one target with a value in `batch`, got none."
        )
