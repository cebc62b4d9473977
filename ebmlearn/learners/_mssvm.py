from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Int, PRNGKeyArray

from ..inference import NUMBER
from ._base import (
    AbstractContrastive,
    AbstractInferring,
    AbstractMemoryless,
    as_schedule,
    Inference,
    Phases,
    Told,
)
from ._cost import check_cost, Cost, hamming, violation


class MSSVM(AbstractMemoryless, AbstractInferring, AbstractContrastive):
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
    maximises: ClassVar[str] = "visible"

    def __check_init__(self):
        check_cost(self.cost)

    def phases(
        self, told: Told, state: None, *, key: PRNGKeyArray, epoch: Int[Array, ""]
    ) -> tuple[Phases, None]:
        inference = self.decoder(epoch)
        negative, rival, lost = violation(self, told, inference)
        margin = lost - rival.free_energy(inference)
        loss = (margin + told.free_energy(inference)).mean()
        return Phases(told.posterior(inference), negative, loss), None
