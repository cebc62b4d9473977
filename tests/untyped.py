"""Names of other libraries without their types, where those are too narrow for what works."""

from typing import Any

import numpy as np


def nd_var_array(num_states: int | np.ndarray, shape: tuple[int, ...]) -> Any:
    """PGMax says that an index gives one variable or a list of them; its factors take the first."""
    from pgmax import vgroup

    return vgroup.NDVarArray(num_states=num_states, shape=shape)
