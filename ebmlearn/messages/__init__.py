"""Message passing: one engine for all groups of units and all factors.

`engine(model, ...)` passes messages on a model. `_forms.py` says how the knowledge about a group
is kept, `_sent.py` how a factor sends. Hosts add the messages of their own factors to `MAKERS`.
"""

from ._assembly import (
    assuming as assuming,
    engine as engine,
    FAST as FAST,
    MAKERS as MAKERS,
    moderate as moderate,
    outline as outline,
    probabilities as probabilities,
    serves as serves,
    Site as Site,
)
from ._edge import (
    hard as hard,
    log_product as log_product,
    odds as odds,
    ODDS_LIMIT as ODDS_LIMIT,
    odds_serve as odds_serve,
    soft as soft,
    total as total,
)
from ._engine import (
    Engine as Engine,
    Expected as Expected,
    is_possible as is_possible,
    linear as linear,
    log_partition as log_partition,
    pairwise as pairwise,
    score as score,
    State as State,
    statistics as statistics,
    tells_statistics as tells_statistics,
)
from ._expectation import Moments as Moments
from ._factor_messages import TablesSent as TablesSent
from ._forms import (
    AbstractSent as AbstractSent,
    Damp as Damp,
    Form as Form,
    Heard as Heard,
    Product as Product,
    Schedule as Schedule,
    Scores as Scores,
    Start as Start,
    Sums as Sums,
)
from ._odds import OddsSent as OddsSent
