"""Learning and inference in discrete and nonnegative energy-based models."""

from .inference import (
    AbstractBeliefs as AbstractBeliefs,
    AbstractInference as AbstractInference,
    BP as BP,
    Exact as Exact,
    MeanField as MeanField,
    query as query,
    Statistics as Statistics,
)
from .models import (
    AbstractPairwiseModel as AbstractPairwiseModel,
    BoltzmannMachine as BoltzmannMachine,
    CRBM as CRBM,
    DBM as DBM,
    Layers as Layers,
    RBM as RBM,
    SemiRestrictedBM as SemiRestrictedBM,
    Units as Units,
)


__version__ = "0.1.0.dev0"
