"""Answers to questions, by the inference that suits the model and the time there is."""

from ._auto import Auto as Auto
from ._auto_bp import propagated as propagated
from ._host_networks import marginals_of as marginals_of, tabled as tabled
from ._maximum import maximum as maximum
from ._query import (
    asker as asker,
    joint_query as joint_query,
    query as query,
    require_inference as require_inference,
)
