"""The bridge to PGMax. Import it before you build graphs: it makes PGMax run on recent versions of
JAX and registers the factor groups defined here.
"""

# ruff: noqa: E402
from .. import _extras


_extras.need("ebmlearn.pgmax", "pgmax")

from ._compat import (
    add_type as _add_type,
    clear_caches as clear_caches,
    make_compatible as _make_compatible,
    make_energies_quiet as _make_energies_quiet,
)


_make_compatible()
_make_energies_quiet()

from ._dense_group import (
    CRBMFactorGroup as CRBMFactorGroup,
    pass_rbm_fac_to_var_messages as _pass_rbm,
    RBMFactor as RBMFactor,
    RBMFactorGroup as RBMFactorGroup,
    RBMWiring as RBMWiring,
)
from ._graph_messages import register as _register_messages
from ._graphs import PGMaxGraph as PGMaxGraph, to_pgmax as to_pgmax
from ._grid import (
    geometric_grid as geometric_grid,
    Grid as Grid,
    grid_for as grid_for,
    laguerre_grid as laguerre_grid,
    uniform_grid as uniform_grid,
)
from ._identities import Ids as _Ids, Names as _Names
from ._inferer import MatrixBP as MatrixBP
from ._kinds import NORMALISERS as _NORMALISERS
from ._layout import Constants as _Constants, Kind as _Kind, Layout as _Layout, Wires as _Wires
from ._model import FactorGraphModel as FactorGraphModel
from ._nnbm_group import (
    NNBMFactor as NNBMFactor,
    NNBMFactorGroup as NNBMFactorGroup,
    NNBMWiring as NNBMWiring,
    pass_nnbm_fac_to_var_messages as _pass_nnbm,
)
from ._possible import Possible as _Possible
from ._sites import Sites as _Sites
from ._sparse_tables import Listed as _Listed, Listing as _Listing


_add_type(RBMFactor, _pass_rbm)
_add_type(NNBMFactor, _pass_nnbm)
_register_messages()
# What files of models may hold: see `ebmlearn.save`.
_SAVED = {
    kind.__name__: kind
    for kind in (
        FactorGraphModel, _Wires, _Names, _Ids, _Layout, _Kind, _Constants, _Sites, _Possible,
        _Listed, _Listing, *_NORMALISERS
    )
}  # fmt: skip
