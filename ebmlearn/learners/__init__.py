from ._base import (
    AbstractComparedMetric as AbstractComparedMetric,
    AbstractLearner as AbstractLearner,
    Metric as Metric,
    only as only,
    StepInfo as StepInfo,
)
from ._cd import CD as CD
from ._cost import hamming as hamming
from ._lssvm import LSSVM as LSSVM
from ._mcmc_mle import MCMCMLE as MCMCMLE, MCMCMLEState as MCMCMLEState
from ._mle import MLE as MLE
from ._mssvm import MSSVM as MSSVM
from ._perc_loss import PercLoss as PercLoss
from ._pmp import PMPLearner as PMPLearner
from ._pseudo_likelihood import PseudoLikelihood as PseudoLikelihood
from ._query_training import QueryTraining as QueryTraining
from ._sap import PCD as PCD, SAP as SAP, TransSAP as TransSAP, TransSAPState as TransSAPState
from ._schedules import robbins_monro as robbins_monro
from ._solve_moments import MomentMatch as MomentMatch, solve_moments as solve_moments
