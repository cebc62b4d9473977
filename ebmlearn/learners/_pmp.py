from typing import Any, ClassVar, get_args, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .. import _checks
from ..inference import AbstractInference, MeanField, Statistics
from ..inference._posterior import (
    is_closed,
    observed_statistics,
    posterior,
    Seen,
    seen_statistics,
)
from ..models import AbstractLayeredModel, CRBM
from ..models._graph import AbstractGraphModel
from ..samplers import PMP, PMPInfo, PMPState
from ..samplers._base import as_layers
from ..samplers._sweep import given_even
from ._base import AbstractContrastive, Phases
from ._cost import free_energy


Hidden = Literal["sampled", "exact"]
# Samples whose messages still change by more than this have not settled.
_SETTLED = 1e-3


class PMPLearner(AbstractContrastive):
    """Learning with perturb-and-max-product samples on both sides (Lázaro-Gredilla, Dedieu & George
    2021, Algorithm 1): of the hidden units given the data, with the visible ones held, and of the
    whole model.

    What it learns are the parameters for which samples of [`ebmlearn.PMP`][] look like the data.
    They are not those of maximum likelihood: another sampler would draw something else from them.

    !!! example

        ```python
        learner = ebmlearn.PMPLearner(ebmlearn.PMP(50))
        ebmlearn.fit(rbm, learner, data, optimizer=optax.sgd(0.01), ...)
        ```

    The loss it reports is the approximate negative log-likelihood of eq. (3), whose gradient it
    follows as far as the samples are maxima.
    """

    sampler: PMP
    num_chains: int | None = eqx.field(static=True)
    hidden: Hidden = eqx.field(static=True)
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(static=True, default=0.0)
    on_graphs: ClassVar[bool] = True

    def __init__(
        self,
        sampler: PMP,
        num_chains: int | None = None,
        hidden: Hidden = "exact",
        centred: bool = False,
        weight_decay: float = 0.0,
    ):
        """**Arguments:**

        - `sampler`: the sampler, and how many sweeps it makes. Below a `renewal` of 1, its noise
          and messages persist from step to step.
        - `num_chains`: how many samples of the model; as many as rows of a batch if not given.
        - `hidden`: `"exact"` replaces samples of hidden units by their probabilities given the
          visible ones, in a DBM those of the odd layers given the even ones: less noise, and what
          the paper's own experiments do. `"sampled"` is Algorithm 1 to the letter. In a graph
          hidden variables are always sampled.
        - `centred`, `weight_decay`: as for [`ebmlearn.CD`][].
        """
        self.sampler = sampler
        self.num_chains = num_chains
        self.hidden = hidden
        self.centred = centred
        self.weight_decay = weight_decay

    def __check_init__(self):
        if not isinstance(self.sampler, PMP):
            got = _checks.describe(self.sampler)
            raise TypeError(f"`sampler` must be a `PMP`, got {got}; `SAP` takes other samplers.")
        if self.num_chains is not None:
            _checks.count("num_chains", self.num_chains)
        elif self.sampler.renewal < 1:
            raise ValueError("`num_chains` must be given where noise persists, got None.")
        _checks.choice("hidden", self.hidden, get_args(Hidden))

    def init(self, model: Any, *, key: PRNGKeyArray) -> PMPState | None:
        """Nothing, or noise and messages that persist."""
        if self.sampler.renewal == 1:
            return None
        if isinstance(model, CRBM):
            raise TypeError(
                "`model` must be no CRBM where noise persists, since each batch is another model,"
                " got a CRBM."
            )
        assert self.num_chains is not None
        return self.sampler.init(model, self.num_chains, key=key)

    def phases(
        self,
        model: Any,
        state: PMPState | None,
        visible: Seen,
        *,
        key: PRNGKeyArray,
        epoch: Int[Array, ""],
    ) -> tuple[Phases, PMPState | None]:
        if isinstance(visible, tuple):
            raise TypeError(
                "`model` must have no label units for max-product, got a"
                f" {type(model).__name__} with some; `SAP` and `TransSAP` train it."
            )
        one, two, three = jax.random.split(key, 3)
        begin = state
        if begin is None:
            own = model.batch_shape != () or self.num_chains is None
            number = visible.shape[0] if own else self.num_chains
            assert number is not None
            begin = self.sampler.init(model, number, key=one)
        end, info = self.sampler.step(model, begin, key=two)
        negative = self._statistics(model, end.units, info)
        positive, data = self._positive(model, visible, three)
        loss = info.perturbed.mean() - data
        return Phases(positive, negative, loss), None if state is None else end

    def _positive(
        self, model: Any, visible: Any, key: PRNGKeyArray
    ) -> tuple[Statistics, Float[Array, ""]]:
        """The statistics of the data, and their mean log-potential with hidden units summed out or,
        where these are sampled, the perturbed maximum over them.
        """
        if isinstance(model, AbstractGraphModel):
            return self._positive_of_graph(model, visible, key)
        # Any inference serves where there is nothing to infer.
        nothing = MeanField(0)
        alone = len(model.unary()) == 1
        if is_closed(model) and (alone or self.hidden == "exact"):
            return posterior(model, visible, nothing), -free_energy(model, visible, nothing).mean()
        one, two = jax.random.split(key)
        rest = [None] * (len(model.unary()) - 1)
        start = model.units((visible.astype(jnp.int32), *rest))
        clamped = model.units((jnp.ones(visible.shape, bool), *rest))
        begin = self.sampler.init(model, visible.shape[0], key=one, start=start, clamped=clamped)
        end, info = self.sampler.step(model, begin, key=two)
        return self._statistics(model, end.units, info), info.perturbed.mean()

    def _positive_of_graph(
        self, model: AbstractGraphModel, rows: Int[Array, "batch variables"], key: PRNGKeyArray
    ) -> tuple[Statistics, Float[Array, ""]]:
        def seen() -> tuple[Statistics, Float[Array, ""]]:
            return seen_statistics(model, rows), -model.energy(rows).mean()

        def sampled() -> tuple[Statistics, Float[Array, ""]]:
            one, two = jax.random.split(key)
            begin = self.sampler.init(model, rows.shape[0], key=one)
            begin = eqx.tree_at(
                lambda s: (s.units, s.clamped),
                begin,
                (jnp.maximum(rows, 0), rows >= 0),
                is_leaf=lambda x: x is None,
            )
            end, info = self.sampler.step(model, begin, key=two)
            return self._statistics(model, end.units, info), info.perturbed.mean()

        return jax.lax.cond((rows >= 0).all(), seen, sampled)

    def _statistics(self, model: Any, units: Any, info: PMPInfo) -> Statistics:
        """The statistics of samples. Those that break a factor have not converged."""
        if isinstance(model, AbstractGraphModel):
            out = seen_statistics(model, units)
        else:
            out = observed_statistics(model, self._layers(model, as_layers(model, units)))
        settled = (info.residual <= _SETTLED) & jnp.isfinite(info.energy)
        iterations = jnp.full(settled.shape, self.sampler.iterations, jnp.int32)
        return eqx.tree_at(
            lambda s: (s.converged, s.iterations, s.residual),
            out,
            (settled, iterations, info.residual),
        )

    def _layers(
        self, model: AbstractLayeredModel, layers: list[Float[Array, "batch _"]]
    ) -> tuple[Float[Array, "batch _"], ...]:
        return given_even(model, layers) if self.hidden == "exact" else tuple(layers)

    def decoder(self, epoch: int = 0) -> AbstractInference:
        """The same max-product without noise."""
        return self.sampler.max_product()
