from collections.abc import Mapping
from typing import Any

import jax.extend.backend
import jax.lib


def make_compatible() -> None:
    """Lets PGMax 0.6.1 run on any JAX that this library allows: it asks `jax.lib.xla_bridge` for
    the platform, which has moved to `jax.extend.backend`. Nothing inside PGMax is changed.
    """
    # Not `hasattr`: it meets the module's own `__getattr__`, which warns on some versions of JAX.
    if "xla_bridge" not in vars(jax.lib):
        jax.lib.xla_bridge = jax.extend.backend  # pyright: ignore[reportAttributeAccessIssue]


def starts_of(graph: Any) -> Mapping[Any, Any]:
    """Where the states of each variable begin. A graph says so in public only by compiling itself,
    edge by edge, into a cache that keeps it for ever.
    """
    if hasattr(graph, "_vars_to_starts"):
        return graph._vars_to_starts
    return graph.fg_state.vars_to_starts
