import math
from dataclasses import KW_ONLY
from typing import Any, get_args, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .. import _checks, messages
from ..messages import Instance, Product
from ..models import AbstractLayeredModel, Statistics
from ..models._problem import each, each_and_mean
from ._base import AbstractInference, TooLarge
from ._beliefs import AbstractDerived, Beliefs
from ._enumeration import blocks, by_state, CHUNK, pair_maxima, Sides, Table
from ._gaussian_exact import gaussian_exact, gaussian_statistics
from ._graph_exact import graph_beliefs, graph_statistics, way_of
from ._nonnegative import moment_statistics
from ._quadrature import exact_moments


_MOST = 30


class Exact(AbstractInference):
    """Exact inference: by enumeration, for small models and for tests of other inferences; or by
    elimination of one variable after the other, for graphs whose tables stay small.

    What is enumerated depends on the model:

    - Bipartite models: only the smaller side, because the units of the other side are independent
      given it. [`ebmlearn.SemiRestrictedBM`][]: the visible units. [`ebmlearn.BoltzmannMachine`][]:
      all units. Memory is one number per configuration.
    - Graphs: all configurations, in bounded memory. With `product="max"` the states of the most
      likely configuration have probability 1. A [`ebmlearn.TableModel`][] or [`ebmlearn.GridMRF`][]
      with more than 4,096 configurations is eliminated instead: on the host, in float64, in an
      order that is searched for. A chain or a tree of any length is easy, and so is a grid of any
      length that is up to twenty binary pixels wide.
    - Nonnegative units: up to four are integrated by quadrature; any number has a formula if no two
      are joined. `residual` is the difference of log Z to a smaller quadrature rule.
    - Gaussian visible units: the hidden units are enumerated; the visible units are a mixture of
      Gaussians.

    What is computed depends on `product`:

    - `product="sum"` gives marginals and log Z.
    - `product="max"` gives the most likely configuration. `log_partition` is its log-potential, and
      the log-odds of a unit compare the best configurations with the unit at 1 and at 0.
    - `product="mixed"` gives the most likely visible configuration with the hidden units summed out
      (marginal MAP). It enumerates the side of the visible units. On graphs it serves
      [`ebmlearn.MSSVM`][], which says which variables are visible, in memory of a number for each
      configuration.

    !!! example

        ```python
        ebmlearn.Exact()(rbm).log_partition
        ebmlearn.Exact(product="max")(rbm).decode().visible
        ```
    """

    product: Product = eqx.field(static=True, default="sum")
    _: KW_ONLY
    method: Literal["enumeration", "elimination"] | None = eqx.field(static=True, default=None)
    max_units: int = eqx.field(static=True, default=24)

    def __check_init__(self):
        _checks.choice("product", self.product, get_args(Product))
        if self.method is not None:
            _checks.choice("method", self.method, ("enumeration", "elimination"))
        _checks.count("max_units", self.max_units)
        if self.max_units > _MOST:
            raise ValueError(f"`max_units` must be at most {_MOST}, got {self.max_units}.")

    @property
    def takes(self) -> tuple[str, ...]:
        """All kinds with registered messages, and nonnegative units."""
        return (*messages.MAKERS, "nonnegative")

    @property
    def maximises(self) -> Literal["nothing", "visible", "all"]:
        """It follows from `product`."""
        return MAXIMISES[self.product]

    def _beliefs(self, problem: Any) -> Beliefs:
        return self._method(problem)[0](problem)

    def _statistics(self, problem: Any) -> Statistics:
        return self._method(problem)[1](problem)

    def _method(self, problem: Any) -> tuple[Any, Any]:
        """What finds beliefs, and what finds statistics."""
        model = problem.model
        kind, name = model.kind, type(model).__name__
        if self.method == "elimination" and kind not in messages.graph_kinds():
            raise ValueError(
                f'`method="elimination"` needs a graph of tables, got a {name}: write it as a'
                " `TableModel`."
            )
        if kind == "binary":
            sides = self._sides(model)
            return (lambda p: _enumerated(p, sides)), (lambda p: _statistics(p, sides))
        real = {
            "gaussian binary": (gaussian_exact, gaussian_statistics),
            "nonnegative": (exact_moments, lambda p: moment_statistics(exact_moments(p))),
        }
        if kind in real:
            if self.product != "sum":
                raise ValueError(f'`product` must be "sum" for a {name}, got {self.product!r}.')
            sizes = tuple(units.size for units in model.layers)
            self._allow(sum(sizes[1:]), model, sizes)
            return real[kind]
        if self.product == "mixed" and problem.outputs is None:
            raise ValueError(
                f'`product="mixed"` on a {name} needs the variables over which it maximises, which'
                " `MSSVM` takes from the data, got none."
            )
        way = way_of(problem, self.product, self.method, self.max_units)
        return (lambda p: graph_beliefs(p, way)), (lambda p: graph_statistics(p, way))

    def _sides(self, model: AbstractLayeredModel) -> Sides:
        sizes = tuple(bias.shape[-1] for bias in model.unary())
        layers = range(len(sizes))
        even = tuple(layer for layer in layers if layer % 2 == 0)
        odd = tuple(layer for layer in layers if layer % 2)
        if not model.is_bipartite and self.product == "mixed":
            kind = type(model).__name__
            raise ValueError(f'`product="mixed"` needs a bipartite model, got a {kind}.')
        few = sum(sizes[k] for k in odd) < sum(sizes[k] for k in even)
        if few and model.is_bipartite and self.product != "mixed":
            even, odd = odd, even
        units = sum(sizes[k] for k in even)
        self._allow(units, model, sizes)
        return Sides(even, odd, sizes, self.product)

    def _allow(self, units: int, model: Any, sizes: tuple[int, ...]) -> None:
        if units > self.max_units:
            raise TooLarge(
                f"`model` must have at most `max_units` = {self.max_units} units to enumerate, got"
                f" {units} units in a {type(model).__name__} with layers of"
                f" {', '.join(map(str, sizes))}."
            )


def affordable(problem: Any, seconds: float | int) -> int:
    """The largest `max_units` with which exact inference takes about so long on one core."""
    rows = max(1, math.prod(problem.shape))
    # A number of a table takes 50 ns; a unit of a configuration that is listed takes 100 ns.
    each = 5e-8
    if problem.model.kind not in messages.graph_kinds():
        each = 1e-7 * sum(units.size for units in problem.model.layers)
    most = math.log2(max(1.0, seconds / (rows * each)))
    return min(max(1, int(most)), _MOST)


# Over which units each product maximises.
MAXIMISES: dict[str, Literal["nothing", "visible", "all"]] = {
    "sum": "nothing",
    "mixed": "visible",
    "max": "all",
}


class _Enumerated(AbstractDerived):
    """What enumeration says of pairs. For `product="max"` that is normalised from the best
    configurations with each pair of states.
    """

    value: Float[Array, "*batch"]
    sides: Sides = eqx.field(static=True)

    def pairwise(self, problem: Any, log_odds: Any) -> Any:
        return problem.model.factors(_pairwise(problem, self.sides))

    def log_partition(self, problem: Any, log_odds: Any) -> Float[Array, "*batch"]:
        return self.value


class _Answer(NamedTuple):
    log_odds: tuple[Array, ...]
    states: tuple[Array, ...]
    value: Float[Array, ""]


class _Sums(NamedTuple):
    """Normalised weights of the configurations and the logarithm of what normalises them. For
    mixed-product they are those that agree with the best visible states; `groups` are then the
    scores of the visible configurations, and `best` is the number of the best one.
    """

    weights: Float[Array, " configurations"]
    value: Float[Array, ""]
    scores: Float[Array, " configurations"]
    groups: Float[Array, " groups"]
    best: Int[Array, ""]


def _sums(table: Table, sides: Sides) -> _Sums:
    scores = table.scores()
    visible = sides.sizes[0] if sides.product == "mixed" else 0
    groups = jax.nn.logsumexp(scores.reshape(2**visible, -1), axis=1)
    best = jnp.argmax(groups)
    chosen = jnp.repeat(jnp.arange(groups.size) == best, scores.size // groups.size)
    scores = jnp.where(chosen, scores, jnp.full_like(scores, -jnp.inf))
    value = groups[best]
    return _Sums(jnp.exp(scores - value), value, scores, groups, best)


def _answer(model: AbstractLayeredModel, instance: Instance, sides: Sides) -> _Answer:
    table = Table(model, instance, sides)
    if sides.product == "max":
        scores = table.scores()
        best = jnp.argmax(scores)
        s = table.configurations(best[None].astype(jnp.int32))
        r = jnp.where(table.free_clamp == 0, table.fields(s)[0], table.free_clamp) > 0
        states = sides.scatter(s[0].astype(jnp.int32), r.astype(jnp.int32))
        log_odds = table.listed_log_odds(scores), table.free_log_odds(scores)
        return _Answer(sides.scatter(*log_odds), states, scores[best] + table.reference())
    sums = _sums(table, sides)
    value = sums.value + table.reference()
    free = table.free_log_odds(sums.scores)
    if sides.product == "sum":
        log_odds = sides.scatter(table.listed_log_odds(sums.scores), free)
        return _Answer(log_odds, _most_likely(log_odds), value)
    # Mixed: the visible units by what they maximise, the others on their side given the best.
    visible = sides.sizes[0]
    rest = sums.scores.reshape(sums.groups.size, -1)[sums.best]
    zero, one = by_state(rest, jax.nn.logsumexp)
    listed = jnp.concatenate([table.listed_log_odds(sums.groups), one - zero])
    log_odds = sides.scatter(listed, free)
    number = (sums.best * rest.size)[None].astype(jnp.int32)
    chosen = table.configurations(number)[0, :visible].astype(jnp.int32)
    return _Answer(log_odds, (chosen, *_most_likely(log_odds)[1:]), value)


def _most_likely(log_odds: tuple[Array, ...]) -> tuple[Array, ...]:
    """1 where the log-odds are positive, as integers."""
    return tuple((x > 0).astype(jnp.int32) for x in log_odds)


def _pairs(model: AbstractLayeredModel, instance: Instance, sides: Sides) -> tuple[Array, ...]:
    table = Table(model, instance, sides)
    if sides.product == "max":
        inner, cross = pair_maxima(table)
    else:
        inner, cross = table.moments(_sums(table, sides).weights)
    return blocks(model, sides, inner, cross)


def _chunk(sides: Sides) -> int:
    return max(1, CHUNK // 2 ** sides.units("listed"))


def _enumerated(problem: Any, sides: Sides) -> Beliefs:
    answer, shape = _solved(problem, sides), problem.shape
    return Beliefs(
        problem,
        _Enumerated(answer.value, sides),
        log_odds=problem.model.units(answer.log_odds),
        converged=jnp.ones(shape, bool),
        iterations=jnp.zeros(shape, jnp.int32),
        residual=jnp.zeros_like(answer.value),
        states=problem.model.units(answer.states),
    )


@eqx.filter_jit
def _solved(problem: Any, sides: Sides) -> _Answer:
    def one(instance: Instance) -> _Answer:
        return _answer(problem.model, instance, sides)

    return each(one, messages.instances(problem), problem.shape, _chunk(sides))


@eqx.filter_jit
def _pairwise(problem: Any, sides: Sides) -> PyTree:
    def one(instance: Instance) -> PyTree:
        return _pairs(problem.model, instance, sides)

    return each(one, messages.instances(problem), problem.shape, _chunk(sides))


@eqx.filter_jit
def _statistics(problem: Any, sides: Sides) -> Statistics:
    model = problem.model

    def one(instance: Instance) -> PyTree:
        answer = _answer(model, instance, sides)
        units = tuple(jax.nn.sigmoid(x) for x in answer.log_odds)
        states = tuple(x.astype(instance.unary[0].dtype) for x in answer.states)
        if sides.product == "max":
            pairs = ((states[block.first], states[block.second]) for block in model.blocks())
            return states, tuple(a[:, None] * b[None, :] for a, b in pairs)
        if sides.product == "mixed":
            units = (states[0], *units[1:])
        return units, _pairs(model, instance, sides)

    units, pairs = each_and_mean(one, messages.instances(problem), problem.shape, _chunk(sides))
    return Statistics(
        units=model.units(units),
        pairwise=model.factors(pairs),
        squares=(None,) * len(model.names),
        converged=jnp.ones(problem.shape, bool),
        iterations=jnp.zeros(problem.shape, jnp.int32),
        residual=jnp.zeros(problem.shape, model.dtype),
    )


Exact.__init__.__doc__ = """**Arguments:**

- `product`: `"sum"`, `"max"` or `"mixed"`.
- `method`: `"enumeration"` or `"elimination"`. Without it, the faster one is taken.
- `max_units`: the largest number of units to enumerate, at most 30; more raise an error. For
  elimination, the largest table has at most `2**max_units` entries of 8 bytes.
"""
