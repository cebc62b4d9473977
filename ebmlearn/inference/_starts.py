"""Several starts of messages: whether they agree, and what they say together."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ..messages import Engine, Product, Start


# Answers are the same if no probability differs by more than this.
_SAME = 0.01


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
) -> tuple[Any, Array, Array, Array, Array]:
    """Several ends as one: the fields of `Ends`. `value` of a state is what the best configuration
    has the most of for max-product, else the Bethe approximation of log Z.

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
    return state, iterations.max(), last, jax.nn.log_softmax(values), same[0].all()
