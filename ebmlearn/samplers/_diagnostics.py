import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from .. import _checks
from .._types import AnyArray
from ..models import AbstractModel


def autocorrelation_time(x: Num[AnyArray, "steps chains"]) -> Float[Array, ""]:
    """The integrated autocorrelation time $1 + 2 \\sum_t \\rho_t$ of numbers along chains, for
    instance energies: the number of steps that are worth one independent draw.

    Correlations are averaged over chains and summed over a window of five times the estimate (Sokal
    1997). If neighbouring steps are negatively correlated, they are summed in pairs up to the first
    pair that is not positive (Geyer 1992). Chains that do not move give infinity.

    **Arguments:**

    - `x`: numbers of shape `[steps, chains]`. Use at least about a thousand steps.
    """
    _checks.rank("x", x, 2, "[steps, chains]")
    if x.shape[0] < 2:
        raise ValueError(f"`x` must contain at least two steps, got {_checks.describe(x)}.")
    x = jnp.asarray(x)
    x = x.astype(jnp.result_type(float)) if jnp.issubdtype(x.dtype, jnp.integer) else x
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


def singular_values(model: AbstractModel) -> tuple[Float[Array, " _"], ...]:
    """The singular values of each block of weights, largest first. Values that grow in training
    show the directions that the model has learned.
    """
    return tuple(jnp.linalg.svd(b.weights, compute_uv=False) for b in model.blocks())
