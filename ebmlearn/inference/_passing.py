"""Passing messages to the end: sweeps, sweeps that go by how much messages change, and several
starts, whether they agree and what they say together.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .. import messages
from ..messages import Engine, Product, Start
from ._base import Limits


_FEW = 8  # sweeps that GPUs are given without a loop
# Sweeps without progress after which damping rises, what counts as progress, and the most damping.
_PATIENCE, _PROGRESS, _MOST = 10, 0.99, 31 / 32
# Messages are sent whose change is at least this part of the largest.
_HOT = 0.5
# Answers are the same if no probability differs by more than this.
_SAME = 0.01


def passed(
    view: Engine, instance: Any, start: Any, limits: Limits, rows: int
) -> tuple[Any, Int[Array, ""], Float[Array, ""]]:
    """Passes messages from a state on: the last state, the number of sweeps and the last change.
    `rows` is how many instances do so together.

    With `limits.length` it can be differentiated in reverse mode. On GPUs the compiler sees all
    sweeps together if they are few: what a loop keeps of each takes a third of the time there.
    """
    if limits.early:

        def sweep(state: Any) -> tuple[Any, Float[Array, ""]]:
            new = view.update(state, instance)
            return new, view.change(state, new, instance)

        return limits.iterate(sweep, start)

    # How much the last sweep changed need be found only once.
    if limits.length is None:
        state, fields = view.sweeps(start, instance, jnp.asarray(limits.iterations), rows)
    else:

        @jax.checkpoint
        def again(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
            return (view.update(carry[0], instance), carry[0].fields), None

        first, few = (start, start.fields), 0 < limits.length <= _FEW
        unroll = limits.length if few and jax.default_backend() == "gpu" else 1
        (state, fields), _ = jax.lax.scan(again, first, length=limits.length, unroll=unroll)
    residual = view.change(state._replace(fields=fields), state, instance)
    iterations = jnp.add(limits.iterations, 0)
    return state, iterations, jnp.where(iterations > 0, residual, jnp.inf)


class _Pace(NamedTuple):
    """Messages, the share of its old value that each keeps, the smallest change with that damping,
    and the number of sweeps since then.
    """

    state: Any
    damping: Float[Array, ""]
    least: Float[Array, ""]
    since: Int[Array, ""]


def paced(
    view: Engine, instance: Any, start: Any, limits: Limits, damped: bool, hottest: bool
) -> tuple[Any, Int[Array, ""], Float[Array, ""]]:
    """Passes messages from a state on: the last state, the number of sweeps, and the change that
    another sweep without damping would bring.

    With `damped`, damping starts at none and goes half of the way to 1 whenever sweeps bring no
    progress. With `hottest`, only those messages are sent that change most (Elidan, McGraw & Koller
    2006, for all such messages at once).
    """
    dtype = limits.tol.dtype

    def sweep(at: _Pace) -> tuple[_Pace, Float[Array, ""]]:
        new = view.update(at.state, instance)
        change = view.change(at.state, new, instance)
        old, told = at.state._replace(fields=None), new._replace(fields=None)
        part = jax.tree.map(lambda x: jnp.broadcast_to(1 - at.damping, x.shape), old)
        if hottest:
            part = jax.tree.map(jnp.multiply, part, _hottest(old, told))
        # Where a message is sent whole, nothing is lost to rounding.
        sent = jax.tree.map(
            lambda a, b, p: jnp.where(p == 1, b, (1 - p) * a + p * b), old, told, part
        )
        state = view.resume(sent._replace(fields=new.fields), instance)
        if not damped:
            return at._replace(state=state), change
        better = change < _PROGRESS * at.least
        since = jnp.where(better, 0, at.since + 1)
        raised = since >= _PATIENCE
        damping = jnp.minimum((1 + at.damping) / 2, jnp.asarray(_MOST, dtype))
        return _Pace(
            state,
            jnp.where(raised, damping, at.damping),
            jnp.where(raised, jnp.asarray(jnp.inf, dtype), jnp.minimum(at.least, change)),
            jnp.where(raised, 0, since),
        ), change

    infinite, nothing = jnp.asarray(jnp.inf, dtype), jnp.zeros((), dtype)
    begin = _Pace(start, nothing, infinite, jnp.zeros((), jnp.int32))
    ended, iterations, change = limits.iterate(sweep, begin)
    return ended.state, iterations, change


def _hottest(old: PyTree, new: PyTree) -> PyTree:
    """1 for the messages that change most, else 0."""

    # Those that say that a state is excluded are so large that their rounding is a change.
    def far(a: Array, b: Array) -> Array:
        return jnp.abs(b - a) / jnp.maximum(jnp.abs(b), 1)

    changes = jax.tree.map(far, old, new)
    tops = [x.max(initial=0) for x in jax.tree.leaves(changes)]
    if not tops:
        return changes
    cut = _HOT * jnp.stack(tops).max()
    return jax.tree.map(lambda x: (x >= cut).astype(x.dtype), changes)


class Ends(NamedTuple):
    """Where messages ended: a state, or with `log_weights` one for each start along a first axis.

    - `iterations`, `residual`: the sweeps, and the last change; of several starts the largest, and
      the largest of those that count.
    - `log_weights`: of each start, normalised, minus infinity for those that do not count.
    - `stable`: whether all starts led to the same answer.
    """

    state: Any
    iterations: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]
    log_weights: Float[Array, "*batch starts"] | None = None
    stable: Bool[Array, "*batch"] | None = None

    def _each(self, fn: Callable[[Any], PyTree]) -> PyTree:
        """A function of the state, or of that of each start."""
        return (fn if self.log_weights is None else jax.vmap(fn))(self.state)

    def mean(self, fn: Callable[[Any], PyTree]) -> PyTree:
        """The mean of a function of a state."""
        found = self._each(fn)
        if self.log_weights is None:
            return found
        weights = jnp.exp(self.log_weights)

        def mixed(x: Array) -> Array:
            own = weights.reshape(-1, *(1,) * (x.ndim - 1)).astype(x.dtype)
            return jnp.where(own > 0, own * x, jnp.zeros_like(x)).sum(0)

        return jax.tree.map(mixed, found)

    def beliefs(self, view: Engine, instance: Any) -> tuple[Any, ...]:
        """What the messages say of all units."""
        found = self._each(lambda state: view.beliefs(state, instance))
        if self.log_weights is None:
            return found
        pairs = zip(view.numbered, found, strict=True)
        return tuple(form.mixture(own, self.log_weights) for form, own in pairs)

    def is_possible(self, view: Engine, instance: Any) -> Bool[Array, ""]:
        """Whether messages leave a configuration."""
        if not view.excludes:
            return jnp.ones((), bool)
        return self._each(lambda state: messages.is_possible(view, state, instance)).all()

    def log_sum(self, fn: Callable[[Any], Float[Array, ""]]) -> Float[Array, ""]:
        """The logarithm of the sum of exponentials of a function of the states that count."""
        found = self._each(fn)
        if self.log_weights is None:
            return found
        return jax.nn.logsumexp(jnp.where(self.log_weights > -jnp.inf, found, -jnp.inf))


def begun(view: Engine, instance: Any, start: Start, starts: int, key: PRNGKeyArray) -> PyTree:
    """The first messages of all starts: the usual ones, then random ones in pairs of which the
    second say the opposite of the first. If the model is symmetric, so are the answers of a pair.
    """
    pairs = starts // 2
    keys = jnp.repeat(jax.random.split(key, pairs), 2)[: starts - 1]
    signs = jnp.tile(jnp.asarray([1.0, -1.0], instance.unary[0].dtype), pairs)[: starts - 1]
    leaning = jax.vmap(lambda key, sign: view.leaning(instance, key, sign))(keys, signs)
    first = view.start(instance, start)
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, leaning)


def judged(
    view: Engine,
    instance: Any,
    product: Product,
    ended: tuple[Any, Int[Array, " starts"], Float[Array, " starts"]],
    value: Callable[[Any], Float[Array, ""]],
    tol: Float[Array, ""],
) -> Ends:
    """Combines the ends of several starts. `value` of an end is the log-potential of its best
    configuration for max-product, else the Bethe approximation of log Z.

    Sum-product takes each distinct fixed point as a part of the distribution, with its own log Z
    (Mézard & Montanari 2009, section 19.1). A start that did not converge counts only if none did:
    its log Z means nothing, so all such starts count the same. Where units are maximised over, the
    best start alone counts.
    """
    state, iterations, residual = ended
    starts = residual.shape[0]

    def alike(a: Any, b: Any) -> Bool[Array, ""]:
        if product != "max":
            return view.change(a, b, instance) <= _SAME
        one, two = (jax.tree.leaves(view.decode(view.beliefs(x, instance))) for x in (a, b))
        return jnp.stack([(x == y).all() for x, y in zip(one, two, strict=True)]).all()

    same = jax.vmap(lambda a: jax.vmap(lambda b: alike(a, b))(state))(state)
    values = jax.vmap(value)(state)
    usable = jnp.isfinite(values)
    if product == "sum":
        settled = residual <= tol
        usable = usable & (settled | ~settled.any())
        values = jnp.where(settled.any(), values, jnp.zeros_like(values))
        repeated = (same & usable[None, :] & jnp.tri(starts, k=-1, dtype=bool)).any(1)
        usable = usable & ~repeated
    # The usual start, if there is nothing that could count.
    usable = usable | (~usable.any() & (jnp.arange(starts) == 0))
    if product != "sum":
        best = jnp.where(usable, values, -jnp.inf).argmax()
        usable = jnp.arange(starts) == best
    values = jnp.where(usable, jnp.where(jnp.isfinite(values), values, 0.0), -jnp.inf)
    last = jnp.where(usable, residual, jnp.zeros_like(residual)).max()
    return Ends(state, iterations.max(), last, jax.nn.log_softmax(values), same[0].all())
