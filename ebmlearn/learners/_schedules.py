import jax.numpy as jnp
import optax

from .. import _checks


def robbins_monro(rate: float, hold: int, a: float, b: float) -> optax.Schedule:
    """A learning rate of `rate` for `hold` steps, then $a / (b + t)$ with $t$ counted from there
    (Salakhutdinov 2009). Its sum diverges and the sum of its squares converges, as stochastic
    approximation requires.

    !!! example

        ```python
        optax.sgd(ebmlearn.robbins_monro(0.01, hold=10_000, a=10, b=1000))
        ```
    """
    _checks.number("rate", rate, 0, float("inf"), "(0, inf)")
    _checks.count("hold", hold, 0)
    _checks.number("a", a, 0, float("inf"), "(0, inf)")
    _checks.number("b", b, 0, float("inf"), "(0, inf)")

    def schedule(step):
        t = jnp.maximum(jnp.asarray(step) - hold, 0).astype(jnp.float32)
        return jnp.where(jnp.asarray(step) < hold, jnp.float32(rate), a / (b + t))

    return schedule
