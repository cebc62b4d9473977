from typing import Any

from pgmax import fgraph, fgroup, infer, vgroup
from pgmax.infer import bp_state


def clear_caches() -> None:
    """Clears the caches of PGMax, to free memory.

    PGMax caches what it computes for graphs, groups and variables without a limit, so a process
    that builds many graphs grows. A [`ebmlearn.pgmax.FactorGraphModel`][] keeps no graph alive and
    compiles once for all graphs of the same shape; this function frees what PGMax keeps. Get
    `bp_state` from a graph again afterwards, because PGMax does not match old and new states.
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
