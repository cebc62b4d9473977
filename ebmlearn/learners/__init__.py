from ._base import (
    AbstractComparedMetric as AbstractComparedMetric,
    AbstractLearner as AbstractLearner,
    Metric as Metric,
    only as only,
    StepInfo as StepInfo,
)
from ._cd import CD as CD, PercLoss as PercLoss
from ._margins import hamming as hamming, LSSVM as LSSVM, MSSVM as MSSVM
from ._mle import MLE as MLE
from ._pmp_learner import PMPLearner as PMPLearner
from ._pseudo_likelihood import PseudoLikelihood as PseudoLikelihood
from ._query_training import QueryTraining as QueryTraining
from ._sap import (
    MCMCMLE as MCMCMLE,
    MCMCMLEState as MCMCMLEState,
    PCD as PCD,
    robbins_monro as robbins_monro,
    SAP as SAP,
    TransSAP as TransSAP,
    TransSAPState as TransSAPState,
)
from ._solve_moments import MomentMatch as MomentMatch, solve_moments as solve_moments
