from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Shaped

from .. import _checks, _watch
from .._types import AnyArray, Key
from .._watch import Watch
from ..models import AbstractPlainModel, named_types, require_layers
from ..samplers import start_chains
from ._path import independent, log_mean, Path, require_annealed, States, walk


# Steps along the path in one call.
_SLICE = 50


class AISEstimate(eqx.Module):
    """An estimate of log Z by [`ebmlearn.ais`][] or [`ebmlearn.reverse_ais`][].

    !!! example

        ```python
        found = ebmlearn.ais(ebmlearn.RBM.init(16, 8))
        found.log_partition, found.standard_error, found.effective_chains
        ```

    **Fields:**

    - `log_partition`: the estimate.
    - `standard_error`: its standard error, from the spread of the weights. It is too small if few
      chains carry most of the weight: see `effective_chains`.
    - `log_weights`: the log-weight of each chain.
    - `effective_chains`: the number of equally weighted chains that would be as good.
    - `steps`: the number of steps along the path; less than asked for if `seconds` were too few.
    """

    log_partition: Float[Array, ""]
    standard_error: Float[Array, ""]
    log_weights: Float[Array, " chains"]
    effective_chains: Float[Array, ""]
    steps: int = eqx.field(static=True)


def base_rate(
    data: Shaped[AnyArray, "rows visible"], smoothing: float = 1.0
) -> Float[Array, " visible"]:
    """The log-odds of each visible unit in data, a good start for annealing. `smoothing` rows with
    the unit at 1, and as many with it at 0, are added to the data.

    !!! example

        ```python
        from ebmlearn import datasets

        data = datasets.digits().train.x
        base = ebmlearn.estimate.base_rate(data)
        ebmlearn.ais(ebmlearn.RBM.init(64, 8), base=base).log_partition
        ```

    **Arguments:**

    - `data`: rows of visible units, 0 or 1.
    - `smoothing`: how many rows of each kind are added.
    """
    _checks.rank("data", data, 2, "[rows, visible]")
    _checks.number("smoothing", smoothing, 0, float("inf"), "(0, inf)")
    _checks.binary_rows("data", data)
    x = jnp.asarray(data).astype(jnp.result_type(float))
    return jnp.log((x.sum(0) + smoothing) / ((1 - x).sum(0) + smoothing))


@_checks.usage("ais(model, betas=1000, key=0)")
def ais(
    model: AbstractPlainModel,
    *,
    key: Key = 0,
    betas: int | Float[AnyArray, " betas"] = 1000,
    num_chains: int = 100,
    base: Float[AnyArray, " visible"] | None = None,
    seconds: float | int | None = None,
    progress: bool = True,
) -> AISEstimate:
    """Estimates log Z by annealed importance sampling (Neal 2001; for RBMs Salakhutdinov & Murray
    2008). Chains move from independent units to the model along
    $p_\\beta \\propto p_0^{1-\\beta} p^\\beta$ and collect weights on the way. Hidden units (odd
    layers) are summed out.

    The mean weight is an unbiased estimate of Z, so the estimate of log Z tends to be too low.

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(16, 8)
        data = ebmlearn.sample(rbm, ebmlearn.Gibbs(), 100).visible
        base = ebmlearn.estimate.base_rate(data)
        found = ebmlearn.ais(rbm, betas=1000, num_chains=100, base=base)
        found.log_partition, found.standard_error
        ```

    **Arguments:**

    - `model`: any model whose units have finitely many states: of layers, an
      [`ebmlearn.EnergyModel`][], or a graph.
    - `key`: a seed, or a key such as `jax.random.key(0)`.
    - `betas`: the number of evenly spaced steps, or the inverse temperatures, from 0 to 1.
    - `num_chains`: the number of chains.
    - `base`: log-odds of the visible units at the start, zero by default. The
      [`ebmlearn.estimate.base_rate`][] of the data is a good choice. All other units start at
      log-odds 0. For a graph it must be None: all possible configurations are equally likely at the
      start.
    - `seconds`: how long it may take, compilation included. If the time is too short for all steps,
      the rest of the path is passed in fewer, longer steps. The mean weight stays unbiased, since
      the choice depends on the clock alone; the error is larger.
    - `progress`: whether to show a progress bar in a terminal or a notebook, if the call takes more
      than two seconds.
    """
    path, positions = _checked(model, base, betas)
    _checks.count("num_chains", num_chains)
    one, rest = jax.random.split(_checks.as_key(key))
    two, three = jax.random.split(rest)
    with Watch("ais", len(positions) - 1, seconds, progress=progress) as watch:
        layers = independent(path, num_chains, one, two)
        return _annealed(path, positions, layers, three, 1, watch)


def reverse_ais(
    model: AbstractPlainModel,
    start: PyTree,
    *,
    key: Key = 0,
    betas: int | Float[AnyArray, " betas"] = 1000,
    base: Float[AnyArray, " visible"] | None = None,
    seconds: float | int | None = None,
    progress: bool = True,
) -> AISEstimate:
    """Estimates log Z by annealing in the opposite direction (Burda et al. 2015): from
    configurations of the model to independent units.

    If `start` is drawn exactly from the model, the estimate tends to be too high, so it brackets
    log Z together with [`ebmlearn.ais`][]. This does not hold for chains that have not mixed: take
    the end of a long run of parallel tempering.

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(16, 8)
        start = ebmlearn.sample(rbm, ebmlearn.Gibbs(), 100, burn_in=100)
        ebmlearn.reverse_ais(rbm, start, betas=1000).log_partition
        ```

    **Arguments:**

    - `model`, `key`, `betas`, `base`, `seconds`, `progress`: as for `ais`.
    - `start`: configurations as [`ebmlearn.sample`][] returns them, one for each chain.
    """
    path, positions = _checked(model, base, betas)
    named, array = isinstance(start, named_types(model)), start
    if named:
        array = jnp.concatenate(model.variables.folded(start), -1)
    if not (named or model.grouped) or getattr(array, "ndim", None) != 2:
        got = _checks.describe(start)
        raise ValueError(f"`start` must hold configurations of all units, got {got}.")
    key = _checks.as_key(key)
    state = start_chains(model, array.shape[0], key, start, None)
    layers = [x[None] for x in model.encode(state.units)]
    with Watch("reverse_ais", len(positions) - 1, seconds, progress=progress) as watch:
        return _annealed(path, positions[::-1], layers, key, -1, watch)


def _checked(
    model: AbstractPlainModel, base: Any, betas: Any
) -> tuple[Path, Float[np.ndarray, " betas"]]:
    """The path, and the positions of its steps."""
    require_annealed(model, "annealing")
    unary = model.unary()
    dtype = unary[0].dtype
    if base is None:
        base = jnp.zeros_like(unary[0])
    else:
        require_layers(model, "annealing from a `base`")
    _checks.exact_shape("base", base, unary[0].shape, "a number for each visible unit")
    base = jnp.asarray(base).astype(dtype)
    _checks.finite(base=base)
    if isinstance(betas, (int, np.integer)) and not isinstance(betas, bool):
        _checks.count("betas", betas)
        positions = np.linspace(0, 1, int(betas) + 1)
    else:
        positions = np.asarray(betas, np.float64)
        rising = positions.ndim == 1 and len(positions) > 1 and bool((np.diff(positions) > 0).all())
        if not rising or positions[0] != 0 or positions[-1] != 1:
            got = _checks.describe(positions)
            raise ValueError(
                f"`betas` must be a number of steps, or increase from 0 to 1, got {got}."
            )
    rest = tuple(jnp.zeros_like(bias) for bias in unary[1:])
    return Path(model, (base, *rest)), positions.astype(dtype)


def _annealed(
    path: Path,
    positions: np.ndarray,
    layers: States,
    key: PRNGKeyArray,
    sign: int,
    watch: Watch,
) -> AISEstimate:
    """What chains find along a path: log Z of its start, plus or minus the log-mean of weights."""
    start, log_weights = path.start(), jnp.zeros(layers[0].shape[1], layers[0].dtype)
    most = len(positions) - 1
    keys, size, done = jax.random.split(key, most), min(_SLICE, most), 0
    while done < len(positions) - 1:
        began = _watch.clock()
        # To stand still at the end adds nothing to the weights.
        at = np.minimum(np.arange(done, done + size + 1), len(positions) - 1)
        steps = keys[np.minimum(at[:-1], most - 1)]
        found = _gained(path, jnp.asarray(positions[at, None]), layers, steps)
        layers, gains = jax.block_until_ready(found)
        log_weights, last, done = log_weights + gains, done, int(at[-1])
        # The first call compiles, so it says nothing of the others.
        if last or watch.over:
            calls = max(1.0, watch.left / (_watch.clock() - began))
            positions = _shortened(positions, done, size * calls)
        watch.count(done - last, len(positions) - 1)
    mean, error = log_mean(log_weights)
    return AISEstimate(
        log_partition=start + sign * mean,
        standard_error=error,
        log_weights=log_weights,
        effective_chains=float(len(log_weights)) ** 2 / jnp.exp(2 * (log_weights - mean)).sum(),
        steps=done,
    )


def _shortened(positions: np.ndarray, done: int, steps: float) -> np.ndarray:
    """The positions with at most so many steps after those that are done."""
    rest = positions[done:]
    if len(rest) - 1 <= steps:
        return positions
    kept = np.linspace(0, len(rest) - 1, int(steps) + 1).round().astype(int)
    return np.concatenate([positions[:done], rest[kept]])


@eqx.filter_jit
def _gained(
    path: Path, positions: Array, layers: States, keys: Shaped[PRNGKeyArray, " steps"]
) -> tuple[States, Float[Array, " chains"]]:
    """The states after some steps of annealing, and the log-weights that they add."""
    layers, gains, _ = walk(path, positions, layers, keys)
    return layers, gains[0]
