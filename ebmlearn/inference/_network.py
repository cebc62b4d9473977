from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .. import messages
from .._sentinels import CLAMPED
from ..models import AbstractModel, is_binary, QueryModel, QueryProblem, Statistics
from ._base import AbstractInference, Problem, refuse
from ._beliefs import Beliefs, Found, Normal
from ._bp import BP


class Network(AbstractInference):
    """The inference of a [`ebmlearn.QueryModel`][]: unrolled belief propagation as a network."""

    iterations: int | None = eqx.field(static=True, default=None)
    takes = ()
    sends: ClassVar[bool] = True

    def check(self, model: AbstractModel) -> None:
        """Raises `TypeError` unless it is a QueryModel."""
        if not isinstance(model, QueryModel):
            refuse(model, "be a QueryModel")

    def _beliefs(self, problem: QueryProblem) -> Beliefs:
        if problem.plain.is_answered:
            raise ValueError(
                "`evidence` and `observed` must leave at least one unit open, got all of them."
            )
        model = problem.model
        plain, own = problem.posed()
        found = self.bp(model).beliefs_of(plain)
        scale = model.scale
        log_odds, normal = found.log_odds, None
        if found._normal is not None:
            normal = Normal(found.mean, found.variance / scale)
        elif own is None:
            log_odds = each_group(lambda x: scale * x, log_odds)
        else:
            log_odds = each_group(lambda x, own: _scaled(scale, x, own), log_odds, own)
        return found.replaced(
            problem=problem.plain,
            derived=Found(None, None, "A QueryModel"),
            log_odds=_sure(problem.plain, log_odds),
            normal=normal,
        )

    def _statistics(self, problem: QueryProblem) -> Statistics:
        return refuse(problem.model, "be a plain one for this learner")

    def bp(self, model: QueryModel) -> BP:
        """The belief propagation that answers.

        With binary layers, only half of the messages of undamped flooding reach the visible units,
        so N iterations equal N/2 sweeps exactly. Gaussian units use both halves; sweeps then only
        have the same fixed points.
        """
        number = model.iterations if self.iterations is None else self.iterations
        half = messages.outline(model.centred).sides is not None and number % 2 == 0
        return BP(
            number // 2 if half else number,
            temperature=model.temperature,
            schedule="layers" if half else "flooding",
            unroll=True,
        )


def _scaled(scale: Array, x: Array, own: Array) -> Array:
    """Log-odds times `scale`, except for the evidence about the units themselves."""
    own = jnp.broadcast_to(own, x.shape)
    return scale * (x - own) + own


def _sure(plain: Problem, log_odds: Any) -> Any:
    """Log-odds, with those of certain units of layers replaced by the evidence."""
    states, mask, _ = plain.held()[0]
    if not is_binary(plain.model) or states is None or mask is None:
        return log_odds
    leaves, structure = jax.tree.flatten(log_odds)
    told = CLAMPED * (2 * states.astype(leaves[0].dtype) - 1)
    leaves[0] = jnp.where(mask, told, leaves[0].reshape(told.shape)).reshape(leaves[0].shape)
    return jax.tree.unflatten(structure, leaves)


def each_group(fn: Any, named: Any, *more: Any) -> Any:
    """A function of the arrays of each group; what names the groups stays."""

    def of_one(x: Any, *others: Any) -> Any:
        return fn(x, *others) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(of_one, named, *more)
