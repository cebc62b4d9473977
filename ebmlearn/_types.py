from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Array, Bool, Num, PRNGKeyArray, UInt32


# Arrays of JAX or NumPy.
AnyArray: TypeAlias = Array | np.ndarray
# A typed key, an integer seed, or an old-style key.
Key: TypeAlias = PRNGKeyArray | int | UInt32[AnyArray, "2"]
# Keys of dictionaries are groups of variables: a type checker takes no other word for all of them.
# Data as learners take them: an array, a tuple of arrays, or a dictionary of a graph.
Batch: TypeAlias = AnyArray | Sequence[AnyArray] | Mapping[Any, AnyArray]
# Data as `fit` takes them: also an iterable of batches.
Data: TypeAlias = Batch | Iterable[Batch]
# What is known of some units, and which these are: see `AbstractInference`.
Evidence: TypeAlias = (
    Num[AnyArray, "*#batch units"] | Bool[AnyArray, "*#batch units"] | Mapping[Any, AnyArray] | None
)
Observed: TypeAlias = Bool[AnyArray, "*#batch units"] | Mapping[Any, AnyArray] | None
# Targets of a query: indices of units, a group of a graph, or pairs of a group and an index.
Targets: TypeAlias = Hashable | Sequence[Any] | AnyArray
