from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num, PRNGKeyArray

from .. import _checks
from .._types import AnyArray
from ..inference._instances import Problem
from ..models import AbstractPairwiseModel
from ..samplers import AbstractSampler, Gibbs
from ..samplers._base import as_layers
from ..samplers._sweep import field


def sampled_marginals(
    model: AbstractPairwiseModel,
    evidence: Num[AnyArray, "*#batch units"],
    observed: Bool[AnyArray, "*#batch units"],
    *,
    key: PRNGKeyArray,
    sampler: AbstractSampler | None = None,
    num_samples: int = 100,
    burn_in: int = 100,
) -> Float[Array, "*batch units"]:
    """The probability that each visible unit is 1, given the observed ones, by sampling: the mean
    of its conditional probability given all other units, over the states of a chain for each
    instance. What [`ebmlearn.query`][] is for inferences, this is for samplers.

    **Arguments:**

    - `model`: an RBM, a DBM, a BoltzmannMachine or a SemiRestrictedBM.
    - `evidence`: 0 and 1 where observed.
    - `observed`: booleans, which units are observed.
    - `key`: a typed key.
    - `sampler`: [`ebmlearn.Gibbs`][] if not given.
    - `num_samples`, `burn_in`: steps of each chain that count, and that do not.
    """
    sampler = Gibbs() if sampler is None else sampler
    if not isinstance(sampler, AbstractSampler):
        got = _checks.describe(sampler)
        raise TypeError(f"`sampler` must be a sampler such as `Gibbs()`, got {got}.")
    _checks.typed_key(key)
    _checks.count("num_samples", num_samples)
    _checks.count("burn_in", burn_in, 0)
    problem = Problem(model, evidence, observed)
    if problem.evidence is None or problem.observed is None:
        raise ValueError("`evidence` and `observed` must be given, got None.")
    shape = problem.shape
    units = model.unary()[0].shape[-1]
    mask = jnp.broadcast_to(jnp.asarray(problem.observed), (*shape, units)).reshape(-1, units)
    x = jnp.broadcast_to(jnp.asarray(problem.evidence), (*shape, units)).reshape(-1, units)
    if _checks.is_concrete((x, mask)):
        _checks.binary_rows("evidence", jnp.where(mask, x, jnp.zeros_like(x)))
    size = x.shape[0]
    one, two = jax.random.split(key)
    start_key, fill = jax.random.split(one)
    random = jax.random.bernoulli(fill, 0.5, x.shape)
    start = jnp.where(mask, x.astype(jnp.int32), random.astype(jnp.int32))
    others = (None,) * (len(model.unary()) - 1)
    state = sampler.init(
        model,
        size,
        key=start_key,
        start=model.units((start, *others)),
        clamped=model.units((mask, *others)),
    )
    p = _mean(sampler, model, state, two, num_samples, jnp.asarray(burn_in))
    p = jnp.where(mask, x.astype(p.dtype), p)
    return p.reshape(*shape, units)


@eqx.filter_jit
def _mean(
    sampler: AbstractSampler,
    model: AbstractPairwiseModel,
    state: Any,
    key: PRNGKeyArray,
    num_samples: int,
    burn_in: Any,
) -> Float[Array, "rows units"]:
    warm, main = jax.random.split(key)

    def step(i: Any, carry: tuple) -> tuple:
        state, key = carry
        return sampler.step(model, state, key=jax.random.fold_in(key, i))[0], key

    state, _ = jax.lax.fori_loop(0, burn_in, step, (state, warm))

    def one(carry: tuple, key: PRNGKeyArray) -> tuple:
        state, total = carry
        state, _ = sampler.step(model, state, key=key)
        layers = as_layers(model, state.units)
        return (state, total + jax.nn.sigmoid(field(model, layers, 0))), None

    zero = jnp.zeros(jax.tree.leaves(state.units)[0].shape, model.unary()[0].dtype)
    (_, total), _ = jax.lax.scan(one, (state, zero), jax.random.split(main, num_samples))
    return total / num_samples
