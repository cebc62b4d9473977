from dataclasses import KW_ONLY
from typing import ClassVar, get_args, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .. import _checks
from .._types import Key
from ..inference import AbstractInference, NUMBER
from ..models import (
    AbstractModel,
    AbstractPlainModel,
    complete,
    complete_energies,
    is_closed,
    require_binary,
    require_chains,
    Statistics,
    statistics,
    summed,
)
from ..samplers import start_chains, sweep
from ._base import (
    AbstractContrastive,
    AbstractInferring,
    AbstractMemoryless,
    as_schedule,
    Inference,
    mean_field,
    Phases,
    require_reached,
    Told,
)


Start = Literal["data", "random"]


class CD(AbstractInferring, AbstractContrastive):
    """Contrastive divergence, CD-k (Hinton 2002). The expectation under the model is estimated by a
    Gibbs chain of `k` sweeps for each instance, with the probabilities of the hidden units at its
    end.

    For a CRBM, start the chain at random (Mnih et al. 2011; Ping & Ihler 2017). In a DBM the hidden
    layers start from their beliefs given the visible units.

    !!! example

        ```python
        ebmlearn.CD(10, start="random")
        ```

    **Arguments:**

    - `k`: the number of sweeps.
    - `start`: `"data"` or `"random"`. At random, discrete units are uniform, and real units are
      drawn as if all other units were 0.
    - `inference`: the inference of the hidden units given the visible ones, for models without a
      formula for them, such as a DBM. Mean field by default.
    - `centred`: follow the gradient of the centred energy instead. Use it with plain gradient
      descent: Adam rescales each parameter and undoes it.
    - `weight_decay`: the strength of a penalty $\\tfrac12 \\lambda |W|^2$ on all weights.
    """

    k: int = eqx.field(static=True, default=1)
    _: KW_ONLY
    start: Start = eqx.field(static=True, default="data")
    inference: Inference = eqx.field(default_factory=mean_field, converter=as_schedule)
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(metadata=NUMBER, default=0.0)
    maximises: ClassVar[str] = "nothing"

    def __check_init__(self):
        _checks.count("k", self.k)
        _checks.choice("start", self.start, get_args(Start))

    def init(self, model: AbstractModel, *, key: Key) -> None:
        """Nothing: this learner carries no state."""
        require_reached(model, self)

    def phases(
        self, told: Told, state: None, *, key: PRNGKeyArray, epoch: Int[Array, ""]
    ) -> tuple[Phases, None]:
        model = require_chains(told.model, "CD")
        told.no_gaps(self)
        positive = told.posterior(self.decoder(epoch))
        first, rest = jax.random.split(key)
        if self.start == "random":
            layers = model.encode(start_chains(model, told.rows, first, None, None).units)
        else:
            layers = _near(model, told, positive, first)
        keys = jax.random.split(rest, self.k)
        layers = jax.lax.fori_loop(0, self.k, lambda i, x: sweep(model, x, keys[i]), layers)
        negative = statistics(model, layers, summed(model))
        return Phases(positive, negative), None


def _near(
    model: AbstractPlainModel, told: Told, positive: Statistics, key: PRNGKeyArray
) -> list[Float[Array, "rows _"]]:
    """States for chains that start from the data. Hidden units are drawn given the others, except
    for those that a sweep begins with; of units that take turns, each is drawn by its probabilities
    given the data.
    """
    layers = model.variables.hidden_in(positive.units)
    keys, masks = jax.random.split(key, len(layers)), told.observed or (None,) * len(layers)
    for k, (units, mask, own) in enumerate(zip(model.layers, masks, keys, strict=True)):
        if told.seen[k] is None and k not in summed(model):
            layers[k] = units.sample(model.field(layers, k), own)
        elif mask is not None:
            there = jnp.repeat(mask, layers[k].shape[-1] // units.size, axis=-1)
            drawn = units.sample(units.natural(layers[k]), own)
            layers[k] = jnp.where(there, layers[k], drawn)
    if model.turns is None or told.observed is None:
        return layers
    rows, sure = model.turns.rows(layers), jnp.concatenate(told.observed, -1)  # pyright: ignore
    own = jax.random.fold_in(key, len(layers))
    return model.turns.layers(model.turns.completed(rows, sure, own))


class PercLoss(AbstractMemoryless, AbstractContrastive):
    """CD-PercLoss (Mnih, Larochelle & Hinton 2011): a stochastic search for visible units that the
    model prefers to the data, and a perceptron step away from them.

    A chain of `k` Gibbs sweeps starts from the model without hidden units; for a CRBM this is its
    logistic regression. Each sweep proposes the most likely visible units given the hidden units of
    the chain, and $\\hat v$ is the proposal of lowest free energy. The loss of an instance is
    $\\max(0, F(v) - F(\\hat v))$; it is zero if no proposal is better than the data.

    !!! example

        ```python
        from ebmlearn import datasets

        truth = datasets.digits().train.x
        noisy = datasets.flip(truth, 0.1, key=0)
        crbm = ebmlearn.CRBM.init(64, 8, 64)
        ebmlearn.fit(crbm, ebmlearn.PercLoss(5), (noisy, truth), epochs=2)
        ```

    **Arguments:**

    - `k`: the number of sweeps.
    - `centred`, `weight_decay`: as for [`ebmlearn.CD`][].
    """

    k: int = eqx.field(static=True, default=10)
    _: KW_ONLY
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(metadata=NUMBER, default=0.0)

    def __check_init__(self):
        _checks.count("k", self.k)

    def phases(
        self, told: Told, state: None, *, key: PRNGKeyArray, epoch: Int[Array, ""]
    ) -> tuple[Phases, None]:
        model = require_binary(told.model, "PercLoss")
        told.one_visible(self)
        if not is_closed(model):
            kind = _checks.article(type(model).__name__)
            raise ValueError(f"`model` must have a closed free energy, got {kind}.")
        visible, *hidden = told.seen
        assert visible is not None
        found, lowest = _search(model, told.rows, self.k, key)
        data = complete_energies(model, told.seen)
        # Where nothing better was found both sides are the same, and cancel.
        better = lowest < data
        rival = jnp.where(better[:, None], found, visible)
        loss = jnp.maximum(data - lowest, jnp.zeros_like(data)).mean()
        return Phases(complete(model, told.seen), complete(model, (rival, *hidden)), loss), None

    def decoder(self, epoch: int | Int[Array, ""] = 0) -> AbstractInference:
        """Mean field, as in the paper."""
        return mean_field()


def _search(
    model: AbstractPlainModel, size: int, k: int, key: PRNGKeyArray
) -> tuple[Float[Array, "batch visible"], Float[Array, " batch"]]:
    """The visible units of lowest free energy, among the most likely ones given the hidden units of
    each sweep and at the start, and that free energy.
    """
    first, rest = jax.random.split(key)
    keys = jax.random.split(rest, k)
    units = model.layers[0]
    bias = model.unary()[0]
    field = jnp.broadcast_to(bias, (size, bias.shape[-1]))
    hidden = (None,) * (len(model.layers) - 1)
    layers = model.variables.filled((units.sample(field, first), *hidden), model.dtype)
    found = units.mode(field)

    def one(i: Int[Array, ""], carry: tuple) -> tuple:
        layers, found, lowest = carry
        layers = sweep(model, layers, keys[i])
        candidate = units.mode(model.field(layers, 0))
        value = complete_energies(model, (candidate, *hidden))
        found = jnp.where((value < lowest)[:, None], candidate, found)
        return layers, found, jnp.minimum(value, lowest)

    start = layers, found, complete_energies(model, (found, *hidden))
    _, found, lowest = jax.lax.fori_loop(0, k, one, start)
    return found, lowest
