"""The factors of a model as tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..factors import AbstractFactor, Stacks


def stacks_of(model: Any, factors: Sequence[AbstractFactor] | None = None) -> Stacks | None:
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


def whole_stacks(model: Any) -> Stacks | None:
    """The same with tables of the variables of the model alone, without helper variables."""
    return model.whole_tables() if hasattr(model, "whole_tables") else stacks_of(model)


def told(stacks: Stacks) -> Stacks:
    """Stacks without tables of zeros."""
    out = []
    for members, stack in stacks:
        kept = np.flatnonzero(np.any(np.asarray(stack), tuple(range(1, stack.ndim))))
        if len(kept):
            out.append((members[kept], stack[kept]))
    return tuple(out)
