from ._base import AbstractInference as AbstractInference, TooLarge as TooLarge
from ._beliefs import Beliefs as Beliefs, Found as Found, Normal as Normal, Report as Report
from ._bp import BP as BP
from ._convergent import ConvergentBP as ConvergentBP
from ._eliminated import networks_of as networks_of
from ._exact import affordable as affordable, Exact as Exact, MAXIMISES as MAXIMISES
from ._isusp import ISusP as ISusP
from ._mean_field import MeanField as MeanField
from ._mplp import MPLP as MPLP
from ._naive_mean_field import NaiveMeanField as NaiveMeanField
from ._network import Network as Network
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
from ._susp import SusP as SusP
from ._tap import TAP as TAP
from ._trbp import TRBP as TRBP
