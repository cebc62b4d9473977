import equinox as eqx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..inference import AbstractInference
from ..inference._posterior import posterior
from ..models import AbstractLayeredModel
from ._base import AbstractMemoryless, at_epoch, Inference, Phases
from ._cost import augmented, check_cost, Cost, free_energy, hamming


class MSSVM(AbstractMemoryless):
    """The marginal structured SVM: the margin of the visible units, hidden units summed out (Ping &
    Ihler 2017, eq. (6)).

    The loss of an instance is $\\max_{\\hat v} [\\Delta(\\hat v, v) - F(\\hat v)] + F(v)$ with the
    free energy $F$. Its maximum, the loss-augmented marginal MAP (eq. (7)), is found by
    mixed-product belief propagation. The hidden units given $\\hat v$ are then exact.

    !!! example

        ```python
        ebmlearn.MSSVM(ebmlearn.BP(iterations=10, product="mixed"))
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

        - `inference`: one with `product="mixed"`, or a function from the epoch to one.
        - `cost`: a function of states and the truth, both `[batch, visible]`, that gives the cost
          of each unit. Its sum over the units is the loss $\\Delta$.
        - `centred`: follow the gradient of the centred energy instead.
        - `weight_decay`: the strength of a penalty $\\tfrac12 \\lambda |W|^2$ on all weights.
        """
        self.inference = inference
        self.cost = cost
        self.centred = centred
        self.weight_decay = weight_decay

    def __check_init__(self):
        at_epoch(self.inference, 0, "mixed")
        check_cost(self.cost)

    def sides(
        self,
        model: AbstractLayeredModel,
        visible: Float[Array, "batch visible"],
        *,
        key: PRNGKeyArray,
        epoch: Int[Array, ""],
    ) -> Phases:
        inference = at_epoch(self.inference, epoch, "mixed")
        positive = posterior(model, visible, inference)
        negative = inference.statistics(augmented(model, visible, self.cost))
        rival = negative.units.visible
        margin = self.cost(rival, visible).sum(-1) - free_energy(model, rival, inference)
        loss = (margin + free_energy(model, visible, inference)).mean()
        return Phases(positive, negative, loss)

    def decoder(self, epoch: int = 0) -> AbstractInference:
        """The inference of that epoch: marginal MAP."""
        return at_epoch(self.inference, epoch, "mixed")
