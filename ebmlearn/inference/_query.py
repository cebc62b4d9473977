from jaxtyping import Array, Bool, Float, Num

from .._types import AnyArray
from ..models import AbstractLayeredModel, Layers
from ._base import AbstractInference


def query(
    model: AbstractLayeredModel,
    evidence: Num[AnyArray, "*#batch units"] | Bool[AnyArray, "*#batch units"],
    observed: Bool[AnyArray, "*#batch units"],
    inference: AbstractInference,
) -> Float[Array, "*#batch units"]:
    """The probability that each visible unit is 1, given the observed ones.

    !!! example

        ```python
        answer = ebmlearn.query(rbm, v, observed=mask, inference=ebmlearn.BP(iterations=20))
        ```

    **Arguments:**

    - `model`: an RBM, a DBM, a BoltzmannMachine or a SemiRestrictedBM.
    - `evidence`: 0 and 1 fix a unit, a number between them is the likelihood of 1 against 0. What
      stands at units that are not observed is not looked at.
    - `observed`: booleans, which units are observed. Each row of a batch may have its own.
    - `inference`: for instance [`ebmlearn.BP`][], [`ebmlearn.MeanField`][] or [`ebmlearn.Exact`][].

    **Returns:**

    Probabilities of 1 of the visible units (`x` of a BoltzmannMachine), 0 or 1 where they were
    fixed. To see whether the inference converged, or the hidden units, call
    `inference(model, evidence, observed)`, which takes the same arguments.
    """
    if not isinstance(inference, AbstractInference):
        raise TypeError(
            f"`inference` must be an inference such as `BP(iterations=10)`, got {inference!r}."
        )
    beliefs = inference(model, evidence, observed)
    return beliefs.visible if isinstance(beliefs.log_odds, Layers) else beliefs.x
