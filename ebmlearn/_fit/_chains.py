from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from ..learners import AbstractLearner
from ..samplers import AbstractSampler, equilibrium, Gibbs, Trajectory, TrajectoryTempering


_CHAINS, _BURN_IN, _STEPS = 32, 100, 200


class Chains:
    """Whether chains of the model that is trained reach equilibrium."""

    def __init__(self, learner: AbstractLearner, data: Any, key: PRNGKeyArray):
        found = getattr(learner, "sampler", None)
        self.sampler = found if isinstance(found, AbstractSampler) else Gibbs()
        self.data, self.key = data, key

    def __call__(
        self, model: Any, trajectory: Trajectory | None, step: int
    ) -> tuple[float, float, float]:
        """The largest autocorrelation time, R-hat and gap of all slow modes."""
        sampler = self.sampler
        if isinstance(sampler, TrajectoryTempering) and trajectory is not None:
            sampler = TrajectoryTempering(trajectory, sampler=sampler.sampler)
        found = equilibrium(
            model,
            sampler,
            self.data,
            key=jax.random.fold_in(self.key, step),
            num_chains=_CHAINS,
            burn_in=_BURN_IN,
            steps=_STEPS,
        )
        parts = found.autocorrelation_times, found.r_hat, found.gaps
        longest, r_hat, gap = (float(x.max()) for x in parts)
        return longest, r_hat, gap
