import math
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree, Shaped

from .. import _checks
from .._types import Key
from .._watch import Watch
from ..models import AbstractModel, AbstractPlainModel, structure_of
from ._base import AbstractSampler, require_sampler
from ._modes import ERRORS, gaps, on_modes


_ROUND = 32
# Steps in one call.
_SLICE = 256


@_checks.usage(
    "sample(model, Gibbs(), 1000, key=0)",
    with_info="samples, info = sample_with_info(model, sampler, num_samples)",
)
def sample(
    model: AbstractModel,
    sampler: AbstractSampler,
    num_samples: int,
    *,
    key: Key = 0,
    num_chains: int | None = None,
    burn_in: int = 0,
    thin: int = 1,
    start: PyTree = None,
    clamped: PyTree = None,
    check: bool = False,
    seconds: float | int | None = None,
    progress: bool = True,
) -> PyTree:
    """Draws configurations of a model. [`ebmlearn.sample_with_info`][] also returns what the
    sampler says of its steps.

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(16, 8)
        samples = ebmlearn.sample(rbm, ebmlearn.Gibbs(), 1000, num_chains=50, burn_in=200)
        samples.visible.shape  # (1000, 16)
        ```

    **Arguments:**

    - `model`: any model of layers, such as an RBM or a conditioned CRBM, an
      [`ebmlearn.EnergyModel`][], or a graph.
    - `sampler`: for instance [`ebmlearn.Gibbs`][].
    - `num_samples`: the number of configurations, over all chains.
    - `key`: a seed, or a key such as `jax.random.key(0)`.
    - `num_chains`: the number of chains; by default 100, or `num_samples` if that is smaller or the
      draws are independent.
    - `burn_in`: the number of steps of each chain before its first sample.
    - `thin`: the number of steps between two samples of a chain.
    - `start`, `clamped`: as for `sampler.init`.
    - `check`: whether to run as many chains again from random states, and to warn if they disagree
      with those from `start`, which should be rows of data such as `Layers(data[:100], None)`: if
      their means along slow modes of the model differ by more than 4.5 standard errors. This takes
      twice as long. [`ebmlearn.equilibrium`][] says more.
    - `seconds`: how long it may take, compilation included. If that is too short, a warning says
      how many configurations were drawn, at least one from each chain, and those are returned.
    - `progress`: whether to show a progress bar in a terminal or a notebook, if the call takes more
      than two seconds.

    **Returns:**

    Arrays `[num_samples, n]`, named as the units of the model: integers, or real numbers for
    Gaussian and nonnegative units. The first samples of all chains come first, then the second
    ones, and so on; surplus samples of the last round are dropped. For a graph, `samples[group]` is
    an array of integers `[num_samples, *shape]`.
    """
    number = _number_of_chains(sampler, num_samples, num_chains)
    options: Any = {"num_chains": number, "burn_in": burn_in, "thin": thin, "progress": progress}
    options["seconds"] = seconds
    if check:
        _can_check(num_samples, number, start, clamped)
        options["seconds"] = None if seconds is None else seconds / 2
    drawn, _ = _drawn(model, sampler, num_samples, key, start, clamped, False, **options)
    if check:
        own = jax.random.fold_in(_checks.as_key(key), 2)
        others, _ = _drawn(model, sampler, num_samples, own, None, None, False, **options)
        _compare(model, drawn, others, number)  # pyright: ignore
    return drawn


@_checks.usage("sample_with_info(model, Gibbs(), 1000, key=0)")
def sample_with_info(
    model: AbstractModel,
    sampler: AbstractSampler,
    num_samples: int,
    *,
    key: Key = 0,
    num_chains: int | None = None,
    burn_in: int = 0,
    thin: int = 1,
    start: PyTree = None,
    clamped: PyTree = None,
    seconds: float | int | None = None,
    progress: bool = True,
) -> tuple[PyTree, PyTree]:
    """Draws configurations, and says how the steps of the sampler went.

    !!! example

        ```python
        sampler = ebmlearn.TemperedTransitions([0.5, 1.0])
        rbm = ebmlearn.RBM.init(16, 8)
        samples, info = ebmlearn.sample_with_info(rbm, sampler, 1000, burn_in=100)
        info.accepted.mean()
        ```

    **Arguments:**

    - `model`, `sampler`, `num_samples`, `key`, `num_chains`, `burn_in`, `thin`, `start`, `clamped`,
      `seconds`, `progress`: as for [`ebmlearn.sample`][].

    **Returns:**

    A pair: the samples, and the info of the sampler, with a leading axis of steps and without
    burn-in.
    """
    number = _number_of_chains(sampler, num_samples, num_chains)
    options: Any = {"num_chains": number, "burn_in": burn_in, "thin": thin, "progress": progress}
    options["seconds"] = seconds
    return _drawn(model, sampler, num_samples, key, start, clamped, True, **options)


def _number_of_chains(sampler: AbstractSampler, num_samples: int, num_chains: int | None) -> int:
    require_sampler(sampler, ": write `sample(model, Gibbs(), 1000, key=0)`")
    _checks.count("num_samples", num_samples)
    if num_chains is None:
        return num_samples if sampler.independent else min(num_samples, 100)
    _checks.count("num_chains", num_chains)
    return num_chains


def _drawn(
    model: AbstractModel,
    sampler: AbstractSampler,
    num_samples: int,
    key: Key,
    start: PyTree,
    clamped: PyTree,
    with_info: bool,
    *,
    num_chains: int,
    burn_in: int,
    thin: int,
    seconds: float | int | None,
    progress: bool,
) -> tuple[PyTree, PyTree]:
    """Samples, and the info of the sampler or None."""
    _checks.count("burn_in", burn_in, 0)
    _checks.count("thin", thin)
    rounds = -(-num_samples // num_chains)
    with Watch("sample", burn_in + rounds * thin, seconds, progress=progress) as watch:
        one, two = jax.random.split(_checks.as_key(key))
        state = sampler.init(model, num_chains, key=one, start=start, clamped=clamped)
        units, infos, burnt = _sliced(
            sampler, model, state, two, burn_in, thin, rounds, with_info, watch
        )
    made = jax.tree.leaves(units)[0].shape[0]
    if made < rounds or burnt < burn_in:
        warnings.warn(
            f"The time was over after {burnt} of {burn_in} steps of burn-in and"
            f" {min(made * num_chains, num_samples)} of {num_samples} samples: raise `seconds`.",
            stacklevel=4,
        )
    units = jax.tree.map(
        lambda x: x.reshape(math.prod(x.shape[:2]), x.shape[-1])[:num_samples], units
    )
    plain: Any = structure_of(model)
    return plain.named(plain.variables.unfolded(units)), infos


def _sliced(
    sampler: AbstractSampler,
    model: AbstractModel,
    state: Any,
    key: PRNGKeyArray,
    burn_in: int,
    thin: int,
    rounds: int,
    with_info: bool,
    watch: Watch,
) -> tuple[Any, Any, int]:
    """The samples and infos of as many rounds as there is time for, at least one, and the number of
    steps of burn-in.
    """
    warm, main = jax.random.split(key)
    keys = jax.random.split(main, rounds)
    # A compiled function that this is part of has no time to look at.
    most = _SLICE if _checks.is_concrete((model, state)) else burn_in + rounds * thin
    size = -(-rounds // min(rounds, -(-rounds * thin // most)))

    def run(state: Any, first: int, more: int, begin: int, end: int) -> tuple[Any, Any]:
        """Some steps of burn-in, and some rounds."""
        at = np.arange(begin, begin + size)
        # On a GPU the loop of a sample has a known length, and rounds too many are left out below.
        steps = jnp.asarray(np.where(at < end, thin, 0)) if _on_cpu() else thin
        own = keys[np.minimum(at, rounds - 1)][: size if _on_cpu() or end > begin else 0]
        bounds = jnp.asarray(first), jnp.asarray(more)
        return jax.block_until_ready(
            _run(sampler, model, state, warm, own, *bounds, steps, with_info)
        )

    burnt, out = 0, []
    for first in watch.each(range(0, burn_in - most + 1, most), steps=most):
        state, _ = run(state, first, most, 0, 0)
        burnt = first + most
    more = 0 if burnt < burn_in and watch.over else burn_in - burnt
    for begin in watch.each(range(0, rounds, size), 1, size * thin):
        state, found = run(state, burnt, 0 if begin else more, begin, rounds)
        out.append(found)
    number = min(len(out) * size, rounds)
    units, infos = jax.tree.map(lambda *x: jnp.concatenate(x)[:number], *out)
    return units, infos, burnt + more


def _can_check(num_samples: int, num_chains: int, start: Any, clamped: Any) -> None:
    if start is None:
        raise ValueError(
            "`check` must be False without a `start`, got True: pass rows of data, one for each"
            " chain, such as `start=Layers(data[:100], None)`."
        )
    if clamped is not None or num_chains < 2 or num_samples < num_chains:
        raise ValueError(
            "`check` must be False if units are clamped or there are less than two chains, got"
            " True."
        )


def _compare(model: AbstractPlainModel, one: PyTree, other: PyTree, num_chains: int) -> None:
    """Warns if chains from two starts disagree."""
    largest = float(gaps(*on_modes(model, (one, other), num_chains)).max())
    if not largest <= ERRORS:
        warnings.warn(
            "Chains from `start` and from random states still disagree: their means along a slow"
            f" mode differ by {largest:.1f} standard errors. Raise `burn_in`, or use"
            " `ParallelTempering` or `TrajectoryTempering`.",
            stacklevel=4,
        )


@eqx.filter_jit
def _run(
    sampler: AbstractSampler,
    model: AbstractModel,
    state: Any,
    warm: PRNGKeyArray,
    keys: Shaped[PRNGKeyArray, " rounds"],
    first: Int[Array, ""],
    more: Int[Array, ""],
    thin: Any,
    with_info: bool,
) -> tuple[Any, tuple[Any, Any]]:
    """The state after `more` steps of burn-in, of which `first` are already made, and after a round
    for each key; and what each round ends with.
    """
    nothing = None
    if with_info:
        like = jax.eval_shape(lambda: sampler.step(model, state, key=warm)[1])
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)

    def steps(times: Any, more: Any, key: PRNGKeyArray, thin: Any, carry: Any) -> Any:
        """Of so many steps, the first `more` have the key `warm`; the last has the number 0."""

        def step(i: Any, carry: Any) -> Any:
            early = i < more
            number = jnp.where(early, first + i, (i - more + 1) % thin)
            own = jax.random.fold_in(jnp.where(early, warm, key), number)
            state, info = sampler.step(model, carry[0], key=own)
            return state, info if with_info else None

        return _repeated(times, step, carry)

    # On a CPU burn-in belongs to the first sample: all steps are those of one loop, which is
    # compiled once. On a GPU the loop of a sample has a known length.
    start = state, nothing
    if not _on_cpu():
        start = steps(more, more, warm, 1, start)

    def one(carry: Any, own: tuple[PRNGKeyArray, Any, Any]) -> Any:
        key, more, length = own
        times = more + length if _on_cpu() else thin
        state, info = steps(times, more, key, jnp.maximum(length, 1), carry)
        return (state, info), (state.units, info)

    number = keys.shape[0]
    mores = jnp.zeros(number, more.dtype)
    mores = mores.at[0].set(more) if _on_cpu() else mores
    lengths = jnp.broadcast_to(jnp.asarray(thin, more.dtype), number)
    (state, _), out = jax.lax.scan(one, start, (keys, mores, lengths))
    return state, out


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def _repeated(times: Any, step: Callable[[Any, Any], Any], carry: Any) -> Any:
    """`jax.lax.fori_loop`. A GPU asks the host in every round of a loop of unknown length whether
    there is another, which takes longer than a small sweep: so rounds are of several steps.
    """
    if _on_cpu() or isinstance(times, int):
        return jax.lax.fori_loop(0, times, step, carry)
    rounds = times // _ROUND

    def several(k: Any, carry: Any) -> Any:
        first = k * _ROUND
        return jax.lax.fori_loop(0, _ROUND, lambda i, x: step(first + i, x), carry)

    return jax.lax.fori_loop(
        rounds * _ROUND, times, step, jax.lax.fori_loop(0, rounds, several, carry)
    )
