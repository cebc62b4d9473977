from ._adaptation import (
    adapt_ladder as adapt_ladder,
    Ladder as Ladder,
    ladder_of as ladder_of,
    respaced as respaced,
    with_ladder as with_ladder,
)
from ._base import (
    AbstractChains as AbstractChains,
    AbstractSampler as AbstractSampler,
    after_steps as after_steps,
    ChainState as ChainState,
    require_beta as require_beta,
    require_chain as require_chain,
    require_sampler as require_sampler,
    share_accepted as share_accepted,
    start_chains as start_chains,
)
from ._diagnostics import (
    autocorrelation_time as autocorrelation_time,
    jumps as jumps,
    r_hat as r_hat,
    singular_values as singular_values,
)
from ._dmala import DMALA as DMALA, DMALAInfo as DMALAInfo
from ._equilibrium import Equilibrium as Equilibrium, equilibrium as equilibrium
from ._exchange import (
    exchanged as exchanged,
    is_tried as is_tried,
    moved as moved,
    risen as risen,
    TemperingInfo as TemperingInfo,
)
from ._gibbs import Gibbs as Gibbs, GibbsInfo as GibbsInfo
from ._gwg import (
    GibbsWithGradients as GibbsWithGradients,
    GibbsWithGradientsInfo as GibbsWithGradientsInfo,
)
from ._parallel_tempering import (
    ParallelTempering as ParallelTempering,
    ParallelTemperingState as ParallelTemperingState,
)
from ._pas import PAS as PAS, PASInfo as PASInfo
from ._pmp import (
    noise_centre as noise_centre,
    perturbation as perturbation,
    perturbed as perturbed,
    PMP as PMP,
    PMPInfo as PMPInfo,
    PMPState as PMPState,
)
from ._sample import sample as sample, sample_with_info as sample_with_info
from ._sweep import drawn as drawn, sweep as sweep
from ._tempered import (
    TemperedTransitions as TemperedTransitions,
    TemperedTransitionsInfo as TemperedTransitionsInfo,
)
from ._trajectory import on_each as on_each, parameters as parameters, Trajectory as Trajectory
from ._trajectory_adaptation import adapt_trajectory as adapt_trajectory
from ._trajectory_tempering import (
    followed as followed,
    RATE as RATE,
    TrajectoryTempering as TrajectoryTempering,
    TrajectoryTemperingState as TrajectoryTemperingState,
)
