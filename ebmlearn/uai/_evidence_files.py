"""Files of evidence, `.evid`, and of the variables of a marginal MAP, `.query`."""

import os
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from .._types import AnyArray
from ..training._file import write as write_file
from ._words import Words


def read_evidence(path: str | os.PathLike, counts: Sequence[int]) -> Int[np.ndarray, " variables"]:
    """Reads a `.evid` file: a count, then pairs of a variable and its state. A 1, the number of
    samples, may come first. An empty file holds no evidence.

    !!! example

        ```python
        from ebmlearn import uai

        uai.write_evidence("grid.uai.evid", [1, -1, 0])
        uai.read_evidence("grid.uai.evid", [2, 2, 2])  # 1, -1, 0
        ```

    **Arguments:**

    - `path`: the file.
    - `counts`: the number of states of each variable, such as `model.counts`.

    **Returns:**

    The state of each variable, -1 where it is not observed.
    """
    words = Words(path)
    states = np.full(len(counts), -1, np.int64)
    if not len(words):
        return states
    # A count and pairs are an odd number of words, with the number of samples an even one.
    first = int(len(words) % 2 == 0 and words.numbers[0] == 1)
    number = words.whole(first, "the number of observed variables", 0)
    words.exactly(first + 1, 2 * number, f"numbers, {number} pairs of a variable and its state")
    for at in range(first + 1, len(words), 2):
        v = words.whole(at, "a variable", 0, len(counts) - 1)
        state = words.whole(at + 1, f"a state of variable {v}", 0, counts[v] - 1)
        if states[v] not in (-1, state):
            words.fail(at, f"variable {v} must have one state, got {states[v]} and {state}")
        states[v] = state
    return states


def write_evidence(path: str | os.PathLike, evidence: Int[AnyArray, " variables"]) -> None:
    """Writes a `.evid` file, without a number of samples.

    !!! example

        ```python
        from ebmlearn import uai

        uai.write_evidence("grid.uai.evid", [1, -1, 0])  # the second is not observed
        ```

    **Arguments:**

    - `path`: the file.
    - `evidence`: the state of each variable, -1 where it is not observed.
    """
    states = np.asarray(evidence)
    seen = np.flatnonzero(states >= 0)
    pairs = np.stack([seen, states[seen]], -1).reshape(-1).tolist()
    write_file(path, (" ".join(map(str, (len(seen), *pairs))) + "\n").encode())


def read_query(path: str | os.PathLike, counts: Sequence[int]) -> tuple[int, ...]:
    """Reads a `.query` file: a count, then the variables to maximise over.

    !!! example

        ```python
        from ebmlearn import uai

        uai.write_query("grid.uai.query", [0, 2])
        uai.read_query("grid.uai.query", [2, 2, 2])  # 0, 2
        ```

    **Arguments:**

    - `path`: the file.
    - `counts`: the number of states of each variable, such as `model.counts`.
    """
    words = Words(path)
    number = words.whole(0, "the number of variables of the query", 0, len(counts))
    words.exactly(1, number, "variables")
    query = words.wholes(1, number, "a variable", 0, len(counts) - 1)
    for k, v in enumerate(query):
        if v in query[:k]:
            words.fail(1 + k, f"the query must hold each variable once, got {v} again")
    return query


def write_query(path: str | os.PathLike, query: Sequence[int]) -> None:
    """Writes a `.query` file.

    !!! example

        ```python
        from ebmlearn import uai

        uai.write_query("grid.uai.query", [0, 2])
        ```

    **Arguments:**

    - `path`: the file.
    - `query`: the variables to maximise over.
    """
    write_file(path, (" ".join(map(str, (len(query), *query))) + "\n").encode())
