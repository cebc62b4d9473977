"""Files of the UAI competitions on graphical models, the tasks that they ask, and conversions
between tables and other models.
"""

from ._answers import Answer as Answer, read_answer as read_answer, write_answer as write_answer
from ._conversions import (
    AsRBM as AsRBM,
    to_factor_graph as to_factor_graph,
    to_grid_mrf as to_grid_mrf,
    to_network as to_network,
    to_rbm as to_rbm,
    to_tables as to_tables,
)
from ._evidence_files import (
    read_evidence as read_evidence,
    read_query as read_query,
    write_evidence as write_evidence,
    write_query as write_query,
)
from ._network_files import read as read, read_network as read_network, write as write
from ._solve import answer as answer, Report as Report
