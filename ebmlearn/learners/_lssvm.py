import equinox as eqx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..inference import AbstractInference
from ..inference._posterior import posterior
from ..models import AbstractLayeredModel, Units
from ._base import AbstractMemoryless, at_epoch, Inference, Phases
from ._cost import augmented, check_cost, Cost, hamming


class LSSVM(AbstractMemoryless):
    """The latent structured SVM: the margin of the best configuration of visible and hidden units
    together (Yu & Joachims 2009; with max-product, Ping & Ihler 2017).

    The loss of an instance is
    $\\max_{\\hat v, \\hat h} [\\Delta(\\hat v, v) - E(\\hat v, \\hat h)] + \\min_h E(v, h)$.

    !!! example

        ```python
        ebmlearn.LSSVM(ebmlearn.BP(iterations=10, product="max"))
        ```
    """

    inference: Inference
    cost: Cost
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(static=True, default=0.0)

    def __init__(
        self,
        inference: Inference,
        cost: Cost = hamming,
        centred: bool = False,
        weight_decay: float = 0.0,
    ):
        """**Arguments:**

        - `inference`: one with `product="max"`, or a function from the epoch to one.
        - `cost`, `centred`, `weight_decay`: as for [`ebmlearn.MSSVM`][].
        """
        self.inference = inference
        self.cost = cost
        self.centred = centred
        self.weight_decay = weight_decay

    def __check_init__(self):
        at_epoch(self.inference, 0, "max")
        check_cost(self.cost)

    def sides(
        self,
        model: AbstractLayeredModel,
        visible: Float[Array, "batch visible"],
        *,
        key: PRNGKeyArray,
        epoch: Int[Array, ""],
    ) -> Phases:
        inference = at_epoch(self.inference, epoch, "max")
        positive = posterior(model, visible, inference, "max")
        negative = inference.statistics(augmented(model, visible, self.cost))
        units = negative.units
        rival = units.x if isinstance(units, Units) else units.visible
        energies = [model.expected_energy(s.units, s.pairwise) for s in (positive, negative)]
        loss = self.cost(rival, visible).sum(-1).mean() + energies[0] - energies[1]
        return Phases(positive, negative, loss)

    def decoder(self, epoch: int = 0) -> AbstractInference:
        """The inference of that epoch: MAP."""
        return at_epoch(self.inference, epoch, "max")
