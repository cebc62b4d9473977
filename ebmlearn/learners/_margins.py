"""Learners that maximise a margin, by what wrong visible units cost."""

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray

from .. import _checks
from .._types import AnyArray
from ..inference import AbstractInference, BP, NUMBER
from ..models import (
    AbstractPlainModel,
    Evidence,
    expected_energy,
    Problem,
    require_discrete,
    Statistics,
)
from ._base import (
    AbstractContrastive,
    AbstractInferring,
    AbstractMemoryless,
    as_schedule,
    Inference,
    Phases,
    Told,
)


# From states and the truth, both of shape [batch, visible], to the cost of each unit.
Cost = Callable[[Float[Array, "batch visible"], Float[Array, "batch visible"]], AnyArray]


def hamming(
    state: Float[AnyArray, "*#batch visible"], truth: Float[AnyArray, "*#batch visible"]
) -> Float[AnyArray, "*#batch visible"]:
    """The Hamming loss: each wrong unit costs 1.

    !!! example

        ```python
        twice = lambda state, truth: 2 * ebmlearn.learners.hamming(state, truth)
        ebmlearn.MSSVM(cost=twice)
        ```

    **Arguments:**

    - `state`, `truth`: 0 and 1, `[batch, visible]`.
    """
    # Of states that have numbers, any two differ by 1 or more.
    return jnp.minimum(abs(state - truth), 1)


class MSSVM(AbstractMemoryless, AbstractInferring, AbstractContrastive):
    """The marginal structured SVM, which maximises the margin of the visible units with the hidden
    units summed out (Ping & Ihler 2017, eq. (6)).

    The loss of an instance is $\\max_{\\hat v} [\\Delta(\\hat v, v) - F(\\hat v)] + F(v)$ with the
    free energy $F$. Its maximum, the loss-augmented marginal MAP (eq. (7)), is found by
    mixed-product belief propagation. The hidden units given $\\hat v$ are then exact.

    In a graph, the variables that the data tell are the visible ones, and all others are summed
    out.

    !!! example

        ```python
        ebmlearn.MSSVM(ebmlearn.BP(10, product="mixed"))
        ```

    **Arguments:**

    - `inference`: one with `product="mixed"`, or a function from the epoch to one;
      `BP(product="mixed")` by default.
    - `cost`: a function of states and the truth, both `[batch, visible]`, that returns the cost of
      each unit. The loss $\\Delta$ is its sum over the units.
    - `centred`: follow the gradient of the centred energy instead.
    - `weight_decay`: the strength of a penalty $\\tfrac12 \\lambda |W|^2$ on all weights.
    """

    inference: Inference = eqx.field(converter=as_schedule, default=BP(product="mixed"))
    _: KW_ONLY
    cost: Cost = hamming
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(metadata=NUMBER, default=0.0)
    maximises: ClassVar[str] = "visible"

    def __check_init__(self):
        _checks.function("cost", self.cost, "a function of states and the truth")

    def phases(
        self, told: Told, state: None, *, key: PRNGKeyArray, epoch: Int[Array, ""]
    ) -> tuple[Phases, None]:
        inference = self.decoder(epoch)
        negative, rival, lost = violation(self, told, inference)
        margin = lost - rival.free_energy(inference)
        loss = (margin + told.free_energy(inference)).mean()
        return Phases(told.posterior(inference), negative, loss), None


class LSSVM(AbstractMemoryless, AbstractInferring, AbstractContrastive):
    """The latent structured SVM, which maximises the margin of the best joint configuration of
    visible and hidden units (Yu & Joachims 2009; with max-product, Ping & Ihler 2017).

    The loss of an instance is
    $\\max_{\\hat v, \\hat h} [\\Delta(\\hat v, v) - E(\\hat v, \\hat h)] + \\min_h E(v, h)$.

    !!! example

        ```python
        ebmlearn.LSSVM(ebmlearn.BP(10, product="max"))
        ```

    **Arguments:**

    - `inference`: one that maximises, such as `MPLP()`, or a function from the epoch to one;
      `BP(product="max")` by default.
    - `cost`, `centred`, `weight_decay`: as for [`ebmlearn.MSSVM`][].
    """

    inference: Inference = eqx.field(converter=as_schedule, default=BP(product="max"))
    _: KW_ONLY
    cost: Cost = hamming
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(metadata=NUMBER, default=0.0)
    maximises: ClassVar[str] = "all"

    def __check_init__(self):
        _checks.function("cost", self.cost, "a function of states and the truth")

    def phases(
        self, told: Told, state: None, *, key: PRNGKeyArray, epoch: Int[Array, ""]
    ) -> tuple[Phases, None]:
        inference = self.decoder(epoch)
        negative, _, lost = violation(self, told, inference)
        positive = told.posterior(inference, mode=True)
        gap = expected_energy(told.model, positive) - expected_energy(told.model, negative)
        return Phases(positive, negative, lost.mean() + gap), None


def with_cost(told: Told, cost: Cost) -> Problem:
    """The problem whose log-potential is higher by what visible units cost that differ from those
    that are seen: for the Hamming loss of binary units, $b_i$ plus $1 - 2 v_i$ (Ping & Ihler 2017,
    eq. (7)).
    """
    model, truth = told.model, _truth(told)
    most = max(units.number for units in model.layers)  # pyright: ignore
    each = [_costs(model, jnp.full_like(truth, k), truth, cost) for k in range(most)]
    seen, scores, at = model.variables.seen, [], 0
    for k, units in enumerate(model.layers):
        if k not in seen:
            scores.append(None)
            continue
        own = jnp.stack([x[:, at : at + units.size] for x in each], -1)
        scores.append(Evidence(scores=own[..., : units.number]))  # pyright: ignore
        at += units.size
    return Problem(model, tuple(scores), told.outputs(), trusted=True)


def violation(
    learner: Any, told: Told, inference: AbstractInference
) -> tuple[Statistics, Told, Float[Array, " rows"]]:
    """What a learner with a `cost` must make less likely than the data: the statistics that its
    inference finds with the cost added; the visible states among them in the place of the data; and
    what these cost.
    """
    model = require_discrete(told.model, type(learner).__name__)
    told.one_visible(learner)
    found = inference.statistics_of(with_cost(told, learner.cost))
    means = model.variables.hidden_in(found.units)
    rival = told._replace(
        seen=tuple(
            None if x is None else units.encode(units.decode(mean), model.dtype)
            for x, units, mean in zip(told.seen, model.layers, means, strict=True)
        )
    )
    cost = _costs(model, _truth(rival), _truth(told), learner.cost)
    return found, rival, cost.sum(-1)


def _truth(told: Told) -> Num[Array, "rows units"]:
    """The states of all visible units beside each other, -1 where data do not tell them."""
    return jnp.concatenate([x for x in told.states() if x is not None], -1)


def _costs(
    model: AbstractPlainModel,
    states: Num[Array, "rows units"],
    truth: Num[Array, "rows units"],
    cost: Cost,
) -> Float[Array, "rows units"]:
    """What each unit costs; 0 where data do not tell it."""
    found = jnp.asarray(cost(states.astype(model.dtype), truth.astype(model.dtype)))
    _checks.exact_shape("cost", found, truth.shape, "one number a visible unit")
    return jnp.where(truth >= 0, found.astype(model.dtype), jnp.zeros((), model.dtype))
