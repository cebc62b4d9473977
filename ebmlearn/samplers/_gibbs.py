from typing import Any, NamedTuple

from jaxtyping import Array, Float, PRNGKeyArray

from .. import _checks
from ..models import AbstractLayeredModel
from ._base import AbstractChains, ChainState, masks, start_chains
from ._sweep import sweep


class GibbsInfo(NamedTuple):
    """The energy of each chain after the step."""

    energy: Float[Array, " chains"]


class Gibbs(AbstractChains):
    """Gibbs sampling. A step draws each unit once given all others: a whole layer at once if its
    units are not joined to each other, else one unit at a time.

    In an RBM it draws the hidden units given the visible units, then the visible units given the
    hidden units (block Gibbs). In a DBM it draws all odd layers, then all even layers. Inside a
    layer with few edges it draws groups of unjoined units at once.

    !!! example

        ```python
        samples = ebmlearn.sample(rbm, ebmlearn.Gibbs(), 1000, key=key, num_chains=50, burn_in=100)
        ```
    """

    beta: float | Float[Array, ""] = 1.0

    def __check_init__(self):
        _checks.number("beta", self.beta, 0, float("inf"), "[0, inf)")

    def _start(
        self,
        model: AbstractLayeredModel,
        num_chains: int,
        key: PRNGKeyArray,
        start: Any,
        clamped: Any,
    ) -> ChainState:
        if not model.finite:
            _checks.number("beta", self.beta, 0, float("inf"), "(0, inf)")
        return start_chains(model, num_chains, key, start, clamped)

    def _step(
        self, model: AbstractLayeredModel, state: ChainState, key: PRNGKeyArray
    ) -> tuple[ChainState, GibbsInfo]:
        layers = model.encode(state.units)
        beta = self.beta
        if not isinstance(beta, (int, float)):
            beta = beta.astype(layers[0].dtype).reshape(1, 1)
        else:
            beta = float(beta)
        layers = sweep(model, layers, key, beta, clamp=masks(state.clamped))
        info = GibbsInfo(model.energies(layers))
        return ChainState(model.decode(layers), state.clamped), info


Gibbs.__init__.__doc__ = """**Arguments:**

- `beta`: the inverse temperature; the chains then have the distribution $p(x)^\\beta$, normalised.
"""
