"""What a `QueryModel` answers: unrolled belief propagation as a network."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..models import GaussianRBM, QueryModel
from ..models._graph import AbstractGraphModel
from ._bp import BP
from ._gaussian import Gaussian, GaussianProblem
from ._graph import GraphProblem


class QueryReport(NamedTuple):
    """How the inference went that answered a query, for each instance of the batch.

    - `converged`: whether it did; `iterations`: after how many sweeps; `residual`: how much the
      last one changed. A [`ebmlearn.QueryModel`][] that was trained with few layers answers well
      without.
    - `guarded`: of Gaussian units, the share whose precision came out impossible and was replaced,
      see [`ebmlearn.GaussianBeliefs`][]; None for others.
    """

    converged: Bool[Array, "*batch"]
    iterations: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]
    guarded: Float[Array, "*batch"] | None


def report_of(beliefs: Any) -> QueryReport:
    """What beliefs say of the inference."""
    guarded = getattr(beliefs, "guarded", None)
    return QueryReport(beliefs.converged, beliefs.iterations, beliefs.residual, guarded)


class Answer(NamedTuple):
    """Of binary units the log-odds, of variables the scores of all states by group, of Gaussian
    units means and variances; and how the inference went.
    """

    value: Any
    report: QueryReport

    @property
    def settled(self) -> Float[Array, ""]:
        """The share of instances whose messages had settled, and needed no guard: answers that did
        are not to be trusted.
        """
        good = self.report.converged
        if self.report.guarded is not None:
            good = good & (self.report.guarded == 0)
        return good.mean(dtype=self.report.residual.dtype)


def network(model: QueryModel, layers: int | None = None) -> BP:
    """The inference of a `QueryModel`.

    Undamped flooding falls into two halves where layers of binary units take turns, of which one
    alone reaches the visible units: N layers are N/2 sweeps, exactly. Gaussian units look at both
    halves; sweeps reach as far, and settle at the same answers.
    """
    number = model.layers if layers is None else layers
    turns = model.centred.is_bipartite
    half = turns and number % 2 == 0
    return BP(
        number // 2 if half else number,
        temperature=model.temperature,
        schedule="layers" if half else "flooding",
        unroll=True,
    )


def answer(
    model: QueryModel,
    evidence: Float[Array, "*batch units"],
    observed: Bool[Array, "*batch units"],
    layers: int | None = None,
) -> Answer:
    """Of binary units, evidence enters as log-odds, `u` in the paper's eq. (3) and after; of
    Gaussian ones it is exact.
    """
    plain = model.to_model()
    inference = network(model, layers)
    if isinstance(plain, GaussianRBM):
        problem = GaussianProblem(plain, evidence, observed, trusted=True)
        beliefs: Any = inference._beliefs(problem)
        value = Gaussian(beliefs.mean, beliefs.variance / model.scale)
        return Answer(value, report_of(beliefs))
    first, *others = plain.unary()
    bias = jnp.broadcast_to(first, evidence.shape)
    given = jnp.where(observed, _log_odds(model, evidence), jnp.zeros_like(evidence))
    beliefs = inference(plain.with_unary((bias + given, *others)))
    # Likelihoods are no answers of the network.
    own = jnp.where((evidence > 0) & (evidence < 1), given, jnp.zeros_like(given))
    value = _scaled(model.scale, jax.tree.leaves(beliefs.log_odds)[0], own)
    return Answer(value, report_of(beliefs))


def graph_answer(
    model: QueryModel,
    states: Int[Array, "*batch variables"],
    observed: Bool[Array, "*batch variables"],
    log_likelihood: Float[Array, "*batch states"] | None = None,
    layers: int | None = None,
) -> Answer:
    """Variables of a graph: the states that are not observed lose score."""
    graph: AbstractGraphModel = model.centred
    assert model.evidence is not None
    most = int(graph.num_states.max())
    shape = (*states.shape, most)

    def spread(x: Array) -> Array:
        return jnp.broadcast_to(x[..., None], shape)

    others = jnp.broadcast_to(jnp.arange(most), shape).astype(states.dtype) != spread(states)
    lost = jnp.where(others & spread(observed), -model.evidence, jnp.zeros_like(model.evidence))
    scores = graph.flattened(lost)
    if log_likelihood is not None:
        scores = scores + log_likelihood.astype(scores.dtype)
    problem = GraphProblem(graph).with_likelihood(scores)
    beliefs: Any = network(model, layers)._beliefs(problem)
    if log_likelihood is None:
        value = _each(lambda x: model.scale * x, beliefs.scores)
    else:
        own = graph.units((graph.padded(log_likelihood.astype(scores.dtype)),))
        value = _each(lambda x, own: _scaled(model.scale, x, own), beliefs.scores, own)
    return Answer(value, report_of(beliefs))


def softmax(scores: Any) -> Any:
    """Probabilities from scores by group."""
    return _each(jax.nn.softmax, scores)


def places_of(
    graph: AbstractGraphModel, group: Any, name: str = "targets"
) -> Int[np.ndarray, "..."]:
    """Where the variables of a group stand among all variables of the graph; or an error that names
    the argument.
    """
    places: Any = np.arange(len(graph.num_states))
    return np.asarray(graph.configuration(places).take(group, f"`{name}`"))


def plain_of(model: Any) -> Any:
    """The model that a `QueryModel` holds, in centred form, or the model itself."""
    return model.centred if isinstance(model, QueryModel) else model


def _each(fn: Callable[..., Array], named: Any, *more: Any) -> Any:
    """A function of the arrays of each group; what names the groups stays."""

    def of_one(x: Any, *others: Any) -> Any:
        return fn(x, *others) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(of_one, named, *more)


def _scaled(scale: Array, x: Array, own: Array) -> Array:
    """Scores of units times `scale`, but for what was told of the units themselves."""
    own = jnp.broadcast_to(own, x.shape)
    return scale * (x - own) + own


def _log_odds(model: QueryModel, evidence: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Of what is observed, at most as strong as the model takes evidence to be."""
    assert model.evidence is not None
    low, high = model.evidence
    sure = (evidence <= 0) | (evidence >= 1)
    inside = jnp.where(sure, jnp.full_like(evidence, 0.5), evidence)
    soft = jnp.clip(jax.scipy.special.logit(inside), -low, high)
    return jnp.where(evidence <= 0, -low, jnp.where(evidence >= 1, high, soft))
