from ._base import (
    AbstractBeliefs as AbstractBeliefs,
    AbstractInference as AbstractInference,
    Statistics as Statistics,
)
from ._bp import BP as BP
from ._exact import Exact as Exact
from ._graph import AbstractGraphBeliefs as AbstractGraphBeliefs
from ._mean_field import MeanField as MeanField
from ._mplp import MPLP as MPLP
from ._query import query as query
