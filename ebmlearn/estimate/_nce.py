import itertools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .. import _checks
from ..inference import AbstractInference
from ..inference._answers import answer, graph_answer, plain_of
from ..inference._queries import as_queries, draw, Query
from ..inference._query_groups import num_units
from ..models import AbstractPairwiseModel, GaussianRBM, QueryModel
from ..models._graph import AbstractGraphModel
from ..samplers import AbstractSampler
from ._sampled import sampled_marginals


class NCE(NamedTuple):
    """A normalised cross-entropy: how much is not known of a target, given the evidence, on
    average over all targets; with its standard error over rows of data.

    - `rows`: the sum over the targets of each row.
    - `targets`: how many targets each row had.
    - `converged`: the share of rows on which the inference converged, and needed no guard; NaN of a
      sampler. A [`ebmlearn.QueryModel`][] of few layers answers well without.
    """

    value: float
    standard_error: float
    rows: Float[np.ndarray, " rows"]
    targets: Int[np.ndarray, " rows"]
    converged: float

    def by_targets(self, edges: list[int]) -> dict[tuple[int, int], float]:
        """The same for rows whose number of targets lies between two edges, the first of them
        included: `{(first, last): value}`, NaN where there are none.
        """
        out = {}
        for low, high in itertools.pairwise(edges):
            own = (self.targets >= low) & (self.targets < high)
            asked = self.targets[own].sum()
            out[low, high] = float(self.rows[own].sum() / asked) if asked else math.nan
        return out


def nce(
    model: Any,
    data: Any,
    queries: Any,
    inference: AbstractInference | AbstractSampler | None = None,
    *,
    key: PRNGKeyArray,
    unit: str = "bits",
    batch_size: int = 500,
    num_samples: int = 100,
    burn_in: int = 100,
) -> NCE:
    """The normalised cross-entropy of answers to queries on data: 1 bit for a model that knows
    nothing about binary units (Lázaro-Gredilla et al. 2021, section 4).

    !!! example

        ```python
        ebmlearn.nce(query_model, test, ebmlearn.RandomTargets(0.5), key=key).value
        ebmlearn.nce(rbm, test, ebmlearn.RandomTargets(0.5), ebmlearn.BP(iterations=10), key=key)
        ```

    **Arguments:**

    - `model`: a [`ebmlearn.QueryModel`][], or a model that `inference` can ask.
    - `data`: rows of visible units, from 0 to 1 (a number between them is a share of rows with 1),
      any numbers for Gaussian units; of a graph, a dictionary from groups of variables to states.
    - `queries`: a distribution such as [`ebmlearn.RandomTargets`][], or a function.
    - `inference`: what answers for a plain model: an inference, or for binary units a sampler.
    - `key`: a typed key, for the queries. The same key and the same `batch_size` ask the same
      queries of any model; with another batch size, others are asked.
    - `unit`: `"bits"` or `"nats"`.
    - `batch_size`: how many rows are treated at once, and have their queries drawn together.
    - `num_samples`, `burn_in`: steps of a sampler's chain, one for each row, that count and that
      do not.
    """
    queries = as_queries(queries)
    _checks.typed_key(key)
    _checks.choice("unit", unit, ("bits", "nats"))
    _checks.count("batch_size", batch_size)
    if not isinstance(model, (QueryModel, AbstractPairwiseModel, GaussianRBM, AbstractGraphModel)):
        got = _checks.describe(model)
        raise TypeError(
            "`model` must be a QueryModel, an RBM, a DBM, a BoltzmannMachine, a SemiRestrictedBM, a"
            f" GaussianRBM, a GridMRF or a FactorGraphModel, got {got}."
        )
    if isinstance(model, QueryModel):
        if inference is not None:
            raise ValueError(f"`inference` must be None for a QueryModel, got {inference!r}.")
    elif not isinstance(inference, (AbstractInference, AbstractSampler)):
        raise TypeError(
            "`inference` must be an inference such as `BP(iterations=10)`, or a sampler, for a"
            f" plain model, got {inference!r}."
        )
    elif isinstance(inference, AbstractSampler) and not isinstance(model, AbstractPairwiseModel):
        kind = type(model).__name__
        raise TypeError(
            "`inference` must be an inference such as `BP(iterations=10)` for a model of type"
            f" {kind}, since samplers answer for binary units alone, got {inference!r}."
        )
    x = as_rows(model, data)
    if not x.shape[0]:
        raise ValueError(f"`data` must hold a row at least, got {_checks.describe(x)}.")
    sums, counts, good = [], [], []
    for k, first in enumerate(range(0, x.shape[0], batch_size)):
        one, two = jax.random.split(jax.random.fold_in(key, k))
        part = x[first : first + batch_size]
        asked = draw(queries, model, part.shape[0], key=one)
        if isinstance(inference, AbstractSampler):
            out = _by_sampling(model, part, asked, inference, num_samples, burn_in, two)
        else:
            out = _cross_entropy(model, part, asked, inference)
        sums.append(np.asarray(out[0], float))
        counts.append(np.asarray(out[1], int))
        good.append(float(out[2]) * part.shape[0])
    rows, targets = np.concatenate(sums), np.concatenate(counts)
    if targets.sum() == 0:
        raise ValueError("`queries` must ask for a unit that `data` tell, got no such target.")
    rows = rows / (math.log(2) if unit == "bits" else 1.0)
    value = rows.sum() / targets.sum()
    # Of a ratio of means.
    spread = np.sqrt(((rows - value * targets) ** 2).mean() / len(rows)) / targets.mean()
    return NCE(float(value), float(spread), rows, targets, sum(good) / len(rows))


def as_rows(model: Any, data: Any, name: str = "data") -> Any:
    """Rows of data, checked."""
    plain = plain_of(model)
    if isinstance(plain, AbstractGraphModel):
        rows = jnp.asarray(plain.rows(data, name))
        _checks.rank(name, rows, 2, "[rows, variables], or groups of them with a leading axis")
        return rows
    if not hasattr(data, "shape") or not hasattr(data, "dtype"):
        raise TypeError(f"`{name}` must be an array, got {_checks.describe(data)}.")
    _checks.rank(name, data, 2, "[rows, visible]")
    _checks.trailing(name, data, (num_units(model),), "one value a unit")
    _checks.finite_rows(name, data)
    if not isinstance(plain, GaussianRBM) and _checks.is_concrete(data):
        values = np.asarray(data)
        wrong = (values < 0) | (values > 1)
        if wrong.any():
            raise ValueError(f"`{name}` must lie in [0, 1], got {values[wrong].flat[0]}.")
    return jnp.asarray(data).astype(plain.unary()[0].dtype)


def cross_entropy(
    model: Any,
    data: Any,
    asked: Query,
    inference: AbstractInference | None = None,
    layers: int | None = None,
) -> tuple[Float[Array, " rows"], Int[Array, " rows"], Float[Array, ""]]:
    """The sum of the cross-entropies of the targets of each row, in nats; how many there are; and
    the share of rows on which messages had settled.
    """
    plain = plain_of(model)
    if isinstance(plain, AbstractGraphModel):
        known = data >= 0
        observed, targets = asked.observed & known, asked.targets & known
        if isinstance(model, QueryModel):
            found = graph_answer(model, data, observed, layers=layers)
            scores, settled = found.value, found.settled
        else:
            assert inference is not None
            beliefs = inference(model, jnp.where(observed, data, jnp.full_like(data, -1)))
            scores, settled = beliefs.scores, beliefs.converged.mean(dtype=jnp.float32)
        return *_graph_cross_entropy(plain, scores, data, targets), settled
    value: Any
    if isinstance(model, QueryModel):
        found = answer(model, data, asked.observed, layers)
        value, settled = found.value, found.settled
    else:
        assert inference is not None
        beliefs = inference(model, data, asked.observed)
        settled = beliefs.converged.mean(dtype=data.dtype)
        if isinstance(plain, GaussianRBM):
            value = beliefs.mean, beliefs.variance
        else:
            value = jax.tree.leaves(beliefs.log_odds)[0]
    if isinstance(plain, GaussianRBM):
        mean, variance = value
        safe = jnp.where(asked.targets, variance, jnp.ones_like(variance))
        each = ((data - mean) ** 2 / safe + jnp.log(2 * jnp.pi * safe)) / 2
    else:
        each = jax.nn.softplus(value) - data * value
    each = jnp.where(asked.targets, each, jnp.zeros_like(each))
    return each.sum(-1), asked.targets.sum(-1), settled


@eqx.filter_jit
def _cross_entropy(
    model: Any, data: Any, asked: Query, inference: Any
) -> tuple[Array, Array, Array]:
    return cross_entropy(model, data, asked, inference)


def _graph_cross_entropy(
    graph: AbstractGraphModel,
    scores: Any,
    states: Int[Array, "rows variables"],
    targets: Bool[Array, "rows variables"],
) -> tuple[Float[Array, " rows"], Int[Array, " rows"]]:
    asked = graph.configuration(jnp.where(targets, states, jnp.full_like(states, -1)))
    sums = []
    for score, state in zip(scores.values, asked.values, strict=True):
        log_p = jax.nn.log_softmax(score)
        own = jnp.take_along_axis(log_p, jnp.maximum(state, 0)[..., None], axis=-1)[..., 0]
        own = jnp.where(state >= 0, own, jnp.zeros_like(own))
        sums.append(-own.reshape(own.shape[0], -1).sum(-1))
    return jnp.stack(sums).sum(0), targets.sum(-1)


def _by_sampling(
    model: Any,
    data: Any,
    asked: Query,
    sampler: AbstractSampler,
    num_samples: int,
    burn_in: int,
    key: PRNGKeyArray,
) -> tuple[Array, Array, float]:
    p = sampled_marginals(
        model,
        data,
        asked.observed,
        sampler=sampler,
        num_samples=num_samples,
        burn_in=burn_in,
        key=key,
    )
    least = 0.5 / num_samples
    p = jnp.clip(p, least, 1 - least)
    each = -data * jnp.log(p) - (1 - data) * jnp.log1p(-p)
    each = jnp.where(asked.targets, each, jnp.zeros_like(each))
    return each.sum(-1), asked.targets.sum(-1), math.nan
