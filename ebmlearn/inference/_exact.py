import dataclasses
import itertools
import math
from dataclasses import KW_ONLY
from typing import Any, get_args, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .. import _checks
from ..factors import AbstractFactor
from ..messages import Product
from ..models import AbstractModel, AbstractPlainModel, Statistics
from ..units import AbstractNumberedUnits
from ._base import (
    AbstractInference,
    each,
    each_and_mean,
    outputs_of,
    Posed,
    posed,
    Problem,
    refuse,
    stacks_of,
    statistics_of,
    TooLarge,
)
from ._beliefs import Beliefs, Found, without_sweeps
from ._eliminated import check_width, counts_of, eliminated, is_crowded
from ._enumeration import Answer, CHUNK, sides, Space, Table
from ._gaussian_exact import gaussian_exact, gaussian_statistics
from ._quadrature import exact_moments
from ._tap import moment_statistics


_MOST = 30
# Up to so many bits of configurations, listing them on the device is faster than elimination.
_FEW = 12
# By the families of all groups, what finds beliefs and statistics of real units by formula.
_REAL: dict[tuple[str, ...], Any] = {
    ("binary", "gaussian"): (gaussian_exact, gaussian_statistics),
    ("nonnegative",): (exact_moments, lambda p: moment_statistics(exact_moments(p))),
}


class Exact(AbstractInference):
    """Exact inference: by enumeration, for small models and for tests of other inferences; or by
    elimination of one variable after the other, for models whose tables stay small.

    What is enumerated depends on the model:

    - Binary and categorical units: the groups that leave the largest part of the model independent
      given their states; for an RBM the smaller layer, for a [`ebmlearn.SemiRestrictedBM`][] the
      visible units, for a [`ebmlearn.BoltzmannMachine`][] all units. Memory is one number per
      configuration. If there are too many, variables are eliminated as those of a graph: a
      [`ebmlearn.DBM`][] of many small layers is easy. What is maximised over then has probability
      0 or 1.
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
      (marginal MAP). It enumerates all visible units. `maximised`, an argument of the call, says
      which units take the part of the visible ones: graphs need it, unless groups are named
      `hidden`.

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(16, 8)
        ebmlearn.Exact()(rbm).log_partition
        ebmlearn.Exact(product="max")(rbm).decode().visible
        ```

    **Arguments:**

    - `product`: `"sum"`, `"max"` or `"mixed"`.
    - `method`: `"enumeration"` or `"elimination"`. Without it, the faster one is taken.
    - `max_units`: the largest number of units to enumerate, at most 30; more raise an error. For
      elimination, the largest table has at most `2**max_units` entries of 8 bytes.
    """

    _: KW_ONLY
    product: Product = eqx.field(static=True, default="sum")
    method: Literal["enumeration", "elimination"] | None = eqx.field(static=True, default=None)
    max_units: int = eqx.field(static=True, default=24)
    takes = ("binary", "categorical", "nonnegative", "Gaussian and binary")

    def __check_init__(self):
        _checks.choice("product", self.product, get_args(Product))
        if self.method is not None:
            _checks.choice("method", self.method, ("enumeration", "elimination"))
        _checks.count("max_units", self.max_units)
        if self.max_units > _MOST:
            raise ValueError(f"`max_units` must be at most {_MOST}, got {self.max_units}.")

    def accepts(self, model: AbstractModel) -> bool:
        """Whether all units are binary or categorical, or there are formulas for real ones."""
        return getattr(model, "numbered", False) or _real(model) is not None

    def _beliefs(self, problem: Problem) -> Beliefs:
        if not problem.model.numbered:
            return self._formulas(problem)[0](problem)
        way = self._way(problem)
        log_odds, states, value = _solved(problem, way)
        # Evidence may leave no configuration.
        went = without_sweeps(jnp.isfinite(value), value.dtype)
        found = Found(value, jax.tree_util.Partial(_pairwise, way), "Exact")
        return Beliefs(problem, found, log_odds=log_odds, states=states, **went._asdict())

    def _statistics(self, problem: Problem) -> Statistics:
        if not problem.model.exact:
            refuse(problem.model, "have an energy that is linear in its parameters for statistics")
        if not problem.model.numbered:
            return self._formulas(problem)[1](problem)
        return _statistics(problem, self._way(problem))

    def _formulas(self, problem: Problem) -> tuple[Any, Any]:
        """What finds beliefs, and what finds statistics, of real units."""
        model = problem.model
        name = _checks.article(type(model).__name__)
        if self.method == "elimination":
            raise ValueError(f'`method="elimination"` needs tables, got {name}.')
        if self.product != "sum":
            raise ValueError(f'`product` must be "sum" for {name}, got {self.product!r}.')
        bits = sum(units.size for units in model.layers if units.numbered)
        if bits > self.max_units:
            raise self._too_large(model, bits)
        return _real(model)

    def _way(self, problem: Problem) -> "Way":
        """How log Z is found."""
        model, most = problem.model, self.max_units
        outputs_of(problem, self.product)
        space = _space(problem, self.product)
        # Layers are listed by products of matrices, and in compiled functions.
        few = 2**most if model.turns is None else 2**_FEW
        if self.method == "enumeration" or (self.method is None and space.total <= few):
            return self._listed(model, space)
        stacks = stacks_of(model)
        if self.method is None and (
            stacks is None or (model.turns is None and is_crowded(stacks, most))
        ):
            return self._listed(model, space)
        if stacks is None:
            raise ValueError(
                '`method="elimination"` needs factors that are tables, got'
                f" {_checks.article(type(model).__name__)}: write it as a `TableModel`."
            )
        check_width(problem, self.product, most)
        return Way(self.product, None, counts_of(problem), most)

    def _listed(self, model: AbstractPlainModel, space: Space) -> "Way":
        if space.total > 2**self.max_units:
            if model.turns is None:
                bits = sum(math.log2(n) for n in space.numbers)
                raise self._too_large(model, math.ceil(bits - 1e-9))
            raise TooLarge(
                f"`model` must have at most 2**{self.max_units} configurations to enumerate, got"
                f" {space.total}: raise `max_units`."
            )
        return Way(self.product, space, (), self.max_units)

    def _too_large(self, model: AbstractPlainModel, bits: int) -> TooLarge:
        sizes = ", ".join(str(units.size) for units in model.layers)
        return TooLarge(
            f"`model` must have at most `max_units` = {self.max_units} units to enumerate, got"
            f" {bits} units in {_checks.article(type(model).__name__)} with layers of {sizes}."
        )


def _real(model: AbstractModel) -> Any:
    """What finds beliefs and statistics of a model of real units; None if nothing does."""
    own = model.layers if isinstance(model, AbstractPlainModel) else ()
    return _REAL.get(tuple(sorted(units.family for units in own)))


def affordable(problem: Problem, seconds: float | int) -> int:
    """The largest `max_units` with which exact inference takes about so long on one core."""
    rows = max(1, math.prod(problem.shape))
    # A number of a table takes 50 ns; a unit of a configuration that is listed takes 100 ns.
    each = 5e-8
    if problem.model.turns is None:
        each = 1e-7 * sum(units.size for units in problem.model.layers)
    most = math.log2(max(1.0, seconds / (rows * each)))
    return min(max(1, int(most)), _MOST)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Way:
    """How log Z is found: the configurations of a space are listed, or variables of these numbers
    of states are eliminated with tables of at most `2**most` entries.
    """

    product: Product
    space: Space | None
    counts: tuple[int, ...]
    most: int

    @property
    def chunk(self) -> int:
        """How many instances are treated at once."""
        return 64 if self.space is None else max(1, CHUNK // self.space.total)

    def factors(self, model: AbstractPlainModel) -> tuple[AbstractFactor, ...]:
        """The factors of a model, for this product."""
        return model.factors("max" if self.product == "max" else "sum")

    def table(self, factors: tuple[AbstractFactor, ...], at: Posed) -> Table:
        """One instance laid out for enumeration."""
        assert self.space is not None
        return Table(factors, *at, self.space, self.product)

    def eliminated(
        self, model: AbstractPlainModel, factors: tuple[AbstractFactor, ...], at: Posed
    ) -> tuple[Float[Array, ""], Float[Array, "variables most"]]:
        """Log Z of one instance, and the probability of each state of each variable."""
        stacks = stacks_of(model, factors)
        assert stacks is not None
        return eliminated(stacks, self.counts, at, self.product, self.most)


def _space(problem: Problem, product: Product) -> Space:
    model = problem.model
    units: tuple[AbstractNumberedUnits, ...] = model.layers
    counts = iter(problem.counts)
    numbers = tuple(tuple(itertools.islice(counts, own.size)) for own in units)
    bits = tuple(math.fsum(map(math.log2, own)) for own in numbers)
    listed = ()
    if product == "mixed":
        # Where masks say what is maximised over, any variable may be.
        every = tuple(range(len(model.names)))
        listed = every if problem.outputs is not None else model.variables.maximised or ()
    # What is differentiated does not matter here, and weights may be traced.
    names = model.names
    return Space(names, units, numbers, *sides(names, bits, model.factors(), listed))


@eqx.filter_jit
def _solved(problem: Problem, way: Way) -> tuple[PyTree, PyTree, Float[Array, "*batch"]]:
    """The log-odds of all units and the most likely states by name, and log Z."""
    model = problem.model
    factors = way.factors(model)

    def one(at: Posed) -> Answer:
        if way.space is None:
            value, p = way.eliminated(model, factors, at)
            return Answer(jnp.log(p), p.argmax(-1).astype(jnp.int32), value)
        answer = way.table(factors, at).answer()
        if model.turns is None or way.product == "sum":
            return answer
        # As by elimination, what is maximised over has the probability 1.
        hard = jnp.log(jax.nn.one_hot(answer.states, at.rows.shape[-1], dtype=at.rows.dtype))
        chosen = at.outputs | (way.product == "max")
        return answer._replace(scores=jnp.where(chosen[:, None], hard, answer.scores))

    answer = each(one, posed(problem), problem.shape, way.chunk)
    states = None if model.grouped else model.named(model.variables.cut(answer.states))
    return problem.named(answer.scores), states, answer.value


@eqx.filter_jit
def _pairwise(way: Way, problem: Problem) -> PyTree:
    model = problem.model

    def one(at: Posed) -> PyTree:
        if way.product == "max" and model.turns is None and way.space is not None:
            return _pair_maxima(way.table(way.factors(model), at))
        return _gradient(model, at, way)[2]

    return model.by_factor(each(one, posed(problem), problem.shape, way.chunk))


def _gradient(
    model: AbstractPlainModel, at: Posed, way: Way
) -> tuple[Float[Array, ""], Float[Array, "variables most"], tuple[Float[Array, "..."], ...]]:
    """Log Z and its gradient: the probabilities of all states, and the expected statistics of all
    factors. What is maximised over has the probability 1.
    """

    def value(parts: tuple[tuple[AbstractFactor, ...], Array]) -> Float[Array, ""]:
        factors, rows = parts
        if way.space is None:
            return way.eliminated(model, factors, at._replace(rows=rows))[0]
        return way.table(factors, at._replace(rows=rows)).value()

    factors = way.factors(model)
    log_z, (found, p) = eqx.filter_value_and_grad(value)((factors, at.rows))
    pairs = sum((f.statistic(g) for f, g in zip(factors, found, strict=True)), ())
    return log_z, p, pairs


def _pair_maxima(table: Table) -> tuple[Float[Array, "_ _"], ...]:
    """Beliefs of pairs from the best configuration with each pair of states, normalised."""
    best, places, out = table.pairs(), table.space.places, []
    for factor in table.factors:
        ends = [table.space.names.index(group) for group in factor.groups]
        one, two = (places[k] for k in ends)
        p = jax.nn.softmax(best[one][:, :, two], axis=(1, 3))
        # Of binary units, that both are 1.
        for axis, k in zip((1, 3), ends, strict=True):
            units = table.space.units[k]
            first = 1 if units.width == units.size else 0
            p = jax.lax.slice_in_dim(p, first, units.number, axis=axis)
        out.append(p.reshape(p.shape[0] * p.shape[1], p.shape[2] * p.shape[3]))
    return tuple(out)


@eqx.filter_jit
def _statistics(problem: Problem, way: Way) -> Statistics:
    def one(at: Posed) -> tuple[Any, Any]:
        value, p, pairs = _gradient(problem.model, at, way)
        if way.product != "sum":
            # Without the rounding of sums.
            hard = at.outputs | (way.product == "max")
            p = jnp.where(hard[:, None], jnp.round(p), p)
        return (p, value), pairs

    (p, value), pairs = each_and_mean(one, posed(problem), problem.shape, way.chunk)
    # Evidence may leave no configuration.
    return statistics_of(problem, p, pairs, without_sweeps(jnp.isfinite(value), p.dtype))
