from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree, Shaped

from .. import _checks
from .._types import AnyArray
from ..answers import query, require_inference
from ..inference import AbstractInference
from ..models import (
    AbstractModel,
    AbstractPlainModel,
    complete_energies,
    is_closed,
    require_layers,
)
from ._likelihood import label_scores


@_checks.usage("predict(model, features, inference=BP(10))")
def predict(
    model: AbstractModel,
    features: Shaped[AnyArray, "*batch features"] | None = None,
    *,
    inference: AbstractInference,
) -> PyTree:
    """Predicts the visible units, 0 or 1, by decoding the beliefs of `inference`; for a
    FactorGraphModel, the states of all variables by group. The inference decides what is predicted:

    - Each unit by its own marginal: `BP(iterations)`, `MeanField(iterations)`, `Exact()`.
    - The visible part of the most likely configuration (MAP): `BP(iterations, product="max")`,
      `Exact(product="max")` (Ping & Ihler 2017, section 3.3).
    - The most likely visible configuration with hidden units summed out (marginal MAP):
      `BP(iterations, product="mixed")`, `Exact(product="mixed")`.

    Predict with the inference that the model was trained with; `learner.predict` does so.

    !!! example

        ```python
        from ebmlearn import datasets

        truth = datasets.digits().test.x
        noisy = datasets.flip(truth, 0.1, key=0)
        crbm = ebmlearn.CRBM.init(64, 8, 64)  # visible, hidden, features
        v = ebmlearn.predict(crbm, noisy, inference=ebmlearn.BP(20))
        ebmlearn.error_rate(v, truth), ebmlearn.error_rate(v, truth, where=noisy != truth)
        ```

    **Arguments:**

    - `model`: a CRBM, or any other model.
    - `features`: for a CRBM, an array of shape `[*batch, features]`.
    - `inference`: the inference whose beliefs are decoded.
    """
    require_inference(inference)
    return inference(model.given_features(features)).prediction()


def classify(
    model: AbstractPlainModel,
    visible: Shaped[AnyArray, "rows units"],
    *,
    labels: int | None = None,
    inference: AbstractInference | None = None,
) -> Float[Array, "rows labels"]:
    """The probability of each label given the other visible units, from a joint model of both.
    By default it compares the free energies of all labels, which is exact, and the probabilities
    sum to 1. With `inference`, each label unit has its own marginal.

    !!! example

        ```python
        from ebmlearn import datasets

        images = datasets.digits().test.x
        joint = ebmlearn.RBM.init(64 + 10, 8)  # images, one-hot labels
        ebmlearn.classify(joint, images, labels=10).argmax(-1)
        ```

    **Arguments:**

    - `model`: a SemiRestrictedBM with label units, or a model whose last visible units are
      one-hot labels.
    - `visible`: all visible units except the labels, 0 or 1.
    - `labels`: the number of labels, if they are visible units.
    - `inference`: an inference of the marginals of the label units given the others.
    """
    require_layers(model, "classify")
    if len(model.variables.seen) > 1:
        if labels is not None or inference is not None:
            raise ValueError("`labels` and `inference` must be None for a model with label units.")
        return jax.nn.softmax(label_scores(model, visible, "visible"), axis=-1)
    if labels is None:
        raise ValueError("`labels` must be given for a model without label units, got None.")
    _checks.count("labels", labels)
    units = model.unary()[0].shape[-1]
    if labels >= units:
        raise ValueError(f"`labels` must be fewer than the {units} visible units, got {labels}.")
    _checks.rank("visible", visible, 2, "[rows, units]")
    _checks.trailing("visible", visible, (units - labels,), "the visible units without the labels")
    model.layers[0].check("visible", visible)
    x = jnp.asarray(visible).astype(model.unary()[0].dtype)
    rows = x.shape[0]
    if inference is None:
        if not is_closed(model):
            kind = _checks.article(type(model).__name__)
            raise TypeError(f"`inference` must be given for {kind}, which has no free energy.")
        one_hot = jnp.eye(labels, dtype=x.dtype)

        def score(label: Float[Array, " labels"]) -> Float[Array, " rows"]:
            joined = jnp.concatenate([x, jnp.broadcast_to(label, (rows, labels))], -1)
            hidden = (None,) * (len(model.layers) - 1)
            return -complete_energies(model, (joined, *hidden))

        return jax.nn.softmax(jax.vmap(score, out_axes=1)(one_hot), axis=-1)
    evidence = jnp.concatenate([x, jnp.zeros((rows, labels), x.dtype)], -1)
    observed = jnp.arange(units) < units - labels
    observed = jnp.broadcast_to(observed, (rows, units))
    return query(model, evidence=evidence, observed=observed, inference=inference)[:, -labels:]


def error_rate(
    predicted: Shaped[AnyArray, "*batch units"],
    truth: Shaped[AnyArray, "*batch units"],
    where: Bool[AnyArray, "*batch units"] | None = None,
) -> Float[Array, ""]:
    """The share of wrongly predicted units (the Hamming loss). For labels, use `(y != t).mean()`.

    !!! example

        ```python
        truth = np.array([[0, 1, 1, 0]])
        ebmlearn.error_rate(np.array([[0, 1, 0, 0]]), truth)  # 0.25
        ```

    **Arguments:**

    - `predicted`, `truth`: 0 and 1, of one shape.
    - `where`: booleans, the units to count; `features != truth` counts those that a corruption
      changed. The result is NaN if no unit counts.
    """
    for name, x in (("predicted", predicted), ("truth", truth)):
        if not hasattr(x, "shape"):
            raise TypeError(f"`{name}` must be an array, got {_checks.describe(x)}.")
        _checks.binary_rows(name, x)
    _checks.exact_shape("predicted", predicted, truth.shape, "as `truth` has")
    wrong = _as_bits(predicted) != _as_bits(truth)
    if where is None:
        return wrong.mean()
    _checks.exact_shape("where", where, truth.shape, "as `truth` has")
    if where.dtype != bool:
        raise TypeError(f"`where` must hold booleans, got {_checks.describe(where)}.")
    return (wrong & where).sum() / jnp.asarray(where).sum()


def _as_bits(x: Any) -> Bool[Array, "..."]:
    return jnp.asarray(x).astype(jnp.float32) > 0.5
