"""Upper bounds of log Z by power sums of single tables (Ping, Liu & Ihler 2015, "Decomposition
bounds for marginal MAP"; Globerson & Jaakkola 2007, "Convergent propagation algorithms via oriented
trees").

A power sum is $\\sum_x^w f(x) = (\\sum_x f(x)^{1/w})^w$. By Hölder's inequality,

$\\log Z \\le \\sum_a \\log \\sum_{x_a}^{w_a} e^{\\theta_a(x_a) - \\sum_i \\delta_{ai}(x_i)}$

for all messages that add up to nothing for each variable, $\\sum_a \\delta_{ai} = 0$, and all
weights that add up to 1, $\\sum_a w_{ai} = 1$, if all tables sum over their variables in one common
order. The bound is convex in both.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from .. import _checks
from .._sentinels import EXCLUDED
from .._types import AnyArray
from ..elimination import fewest_first
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


class Entries(NamedTuple):
    """Where the entries of tables of one shape, with axes in the order of the sums, stand among
    those of all tables of a model, one after the other; and the variables of each table.
    """

    members: Int[AnyArray, "tables rank"]
    places: Int[AnyArray, "tables ..."]


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
    """The variables of the minimisation: messages, and the logarithms of weights."""

    sent: Sent
    logits: Weights


def entries_of(variables: int, stacks: Stacks) -> tuple[Entries, ...]:
    """The tables of so many variables that join two or more, by their shape in the order of the
    sums. Tables that are known to be zero join nothing.
    """
    start, telling = 0, []
    for members, tables in stacks:
        places = np.arange(start, start + tables.size, dtype=np.int32).reshape(tables.shape)
        start += tables.size
        some = np.ones(len(tables), bool)
        if _checks.is_concrete(tables):
            some = np.asarray(tables).any(tuple(range(1, tables.ndim)))
        telling.append(Entries(np.asarray(members, np.int32)[some], places[some]))
    scopes = [scope for members, _ in telling for scope in members.tolist()]
    rank = np.argsort(fewest_first(variables, scopes))
    found: dict[tuple[int, ...], list[Entries]] = {}
    for members, places in telling:
        orders = np.argsort(rank[members], axis=1)
        for order in np.unique(orders, axis=0) if places.ndim > 2 else ():
            at = (orders == order).all(1)
            own = Entries(members[at][:, order], places[at].transpose(0, *(1 + order)))
            found.setdefault(own.places.shape[1:], []).append(own)
    return tuple(Entries(*map(np.concatenate, zip(*own, strict=True))) for own in found.values())


def decomposed(
    shape: tuple[int, int], stacks: Stacks, entries: tuple[Entries, ...], dtype: Any
) -> Decomposition:
    """The tables of a model in the order of the sums. `shape` is that of the rows of states."""
    rows, constant = jnp.zeros(shape, dtype), jnp.zeros((), dtype)
    for members, tables in stacks:
        if members.shape[1] == 1:
            rows = rows.at[members[:, 0], : tables.shape[1]].add(tables)
        elif members.shape[1] == 0:
            constant = constant + tables.sum()
    flat, number = _flat([tables for _, tables in stacks], dtype), jnp.zeros(shape[0], dtype)
    out = []
    for members, places in entries:
        members = jnp.asarray(members)
        number = number.at[members.reshape(-1)].add(1)
        out.append(Stack(members, flat[places], jnp.zeros(members.shape, dtype)))
    found = Decomposition(tuple(out), rows, number, constant)
    shares = zip(out, weights_of(first(found).logits, found), strict=True)
    return found._replace(stacks=tuple(x._replace(share=share) for x, share in shares))


def restored(
    stacks: Stacks, entries: tuple[Entries, ...], joint: Tables, p: Float[Array, "variables most"]
) -> Tables:
    """The probabilities of the entries of all tables of a model. Variables that nothing joins are
    independent.
    """
    out = []
    for members, tables in stacks:
        own = jnp.ones(tables.shape, p.dtype)
        for axis, size in enumerate(tables.shape[1:]):
            own = own * _along(p[members[:, axis], :size], axis, tables.ndim - 1)
        out.append(own)
    flat = _flat(out, p.dtype)
    for (_, places), values in zip(entries, joint, strict=True):
        flat = flat.at[places].set(values)
    parts = jnp.split(flat, np.cumsum([x.size for x in out])[:-1])
    return tuple(part.reshape(x.shape) for part, x in zip(parts, out, strict=True))


def _flat(tables: Sequence[Float[Array, "..."]], dtype: Any) -> Float[Array, " entries"]:
    """The entries of all tables, one after the other."""
    return jnp.concatenate([jnp.zeros(0, dtype), *(x.reshape(-1) for x in tables)])


def _along(x: Float[Array, "tables size"], axis: int, rank: int) -> Float[Array, "tables ..."]:
    """A row for each table, along one of its axes."""
    return jnp.expand_dims(x, [1 + k for k in range(rank) if k != axis])


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
            scores = scores + _along(told, axis, len(to))
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
    given = model.rows + rows, model.constant, tuple(x.tables for x in model.stacks)
    slopes = best.p, jnp.ones_like(model.constant), best.joint
    parts = jax.tree.map(lambda a, x: (a * (x - jax.lax.stop_gradient(x))).sum(), slopes, given)
    return best._replace(value=best.value + sum(jax.tree.leaves(parts)))


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
