from ._sweep import (
    conditional as conditional,
    given_even as given_even,
    start_even as start_even,
    sweep as sweep,
)
