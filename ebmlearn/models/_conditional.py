"""Models given the states of some of their groups, the others summed out by formula."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TYPE_CHECKING, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._sentinels import EXCLUDED
from ..factors import AbstractFactor
from ._observed import Masks, Told


if TYPE_CHECKING:
    from ._base import AbstractPlainModel

Result = TypeVar("Result")
# How many numbers the statistics of the configurations are that are treated at once.
_AT_ONCE = 2**26
States = Sequence[Float[Array, "rows _"]]


class Statistics(eqx.Module):
    """Expected statistics of a batch, as learners need them.

    They are the gradient of `log_partition`. Units over which an inference maximises are 0 or 1.

    !!! example

        ```python
        found = ebmlearn.BP().statistics(ebmlearn.RBM.init(16, 8))
        found.units.visible, found.pairwise
        ```

    **Fields:**

    - `converged`, `iterations`, `residual`: as of [`ebmlearn.Beliefs`][].
    - `units`: the means of all units, for each instance, by name.
    - `pairwise`: the means of the products of units that are joined, averaged over the batch.
    - `squares`: for each layer the means of what its units' own energy is linear in ($x^2$ of real
      units), for each instance; None for layers without such an energy.
    """

    units: PyTree
    pairwise: PyTree
    squares: tuple[Float[Array, "..."] | None, ...]
    converged: Bool[Array, "*batch"]
    iterations: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]


def is_independent(model: "AbstractPlainModel", groups: Iterable[int]) -> bool:
    """Whether the units of some groups are independent given all others."""
    names = {model.names[k] for k in groups}
    return all(sum(group in names for group in f.groups) < 2 for f in model.factors())


def is_closed(model: "AbstractPlainModel") -> bool:
    """Whether hidden units are independent given what data tell."""
    return is_independent(model, model.variables.unseen)


def summed(model: "AbstractPlainModel") -> tuple[int, ...]:
    """Groups other than the first that are independent of each other given the rest, hidden or not,
    so that chains can draw them first and sum them out: the odd ones of a DBM. None of a model
    whose units take turns.
    """
    out: tuple[int, ...] = ()
    if model.turns is None:
        for k in range(1, len(model.names)):
            out = (*out, k) if is_independent(model, (*out, k)) else out
    return out


def without(
    model: "AbstractPlainModel",
    summed: Sequence[int],
    layers: States,
    beta: Float[Array, "rows 1"] | None = None,
) -> Float[Array, " rows"]:
    """Minus the log-potential of states of which some groups, independent given the others, are
    summed out; at inverse temperature `beta`, if given, which may differ from row to row.
    """
    out = jnp.zeros(layers[0].shape[0], layers[0].dtype)
    normalisers, states = jnp.zeros_like(out), model.variables.states(layers)
    for k, (units, bias, x) in enumerate(zip(model.layers, model.unary(), layers, strict=True)):
        if k in summed:
            field = model.field(layers, k)
            if beta is not None:
                units, field = units.tempered(beta), jnp.broadcast_to(beta, x.shape) * field
            normalisers = normalisers + units.log_normaliser(field)
            continue
        if model.grouped:
            # Biases may exclude states.
            own: Any = states[model.names[k]][..., None]
            scores = units.scores(jnp.broadcast_to(bias, x.shape))  # pyright: ignore
            met = jnp.take_along_axis(scores, own, axis=-1)[..., 0]
            met = jnp.where(met < EXCLUDED / 2, -jnp.inf, met)
        else:
            met = jnp.broadcast_to(bias, x.shape) * x
        out = out - met.sum(-1)
        out = out if units.linear else out + units.base_energy(x)
    names = {model.names[k] for k in summed}
    for factor in model.factors("max"):
        if not names.intersection(factor.groups):
            out = out + factor.energy(states)
    return (out if beta is None else beta[:, 0] * out) - normalisers


def marginal_energies(
    model: "AbstractPlainModel", layers: States, beta: Float[Array, "rows 1"] | None = None
) -> Float[Array, " rows"]:
    """Minus the log-potential of states, with the groups `summed` summed out."""
    return without(model, summed(model), layers, beta)


def complete_energies(model: "AbstractPlainModel", seen: Told) -> Float[Array, " rows"]:
    """Minus the log-potential of what is seen, hidden groups summed out."""
    hidden = [k for k, x in enumerate(seen) if x is None]
    return without(model, hidden, model.variables.filled(seen, model.dtype))


def if_complete(
    model: "AbstractPlainModel",
    masks: Masks,
    formula: Callable[[], Result],
    infer: Callable[[], Result],
) -> Result:
    """The result of `formula` if nothing must be inferred, as hidden groups are independent given
    what is seen and nothing is missing, else that of `infer`.
    """
    if not is_closed(model):
        return infer()
    if masks is None:
        return formula()
    if not model.grouped:
        return infer()
    all_there = jnp.stack([mask.all() for mask in masks if mask is not None]).all()
    return jax.lax.cond(all_there, formula, infer)


def complete(model: "AbstractPlainModel", seen: Told, mode: bool = False) -> Statistics:
    """The statistics given what is seen, by formula; or those of the most likely hidden units."""
    hidden = tuple(k for k, x in enumerate(seen) if x is None)
    return statistics(model, model.variables.filled(seen, model.dtype), hidden, mode=mode)


def statistics(
    model: "AbstractPlainModel",
    layers: States,
    free: tuple[int, ...] = (),
    weights: Float[Array, " rows"] | None = None,
    mode: bool = False,
) -> Statistics:
    """The statistics of states in which the units of some groups, independent given the others, are
    replaced by their means, or by their most likely states. Rows may have weights that sum to 1.
    """
    size, variables = layers[0].shape[0], model.variables
    means, squares = list(layers), []
    for k, units in enumerate(model.layers):
        field = model.field(layers, k) if k in free else None
        if field is not None:
            means[k] = units.mode(field) if mode else units.mean(field)
        if units.linear:
            squares.append(None)
        elif field is None or mode:
            squares.append(units.statistics(means[k]))
        else:
            squares.append(units.mean_statistics(field))
    states = variables.states(layers) | {model.names[k]: means[k] for k in free}
    shares = jnp.full(size, 1 / size, layers[0].dtype) if weights is None else weights
    pairs = _met(model, states, shares) if model.exact else ()
    if weights is not None:
        heavy = size * weights[:, None]
        means = [x * jnp.broadcast_to(heavy, x.shape) for x in means]
        squares = [None if x is None else x * jnp.broadcast_to(heavy, x.shape) for x in squares]
    shown = variables.shown(means, (size,), lambda p: 1 - p)
    return Statistics(
        units=model.named(shown),
        pairwise=model.by_factor(pairs) if model.exact else (),
        squares=tuple(squares),
        converged=jnp.ones(size, bool),
        iterations=jnp.zeros(size, jnp.int32),
        residual=jnp.zeros(size, layers[0].dtype),
    )


def _met(
    model: "AbstractPlainModel", states: dict[str, Array], shares: Float[Array, " rows"]
) -> tuple[Float[Array, "..."], ...]:
    """The statistics of factors, of rows that have these shares."""
    factors = model.factors()
    if not factors:
        return ()

    def potential(
        factors: tuple[AbstractFactor, ...], states: dict[str, Array], shares: Array
    ) -> Float[Array, ""]:
        return -jnp.stack([(shares * f.energy(states)).sum() for f in factors]).sum()

    size, numbers = len(shares), sum(x.size for f in factors for x in f.parameters)
    # Tables look up what each row meets of them; products of matrices never hold that.
    chunk = max(1, _AT_ONCE // max(1, numbers)) if model.grouped else size
    if size <= chunk:
        found = eqx.filter_grad(potential)(factors, states, shares)
    else:
        parts = -(-size // chunk)

        def cut(x: Array) -> Array:
            x = jnp.pad(x, ((0, parts * chunk - size), *((0, 0),) * (x.ndim - 1)))
            return x.reshape(parts, chunk, *x.shape[1:])

        like = eqx.filter(factors, eqx.is_inexact_array)

        def step(total: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, eqx.filter_grad(potential)(factors, *part)), None

        zero = jax.tree.map(jnp.zeros_like, like)
        found, _ = jax.lax.scan(step, zero, jax.tree.map(cut, (states, shares)))
    return sum((f.statistic(g) for f, g in zip(factors, found, strict=True)), ())


def expected_energy(model: "AbstractPlainModel", statistics: Statistics) -> Float[Array, ""]:
    """The mean energy under expected statistics. Its gradient with the statistics held fixed is all
    that learning needs. Couplings inside a group hold each edge twice; an edge counts as one
    parameter, so that its gradient stands whole at both places. Of an energy that is not linear in
    its parameters, statistics are states.
    """
    means = model.variables.hidden_in(statistics.units)
    if not model.exact:
        return model.energies(means).mean()
    out = jnp.zeros((), model.dtype)
    for bias, x in zip(model.unary(), means, strict=True):
        if bias.ndim == 1:
            out = out - bias @ x.mean(tuple(range(x.ndim - 1)))
        else:
            shape = jnp.broadcast_shapes(bias.shape, x.shape)
            both = jnp.broadcast_to(bias, shape) * jnp.broadcast_to(x, shape)
            out = out - both.sum(-1).mean()
    pairs = iter(_listed(statistics.pairwise))
    for factor in model.factors():
        own = tuple(next(pairs) for _ in factor.parameters)
        out = out + factor.mean_energy(own) if own else out
    for layer, x in zip(model.layers, statistics.squares, strict=True):
        if x is not None:
            out = out + layer.own_energy(x).mean()
    return out


def _listed(pairwise: PyTree) -> list[Array]:
    """The values that a model has named by factor."""
    return list(pairwise.values if hasattr(pairwise, "values") else jax.tree.leaves(pairwise))
