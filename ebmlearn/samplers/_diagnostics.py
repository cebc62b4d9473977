"""Diagnostics of chains. NumPyro's cannot be traced by JAX, and `import ebmlearn` does not load
NumPyro; a test compares R-hat with NumPyro's.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from .. import _checks
from .._types import AnyArray
from ..models import AbstractModel


def autocorrelation_time(x: Num[AnyArray, "steps chains"]) -> Float[Array, ""]:
    """The integrated autocorrelation time $1 + 2 \\sum_t \\rho_t$ of numbers along chains, for
    instance energies: the number of steps that are worth one independent draw.

    Correlations are averaged over chains and summed over a window of five times the estimate (Sokal
    1997). If neighbouring steps are negatively correlated, they are summed in pairs up to the first
    pair that is not positive (Geyer 1992). Chains that do not move give infinity.

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(16, 8)
        _, info = ebmlearn.sample_with_info(rbm, ebmlearn.Gibbs(), 10_000, num_chains=10)
        ebmlearn.samplers.autocorrelation_time(info.energy)  # 1000 steps of 10 chains
        ```

    **Arguments:**

    - `x`: numbers of shape `[steps, chains]`. Use at least about a thousand steps.
    """
    x = _along_chains(x, 2, "two")
    steps = x.shape[0]
    centred = x - x.mean()
    # Padded, so that the ends do not meet.
    spectrum = jnp.abs(jnp.fft.rfft(centred, n=2 * steps, axis=0)) ** 2
    covariance = jnp.fft.irfft(spectrum, axis=0)[:steps].mean(1) / steps
    times = 2 * jnp.cumsum(covariance / covariance[0]) - 1
    window = jnp.arange(steps, dtype=times.dtype) >= 5 * times
    last = jnp.where(window.any(), jnp.argmax(window), steps - 1)
    pairs = covariance[: steps // 2 * 2].reshape(-1, 2).sum(1) <= 0
    paired = 2 * jnp.where(pairs.any(), jnp.argmax(pairs), steps // 2) - 1
    last = jnp.where(covariance[1] < 0, jnp.maximum(paired, 0), last)
    # Chains that stand still, each for itself or all in one place, never give another draw.
    still = (x == jnp.broadcast_to(x[:1], x.shape)).all()
    return jnp.where(still, jnp.inf, times[last])


def _along_chains(x: AnyArray, least: int, name: str) -> Float[Array, "steps chains"]:
    """Numbers along chains as real numbers, checked."""
    _checks.rank("x", x, 2, "[steps, chains]")
    if x.shape[0] < least:
        raise ValueError(f"`x` must contain at least {name} steps, got {_checks.describe(x)}.")
    x = jnp.asarray(x)
    return x.astype(jnp.result_type(float)) if jnp.issubdtype(x.dtype, jnp.integer) else x


def singular_values(model: AbstractModel) -> tuple[Float[Array, " _"], ...]:
    """The singular values of each block of weights, largest first. Values that grow in training
    show the directions that the model has learned.

    !!! example

        ```python
        ebmlearn.samplers.singular_values(ebmlearn.RBM.init(16, 8))
        ```

    **Arguments:**

    - `model`: any model with weights.
    """
    plain: Any = model.bare()
    found = [factor.weights for factor in plain.factors() if hasattr(factor, "weights")]
    return tuple(jnp.linalg.svd(weights, compute_uv=False) for weights in found)


def r_hat(x: Num[AnyArray, "steps chains"]) -> Float[Array, ""]:
    """R-hat of numbers along chains, for instance energies: the square root of their variance over
    the mean variance of a chain, each chain cut into two halves (Gelman et al. 2013). It is 1 for
    chains that have mixed, and larger as long as they have not.

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(16, 8)
        _, info = ebmlearn.sample_with_info(rbm, ebmlearn.Gibbs(), 10_000, num_chains=10)
        ebmlearn.r_hat(info.energy)
        ```

    **Arguments:**

    - `x`: numbers of shape `[steps, chains]`, of four steps or more.
    """
    x = _along_chains(x, 4, "four")
    half = x.shape[0] // 2
    halves = jnp.concatenate([x[:half], x[-half:]], axis=1)
    within = halves.var(0, ddof=1).mean()
    between = halves.mean(0).var(ddof=1)
    ratio = jnp.sqrt((half - 1) / half + between / within)
    # Chains that stand still agree only if all stand in one place.
    still = jnp.where(between > 0, jnp.inf, jnp.ones_like(ratio))
    return jnp.where(within == 0, still, ratio)


def jumps(
    states: Num[AnyArray, "steps chains n"], centres: Num[AnyArray, "clusters n"], stay: int = 10
) -> Int[Array, " chains"]:
    """Counts how often each chain jumps between clusters: the nearest centre becomes another one,
    and stays it for `stay` steps.

    !!! example

        ```python
        from ebmlearn import datasets

        digits = datasets.digits().train
        centres = jnp.stack([digits.x[digits.y == k].mean(0) for k in range(10)])
        samples = ebmlearn.sample(ebmlearn.RBM.init(64, 8), ebmlearn.Gibbs(), 1000, num_chains=10)
        ebmlearn.samplers.jumps(samples.visible.reshape(100, 10, 64), centres).mean()
        ```

    **Arguments:**

    - `states`: states of chains, `[steps, chains, n]`.
    - `centres`: the centre of each cluster, such as the mean of the rows of a class.
    - `stay`: the number of steps that a chain must stay.
    """
    _checks.rank("states", states, 3, "[steps, chains, n]")
    _checks.rank("centres", centres, 2, "[clusters, n]")
    _checks.trailing("centres", centres, (states.shape[-1],), "as `states` has units")
    _checks.count("stay", stay)
    return _jumps(jnp.asarray(states), jnp.asarray(centres), jnp.asarray(stay, jnp.int32))


@jax.jit
def _jumps(states: Array, centres: Array, stay: Int[Array, ""]) -> Int[Array, " chains"]:
    centres = centres.astype(jnp.result_type(float))
    squares = (centres**2).sum(-1)

    def nearest(x: Array) -> Int[Array, " chains"]:
        inner = x.astype(centres.dtype) @ centres.T
        return jnp.argmin(squares[None] - 2 * inner, axis=-1).astype(jnp.int32)

    def step(carry: Any, x: Array) -> Any:
        home, other, run, count = carry
        now = nearest(x)
        run = jnp.where(now == home, 0, jnp.where(now == other, run + 1, 1))
        jumped = run >= stay
        home, run = jnp.where(jumped, now, home), jnp.where(jumped, 0, run)
        return (home, now, run, count + jumped.astype(jnp.int32)), None

    first = nearest(states[0])
    none = jnp.zeros_like(first)
    (_, _, _, count), _ = jax.lax.scan(step, (first, first, none, none), states)
    return count
