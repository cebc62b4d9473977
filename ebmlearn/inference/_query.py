from typing import Any

from ..models import AbstractLayeredModel, Layers
from ..models._graph import AbstractGraphModel
from ._base import AbstractInference, Evidence, Observed


def query(
    model: AbstractLayeredModel | AbstractGraphModel,
    evidence: Evidence,
    observed: Observed | None = None,
    inference: AbstractInference | None = None,
) -> Any:
    """The probability that each visible unit is 1, given the observed ones; of a graph, that of
    each state of each variable.

    !!! example

        ```python
        answer = ebmlearn.query(rbm, v, observed=mask, inference=ebmlearn.BP(iterations=20))
        ```

    **Arguments:**

    - `model`: an RBM, a DBM, a BoltzmannMachine, a SemiRestrictedBM, or a
      [`ebmlearn.pgmax.FactorGraphModel`][], whose evidence is a dictionary: see
      [`ebmlearn.AbstractInference`][].
    - `evidence`: 0 and 1 fix a unit, a number between them is the likelihood of 1 against 0. What
      stands at units that are not observed is not looked at.
    - `observed`: booleans, which units are observed. Each row of a batch may have its own. Only of
      a graph may it be left out.
    - `inference`: for instance [`ebmlearn.BP`][], [`ebmlearn.MeanField`][] or [`ebmlearn.Exact`][].

    **Returns:**

    Probabilities of 1 of the visible units (`x` of a BoltzmannMachine), 0 or 1 where they were
    fixed; of a graph, those of all states, `answer[group]`. To see whether the inference converged,
    or the hidden units, call `inference(model, evidence, observed)`: it takes the same arguments.
    """
    if not isinstance(inference, AbstractInference):
        raise TypeError(
            f"`inference` must be an inference such as `BP(iterations=10)`, got {inference!r}."
        )
    beliefs = inference(model, evidence, observed)
    if isinstance(model, AbstractGraphModel):
        return beliefs.marginals
    return beliefs.visible if isinstance(beliefs.log_odds, Layers) else beliefs.x
