from ._base import (
    AbstractModel as AbstractModel,
    AbstractPlainModel as AbstractPlainModel,
    with_inside as with_inside,
)
from ._block import Block as Block
from ._boltzmann import BoltzmannMachine as BoltzmannMachine
from ._chains import chain_states as chain_states
from ._copositive import copositivity as copositivity
from ._dbm import DBM as DBM
from ._energy import EnergyModel as EnergyModel
from ._factor_base import AbstractFactorModel as AbstractFactorModel, excludes as excludes
from ._factor_model import FactorModel as FactorModel
from ._gaussian_rbm import GaussianRBM as GaussianRBM
from ._grid_mrf import GridMRF as GridMRF
from ._groups import (
    as_flat as as_flat,
    as_rows as as_rows,
    cut_states as cut_states,
    cut_units as cut_units,
    Groups as Groups,
    Sizes as Sizes,
)
from ._layered import LayeredModel as LayeredModel
from ._layered_base import AbstractLayeredModel as AbstractLayeredModel
from ._listed import told as told, whole_stacks as whole_stacks
from ._named_base import AbstractNamedModel as AbstractNamedModel, states_of as states_of
from ._names import by_layer as by_layer, Layers as Layers, Units as Units
from ._nnbm import check_couplings as check_couplings, NNBM as NNBM
from ._problem import (
    AbstractProblem as AbstractProblem,
    AbstractSampled as AbstractSampled,
    each as each,
    held_at as held_at,
    Instance as Instance,
    whole as whole,
)
from ._query_model import QueryModel as QueryModel
from ._rbm import CRBM as CRBM, RBM as RBM
from ._require import (
    refuse as refuse,
    Refused as Refused,
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
from ._sides import two_sides as two_sides
from ._stack import Stack as Stack
from ._statistics import Statistics as Statistics
from ._table_model import ByTable as ByTable, TableModel as TableModel
from ._turns import (
    AbstractTurns as AbstractTurns,
    coloured as coloured,
    put as put,
    taken as taken,
    unless_held as unless_held,
)
