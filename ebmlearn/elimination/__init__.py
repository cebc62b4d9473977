"""Exact inference by elimination of variables, on the host, in float64: the tables of a network,
orders, and the sums, maxima, marginals and samples that they give.
"""

from ._buckets import (
    Bucket as Bucket,
    Plan as Plan,
    planned as planned,
    Solution as Solution,
    solve as solve,
    TooWide as TooWide,
)
from ._network import (
    Impossible as Impossible,
    Network as Network,
    Reduced as Reduced,
    reduced as reduced,
)
from ._orders import find_order as find_order, Order as Order
from ._search import Found as Found, likely_states as likely_states, possible as possible
