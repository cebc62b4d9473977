from ._base import (
    AbstractLayeredModel as AbstractLayeredModel,
    AbstractPairwiseModel as AbstractPairwiseModel,
    LabelledLayers as LabelledLayers,
    Layers as Layers,
    Units as Units,
)
from ._boltzmann import BoltzmannMachine as BoltzmannMachine
from ._crbm import CRBM as CRBM
from ._dbm import DBM as DBM
from ._gaussian_rbm import GaussianRBM as GaussianRBM
from ._graph import AbstractGraphModel as AbstractGraphModel
from ._grid_mrf import GridMRF as GridMRF
from ._groups import Groups as Groups
from ._nnbm import NNBM as NNBM, TruncatedNormal as TruncatedNormal
from ._query_model import QueryModel as QueryModel
from ._rbm import RBM as RBM
from ._rectified import erfcx as erfcx, log_ndtr as log_ndtr
from ._semi_restricted import SemiRestrictedBM as SemiRestrictedBM
from ._stack import Stack as Stack
