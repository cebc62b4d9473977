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


class LSSVM(AbstractMemoryless, AbstractInferring, AbstractContrastive):
    """The latent structured SVM, which maximises the margin of the best joint configuration of
    visible and hidden units (Yu & Joachims 2009; with max-product, Ping & Ihler 2017).

    The loss of an instance is
    $\\max_{\\hat v, \\hat h} [\\Delta(\\hat v, v) - E(\\hat v, \\hat h)] + \\min_h E(v, h)$.

    !!! example

        ```python
        ebmlearn.LSSVM(ebmlearn.BP(iterations=10, product="max"))
        ```

    **Arguments:**

    - `inference`: one that maximises, such as `BP(10, product="max")` or `MPLP()`, or a function
      from the epoch to one.
    - `cost`, `centred`, `weight_decay`: as for [`ebmlearn.MSSVM`][].
    """

    inference: Inference = eqx.field(converter=as_schedule)
    _: KW_ONLY
    cost: Cost = hamming
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(metadata=NUMBER, default=0.0)
    maximises: ClassVar[str] = "all"

    def __check_init__(self):
        check_cost(self.cost)

    def phases(
        self, told: Told, state: None, *, key: PRNGKeyArray, epoch: Int[Array, ""]
    ) -> tuple[Phases, None]:
        inference = self.decoder(epoch)
        negative, _, lost = violation(self, told, inference)
        positive = told.posterior(inference, mode=True)
        gap = told.model.expected_energy(positive) - told.model.expected_energy(negative)
        return Phases(positive, negative, lost.mean() + gap), None
