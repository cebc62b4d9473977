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
    """Which units are given, and which are asked for; others are neither."""

    observed: Bool[Array, "rows units"]
    targets: Bool[Array, "rows units"]


_BOTH = "`queries` must give targets that are not observed, got some that are."


class AbstractQueries(eqx.Module):
    """A distribution of queries, to train with ([`ebmlearn.QueryTraining`][]) and to test by
    ([`ebmlearn.query_entropy`][]). Both take a plain function in its place, `f(shape, key=key)`,
    which gives booleans of that shape, `[rows, units]`: which units are observed, all others being
    targets; or a pair of such arrays, observed and targets. A subclass is called with the model
    instead. Either is compiled: draw by `jax.random` from `key`, as random numbers of NumPy would
    be the same at every step.
    """

    @abc.abstractmethod
    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        """A query for each row of data.

        **Arguments:**

        - `model`: whose units are asked for: the visible ones, or all variables of a graph. What
          data do not tell can be neither evidence nor target.
        - `rows`: how many queries.
        - `key`: a typed key.

        **Returns:**

        A pair of arrays of booleans `[rows, units]`: which units are observed, and which are
        targets. No unit is both.
        """


class RandomTargets(AbstractQueries):
    """Each unit is a target with the same probability, on its own, and else observed."""

    probability: float
    groups: tuple[Hashable, ...] | None

    def __init__(self, probability: float = 0.5, *, groups: Sequence[Hashable] | None = None):
        """**Arguments:**

        - `probability`: of being a target.
        - `groups`: of a graph, the groups of variables that are targets or observed; those of other
          groups are neither. All groups if not given. What data do not tell is neither anyhow.
        """
        self.probability = probability
        self.groups = as_groups(groups)

    def __check_init__(self):
        _checks.number("probability", self.probability, 0, 1, "(0, 1]")

    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        targets = jax.random.bernoulli(key, self.probability, (rows, model.num_asked))
        return _among(chosen(model, self.groups), targets)


class TargetCount(AbstractQueries):
    """So many targets, each set of them as likely as another, and all other units observed."""

    number: int = eqx.field(static=True)
    groups: tuple[Hashable, ...] | None

    def __init__(self, number: int, *, groups: Sequence[Hashable] | None = None):
        """**Arguments:**

        - `number`: of targets.
        - `groups`: of a graph, the groups of variables that are targets or observed; those of other
          groups are neither. All groups if not given: of a graph with hidden variables, `groups`
          should name what data tell, or some of the targets will be hidden, and not count.
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
    """One target, all other units observed. To train without hidden units by these queries, with a
    scale of 1 and evidence so strong that it is sure, is pseudo-likelihood; a
    [`ebmlearn.QueryModel`][] of binary units starts with another scale and weaker evidence, unless
    it is told these.
    """

    groups: tuple[Hashable, ...] | None

    def __init__(self, *, groups: Sequence[Hashable] | None = None):
        """**Arguments:**

        - `groups`: of a graph, the groups of variables that are targets or observed; those of other
          groups are neither. All groups if not given: of a graph with hidden variables, `groups`
          should name what data tell, or the target of many rows will be hidden, and not count.
        """
        self.groups = as_groups(groups)

    def __call__(self, model: Any, rows: int, *, key: PRNGKeyArray) -> Query:
        return TargetCount(1, groups=self.groups)(model, rows, key=key)


class BlockTargets(AbstractQueries):
    """A block of an image, anywhere in it, is asked for given the rest."""

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

        - `image`: the height and width of an image, whose rows follow one another in the data.
        - `block`: the height and width of the block.
        - `groups`: of a graph, groups of variables of which each has one a pixel, such as channels
          of a [`ebmlearn.GridMRF`][]: the same block of each is asked for given the rest of them;
          variables of other groups are neither targets nor observed. If not given, all variables
          together are one image. Of a graph with hidden variables, `groups` should name what data
          tell.
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
                    f"`image` must have as many pixels as units, {units}, or for a graph `groups`"
                    f" must be given, got {self.image}."
                )
        else:
            places = places_in(model, self.groups)
            for own in places:
                if own.size != pixels:
                    raise ValueError(
                        "`image` must have as many pixels as each of `groups` has variables,"
                        f" {own.size}, got {self.image}."
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
    """Inputs and outputs that are the same in every query."""

    observed: Bool[np.ndarray, " units"] | tuple[Hashable, ...]
    targets: Bool[np.ndarray, " units"] | tuple[Hashable, ...]

    def __init__(self, observed: Units, targets: Units):
        """**Arguments:**

        - `observed`, `targets`: booleans `[units]`, which units are given and which asked for; of a
          graph, lists of groups of its variables.
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
                    f"`{name}` must be booleans, one a unit, or a list of groups, got {got}."
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
    """Each query is of one of several kinds."""

    parts: tuple[AbstractQueries, ...]
    weights: tuple[float, ...] = eqx.field(static=True)

    def __init__(
        self,
        parts: Iterable[AbstractQueries],
        weights: Sequence[float | int] | Num[AnyArray, " parts"] | None = None,
    ):
        """**Arguments:**

        - `parts`: distributions of queries, or functions.
        - `weights`: how often each is drawn, in any unit; all alike if not given.
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
                "`parts` must hold a distribution at least, and `weights` as many numbers, got"
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
                f"`queries` must give booleans {shape}, or a pair of such arrays, got"
                f" {_came(drawn)}."
            )
        observed = _booleans("observed", drawn[0], shape)
        targets = ~observed if drawn[1] is None else _booleans("targets", drawn[1], shape)
        none = ~targets.any()
        targets = _error_if(targets, none, "`queries` must give targets, got none.")
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
            f"`queries` must give a pair of booleans {shape}, observed and targets, got"
            f" {_came(drawn)}."
        )
    observed = _booleans("observed", drawn[0], shape)
    targets = _booleans("targets", drawn[1], shape)
    # What stands in this module is right, or has looked for itself.
    if type(queries).__module__ != __name__:
        targets = _error_if(targets, (observed & targets).any(), _BOTH)
    return Query(observed, targets)


def _booleans(name: str, x: Any, shape: tuple[int, int]) -> Bool[Array, "rows units"]:
    if not hasattr(x, "dtype"):
        raise TypeError(f"`queries` must give {name} as booleans {shape}, got {_came(x)}.")
    if x.dtype != np.bool_ or x.shape != shape:
        got = _checks.describe(x)
        raise ValueError(f"`queries` must give {name} as booleans {shape}, got {got}.")
    return jnp.asarray(x)


def _error_if(
    x: Bool[Array, "rows units"], wrong: Bool[Array, ""], message: str
) -> Bool[Array, "rows units"]:
    """An error at once where values are known, at run time else."""
    if _checks.is_concrete(wrong):
        if bool(wrong):
            raise ValueError(message)
        return x
    return eqx.error_if(x, wrong, message)


def _came(x: Any) -> str:
    """What a function returned, without the values of what is being traced."""
    if x is None:
        return "None"
    if isinstance(x, (list, tuple)):
        return f"a {type(x).__name__} of length {len(x)}"
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
    """Targets, and all others observed; of some variables alone, if these are named."""
    if members is None:
        return Query(~targets, targets)
    own = members[None, :]
    return Query(~targets & own, targets & own)


def _check_apart(observed: Bool[np.ndarray, " n"], targets: Bool[np.ndarray, " n"]) -> None:
    if not targets.any():
        raise ValueError("`targets` must hold a unit at least, got none.")
    if (observed & targets).any():
        raise ValueError("`targets` must not be observed, got units that are both.")


def check_told(queries: AbstractQueries, model: Any, batch: Any) -> None:
    """Raises if data never tell what alone is asked for."""
    asked = (
        queries.targets if isinstance(queries, FixedTargets) else getattr(queries, "groups", None)
    )
    if asked is None or not isinstance(batch, Mapping):
        return
    if isinstance(asked, tuple):
        asked = members_of(model, asked, "queries")
    if not (asked & members_of(model, tuple(batch), "batch")).any():
        raise ValueError("`queries` must ask for what `batch` tells, got no such target.")
