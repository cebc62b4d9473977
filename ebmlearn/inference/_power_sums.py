"""Upper bounds of log Z by power sums of single tables (Ping, Liu & Ihler 2015, "Decomposition
bounds for marginal MAP"; Globerson & Jaakkola 2007, "Convergent propagation algorithms via oriented
trees").

A power sum is $\\sum_x^w f(x) = (\\sum_x f(x)^{1/w})^w$. By Hölder's inequality,

$\\log Z \\le \\sum_a \\log \\sum_{x_a}^{w_a} e^{\\theta_a(x_a) - \\sum_i \\delta_{ai}(x_i)}$

for all messages that add up to nothing for each variable, $\\sum_a \\delta_{ai} = 0$, and all
weights that add up to 1, $\\sum_a w_{ai} = 1$, if all tables sum over their variables in one common
order. The bound is convex in both.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from .._sentinels import EXCLUDED
from .._types import AnyArray
from ..factors import Stacks
from ._base import Limits
from ._minimise import minimise


# The first weight of tables of which a variable is the last, to that of its other tables. The best
# are zero, where sums become maxima; these are nearly as good, and smooth.
_SMALL = 0.1
# The part of 1 that weights share equally, so that none is zero.
_FLOOR = 1e-4
# Evaluations of an inner loop, and the most that the weight of a last variable is below 1.
_INNER, _TAKEN = 100, 0.9

# The log-potentials of each stack, or their probabilities.
Tables: TypeAlias = tuple[Float[Array, "..."], ...]


class Piece(NamedTuple):
    """Where tables come from: rows of a stack, and the order of their axes."""

    stack: int
    rows: tuple[int, ...]
    order: tuple[int, ...]


class Stack(NamedTuple):
    """Tables of one shape, whose axes are in the order of the sums.

    - `members`: the variables of each.
    - `tables`: its log-potentials.
    - `share`: which part of the unary scores of each of its variables it has.
    """

    members: Int[AnyArray, "tables rank"]
    tables: Float[Array, "tables ..."]
    share: Float[Array, "tables rank"]


class Decomposition(NamedTuple):
    """A model as single tables.

    - `stacks`: tables of two or more variables.
    - `rows`: the log-potentials of single variables.
    - `number`: how many tables of `stacks` each variable has.
    - `constant`: the log-potentials of no variable.
    """

    stacks: tuple[Stack, ...]
    rows: Float[Array, "variables most"]
    number: Float[Array, " variables"]
    constant: Float[Array, ""]


# Messages to each axis of each stack, and the weights of the variables of its tables.
Sent: TypeAlias = tuple[tuple[Float[Array, "_ _"], ...], ...]
Weights: TypeAlias = tuple[Float[Array, "_ _"], ...]


class Messages(NamedTuple):
    """What the bound is minimised over: messages, and the logarithms of weights."""

    sent: Sent
    logits: Weights


def pieces_of(shape: tuple[int, int], stacks: Stacks) -> tuple[tuple[Piece, ...], ...]:
    """For each shape of tables with at least two axes in the order of the sums, where they come
    from. `shape` is that of the rows of states.
    """
    rank = _order(shape[0], [np.asarray(members) for members, _ in stacks])
    found: dict[tuple[int, ...], list[Piece]] = {}
    for k, (members, tables) in enumerate(stacks):
        if members.shape[1] < 2:
            continue
        orders = np.argsort(rank[np.asarray(members)], axis=1)
        for order in np.unique(orders, axis=0):
            rows = np.flatnonzero((orders == order).all(1))
            sizes = tuple(tables.shape[1 + axis] for axis in order)
            piece = Piece(k, tuple(rows.tolist()), tuple(order.tolist()))
            found.setdefault(sizes, []).append(piece)
    return tuple(map(tuple, found.values()))


def decomposed(
    shape: tuple[int, int], stacks: Stacks, pieces: tuple[tuple[Piece, ...], ...], dtype: Any
) -> Decomposition:
    """The tables of a model in the order of the sums."""
    rows, constant = jnp.zeros(shape, dtype), jnp.zeros((), dtype)
    for members, tables in stacks:
        if members.shape[1] == 1:
            rows = rows.at[members[:, 0], : tables.shape[1]].add(tables)
        elif members.shape[1] == 0:
            constant = constant + tables.sum()
    out, number = [], jnp.zeros(shape[0], dtype)
    for own in pieces:
        parts = []
        for k, at, order in own:
            members, tables = stacks[k]
            chosen = np.asarray(at)
            moved = jnp.transpose(tables[chosen], (0, *(1 + axis for axis in order)))
            parts.append((members[chosen][:, np.asarray(order)], moved))
        members, tables = (jnp.concatenate(x) for x in zip(*parts, strict=True))
        number = number.at[members.reshape(-1)].add(1)
        out.append(Stack(members, tables, jnp.zeros(members.shape, dtype)))
    found = Decomposition(tuple(out), rows, number, constant)
    shares = zip(out, weights_of(first(found).logits, found), strict=True)
    return found._replace(stacks=tuple(x._replace(share=share) for x, share in shares))


def restored(
    pieces: tuple[tuple[Piece, ...], ...],
    stacks: Stacks,
    joint: tuple[Float[Array, "_ ..."], ...],
    p: Float[Array, "variables most"],
) -> tuple[Float[Array, "..."], ...]:
    """The probabilities of entries, in the order of the model's own tables."""
    out = []
    for members, tables in stacks:
        if members.shape[1] == 1:
            out.append(p[members[:, 0], : tables.shape[1]])
        else:
            out.append(jnp.ones(tables.shape, p.dtype))
    for own, values in zip(pieces, joint, strict=True):
        at = 0
        for k, rows, order in own:
            part = values[at : at + len(rows)]
            back = (0, *(1 + axis for axis in np.argsort(order)))
            out[k] = out[k].at[np.asarray(rows)].set(jnp.transpose(part, back))
            at += len(rows)
    return tuple(out)


def first(model: Decomposition) -> Messages:
    """No messages, and weights that are about the best: see `_SMALL`."""
    dtype = model.rows.dtype
    sent = tuple(
        tuple(jnp.zeros((x.members.shape[0], size), dtype) for size in x.tables.shape[1:])
        for x in model.stacks
    )
    small = np.log(_SMALL)
    logits = tuple(jnp.zeros(x.members.shape, dtype).at[:, -1].set(small) for x in model.stacks)
    return Messages(sent, logits)


def bound(
    sent: Sent,
    weights: Weights,
    model: Decomposition,
    rows: Float[Array, "variables most"],
    there: Bool[Array, "variables most"],
) -> Float[Array, ""]:
    """The upper bound of log Z at any messages and any weights that add up to 1, for unary scores
    `rows` and the states that are possible. Its gradient in `rows` and in the tables are the
    probabilities that belong to it.
    """
    excluded = jnp.asarray(EXCLUDED, rows.dtype)
    rows, mean = rows + model.rows, _mean(sent, model)
    alone = jax.nn.logsumexp(jnp.where(there, rows, excluded), axis=1)
    out = model.constant + jnp.where(model.number == 0, alone, jnp.zeros_like(alone)).sum()
    for stack, to, own in zip(model.stacks, sent, weights, strict=True):
        scores = stack.tables
        for axis, message in enumerate(to):
            members, size = stack.members[:, axis], message.shape[1]
            # Messages could share the unary scores too; but so the probabilities of a variable are
            # a mean of those of its tables.
            told = stack.share[:, axis, None] * rows[members, :size]
            told = told + mean[members, :size] - message
            told = jnp.where(there[members, :size], told, excluded)
            along = [1] * scores.ndim
            along[0], along[axis + 1] = message.shape
            scores = scores + jnp.broadcast_to(told.reshape(along), scores.shape)
        for axis in range(len(to)):
            scores = _power_sum(scores, own[:, axis])
        out = out + scores.sum()
    return out


class Best(NamedTuple):
    """What a search found: a value of log Z, the probabilities of states and of the entries of
    tables, and how: the number of steps, and the largest entry of the last gradient, which is how
    much tables disagree about a probability, or what a weight could gain.
    """

    value: Float[Array, "*batch"]
    p: Float[Array, "*batch variables most"]
    joint: tuple[Float[Array, "..."], ...]
    iterations: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]


def minimised(
    model: Decomposition,
    rows: Float[Array, "variables most"],
    there: Bool[Array, "variables most"],
    limits: Limits,
) -> Best:
    """The bound at the best messages and weights."""
    fixed, own = jax.lax.stop_gradient((model, rows))
    start, unravel = ravel_pytree(first(model))

    def value(x: Array, rows: Array, tables: Tables) -> Float[Array, ""]:
        at = unravel(x)
        return bound(at.sent, weights_of(at.logits, fixed), _with(fixed, tables), rows, there)

    evaluate = _evaluation(value, fixed, own)
    _, least, (p, joint), iterations, residual = minimise(evaluate, start, limits)
    return _differentiable(Best(least, p, joint, iterations, residual), model, rows)


def settled(
    model: Decomposition,
    rows: Float[Array, "variables most"],
    there: Bool[Array, "variables most"],
    limits: Limits,
) -> Best:
    """Bethe's approximation of log Z at a local minimum of the free energy, by a double loop.

    Bethe's entropy is one of tables with weights, as in the bound, less a multiple $c_i \\ge 0$ of
    the entropy of each variable. That is at most $-\\sum b_i \\log q_i$ for any $q$, and equal for
    $q = b$. So a step minimises the dual with $c_i \\log q_i$ added to the unary scores, and its
    probabilities are the next $q$. The value never falls, as far as the inner loop is exact.
    """
    fixed, own = jax.lax.stop_gradient((model, rows))
    weights, left = _counted(fixed)
    start, unravel = ravel_pytree(first(model).sent)
    floor = jnp.asarray(jnp.finfo(rows.dtype).tiny, rows.dtype)
    inner = Limits(jnp.asarray(_INNER, jnp.int32), limits.tol / 4, early=True, length=None)

    def value(x: Array, rows: Array, tables: Tables) -> Float[Array, ""]:
        return bound(unravel(x), weights, _with(fixed, tables), rows, there)

    def step(at: tuple[Array, Best]) -> tuple[tuple[Array, Best], Float[Array, ""]]:
        x, last = at
        tangent = left[:, None] * jnp.log(jnp.maximum(last.p, floor))
        tangent = jnp.where(there, tangent, jnp.zeros_like(tangent))
        evaluate = _evaluation(value, fixed, own + tangent)
        x, least, (p, joint), _, rest = minimise(evaluate, x, inner)
        residual = jnp.maximum(jnp.abs(p - last.p).max(initial=0), rest)
        return (x, Best(least, p, joint, last.iterations, residual)), residual

    nothing = jnp.zeros((), rows.dtype)
    possible = there.astype(rows.dtype)
    even = possible / possible.sum(1, keepdims=True)
    joint = tuple(jnp.zeros_like(x.tables) for x in fixed.stacks)
    begin = start, Best(nothing, even, joint, jnp.zeros((), jnp.int32), nothing)
    (_, best), iterations, residual = limits.iterate(step, begin)
    best = best._replace(iterations=iterations, residual=residual)
    return _differentiable(best, model, rows)


def _counted(model: Decomposition) -> tuple[Weights, Float[Array, " variables"]]:
    """Weights of the variables of tables whose entropy is Bethe's and as many times that of each
    single variable as is said beside.

    The weights are 1, but for the last variable of a table, which takes from its own multiple.
    """
    left = jnp.maximum(model.number - 1, 0)
    lasts = jnp.zeros_like(left)
    for stack in model.stacks:
        lasts = lasts.at[stack.members[:, -1]].add(1)
    taken = jnp.minimum(_TAKEN, left / jnp.maximum(lasts, 1))
    weights = tuple(
        jnp.ones(x.members.shape, left.dtype).at[:, -1].add(-taken[x.members[:, -1]])
        for x in model.stacks
    )
    return weights, left - lasts * taken


def _with(model: Decomposition, tables: Tables) -> Decomposition:
    pairs = zip(model.stacks, tables, strict=True)
    return model._replace(stacks=tuple(stack._replace(tables=x) for stack, x in pairs))


def _evaluation(
    value: Callable[[Array, Array, Tables], Array], model: Decomposition, rows: Array
) -> Callable[[Array], tuple[Array, Array, tuple[Array, Tables]]]:
    """The value at a point, its gradient there, and those in the unary scores and in the tables."""
    tables = tuple(x.tables for x in model.stacks)

    def evaluate(x: Array) -> tuple[Array, Array, tuple[Array, Tables]]:
        found, (gradient, p, joint) = jax.value_and_grad(value, argnums=(0, 1, 2))(x, rows, tables)
        return found, gradient, (p, joint)

    return evaluate


def _differentiable(best: Best, model: Decomposition, rows: Float[Array, "_ _"]) -> Best:
    """The same with the derivatives of the value. It is stationary in what was searched over, so
    they are those with that held fixed. Nothing else is added.
    """
    fixed, own = jax.lax.stop_gradient((model, rows))
    value = best.value + (best.p * (model.rows - fixed.rows + rows - own)).sum()
    value = value + (model.constant - fixed.constant)
    for q, stack, same in zip(best.joint, model.stacks, fixed.stacks, strict=True):
        value = value + (q * (stack.tables - same.tables)).sum()
    return best._replace(value=value)


def _power_sum(
    scores: Float[Array, "n states *rest"], weight: Float[Array, " n"]
) -> Float[Array, "n *rest"]:
    """The logarithm of the power sum over the first axis of states."""
    # Less the largest, so that the derivative in the weight loses no digits.
    top = jax.lax.stop_gradient(scores.max(1, keepdims=True))
    own = weight.reshape(-1, *(1,) * (scores.ndim - 2))
    scaled = (scores - top) / own[:, None]
    return top[:, 0] + own * jax.nn.logsumexp(scaled, axis=1)


def _mean(sent: Sent, model: Decomposition) -> Float[Array, "variables most"]:
    """The mean of the messages to each variable. They are taken less that, so that they add up to
    nothing.
    """
    total = jnp.zeros_like(model.rows)
    for stack, to in zip(model.stacks, sent, strict=True):
        for axis, message in enumerate(to):
            total = total.at[stack.members[:, axis], : message.shape[1]].add(message)
    return total / jnp.maximum(model.number, 1)[:, None]


def weights_of(logits: Weights, model: Decomposition) -> Weights:
    """Weights that add up to 1 for each variable."""
    if not model.stacks:
        return ()
    members = jnp.concatenate([x.members.reshape(-1) for x in model.stacks])
    logit = jnp.concatenate([x.reshape(-1) for x in logits])
    top = jnp.full_like(model.number, -jnp.inf).at[members].max(jax.lax.stop_gradient(logit))
    part = jnp.exp(logit - top[members])
    total = jnp.zeros_like(model.number).at[members].add(part)
    flat = (1 - _FLOOR) * part / total[members] + _FLOOR / model.number[members]
    ends = np.cumsum([x.members.size for x in model.stacks])[:-1]
    pairs = zip(jnp.split(flat, ends), model.stacks, strict=True)
    return tuple(x.reshape(stack.members.shape) for x, stack in pairs)


def _order(size: int, stacks: list[Int[np.ndarray, "_ _"]]) -> Int[np.ndarray, " variables"]:
    """The place of each variable in the order of the sums: the next one is always joined to the
    fewest of those that are left. On trees, where each has one such neighbour, the bound is exact.
    """
    around: list[set[int]] = [set() for _ in range(size)]
    for members in stacks:
        for scope in members.tolist():
            for v in scope:
                around[v].update(scope)
    buckets: list[set[int]] = [set() for _ in range(size + 1)]
    for v in range(size):
        around[v].discard(v)
        buckets[len(around[v])].add(v)
    rank, least = np.zeros(size, np.int64), 0
    for place in range(size):
        while not buckets[least]:
            least += 1
        v = min(buckets[least])
        buckets[least].remove(v)
        rank[v] = place
        for u in around[v]:
            buckets[len(around[u])].remove(u)
            around[u].remove(v)
            buckets[len(around[u])].add(u)
        least = max(0, least - 1)
    return rank
