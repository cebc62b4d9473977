from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from .. import _checks
from .._types import AnyArray
from ..inference import AbstractInference
from ..models import AbstractPairwiseModel, CRBM, Layers


def predict(
    model: CRBM | AbstractPairwiseModel,
    features: Shaped[AnyArray, "*batch features"] | None = None,
    *,
    inference: AbstractInference,
) -> Int[Array, "*batch visible"]:
    """The most likely visible units, 0 or 1, as `inference` decodes them.

    - Each unit by its own marginal: `BP(iterations)`, `MeanField(iterations)`, `Exact()`.
    - The visible part of the most likely configuration (MAP): `BP(iterations, product="max")`,
      `Exact("max")` (Ping & Ihler 2017, section 3.3).
    - The most likely visible configuration, hidden units summed out (marginal MAP):
      `BP(iterations, product="mixed")`, `Exact("mixed")`.

    A model is best asked by the inference it was trained with: `learner.predict` does that.

    !!! example

        ```python
        v = ebmlearn.predict(crbm, x, inference=ebmlearn.BP(iterations=20))
        ebmlearn.error_rate(v, truth), ebmlearn.error_rate(v, truth, where=x != truth)
        ```

    **Arguments:**

    - `model`: a CRBM, or a model of its own.
    - `features`: for a CRBM, an array of shape `[*batch, features]`.
    - `inference`: what to decode by.
    """
    if not isinstance(inference, AbstractInference):
        raise TypeError(
            f"`inference` must be an inference such as `BP(iterations=10)`, got {inference!r}."
        )
    if isinstance(model, CRBM):
        if features is None:
            raise ValueError("`features` must be given for a CRBM, got None.")
        model = model.condition(features)
    elif features is not None:
        raise ValueError(f"`features` must be None for a {type(model).__name__}, got an array.")
    decoded = inference(model).decode()
    return decoded.visible if isinstance(decoded, Layers) else decoded.x


def error_rate(
    predicted: Shaped[AnyArray, "*batch units"],
    truth: Shaped[AnyArray, "*batch units"],
    where: Bool[AnyArray, "*batch units"] | None = None,
) -> Float[Array, ""]:
    """The share of units predicted wrongly (the Hamming loss).

    **Arguments:**

    - `predicted`, `truth`: 0 and 1, of one shape.
    - `where`: booleans, which units count. `features != truth` counts those that a corruption has
      changed. NaN if none counts.
    """
    for name, x in (("predicted", predicted), ("truth", truth)):
        if not hasattr(x, "shape"):
            raise TypeError(f"`{name}` must be an array, got {_checks.describe(x)}.")
    _checks.exact_shape("predicted", predicted, truth.shape, "as `truth` has")
    wrong = _as_bits(predicted) != _as_bits(truth)
    if where is None:
        return wrong.mean()
    _checks.exact_shape("where", where, truth.shape, "as `truth` has")
    return (wrong & where).sum() / jnp.asarray(where).sum()


def _as_bits(x: Any) -> Bool[Array, "..."]:
    return jnp.asarray(x).astype(jnp.float32) > 0.5
