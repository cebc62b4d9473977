from ._base import (
    AbstractInference as AbstractInference,
    is_off as is_off,
    limited as limited,
    NUMBER as NUMBER,
    sends_messages as sends_messages,
    TooLarge as TooLarge,
    with_traced as with_traced,
)
from ._beliefs import Beliefs as Beliefs, Found as Found, Normal as Normal, Report as Report
from ._bp import BP as BP, in_form as in_form, settings_of as settings_of
from ._dual import ConvergentBP as ConvergentBP, TRBP as TRBP
from ._eliminated import networks_of as networks_of
from ._exact import affordable as affordable, Exact as Exact
from ._mean_field import MeanField as MeanField
from ._mplp import MPLP as MPLP
from ._network import Network as Network
from ._susp import ISusP as ISusP, own_fields as own_fields, SusP as SusP
from ._tap import (
    AbstractNonnegativeInference as AbstractNonnegativeInference,
    Moments as Moments,
    NaiveMeanField as NaiveMeanField,
    TAP as TAP,
    Wanted as Wanted,
)
