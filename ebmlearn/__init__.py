"""Learning and inference in discrete and nonnegative energy-based models."""

from ._fit import (
    Checkpoint as Checkpoint,
    EpochReport as EpochReport,
    fit as fit,
    Fitted as Fitted,
    History as History,
    load as load,
    save as save,
)
from ._version import __version__ as __version__
from .estimate import (
    ais as ais,
    AISEstimate as AISEstimate,
    base_rate as base_rate,
    error_rate as error_rate,
    log_likelihood as log_likelihood,
    mmd as mmd,
    predict as predict,
    pseudo_log_likelihood as pseudo_log_likelihood,
    reverse_ais as reverse_ais,
)
from .inference import (
    AbstractBeliefs as AbstractBeliefs,
    AbstractInference as AbstractInference,
    BP as BP,
    Exact as Exact,
    MeanField as MeanField,
    query as query,
    Statistics as Statistics,
)
from .learners import (
    AbstractLearner as AbstractLearner,
    CD as CD,
    hamming as hamming,
    LSSVM as LSSVM,
    MLE as MLE,
    MSSVM as MSSVM,
    PercLoss as PercLoss,
    PseudoLikelihood as PseudoLikelihood,
    robbins_monro as robbins_monro,
    SAP as SAP,
    StepInfo as StepInfo,
    TransSAP as TransSAP,
    TransSAPState as TransSAPState,
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
from .samplers import (
    AbstractSampler as AbstractSampler,
    autocorrelation_time as autocorrelation_time,
    ChainState as ChainState,
    Gibbs as Gibbs,
    GibbsInfo as GibbsInfo,
    GibbsWithGradients as GibbsWithGradients,
    GibbsWithGradientsInfo as GibbsWithGradientsInfo,
    ParallelTempering as ParallelTempering,
    ParallelTemperingInfo as ParallelTemperingInfo,
    ParallelTemperingState as ParallelTemperingState,
    sample as sample,
    singular_values as singular_values,
    TemperedTransitions as TemperedTransitions,
    TemperedTransitionsInfo as TemperedTransitionsInfo,
)
