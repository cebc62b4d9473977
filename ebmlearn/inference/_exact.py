import dataclasses
import math
from dataclasses import KW_ONLY
from typing import Any, get_args, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from .. import _checks, messages
from ..factors import AbstractFactor
from ..messages import Product
from ..models import AbstractModel, Statistics
from ..models._listed import stacks_of
from ..models._problem import each, each_and_mean
from ..models._require import refuse
from ..units import AbstractNumberedUnits
from ._base import AbstractInference, TooLarge
from ._beliefs import AbstractDerived, Beliefs
from ._eliminated import check_width, eliminated, helpers_of
from ._enumeration import Answer, CHUNK, sides, Space, Table
from ._gaussian_exact import gaussian_exact, gaussian_statistics
from ._nonnegative import moment_statistics
from ._posed import is_graph, Posed, posed, split, statistics_of
from ._quadrature import exact_moments


_MOST = 30
# Up to so many bits of configurations, listing them on the device is faster than elimination.
_FEW = 12


class Exact(AbstractInference):
    """Exact inference: by enumeration, for small models and for tests of other inferences; or by
    elimination of one variable after the other, for graphs whose tables stay small.

    What is enumerated depends on the model:

    - Binary and categorical units: the groups that leave the largest part of the model independent
      given their states; for an RBM the smaller layer, for a [`ebmlearn.SemiRestrictedBM`][] the
      visible units, for a [`ebmlearn.BoltzmannMachine`][] all units. Memory is one number per
      configuration.
    - Graphs: all configurations. With `product="max"` the states of the most likely configuration
      have probability 1. A graph with more than 4,096 configurations is eliminated instead: on the
      host, in float64, in an order that is searched for. A chain or a tree of any length is easy,
      and so is a grid of any length that is up to twenty binary pixels wide. PGMax graphs with
      quantised units are always enumerated.
    - Nonnegative units: up to four are integrated by quadrature; any number has a formula if no two
      are joined. `residual` is the difference of log Z to a smaller quadrature rule.
    - Gaussian visible units: the hidden units are enumerated; the visible units are a mixture of
      Gaussians.

    What is computed depends on `product`:

    - `product="sum"` gives marginals and log Z.
    - `product="max"` gives the most likely configuration. `log_partition` is its log-potential, and
      the log-odds of a unit compare the best configurations with the unit at 1 and at 0.
    - `product="mixed"` gives the most likely visible configuration with the hidden units summed out
      (marginal MAP). It enumerates all visible units. On graphs it serves [`ebmlearn.MSSVM`][],
      which says which variables are visible.

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
        """All models of binary and categorical units, Gaussian RBMs, and nonnegative units."""
        return ("binary or categorical units", *_REAL)

    @property
    def maximises(self) -> Literal["nothing", "visible", "all"]:
        """It follows from `product`."""
        return MAXIMISES[self.product]

    def accepts(self, model: AbstractModel) -> bool:
        """Whether all units are binary or categorical, or of a kind with formulas of its own."""
        return model.kind in _REAL or getattr(model, "numbered", False)

    def _beliefs(self, problem: Any) -> Beliefs:
        return self._method(problem)[0](problem)

    def _statistics(self, problem: Any) -> Statistics:
        if not problem.model.exact:
            refuse(problem.model, "have an energy that is linear in its parameters for statistics")
        return self._method(problem)[1](problem)

    def _method(self, problem: Any) -> tuple[Any, Any]:
        """What finds beliefs, and what finds statistics."""
        model = problem.model
        kind, name = model.kind, _checks.article(type(model).__name__)
        if kind in _REAL:
            if self.method == "elimination":
                raise ValueError(f'`method="elimination"` needs tables, got {name}.')
            if self.product != "sum":
                raise ValueError(f'`product` must be "sum" for {name}, got {self.product!r}.')
            self._allow(sum(units.size for units in model.layers[1:]), model)
            return _REAL[kind]
        way = self._way(problem)
        return (lambda p: _beliefs(p, way)), (lambda p: _statistics(p, way))

    def _way(self, problem: Any) -> "Way":
        """How log Z is found."""
        model = problem.model
        name = _checks.article(type(model).__name__)
        outputs = problem.maximised() if self.product == "mixed" else None
        if self.product == "mixed" and outputs is None:
            raise ValueError(
                f'`product="mixed"` on {name} needs the variables over which it maximises, which'
                " `MSSVM` takes from the data, got none."
            )
        tables = is_graph(model) and stacks_of(model) is not None
        if self.method == "elimination" and not tables:
            raise ValueError(
                f'`method="elimination"` needs a graph of tables, got {name}: write it as a'
                " `TableModel`."
            )
        space = _space(model, self.product, () if outputs is None else outputs)
        if self.method == "elimination" or (
            self.method is None and tables and space.total > 2**_FEW
        ):
            check_width(problem, self.product, self.max_units)
            return Way(self.product, None, self.max_units)
        bits = sum(math.log2(n) for n in space.numbers)
        if is_graph(model) and space.total > 2**self.max_units:
            raise TooLarge(
                f"`model` must have at most 2**{self.max_units} configurations to enumerate, got"
                f" {space.total}: raise `max_units`."
            )
        self._allow(math.ceil(bits - 1e-9), model)
        return Way(self.product, space, self.max_units)

    def _allow(self, bits: int, model: Any) -> None:
        if bits > self.max_units:
            sizes = ", ".join(str(units.size) for units in model.layers)
            raise TooLarge(
                f"`model` must have at most `max_units` = {self.max_units} units to enumerate, got"
                f" {bits} units in {_checks.article(type(model).__name__)} with layers of {sizes}."
            )


# Models of real units, with formulas of their own: beliefs, and statistics.
_REAL: dict[str, Any] = {
    "gaussian binary": (gaussian_exact, gaussian_statistics),
    "nonnegative": (exact_moments, lambda p: moment_statistics(exact_moments(p))),
}


def affordable(problem: Any, seconds: float | int) -> int:
    """The largest `max_units` with which exact inference takes about so long on one core."""
    rows = max(1, math.prod(problem.shape))
    # A number of a table takes 50 ns; a unit of a configuration that is listed takes 100 ns.
    each = 5e-8
    if not is_graph(problem.model):
        each = 1e-7 * sum(units.size for units in problem.model.layers)
    most = math.log2(max(1.0, seconds / (rows * each)))
    return min(max(1, int(most)), _MOST)


# Over which units each product maximises.
MAXIMISES: dict[str, Literal["nothing", "visible", "all"]] = {
    "sum": "nothing",
    "mixed": "visible",
    "max": "all",
}


@dataclasses.dataclass(frozen=True)
class Way:
    """How log Z is found: the configurations of a space are listed, or variables are eliminated
    with tables of at most `2**most` entries.
    """

    product: Product
    space: Space | None
    most: int

    def chunk(self) -> int:
        """How many instances are treated at once."""
        return 64 if self.space is None else max(1, CHUNK // self.space.total)


def _space(model: Any, product: Product, outputs: tuple[int, ...]) -> Space:
    units: tuple[AbstractNumberedUnits, ...] = model.layers
    numbers = [(u.number,) * u.size for u in units]
    if is_graph(model):
        ends = np.cumsum([u.size for u in units])[:-1]
        numbers = [tuple(x.tolist()) for x in np.split(np.asarray(model.num_states), ends)]
    bits = tuple(math.fsum(math.log2(n) for n in own) for own in numbers)
    listed = ()
    if product == "mixed":
        # Of a graph any variable may be maximised over.
        listed = tuple(range(len(units))) if is_graph(model) else outputs
    # What is differentiated does not matter here, and weights may be traced.
    names = messages.names_of(model)
    return Space(names, units, tuple(numbers), *sides(names, bits, model.factors(), listed))


def _table(factors: tuple[AbstractFactor, ...], at: Posed, way: Way) -> Table:
    assert way.space is not None
    return Table(factors, *at, way.space, way.product)


class _Derived(AbstractDerived):
    """What is known beyond single units."""

    value: Float[Array, "*batch"]
    way: Way = eqx.field(static=True)

    def pairwise(self, problem: Any, log_odds: Any) -> Any:
        return problem.model.by_factor(_pairwise(problem, self.way))

    def log_partition(self, problem: Any, log_odds: Any) -> Float[Array, "*batch"]:
        return self.value


def _beliefs(problem: Any, way: Way) -> Beliefs:
    shape = problem.shape
    log_odds, states, value = _solved(problem, way)
    return Beliefs(
        problem,
        _Derived(value, way),
        log_odds=log_odds,
        # Evidence may leave no configuration.
        converged=jnp.isfinite(value),
        iterations=jnp.zeros(shape, jnp.int32),
        residual=jnp.zeros(shape, value.dtype),
        states=states,
    )


@eqx.filter_jit
def _solved(problem: Any, way: Way) -> tuple[PyTree, PyTree, Float[Array, "*batch"]]:
    """The log-odds of all units and the most likely states by name, and log Z."""
    model = problem.model
    factors = model.factors(_reduced(way.product))

    def one(at: Any) -> Answer:
        if way.space is None:
            return _eliminated(model, at, way)
        answer = _table(factors, at, way).answer()
        if not is_graph(model) or way.product == "sum":
            return answer
        # As by elimination, what is maximised over has the probability 1.
        hard = jnp.log(jax.nn.one_hot(answer.states, at.rows.shape[-1], dtype=at.rows.dtype))
        chosen = at.outputs if way.product == "mixed" else jnp.ones_like(at.outputs)
        return answer._replace(scores=jnp.where(chosen[:, None], hard, answer.scores))

    answer = each(one, _instances(problem, way), problem.shape, way.chunk())
    if is_graph(model):
        return problem.named(answer.scores), None, answer.value
    states = model.units(split(model, answer.states, -1))
    return problem.named(answer.scores), states, answer.value


class _Flat(NamedTuple):
    """What elimination needs of an instance: the unary scores of all states, one after the other,
    the states at which variables are held, -1 where free, and over which it maximises.
    """

    unary: Float[Array, "*batch states"]
    clamp: Int[Array, "*batch variables"]
    outputs: Bool[Array, "*batch variables"]


def _instances(problem: Any, way: Way) -> Any:
    if way.space is not None:
        return posed(problem)
    unary, clamp = problem.flat(problem.model.unary()[0]), problem.flat(problem.rows)
    if problem.log_likelihood is not None:
        unary = unary + problem.flat(problem.log_likelihood.astype(unary.dtype))
    outputs = problem.outputs
    outputs = jnp.full(clamp.shape[1:], way.product == "max") if outputs is None else outputs
    return _Flat(unary, clamp, problem.flat(outputs))


def _eliminated(model: Any, instance: Any, way: Way) -> Answer:
    value, marginals = _by_elimination(model, model.factors(), instance, way)
    p = model.padded(marginals)
    return Answer(jnp.log(p), p.argmax(-1).astype(jnp.int32), value)


def _by_elimination(
    model: Any, factors: tuple[AbstractFactor, ...], instance: Any, way: Way
) -> tuple[Float[Array, ""], Float[Array, " states"]]:
    """Log Z, and the probability of each state of each variable."""
    stacks = stacks_of(model, factors)
    assert stacks is not None
    counts = tuple(np.asarray(model.num_states).tolist())
    helpers = helpers_of(factors)
    return eliminated(stacks, counts, helpers, instance, way.product, way.most)


def _reduced(product: Product) -> str:
    return "max" if product == "max" else "sum"


@eqx.filter_jit
def _pairwise(problem: Any, way: Way) -> PyTree:
    model = problem.model

    def one(at: Any) -> PyTree:
        if way.product == "max" and not is_graph(model):
            return _pair_maxima(model, _table(model.factors("max"), at, way))
        return _gradient(model, at, way)[2]

    return each(one, _instances(problem, way), problem.shape, way.chunk())


def _gradient(
    model: Any, at: Any, way: Way
) -> tuple[Float[Array, ""], Float[Array, "variables most"], tuple[Float[Array, "..."], ...]]:
    """Log Z and its gradient: the probabilities of all states, and the expected statistics of all
    factors. What is maximised over has the probability 1.
    """

    def value(parts: Any) -> Float[Array, ""]:
        factors, unary = parts
        if way.space is None:
            return _by_elimination(model, factors, at._replace(unary=unary), way)[0]
        return _table(factors, at._replace(rows=unary), way).value()

    factors = model.factors(_reduced(way.product))
    unary = at.unary if way.space is None else at.rows
    log_z, (found, p) = eqx.filter_value_and_grad(value)((factors, unary))
    pairs = sum((f.statistic(g) for f, g in zip(factors, found, strict=True)), ())
    return log_z, model.padded(p) if way.space is None else p, pairs


def _pair_maxima(model: Any, table: Table) -> tuple[Float[Array, "_ _"], ...]:
    """What the best configurations with each pair of states say of pairs, normalised."""
    best, places, out = table.pairs(), table.space.places, []
    for factor in table.factors:
        ends = [table.space.names.index(group) for group in factor.groups]
        one, two = (places[k] for k in ends)
        own = best[one][:, :, two].transpose(0, 2, 1, 3)
        flat = own.reshape(*own.shape[:2], math.prod(own.shape[2:]))
        p = jax.nn.softmax(flat, axis=-1).reshape(own.shape).transpose(0, 2, 1, 3)
        # Of binary units, that both are 1.
        for axis, k in zip((1, 3), ends, strict=True):
            units = table.space.units[k]
            first = 1 if units.width == units.size else 0
            p = jax.lax.slice_in_dim(p, first, units.number, axis=axis)
        out.append(p.reshape(p.shape[0] * p.shape[1], p.shape[2] * p.shape[3]))
    return tuple(out)


@eqx.filter_jit
def _statistics(problem: Any, way: Way) -> Statistics:
    model = problem.model

    def one(at: Any) -> tuple[Any, Any]:
        value, p, pairs = _gradient(model, at, way)
        if way.product != "sum":
            # Without the rounding of sums.
            every = jnp.full(p.shape[0], way.product == "max")
            hard = every if at.outputs is None or way.product == "max" else at.outputs
            p = jnp.where(hard[:, None], jnp.round(p), p)
        return (p, value), pairs

    (p, value), pairs = each_and_mean(one, _instances(problem, way), problem.shape, way.chunk())
    return statistics_of(
        model,
        p,
        pairs,
        # Evidence may leave no configuration.
        converged=jnp.isfinite(value),
        iterations=jnp.zeros(problem.shape, jnp.int32),
        residual=jnp.zeros(problem.shape, p.dtype),
    )


Exact.__init__.__doc__ = """**Arguments:**

- `product`: `"sum"`, `"max"` or `"mixed"`.
- `method`: `"enumeration"` or `"elimination"`. Without it, the faster one is taken.
- `max_units`: the largest number of units to enumerate, at most 30; more raise an error. For
  elimination, the largest table has at most `2**max_units` entries of 8 bytes.
"""
