import math
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray, PyTree

from .. import _checks
from .._types import Key
from ..models import AbstractModel, AbstractPlainModel, structure_of
from ._base import AbstractSampler, require_sampler
from ._modes import ERRORS, gaps, on_modes


_ROUND = 32


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

    **Returns:**

    Arrays `[num_samples, n]`, named as the units of the model: integers, or real numbers for
    Gaussian and nonnegative units. The first samples of all chains come first, then the second
    ones, and so on; surplus samples of the last round are dropped. For a graph, `samples[group]` is
    an array of integers `[num_samples, *shape]`.
    """
    number = _number_of_chains(sampler, num_samples, num_chains)
    options = {"num_chains": number, "burn_in": burn_in, "thin": thin}
    if check:
        _can_check(num_samples, number, start, clamped)
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

    - `model`, `sampler`, `num_samples`, `key`, `num_chains`, `burn_in`, `thin`, `start`, `clamped`:
      as for [`ebmlearn.sample`][].

    **Returns:**

    A pair: the samples, and the info of the sampler, with a leading axis of steps and without
    burn-in.
    """
    number = _number_of_chains(sampler, num_samples, num_chains)
    options = {"num_chains": number, "burn_in": burn_in, "thin": thin}
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
) -> tuple[PyTree, PyTree]:
    """Samples, and the info of the sampler or None."""
    _checks.count("burn_in", burn_in, 0)
    _checks.count("thin", thin)
    one, two = jax.random.split(_checks.as_key(key))
    state = sampler.init(model, num_chains, key=one, start=start, clamped=clamped)
    number = -(-num_samples // num_chains)
    steps = jnp.asarray(thin) if _on_cpu() else thin
    units, infos = _run(sampler, model, state, two, jnp.asarray(burn_in), steps, number, with_info)
    units = jax.tree.map(
        lambda x: x.reshape(math.prod(x.shape[:2]), x.shape[-1])[:num_samples], units
    )
    plain: Any = structure_of(model)
    return plain.named(plain.variables.unfolded(units)), infos


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
    key: PRNGKeyArray,
    burn_in: Any,
    thin: Any,
    number: int,
    with_info: bool,
) -> tuple[Any, Any]:
    warm, main = jax.random.split(key)
    nothing = None
    if with_info:
        like = jax.eval_shape(lambda: sampler.step(model, state, key=key)[1])
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)

    def steps(times: Any, more: Any, key: PRNGKeyArray, carry: Any) -> Any:
        """Of so many steps, the first `more` have the key `warm`; the last has the number 0."""

        def step(i: Any, carry: Any) -> Any:
            early = i < more
            number = jnp.where(early, i, (i - more + 1) % thin)
            own = jax.random.fold_in(jnp.where(early, warm, key), number)
            state, info = sampler.step(model, carry[0], key=own)
            return state, info if with_info else None

        return _repeated(times, step, carry)

    # On a CPU burn-in belongs to the first sample: all steps are those of one loop, which is
    # compiled once. On a GPU the loop of a sample has a known length.
    first = burn_in if _on_cpu() else 0
    start = state, nothing
    if not _on_cpu():
        start = steps(burn_in, burn_in, warm, start)

    def one(carry: Any, own: tuple[PRNGKeyArray, Any]) -> Any:
        key, more = own
        state, info = steps(more + thin if _on_cpu() else thin, more, key, carry)
        return (state, info), (state.units, info)

    more = jnp.zeros(number, burn_in.dtype).at[0].set(first)
    _, out = jax.lax.scan(one, start, (jax.random.split(main, number), more))
    return out


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
