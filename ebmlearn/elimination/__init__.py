"""Elimination of variables, on the host, in float64: the tables of a network, orders, and the sums,
maxima, marginals and draws that they give. Networks that are too wide are eliminated in parts.
"""

from ._buckets import (
    Bucket as Bucket,
    bucketed as bucketed,
    HOPELESS as HOPELESS,
    Plan as Plan,
    planned as planned,
    Solution as Solution,
    solve as solve,
    TooWide as TooWide,
)
from ._estimates import Estimate as Estimate, estimate as estimate, estimated as estimated
from ._orders import fewest_first as fewest_first, find_order as find_order, Order as Order
from ._search import Found as Found, likely_states as likely_states, possible as possible
from ._table_network import (
    Impossible as Impossible,
    Marginals as Marginals,
    Network as Network,
    Reduced as Reduced,
    reduced as reduced,
    States as States,
)
