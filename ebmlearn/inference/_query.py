import itertools
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _checks
from ..models import AbstractLayeredModel, Layers, QueryModel
from ..models._gaussian_rbm import GaussianRBM
from ..models._graph import AbstractGraphModel
from ._answers import (
    answer,
    graph_answer,
    places_of,
    plain_of,
    QueryReport,
    report_of,
    softmax,
)
from ._base import AbstractInference, Evidence, Observed
from ._gaussian import GaussianProblem
from ._graph import GraphProblem
from ._instances import check_evidence, Problem


def query(
    model: AbstractLayeredModel | AbstractGraphModel | QueryModel,
    evidence: Evidence,
    observed: Observed | None = None,
    inference: AbstractInference | None = None,
    targets: Any = None,
    report: bool = False,
) -> Any:
    """The probability that each visible unit is 1, given the observed ones; of a graph, that of
    each state of each variable; of Gaussian units, their means and variances.

    !!! example

        ```python
        answer = ebmlearn.query(rbm, v, observed=mask, inference=ebmlearn.BP(iterations=20))
        answer = ebmlearn.query(query_model, v, observed=mask)
        ```

    **Arguments:**

    - `model`: an RBM, a DBM, a BoltzmannMachine, a SemiRestrictedBM, a GaussianRBM, or a
      [`ebmlearn.GridMRF`][] or a [`ebmlearn.pgmax.FactorGraphModel`][], whose evidence is a
      dictionary: see [`ebmlearn.AbstractInference`][]. Or a [`ebmlearn.QueryModel`][] of one of
      them, which brings its own inference.
    - `evidence`: 0 and 1 fix a unit, a number between them is the likelihood of 1 against 0; of
      Gaussian units, any number. What stands at units that are not observed is not looked at.
    - `observed`: booleans, which units are observed. Each row of a batch may have its own. Only of
      a graph may it be left out.
    - `inference`: for instance [`ebmlearn.BP`][], [`ebmlearn.MeanField`][] or [`ebmlearn.Exact`][].
    - `targets`: what to answer for: indices of units, or one group of a graph. Everything, if not
      given.
    - `report`: whether to say how the inference went, too.

    **Returns:**

    Probabilities of 1 of the visible units (`x` of a BoltzmannMachine), 0 or 1 where they were
    fixed; of a graph, those of all states, `answer[group]`, for which the evidence of a
    [`ebmlearn.QueryModel`][] is as strong as it has learned; of Gaussian units a
    [`ebmlearn.Gaussian`][]. With `report` a pair of that and a [`ebmlearn.QueryReport`][]. For the
    hidden units call `inference(model, evidence, observed)`: it takes the same arguments.
    """
    if isinstance(model, QueryModel):
        if inference is not None:
            raise ValueError(
                "`inference` must be None for a QueryModel, which brings its own; ask"
                f" `model.to_model()` by another one, got {inference!r}."
            )
        out, went = _asked(model, evidence, observed)
    else:
        out, went = _inferred(model, evidence, observed, inference)
    if targets is not None:
        out = _chosen(plain_of(model), out, targets)
    return (out, went) if report else out


def joint_query(
    model: AbstractLayeredModel | AbstractGraphModel | QueryModel,
    targets: Any,
    evidence: Evidence,
    observed: Observed | None = None,
    inference: AbstractInference | None = None,
) -> Float[Array, "..."]:
    """The probability of each joint state of a few targets given the evidence, by the chain rule:
    each target is asked for given those before it. Where answers are approximate, another order of
    the targets gives another result.

    !!! example

        ```python
        p = ebmlearn.joint_query(query_model, [3, 7], v, observed=mask)
        p[..., 1, 0]  # that unit 3 is 1 and unit 7 is 0
        ```

    **Arguments:**

    - `model`, `evidence`, `observed`, `inference`: as for [`ebmlearn.query`][]; not of Gaussian
      units.
    - `targets`: indices of units; of a graph, pairs of a group and the index of a variable in it.
      The number of queries is that of their joint states.

    **Returns:**

    An array `[*batch, 2, 2, ...]` with an axis for each target; of a graph, as long as it has
    states.
    """
    plain = plain_of(model)
    if isinstance(plain, GaussianRBM):
        raise TypeError("`model` must be discrete, got a GaussianRBM.")
    if isinstance(targets, str) or not hasattr(targets, "__iter__"):
        got = _checks.describe(targets)
        raise TypeError(f"`targets` must be a list of what to ask for, got {got}.")
    targets = list(targets)
    if not targets:
        raise ValueError("`targets` must hold one at least, got none.")
    if isinstance(plain, AbstractGraphModel):
        ask = _ask_graph
    else:
        ask = _ask_units
        units = plain.unary()[0].shape[-1]
        check_evidence(evidence, observed, units)
        targets = [_unit(target, units) for target in targets]
        if len(set(targets)) < len(targets):
            raise ValueError(f"`targets` must differ from each other, got {targets}.")
    known: list[tuple[int, ...]] = [()]
    out: list[Array] = [jnp.ones(())]
    sizes = []
    for k in range(len(targets)):
        # All states of the targets before this one.
        parts = [
            ask(model, targets[: k + 1], states, evidence, observed, inference) for states in known
        ]
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


def _chosen(plain: Any, out: Any, targets: Any) -> Any:
    """The answers for some targets."""
    if isinstance(plain, AbstractGraphModel):
        return out.take(targets, "`targets`")
    targets = np.asarray(targets)
    units = plain.unary()[0].shape[-1]
    if not np.issubdtype(targets.dtype, np.integer) or (np.abs(targets + 0.5) > units).any():
        raise ValueError(f"`targets` must be indices below {units}, got {targets}.")
    return jax.tree.map(lambda x: x[..., targets], out)


def _ask_units(
    model: Any, targets: list, states: tuple[int, ...], evidence: Any, observed: Any, inference: Any
) -> Float[Array, "*batch 2"]:
    """The distribution of the last target given the states of those before it."""
    if evidence is None or observed is None:
        raise ValueError("`evidence` and `observed` must be given, got None.")
    given = np.array(targets[:-1], int)
    x = jnp.asarray(evidence).astype(plain_of(model).unary()[0].dtype)
    mask = jnp.asarray(observed)
    if _checks.is_concrete(mask) and bool(mask[..., np.array(targets)].any()):
        raise ValueError("`targets` must not be observed, got some that are.")
    batch = _checks.broadcastable(evidence=x.shape[:-1], observed=mask.shape[:-1])
    shape = (*batch, x.shape[-1])
    x, mask = jnp.broadcast_to(x, shape), jnp.broadcast_to(mask, shape)
    x = x.at[..., given].set(jnp.asarray(states, x.dtype))
    p = query(model, x, mask.at[..., given].set(True), inference)[..., targets[-1]]
    return jnp.stack([1 - p, p], -1)


def _ask_graph(
    model: Any, targets: list, states: tuple[int, ...], evidence: Any, observed: Any, inference: Any
) -> Float[Array, "*batch states"]:
    graph = plain_of(model)
    rows, likelihood = _graph_rows(graph, evidence, observed)
    places = [_place(graph, target) for target in targets]
    if len(set(places)) < len(places):
        raise ValueError("`targets` must differ from each other, got one twice.")
    if _checks.is_concrete(rows) and bool((rows[..., np.array(places)] >= 0).any()):
        raise ValueError("`targets` must not be observed, got some that are.")
    given = np.array(places[:-1], int)
    rows = rows.at[..., given].set(jnp.asarray(states, rows.dtype))
    if isinstance(model, QueryModel):
        found = softmax(graph_answer(model, rows, rows >= 0, likelihood).value)
    else:
        _check_inference(inference)
        problem = GraphProblem(graph, rows).with_likelihood(likelihood).checked()
        found = inference._beliefs(problem).marginals
    group, index = targets[-1]
    return found[group][(..., *np.atleast_1d(index), slice(None))]


def _unit(target: Any, units: int) -> int:
    """The index of a unit, counted from the first."""
    unit = _whole(target)
    if unit is None or not -units <= unit < units:
        raise ValueError(f"`targets` must be indices below {units}, got {target!r}.")
    return unit % units


def _whole(x: Any) -> int | None:
    """An integer of any kind, or None."""
    try:
        return None if getattr(x, "dtype", type(x)) in (bool, np.bool_) else operator.index(x)
    except TypeError:
        return None


def _place(graph: AbstractGraphModel, target: Any) -> int:
    """Where a variable stands among all."""
    if not isinstance(target, (tuple, list)) or len(target) != 2:
        raise ValueError(f"`targets` must be pairs of a group and an index, got {target!r}.")
    group, index = target
    places = places_of(graph, group)
    numbers = tuple(_whole(k) for k in np.atleast_1d(index))
    if len(numbers) != places.ndim or any(
        k is None or not -n <= k < n for k, n in zip(numbers, places.shape, strict=True)
    ):
        raise ValueError(
            f"`targets` must hold indices of variables in a group of shape {places.shape}, got"
            f" {index!r}."
        )
    return int(places[numbers])


def _graph_rows(graph: AbstractGraphModel, evidence: Any, observed: Any) -> tuple[Array, Any]:
    """Evidence on a graph, checked: states, -1 where not known, and likelihoods."""
    problem = GraphProblem(graph, evidence, observed).checked()
    size = len(graph.num_states)
    held = problem.held
    if held is None:
        held = jnp.full((*problem.shape, size), -1, jnp.int32)
    return jnp.broadcast_to(jnp.asarray(held), (*problem.shape, size)), problem.log_likelihood


def _check_inference(inference: Any) -> None:
    if not isinstance(inference, AbstractInference):
        raise TypeError(
            f"`inference` must be an inference such as `BP(iterations=10)`, got {inference!r}."
        )


def _inferred(model: Any, evidence: Any, observed: Any, inference: Any) -> tuple[Any, QueryReport]:
    """What an inference answers."""
    _check_inference(inference)
    beliefs = inference(model, evidence, observed)
    if isinstance(model, AbstractGraphModel | GaussianRBM):
        out = beliefs.marginals
    else:
        out = beliefs.visible if isinstance(beliefs.log_odds, Layers) else beliefs.x
    return out, report_of(beliefs)


def _asked(model: QueryModel, evidence: Any, observed: Any) -> tuple[Any, QueryReport]:
    """What a `QueryModel` answers."""
    graph = model.centred
    if isinstance(graph, AbstractGraphModel):
        rows, likelihood = _graph_rows(graph, evidence, observed)
        if _checks.is_concrete(rows) and bool((rows >= 0).all()):
            raise ValueError("`evidence` must leave a variable to be asked for, got all of them.")
        found = graph_answer(model, rows, rows >= 0, likelihood)
        return softmax(found.value), found.report
    gaussian = isinstance(graph, GaussianRBM)
    problem = (GaussianProblem if gaussian else Problem)(model.to_model(), evidence, observed)
    if problem.observed is None or problem.evidence is None:
        raise ValueError("`evidence` and `observed` must be given, got None.")
    if _checks.is_concrete((problem.observed, problem.evidence)):
        x = np.asarray(problem.evidence)
        if (np.asarray(problem.observed) & (gaussian | (x == 0) | (x == 1))).all():
            raise ValueError(
                "`observed` must leave a unit to be asked for, got a mask of all units."
            )
    dtype = graph.unary()[0].dtype
    shape = (*problem.shape, graph.unary()[0].shape[-1])
    x = jnp.broadcast_to(jnp.asarray(problem.evidence).astype(dtype), shape)
    mask = jnp.broadcast_to(jnp.asarray(problem.observed), shape)
    if not problem.verified:
        good = jnp.isfinite(x) if gaussian else (x >= 0) & (x <= 1)
        wanted = "be finite" if gaussian else "lie in [0, 1]"
        x = eqx.error_if(x, mask & ~good, f"`evidence` must {wanted} where observed.")
    found = answer(model, x, mask)
    if gaussian:
        return found.value, found.report
    # Of what is known by a likelihood alone, the answer says more.
    sure = mask & ((x == 0) | (x == 1))
    return jnp.where(sure, x, jax.nn.sigmoid(found.value)), found.report
