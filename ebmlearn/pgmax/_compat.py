import collections
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.extend.backend
import jax.lib
import jax.numpy as jnp
from pgmax import factor, fgraph, fgroup, infer, vgroup
from pgmax.infer import bp_state


def make_compatible() -> None:
    """Lets PGMax 0.6.1 run on any JAX that this library allows: it asks `jax.lib.xla_bridge` for
    the platform, which has moved to `jax.extend.backend`.
    """
    # Not `hasattr`: it meets the module's own `__getattr__`, which warns on some versions of JAX.
    if "xla_bridge" not in vars(jax.lib):
        jax.lib.xla_bridge = jax.extend.backend  # pyright: ignore[reportAttributeAccessIssue]


def make_energies_quiet() -> None:
    """Lets `pgmax.infer.compute_energy` run on versions of JAX that refuse to scatter numbers into
    booleans, of which those of today warn.
    """
    kind: Any = factor.EnumFactor
    kind.compute_energy = staticmethod(_energy_of_enumerations)


@functools.partial(jax.jit, static_argnames=("num_val_configs", "num_factors"))
def _energy_of_enumerations(
    edge_states_one_hot_decoding: Any,
    log_potentials: Any,
    factor_configs_indices: Any,
    factor_configs_edge_states: Any,
    num_val_configs: int,
    num_factors: int,
) -> Any:
    """Minus the log-potentials of the configurations in which all variables are as decoded;
    infinite unless each factor has one.
    """
    decoded = edge_states_one_hot_decoding[factor_configs_edge_states]
    met = jnp.ones(num_val_configs, decoded.dtype).at[factor_configs_indices].multiply(decoded) > 0
    energy = -jnp.where(met, log_potentials, jnp.zeros_like(log_potentials)).sum()
    return jnp.where(met.sum() == num_factors, energy, jnp.inf)


def starts_of(graph: fgraph.FactorGraph) -> Mapping[Any, Any]:
    """Where the states of each variable begin. A graph says so in public only by compiling itself,
    edge by edge, into a cache that keeps it for ever.
    """
    if hasattr(graph, "_vars_to_starts"):
        return graph._vars_to_starts
    return graph.fg_state.vars_to_starts


def add_type(kind: type, update: Callable[..., Any]) -> None:
    """Tells PGMax how the messages of a type of factors pass. Graphs built before do not know of
    it.

    PGMax then keeps the type in every graph, also where no factor has it. What walks through
    `graph.factor_groups`, as `pgmax.utils.primal_lp` does, may refuse types that it does not know:
    so a graph lists ours only if it has such factors.
    """
    factor.FAC_TO_VAR_UPDATES[kind] = update
    _OURS.add(kind)
    graphs: Any = fgraph.FactorGraph
    graphs.factor_groups = property(_used_groups, doc=graphs.factor_groups.__doc__)


_OURS: set[type] = set()


def _used_groups(graph: fgraph.FactorGraph) -> "collections.OrderedDict[type, list[Any]]":
    groups = all_groups(graph).items()
    return collections.OrderedDict((k, x) for k, x in groups if x or k not in _OURS)


def all_groups(graph: fgraph.FactorGraph) -> Mapping[type, list[Any]]:
    """The factor groups of a graph by type, of all types that were known when it was built."""
    return graph._factor_types_to_groups


def clear_caches() -> None:
    """Clears the caches of PGMax, to free memory.

    PGMax caches what it computes for graphs, groups and variables without a limit, so a process
    that builds many graphs grows. A [`ebmlearn.pgmax.FactorGraphModel`][] keeps no graph alive and
    compiles once for all graphs of the same shape; this function frees what PGMax keeps. Get
    `bp_state` from a graph again afterwards, because PGMax does not match old and new states.

    !!! example

        ```python
        import ebmlearn.pgmax

        ebmlearn.pgmax.clear_caches()
        ```
    """
    found = [fgraph.FactorGraph, fgroup.FactorGroup, vgroup.VarGroup]
    for kind in found:
        found += [sub for sub in kind.__subclasses__() if sub not in found]
        for attribute in vars(kind).values():
            cached: Any = attribute.fget if isinstance(attribute, property) else attribute
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
    # Compiled for one graph each, and kept with it.
    compiled: Any
    for compiled in (
        bp_state.update_log_potentials,
        bp_state.update_ftov_msgs,
        bp_state.update_evidence,
        infer.InfererContext.get_beliefs,
    ):
        compiled.clear_cache()
    # JAX also keeps the static arguments of compiled functions, here states of graphs, in a cache
    # of its own that has no public name.
    try:
        from jax._src import pjit

        kept: Any = pjit._process_in_axis_resources
        kept.cache_clear()
    except (ImportError, AttributeError):
        jax.clear_caches()
