from typing import NamedTuple

from jaxtyping import Array, Float


class Block(NamedTuple):
    """The weights between the layers `first` and `second`, which may be one and the same.

    Of a layer with itself they are symmetric, and zero on the diagonal. `edges` are then the pairs
    of units that are joined, where not all of them are.
    """

    first: int
    second: int
    weights: Float[Array, "m n"]
    edges: tuple[tuple[int, int], ...] | None = None
