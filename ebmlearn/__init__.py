"""Learning and inference in discrete and nonnegative energy-based models."""

from . import (
    answers as answers,
    estimate as estimate,
    factors as factors,
    inference as inference,
    learners as learners,
    models as models,
    queries as queries,
    samplers as samplers,
    training as training,
    units as units,
)
from ._version import __version__ as __version__
from .answers import Auto as Auto, joint_query as joint_query, query as query
from .estimate import (
    ais as ais,
    classify as classify,
    error_rate as error_rate,
    log_likelihood as log_likelihood,
    log_partition as log_partition,
    pmp_bound as pmp_bound,
    predict as predict,
    pseudo_log_likelihood as pseudo_log_likelihood,
    query_entropy as query_entropy,
    reverse_ais as reverse_ais,
    sampled_marginals as sampled_marginals,
)
from .factors import Dense as Dense, Tables as Tables
from .inference import (
    Beliefs as Beliefs,
    BP as BP,
    ConvergentBP as ConvergentBP,
    Exact as Exact,
    ISusP as ISusP,
    MeanField as MeanField,
    MPLP as MPLP,
    NaiveMeanField as NaiveMeanField,
    SusP as SusP,
    TAP as TAP,
    TRBP as TRBP,
)
from .learners import (
    CD as CD,
    LSSVM as LSSVM,
    MCMCMLE as MCMCMLE,
    MLE as MLE,
    MSSVM as MSSVM,
    PCD as PCD,
    PercLoss as PercLoss,
    PMPLearner as PMPLearner,
    PseudoLikelihood as PseudoLikelihood,
    QueryTraining as QueryTraining,
    SAP as SAP,
    TransSAP as TransSAP,
)
from .models import (
    BoltzmannMachine as BoltzmannMachine,
    CRBM as CRBM,
    DBM as DBM,
    EnergyModel as EnergyModel,
    FactorModel as FactorModel,
    GaussianRBM as GaussianRBM,
    GridMRF as GridMRF,
    LayeredModel as LayeredModel,
    Layers as Layers,
    NNBM as NNBM,
    QueryModel as QueryModel,
    RBM as RBM,
    SemiRestrictedBM as SemiRestrictedBM,
    TableModel as TableModel,
)
from .samplers import (
    adapt_ladder as adapt_ladder,
    DMALA as DMALA,
    equilibrium as equilibrium,
    Gibbs as Gibbs,
    GibbsWithGradients as GibbsWithGradients,
    ParallelTempering as ParallelTempering,
    PAS as PAS,
    PMP as PMP,
    r_hat as r_hat,
    sample as sample,
    sample_with_info as sample_with_info,
    TemperedTransitions as TemperedTransitions,
    Trajectory as Trajectory,
    TrajectoryTempering as TrajectoryTempering,
)
from .training import (
    Checkpoint as Checkpoint,
    fit as fit,
    fit_many as fit_many,
    Fitted as Fitted,
    load as load,
    save as save,
    Validation as Validation,
)
from .units import (
    Binary as Binary,
    Categorical as Categorical,
    Gaussian as Gaussian,
    Nonnegative as Nonnegative,
)


# Names that stood here before version 0.3, by the module that has them.
_MOVED = {
    "estimate": ("base_rate", "mmd", "QueryEntropy"),
    "factors": ("AbstractFactor",),
    "inference": ("AbstractInference", "Report"),
    "learners": ("AbstractLearner", "hamming", "robbins_monro", "solve_moments"),
    "models": ("AbstractModel", "AbstractPlainModel", "Stack", "Units"),
    "queries": (
        "AbstractQueries", "BlockTargets", "FixedTargets", "LeaveOneOut", "MixedTargets",
        "RandomTargets", "TargetCount",
    ),
    "samplers": (
        "AbstractSampler", "adapt_trajectory", "autocorrelation_time", "jumps", "singular_values",
    ),
    "training": ("load_info",),
    "units": ("AbstractUnits",),
}  # fmt: skip


def __getattr__(name: str):
    """Raises an error that says where a name is."""
    for module, names in _MOVED.items():
        if name in names:
            raise AttributeError(f"`ebmlearn.{name}` has moved: write `ebmlearn.{module}.{name}`.")
    hint = ""
    if name in ("datasets", "numpyro", "pgmax", "plotting", "sklearn", "uai"):
        hint = f": write `import ebmlearn.{name}` first"
    elif near := [x for x in globals() if x.lower() == name.lower()]:
        hint = f": write `ebmlearn.{near[0]}`"
    raise AttributeError(f"`ebmlearn` has no `{name}`{hint}.")
