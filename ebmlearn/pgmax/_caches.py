from typing import Any

from pgmax import fgraph, fgroup, infer, vgroup
from pgmax.infer import bp_state


def clear_caches() -> None:
    """Lets go of graphs that PGMax keeps for ever.

    PGMax remembers what it computes of graphs, of groups and of variables in caches without a
    limit, so that a process which builds graph after graph grows. A
    [`ebmlearn.pgmax.FactorGraphModel`][] holds on to none of them, and compiles but once for all
    graphs of a shape; what PGMax holds is let go by this. Afterwards ask graphs for `bp_state`
    anew, since PGMax takes states from before and after for those of two graphs.
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
