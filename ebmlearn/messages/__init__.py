"""Message passing: one engine for all groups of units and all factors.

`engine(model, ...)` passes messages on a model. What is known of a group has a form
(`_forms.py`), and each factor has messages (`_sent.py`), which hosts add to `MAKERS`.
"""

from ._edge import (
    hard as hard,
    log_product as log_product,
    odds as odds,
    ODDS_LIMIT as ODDS_LIMIT,
    odds_serve as odds_serve,
    soft as soft,
    total as total,
)
from ._engine import Engine as Engine, Expected as Expected, State as State
from ._expectation import Given as Given, Moments as Moments
from ._assembly import (
    check_mixed as check_mixed,
    check_settings as check_settings,
    engine as engine,
    fits as fits,
    form_of as form_of,
    MAKERS as MAKERS,
    names_of as names_of,
    probabilities as probabilities,
    serves as serves,
    sides_of as sides_of,
    size as size,
)
from ._types import Form as Form, Product as Product, Schedule as Schedule, Start as Start


# TEMPORARY
def graph_kinds():
    return ("tables", "grid", "factors")


from ..models._problem import Instance
GraphInstance = Instance
def instances(problem):
    return problem.instances()
def change(old, new):
    import jax, jax.numpy as jnp
    gaps = [jnp.abs(jax.nn.sigmoid(b) - jax.nn.sigmoid(a)) for a, b in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True)]
    return jax.lax.stop_gradient(jnp.concatenate(gaps).max(initial=0))
