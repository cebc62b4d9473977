from ._answers import QueryReport as QueryReport
from ._base import (
    AbstractBeliefs as AbstractBeliefs,
    AbstractInference as AbstractInference,
    Statistics as Statistics,
)
from ._bp import BP as BP
from ._exact import Exact as Exact
from ._gaussian import (
    Gaussian as Gaussian,
    GaussianBeliefs as GaussianBeliefs,
)
from ._graph import AbstractGraphBeliefs as AbstractGraphBeliefs
from ._isusp import ISusP as ISusP
from ._mean_field import MeanField as MeanField
from ._mplp import MPLP as MPLP
from ._nnbm import NNBMBeliefs as NNBMBeliefs
from ._nnbm_mean_field import NaiveMeanField as NaiveMeanField
from ._queries import (
    AbstractQueries as AbstractQueries,
    BlockTargets as BlockTargets,
    FixedTargets as FixedTargets,
    LeaveOneOut as LeaveOneOut,
    MixedTargets as MixedTargets,
    Query as Query,
    RandomTargets as RandomTargets,
    TargetCount as TargetCount,
)
from ._query import joint_query as joint_query, query as query
from ._susp import SusP as SusP
from ._tap import TAP as TAP
