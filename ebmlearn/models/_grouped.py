"""What models whose groups users name in dictionaries have in common."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .. import _checks
from .._sentinels import EXCLUDED, LEAST
from .._types import AnyArray, Batch
from ..units import AbstractUnits
from ._base import AbstractPlainModel, refuse
from ._energy import EnergyModel
from ._observed import rows_by_group


class AbstractGrouped(eqx.Module):
    """A model of groups of binary or categorical units, which users name in dictionaries, and any
    of which may be observed or hidden.
    """

    grouped: ClassVar[bool] = True
    hint: ClassVar[str] = "take `BP` or `Exact`, `Gibbs` or `PMP` to sample, `MLE` to train it"

    def energy(self, states: PyTree) -> Float[Array, "*batch"]:
        """The energy of configurations, infinite where a factor or the evidence excludes one.

        **Arguments:**

        - `states`: from groups of variables to states `[*batch, *shape]`, of all groups; or the
          states of all variables, `[*batch, variables]`.
        """
        model: Any = self
        rows = jnp.asarray(self.rows(states, "states"))
        if _checks.is_concrete(rows) and bool((rows < 0).any()):
            raise ValueError("`states` must hold a state of each variable, got some of them.")
        return _energies(model, rows.reshape(-1, rows.shape[-1])).reshape(rows.shape[:-1])

    def rows(self, data: Batch | PyTree, name: str = "data") -> Int[AnyArray, "*batch variables"]:
        """Observed states as one array, in the order of the variables.

        **Arguments:**

        - `data`: from groups to states `[*batch, *shape]`, integers or booleans, -1 where not
          known; or an array as returned here, or samples.

        **Returns:**

        An array `[*batch, variables]`, -1 where a variable is not observed.
        """
        model: Any = self
        return rows_by_group(model, data, name)

    @property
    def num_states(self) -> Int[np.ndarray, " variables"]:
        """The number of states of each variable."""
        model: Any = self
        return np.asarray(model.variables.counts, np.int64)

    @property
    def num_variables(self) -> int:
        """The number of variables."""
        return len(self.num_states)

    def as_energy(self) -> EnergyModel:
        """The same distribution as an [`ebmlearn.EnergyModel`][], whose units are the groups of
        variables by name: `x`, or `x_0`, `x_1` and so on, of an [`ebmlearn.GridMRF`][] `state` and
        the names of its channels. NumPyro's kernels and distributions take it. Samplers are faster
        on the graph itself.
        """
        model: Any = self
        reason = model.turns.no_moves()
        if reason is not None:
            refuse(model, "let each variable change alone to be an energy", reason)
        units = model.variables.by_name
        return EnergyModel(_Energy(model), units["x"] if model.names == ("x",) else units)


class _Energy(eqx.Module):
    """The energy of a model as a function of internal states, linear in those of each unit."""

    model: Any

    def __call__(self, states: Any) -> Float[Array, ""]:
        parts = states.values() if isinstance(states, dict) else [states]
        own = {k: x.reshape(-1) for k, x in zip(self.model.names, parts, strict=True)}
        out = jnp.zeros((), self.model.dtype)
        for bias, x in zip(self.model.unary(), own.values(), strict=True):
            out = out - (jnp.maximum(bias, EXCLUDED) * x).sum()
        for factor in self.model.factors("max"):
            out = out + factor.energy(own)
        return out


@eqx.filter_jit
def _energies(
    model: AbstractPlainModel, rows: Int[Array, "rows variables"]
) -> Float[Array, " rows"]:
    assert model.turns is not None
    return model.energies(model.turns.layers(rows))


def where_there(units: AbstractUnits, bias: Float[Array, " _"]) -> Float[Array, " _"]:
    """Biases of units that may have fewer states than others: the rest of their states cannot be
    taken.
    """
    own: Any = units
    if min(own.numbers, default=own.number) == own.number:
        return bias
    there = np.arange(own.number)[None] < np.asarray(own.numbers)[:, None]
    return jnp.where(there.reshape(-1), bias, jnp.asarray(LEAST, bias.dtype))
