from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Array, Bool, Num, PRNGKeyArray, UInt32


# Arrays of JAX or NumPy.
AnyArray: TypeAlias = Array | np.ndarray
# A typed key, an integer seed, or an old-style key.
Key: TypeAlias = PRNGKeyArray | int | UInt32[AnyArray, "2"]
# Of a graph: from groups of variables, or from single variables, to arrays, or to dictionaries by
# the names of the variables of a group. A type checker takes no other word for all these keys.
ByGroup: TypeAlias = Mapping[Any, AnyArray | int | Mapping[Any, AnyArray | int]]
# Data as learners take them: an array, several of them, or some for each group of a graph.
Batch: TypeAlias = AnyArray | Sequence[AnyArray] | ByGroup
# What `fit` takes besides: batches one after the other.
Data: TypeAlias = Batch | Iterable[Batch]
# What is known of some units, and which these are: see `AbstractInference`.
Evidence: TypeAlias = (
    Num[AnyArray, "*#batch units"] | Bool[AnyArray, "*#batch units"] | ByGroup | None
)
Observed: TypeAlias = Bool[AnyArray, "*#batch units"] | ByGroup | None
# What a query asks for: numbers of units, a group of a graph, or pairs of a group and an index.
Targets: TypeAlias = Hashable | Sequence[Any] | AnyArray
