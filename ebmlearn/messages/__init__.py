"""Message passing: one view for each kind of model, and the registry of them.

A model has a `kind`; `view(model, ...)` passes messages on it. Adaptors `register` kinds of their
own.
"""

from ._edge import (
    hard as hard,
    log_product as log_product,
    odds as odds,
    ODDS_LIMIT as ODDS_LIMIT,
    odds_serve as odds_serve,
    soft as soft,
    total as total,
)
from ._factor_view import FactorMaker, FactorView as FactorView
from ._gaussian import (
    GaussianInstance as GaussianInstance,
    GaussianMaker,
    GaussianView as GaussianView,
    in_blocks as in_blocks,
    standard as standard,
    told as told,
)
from ._graph import (
    AbstractGraphMaker as AbstractGraphMaker,
    AbstractGraphView as AbstractGraphView,
    GraphInstance as GraphInstance,
    GraphState as GraphState,
)
from ._grid import GridMaker, GridView as GridView
from ._pairwise import (
    change as change,
    Instance as Instance,
    PairwiseView as PairwiseView,
    State as State,
)
from ._pairwise_maker import PairwiseMaker
from ._registry import (
    AbstractMaker as AbstractMaker,
    graph_kinds as graph_kinds,
    instances as instances,
    maker as maker,
    MAKERS as MAKERS,
    register as register,
    Stacks as Stacks,
    view as view,
)
from ._types import Form as Form, Product as Product, Schedule as Schedule, Start as Start
from ._view import (
    AbstractView as AbstractView,
    cannot as cannot,
    Expected as Expected,
    Told as Told,
)


register("binary", PairwiseMaker())
register("gaussian binary", GaussianMaker())
register("grid", GridMaker())
register("tables", FactorMaker())
