from ._base import (
    AbstractFree as AbstractFree,
    AbstractModel as AbstractModel,
    AbstractPlainModel as AbstractPlainModel,
    AbstractSymmetric as AbstractSymmetric,
    with_inside as with_inside,
)
from ._block import Block as Block
from ._boltzmann import BoltzmannMachine as BoltzmannMachine
from ._copositive import copositivity as copositivity
from ._dbm import DBM as DBM
from ._energy import EnergyModel as EnergyModel
from ._factor_model import FactorModel as FactorModel
from ._gaussian_rbm import GaussianRBM as GaussianRBM
from ._graph import AbstractGraphModel as AbstractGraphModel
from ._grid_mrf import GridMRF as GridMRF
from ._groups import Groups as Groups
from ._layered import LayeredModel as LayeredModel
from ._layered_base import AbstractLayeredModel as AbstractLayeredModel
from ._named_base import AbstractNamedModel as AbstractNamedModel, states_of as states_of
from ._names import Layers as Layers, Units as Units
from ._nnbm import NNBM as NNBM
from ._problem import (
    AbstractProblem as AbstractProblem,
    each as each,
    held_at as held_at,
    Instance as Instance,
)
from ._query_model import QueryModel as QueryModel
from ._rbm import CRBM as CRBM, RBM as RBM
from ._require import (
    refuse as refuse,
    require as require,
    require_chains as require_chains,
    require_discrete as require_discrete,
    require_fields as require_fields,
    require_layers as require_layers,
    require_model as require_model,
    require_numbered as require_numbered,
    require_possible as require_possible,
    require_single as require_single,
)
from ._semi_restricted import SemiRestrictedBM as SemiRestrictedBM
from ._stack import Stack as Stack
from ._statistics import Statistics as Statistics
from ._table_model import ByTable as ByTable, TableModel as TableModel
from ._turns import AbstractTurns as AbstractTurns
