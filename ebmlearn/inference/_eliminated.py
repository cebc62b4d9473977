"""Log Z of a model of tables by elimination on the host, differentiable in the log-potentials."""

import functools
import itertools
from collections.abc import Iterable
from typing import Any, TypeAlias

import equinox as eqx
import equinox.internal
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _checks, elimination
from .._sentinels import EXCLUDED
from .._types import AnyArray
from ..factors import Stacks
from ._base import Posed, posed, Problem, stacks_of, TooLarge


# The numbers of states of all variables, the product, and the bits of the largest table.
_Settings: TypeAlias = tuple[tuple[int, ...], str, int]


def eliminated(
    stacks: Stacks, counts: tuple[int, ...], instance: Posed, product: str, most: int
) -> tuple[Float[Array, ""], Float[Array, "variables most"]]:
    """Log Z of one instance, or its largest log-potential, and the probabilities of states.
    `counts` are the numbers of states of all variables of the stacks. Those after the variables of
    the model are helpers: each is determined by the others, and nobody asks for its states.

    The gradient of log Z is the probability of each state and of each entry of a table.
    Probabilities cannot be differentiated, which raises an error.
    """
    members = tuple(jnp.asarray(own, jnp.int32) for own, _ in stacks)
    parameters = tuple(table for _, table in stacks), instance.rows
    given, settings = (instance.there, instance.outputs), (counts, product, most)
    value, (_, p) = _log_z(parameters, members, given, settings)
    return value, eqx.internal.nondifferentiable_backward(p, name="beliefs of `Exact`")


def counts_of(problem: Problem) -> tuple[int, ...]:
    """The numbers of states of the variables of a model, and of those that its stacks add."""
    return sum((factor.helpers for factor in problem.model.factors()), problem.counts)


def check_width(problem: Problem, product: str, most: int) -> None:
    """Raises `TooLarge` if the tables on the way are known to become too large."""
    stacks = stacks_of(problem.model)
    assert stacks is not None
    if not _checks.is_concrete([own for own, _ in stacks]):
        return
    size, at = len(problem.counts), posed(problem)
    held = np.zeros(size, bool)
    if _checks.is_concrete(at.there):
        # What all instances hold joins nothing.
        held = (np.asarray(at.there).sum(-1) == 1).all(0)
    known = set(np.flatnonzero(held).tolist())
    scopes = tuple(
        tuple(v for v in row if v not in known)
        for own, _ in stacks
        for row in np.asarray(own).tolist()
    )
    counts, maximised = counts_of(problem), [frozenset()]
    if product == "mixed" and _checks.is_concrete(at.outputs):
        rows = np.asarray(at.outputs) & ~held
        maximised = [frozenset(np.flatnonzero(row).tolist()) for row in np.unique(rows, axis=0)]
    try:
        for own in maximised:
            elimination.planned(counts, scopes, maximised=own, most=most)
    except elimination.TooWide as error:
        raise TooLarge(
            f"`model` must be narrow enough: {error}. Raise `max_units`, or take `BP`."
        ) from None


def is_crowded(stacks: Stacks, most: int) -> bool:
    """Whether each of some variables has more than `most` neighbours among them. No order of
    elimination is narrow enough then, and none need be searched for.
    """
    pairs = [np.zeros((0, 2), np.int64)]
    for members, _ in stacks:
        ends = itertools.combinations(np.asarray(members, np.int64).T, 2)
        pairs += [np.sort(np.stack(both, 1), axis=1) for both in ends]
    edges = np.concatenate(pairs)
    size = edges.max(initial=0) + 1
    edges = np.stack(np.divmod(np.unique(edges @ [size, 1]), size), 1)
    while len(edges):
        kept = (np.bincount(edges.reshape(-1))[edges] > most).all(1)
        if kept.all():
            return True
        edges = edges[kept]
    return False


@eqx.filter_custom_vjp
def _log_z(parameters: Any, members: Any, given: Any, settings: _Settings) -> tuple[Any, Any]:
    return _called(parameters, members, given, settings)


@_log_z.def_fwd
def _(perturbed: Any, *arguments: Any) -> Any:
    found = _called(*arguments)
    return found, found[1]


@_log_z.def_bwd
def _(marginals: Any, cotangent: Any, perturbed: Any, *arguments: Any) -> Any:
    return jax.tree.map(lambda p: cotangent[0] * p, marginals)


def _called(parameters: Any, members: Any, given: Any, settings: _Settings) -> tuple[Any, Any]:
    """Log Z and its gradient, from the host."""
    dtype = np.dtype(parameters[1].dtype)
    like = jax.eval_shape(lambda x: _packed((x[1].sum(), x)), parameters)
    solve = functools.partial(_solved, settings, dtype)
    out = jax.pure_callback(
        solve, like, _packed(parameters), members, given, vmap_method="sequential"
    )
    return jax.tree.map(lambda x: jax.lax.bitcast_convert_type(x, dtype), out)


def _packed(tree: Any) -> Any:
    """Numbers as bytes along a last axis: where only a part of a program uses float64, callbacks
    would turn it into float32.
    """
    return jax.tree.map(lambda x: jax.lax.bitcast_convert_type(x, jnp.uint8), tree)


def _solved(settings: _Settings, dtype: np.dtype, parameters: Any, members: Any, given: Any) -> Any:
    def values(x: Any) -> np.ndarray:
        return np.ascontiguousarray(x).view(dtype)[..., 0].astype(np.float64)

    def packed(x: Any) -> np.ndarray:
        return np.ascontiguousarray(np.asarray(x, dtype)[..., None]).view(np.uint8)

    counts, product, most = settings
    tables, rows = jax.tree.map(values, parameters)
    there, outputs = (np.asarray(x) for x in given)
    stacks = zip(members, tables, strict=True)
    (network,) = networks(counts, stacks, np.where(there, rows, -np.inf)[None])
    maximised = np.full(len(counts), product == "max")
    if product == "mixed":
        # Helpers are summed out: they have one state only, given all others.
        maximised[: len(rows)] = outputs
    out = np.zeros_like(rows), [np.zeros_like(x) for x in tables]
    value = _fill(network, frozenset(np.flatnonzero(maximised).tolist()), most, *out)
    return jax.tree.map(packed, (value, (tuple(out[1]), out[0])))


def networks(
    counts: tuple[int, ...],
    stacks: Iterable[tuple[AnyArray, AnyArray]],
    rows: Float[np.ndarray, "instances variables most"],
) -> list[elimination.Network]:
    """Networks of the same tables, in float64 on the host. Each has scores of the states of its
    variables, before these tables; helpers, which come last, have none.
    """
    scopes, tables = [(v,) for v in range(len(counts))], []
    for members, stack in stacks:
        stack = np.asarray(stack, np.float64)
        scopes += map(tuple, np.asarray(members).tolist())
        tables += list(np.where(stack < EXCLUDED / 2, -np.inf, stack))
    helpers = [np.zeros(n) for n in counts[rows.shape[1] :]]
    singles = [[x[:n] for x, n in zip(own, counts, strict=False)] for own in rows]
    return [
        elimination.Network(counts, tuple(scopes), (*own, *helpers, *tables)) for own in singles
    ]


def networks_of(problem: Problem, stacks: Stacks) -> list[elimination.Network]:
    """A network for each instance of a model with evidence. `stacks` are the tables of the model;
    evidence is in those of single variables.
    """
    rows, there = (np.asarray(x) for x in posed(problem)[:2])
    return networks(problem.counts, stacks, np.where(there, rows.astype(np.float64), -np.inf))


def _fill(
    network: elimination.Network,
    maximised: frozenset[int],
    most: int,
    rows: Float[np.ndarray, "variables most"],
    tables: list[Float[np.ndarray, "..."]],
) -> float:
    """Writes the marginals of all states and tables, given the best states of what is maximised
    over; returns log Z, or its largest value.
    """
    try:
        solution, small = elimination.solve(network, maximised=maximised, most=most)
        if maximised:
            held = small.restored(solution.best())
            solution, small = elimination.solve(network, held, most=most)
    except elimination.Impossible:
        return -np.inf
    variables, found = solution.marginals(of_tables=True)
    for row, states, p in zip(rows, small.states, variables, strict=False):
        row[states] = p
    # The first tables are those of single variables.
    k = len(variables)
    for stack in tables:
        for row in range(len(stack)):
            states = [small.states[v] for v in network.scopes[k]]
            own = found[k].reshape([len(x) for x in states])
            stack[(row, *np.ix_(*states))] = own
            k += 1
    return solution.value
