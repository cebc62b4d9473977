import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _checks
from .._types import AnyArray
from ._base import AbstractPairwiseModel
from ._gaussian_rbm import GaussianRBM
from ._graph import AbstractGraphModel


class QueryModel(eqx.Module):
    """A model together with the inference that answers for it: belief propagation of so many
    layers, which [`ebmlearn.QueryTraining`][] trains as one network (Lázaro-Gredilla et al. 2021).

    It holds the parameters of a model in centred form, that of units ±1: with $W = 2 W'$,
    $b = c_v - W' 1$ and $c = c_h - W'^\\top 1$ (their eq. (1)) it is $W'$, $c_v$ and $c_h$ that are
    trained. Beside them there are three numbers:

    - `temperature`: that of the messages, 1 for sum-product, towards 0 max-product.
    - `scale`: what the log-odds of an answer are multiplied by; a likelihood that was told of the
      unit itself is added to that as it is.
    - `evidence`: the log-odds that an observed unit is given.

    Once trained, it is asked like any other model; [`ebmlearn.query`][] needs no inference then.

    !!! example

        ```python
        model = ebmlearn.QueryModel(ebmlearn.RBM.init(visible=64, hidden=50, key=key))
        learner = ebmlearn.QueryTraining(ebmlearn.RandomTargets(0.5))
        model = ebmlearn.fit(model, learner, data, optimizer=optax.adam(1e-2), ...).model
        answer = ebmlearn.query(model, v, observed=mask)
        ```
    """

    centred: Any
    log_temperature: Float[Array, ""] | None
    log_scale: Float[Array, ""]
    log_strength: Float[Array, "*states"] | None
    layers: int = eqx.field(static=True)

    def __init__(
        self,
        model: Any,
        layers: int = 10,
        *,
        temperature: float | None = 1.0,
        scale: float | None = None,
        evidence: float | tuple[float, float] | Float[AnyArray, "..."] | None = None,
    ):
        """**Arguments:**

        - `model`: an RBM, a DBM, a BoltzmannMachine, a SemiRestrictedBM without label units, a
          GaussianRBM, or a graph: a [`ebmlearn.GridMRF`][] or a
          [`ebmlearn.pgmax.FactorGraphModel`][]. It may be untrained.
        - `layers`: how often messages are sent. Where layers of binary units take turns, half of
          the messages of a layer would not reach the answer, and are not computed. A GaussianRBM
          answers an even number of layers by half as many sweeps, units and hidden units in turns,
          which for few layers is another answer than all messages at the same time, as for an odd
          number; with more they agree.
        - `temperature`: where it starts. None is 1 for good, as for a GaussianRBM.
        - `scale`: where it starts: by default 5 for binary units, else 1.
        - `evidence`: where it starts. For binary units a pair, how far the log-odds of an observed
          0 lie below 0 and those of an observed 1 above, by default `(1000, 9.21)`; for graphs, how
          far the scores of the other states lie below that of the observed one, by default 1000. A
          GaussianRBM has none: its evidence is exact.
        """
        binary = isinstance(model, AbstractPairwiseModel)
        gaussian = isinstance(model, GaussianRBM)
        if not (binary or gaussian or isinstance(model, AbstractGraphModel)):
            raise TypeError(
                "`model` must be an RBM, a DBM, a BoltzmannMachine, a SemiRestrictedBM, a"
                f" GaussianRBM, a GridMRF or a FactorGraphModel, got {_checks.describe(model)}."
            )
        if model.batch_shape != ():
            raise ValueError(
                "`model` must be a single one, got biases with batch axes of shape"
                f" {model.batch_shape}."
            )
        if binary and set(model.kinds()) != {"binary"}:
            kind = type(model).__name__
            raise TypeError(f"`model` must have binary units alone, got a {kind} with label units.")
        _checks.count("layers", layers)
        dtype = model.unary()[0].dtype
        for name, x in (("temperature", temperature), ("scale", scale)):
            if x is not None:
                _positive(name, x, dtype)
        if gaussian and (temperature not in (None, 1) or evidence is not None):
            name = "evidence" if evidence is not None else "temperature"
            raise ValueError(f"`{name}` must not be given for a GaussianRBM, got {locals()[name]}.")
        scale = (5.0 if binary else 1.0) if scale is None else scale
        self.centred = _centred(model) if binary else model
        fixed = gaussian or temperature is None
        self.log_temperature = None if fixed else jnp.log(jnp.asarray(temperature, dtype))
        self.log_scale = jnp.log(jnp.asarray(scale, dtype))
        self.log_strength = None if gaussian else _log_strength(evidence, binary, dtype)
        self.layers = int(layers)

    @property
    def temperature(self) -> Float[Array, ""] | float:
        """The temperature of the messages."""
        return 1.0 if self.log_temperature is None else jnp.exp(self.log_temperature)

    @property
    def scale(self) -> Float[Array, ""]:
        """What the log-odds of an answer are multiplied by."""
        return jnp.exp(self.log_scale)

    @property
    def evidence(self) -> Float[Array, "*states"] | None:
        """How far evidence moves the log-odds of what is observed: of 0 and of 1, or of graphs one
        number.
        """
        return None if self.log_strength is None else jnp.exp(self.log_strength)

    def to_model(self) -> Any:
        """The plain model, without the three numbers: what [`ebmlearn.BP`][] and samplers take. It
        is a worse model of the data than maximum likelihood would give; its answers by another
        inference are worse too.
        """
        plain = isinstance(self.centred, AbstractPairwiseModel)
        return _uncentred(self.centred) if plain else self.centred

    def trained(self) -> "QueryModel":
        """Booleans in the place of arrays: of those that the plain model does not want trained,
        False.
        """
        out = jax.tree.map(lambda _: True, self)
        if not hasattr(self.centred, "trained"):
            return out
        return eqx.tree_at(lambda model: model.centred, out, self.centred.trained())

    def project(self) -> "QueryModel":
        """The model with its parameters made what they must be, where the plain model asks for
        that.
        """
        if not hasattr(self.centred, "project"):
            return self
        return eqx.tree_at(lambda model: model.centred, self, self.centred.project())


def _positive(name: str, x: Any, dtype: Any) -> None:
    """Raises unless a number is positive, in a dtype too."""
    _checks.number(name, x, 0, math.inf, "(0, inf)")
    if _checks.is_concrete(x) and not 0 < float(np.asarray(x, dtype)) < math.inf:
        raise ValueError(f"`{name}` must lie in (0, inf) as {dtype}, got {float(x)}.")


def _log_strength(evidence: Any, binary: bool, dtype: Any) -> Float[Array, "*states"]:
    if not binary:
        evidence = 1000.0 if evidence is None else evidence
        _positive("evidence", evidence, dtype)
        return jnp.log(jnp.asarray(evidence, dtype))
    pair: Any = (1000.0, 9.21) if evidence is None else evidence
    shape = getattr(pair, "shape", None)
    if shape == (2,):
        pair = tuple(pair)
    elif isinstance(pair, (int, float)) or shape == ():
        pair = (pair, pair)
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        got = _checks.describe(evidence)
        raise TypeError(f"`evidence` must be a pair of numbers, of 0 and of 1, got {got}.")
    for k, x in enumerate(pair):
        _positive(f"evidence[{k}]", x, dtype)
    return jnp.log(jnp.stack([jnp.asarray(x, dtype) for x in pair]))


def _centred(model: AbstractPairwiseModel) -> AbstractPairwiseModel:
    """The parameters in centred form, in a module of the same kind."""
    return _times(model.uncentred(_offsets(model, -0.5)), 0.5)


def _uncentred(centred: AbstractPairwiseModel) -> AbstractPairwiseModel:
    """The model whose parameters in centred form these are."""
    plain = _times(centred, 2.0)
    return plain.uncentred(_offsets(plain, 0.5))


def _times(model: Any, factor: float) -> Any:
    """The model with its weights times a number."""
    return jax.tree.map(lambda x: x * jnp.asarray(factor, x.dtype) if x.ndim == 2 else x, model)


def _offsets(model: AbstractPairwiseModel, value: float) -> tuple[Array, ...]:
    return tuple(jnp.full_like(bias, value) for bias in model.unary())
