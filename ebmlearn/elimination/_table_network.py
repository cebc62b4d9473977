"""Tables of log-potentials on the host, and what can be left out of them before any sum."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


# Of all variables: states, numbers such as weights, and a number for each of their states.
States = Int[np.ndarray, " variables"]
Numbers = Float[np.ndarray, " variables"]
Marginals = Sequence[Float[np.ndarray, " _"]]
Table = Float[np.ndarray, "..."]


class Impossible(ValueError):
    """Tables and evidence exclude all configurations.

    !!! example

        ```python
        from ebmlearn.elimination import Impossible, Network, reduced

        try:
            reduced(Network((2,), ((0,),), (np.full(2, -np.inf),)))
        except Impossible as error:
            print(error)
        ```
    """

    def __init__(self):
        super().__init__("no configuration is possible: tables and evidence exclude them all.")


class Network(NamedTuple):
    """Variables of finitely many states, and tables of log-potentials in float64; minus infinity
    excludes a configuration.

    !!! example

        ```python
        from ebmlearn.elimination import Network

        chain = Network((2, 3), ((0, 1),), (np.eye(2, 3),))
        chain.score(np.array([1, 1]))  # 1.0
        ```

    **Fields:**

    - `counts`: the number of states of each variable.
    - `scopes`: the variables of each table.
    - `tables`: the tables, with an axis for each variable of the scope.
    """

    counts: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]
    tables: tuple[Table, ...]

    def score(self, states: Int[np.ndarray, "*rows variables"]) -> Float[np.ndarray, "*rows"]:
        """The log-potential of configurations."""
        out = np.zeros(states.shape[:-1])
        for scope, table in zip(self.scopes, self.tables, strict=True):
            out = out + table[tuple(states[..., v] for v in scope)]
        return np.asarray(out)


class Reduced(NamedTuple):
    """A network of the states that are possible, and which these are of each variable. Tables have
    no axes for variables of one state.

    !!! example

        ```python
        from ebmlearn.elimination import Network, reduced

        found = reduced(Network((2, 3), ((0, 1),), (np.eye(2, 3),)), np.array([1, -1]))
        found.restored(np.array([0, 2]))  # states 1 and 2 of the whole network
        ```

    **Fields:**

    - `network`: the network of the states that are possible.
    - `states`: for each variable, the states that are possible.
    """

    network: Network
    states: tuple[Int[np.ndarray, " _"], ...]

    def restored(self, states: Int[np.ndarray, "*rows variables"]) -> Int[np.ndarray, "*rows n"]:
        """Configurations in the states of the whole network, -1 where a variable has none."""
        parts = [own[states[..., v]] for v, own in enumerate(self.states)]
        return np.where(states < 0, -1, np.stack(parts, -1))

    def whole(self, marginals: Marginals, counts: Sequence[int]) -> list[Float[np.ndarray, " _"]]:
        """Probabilities of all states, from those of the states that are possible."""
        out = []
        for p, states, number in zip(marginals, self.states, counts, strict=True):
            out.append(np.zeros(number))
            out[-1][states] = p / p.sum()
        return out


def reduced(network: Network, evidence: States | None = None) -> Reduced:
    """The network without states that evidence or tables exclude. What a state needs of its
    neighbours is looked for until nothing changes.

    Raises `Impossible` if nothing is possible.

    !!! example

        ```python
        from ebmlearn.elimination import Network, reduced

        chain = Network((2, 3), ((0, 1),), (np.eye(2, 3),))
        reduced(chain, np.array([1, -1])).network.counts  # (1, 3)
        ```

    **Arguments:**

    - `network`: the tables.
    - `evidence`: the state of each variable, -1 where it is not known.
    """
    counts, scopes, tables = network
    alive = [np.ones(n, bool) for n in counts]
    if evidence is not None:
        for v, state in enumerate(np.asarray(evidence).tolist()):
            if state >= 0:
                alive[v] = np.arange(counts[v]) == state
    joined: list[list[int]] = [[] for _ in counts]
    for k, scope in enumerate(scopes):
        for v in scope:
            joined[v].append(k)
    possible = [np.isfinite(x) for x in tables]
    # Tables that exclude nothing tell nothing of their variables.
    telling = [not x.all() for x in possible]
    waiting = [k for k, tells in enumerate(telling) if tells]
    queued = set(waiting)
    while waiting:
        k = waiting.pop()
        queued.discard(k)
        scope, left = scopes[k], possible[k]
        for axis, v in enumerate(scope):
            left = left & _along(alive[v], axis, left.ndim)
        for axis, v in enumerate(scope):
            others = tuple(a for a in range(left.ndim) if a != axis)
            kept = alive[v] & left.any(others)
            if (kept != alive[v]).any():
                alive[v] = kept
                for other in joined[v]:
                    if other != k and telling[other] and other not in queued:
                        queued.add(other)
                        waiting.append(other)
    if not all(x.any() for x in alive):
        raise Impossible
    states = tuple(np.flatnonzero(x) for x in alive)
    left, cut = [], []
    for scope, table in zip(scopes, tables, strict=True):
        small = table[np.ix_(*(states[v] for v in scope))] if scope else table
        # NumPy's arrays have few axes, and with much evidence most variables have one state.
        left.append(tuple(v for v in scope if len(states[v]) > 1))
        cut.append(small.reshape([len(states[v]) for v in left[-1]]))
    return Reduced(Network(tuple(map(len, states)), tuple(left), tuple(cut)), states)


def _along(x: np.ndarray, axis: int, rank: int) -> np.ndarray:
    return x.reshape([-1 if a == axis else 1 for a in range(rank)])


def aligned(table: Table, scope: Sequence[int], target: Sequence[int]) -> Table:
    """A table with the axes of `target`, of length 1 where its scope has no such variable."""
    place = {v: a for a, v in enumerate(scope)}
    axes = [place[v] for v in target if v in place]
    moved = table.transpose(axes)
    sizes = iter(moved.shape)
    return moved.reshape([next(sizes) if v in place else 1 for v in target])
