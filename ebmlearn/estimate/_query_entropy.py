import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .. import _checks
from .._types import Batch, Key
from ..answers import asker
from ..inference import AbstractInference, Beliefs
from ..models import (
    AbstractModel,
    AbstractPlainModel,
    AbstractProblem,
    asked_rows,
    Evidence,
    Problem,
    QueryModel,
    QueryProblem,
    require_binary,
    structure_of,
)
from ..queries import AbstractQueries, as_queries, draw, Query
from ..samplers import AbstractSampler
from ._independent_units import surprise_alone
from ._sampled import sampled_marginals


_ROWS = 500  # that are answered at once
# What can be asked.
Asked = AbstractPlainModel | QueryModel


class QueryEntropy(NamedTuple):
    """The mean cross-entropy of a target given the evidence, over all targets, and its standard
    error over the rows of data.

    !!! example

        ```python
        from ebmlearn import datasets

        model = ebmlearn.QueryModel(ebmlearn.RBM.init(64, 8))
        data = datasets.digits().test.x
        found = ebmlearn.query_entropy(model, data, ebmlearn.queries.TargetCount(8))
        found.value, found.standard_error, found.converged
        ```

    **Fields:**

    - `value`: the mean cross-entropy, in the unit that was asked for.
    - `standard_error`: its standard error.
    - `rows`: the sum over the targets of each row.
    - `targets`: the number of targets of each row.
    - `converged`: the share of rows on which the inference converged and needed no guard; NaN for a
      sampler. A [`ebmlearn.QueryModel`][] with few iterations answers well without converging.
    """

    value: float
    standard_error: float
    rows: Float[np.ndarray, " rows"]
    targets: Int[np.ndarray, " rows"]
    converged: float

    def by_targets(self, edges: list[int]) -> dict[tuple[int, int], float]:
        """The value for rows whose number of targets is at least one edge and below the next, as
        `{(first, last): value}`; NaN if there are no such rows.
        """
        out = {}
        for low, high in itertools.pairwise(edges):
            own = (self.targets >= low) & (self.targets < high)
            asked = self.targets[own].sum()
            out[low, high] = float(self.rows[own].sum() / asked) if asked else math.nan
        return out


def query_entropy(
    model: AbstractModel,
    data: Batch,
    queries: AbstractQueries | Callable,
    inference: AbstractInference | AbstractSampler | None = None,
    *,
    key: Key = 0,
    unit: str = "bits",
    batch_size: int = _ROWS,
    steps: int = 100,
    burn_in: int = 100,
) -> QueryEntropy:
    """The mean cross-entropy of a model's answers to queries on data (Lázaro-Gredilla et al. 2021,
    section 4). Answering one half for every binary unit gives 1 bit.

    !!! example

        ```python
        from ebmlearn import datasets

        data = datasets.digits().test.x
        model = ebmlearn.RBM.init(64, 8)
        targets = ebmlearn.queries.RandomTargets(0.5)
        ebmlearn.query_entropy(model, data, targets, ebmlearn.BP(10)).value
        ebmlearn.query_entropy(ebmlearn.QueryModel(model), data, targets).value
        ```

    **Arguments:**

    - `model`: a [`ebmlearn.QueryModel`][], or a model that `inference` can ask.
    - `data`: rows of visible units, from 0 to 1 (a number between them is a share of rows with 1);
      any numbers for Gaussian units; for a graph, a dictionary from groups of variables to states.
      A value that is NaN is missing and is never a target.
    - `queries`: a distribution such as [`ebmlearn.queries.RandomTargets`][], or a function.
    - `inference`: the inference that answers for a model that is no QueryModel; for binary units it
      may be a sampler.
    - `key`: a seed or a key, for the queries. The same key and `batch_size` give the same queries
      for every model.
    - `unit`: `"bits"` or `"nats"`.
    - `batch_size`: the number of rows that are answered at once.
    - `steps`, `burn_in`: for a sampler, which runs one chain per row: the number of steps that
      count, and of steps before them.
    """
    queries = as_queries(queries)
    key = _checks.as_key(key)
    _checks.choice("unit", unit, ("bits", "nats"))
    _checks.count("batch_size", batch_size)
    if isinstance(inference, AbstractSampler):
        require_binary(model, "a sampler that answers queries")
    else:
        inference = asker(model, inference)
    own: Asked = model  # pyright: ignore
    x = asked_rows(structure_of(own), data, "data")
    if not x.shape[0]:
        raise ValueError(f"`data` must contain at least one row, got {_checks.describe(x)}.")
    sums, counts, good = [], [], []
    for k, part, asked in _batches(own, x, queries, key, batch_size):
        if isinstance(inference, AbstractSampler):
            _, two = jax.random.split(jax.random.fold_in(key, k))
            settings = {"sampler": inference, "burn_in": burn_in, "key": two}
            out = _by_sampling(own, part, asked, steps, **settings)
        else:
            out = _cross_entropy(own, part, asked, inference)
        sums.append(np.asarray(out[0], float))
        counts.append(np.asarray(out[1], int))
        good.append(float(out[2]) * part.shape[0])
    rows, targets = np.concatenate(sums), np.concatenate(counts)
    if targets.sum() == 0:
        raise ValueError(
            "`queries` must have at least one target with a value in `data`, got none."
        )
    rows = rows / (math.log(2) if unit == "bits" else 1.0)
    value = rows.sum() / targets.sum()
    # The standard error of a ratio of means.
    spread = np.sqrt(((rows - value * targets) ** 2).mean() / len(rows)) / targets.mean()
    return QueryEntropy(float(value), float(spread), rows, targets, sum(good) / len(rows))


def mean_entropy(
    model: Asked, data: Any, queries: AbstractQueries, inference: AbstractInference, *, key: Key
) -> Float[Array, ""]:
    """The value of [`ebmlearn.query_entropy`][] in bits. It can be compiled and mapped."""
    key = _checks.as_key(key)
    x = asked_rows(structure_of(model), data, "data")
    out = [
        _cross_entropy(model, part, asked, inference)
        for _, part, asked in _batches(model, x, queries, key, _ROWS)
    ]
    total, count = sum(each.sum() for each, _, _ in out), sum(n.sum() for _, n, _ in out)
    return total / jnp.asarray(count).astype(x.dtype) / math.log(2)


def independent_entropy(
    model: Asked,
    train: Any,
    data: Any,
    queries: AbstractQueries,
    *,
    key: Key = 0,
    batch_size: int = 500,
) -> float:
    """The value of [`ebmlearn.query_entropy`][] in bits, on the same queries, if units were
    independent and distributed as in `train`. The parameters of the model do not matter.
    """
    plain = structure_of(model)
    x, train = asked_rows(plain, data, "data"), asked_rows(plain, train, "train")
    total = count = 0.0
    for _, part, asked in _batches(model, x, queries, _checks.as_key(key), batch_size):
        targets = np.asarray(asked.targets & _known(plain, part))
        total += np.asarray(surprise_alone(plain, train, part), float)[targets].sum()
        count += targets.sum()
    return float(total / count / math.log(2)) if count else math.nan


def _batches(
    model: Asked, x: Array, queries: AbstractQueries, key: PRNGKeyArray, batch_size: int
) -> Iterator[tuple[int, Array, Query]]:
    """Rows a batch at a time, with their number and what is asked of them."""
    for k, first in enumerate(range(0, x.shape[0], batch_size)):
        one, _ = jax.random.split(jax.random.fold_in(key, k))
        part = x[first : first + batch_size]
        yield k, part, draw(queries, model, part.shape[0], key=one)


def cross_entropy(
    model: Asked, rows: Any, asked: Query, inference: AbstractInference
) -> tuple[Float[Array, " rows"], Int[Array, " rows"], Float[Array, ""]]:
    """The sum of the cross-entropies of the targets of each row, in nats; how many there are; and
    the share of rows on which messages had settled.
    """
    rows, (observed, targets) = _told(model, rows, asked)
    beliefs = inference.beliefs_of(_row_problem(model, rows, observed))
    surprise = _surprise(structure_of(model), beliefs, rows, targets)
    return surprise, targets.sum(-1), beliefs.settled


_cross_entropy = eqx.filter_jit(cross_entropy)


def _known(model: AbstractPlainModel, rows: Array) -> Bool[Array, "rows units"]:
    """Which values of rows are not missing."""
    return rows >= 0 if model.grouped else ~jnp.isnan(rows)


def _row_problem(model: Asked, rows: Array, observed: Bool[Array, "rows units"]) -> AbstractProblem:
    """The model with some of the values of rows as evidence, which have been checked."""
    own: Any = model.to_model() if isinstance(model, QueryModel) else model
    if own.grouped:
        held = jnp.where(observed, rows, jnp.full_like(rows, -1))
        evidence = tuple(Evidence(x) for x in own.variables.cut(held))
    else:
        evidence = (Evidence(rows, observed), *(None,) * (len(own.layers) - 1))
    problem = Problem(own, evidence, trusted=True)
    return QueryProblem(model, problem) if isinstance(model, QueryModel) else problem


def _surprise(
    model: AbstractPlainModel, beliefs: Beliefs, rows: Array, targets: Bool[Array, "rows units"]
) -> Float[Array, " rows"]:
    """Minus the log-probability of the data at the targets, each by itself, in nats."""
    if model.layers[0].finite and not model.grouped:
        value = jax.tree.leaves(beliefs.log_odds)[0]
        each = jax.nn.softplus(value) - rows * value
    elif not model.grouped:
        safe = jnp.where(targets, beliefs.variance, jnp.ones_like(rows))
        each = ((rows - beliefs.mean) ** 2 / safe + jnp.log(2 * jnp.pi * safe)) / 2
    else:
        parts = []
        for scores, own in zip(
            model.variables.parts(beliefs.log_odds), model.variables.cut(rows), strict=True
        ):
            log_p = jax.nn.log_softmax(scores).reshape(*own.shape, scores.shape[-1])
            parts.append(-jnp.take_along_axis(log_p, own[..., None], axis=-1)[..., 0])
        each = jnp.concatenate(parts, -1)
    return jnp.where(targets, each, jnp.zeros_like(each)).sum(-1)


def _told(model: Asked, rows: Any, asked: Query) -> tuple[Any, Query]:
    """Restricts queries to values that are not missing, and replaces missing ones by 0, since NaN
    would spread to gradients.
    """
    known = _known(structure_of(model), rows)
    filled = jnp.where(known, rows, jnp.zeros_like(rows))
    return filled, Query(asked.observed & known, asked.targets & known)


def _by_sampling(
    model: Asked, data: Array, asked: Query, steps: int, **settings: Any
) -> tuple[Array, Array, float]:
    data, asked = _told(model, data, asked)
    p = sampled_marginals(model, data, asked.observed, steps=steps, **settings)  # pyright: ignore
    least = 0.5 / steps
    p = jnp.clip(p, least, 1 - least)
    each = -data * jnp.log(p) - (1 - data) * jnp.log1p(-p)
    each = jnp.where(asked.targets, each, jnp.zeros_like(each))
    return each.sum(-1), asked.targets.sum(-1), math.nan
