"""Pictures of models, samples, training and chains, with Matplotlib.

Each function draws on the axes `ax`, or on a new figure, and returns the axes. It does not show or
save the figure and sets no title.
"""

# ruff: noqa: E402
from .. import _extras


_extras.need("ebmlearn.plotting", "plot")

from ._curves import (
    ais_bracket as ais_bracket,
    convergence as convergence,
    discrepancy as discrepancy,
    history as history,
    residuals as residuals,
    spectra as spectra,
)
from ._images import filters as filters, images as images, marginals as marginals
from ._tempering import round_trips as round_trips, swaps as swaps, walkers as walkers
