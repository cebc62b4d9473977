from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from .. import _checks
from .._types import AnyArray, Key
from ..inference import NUMBER
from ..models import (
    AbstractModel,
    marginal_energies,
    refuse,
    require_chains,
    require_fields,
    statistics,
    summed,
)
from ..samplers import (
    AbstractSampler,
    after_steps,
    followed,
    Gibbs,
    require_sampler,
    share_accepted,
    TemperedTransitions,
)
from ._base import (
    AbstractContrastive,
    AbstractInferring,
    as_schedule,
    Inference,
    mean_field,
    Phases,
    Told,
)


class SAP(AbstractInferring, AbstractContrastive):
    """The stochastic approximation procedure (Younes 1989; Tieleman 2008; Salakhutdinov 2009,
    Algorithm 1): chains continue from step to step and follow the model, which must change slowly.

    With [`ebmlearn.Gibbs`][] it is persistent contrastive divergence; `PCD` is the same class. Any
    other sampler works too, for instance [`ebmlearn.ParallelTempering`][]. It converges almost
    surely if the learning rate decreases as $a / (b + t)$: see
    [`ebmlearn.learners.robbins_monro`][].

    The trajectory of [`ebmlearn.TrajectoryTempering`][] grows with training: when the model and the
    one before it swap in less than about 0.3 of all cases, the model joins the trajectory. A step
    then costs about `2 * capacity` sweeps of all chains, from the first step on, where Gibbs
    sampling costs one. [`ebmlearn.fit`][] returns the trajectory.

    !!! example

        ```python
        from ebmlearn import datasets

        ebmlearn.SAP(num_chains=100)  # Gibbs sampling: persistent contrastive divergence

        data = datasets.digits().train.x
        trajectory = ebmlearn.Trajectory.start(ebmlearn.RBM.init(64, 8), data, capacity=16)
        ebmlearn.SAP(ebmlearn.TrajectoryTempering(trajectory), num_chains=100)
        ```

    **Arguments:**

    - `sampler`: the sampler of the chains; Gibbs by default.
    - `num_chains`: the number of chains.
    - `steps`: the number of steps of the sampler between two updates.
    - `inference`: the inference of the hidden units given the visible ones, for models without a
      formula for them, such as a DBM. Mean field by default, in whose place belief propagation is
      used for graphs whose factors exclude configurations.
    - `persistent`: False starts all chains at random before each update. The learned model is then
      made for such short chains (Nijkamp et al. 2019).
    - `centred`, `weight_decay`: as for [`ebmlearn.CD`][].
    """

    sampler: AbstractSampler = eqx.field(default_factory=Gibbs)
    _: KW_ONLY
    num_chains: int = eqx.field(static=True, default=100)
    steps: int = eqx.field(static=True, default=1)
    inference: Inference = eqx.field(default_factory=mean_field, converter=as_schedule)
    persistent: bool = eqx.field(static=True, default=True)
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(metadata=NUMBER, default=0.0)
    maximises: ClassVar[str] = "nothing"

    def __check_init__(self):
        require_sampler(self.sampler)
        _checks.count("num_chains", self.num_chains)
        _checks.count("steps", self.steps)
        _checks.instance("persistent", self.persistent, bool, "a boolean")

    def init(self, model: AbstractModel, *, key: Key) -> PyTree:
        """The chains, at random states."""
        return start(model, self.sampler, self.num_chains, key)

    def phases(
        self, told: Told, state: PyTree, *, key: PRNGKeyArray, epoch: Int[Array, ""]
    ) -> tuple[Phases, PyTree]:
        model = told.model
        if not self.persistent:
            key, own = jax.random.split(key)
            state = self.sampler.init(model, self.num_chains, key=own)
        keys = jax.random.split(key, self.steps)
        state = jax.lax.fori_loop(
            0, self.steps - 1, lambda i, s: self.sampler.step(model, s, key=keys[i])[0], state
        )
        state, info = self.sampler.step(model, state, key=keys[-1])
        state = followed(state, model)
        positive = told.posterior(self.decoder(epoch))
        negative = statistics(model, model.encode(state.units), summed(model))
        return Phases(positive, negative, accepted=share_accepted(info)), state


class TransSAPState(NamedTuple):
    """The chains, and how many updates there were.

    !!! example

        ```python
        learner = ebmlearn.TransSAP(jnp.linspace(0.9, 1, 11), num_chains=20)
        state = learner.init(ebmlearn.RBM.init(16, 8), key=jax.random.key(0))
        state.chains.units.visible  # [20, 16]
        ```

    **Fields:**

    - `chains`: the state of the chains.
    - `updates`: the number of updates so far.
    """

    chains: PyTree
    updates: Int[Array, ""]


class TransSAP(AbstractInferring, AbstractContrastive):
    """Stochastic approximation with tempered transitions, Trans-SAP (Salakhutdinov 2009, section
    3). It is [`ebmlearn.SAP`][] with Gibbs sweeps, but from time to time all chains make a tempered
    transition, which moves them between modes that Gibbs sampling does not leave. The model does
    not change during a transition.

    !!! example

        ```python
        ebmlearn.TransSAP(jnp.linspace(0.9, 1, 51), every=200, begin=50_000)
        ```
    """

    tempered: TemperedTransitions
    every: int = eqx.field(static=True)
    begin: int = eqx.field(static=True)
    num_chains: int = eqx.field(static=True)
    inference: Inference = eqx.field(converter=as_schedule)
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(metadata=NUMBER, default=0.0)
    maximises: ClassVar[str] = "nothing"

    def __init__(
        self,
        betas: Sequence[float] | Float[AnyArray, " betas"],
        *,
        every: int = 200,
        begin: int = 0,
        num_chains: int = 100,
        inference: Inference | None = None,
        centred: bool = False,
        weight_decay: float = 0.0,
    ):
        """**Arguments:**

        - `betas`: inverse temperatures that increase to 1. The 50 temperatures of the paper are 51
          here, because 1 is among them.
        - `every`: the number of updates between two tempered transitions.
        - `begin`: the number of updates before the first interval starts.
        - `num_chains`: the number of chains.
        - `inference`, `centred`, `weight_decay`: as for [`ebmlearn.SAP`][].
        """
        self.tempered = TemperedTransitions(betas)
        self.every = every
        self.begin = begin
        self.num_chains = num_chains
        self.inference = mean_field() if inference is None else inference
        self.centred = centred
        self.weight_decay = weight_decay

    def __check_init__(self):
        _checks.count("every", self.every)
        _checks.count("begin", self.begin, 0)
        _checks.count("num_chains", self.num_chains)

    def init(self, model: AbstractModel, *, key: Key) -> TransSAPState:
        """The chains, at random states."""
        chains = start(model, self.tempered, self.num_chains, key)
        return TransSAPState(chains, jnp.zeros((), jnp.int32))

    def phases(
        self, told: Told, state: TransSAPState, *, key: PRNGKeyArray, epoch: Int[Array, ""]
    ) -> tuple[Phases, TransSAPState]:
        one, two = jax.random.split(key)
        model, (chains, updates) = told.model, state
        # Not after the update that has just been made, but before the one that is due.
        due = (updates >= self.begin) & ((updates - self.begin) % self.every == self.every - 1)
        nan = jnp.asarray(jnp.nan, model.dtype)

        def run(chains: PyTree) -> tuple[PyTree, Float[Array, ""]]:
            chains, info = self.tempered.step(model, chains, key=one)
            return chains, info.accepted.mean()

        chains, accepted = jax.lax.cond(due, run, lambda chains: (chains, nan), chains)
        chains, _ = Gibbs().step(model, chains, key=two)
        positive = told.posterior(self.decoder(epoch))
        negative = statistics(model, model.encode(chains.units), summed(model))
        phases = Phases(positive, negative, accepted=accepted)
        return phases, TransSAPState(chains, updates + 1)


class MCMCMLEState(NamedTuple):
    """The chains, the model they were drawn from, and how many updates there were.

    !!! example

        ```python
        learner = ebmlearn.MCMCMLE(num_chains=20, steps=10)
        state = learner.init(ebmlearn.RBM.init(16, 8), key=jax.random.key(0))
        state.reference, state.updates
        ```

    **Fields:**

    - `chains`: the state of the chains.
    - `reference`: the model they were drawn from.
    - `updates`: the number of updates so far.
    """

    chains: PyTree
    reference: Any
    updates: Int[Array, ""]


class MCMCMLE(AbstractInferring, AbstractContrastive):
    """Markov chain Monte Carlo maximum likelihood (Geyer 1991; Salakhutdinov 2009, section 2.2). It
    draws configurations from a reference model $\\theta_0$ and weights them by
    $p_\\theta(x) / p_{\\theta_0}(x)$ while the model $\\theta$ changes. With each update fewer
    configurations carry the weight, so they must be drawn again from time to time; `info.accepted`
    is the share that effectively counts.

    !!! example

        ```python
        ebmlearn.MCMCMLE(num_chains=1000, steps=1000, refresh=1000)
        ```

    **Arguments:**

    - `sampler`: the sampler of the configurations; Gibbs by default.
    - `num_chains`: the number of configurations, one from each chain.
    - `steps`: the number of steps of the sampler before the configurations are taken. The chains
      continue from their last states.
    - `refresh`: the number of updates after which configurations are drawn again; None draws them
      only once, before the first update.
    - `inference`, `centred`, `weight_decay`: as for [`ebmlearn.SAP`][].
    """

    sampler: AbstractSampler = eqx.field(default_factory=Gibbs)
    _: KW_ONLY
    num_chains: int = eqx.field(static=True, default=100)
    steps: int = eqx.field(static=True, default=1000)
    refresh: int | None = eqx.field(static=True, default=1000)
    inference: Inference = eqx.field(default_factory=mean_field, converter=as_schedule)
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(metadata=NUMBER, default=0.0)
    maximises: ClassVar[str] = "nothing"

    def __check_init__(self):
        require_sampler(self.sampler)
        _checks.count("num_chains", self.num_chains)
        _checks.count("steps", self.steps)
        if self.refresh is not None:
            _checks.count("refresh", self.refresh)

    def init(self, model: AbstractModel, *, key: Key) -> MCMCMLEState:
        """The chains, at random states; the first step moves them."""
        chains = start(model, self.sampler, self.num_chains, key)
        if not require_fields(model, "MCMCMLE").finite:
            refuse(model, "have units of finitely many states for MCMCMLE")
        return MCMCMLEState(chains, model, jnp.zeros((), jnp.int32))

    def phases(
        self, told: Told, state: MCMCMLEState, *, key: PRNGKeyArray, epoch: Int[Array, ""]
    ) -> tuple[Phases, MCMCMLEState]:
        model, (chains, reference, updates) = require_fields(told.model, "MCMCMLE"), state
        due = updates == 0 if self.refresh is None else updates % self.refresh == 0

        def draw(chains: PyTree, reference: Any) -> tuple[PyTree, Any]:
            return after_steps(self.sampler, model, chains, key, self.steps), model

        chains, reference = jax.lax.cond(due, draw, lambda *kept: kept, chains, reference)
        layers = model.encode(chains.units)
        moved = marginal_energies(reference, layers) - marginal_energies(model, layers)
        weights = jax.nn.softmax(moved)
        negative = statistics(model, layers, summed(model), weights)
        positive = told.posterior(self.decoder(epoch))
        effective = 1 / (self.num_chains * (weights**2).sum())
        phases = Phases(positive, negative, accepted=effective)
        return phases, MCMCMLEState(chains, reference, updates + 1)


def start(model: AbstractModel, sampler: AbstractSampler, num_chains: int, key: Key) -> PyTree:
    """Chains that persist: a CRBM would need its own for every row of features."""
    require_chains(model, "chains that persist")
    return sampler.init(model, num_chains, key=key)


def robbins_monro(rate: float, hold: int, a: float, b: float) -> optax.Schedule:
    """A learning rate of `rate` for `hold` steps, then $a / (b + t)$ with $t$ counted from there
    (Salakhutdinov 2009). Its sum diverges and the sum of its squares converges, as stochastic
    approximation requires.

    !!! example

        ```python
        optax.sgd(ebmlearn.learners.robbins_monro(0.01, hold=10_000, a=10, b=1000))
        ```

    **Arguments:**

    - `rate`: the rate of the first steps.
    - `hold`: the number of these steps.
    - `a`, `b`: the numbers of the formula.
    """
    _checks.number("rate", rate, 0, float("inf"), "(0, inf)")
    _checks.count("hold", hold, 0)
    _checks.number("a", a, 0, float("inf"), "(0, inf)")
    _checks.number("b", b, 0, float("inf"), "(0, inf)")

    def schedule(step):
        t = jnp.maximum(jnp.asarray(step) - hold, 0).astype(jnp.float32)
        return jnp.where(jnp.asarray(step) < hold, jnp.float32(rate), a / (b + t))

    return schedule


# The better-known name.
PCD = SAP
