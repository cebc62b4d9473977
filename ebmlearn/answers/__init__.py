"""Answers to questions, by the inference that suits the model and the time there is."""

from ._asked import marginals_of as marginals_of, tabled as tabled
from ._auto import Auto as Auto
from ._maximum import maximum as maximum
from ._propagated import propagated as propagated
from ._query import (
    asker as asker,
    joint_query as joint_query,
    query as query,
    require_inference as require_inference,
)
