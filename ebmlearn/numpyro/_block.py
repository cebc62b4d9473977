import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree
from numpyro.infer.mcmc import MCMCKernel

from .. import _checks
from ..models import AbstractLayeredModel
from ..samplers import AbstractSampler, ParallelTempering
from . import _events


class BlockState(NamedTuple):
    """The site of a block, and the key of the next step."""

    z: dict[str, Array]
    rng_key: Array


class SamplerBlock(MCMCKernel):
    """A block of `numpyro.infer.Gibbs` (NumPyro 0.22 and later) that moves one discrete,
    Gaussian or nonnegative site by a sampler, given all other sites.

    `build` makes the model of the block from the values of the other sites, for instance those that
    NUTS samples. The model must be the conditional distribution of the site, prior and likelihood
    together; a likelihood that is linear in the units adds to their biases. The site holds a vector
    as in [`ebmlearn.numpyro.EnergyDistribution`][]. Hidden units that are summed out there are
    drawn given the visible units before each step, so the block keeps no hidden state.

    !!! example "Bits of an RBM, seen through noise of unknown strength"

        ```python
        rbm = ebmlearn.RBM.init(visible=3, hidden=2, key=jax.random.key(0), scale=1.0)
        seen = jnp.array([1, 1, 0])

        def model():
            x = numpyro.sample("x", EnergyDistribution(rbm, None))
            strength = numpyro.sample("strength", dist.Normal(1.0, 1.0))
            noise = dist.Bernoulli(logits=strength * (2.0 * x - 1))
            numpyro.sample("seen", noise.to_event(1), obs=seen)

        def build(sites):  # log p(seen | x = 1) - log p(seen | x = 0) is a bias
            bias = rbm.visible_bias + sites["strength"] * (2.0 * seen - 1)
            return rbm.with_unary((bias, rbm.hidden_bias))

        block = SamplerBlock(ebmlearn.Gibbs(), build)
        kernel = numpyro.infer.Gibbs([(block, ["x"]), (NUTS(model), None)])
        mcmc = MCMC(kernel, num_warmup=300, num_samples=1000)
        mcmc.run(jax.random.key(1))
        ```
    """

    def __init__(
        self,
        sampler: AbstractSampler,
        build: Callable[[dict[str, Array]], AbstractLayeredModel],
        steps: int = 1,
    ):
        """**Arguments:**

        - `sampler`: [`ebmlearn.Gibbs`][], [`ebmlearn.GibbsWithGradients`][] or
          [`ebmlearn.TemperedTransitions`][]. [`ebmlearn.ParallelTempering`][] does not work here,
          because the other blocks do not know its replicas.
        - `build`: a function from a dictionary of the values of all other sites to the model. If
          the site has batch axes the model may have one, with the same number of instances.
        - `steps`: the number of steps of the sampler in one step of the block.
        """
        if not isinstance(sampler, AbstractSampler) or isinstance(sampler, ParallelTempering):
            raise TypeError(
                "`sampler` must be a sampler without replicas, such as `Gibbs()`, got"
                f" {_checks.describe(sampler)}."
            )
        if not callable(build):
            raise TypeError(f"`build` must be a function, got {_checks.describe(build)}.")
        _checks.count("steps", steps)
        self._sampler = sampler
        self._build = build
        self._steps = steps

    @property
    def sample_field(self) -> str:
        """The site, in the state of the block."""
        return "z"

    def init(
        self,
        rng_key: Array,
        num_warmup: int,
        init_params: dict[str, PyTree] | None,
        model_args: tuple,
        model_kwargs: dict[str, object] | None,
    ) -> BlockState:
        """The start, from the values that `numpyro.infer.Gibbs` hands over."""
        if not init_params or len(init_params) != 1:
            raise ValueError(
                "a `SamplerBlock` must be a block of `numpyro.infer.Gibbs` with one site, got"
                f" {sorted(init_params or {})}."
            )
        return BlockState(
            {name: jnp.asarray(x) for name, x in init_params.items()}, _events.typed(rng_key)
        )

    def sample(
        self, state: BlockState, model_args: tuple, model_kwargs: dict[str, object] | None
    ) -> BlockState:
        """Moves the site."""
        from numpyro.infer.gibbs import GIBBS_SITES_KWARG

        sites: Any = (model_kwargs or {}).get(GIBBS_SITES_KWARG, {})
        model = self._build(sites)
        _events.check(model)
        ((name, old),) = state.z.items()
        after, first, second, *keys = jax.random.split(state.rng_key, 3 + self._steps)
        if old.shape[-1:] != (_events.size(model),):
            raise ValueError(
                f"`build` must make a model of the units of site {name!r}, of shape {old.shape},"
                f" got one of {_events.size(model)} units."
            )
        chains = math.prod(old.shape[:-1])
        event = old.reshape(chains, old.shape[-1])
        if model.layers[0].finite:
            event = event.astype(jnp.int32)
        start = _events.units(model, event, first)
        chain = self._sampler.init(model, chains, key=second, start=start)
        for key in keys:
            chain, _ = self._sampler.step(model, chain, key=key)
        new = _events.event(model, chain.units).reshape(old.shape).astype(old.dtype)
        return BlockState({name: new}, after)

    def refresh(  # pyright: ignore
        self, state: BlockState, model_args: tuple, model_kwargs: dict[str, object] | None
    ) -> BlockState:
        """Nothing that depends on the other sites is kept."""
        return state

    def wrap_model(self, wrapper: Callable[[Callable], Callable]) -> "SamplerBlock":
        """There is no NumPyro model to wrap."""
        return self

    def get_constrain_fn(
        self, model_args: tuple, model_kwargs: dict[str, object] | None
    ) -> Callable[[PyTree], PyTree]:
        """The site is what it is."""
        return lambda z: z
