from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from ..inference._base import NUMBER
from ..models import AbstractPlainModel
from ..models._require import require_discrete
from ._base import (
    AbstractInferring,
    AbstractMemoryless,
    as_schedule,
    free_energy,
    Inference,
    no_gaps,
    one_visible,
    Phases,
    posterior,
    Product,
)
from ._cost import check_cost, Cost, cost_of, hamming, rival, with_cost


class MSSVM(AbstractMemoryless, AbstractInferring):
    """The marginal structured SVM, which maximises the margin of the visible units with the hidden
    units summed out (Ping & Ihler 2017, eq. (6)).

    The loss of an instance is $\\max_{\\hat v} [\\Delta(\\hat v, v) - F(\\hat v)] + F(v)$ with the
    free energy $F$. Its maximum, the loss-augmented marginal MAP (eq. (7)), is found by
    mixed-product belief propagation. The hidden units given $\\hat v$ are then exact.

    In a graph, the variables that the data tell are the visible ones, and all others are summed
    out. Small graphs are trained with `Exact(product="mixed")`; for others take
    [`ebmlearn.LSSVM`][].

    !!! example

        ```python
        ebmlearn.MSSVM(ebmlearn.BP(iterations=10, product="mixed"))
        ```

    **Arguments:**

    - `inference`: one with `product="mixed"`, or a function from the epoch to one. Graphs need
      `Exact(product="mixed")`.
    - `cost`: a function of states and the truth, both `[batch, visible]`, that returns the cost of
      each unit. The loss $\\Delta$ is its sum over the units.
    - `centred`: follow the gradient of the centred energy instead.
    - `weight_decay`: the strength of a penalty $\\tfrac12 \\lambda |W|^2$ on all weights.
    """

    inference: Inference = eqx.field(converter=as_schedule)
    _: KW_ONLY
    cost: Cost = hamming
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(metadata=NUMBER, default=0.0)
    product: ClassVar[Product] = "mixed"

    def __check_init__(self):
        check_cost(self.cost)

    def phases(
        self,
        model: AbstractPlainModel,
        state: None,
        seen: PyTree,
        observed: PyTree,
        *,
        key: PRNGKeyArray,
        epoch: Int[Array, ""],
    ) -> tuple[Phases, None]:
        model = require_discrete(model, "MSSVM")
        no_gaps(model, observed, self)
        one_visible(model, seen, self)
        inference = self.decoder(epoch)
        positive = posterior(model, seen, observed, inference)
        negative = inference.statistics_of(with_cost(model, seen, self.cost))
        other = rival(model, negative.units, seen)
        lost = cost_of(model, other, seen, self.cost)
        margin = lost - free_energy(model, other, observed, inference)
        loss = (margin + free_energy(model, seen, observed, inference)).mean()
        return Phases(positive, negative, loss), None
