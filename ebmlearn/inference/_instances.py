import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Num, PyTree

from .. import _checks
from .._types import AnyArray
from ..models import AbstractPairwiseModel, CRBM, GaussianRBM, NNBM, QueryModel
from ..models._graph import AbstractGraphModel
from ..models._view import Instance


class Problem(eqx.Module):
    """A model with evidence on its first layer, checked."""

    model: AbstractPairwiseModel
    evidence: Num[AnyArray, "*#batch units"] | Bool[AnyArray, "*#batch units"] | None
    observed: Bool[AnyArray, "*#batch units"] | None
    verified: bool = eqx.field(static=True)
    ranks: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self, model: Any, evidence: Any = None, observed: Any = None, trusted: bool = False
    ):
        self.model = model
        self.evidence = evidence
        self.observed = observed
        # Whether the values of the evidence can be looked at before anything is traced, or need
        # not be.
        self.verified = trusted or (_checks.is_concrete(evidence) and _checks.is_concrete(observed))
        self.ranks = tuple(jnp.ndim(x) for x in jax.tree.leaves(model))

    def __check_init__(self):
        if isinstance(self.model, CRBM):
            raise TypeError(
                "`model` must be an RBM: call `crbm.condition(features)` first, got a CRBM."
            )
        if isinstance(self.model, GaussianRBM):
            raise TypeError(
                "`model` must have binary units here: take `model.hidden_marginal()`, or a sampler,"
                " or `BP` or `Exact` for beliefs, got a GaussianRBM."
            )
        if isinstance(self.model, NNBM):
            raise TypeError(
                "`model` must have binary units for this inference, got an NNBM: take"
                " `NaiveMeanField`, `TAP`, `SusP`, `ISusP` or `Exact()`."
            )
        if isinstance(self.model, QueryModel):
            raise TypeError(
                "`model` must be a plain one: ask a QueryModel by `query`, or take"
                " `model.to_model()`, got a QueryModel."
            )
        if not isinstance(self.model, AbstractPairwiseModel):
            raise TypeError(
                "`model` must be an RBM, a DBM, a BoltzmannMachine, a SemiRestrictedBM or a"
                f" FactorGraphModel, got {_checks.describe(self.model)}."
            )
        if set(self.model.kinds()) != {"binary"}:
            raise TypeError(
                "`model` must have binary units alone for inference, got a"
                f" {type(self.model).__name__} with label units; use a sampler, or `label_given`."
            )
        units = self.model.unary()[0].shape[-1]
        check_evidence(self.evidence, self.observed, units)
        if self.evidence is None or self.observed is None:
            return
        shape = self.shape
        if self.verified and _checks.is_concrete((self.evidence, self.observed)):
            evidence = np.broadcast_to(self.evidence, (*shape, units))
            observed = np.broadcast_to(self.observed, (*shape, units))
            wrong = observed & ~((evidence >= 0) & (evidence <= 1))
            if wrong.any():
                first = evidence[wrong][0]
                raise ValueError(f"`evidence` must lie in [0, 1] where observed, got {first}.")

    @property
    def shape(self) -> tuple[int, ...]:
        """The batch shape."""
        if self.evidence is None or self.observed is None:
            return self.model.batch_shape
        return _checks.broadcastable(
            model=self.model.batch_shape,
            evidence=self.evidence.shape[:-1],
            observed=self.observed.shape[:-1],
        )

    def instances(self) -> Instance:
        """The instances along one leading axis. Units known for sure are clamped, those known by a
        likelihood have it added to their unary terms.
        """
        if tuple(jnp.ndim(x) for x in jax.tree.leaves(self.model)) != self.ranks:
            raise ValueError(
                "`pairwise` and `log_partition` must be read inside the `vmap` that made these"
                " beliefs: outside, the model they belong to has gained an axis."
            )
        unary = self.model.unary()
        clamp: list[Any] = [None] * len(unary)
        shape = self.shape
        if self.evidence is not None and self.observed is not None:
            common = (*shape, unary[0].shape[-1])
            bias = jnp.broadcast_to(unary[0], common)
            observed = jnp.broadcast_to(self.observed, common)
            evidence = jnp.broadcast_to(jnp.asarray(self.evidence, bias.dtype), common)
            if not self.verified:
                wrong = observed & ~((evidence >= 0) & (evidence <= 1))
                message = "`evidence` must lie in [0, 1] where observed."
                evidence = eqx.error_if(evidence, wrong, message)
            sure = observed & ((evidence == 0) | (evidence == 1))
            clamp[0] = jnp.where(sure, 2 * evidence - 1, jnp.zeros_like(evidence))
            likely = jnp.where(observed & ~sure, evidence, jnp.full_like(evidence, 0.5))
            unary = (bias + jax.scipy.special.logit(likely), *unary[1:])

        def flat(x: Array) -> Array:
            x = jnp.broadcast_to(x, (*shape, x.shape[-1]))
            return x.reshape(math.prod(shape), x.shape[-1])

        return Instance(
            tuple(flat(x) for x in unary), tuple(None if x is None else flat(x) for x in clamp)
        )


def check_evidence(evidence: Any, observed: Any, units: int) -> None:
    """Raises unless there is no evidence, or some of the right form for so many units, whatever its
    values.
    """
    if evidence is None and observed is None:
        return
    if evidence is None or observed is None:
        missing = "evidence" if evidence is None else "observed"
        raise ValueError(f"`evidence` and `observed` go together, got no `{missing}`.")
    for name, x in (("evidence", evidence), ("observed", observed)):
        if not hasattr(x, "shape"):
            raise TypeError(f"`{name}` must be an array, got {_checks.describe(x)}.")
        _checks.trailing(name, x, (units,), "one value a unit")
    if jnp.issubdtype(evidence.dtype, jnp.complexfloating):
        raise TypeError(f"`evidence` must be real, got {_checks.describe(evidence)}.")
    if observed.dtype != jnp.bool_:
        got = _checks.describe(observed)
        raise TypeError(f"`observed` must be a mask of booleans, got {got}.")


def chunk_of(model: AbstractPairwiseModel | AbstractGraphModel) -> int:
    """How many instances are treated at once, where each needs an array of the size of the weights:
    2**26 numbers are 256 MiB in float32.
    """
    if isinstance(model, AbstractGraphModel):
        size = model.num_messages
    else:
        size = sum(block.weights.size for block in model.blocks())
    return max(1, 2**26 // max(1, size))


def each(fn: Callable[[Any], PyTree], batch: PyTree, shape: tuple[int, ...], chunk: int) -> PyTree:
    """Applies `fn` to every instance, at most `chunk` of them at a time, and restores the batch
    shape.
    """
    if shape == ():
        return fn(jax.tree.map(lambda x: x[0], batch))
    size = math.prod(shape)
    if size <= chunk:
        out = jax.vmap(fn)(batch)
    else:
        out = jax.lax.map(jax.vmap(fn), _parts(batch, size, chunk)[0])
        out = jax.tree.map(lambda x: _joined(x)[:size], out)
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), out)


def each_and_mean(
    fn: Callable[[Any], tuple[PyTree, PyTree]],
    batch: PyTree,
    shape: tuple[int, ...],
    chunk: int,
) -> tuple[PyTree, PyTree]:
    """As `each` for the first result of `fn`; the second is averaged over all instances, without
    ever holding it for more than a chunk.
    """
    if shape == ():
        return fn(jax.tree.map(lambda x: x[0], batch))
    size = math.prod(shape)
    if size == 0:
        raise ValueError(f"`model` must hold an instance at least, got a batch of shape {shape}.")

    def step(carry: PyTree, part: tuple[PyTree, Array]) -> tuple[PyTree, PyTree]:
        instances, real = part
        single, summed = jax.vmap(fn)(instances)
        summed = jax.tree.map(lambda x: jnp.tensordot(real.astype(x.dtype), x, 1), summed)
        return jax.tree.map(jnp.add, carry, summed), single

    if size <= chunk:
        single, summed = jax.vmap(fn)(batch)
        summed = jax.tree.map(lambda x: x.sum(0), summed)
    else:
        like = jax.eval_shape(fn, jax.tree.map(lambda x: x[0], batch))[1]
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
        summed, single = jax.lax.scan(step, zero, _parts(batch, size, chunk))
        single = jax.tree.map(lambda x: _joined(x)[:size], single)
    single = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), single)
    return single, jax.tree.map(lambda x: x / size, summed)


def _parts(batch: PyTree, size: int, chunk: int) -> tuple[PyTree, Bool[Array, "parts chunk"]]:
    """Cuts the leading axis into equal parts of at most `chunk`. The last instance is repeated to
    fill them; the mask says which instances are real.
    """
    number = -(-size // chunk)
    length = -(-size // number)

    def cut(x: Array) -> Array:
        fill = jnp.broadcast_to(x[-1:], (number * length - size, *x.shape[1:]))
        return jnp.concatenate([x, fill]).reshape(number, length, *x.shape[1:])

    real = jnp.arange(number * length) < size
    return jax.tree.map(cut, batch), real.reshape(number, length)


def _joined(x: Array) -> Array:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
