from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _checks
from ..estimate._nce import as_rows
from ..inference._posterior import Seen
from ..models import AbstractLayeredModel, CRBM, QueryModel, SemiRestrictedBM
from ..models._graph import AbstractGraphModel


def trainable(model: Any, learner: Any) -> None:
    """Raises for a model that brings an inference of its own, which others do not train."""
    if isinstance(model, QueryModel):
        raise TypeError(
            f"`model` must be `model.to_model()` for {type(learner).__name__}, got a QueryModel,"
            " which `QueryTraining` trains."
        )


def check(model: Any, batch: Any, name: str = "batch") -> None:
    """Raises unless `batch` is made for `model`: shapes always, values where they are known."""
    if isinstance(model, QueryModel):
        as_rows(model, batch, name)
    elif isinstance(model, CRBM):
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            got = f"{len(batch)} arrays" if isinstance(batch, (tuple, list)) else "one array"
            if not hasattr(batch, "shape") and not isinstance(batch, (tuple, list)):
                got = _checks.describe(batch)
            raise ValueError(
                f"`{name}` must be the pair (features, visible) for a CRBM, got {got}."
            )
        features, visible = batch
        _array(f"{name}[0]", features, model.num_features, "[rows, features]")
        _array(f"{name}[1]", visible, model.num_visible, "[rows, visible]")
        if features.shape[0] != visible.shape[0]:
            raise ValueError(
                f"`{name}` must hold as many rows of features as of visible units, got"
                f" {features.shape[0]} and {visible.shape[0]}."
            )
        _checks.finite_rows(f"{name}[0]", features)
        _checks.binary_rows(f"{name}[1]", visible)
    elif isinstance(model, AbstractGraphModel):
        rows = model.rows(batch, name)
        _checks.rank(name, rows, 2, "[rows, variables], or groups of them with a leading axis")
    elif isinstance(model, AbstractLayeredModel):
        if model.batch_shape != ():
            raise ValueError(
                "`model` must be a single one to be trained, got biases with batch axes of shape"
                f" {model.batch_shape}; train the CRBM they come from."
            )
        labels = model.num_labels if isinstance(model, SemiRestrictedBM) else 0
        if labels:
            _labelled(name, batch, model.unary()[0].shape[-1], labels)
            return
        if isinstance(batch, (tuple, list)):
            raise ValueError(
                f"`{name}` must be one array of visible units for a {type(model).__name__}, got"
                f" {len(batch)}."
            )
        _array(name, batch, model.unary()[0].shape[-1], "[rows, visible]")
        rows = {"gaussian": _checks.finite_rows, "nonnegative": _checks.nonnegative_rows}
        rows.get(model.kinds()[0], _checks.binary_rows)(name, batch)
    else:
        raise TypeError(
            "`model` must be a CRBM, an RBM, a DBM, a BoltzmannMachine, a SemiRestrictedBM, a"
            f" GaussianRBM, an NNBM or a FactorGraphModel, got {_checks.describe(model)}."
        )


def _labelled(name: str, batch: Any, visible: int, labels: int) -> None:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        got = f"{len(batch)} arrays" if isinstance(batch, (tuple, list)) else "one array"
        raise ValueError(
            f"`{name}` must be the pair (visible, labels) for a model with label units, got {got}."
        )
    x, y = batch
    _array(f"{name}[0]", x, visible, "[rows, visible]")
    _checks.binary_rows(f"{name}[0]", x)
    _checks.labels(f"{name}[1]", y, labels, x.shape[0])


def conditioned(model: Any, batch: Any) -> tuple[Any, Seen]:
    """The model given the features of a batch, and the visible units as floats; with one-hot labels
    where it has label units; of a graph, the states of its variables.
    """
    if isinstance(model, AbstractGraphModel):
        return model, jnp.asarray(model.rows(batch, "batch"))
    if isinstance(model, SemiRestrictedBM) and model.num_labels:
        visible, labels = batch
        dtype = model.weights.dtype
        one_hot = jax.nn.one_hot(jnp.asarray(labels), model.num_labels, dtype=dtype)
        return model, (jnp.asarray(visible).astype(dtype), one_hot)
    if isinstance(model, CRBM):
        features, visible = batch
        return model.condition(features), jnp.asarray(visible).astype(model.weights.dtype)
    return model, jnp.asarray(batch).astype(model.unary()[0].dtype)


def _array(name: str, x: Any, columns: int, meaning: str) -> None:
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise TypeError(f"`{name}` must be an array {meaning}, got {_checks.describe(x)}.")
    _checks.rank(name, x, 2, meaning)
    _checks.trailing(name, x, (columns,), "as the model has units")
    if x.shape[0] == 0:
        raise ValueError(f"`{name}` must hold a row at least, got {_checks.describe(x)}.")
    if not (jnp.issubdtype(x.dtype, jnp.number) or x.dtype == np.bool_) or jnp.issubdtype(
        x.dtype, jnp.complexfloating
    ):
        raise TypeError(f"`{name}` must hold real numbers, got {_checks.describe(x)}.")
