"""All that samplers draw. Tests replace these by all outcomes with their probabilities."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int, PRNGKeyArray


def uniforms(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """Numbers to `decide` by."""
    return jax.random.uniform(key, shape, dtype)


def decide(log_odds: Float[Array, "..."], uniform: Float[Array, "..."]) -> Float[Array, "..."]:
    """1 with the probability that log-odds mean, else 0."""
    return (uniform < jax.nn.sigmoid(log_odds)).astype(log_odds.dtype)


def accept(log_ratio: Float[Array, "..."], key: PRNGKeyArray) -> Float[Array, "..."]:
    """1 with probability min(1, ratio), else 0. A ratio that is NaN is refused."""
    uniform = jax.random.uniform(key, log_ratio.shape, log_ratio.dtype)
    return (jnp.log(uniform) < log_ratio).astype(log_ratio.dtype)


def choose(logits: Float[Array, "chains n"], key: PRNGKeyArray) -> Int[Array, " chains"]:
    """One of n with the probabilities that logits mean."""
    return jax.random.categorical(key, logits, axis=-1)


def normals(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """Standard normal numbers."""
    return jax.random.normal(key, shape, dtype)
