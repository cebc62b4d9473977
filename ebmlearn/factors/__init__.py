"""Factors: how the variables of a model are joined.

A model is named groups of units with factors between them.
"""

from ._base import AbstractFactor as AbstractFactor, Stacks as Stacks, States as States
from ._dense import Dense as Dense, inner as inner
from ._function import Function as Function
from ._tables import Tables as Tables
