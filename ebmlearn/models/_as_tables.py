"""The factors of a model as tables."""

from collections.abc import Sequence
from typing import Any, TYPE_CHECKING

import numpy as np

from ..factors import AbstractFactor, Stacks


if TYPE_CHECKING:
    from ._base import AbstractPlainModel


def stacks_of(
    model: "AbstractPlainModel", factors: Sequence[AbstractFactor] | None = None
) -> Stacks | None:
    """All factors of a model as stacks of tables of one shape: the variables of each, all units
    being numbered on, and its log-potentials. None if some are no tables.

    **Arguments:**

    - `model`: a model of binary or categorical units.
    - `factors`: other factors between its units, by default its own.
    """
    variables = model.variables
    own = model.factors() if factors is None else factors
    found: Any = [factor.stacks(variables.by_name, variables.starts) for factor in own]
    return None if any(x is None for x in found) else sum(found, ())


def whole_stacks(model: "AbstractPlainModel") -> Stacks | None:
    """The same with tables of the variables of the model alone, without helper variables."""
    own = getattr(model, "whole_tables", None)
    return stacks_of(model) if own is None else own()


def told(stacks: Stacks) -> Stacks:
    """Stacks without tables of zeros."""
    out = []
    for members, stack in stacks:
        kept = np.flatnonzero(np.any(np.asarray(stack), tuple(range(1, stack.ndim))))
        if len(kept):
            out.append((members[kept], stack[kept]))
    return tuple(out)
