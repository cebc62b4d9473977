"""Factors: how the variables of a model are joined.

A model is named groups of units with factors between them.
"""

from ._base import (
    AbstractFactor as AbstractFactor,
    scaled_potentials as scaled_potentials,
    Stacks as Stacks,
    States as States,
)
from ._dense import Dense as Dense, inner as inner
from ._function import Function as Function
from ._lattice import ends as ends, Lattice as Lattice, moved as moved, OFFSETS as OFFSETS
from ._tables import Tables as Tables
