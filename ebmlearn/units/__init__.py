"""Kinds of units: their states, their distribution in a field, and how they are drawn.

A layer of a model is an object of one of these classes. Samplers do not ask which of them it is.
"""

from ._base import (
    AbstractLinearUnits as AbstractLinearUnits,
    AbstractNumberedUnits as AbstractNumberedUnits,
    AbstractRealUnits as AbstractRealUnits,
    AbstractUnits as AbstractUnits,
)
from ._binary import Binary as Binary, binary as binary
from ._categorical import Categorical as Categorical
from ._gaussian import Gaussian as Gaussian
from ._nonnegative import Nonnegative as Nonnegative, TruncatedNormal as TruncatedNormal
from ._random import accept as accept
from ._rectified import (
    erfcx as erfcx,
    log_ndtr as log_ndtr,
    raw_moments as raw_moments,
    Rectified as Rectified,
    rectified as rectified,
)
