from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num, PRNGKeyArray

from .. import _checks
from .._types import AnyArray, Key
from ..models import AbstractPlainModel, require_binary
from ..samplers import AbstractSampler, after_steps, Gibbs, require_sampler


def sampled_marginals(
    model: AbstractPlainModel,
    evidence: Num[AnyArray, "*#batch units"],
    observed: Bool[AnyArray, "*#batch units"],
    *,
    key: Key = 0,
    sampler: AbstractSampler | None = None,
    steps: int = 100,
    burn_in: int = 100,
) -> Float[Array, "*batch units"]:
    """Estimates by sampling the probability that each visible unit is 1 given the observed ones, as
    [`ebmlearn.query`][] does by inference. Each instance has its own chain; the estimate is the
    mean, over the chain, of the unit's conditional probability given all other units.

    !!! example

        ```python
        from ebmlearn import datasets

        image = datasets.digits().test.x[0]
        upper = jnp.arange(64) < 32  # the upper half is observed
        ebmlearn.sampled_marginals(ebmlearn.RBM.init(64, 8), image, upper)
        ```

    **Arguments:**

    - `model`: an RBM, a DBM, a BoltzmannMachine or a SemiRestrictedBM.
    - `evidence`: 0 and 1 fix a unit, a number between them is the likelihood of 1 against 0.
    - `observed`: booleans, the units that are observed.
    - `key`: a seed, or a key such as `jax.random.key(0)`.
    - `sampler`: [`ebmlearn.Gibbs`][] by default.
    - `steps`, `burn_in`: the number of steps of each chain that count, and of steps before them.
    """
    sampler = Gibbs() if sampler is None else sampler
    require_sampler(sampler)
    require_binary(model, "sampled_marginals")
    key = _checks.as_key(key)
    _checks.count("steps", steps)
    _checks.count("burn_in", burn_in, 0)
    problem = model.problem(evidence, observed)
    if problem.evidence[0] is None:
        raise ValueError("`evidence` and `observed` must be given, got None.")
    unary, clamp = problem.instances()
    held = clamp[0]
    assert held is not None
    rows, units = held.shape
    start_key, fill, main = jax.random.split(key, 3)
    random = jax.random.bernoulli(fill, 0.5, held.shape)
    start = jnp.where(held == 0, random, held > 0).astype(jnp.int32)
    others = (None,) * (len(unary) - 1)
    # One model for each row, with what is likely of its units as biases.
    each = model.with_unary(unary)
    state = sampler.init(
        each,
        rows,
        key=start_key,
        start=model.named((start, *others)),
        clamped=model.named((held != 0, *others)),
    )
    p = _mean(sampler, each, state, main, steps, jnp.asarray(burn_in))
    p = jnp.where(held == 0, p, (held > 0).astype(p.dtype))
    return p.reshape(*problem.shape, units)


@eqx.filter_jit
def _mean(
    sampler: AbstractSampler,
    model: AbstractPlainModel,
    state: Any,
    key: PRNGKeyArray,
    steps: int,
    burn_in: Any,
) -> Float[Array, "rows units"]:
    warm, main = jax.random.split(key)
    # Chains of a tempered sampler are at its temperature, and so must be the conditional.
    beta = jnp.asarray(getattr(sampler, "beta", 1.0), model.unary()[0].dtype)

    state = after_steps(sampler, model, state, warm, burn_in)

    def one(carry: tuple, key: PRNGKeyArray) -> tuple:
        state, total = carry
        state, _ = sampler.step(model, state, key=key)
        layers = model.encode(state.units)
        return (state, total + jax.nn.sigmoid(beta * model.field(layers, 0))), None

    zero = jnp.zeros(jax.tree.leaves(state.units)[0].shape, model.unary()[0].dtype)
    (_, total), _ = jax.lax.scan(one, (state, zero), jax.random.split(main, steps))
    return total / steps
