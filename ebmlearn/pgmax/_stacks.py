from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int
from pgmax import factor

from .. import _checks
from .._sentinels import EXCLUDED
from ..messages import Stacks
from ..models._require import refuse


def stacks_of(model: Any) -> Stacks:
    """The factors of a graph as stacks of tables of one shape, linear in its log-potentials.
    Configurations that a factor does not list are excluded.
    """
    wires, layout = model.wires, model.layout
    if not _checks.is_concrete(wires):
        refuse(model, "not be an argument of a compiled function for this", "use it as a constant")
    tables = model.tables(jnp.ones((), model.dtype))
    counts, out = model.num_states, []
    for k, kind in enumerate(layout.kinds):
        if kind.type is not factor.EnumFactor:
            hint = "write it as tables by `uai.to_tables`"
            refuse(model, "let all factors list their configurations, or be dense", hint)
        potentials = tables.potentials_of(kind)
        shapes: dict[tuple[int, ...], list[tuple[Any, ...]]] = {}
        for scope, configurations, states in _listed(wires, k, kind):
            shape = tuple(int(counts[v]) for v in scope)
            entries = np.ravel_multi_index(tuple(states.T), shape)
            shapes.setdefault(shape, []).append((scope, configurations, entries))
        for shape, found in shapes.items():
            size = [len(own) for _, own, _ in found]
            row = np.repeat(np.arange(len(found)), size)
            entry, own = (np.concatenate([x[i] for x in found]) for i in (2, 1))
            flat = jnp.full((len(found), int(np.prod(shape))), EXCLUDED, potentials.dtype)
            flat = flat.at[row, entry].set(potentials[own])
            members = np.stack([scope for scope, _, _ in found]).astype(np.int32)
            out.append((members, flat.reshape(len(found), *shape)))
    for w, (first, second) in zip(tables.weights, wires.ends, strict=True):
        one, two = (np.asarray(wires.variable)[end] for end in (first, second))
        members = np.stack([np.repeat(one, len(two)), np.tile(two, len(one))], 1)
        pairs = jnp.zeros((members.shape[0], 2, 2), w.dtype)
        out.append((members, pairs.at[:, 1, 1].set(w.reshape(-1))))
    return tuple(out)


def _listed(
    wires: Any, k: int, kind: Any
) -> list[tuple[Int[np.ndarray, " _"], Int[np.ndarray, " _"], Int[np.ndarray, "_ _"]]]:
    """Of each factor of a kind its variables, its configurations, and their states."""
    at = np.asarray(wires.arguments[k]["factor_configs_edge_states"])
    of = np.asarray(wires.arguments[k]["factor_configs_indices"])
    states = np.asarray(wires.states)[slice(*kind.messages)][at]
    edges = np.asarray(wires.edges)[slice(*kind.messages)][at]
    order = np.lexsort((edges, of))
    states, of = states[order], of[order]
    variable, local = np.asarray(wires.variable)[states], np.asarray(wires.local)[states]
    factors = np.asarray(wires.factors[k])[of]
    out = []
    for own in np.split(np.arange(len(of)), np.flatnonzero(np.diff(factors)) + 1):
        numbers = np.unique(of[own])
        rank = len(own) // len(numbers)
        out.append((variable[own[:rank]], numbers, local[own].reshape(-1, rank)))
    return out
