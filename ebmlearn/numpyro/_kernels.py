import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree
from numpyro.infer.mcmc import MCMCKernel

from .. import _checks
from .._types import AnyArray
from ..models import AbstractLayeredModel
from ..models._base import require, require_layers, require_single
from ..models._chains import chain_states
from ..models._names import by_layer
from ..samplers import (
    AbstractSampler,
    Gibbs,
    GibbsWithGradients,
    ParallelTempering,
    TemperedTransitions,
)
from ..samplers._base import share_accepted
from ._events import typed


class KernelState(NamedTuple):
    """The state of one chain. NumPyro can collect `energy` and `accepted` as `extra_fields`;
    `accepted` is the share of proposals that the last step accepted, NaN if it made none.
    """

    z: dict[str, Array]
    energy: Float[Array, "..."]
    accepted: Float[Array, "..."]
    chain: PyTree
    rng_key: Array


class _SamplerKernel(MCMCKernel):
    """A sampler as a kernel, with one chain of the sampler for each chain of NumPyro."""

    # There is no NumPyro model behind the units: tools that ask for one find none.
    model = None

    def __init__(self, sampler: AbstractSampler):
        self._sampler = sampler

    @property
    def sample_field(self) -> str:
        """The units, in the state of a chain."""
        return "z"

    def init(
        self,
        rng_key: Array,
        num_warmup: int,
        init_params: dict[str, PyTree] | None = None,
        model_args: tuple = (),
        model_kwargs: dict[str, object] | None = None,
    ) -> KernelState:
        """The start of a chain, or of several if there are several keys."""
        model, clamped = _arguments(model_args, model_kwargs)
        rng_key = typed(rng_key)
        start = _first_units(model, init_params, clamped, rng_key.size)
        if rng_key.ndim == 0:
            return self._start(rng_key, start, model, clamped)
        axis = None if start is None else 0
        return jax.vmap(lambda key, start: self._start(key, start, model, clamped), (0, axis))(
            rng_key, start
        )

    def sample(
        self, state: KernelState, model_args: tuple, model_kwargs: dict[str, object] | None
    ) -> KernelState:
        """One step of a chain, or of several."""
        model, _ = _arguments(model_args, model_kwargs)
        if state.rng_key.ndim == 0:
            return self._step(state, model)
        return jax.vmap(lambda state: self._step(state, model))(state)

    def refresh(  # pyright: ignore
        self, state: KernelState, model_args: tuple, model_kwargs: dict[str, object] | None
    ) -> KernelState:
        """Nothing that a step needs is kept."""
        return state

    def get_diagnostics_str(self, state: KernelState) -> str:  # pyright: ignore
        """What the progress bar shows."""
        accepted = float(jnp.mean(state.accepted))
        text = f"energy {float(jnp.mean(state.energy)):.3g}"
        return text if math.isnan(accepted) else f"{text}, accepted {accepted:.0%}"

    def _start(self, key: Array, start: Any, model: Any, clamped: Any) -> KernelState:
        one, two = jax.random.split(key)
        chain = self._sampler.init(model, 1, key=one, start=start, clamped=clamped)
        nan = jnp.full((), jnp.nan, model.dtype)
        return KernelState(_sites(model, chain.units), nan, nan, chain, two)

    def _step(self, state: KernelState, model: Any) -> KernelState:
        one, two = jax.random.split(state.rng_key)
        chain, info = self._sampler.step(model, state.chain, key=one)
        accepted = share_accepted(info)
        accepted = state.accepted if accepted is None else accepted.astype(state.accepted.dtype)
        return KernelState(_sites(model, chain.units), info.energy[0], accepted, chain, two)


class GibbsKernel(_SamplerKernel):
    """[`ebmlearn.Gibbs`][] for NumPyro.

    !!! example

        ```python
        mcmc = numpyro.infer.MCMC(GibbsKernel(), num_warmup=100, num_samples=1000)
        mcmc.run(jax.random.key(0), rbm)
        mcmc.get_samples()["visible"]  # integers of shape [1000, visible]
        ```

    The keyword `clamped` of `run` fixes units at their `init_params`: `mcmc.run(key, rbm,
    clamped=Layers(mask, None), init_params={"visible": v})`. Units without `init_params` start at
    random.
    """

    def __init__(self, beta: float = 1.0):
        """**Arguments:**

        - `beta`: the inverse temperature.
        """
        super().__init__(Gibbs(beta))


class NNBMGibbsKernel(_SamplerKernel):
    """[`ebmlearn.Gibbs`][] for nonnegative units in NumPyro. Each unit is drawn from a truncated
    normal distribution; units that are not joined are drawn at the same time.

    !!! example

        ```python
        mcmc = numpyro.infer.MCMC(NNBMGibbsKernel(), num_warmup=100, num_samples=1000)
        mcmc.run(jax.random.key(0), nnbm)
        mcmc.get_samples()["x"]  # real numbers of shape [1000, n]
        ```
    """

    def __init__(self, beta: float = 1.0):
        """**Arguments:**

        - `beta`: the inverse temperature.
        """
        super().__init__(Gibbs(beta))

    def _start(self, key: Array, start: Any, model: Any, clamped: Any) -> KernelState:
        require(model, ("nonnegative",), "NNBMGibbsKernel")
        return super()._start(key, start, model, clamped)


class GibbsWithGradientsKernel(_SamplerKernel):
    """[`ebmlearn.GibbsWithGradients`][] for NumPyro, used as [`ebmlearn.numpyro.GibbsKernel`][]."""

    def __init__(self, flips: int = 1, beta: float = 1.0):
        """**Arguments:**

        - `flips`: the number of flips that a step proposes.
        - `beta`: the inverse temperature.
        """
        super().__init__(GibbsWithGradients(flips, beta=beta))


class TemperedTransitionsKernel(_SamplerKernel):
    """[`ebmlearn.TemperedTransitions`][] for NumPyro, as [`ebmlearn.numpyro.GibbsKernel`][]."""

    def __init__(self, betas: Sequence[float] | Float[AnyArray, " betas"], sweeps: int = 1):
        """**Arguments:**

        - `betas`: inverse temperatures that increase to 1.
        - `sweeps`: the number of sweeps at each temperature, in each direction.
        """
        super().__init__(TemperedTransitions(betas, sweeps=sweeps))


class ParallelTemperingKernel(_SamplerKernel):
    """[`ebmlearn.ParallelTempering`][] for NumPyro, used as [`ebmlearn.numpyro.GibbsKernel`][]. The
    samples are those at inverse temperature 1, and `accepted` is the share of swaps.
    """

    def __init__(self, betas: Sequence[float] | Float[AnyArray, " betas"]):
        """**Arguments:**

        - `betas`: inverse temperatures that increase to 1.
        """
        super().__init__(ParallelTempering(betas))


def _arguments(args: tuple, kwargs: dict[str, Any] | None) -> tuple[AbstractLayeredModel, Any]:
    kwargs = dict(kwargs or {})
    clamped = kwargs.pop("clamped", None)
    if len(args) != 1 or kwargs:
        raise TypeError(
            "`mcmc.run` must be given a key, the model, and at most `clamped`, got"
            f" {len(args)} arguments and the keywords {sorted(kwargs)}."
        )
    (model,) = args
    require_layers(model, "kernels")
    require_single(model)
    return model, clamped


def _sites(model: AbstractLayeredModel, units: Any) -> dict[str, Array]:
    """The units of the only chain, by the names of their sites."""
    return {name: x[0] for name, x in zip(model.names, jax.tree.leaves(units), strict=True)}


def _first_units(model: AbstractLayeredModel, sites: Any, clamped: Any, chains: int) -> Any:
    """The units that `init_params` names, for each chain; those it does not are drawn."""
    names = list(model.names)
    sites = {} if sites is None else sites
    if not isinstance(sites, dict) or set(sites) - set(names):
        got = sorted(sites) if isinstance(sites, dict) else _checks.describe(sites)
        raise ValueError(f"`init_params` must be a dictionary of some of {names}, got {got}.")
    values = []
    masks = by_layer("clamped", model.names, clamped)
    for name, mask, layer in zip(names, masks, model.layers, strict=True):
        x = sites.get(name)
        if x is not None:
            label = f"init_params[{name!r}]"
            x = chain_states(label, x, chains, layer, model.dtype)
        elif mask is not None:
            raise ValueError(
                f"`init_params` must hold {name!r}, where units are clamped, got {sorted(sites)}."
            )
        values.append(x)
    return model.units(values) if sites else None
