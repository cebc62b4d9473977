from ._base import AbstractInference as AbstractInference, is_off as is_off, NUMBER as NUMBER
from ._beliefs import Beliefs as Beliefs, Found as Found, Normal as Normal, Report as Report
from ._bp import BP as BP, settings_of as settings_of
from ._convergent import ConvergentBP as ConvergentBP
from ._exact import Exact as Exact
from ._inverse import own_fields as own_fields
from ._isusp import ISusP as ISusP
from ._mean_field import MeanField as MeanField
from ._mplp import MPLP as MPLP
from ._naive_mean_field import NaiveMeanField as NaiveMeanField
from ._network import Network as Network
from ._nonnegative import (
    AbstractNonnegativeInference as AbstractNonnegativeInference,
    Moments as Moments,
)
from ._queries import (
    AbstractQueries as AbstractQueries,
    as_queries as as_queries,
    BlockTargets as BlockTargets,
    check_told as check_told,
    draw as draw,
    FixedTargets as FixedTargets,
    LeaveOneOut as LeaveOneOut,
    MixedTargets as MixedTargets,
    Query as Query,
    RandomTargets as RandomTargets,
    TargetCount as TargetCount,
)
from ._susp import SusP as SusP
from ._tap import TAP as TAP
from ._trbp import TRBP as TRBP
