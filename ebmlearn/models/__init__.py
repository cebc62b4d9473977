from ._base import (
    AbstractPairwiseModel as AbstractPairwiseModel,
    Layers as Layers,
    Units as Units,
)
from ._boltzmann import BoltzmannMachine as BoltzmannMachine
from ._crbm import CRBM as CRBM
from ._dbm import DBM as DBM
from ._rbm import RBM as RBM
from ._semi_restricted import SemiRestrictedBM as SemiRestrictedBM
