import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import log_density

from .. import _checks
from ..models import AbstractPlainModel
from ..samplers import AbstractSampler, require_chain
from . import _events


class BlockState(NamedTuple):
    """The site of a block, and the key of the next step.

    !!! example

        ```python
        import numpyro
        from ebmlearn.numpyro import EnergyDistribution, SamplerBlock

        rbm = ebmlearn.RBM.init(3, 2)

        def model():
            numpyro.sample("x", EnergyDistribution(rbm, None))

        block = SamplerBlock(ebmlearn.Gibbs(), lambda sites: rbm, model)
        kernel = numpyro.infer.Gibbs([(block, ["x"])])
        mcmc = numpyro.infer.MCMC(kernel, num_warmup=10, num_samples=100)
        mcmc.run(jax.random.key(0))
        ```

    **Fields:**

    - `z`: the site.
    - `rng_key`: the key.
    """

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
        import numpyro
        import numpyro.distributions as dist
        from ebmlearn.numpyro import EnergyDistribution, SamplerBlock

        rbm = ebmlearn.RBM.init(visible=3, hidden=2, key=0, scale=1.0)
        seen = jnp.array([1, 1, 0])

        def model():
            x = numpyro.sample("x", EnergyDistribution(rbm, None))
            strength = numpyro.sample("strength", dist.Normal(1.0, 1.0))
            noise = dist.Bernoulli(logits=strength * (2.0 * x - 1))
            numpyro.sample("seen", noise.to_event(1), obs=seen)

        def build(sites):  # log p(seen | x = 1) - log p(seen | x = 0) is a bias
            bias = rbm.visible_bias + sites["strength"] * (2.0 * seen - 1)
            return rbm.with_unary((bias, rbm.hidden_bias))

        block = SamplerBlock(ebmlearn.Gibbs(), build, model)
        kernel = numpyro.infer.Gibbs([(block, ["x"]), (numpyro.infer.NUTS(model), None)])
        mcmc = numpyro.infer.MCMC(kernel, num_warmup=100, num_samples=200)
        mcmc.run(jax.random.key(1))
        ```

    At the start, what `build` makes is compared with `model` at a few states of the site, so that a
    `build` that forgets the likelihood is an error. This needs values, and is left out where JAX
    traces the start.

    Several chains: `numpyro.infer.Gibbs` takes one key, and so no `chain_method="vectorized"`.
    `chain_method=jax.vmap` with `progress_bar=False` runs the chains together, "sequential" one
    after the other, and "parallel" on as many devices.
    """

    sample_field: str = "z"  # pyright: ignore

    def __init__(
        self,
        sampler: AbstractSampler,
        build: Callable[[dict[str, Array]], AbstractPlainModel],
        model: Callable[..., object],
        steps: int = 1,
    ):
        """**Arguments:**

        - `sampler`: [`ebmlearn.Gibbs`][], [`ebmlearn.GibbsWithGradients`][] or
          [`ebmlearn.TemperedTransitions`][]. Samplers with replicas, such as
          [`ebmlearn.ParallelTempering`][], do not work here, because the other blocks do not know
          them.
        - `build`: a function from a dictionary of the values of all other sites to the model. If
          the site has batch axes the model may have one, of as many instances.
        - `model`: the NumPyro model, which the other blocks have too.
        - `steps`: how many steps of the sampler make one of the block.
        """
        require_chain(sampler)
        _checks.function("build", build)
        _checks.function("model", model, "a NumPyro model, a function")
        _checks.count("steps", steps)
        self._sampler = sampler
        self._build = build
        self.model = model
        self._steps = steps

    def __repr__(self) -> str:
        return f"SamplerBlock({self._sampler}, steps={self._steps})"

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
        state = BlockState(
            {name: jnp.asarray(x) for name, x in init_params.items()}, _events.typed(rng_key)
        )
        self._compare(state, model_args, model_kwargs)
        return state

    def sample(
        self, state: BlockState, model_args: tuple, model_kwargs: dict[str, object] | None
    ) -> BlockState:
        """Moves the site."""
        model = self._built(model_kwargs)
        ((name, old),) = state.z.items()
        self._check_site(model, name, old)
        key, after = jax.random.split(state.rng_key)
        new = _events.moved(model, self._sampler, old, self._steps, key)
        return BlockState({name: new}, after)

    def _built(self, model_kwargs: dict[str, object] | None) -> AbstractPlainModel:
        """The model of the site, given all other sites."""
        from numpyro.infer.gibbs import GIBBS_SITES_KWARG

        sites: Any = (model_kwargs or {}).get(GIBBS_SITES_KWARG, {})
        model = self._build(sites)
        try:
            _events.check(model)
        except TypeError as error:
            raise TypeError(f"`build` must return a model of its site: {error}") from None
        return model

    def _check_site(self, model: AbstractPlainModel, name: str, x: Array) -> None:
        """Raises `ValueError` unless a model is one of the units of the site."""
        if x.shape[-1:] != (_events.size(model),):
            raise ValueError(
                f"`build` must make a model of the units of site {name!r}, of shape {x.shape},"
                f" got one of {_events.size(model)} units."
            )
        rows = math.prod(x.shape[:-1])
        if model.batch_shape not in ((), (rows,)):
            raise ValueError(
                f"`build` must make a single model, or one for each of the {rows} rows of site"
                f" {name!r}, got a batch of shape {model.batch_shape}."
            )

    def _compare(
        self, state: BlockState, model_args: tuple, model_kwargs: dict[str, object] | None
    ) -> None:
        """Raises `ValueError` if between states of the site the log-potential of what `build` makes
        differs otherwise than the log density of the NumPyro model.
        """
        model = self._built(model_kwargs)
        ((name, first),) = state.z.items()
        self._check_site(model, name, first)
        if not _checks.is_concrete(
            (first, model_args, model_kwargs, eqx.filter(model, eqx.is_array))
        ):
            return
        values = [first]
        for key in jax.random.split(jax.random.fold_in(state.rng_key, 0), 2):
            chain = self._sampler.init(model, math.prod(first.shape[:-1]), key=key)
            drawn = _events.event(model, chain.units)
            values.append(drawn.reshape(first.shape).astype(first.dtype))
        told = []
        for x in values:
            density, _ = log_density(self.model, model_args, model_kwargs or {}, {name: x})
            rows = x.reshape(-1, x.shape[-1])
            told.append((float(density), float(_events.log_potential(model, rows).sum())))
        scale = np.abs(told).max()
        for wanted, got in np.array(told[1:]) - told[0]:
            if math.isfinite(wanted) and not abs(wanted - got) <= 1e-3 + 1e-4 * scale:
                raise ValueError(
                    f"`build` must make the distribution of site {name!r} given all other sites,"
                    " prior and likelihood together: between two states the log density of `model`"
                    f" changes by {wanted:.4g}, got {got:.4g}."
                )

    def refresh(  # pyright: ignore
        self, state: BlockState, model_args: tuple, model_kwargs: dict[str, object] | None
    ) -> BlockState:
        """Nothing that depends on the other sites is kept."""
        return state

    def wrap_model(self, wrapper: Callable[[Callable], Callable]) -> "SamplerBlock":
        """The block with another NumPyro model."""
        return SamplerBlock(self._sampler, self._build, wrapper(self.model), self._steps)
