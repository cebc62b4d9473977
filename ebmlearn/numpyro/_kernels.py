import math
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from numpyro.infer.mcmc import MCMCKernel

from .. import _checks
from .._types import AnyArray
from ..models import AbstractPlainModel, by_layer, chain_states, require_layers, require_single
from ..samplers import (
    AbstractSampler,
    Gibbs,
    GibbsWithGradients,
    Ladder,
    ladder_of,
    ParallelTempering,
    require_sampler,
    share_accepted,
    TemperedTransitions,
    Trajectory,
    TrajectoryTempering,
    with_ladder,
)
from ..units import AbstractUnits
from ._events import typed


class KernelState(NamedTuple):
    """The state of one chain, as NumPyro keeps it. `potential_energy`, `accept_prob`, `swap_rates`
    and `betas` can be asked for as `extra_fields`.

    !!! example

        ```python
        from ebmlearn.numpyro import GibbsKernel
        from numpyro.infer import MCMC

        mcmc = MCMC(GibbsKernel(), num_warmup=10, num_samples=100)
        mcmc.run(jax.random.key(0), ebmlearn.RBM.init(16, 8), extra_fields=("potential_energy",))
        mcmc.get_extra_fields()["potential_energy"]
        ```

    **Fields:**

    - `z`: the states of the sites.
    - `ladder`, `chain`: the sampler's own states, from which `swap_rates` and `betas` come.
    - `rng_key`: the key of the next step.
    - `potential_energy`: the energy of the model.
    - `accept_prob`: the share of proposals that the last step accepted, or of swaps; NaN where it
      made none.
    - `swap_rates`: of samplers with replicas, the share of swaps made between each pair of
      neighbours, in parallel tempering since the temperatures were last moved.
    - `betas`: of parallel tempering, the inverse temperatures.
    """

    z: dict[str, Array]
    potential_energy: Float[Array, "..."]
    accept_prob: Float[Array, "..."]
    ladder: Ladder | None
    chain: PyTree
    rng_key: Array

    @property
    def swap_rates(self) -> Float[Array, "..."]:
        """The share of swaps made between each pair of neighbouring replicas."""
        return self._of_ladder("swap_rates", "rates", "samplers with replicas have")

    @property
    def betas(self) -> Float[Array, "..."]:
        """The inverse temperatures."""
        return self._of_ladder("betas", "betas", "`ParallelTempering` has")

    def _of_ladder(self, field: str, name: str, who: str) -> Float[Array, "..."]:
        x = getattr(self.ladder, name, None)
        if x is None:
            raise ValueError(f"`extra_fields` must not hold {field!r} here: only {who} it.")
        return jnp.broadcast_to(x, (*self.rng_key.shape, *x.shape))


class _NoBlock:
    """NumPyro looks for `refresh` at the class of a kernel that is to be a block of
    `numpyro.infer.Gibbs`. These have none, and this says what to write instead.
    """

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(
            f"a `{owner.__name__}` must not be a block of `numpyro.infer.Gibbs`, since it knows"
            " nothing of other sites: write `SamplerBlock(sampler, build, model)`, where `build`"
            " makes the distribution of its site from them and `model` is the NumPyro model."
        )


class SamplerKernel(MCMCKernel):
    """Any sampler as a kernel of `numpyro.infer.MCMC`. The model is an argument of the run, and the
    sites are its units: `visible` and `hidden` (`hidden_1`, `hidden_2`, ... for a DBM), or `x`. The
    sites of a graph are its groups of variables, `x`, or `x_0`, `x_1` and so on; its `clamped` is a
    dictionary of masks by these names.

    !!! example

        ```python
        from ebmlearn.numpyro import SamplerKernel
        from numpyro.infer import MCMC

        mcmc = MCMC(SamplerKernel(ebmlearn.Gibbs()), num_warmup=100, num_samples=1000)
        mcmc.run(jax.random.key(0), ebmlearn.RBM.init(16, 8), extra_fields=("potential_energy",))
        mcmc.get_samples()["visible"]  # integers of shape [1000, 16]
        ```

    The keyword `clamped` of `run` holds units at their `init_params`: `mcmc.run(key, rbm,
    clamped=Layers(mask, None), init_params={"visible": v})`. `init_params` holds states of some
    sites, integers, booleans, or floats that are integers; the other sites are drawn at random. Of
    several chains it has a leading axis of them; a list does for one chain.

    With `chain_method="vectorized"` all chains step together as in [`ebmlearn.sample`][], which is
    fastest on one device; the draws are others than those of "sequential" and "parallel".
    NumPyro compiles every `run` anew where it shows no progress bar: `fori_collect` jits a new
    function each time. To compile once, jit a function that makes the `MCMC` object:

        ```python
        @jax.jit
        def draw(key, rbm):
            mcmc = MCMC(kernel, num_warmup=100, num_samples=1000, num_chains=4,
                        chain_method="vectorized", progress_bar=False)
            mcmc.run(key, rbm)
            return mcmc.get_samples()
        ```
    """

    # There is no NumPyro model behind the units: tools that ask for one find none.
    model = None
    sample_field: str = "z"  # pyright: ignore
    refresh: Any = _NoBlock()

    def __init__(self, sampler: AbstractSampler, adapt: bool = True):
        """**Arguments:**

        - `sampler`: for instance [`ebmlearn.Gibbs`][].
        - `adapt`: whether the ladder of [`ebmlearn.ParallelTempering`][] is moved during warm-up
          so that neighbours swap equally often, as [`ebmlearn.adapt_ladder`][] does. Vectorised
          chains share a ladder. It needs a `num_warmup` of 80 at least.
        """
        require_sampler(sampler)
        self.sampler = sampler
        self.adapt = adapt

    def __repr__(self) -> str:
        return f"SamplerKernel({self.sampler}{'' if self.adapt else ', adapt=False'})"

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
        chains = rng_key.size
        start, clamped = _first_units(model, init_params, clamped, chains)
        one, after = _split(rng_key)
        chain = self.sampler.init(model, chains, key=one, start=start, clamped=clamped)
        nan = jnp.full(rng_key.shape, jnp.nan, model.dtype)
        ladder = ladder_of(self.sampler, num_warmup if self.adapt else 0, model.dtype)
        sites = _sites(model, chain.units, rng_key.shape)
        return KernelState(sites, nan, nan, ladder, chain, after)

    def sample(
        self, state: KernelState, model_args: tuple, model_kwargs: dict[str, object] | None
    ) -> KernelState:
        """One step of a chain, or of several."""
        model, _ = _arguments(model_args, model_kwargs)
        shape = state.rng_key.shape
        one, after = _split(state.rng_key)
        sampler = with_ladder(self.sampler, state.ladder)
        chain, info = sampler.step(model, state.chain, key=one)
        accepted = share_accepted(info)
        accepted = jnp.asarray(jnp.nan if accepted is None else accepted, model.dtype)
        ladder = None if state.ladder is None else state.ladder.counted(info)
        return KernelState(
            _sites(model, chain.units, shape),
            model.energies(model.encode(chain.units)).reshape(shape),
            jnp.broadcast_to(accepted, shape),
            ladder,
            chain,
            after,
        )

    def get_diagnostics_str(self, state: KernelState) -> str:  # pyright: ignore
        """Figures for the progress bar."""
        text = f"energy {float(jnp.mean(state.potential_energy)):.3g}"
        accepted = float(jnp.mean(state.accept_prob))
        if state.ladder is not None:
            least = float(jnp.nanmin(state.ladder.rates))
            return text if math.isnan(least) else f"{text}, least swaps {least:.0%}"
        return text if math.isnan(accepted) else f"{text}, accepted {accepted:.0%}"


def GibbsKernel(beta: float = 1.0) -> SamplerKernel:
    """[`ebmlearn.Gibbs`][] for NumPyro.

    !!! example

        ```python
        from ebmlearn.numpyro import GibbsKernel
        from numpyro.infer import MCMC

        mcmc = MCMC(GibbsKernel(), num_warmup=100, num_samples=1000)
        mcmc.run(jax.random.key(0), ebmlearn.RBM.init(16, 8))
        mcmc.get_samples()["visible"]  # integers of shape [1000, 16]
        ```

    **Arguments:**

    - `beta`: the inverse temperature.
    """
    return SamplerKernel(Gibbs(beta))


def NNBMGibbsKernel(beta: float = 1.0) -> SamplerKernel:
    """[`ebmlearn.Gibbs`][] for NumPyro. Nonnegative units are drawn from truncated normal
    distributions, those that are not joined together.

    !!! example

        ```python
        from ebmlearn.numpyro import NNBMGibbsKernel
        from numpyro.infer import MCMC

        nnbm = ebmlearn.NNBM(couplings=jnp.eye(3) + 0.5, bias=jnp.ones(3))
        mcmc = MCMC(NNBMGibbsKernel(), num_warmup=100, num_samples=1000)
        mcmc.run(jax.random.key(0), nnbm)
        mcmc.get_samples()["x"]  # real numbers of shape [1000, 3]
        ```

    **Arguments:**

    - `beta`: the inverse temperature.
    """
    return SamplerKernel(Gibbs(beta))


def GibbsWithGradientsKernel(flips: int = 1, beta: float = 1.0) -> SamplerKernel:
    """[`ebmlearn.GibbsWithGradients`][] for NumPyro.

    !!! example

        ```python
        from ebmlearn.numpyro import GibbsWithGradientsKernel
        from numpyro.infer import MCMC

        mcmc = MCMC(GibbsWithGradientsKernel(flips=4), num_warmup=100, num_samples=1000)
        mcmc.run(jax.random.key(0), ebmlearn.RBM.init(16, 8))
        ```

    **Arguments:**

    - `flips`: how many flips are proposed in a step.
    - `beta`: the inverse temperature.
    """
    return SamplerKernel(GibbsWithGradients(flips, beta=beta))


def TemperedTransitionsKernel(
    betas: Sequence[float] | Float[AnyArray, " betas"], sweeps: int = 1
) -> SamplerKernel:
    """[`ebmlearn.TemperedTransitions`][] for NumPyro.

    !!! example

        ```python
        from ebmlearn.numpyro import TemperedTransitionsKernel
        from numpyro.infer import MCMC

        kernel = TemperedTransitionsKernel(jnp.linspace(0.5, 1, 11))
        mcmc = MCMC(kernel, num_warmup=100, num_samples=1000)
        mcmc.run(jax.random.key(0), ebmlearn.RBM.init(16, 8))
        ```

    **Arguments:**

    - `betas`: inverse temperatures that increase to 1.
    - `sweeps`: how many at each temperature, in each direction.
    """
    return SamplerKernel(TemperedTransitions(betas, sweeps=sweeps))


def ParallelTemperingKernel(
    betas: Sequence[float] | Float[AnyArray, " betas"], adapt: bool = True
) -> SamplerKernel:
    """[`ebmlearn.ParallelTempering`][] for NumPyro. The samples are those at inverse temperature 1.

    !!! example

        ```python
        from ebmlearn.numpyro import ParallelTemperingKernel
        from numpyro.infer import MCMC

        kernel = ParallelTemperingKernel(jnp.linspace(0, 1, 11))
        mcmc = MCMC(kernel, num_warmup=400, num_samples=1000)
        rbm = ebmlearn.RBM.init(16, 8)
        mcmc.run(jax.random.key(0), rbm, extra_fields=("swap_rates", "betas"))
        mcmc.get_extra_fields()["swap_rates"][-1]
        ```

    **Arguments:**

    - `betas`: inverse temperatures that increase to 1.
    - `adapt`: whether they are moved during warm-up, as for [`ebmlearn.numpyro.SamplerKernel`][].
    """
    return SamplerKernel(ParallelTempering(betas), adapt)


def TrajectoryTemperingKernel(trajectory: Trajectory) -> SamplerKernel:
    """[`ebmlearn.TrajectoryTempering`][] for NumPyro. The samples are those of the model that is
    passed to `run`.

    !!! example

        ```python
        from ebmlearn.numpyro import TrajectoryTemperingKernel
        from numpyro.infer import MCMC

        models = [ebmlearn.RBM.init(16, 8, scale=scale) for scale in (0.1, 0.5, 1.0)]
        kernel = TrajectoryTemperingKernel(ebmlearn.Trajectory(models))
        mcmc = MCMC(kernel, num_warmup=100, num_samples=1000)
        mcmc.run(jax.random.key(0), models[-1], extra_fields=("swap_rates",))
        ```

    **Arguments:**

    - `trajectory`: models of the shape of the sampled one, the easiest first.
    """
    return SamplerKernel(TrajectoryTempering(trajectory))


def _arguments(args: tuple, kwargs: dict[str, Any] | None) -> tuple[AbstractPlainModel, Any]:
    kwargs = dict(kwargs or {})
    clamped = kwargs.pop("clamped", None)
    if len(args) != 1 or kwargs:
        raise TypeError(
            "`mcmc.run` must be given a key, the model, and at most `clamped`, got"
            f" {len(args)} arguments and the keywords {sorted(kwargs)}."
        )
    (model,) = args
    if not getattr(model, "grouped", False):
        require_layers(model, "kernels")
    require_single(model)
    return model, clamped


def _split(key: Array) -> tuple[Array, Array]:
    """The key of a step of all chains, and those that the chains keep."""
    if key.ndim == 0:
        one, after = jax.random.split(key)
        return one, after
    keys = jax.vmap(jax.random.split)(key)
    return keys[0, 0], keys[:, 1]


def _sites(model: AbstractPlainModel, units: Any, shape: tuple[int, ...]) -> dict[str, Array]:
    """The units of chains, or of the only one, by the names of their sites."""
    pairs = zip(model.names, model.variables.parts(units), strict=True)
    return {name: x.reshape(*shape, x.shape[-1]) for name, x in pairs}


def _first_units(
    model: AbstractPlainModel, sites: Any, clamped: Any, chains: int
) -> tuple[Any, Any]:
    """The units that `init_params` names, for each chain, and which of them are held; those it does
    not name are drawn.
    """
    names = list(model.names)
    sites, values = _by_name("init_params", sites, names), []
    if model.grouped:
        own = _by_name("clamped", clamped, names)
        masks = [own.get(name) for name in names]
    else:
        masks = by_layer("clamped", model.names, clamped)
    for name, mask, layer in zip(names, masks, model.layers, strict=True):
        x = sites.get(name)
        if x is not None:
            label = f"init_params[{name!r}]"
            x = chain_states(label, _as_states(label, x, layer), chains, layer, model.dtype)
        elif mask is not None:
            raise ValueError(
                f"`init_params` must hold {name!r}, where units are clamped, got {sorted(sites)}."
            )
        values.append(x)
    if not sites:
        return None, clamped
    if not model.grouped:
        return model.named(values), clamped
    # A graph has one row of states for all groups.
    sizes = [(chains, layer.size) for layer in model.layers]
    pairs = [*zip(values, masks, sizes, strict=True)]
    rows = [jnp.full(size, -1, jnp.int32) if x is None else x for x, _, size in pairs]
    held = [jnp.broadcast_to(False if mask is None else mask, size) for _, mask, size in pairs]
    return jnp.concatenate(rows, -1), None if clamped is None else jnp.concatenate(held, -1)


def _by_name(argument: str, given: Any, names: list[str]) -> dict[str, Any]:
    """A dictionary of some of these names, checked."""
    given = {} if given is None else given
    if not isinstance(given, dict) or set(given) - set(names):
        got = sorted(given) if isinstance(given, dict) else _checks.describe(given)
        raise ValueError(f"`{argument}` must be a dictionary of some of {names}, got {got}.")
    return given


def _as_states(name: str, x: Any, layer: AbstractUnits) -> Array:
    """States of units as they are stored, from lists, booleans, and floats that are integers."""
    # NumPyro turns the numbers of a list into arrays.
    x = jnp.stack([jnp.asarray(v) for v in x]) if isinstance(x, (list, tuple)) else jnp.asarray(x)
    if not layer.finite:
        return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))
    if jnp.issubdtype(x.dtype, jnp.floating) and _checks.is_concrete(x):
        wrong = np.asarray(x) != np.round(np.asarray(x))
        if wrong.any():
            raise ValueError(f"`{name}` must hold integers, got {np.asarray(x)[wrong][0]}.")
    return x.astype(jnp.int32)
