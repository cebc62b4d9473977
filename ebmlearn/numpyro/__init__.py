"""NumPyro: the samplers as kernels for `numpyro.infer.MCMC`.

The model is an argument of the run, `mcmc.run(key, rbm)`, and the sites are its units: `visible`
and `hidden` (`hidden_1`, `hidden_2`, ... for a DBM), or `x`.
"""

from ._distribution import EnergyDistribution as EnergyDistribution
from ._exchange_kernel import ExchangeKernel as ExchangeKernel, ExchangeState as ExchangeState
from ._kernels import (
    GibbsKernel as GibbsKernel,
    GibbsWithGradientsKernel as GibbsWithGradientsKernel,
    KernelState as KernelState,
    NNBMGibbsKernel as NNBMGibbsKernel,
    ParallelTemperingKernel as ParallelTemperingKernel,
    SamplerKernel as SamplerKernel,
    TemperedTransitionsKernel as TemperedTransitionsKernel,
    TrajectoryTemperingKernel as TrajectoryTemperingKernel,
)
from ._sampler_block import BlockState as BlockState, SamplerBlock as SamplerBlock
