import abc
from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num, PyTree

from .._types import AnyArray
from ..models import AbstractLayeredModel, Layers, Units
from ..models._graph import AbstractGraphModel
from ._graph import pose


Evidence = Num[AnyArray, "*#batch units"] | Bool[AnyArray, "*#batch units"] | Mapping
Observed = Bool[AnyArray, "*#batch units"] | Mapping


class AbstractBeliefs(eqx.Module):
    """What an inference says about a model, for each instance of the batch.

    `log_odds` holds one number a unit, named as the units of the model: `log_odds.visible` and
    `log_odds.hidden`, or `log_odds.x`. The same names on the beliefs themselves give probabilities.
    Whether the inference converged is never hidden: see `converged`, `iterations`, `residual`.
    """

    log_odds: eqx.AbstractVar[Any]
    converged: eqx.AbstractVar[Bool[Array, "*batch"]]
    iterations: eqx.AbstractVar[Int[Array, "*batch"]]
    residual: eqx.AbstractVar[Float[Array, "*batch"]]

    @property
    @abc.abstractmethod
    def pairwise(self) -> Any:
        """The belief that both ends of an edge are 1, shaped as the weights of the model. Computed
        at each access.
        """

    @property
    @abc.abstractmethod
    def log_partition(self) -> Float[Array, "*batch"]:
        """The estimate of log Z, given the evidence if there was any. Computed at each access."""

    @abc.abstractmethod
    def decode(self) -> Any:
        """The most likely states, 0 or 1: of each unit, or of all of them together if the
        inference maximises.
        """

    @property
    def visible(self) -> Float[Array, "*batch visible"]:
        """Probabilities of 1 of the visible units."""
        return jax.nn.sigmoid(self._units("visible", Layers).visible)

    @property
    def hidden(self) -> Any:
        """Probabilities of 1 of the hidden units: an array, or a tuple of arrays for a DBM."""
        return jax.tree.map(jax.nn.sigmoid, self._units("hidden", Layers).hidden)

    @property
    def x(self) -> Float[Array, "*batch n"]:
        """Probabilities of 1 of the units of a model without layers."""
        return jax.nn.sigmoid(self._units("x", Units).x)

    def _units(self, name: str, kind: type) -> Any:
        if not isinstance(self.log_odds, kind):
            have = " and ".join(f"`{field}`" for field in self.log_odds._fields)
            raise AttributeError(
                f"these beliefs have no `{name}`: the units of the model are {have}"
            )
        return self.log_odds


class Statistics(eqx.Module):
    """Expected statistics of a batch, as learners need them: `units` for each instance, `pairwise`
    averaged over the batch. They are the gradient of `log_partition`; what an inference maximises
    is 0 or 1.
    """

    units: Any
    pairwise: Any
    converged: Bool[Array, "*batch"]
    iterations: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]


class AbstractInference(eqx.Module):
    """Turns a model into beliefs about its units."""

    on_nonnegative: ClassVar[bool] = False
    on_gaussian: ClassVar[bool] = False

    def __call__(
        self,
        model: AbstractLayeredModel | AbstractGraphModel,
        evidence: Evidence | None = None,
        observed: Observed | None = None,
    ) -> Any:
        """Beliefs about all units of all instances of `model`.

        **Arguments:**

        - `model`: an RBM, a DBM, a BoltzmannMachine or a SemiRestrictedBM, leading axes of whose
          biases are a batch; or a [`ebmlearn.pgmax.FactorGraphModel`][]. [`ebmlearn.Exact`][]
          takes a small NNBM as well, and `NaiveMeanField`, `TAP`, `SusP` and `ISusP` nothing else.
          [`ebmlearn.BP`][] and `Exact` take a GaussianRBM too.
        - `evidence`: what is known of the visible units (`x` of a BoltzmannMachine): 0 and 1 fix a
          unit, a number between them is the likelihood of 1 against 0. Of a GaussianRBM, real
          numbers. Of a graph, a dictionary from groups of variables to their states
          `[*batch, *shape]`, integers, -1 where not known; or to the likelihoods of all states
          `[*batch, *shape, states]`, floating-point numbers.
        - `observed`: booleans, which entries of `evidence` count. Of a graph, a dictionary from
          groups to them; without it, all entries count.

        Leading axes of `evidence` and `observed` are a batch too, and broadcast with the model's.

        **Returns:**

        [`ebmlearn.AbstractBeliefs`][], or [`ebmlearn.AbstractGraphBeliefs`][] of a graph,
        [`ebmlearn.GaussianBeliefs`][] of a GaussianRBM, [`ebmlearn.NNBMBeliefs`][] of an NNBM.
        """
        return self._beliefs(pose(model, evidence, observed, self.on_nonnegative, self.on_gaussian))

    def statistics(
        self,
        model: AbstractLayeredModel | AbstractGraphModel,
        evidence: Evidence | None = None,
        observed: Observed | None = None,
    ) -> Statistics:
        """Expected statistics, without keeping anything of the size of the batch times the weights.
        The arguments are those of a call.
        """
        return self._statistics(pose(model, evidence, observed, self.on_nonnegative))

    @abc.abstractmethod
    def _beliefs(self, problem: Any) -> Any:
        """Does the work of a call."""

    @abc.abstractmethod
    def _statistics(self, problem: Any) -> Statistics:
        """Does the work of `statistics`."""


def most_likely(log_odds: PyTree[Float[Array, "..."]]) -> Any:
    """1 where the log-odds are positive, as integers."""
    return jax.tree.map(lambda x: (x > 0).astype(jnp.int32), log_odds)
