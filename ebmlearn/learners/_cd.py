from dataclasses import KW_ONLY
from typing import ClassVar, get_args, Literal

import equinox as eqx
import jax
from jaxtyping import Array, Int, PRNGKeyArray

from .. import _checks
from ..inference import NUMBER
from ..models import require_chains
from ..samplers import start_chains, sweep
from ._base import (
    AbstractContrastive,
    AbstractInferring,
    AbstractMemoryless,
    as_schedule,
    Inference,
    mean_field,
    Phases,
    Told,
)


Start = Literal["data", "random"]


class CD(AbstractMemoryless, AbstractInferring, AbstractContrastive):
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
            layers = model.near(positive.units, first)
        keys = jax.random.split(rest, self.k)
        layers = jax.lax.fori_loop(0, self.k, lambda i, x: sweep(model, x, keys[i]), layers)
        negative = model.sampled_statistics(model.decode(layers), True)
        return Phases(positive, negative), None
