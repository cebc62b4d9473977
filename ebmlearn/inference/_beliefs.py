import abc
import dataclasses
from collections.abc import Hashable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Int, PyTree

from ..models import Problem as Problem


class Normal(NamedTuple):
    """The mean and the variance of each real unit.

    !!! example

        ```python
        beliefs = ebmlearn.Exact()(ebmlearn.GaussianRBM.init(16, 8))
        beliefs.mean, beliefs.variance  # `beliefs.normal` holds both
        ```

    **Fields:**

    - `mean`: the means.
    - `variance`: the variances.
    """

    mean: Float[Array, "*batch units"]
    variance: Float[Array, "*batch units"]


class Report(eqx.Module):
    """How [`ebmlearn.Auto`][] found an answer, and how good it is. `str(report)` says it in words.

    !!! example

        ```python
        report = ebmlearn.Auto()(ebmlearn.RBM.init(16, 8)).report
        report.method, report.is_exact, report.error
        ```

    **Fields:**

    - `method`: what was used.
    - `is_exact`: whether the answer is exact.
    - `error`: an estimate of the root mean square error of all probabilities, NaN if there is none;
      for the most likely states, the difference between the bound and their value.
    - `lower`, `upper`: bounds of log Z, or of the largest log-potential; minus and plus infinity
      where none was found.
    - `seconds`: how long it took.
    """

    method: str = eqx.field(static=True)
    is_exact: bool = eqx.field(static=True)
    error: Float[Array, "*batch"]
    lower: Float[Array, "*batch"]
    upper: Float[Array, "*batch"]
    seconds: float = eqx.field(static=True, default=0.0)

    def __str__(self) -> str:
        took = f"{self.seconds:.1f} s"
        if self.is_exact:
            return f"{self.method}: exact, {took}."
        return (
            f"{self.method}: approximate, error about {_most(self.error)}, between"
            f" {_most(self.lower)} and {_most(self.upper)}, {took}."
        )


def _most(x: Array) -> str:
    """The largest number of a batch, or the only one."""
    return f"{float(jnp.max(x)):.4g}"


class AbstractDerived(eqx.Module):
    """What an inference computes on demand, beyond the beliefs of single units."""

    @abc.abstractmethod
    def pairwise(self, problem: Problem) -> PyTree:
        """The expected products of units that are joined, or of factors."""

    @abc.abstractmethod
    def log_partition(self, problem: Problem) -> Float[Array, "*batch"]:
        """The estimate of log Z."""


class Found(AbstractDerived):
    """What was found together with the beliefs of single units. `products` may be a function of the
    problem, a pytree such as `jax.tree_util.Partial`: then it is called when they are asked for.

    !!! example

        ```python
        found = ebmlearn.inference.Found(jnp.array([1.5]), None, "MyInference")
        found.value  # `found.pairwise` raises an error: MyInference has none
        ```

    **Fields:**

    - `value`: log Z, or what stands for it; None if it is not known.
    - `products`: what `pairwise` of the beliefs returns, or a function that computes it.
    - `name`: the name of the inference, for errors.
    """

    value: Float[Array, "*batch"] | None
    products: PyTree
    name: str = eqx.field(static=True)

    def pairwise(self, problem: Problem) -> PyTree:
        found = self.products(problem) if callable(self.products) else self.products
        return _or_error(found, self.name, "pairwise")

    def log_partition(self, problem: Problem) -> Float[Array, "*batch"]:
        return _or_error(self.value, self.name, "log_partition")


def _or_error(x: Any, name: str, what: str) -> Any:
    if x is None:
        raise AttributeError(f"{name} gives no `{what}` for this model.")
    return x


class Went(NamedTuple):
    """How inferences ended, for each instance."""

    converged: Bool[Array, "*batch"]
    iterations: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]


def without_sweeps(found: Bool[Array, "*batch"], dtype: DTypeLike) -> Went:
    """The end of inferences by formula, and whether they found an answer."""
    return Went(found, jnp.zeros(found.shape, jnp.int32), jnp.zeros(found.shape, dtype))


class Beliefs(eqx.Module):
    """The result of an inference, for each instance of the batch. All inferences and models share
    this class.

    - `visible` and `hidden`, or `x`: the mean of each unit; for binary units, the probability of 1.
      `beliefs[name]` is the same. For a graph, `beliefs[group]` holds the probability of each state
      of each variable of the group, `[*batch, *shape, states]`.
    - `log_odds`: the log-odds of binary units, by the same names; for a graph, the
      log-probabilities of all states up to a constant. None for real units.
    - `mean`, `variance`, `second_moment`: moments of real units. `covariance` exists if the
      inference computes it.
    - `pairwise`, `log_partition`: computed at each access.
    - `converged`, `iterations`, `residual`: whether the inference converged, after how many sweeps,
      and how much the last sweep changed.
    - `stable`: for `BP(..., starts=4)`, whether all starts led to the same answer. If it is False,
      the model may have several modes, and the answer combines those that were found: do not trust
      it as far as one that is stable. None if there was one start only.
    - `report`: for [`ebmlearn.Auto`][], what it used and how good the answer is. None for others.
    - `guarded`: for Gaussian messages, the share of unobserved units whose precision was impossibly
      low and was replaced by a possible one. The numbers stay finite, but do not trust such
      answers. None for other models.

    !!! example

        ```python
        beliefs = ebmlearn.BP()(ebmlearn.RBM.init(16, 8))
        beliefs.visible, beliefs["hidden"], beliefs.log_partition, beliefs.converged
        ```
    """

    log_odds: PyTree
    converged: Bool[Array, "*batch"]
    iterations: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]
    stable: Bool[Array, "*batch"] | None
    guarded: Float[Array, "*batch"] | None
    report: Report | None
    _problem: Any
    _derived: AbstractDerived
    _normal: Normal | None
    _covariance: Float[Array, "*batch n n"] | None
    _states: PyTree

    def __init__(
        self,
        problem: Problem,
        derived: AbstractDerived,
        *,
        log_odds: PyTree,
        converged: Bool[Array, "*batch"],
        iterations: Int[Array, "*batch"],
        residual: Float[Array, "*batch"],
        stable: Bool[Array, "*batch"] | None = None,
        guarded: Float[Array, "*batch"] | None = None,
        normal: Normal | None = None,
        covariance: Float[Array, "*batch n n"] | None = None,
        states: PyTree = None,
        report: Report | None = None,
    ):
        """**Arguments:**

        - `problem`, `derived`: the problem, and what computes `pairwise` and `log_partition`.
        - `log_odds`: by name, None in the places of real units.
        - `converged`, `iterations`, `residual`, `stable`, `guarded`: how the inference ended.
        - `normal`, `covariance`: moments of the first layer, if its units are real.
        - `states`: the most likely configuration, if the inference found one.
        - `report`: how the answer was found, if there was a choice.
        """
        self._problem, self._derived = problem, derived
        self.log_odds, self._normal, self._covariance = log_odds, normal, covariance
        self.converged, self.iterations, self.residual = converged, iterations, residual
        self.stable, self.guarded, self._states = stable, guarded, states
        self.report = report

    @property
    def means(self) -> PyTree:
        """The means of all units, by name."""
        return self._filled(self._problem.means(self.log_odds))

    @property
    def visible(self) -> Float[Array, "*batch visible"]:
        """Means of the visible units: probabilities of 1 if they are binary."""
        return self["visible"]

    @property
    def hidden(self) -> PyTree:
        """Means of the hidden units: an array, or a tuple of arrays for a DBM."""
        return self["hidden"]

    @property
    def x(self) -> Float[Array, "*batch n"]:
        """Means of the units of a model without layers."""
        return self["x"]

    def __getitem__(self, name: Hashable) -> PyTree:
        return self._problem.take(self.means, name)

    @property
    def marginals(self) -> PyTree:
        """The answer of [`ebmlearn.query`][]: the means of the visible units, the probabilities of
        all variables of a graph by group, or means and variances of real units.
        """
        if self._normal is not None and not self._problem.model.layers[0].finite:
            return self._normal
        return self._problem.answer(self.means)

    @property
    def mean(self) -> Float[Array, "*batch units"]:
        """The means of the real units."""
        return self._real("mean").mean

    @property
    def variance(self) -> Float[Array, "*batch units"]:
        """The variances of the real units, 0 for observed ones."""
        return self._real("variance").variance

    @property
    def second_moment(self) -> Float[Array, "*batch units"]:
        """$E x_i^2$ of the real units."""
        return self.variance + self.mean**2

    @property
    def covariance(self) -> Float[Array, "*batch n n"]:
        """The covariances of the real units. With [`ebmlearn.SusP`][] the diagonal may differ from
        `variance`.
        """
        if self._covariance is None:
            raise AttributeError(
                "these beliefs have no `covariance`: only models of nonnegative units have one."
            )
        return self._covariance

    @property
    def pairwise(self) -> PyTree:
        """The expected product of the two units of each edge; for binary units, the belief that
        both are 1. It has the shape of the weights, or is a tuple if the model has several weight
        matrices. For a graph, the belief of each configuration of each factor, by group.
        """
        return self._derived.pairwise(self._problem)

    @property
    def log_partition(self) -> Float[Array, "*batch"]:
        """The estimate of log Z, given the evidence if there is any. If the inference maximises, it
        is the largest log-potential.
        """
        return self._derived.log_partition(self._problem)

    def decode(self) -> PyTree:
        """The most likely state of each unit, by name; if the inference maximises, the most likely
        configuration of all units. Real units are decoded as their means.
        """
        if self._states is not None:
            return self._states
        return self._filled(self._problem.decode(self.log_odds))

    def prediction(self) -> PyTree:
        """The visible units of `decode`."""
        return self._problem.answer(self.decode())

    def with_report(
        self, report: Report, log_partition: Float[Array, "*batch"] | None = None
    ) -> "Beliefs":
        """The same beliefs with a report, and with a better estimate of log Z if there is one:
        where that is minus infinity, nothing is possible, whatever messages say.
        """
        derived, converged = self._derived, self.converged
        if log_partition is not None:
            derived = Found(log_partition, derived.pairwise, "Auto")
            converged = converged & (log_partition > -jnp.inf)
        return self.replaced(report=report, derived=derived, converged=converged)

    def replaced(self, **changes: Any) -> "Beliefs":
        """The same beliefs with other arguments."""
        names = [field.name for field in dataclasses.fields(self)]
        own = {name.removeprefix("_"): getattr(self, name) for name in names}
        return Beliefs(**{**own, **changes})

    @property
    def settled(self) -> Float[Array, ""]:
        """The share of instances that converged, needed no guard and, if there were several starts,
        are stable.
        """
        good = self.converged
        if self.stable is not None:
            good = good & self.stable
        if self.guarded is not None:
            good = good & (self.guarded == 0)
        return good.mean(dtype=self.residual.dtype)

    def _filled(self, named: Any) -> Any:
        """Values by name, with the means of real units in their places."""
        if self._normal is None:
            return named
        leaves, structure = jax.tree.flatten(named, is_leaf=lambda x: x is None)
        leaves = [self._normal.mean if x is None else x for x in leaves]
        return jax.tree.unflatten(structure, leaves)

    def _real(self, what: str) -> Normal:
        if self._normal is None:
            raise AttributeError(f"these beliefs have no `{what}`: the model has no real units.")
        return self._normal
