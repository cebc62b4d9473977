from typing import TypeAlias

import numpy as np
from jaxtyping import Array


# What a user may hand in: arrays of JAX or of NumPy.
AnyArray: TypeAlias = Array | np.ndarray
