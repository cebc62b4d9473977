import itertools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .. import _checks
from .._types import Evidence, Observed, Targets
from ..models import AbstractModel
from ..models._base import require_model
from ._base import AbstractInference
from ._network import Network


class QueryInfo(NamedTuple):
    """How the inference went that answered a query, for each instance of the batch.

    - `converged`: whether it did; `iterations`: after how many sweeps; `residual`: how much the
      last one changed. A [`ebmlearn.QueryModel`][] that was trained with few iterations answers
      well without.
    - `guarded`: of Gaussian units, the share whose precision came out impossible and was replaced,
      see [`ebmlearn.Beliefs`][]; None for others.
    """

    converged: Bool[Array, "*batch"]
    iterations: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]
    guarded: Float[Array, "*batch"] | None


def query(
    model: AbstractModel,
    evidence: Evidence,
    observed: Observed = None,
    inference: AbstractInference | None = None,
    targets: Targets = None,
    with_info: bool = False,
) -> PyTree:
    """The probability that each visible unit is 1, given the observed ones; of a graph, that of
    each state of each variable; of real units, their means and variances.

    !!! example

        ```python
        answer = ebmlearn.query(rbm, v, observed=mask, inference=ebmlearn.BP(iterations=20))
        answer = ebmlearn.query(query_model, v, observed=mask)
        ```

    **Arguments:**

    - `model`: any model that the inference takes; evidence on a graph is a dictionary: see
      [`ebmlearn.AbstractInference`][]. Or a [`ebmlearn.QueryModel`][], which brings its own
      inference.
    - `evidence`: 0 and 1 fix a unit, a number between them is the likelihood of 1 against 0; of
      Gaussian units, any number. What stands at units that are not observed is not looked at, and
      NaN is a unit that is not observed. None is no evidence. Data frames and lists do as well.
    - `observed`: booleans, which units are observed. Each row of a batch may have its own. It may
      be left out for a graph, and where NaN says what is not observed.
    - `inference`: for instance [`ebmlearn.BP`][], [`ebmlearn.MeanField`][] or [`ebmlearn.Exact`][].
    - `targets`: what to answer for: indices of units, or one group of a graph. Everything, if not
      given.
    - `with_info`: whether to say how the inference went, too.

    **Returns:**

    Probabilities of 1 of the visible units (`x` of a BoltzmannMachine), 0 or 1 where they were
    fixed; of a graph, those of all states, `answer[group]`, for which the evidence of a
    [`ebmlearn.QueryModel`][] is as strong as it has learned; of real units a pair `mean`,
    `variance`. With `with_info` a pair of that and a `QueryInfo`. For the hidden units call
    `inference(model, evidence, observed)`: it takes the same arguments.
    """
    inference = asker(model, inference)
    evidence, observed = (
        _checks.as_data("evidence", evidence),
        _checks.as_data("observed", observed),
    )
    problem = model.problem(evidence, observed)
    beliefs = inference.beliefs_of(problem)
    answer = beliefs.marginals
    if targets is not None:
        answer = problem.chosen(answer, targets)
    if not with_info:
        return answer
    went = beliefs.converged, beliefs.iterations, beliefs.residual, beliefs.guarded
    return answer, QueryInfo(*went)


def joint_query(
    model: AbstractModel,
    evidence: Evidence,
    observed: Observed = None,
    inference: AbstractInference | None = None,
    targets: Targets = (),
) -> Float[Array, "..."]:
    """The probability of each joint state of a few targets given the evidence, by the chain rule:
    each target is asked for given those before it. Where answers are approximate, another order of
    the targets gives another result.

    !!! example

        ```python
        p = ebmlearn.joint_query(query_model, v, observed=mask, targets=[3, 7])
        p[..., 1, 0]  # that unit 3 is 1 and unit 7 is 0
        ```

    **Arguments:**

    - `model`, `evidence`, `observed`, `inference`: as for [`ebmlearn.query`][]; not of real units.
    - `targets`: indices of units; of a graph, pairs of a group and the index of a variable in it.
      The number of queries is that of their joint states.

    **Returns:**

    An array `[*batch, 2, 2, ...]` with an axis for each target; of a graph, as long as it has
    states.
    """
    inference = asker(model, inference)
    problem = model.problem(evidence, observed)
    if isinstance(targets, str) or not hasattr(targets, "__iter__"):
        got = _checks.describe(targets)
        raise TypeError(f"`targets` must be a list of what to ask for, got {got}.")
    places = [problem.place(target) for target in targets]  # pyright: ignore
    if not places:
        raise ValueError("`targets` must contain at least one target, got none.")
    if any(a == b for a, b in itertools.combinations(places, 2)):
        raise ValueError("`targets` must differ from each other, got one twice.")
    if problem.holds(places):
        raise ValueError("`targets` must not be observed, got some that are.")
    known: list[tuple[int, ...]] = [()]
    out: list[Array] = [jnp.ones(())]
    sizes = []
    for k, place in enumerate(places):
        # All states of the targets before this one.
        parts = []
        for states in known:
            beliefs = inference.beliefs_of(problem.with_states(places[:k], states))
            parts.append(problem.distribution(beliefs.means, place))
        size = parts[0].shape[-1]
        out = [
            # What is impossible stays so, whatever an inference makes of its being given.
            jnp.where(weight == 0, 0, weight * part[..., s])
            for weight, part in zip(out, parts, strict=True)
            for s in range(size)
        ]
        known = [(*states, s) for states, s in itertools.product(known, range(size))]
        sizes.append(size)
    joint = jnp.stack(out, -1)
    return joint.reshape(*joint.shape[:-1], *sizes)


def asker(model: Any, inference: Any) -> AbstractInference:
    """The inference that answers: the model's own, or the one that is given for any other."""
    require_model(model)
    own, kind = Network(), type(model).__name__
    if model.kind in own.takes:
        if inference is not None:
            got = _checks.describe(inference)
            raise ValueError(f"`inference` must be None for a {kind}, which has one, got {got}.")
        return own
    if inference is None:
        raise TypeError(f"`inference` must be given for a {kind}, such as `BP(10)`, got None.")
    if not isinstance(inference, AbstractInference):
        raise TypeError(
            f"`inference` must be an inference such as `BP(iterations=10)`, got {inference!r}."
        )
    inference.check(model)
    return inference
