from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Num, PyTree

from .. import _checks
from .._types import AnyArray
from ..models import AbstractPairwiseModel, CRBM
from ..models._view import Instance


def instances(
    model: AbstractPairwiseModel,
    evidence: Num[AnyArray, "*batch units"] | Bool[AnyArray, "*batch units"] | None,
    observed: Bool[AnyArray, "*batch units"] | None,
) -> tuple[Instance, tuple[int, ...]]:
    """
    Lays out the instances of a model, given evidence on its first layer, along one leading axis.

    **Returns:**

    The instances, and the batch shape that they had.
    """
    if isinstance(model, CRBM):
        raise TypeError(
            "`model` must be an RBM: call `crbm.condition(features)` first, got a CRBM."
        )
    if not isinstance(model, AbstractPairwiseModel):
        raise TypeError(
            "`model` must be an RBM, a DBM, a BoltzmannMachine or a SemiRestrictedBM, got"
            f" {_checks.describe(model)}."
        )
    unary = model.unary()
    shape = model.batch_shape
    clamp: list[Any] = [None] * len(unary)
    if evidence is not None or observed is not None:
        evidence, observed = _checked(unary[0].shape[-1], evidence, observed)
        shape = _checks.broadcastable(
            model=shape, evidence=evidence.shape[:-1], observed=observed.shape[:-1]
        )
        evidence = evidence.astype(unary[0].dtype)
        common = (*shape, unary[0].shape[-1])
        bias, evidence, observed = (
            jnp.broadcast_to(x, common) for x in (unary[0], evidence, observed)
        )
        evidence = _in_range(evidence, observed)
        sure = observed & ((evidence == 0) | (evidence == 1))
        clamp[0] = jnp.where(sure, 2 * evidence - 1, jnp.zeros_like(evidence))
        likely = jnp.where(observed & ~sure, evidence, jnp.full_like(evidence, 0.5))
        unary = (bias + jax.scipy.special.logit(likely), *unary[1:])
    size = int(np.prod(shape))

    def flat(x: Array) -> Array:
        return jnp.broadcast_to(x, (*shape, x.shape[-1])).reshape(size, x.shape[-1])

    return Instance(
        tuple(flat(x) for x in unary), tuple(None if x is None else flat(x) for x in clamp)
    ), shape


def _checked(units: int, evidence: Any, observed: Any) -> tuple[Array, Array]:
    if evidence is None or observed is None:
        missing = "evidence" if evidence is None else "observed"
        raise ValueError(f"`evidence` and `observed` go together, got no `{missing}`.")
    evidence, observed = jnp.asarray(evidence), jnp.asarray(observed)
    if jnp.issubdtype(evidence.dtype, jnp.complexfloating):
        raise TypeError(f"`evidence` must be real, got {_checks.describe(evidence)}.")
    if observed.dtype != jnp.bool_:
        raise TypeError(f"`observed` must be a mask of booleans, got {_checks.describe(observed)}.")
    _checks.trailing("evidence", evidence, (units,), "one value a unit")
    _checks.trailing("observed", observed, (units,), "one value a unit")
    return evidence, observed


def _in_range(evidence: Array, observed: Array) -> Array:
    """Evidence in [0, 1], or an error. Units that are not observed may hold anything."""
    wrong = observed & ~((evidence >= 0) & (evidence <= 1))
    if not _checks.is_concrete(wrong):
        return eqx.error_if(evidence, wrong, "`evidence` must lie in [0, 1] where observed.")
    if bool(wrong.any()):
        first = float(evidence[wrong][0])
        raise ValueError(f"`evidence` must lie in [0, 1] where observed, got {first}.")
    return evidence


def chunk_of(model: AbstractPairwiseModel) -> int:
    """
    How many instances are treated at once, where each needs an array of the size of the weights:
    2**26 numbers are 256 MiB in float32.
    """
    return max(1, 2**26 // max(1, sum(block.weights.size for block in model.blocks())))


def each(fn: Callable[[Any], PyTree], batch: PyTree, shape: tuple[int, ...], chunk: int) -> PyTree:
    """Applies `fn` to every instance, `chunk` of them at a time, and restores the batch shape."""
    size = int(np.prod(shape))
    if shape == ():
        return fn(jax.tree.map(lambda x: x[0], batch))
    out = jax.vmap(fn)(batch) if size <= chunk else jax.lax.map(fn, batch, batch_size=chunk)
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), out)


def each_and_mean(
    fn: Callable[[Instance], tuple[PyTree, PyTree]],
    batch: Instance,
    shape: tuple[int, ...],
    chunk: int,
) -> tuple[PyTree, PyTree]:
    """
    As `each` for the first result of `fn`; the second is averaged over all instances, without
    ever holding it for more than a chunk.
    """
    size = int(np.prod(shape))
    chunk = min(chunk, size)
    full, rest = divmod(size, chunk)

    def some(part: Instance) -> tuple[PyTree, PyTree]:
        single, summed = jax.vmap(fn)(part)
        return single, jax.tree.map(lambda x: x.sum(0), summed)

    def step(carry: PyTree, part: Instance) -> tuple[PyTree, PyTree]:
        single, summed = some(part)
        return jax.tree.map(jnp.add, carry, summed), single

    parts = jax.tree.map(lambda x: x[: full * chunk].reshape(full, chunk, *x.shape[1:]), batch)
    like = jax.eval_shape(some, jax.tree.map(lambda x: x[0], parts))[1]
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    summed, single = jax.lax.scan(step, zero, parts)
    single = jax.tree.map(lambda x: x.reshape(full * chunk, *x.shape[2:]), single)
    if rest:
        last, more = some(jax.tree.map(lambda x: x[full * chunk :], batch))
        summed = jax.tree.map(jnp.add, summed, more)
        single = jax.tree.map(lambda *x: jnp.concatenate(x), single, last)
    single = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), single)
    return single, jax.tree.map(lambda x: x / size, summed)
