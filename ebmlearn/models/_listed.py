"""The factors of a model as tables, and as a network that is eliminated on the host."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from .._sentinels import EXCLUDED
from ..elimination import Network
from ..factors import AbstractFactor, Stacks


def stacks_of(model: Any, factors: Sequence[AbstractFactor] | None = None) -> Stacks | None:
    """All factors of a model as stacks of tables of one shape: the variables of each, all units
    being numbered on, and its log-potentials. None if some are no tables.

    **Arguments:**

    - `model`: a model of binary or categorical units.
    - `factors`: other factors between its units, by default its own.
    """
    names = getattr(model, "group_names", None) or model.names
    starts = np.cumsum([0, *(units.size for units in model.layers)])[:-1].tolist()
    places = dict(zip(names, model.layers, strict=True)), dict(zip(names, starts, strict=True))
    own = model.factors() if factors is None else factors
    found: Any = [factor.stacks(*places) for factor in own]
    return None if any(x is None for x in found) else sum(found, ())


def told(stacks: Stacks) -> Stacks:
    """Stacks without tables of zeros."""
    out = []
    for members, stack in stacks:
        kept = np.flatnonzero(np.any(np.asarray(stack), tuple(range(1, stack.ndim))))
        if len(kept):
            out.append((members[kept], stack[kept]))
    return tuple(out)


def networks(
    counts: tuple[int, ...], stacks: Any, singles: Iterable[Sequence[Float[np.ndarray, " _"]]]
) -> list[Network]:
    """Networks of the same tables, in float64 on the host. Each has scores of the states of each
    variable, before these tables.
    """
    scopes, tables = [(v,) for v in range(len(counts))], []
    for members, stack in stacks:
        stack = np.asarray(stack, np.float64)
        scopes += map(tuple, np.asarray(members).tolist())
        tables += list(np.where(stack < EXCLUDED / 2, -np.inf, stack))
    return [Network(counts, tuple(scopes), (*own, *tables)) for own in singles]


def networks_of(problem: Any, stacks: Stacks) -> list[Network]:
    """A network for each instance of a model with evidence. `stacks` are the tables of the model;
    evidence is in those of single variables.
    """
    rows, there = (np.asarray(x) for x in problem.scores())
    rows, counts = np.where(there, rows.astype(np.float64), -np.inf), problem.counts
    singles = [[x[:n] for x, n in zip(own, counts, strict=True)] for own in rows]
    return networks(counts, stacks, singles)
