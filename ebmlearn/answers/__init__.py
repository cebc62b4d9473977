"""Answers to questions, by the inference that suits the model and the time there is."""

from ._auto import Auto as Auto
from ._query import (
    asker as asker,
    joint_query as joint_query,
    query as query,
    QueryInfo as QueryInfo,
)
