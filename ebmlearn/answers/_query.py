import itertools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .. import _checks
from .._types import Evidence, Observed, Targets
from ..inference import AbstractInference, Exact, Network
from ..models import (
    AbstractModel,
    AbstractProblem,
    Problem,
    QueryModel,
    QueryProblem,
    require_model,
)
from ._auto import Auto


@_checks.usage(
    "query(model, evidence, observed)",
    with_info="inference(model, evidence, observed).converged",
)
def query(
    model: AbstractModel,
    evidence: Evidence,
    observed: Observed = None,
    inference: AbstractInference | None = None,
    targets: Targets = None,
) -> PyTree:
    """Answers a conditional query: the probability that each visible unit is 1 given the observed
    ones; for a graph, the probability of each state of each variable; for real units, their means
    and variances.

    !!! example

        ```python
        from ebmlearn import datasets

        rbm = ebmlearn.RBM.init(64, 8)
        image = datasets.digits().test.x[0]
        upper = jnp.arange(64) < 32  # the upper half is observed
        ebmlearn.query(rbm, image, observed=upper)
        ebmlearn.query(rbm, image, observed=upper, inference=ebmlearn.BP(20))
        ```

    **Arguments:**

    - `model`: any model that the inference takes, or a [`ebmlearn.QueryModel`][], which has its own
      inference.
    - `evidence`: 0 and 1 fix a unit; a number between them is the likelihood of 1 against 0. For
      Gaussian units, any number. For a graph, a dictionary: see
      [`ebmlearn.inference.AbstractInference`][]. NaN is an unobserved unit, and values of units
      that are not observed are ignored. None is no evidence. Data frames and lists work too.
    - `observed`: booleans, the observed units; each row of a batch may have its own. Leave it out
      for a graph, or if NaN marks what is not observed.
    - `inference`: for instance [`ebmlearn.BP`][], [`ebmlearn.MeanField`][] or [`ebmlearn.Exact`][].
      By default [`ebmlearn.Auto`][], for discrete units: exact where that takes less than 20
      seconds, else the best that it finds within them. Inside a compiled function, name another.
    - `targets`: what to answer for: indices of units, or one group of a graph. Everything by
      default.

    **Returns:**

    - For binary units, the probabilities of 1 of the visible units (`x` of a BoltzmannMachine); 0
      or 1 for fixed units.
    - For a graph, the probabilities of all states, `answer[group]`. A [`ebmlearn.QueryModel`][] of
      a graph has learned how strong evidence is, so observed variables are not exactly 0 and 1.
    - For real units, a pair `mean`, `variance`.

    For beliefs about hidden units, and for how the inference ended, call it with arrays:
    `beliefs = inference(model, evidence, observed)` has `converged`, `residual` and more, see
    [`ebmlearn.Beliefs`][]. The inference of a [`ebmlearn.QueryModel`][] is
    `ebmlearn.inference.Network()`; trained with few iterations, it answers well without converging.
    """
    inference, problem = _posed(model, evidence, observed, inference)
    beliefs = inference.beliefs_of(problem)
    answer = beliefs.marginals
    if targets is not None:
        answer = _plain(problem).chosen(answer, targets)
    return answer


def joint_query(
    model: AbstractModel,
    evidence: Evidence,
    observed: Observed = None,
    inference: AbstractInference | None = None,
    targets: Targets = (),
) -> Float[Array, "..."]:
    """The probability of each joint state of a few targets given the evidence, by the chain rule:
    each target is queried given the targets before it. If the inference is approximate, the result
    depends on the order of the targets.

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(16, 8)
        p = ebmlearn.joint_query(rbm, None, inference=ebmlearn.Exact(), targets=[3, 7])
        p[1, 0]  # the probability that unit 3 is 1 and unit 7 is 0
        ```

    **Arguments:**

    - `model`, `evidence`, `observed`, `inference`: as for [`ebmlearn.query`][]. Units must be
      discrete.
    - `targets`: indices of units; for a graph, pairs of a group and the index of a variable in it.
      The number of queries grows with the number of joint states.

    **Returns:**

    An array `[*batch, 2, 2, ...]` with one axis per target; for a graph, an axis is as long as its
    target has states.
    """
    inference, problem = _posed(model, evidence, observed, inference)
    if isinstance(targets, str) or not hasattr(targets, "__iter__"):
        got = _checks.describe(targets)
        raise TypeError(f"`targets` must be a list of what to ask for, got {got}.")
    plain = _plain(problem)
    places = [plain.place(target) for target in targets]  # pyright: ignore
    if not places:
        raise ValueError("`targets` must contain at least one target, got 0.")
    if any(a == b for a, b in itertools.combinations(places, 2)):
        raise ValueError("`targets` must be different from each other, got one twice.")
    if not plain.model.layers[places[0][0]].numbered:
        kind = _checks.article(type(model).__name__)
        raise TypeError(f"`model` must be discrete, got {kind}.")
    if plain.holds(places):
        raise ValueError("`targets` must not be observed, got some that are.")
    known: list[tuple[int, ...]] = [()]
    out: list[Array] = [jnp.ones(())]
    sizes = []
    for k, place in enumerate(places):
        # All states of the targets before this one.
        parts = []
        for states in known:
            beliefs = inference.beliefs_of(problem.with_states(places[:k], states))
            parts.append(plain.distribution(beliefs.means, place))
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


def _posed(
    model: AbstractModel, evidence: Any, observed: Any, inference: Any
) -> tuple[AbstractInference, AbstractProblem]:
    """What answers, and the problem, its evidence given as arrays, lists or data frames."""
    inference = asker(model, inference, Auto())
    evidence = _checks.as_data("evidence", evidence)
    return inference, model.problem(evidence, _checks.as_data("observed", observed))


def _plain(problem: AbstractProblem) -> Problem:
    """The problem of the plain model."""
    own: Any = problem.plain if isinstance(problem, QueryProblem) else problem
    return own


def asker(
    model: AbstractModel, inference: Any, default: AbstractInference | None = None
) -> AbstractInference:
    """The inference that answers: the model's own, or the one that is given for any other, or the
    default if none is.
    """
    require_model(model)
    kind = _checks.article(type(model).__name__)
    if isinstance(model, QueryModel):
        if inference is not None:
            got = _checks.describe(inference)
            raise ValueError(f"`inference` must be None for {kind}, which has its own, got {got}.")
        return Network()
    if inference is None and default is not None and default.accepts(model):
        inference = default
    if inference is None:
        # Refuses what no inference takes: no other can be given then.
        Exact().check(model)
        hint = model.hint or "write `BP(10)`"
        raise TypeError(f"`inference` must be given for {kind}, got None: {hint}.")
    require_inference(inference)
    inference.check(model)
    return inference


def require_inference(x: Any) -> None:
    """Raises `TypeError` unless `x` is an inference."""
    wanted = "an inference such as `BP(iterations=10)`"
    _checks.instance("inference", x, AbstractInference, wanted)
