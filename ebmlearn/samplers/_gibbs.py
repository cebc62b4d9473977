from dataclasses import KW_ONLY
from typing import ClassVar, NamedTuple

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from .. import _checks
from ..models import AbstractModel, AbstractPlainModel, require_chains
from ._base import AbstractSingle, ChainState
from ._sweep import sweep


class GibbsInfo(NamedTuple):
    """The energy of each chain after the step.

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(16, 8)
        _, info = ebmlearn.sample_with_info(rbm, ebmlearn.Gibbs(), 1000, num_chains=10)
        info.energy.shape  # (100, 10)
        ```

    **Fields:**

    - `energy`: the energy.
    """

    energy: Float[Array, " chains"]


class Gibbs(AbstractSingle):
    """Gibbs sampling. A step draws each unit once given all others: a whole layer at once if its
    units are not joined to each other, else one unit at a time.

    In an RBM it draws the hidden units given the visible ones, then the visible units given these
    (block Gibbs); in a DBM all odd layers, then all even ones; and inside a layer with few
    edges all units of which no two are joined. In an [`ebmlearn.EnergyModel`][] it draws a unit at
    a time, by the energies of all its states.

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(16, 8)
        samples = ebmlearn.sample(rbm, ebmlearn.Gibbs(), 1000, num_chains=50, burn_in=100)
        ```

    **Arguments:**

    - `beta`: the inverse temperature; the chains then have the distribution $p(x)^\\beta$,
      normalised.
    - `metropolised`: draw units that take turns by Metropolised Gibbs (Liu 1996), which proposes
      another state than the present one. Binary and categorical units then change more often, so
      that fewer sweeps are worth an independent draw. Layers that are drawn at once, as in an RBM,
      and real units are drawn as before.
    """

    beta: float | Float[Array, ""] = 1.0
    _: KW_ONLY
    metropolised: bool = eqx.field(static=True, default=False)
    renews: ClassVar[bool] = True

    def __check_init__(self):
        _checks.number("beta", self.beta, 0, float("inf"), "[0, inf)")
        if not isinstance(self.metropolised, bool):
            got = _checks.describe(self.metropolised)
            raise TypeError(f"`metropolised` must be a boolean, got {got}.")

    def _check(self, model: AbstractModel) -> None:
        if not require_chains(model, "Gibbs").finite:
            _checks.number("beta", self.beta, 0, float("inf"), "(0, inf)")

    def _step(
        self, model: AbstractPlainModel, state: ChainState, key: PRNGKeyArray
    ) -> tuple[ChainState, GibbsInfo]:
        layers = model.encode(state.units)
        beta = self.beta
        if not isinstance(beta, (int, float)):
            beta = beta.astype(layers[0].dtype).reshape(1, 1)
        else:
            beta = float(beta)
        clamp = model.variables.masks(state.clamped)
        layers = sweep(model, layers, key, beta, clamp=clamp, metropolised=self.metropolised)
        info = GibbsInfo(model.energies(layers))
        return ChainState(model.decode(layers), state.clamped), info
