import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .. import _checks
from .._types import AnyArray
from ..models import GaussianRBM, NNBM
from ..models._graph import AbstractGraphModel, GraphInstance
from ._gaussian import GaussianProblem
from ._instances import Problem


class GraphProblem(eqx.Module):
    """A graph with evidence on some of its variables, checked."""

    model: AbstractGraphModel
    held: Int[AnyArray, "*#batch variables"] | None
    log_likelihood: Float[Array, "*#batch states"] | None

    def __init__(self, model: AbstractGraphModel, evidence: Any = None, observed: Any = None):
        self.model = model
        self.held = self.log_likelihood = None
        if observed is not None and evidence is None:
            raise ValueError("`evidence` and `observed` go together, got no `evidence`.")
        if evidence is None:
            return
        if observed is not None:
            evidence = _masked(evidence, observed)
        evidence, self.log_likelihood = model.likelihood(evidence)
        if not isinstance(evidence, Mapping) or evidence:
            self.held = model.rows(evidence, "evidence")

    def checked(self) -> "GraphProblem":
        """The same, whose evidence raises at run time what could not be found before."""
        out = self
        if out.held is not None and not _checks.is_concrete(out.held):
            held = jnp.asarray(out.held).astype(jnp.int32)
            most = jnp.asarray(self.model.num_states, jnp.int32)
            wrong = (held < -1) | (held >= jnp.broadcast_to(most, held.shape))
            message = "`evidence` must hold states of its variables, or -1 where not known."
            out = eqx.tree_at(lambda p: p.held, out, eqx.error_if(held, wrong, message))
        soft = out.log_likelihood
        if soft is not None and not _checks.is_concrete(soft):
            message = "`evidence` must hold finite likelihoods >= 0."
            # Logarithms of what is infinite, or below 0.
            soft = eqx.error_if(soft, jnp.isnan(soft) | (soft == jnp.inf), message)
            out = out.with_likelihood(soft)
        return out

    def with_likelihood(
        self, log_likelihood: Float[Array, "*#batch states"] | None
    ) -> "GraphProblem":
        """The same with another likelihood of the states of all variables."""
        return eqx.tree_at(
            lambda p: p.log_likelihood, self, log_likelihood, is_leaf=lambda x: x is None
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The batch shape."""
        given = {"evidence": self.held, "likelihoods": self.log_likelihood}
        return _checks.broadcastable(**{k: x.shape[:-1] for k, x in given.items() if x is not None})

    def instances(self) -> GraphInstance:
        """The instances along one leading axis."""
        (unary,) = self.model.unary()
        shape = self.shape
        size = math.prod(shape)

        def flat(x: Array) -> Array:
            return jnp.broadcast_to(x, (*shape, x.shape[-1])).reshape(size, x.shape[-1])

        rows = flat(unary)
        if self.log_likelihood is not None:
            rows = rows + flat(self.log_likelihood.astype(rows.dtype))
        held = None if self.held is None else flat(jnp.asarray(self.held).astype(jnp.int32))
        return GraphInstance((rows,), held)


def pose(
    model: Any, evidence: Any, observed: Any, nonnegative: bool = False, gaussian: bool = False
) -> Problem | GraphProblem | GaussianProblem | NNBM:
    """A model with evidence, checked; an NNBM without. This and a Gaussian RBM are only for the
    inferences that work on them.
    """
    if isinstance(model, AbstractGraphModel):
        return GraphProblem(model, evidence, observed).checked()
    if isinstance(model, NNBM) and nonnegative:
        for name, x in (("evidence", evidence), ("observed", observed)):
            if x is not None:
                got = _checks.describe(x)
                raise ValueError(
                    f"`{name}` must be None for an NNBM, whose units are held by `sample(...,"
                    f" clamped=...)`, got {got}."
                )
        return model
    if isinstance(model, GaussianRBM) and gaussian:
        return GaussianProblem(model, evidence, observed)
    return Problem(model, evidence, observed)


def layered(problem: Problem | GraphProblem, name: str) -> Problem:
    """Raises for graphs, which an inference of this name cannot treat."""
    if isinstance(problem, GraphProblem):
        kind = type(problem.model).__name__
        raise TypeError(
            f"`model` must be an RBM, a DBM, a BoltzmannMachine or a SemiRestrictedBM for {name},"
            f" got a {kind}; `BP` works on it."
        )
    return problem


class AbstractGraphBeliefs(eqx.Module):
    """What an inference says about the variables of a graph, for each instance of the batch.

    `beliefs[group]` gives the probability of each state of each variable of a group, an array of
    shape `[*batch, *shape, states]`. Whether the inference converged is never hidden: see
    `converged`, `iterations`, `residual`.
    """

    scores: eqx.AbstractVar[Any]
    converged: eqx.AbstractVar[Bool[Array, "*batch"]]
    iterations: eqx.AbstractVar[Int[Array, "*batch"]]
    residual: eqx.AbstractVar[Float[Array, "*batch"]]

    def __getitem__(self, group: Any) -> Float[Array, "..."]:
        return jax.nn.softmax(self.scores[group], axis=-1)

    @property
    def marginals(self) -> Any:
        """Probabilities of all states by group: `marginals[group]`."""
        return eqx.tree_at(
            lambda s: s.values, self.scores, tuple(jax.nn.softmax(x) for x in self.scores.values)
        )

    def decode(self) -> Any:
        """The most likely state of each variable by group: `decode()[group]`."""
        return eqx.tree_at(
            lambda s: s.values,
            self.scores,
            tuple(x.argmax(-1).astype(jnp.int32) for x in self.scores.values),
        )


def _masked(evidence: Any, observed: Any) -> Any:
    """Evidence in which only what is observed counts."""
    if not isinstance(evidence, Mapping) or not isinstance(observed, Mapping):
        raise TypeError(
            "`evidence` and `observed` must be dictionaries of groups of variables, got"
            f" {_checks.describe(evidence)} and {_checks.describe(observed)}."
        )
    out = dict(evidence)
    for group, mask in observed.items():
        if group not in out:
            raise ValueError("`observed` must hold groups that `evidence` holds, got another one.")
        if getattr(mask, "dtype", None) != jnp.bool_:
            raise TypeError(f"`observed` must hold booleans, got {_checks.describe(mask)}.")
        if not hasattr(out[group], "dtype"):
            got = _checks.describe(out[group])
            raise TypeError(f"`evidence` must hold arrays, got {got}.")
        given, mask = jnp.asarray(out[group]), jnp.asarray(mask)
        if jnp.issubdtype(given.dtype, jnp.floating):
            mask, nothing = mask[..., None], jnp.ones((), given.dtype)
        else:
            given = given.astype(jnp.int32)
            nothing = jnp.asarray(-1, jnp.int32)
        try:
            np.broadcast_shapes(mask.shape, given.shape)
        except ValueError:
            raise ValueError(
                f"`observed` must have the shape of the states of a group, {given.shape}, got"
                f" {_checks.describe(mask)}."
            ) from None
        with jax.numpy_rank_promotion("allow"):
            out[group] = jnp.where(mask, given, nothing)
    return out
