from typing import get_args, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .. import _checks
from ..inference import AbstractInference, MeanField
from ..inference._posterior import observed_statistics, posterior
from ..models import AbstractLayeredModel
from ..samplers._sweep import at_random, given_even, start_even, sweep
from ._base import AbstractMemoryless, at_epoch, Inference, Phases


Start = Literal["data", "random"]


class CD(AbstractMemoryless):
    """Contrastive divergence, CD-k (Hinton 2002): the model's expectation from a Gibbs chain of `k`
    sweeps, one for each instance, with probabilities of the hidden units at its end.

    In a CRBM a random start serves better than the data (Mnih et al. 2011; Ping & Ihler 2017). In a
    DBM the chain's hidden layers start from what the inference says given the visible units.

    !!! example

        ```python
        ebmlearn.CD(10, start="random")
        ```
    """

    k: int = eqx.field(static=True)
    start: Start = eqx.field(static=True)
    inference: Inference
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(static=True, default=0.0)

    def __init__(
        self,
        k: int = 1,
        start: Start = "data",
        inference: Inference | None = None,
        centred: bool = False,
        weight_decay: float = 0.0,
    ):
        """**Arguments:**

        - `k`: how many sweeps.
        - `start`: `"data"`, or `"random"`: every unit 0 or 1 with probability one half, Gaussian
          ones as they are where all hidden units are 0.
        - `inference`: what to predict by, and in a DBM what finds the hidden units given the
          visible ones. Mean field if not given, as in the paper.
        - `centred`: follow the gradient of the centred energy instead. It is meant for plain
          gradient descent: Adam, which rescales each parameter, would undo it.
        - `weight_decay`: the strength of a penalty $\\tfrac12 \\lambda |W|^2$ on all weights.
        """
        self.k = k
        self.start = start
        self.inference = MeanField(50, tol=1e-3) if inference is None else inference
        self.centred = centred
        self.weight_decay = weight_decay

    def __check_init__(self):
        _checks.count("k", self.k)
        _checks.choice("start", self.start, get_args(Start))
        at_epoch(self.inference, 0, "sum")

    def sides(
        self,
        model: AbstractLayeredModel,
        visible: Float[Array, "batch visible"],
        *,
        key: PRNGKeyArray,
        epoch: Int[Array, ""],
    ) -> Phases:
        positive = posterior(model, visible, at_epoch(self.inference, epoch, "sum"))
        first, rest = jax.random.split(key)
        layers = jax.tree.leaves(positive.units)
        if self.start == "random":
            keys = jax.random.split(first, len(layers))
            number = visible.shape[0]
            layers = [at_random(model, k, number, keys[k]) for k in range(len(layers))]
        layers = start_even(model, layers, first)
        layers = chain(model, layers, self.k, rest)
        negative = observed_statistics(model, given_even(model, layers))
        return Phases(positive, negative, jnp.asarray(jnp.nan, visible.dtype))

    def decoder(self, epoch: int = 0) -> AbstractInference:
        """Mean field, unless another inference was given."""
        return at_epoch(self.inference, epoch, "sum")


def chain(
    model: AbstractLayeredModel, layers: list[Float[Array, "batch _"]], k: int, key: PRNGKeyArray
) -> list[Float[Array, "batch _"]]:
    """Runs `k` sweeps of block Gibbs sampling."""
    keys = jax.random.split(key, k)
    return jax.lax.fori_loop(0, k, lambda i, layers: sweep(model, layers, keys[i]), layers)
