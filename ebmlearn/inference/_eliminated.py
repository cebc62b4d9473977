"""Log Z of a graph of tables by elimination on the host, differentiable in the log-potentials."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import equinox.internal
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .. import _checks, elimination
from .._sentinels import EXCLUDED
from ..factors import AbstractFactor, Stacks
from ..models._listed import stacks_of
from ._base import TooLarge


class _Settings(NamedTuple):
    counts: tuple[int, ...]
    product: str
    most: int


def eliminated(
    stacks: Stacks,
    counts: tuple[int, ...],
    helpers: tuple[int, ...],
    instance: Any,
    product: str,
    most: int,
) -> tuple[Float[Array, ""], Float[Array, " states"]]:
    """Log Z of one instance, or its largest log-potential, and the probabilities of states.
    `helpers` are the numbers of states of variables that stacks have besides those of the model,
    after these: each is determined by the others, and nobody asks for its states.

    The gradient of log Z is the probability of each state and of each entry of a table.
    Probabilities cannot be differentiated, which raises an error.
    """
    members = tuple(jnp.asarray(own, jnp.int32) for own, _ in stacks)
    tables = tuple(table for _, table in stacks)
    unary, clamp, outputs = instance
    more = len(helpers)
    wide = jnp.pad(unary, (0, sum(helpers)))
    clamp = jnp.pad(clamp, (0, more), constant_values=-1)
    # Mixed-product sums them out: they have one state only, given all others.
    outputs = jnp.pad(outputs, (0, more), constant_values=product == "max")
    settings = _Settings(counts + helpers, product, most)
    value, (_, p) = _log_z((tables, wide), members, (clamp, outputs), settings)
    p = p[: unary.shape[0]]
    return value, eqx.internal.nondifferentiable_backward(p, name="beliefs of `Exact`")


def helpers_of(factors: tuple[AbstractFactor, ...]) -> tuple[int, ...]:
    """The numbers of states of the variables that the stacks of factors add."""
    return sum((factor.helpers for factor in factors), ())


def check_width(problem: Any, product: str, most: int) -> None:
    """Raises `ValueError` if the tables on the way are known to become too large."""
    stacks = stacks_of(problem.model)
    assert stacks is not None
    if not _checks.is_concrete([own for own, _ in stacks]):
        return
    size = len(problem.counts)
    counts = (*problem.counts, *helpers_of(problem.model.factors()))
    held = np.zeros(size, bool)
    if _checks.is_concrete(problem.rows):
        # What all instances hold joins nothing.
        held = (np.asarray(problem.rows) >= 0).reshape(-1, size).all(axis=0)
    known = set(np.flatnonzero(held).tolist())
    scopes = tuple(
        tuple(v for v in row if v not in known)
        for own, _ in stacks
        for row in np.asarray(own).tolist()
    )
    maximised = [frozenset()]
    if product == "mixed" and problem.outputs is not None and _checks.is_concrete(problem.outputs):
        rows = np.asarray(problem.outputs).reshape(-1, size) & ~held
        maximised = [frozenset(np.flatnonzero(row).tolist()) for row in np.unique(rows, axis=0)]
    try:
        for own in maximised:
            _planned(counts, scopes, most, own)
    except elimination.TooWide as error:
        raise TooLarge(
            f"`model` must be narrow enough: {error}. Raise `max_units`, or take `BP`."
        ) from None


@eqx.filter_custom_vjp
def _log_z(parameters: Any, members: Any, given: Any, settings: _Settings) -> tuple[Any, Any]:
    return _called(parameters, members, given, settings)


@_log_z.def_fwd
def _(perturbed: Any, parameters: Any, members: Any, given: Any, settings: _Settings) -> Any:
    value, marginals = _called(parameters, members, given, settings)
    return (value, marginals), marginals


@_log_z.def_bwd
def _(
    marginals: Any,
    cotangent: Any,
    perturbed: Any,
    parameters: Any,
    members: Any,
    given: Any,
    settings: _Settings,
) -> Any:
    of_value, _ = cotangent
    return jax.tree.map(lambda p: of_value * p, marginals)


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
    """Numbers as integers of 32 bits, two of them along a last axis for a number of 64 bits: where
    only a part of a program uses float64, callbacks would turn it into float32.
    """
    return jax.tree.map(lambda x: jax.lax.bitcast_convert_type(x, jnp.uint32), tree)


def _host(x: Any, dtype: np.dtype) -> np.ndarray:
    """What was packed, on the host."""
    bits = np.ascontiguousarray(np.asarray(x))
    return bits.view(dtype) if dtype.itemsize == 4 else bits.view(dtype)[..., 0]


def _bits(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The reverse of `_host`."""
    values = np.asarray(x, dtype)
    shape = values.shape if dtype.itemsize == 4 else (*values.shape, 2)
    return values.reshape(-1).view(np.uint32).reshape(shape)


def _solved(settings: _Settings, dtype: np.dtype, parameters: Any, members: Any, given: Any) -> Any:
    counts, product, most = settings
    tables, unary = jax.tree.map(lambda x: _host(x, dtype).astype(np.float64), parameters)
    scores = np.where(unary < EXCLUDED / 2, -np.inf, unary)
    singles = np.split(scores, np.cumsum(counts)[:-1])
    (network,) = networks(counts, zip(members, tables, strict=True), [singles])
    out = np.zeros_like(unary), [np.zeros_like(x) for x in tables]
    clamp, outputs = (np.asarray(x) for x in given)
    maximised = outputs if product != "sum" else np.zeros(len(counts), bool)
    value = _fill(network, clamp, frozenset(np.flatnonzero(maximised).tolist()), most, *out)
    return jax.tree.map(lambda x: _bits(x, dtype), (np.asarray(value), (tuple(out[1]), out[0])))


def networks(
    counts: tuple[int, ...], stacks: Any, singles: Iterable[Sequence[Float[np.ndarray, " _"]]]
) -> list[elimination.Network]:
    """Networks of the same tables, in float64 on the host. Each has scores of the states of each
    variable, before these tables.
    """
    scopes, tables = [(v,) for v in range(len(counts))], []
    for members, stack in stacks:
        stack = np.asarray(stack, np.float64)
        scopes += map(tuple, np.asarray(members).tolist())
        tables += list(np.where(stack < EXCLUDED / 2, -np.inf, stack))
    return [elimination.Network(counts, tuple(scopes), (*own, *tables)) for own in singles]


def networks_of(problem: Any, stacks: Stacks) -> list[elimination.Network]:
    """A network for each instance of a model with evidence. `stacks` are the tables of the model;
    evidence is in those of single variables.
    """
    rows, there = (np.asarray(x) for x in problem.scores())
    rows, counts = np.where(there, rows.astype(np.float64), -np.inf), problem.counts
    singles = [[x[:n] for x, n in zip(own, counts, strict=True)] for own in rows]
    return networks(counts, stacks, singles)


def _fill(
    network: elimination.Network,
    clamp: Int[np.ndarray, " variables"],
    maximised: frozenset[int],
    most: int,
    unary: Float[np.ndarray, " states"],
    tables: list[Float[np.ndarray, "..."]],
) -> float:
    """Writes the marginals of all states and tables, given the best states of what is maximised
    over; returns log Z, or its largest value.
    """
    try:
        small = elimination.reduced(network, clamp)
        solution = _solution(small.network, maximised, most)
        if maximised:
            best = solution.best()
            held = [small.states[v][s] if s >= 0 else -1 for v, s in enumerate(best.tolist())]
            small = elimination.reduced(network, np.where(clamp >= 0, clamp, np.asarray(held)))
            solution = _solution(small.network, frozenset(), most)
    except elimination.Impossible:
        return -np.inf
    variables, found = solution.marginals(of_tables=True)
    starts = np.concatenate([[0], np.cumsum(network.counts)[:-1]])
    for v, p in enumerate(variables):
        unary[starts[v] + small.states[v]] = p
    # The first tables are those of single variables.
    k = len(variables)
    for stack in tables:
        for row in range(len(stack)):
            states = [small.states[v] for v in network.scopes[k]]
            own = found[k].reshape([len(x) for x in states])
            stack[(row, *np.ix_(*states))] = own
            k += 1
    return solution.value


def _solution(
    network: elimination.Network, maximised: frozenset[int], most: int
) -> elimination.Solution:
    plan = _planned(network.counts, network.scopes, most, maximised)
    return elimination.Solution(network, plan)


@functools.lru_cache(maxsize=256)
def _planned(
    counts: tuple[int, ...],
    scopes: tuple[tuple[int, ...], ...],
    most: int,
    maximised: frozenset[int] = frozenset(),
) -> elimination.Plan:
    return elimination.planned(counts, scopes, maximised=maximised, most=most)
