from ._as_tables import stacks_of as stacks_of, told as told, whole_stacks as whole_stacks
from ._base import (
    AbstractModel as AbstractModel,
    AbstractPlainModel as AbstractPlainModel,
    batched as batched,
    families as families,
    fields_of as fields_of,
    is_binary as is_binary,
    is_nonnegative as is_nonnegative,
    only_trained as only_trained,
    refuse as refuse,
    Refused as Refused,
    require_binary as require_binary,
    require_chains as require_chains,
    require_discrete as require_discrete,
    require_fields as require_fields,
    require_layers as require_layers,
    require_model as require_model,
    require_numbered as require_numbered,
    require_plain as require_plain,
    require_possible as require_possible,
    require_single as require_single,
    with_inside as with_inside,
)
from ._boltzmann import BoltzmannMachine as BoltzmannMachine
from ._chains import (
    chain_states as chain_states,
    chains as chains,
    held_states as held_states,
    told_of as told_of,
)
from ._conditional import (
    complete as complete,
    complete_energies as complete_energies,
    expected_energy as expected_energy,
    if_complete as if_complete,
    is_closed as is_closed,
    marginal_energies as marginal_energies,
    Statistics as Statistics,
    statistics as statistics,
    summed as summed,
    without as without,
)
from ._copositive import copositivity as copositivity
from ._dbm import DBM as DBM
from ._energy import EnergyModel as EnergyModel
from ._factor_model import FactorModel as FactorModel
from ._gaussian_rbm import GaussianRBM as GaussianRBM
from ._grid_mrf import GridMRF as GridMRF
from ._grouped import AbstractGrouped as AbstractGrouped, where_there as where_there
from ._layered import LayeredModel as LayeredModel
from ._nnbm import check_couplings as check_couplings, NNBM as NNBM
from ._observed import (
    asked_rows as asked_rows,
    chosen_units as chosen_units,
    has_nan as has_nan,
    Masks as Masks,
    named_types as named_types,
    seen_states as seen_states,
    states_of as states_of,
    Told as Told,
)
from ._problem import (
    AbstractProblem as AbstractProblem,
    each as each,
    each_and_mean as each_and_mean,
    Evidence as Evidence,
    held_at as held_at,
    Instance as Instance,
    Place as Place,
    places_of as places_of,
    Problem as Problem,
    whole as whole,
)
from ._query_model import (
    num_asked as num_asked,
    QueryModel as QueryModel,
    QueryProblem as QueryProblem,
    structure_of as structure_of,
)
from ._rbm import CRBM as CRBM, RBM as RBM
from ._semi_restricted import SemiRestrictedBM as SemiRestrictedBM
from ._stack import Stack as Stack
from ._table_model import ByTable as ByTable, TableModel as TableModel
from ._turns import (
    AbstractTurns as AbstractTurns,
    Alone as Alone,
    by_colour as by_colour,
    coloured as coloured,
    excludes as excludes,
    given as given,
    in_order as in_order,
    put as put,
    taken as taken,
    unless_held as unless_held,
)
from ._variables import (
    by_layer as by_layer,
    Groups as Groups,
    Layers as Layers,
    two_sides as two_sides,
    Units as Units,
    Variables as Variables,
)
