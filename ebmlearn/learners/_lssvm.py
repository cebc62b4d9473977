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
    Inference,
    no_gaps,
    one_visible,
    Phases,
    posterior,
    Product,
)
from ._cost import check_cost, Cost, cost_of, hamming, rival, with_cost


class LSSVM(AbstractMemoryless, AbstractInferring):
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
    product: ClassVar[Product] = "max"

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
        model = require_discrete(model, "LSSVM")
        no_gaps(model, observed, self)
        one_visible(model, seen, self)
        inference = self.decoder(epoch)
        positive = posterior(model, seen, observed, inference, mode=True)
        negative = inference.statistics_of(with_cost(model, seen, self.cost))
        energies = [model.expected_energy(statistics) for statistics in (positive, negative)]
        lost = cost_of(model, rival(model, negative.units, seen), seen, self.cost)
        loss = lost.mean() + energies[0] - energies[1]
        return Phases(positive, negative, loss), None
