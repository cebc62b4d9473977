"""Answers to the four tasks, and their files, `.PR`, `.MAR`, `.MAP` and `.MMAP`."""

import math
import os
from typing import get_args, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .._fit._file import write as write_file
from ._words import Words


Task = Literal["PR", "MAR", "MAP", "MMAP"]
TASKS: tuple[str, ...] = get_args(Task)


class Answer(NamedTuple):
    """The answer to a task. Only the fields of that task are set.

    - `task`: `"PR"`, `"MAR"`, `"MAP"` or `"MMAP"`.
    - `log10_partition`: for `PR`, log10 of the sum over all configurations. For a
      Bayesian network the sum is the probability of the evidence.
    - `marginals`: for `MAR`, the probabilities of the states of each variable.
    - `states`: for `MAP` the states of all variables, for `MMAP` those of `variables`.
    - `variables`: for `MMAP`, the variables of the query in increasing order, if known.
    """

    task: Task
    log10_partition: float = math.nan
    marginals: tuple[Float[np.ndarray, " _"], ...] = ()
    states: Int[np.ndarray, " _"] = np.zeros(0, np.int64)
    variables: tuple[int, ...] | None = None

    def text(self) -> str:
        """The answer in the form of the UAI 2014 competition. There, the states of a marginal MAP
        come without their variables, in increasing order of these.
        """
        if self.task == "PR":
            words = [float(self.log10_partition)]
        elif self.task == "MAR":
            words = [len(self.marginals)]
            for p in self.marginals:
                words += [len(p), *p.tolist()]
        else:
            words = [len(self.states), *self.states.tolist()]
        return f"{self.task}\n{' '.join(map(repr, words))}\n"


def write_answer(path: str | os.PathLike, answer: Answer) -> None:
    """Writes an answer to a file, completely or not at all.

    **Arguments:**

    - `path`: the file.
    - `answer`: the answer.
    """
    write_file(path, answer.text().encode())


def read_answer(path: str | os.PathLike, query: tuple[int, ...] | None = None) -> Answer:
    """Reads an answer. A 1, the number of samples, may come before it.

    **Arguments:**

    - `path`: the file. Its first word is the task.
    - `query`: for `MMAP`, the variables of the query, in any order. Some files give the variable of
      each state; others, which give states in increasing order of variables, need the query to say
      which these are.
    """
    words = Words(path, TASKS)
    # Lengths tell whether the number of samples comes first.
    for first in (0, 1):
        read = _READERS[words.kind](words, first, query)
        if read is not None:
            return read
        if not len(words) or words.numbers[0] != 1:
            break
    wanted = _FORMS[words.kind]
    return words.fail(0, f"expected {wanted}, got {len(words)} numbers that do not fit")


def _log10_partition(words: Words, first: int, query: tuple[int, ...] | None) -> Answer | None:
    if len(words) != first + 1:
        return None
    return Answer("PR", log10_partition=float(words.numbers[first]))


def _marginals(words: Words, first: int, query: tuple[int, ...] | None) -> Answer | None:
    numbers, at, found = words.numbers, first + 1, []
    if len(words) <= first or not numbers[first].is_integer():
        return None
    for _ in range(int(numbers[first])):
        if at >= len(words) or not numbers[at].is_integer() or numbers[at] < 1:
            return None
        size = int(numbers[at])
        found.append((at + 1, numbers[at + 1 : at + 1 + size]))
        at += 1 + size
    if at != len(words):
        return None
    for v, (place, p) in enumerate(found):
        wrong = ~((p >= 0) & (p <= 1 + 1e-3))
        if wrong.any():
            bad = int(wrong.argmax())
            words.fail(place + bad, f"probabilities must be from 0 to 1, got {p[bad]:g}")
        if not abs(p.sum() - 1) < 1e-2:
            words.fail(place, f"probabilities of variable {v} must add up to 1, got {p.sum():g}")
    return Answer("MAR", marginals=tuple(p for _, p in found))


def _states(words: Words, first: int, query: tuple[int, ...] | None) -> Answer | None:
    if len(words) <= first or len(words) - first - 1 != words.numbers[first]:
        return None
    states = [words.whole(k, "a state", 0) for k in range(first + 1, len(words))]
    return Answer("MAP", states=np.asarray(states, np.int64))


def _query_states(words: Words, first: int, query: tuple[int, ...] | None) -> Answer | None:
    variables = None if query is None else tuple(sorted(query))
    alone = _states(words, first, query)
    if alone is not None:
        found = alone.states
    else:
        if len(words) <= first or len(words) - first - 1 != 2 * words.numbers[first]:
            return None
        pairs = {
            words.whole(k, "a variable", 0): words.whole(k + 1, "a state", 0)
            for k in range(first + 1, len(words), 2)
        }
        if variables is not None and set(variables) != set(pairs):
            words.fail(first + 1, f"expected the variables of the query, got {sorted(pairs)[:10]}")
        variables = tuple(sorted(pairs))
        found = np.asarray([pairs[v] for v in variables], np.int64)
    if variables is not None and len(found) != len(variables):
        words.fail(first, f"expected {len(variables)} states, as the query has, got {len(found)}")
    return Answer("MMAP", states=found, variables=variables)


_READERS = {"PR": _log10_partition, "MAR": _marginals, "MAP": _states, "MMAP": _query_states}
_FORMS = {
    "PR": "one number, log10 of Z",
    "MAR": "the number of variables, then for each the number of its states and as many"
    " probabilities",
    "MAP": "the number of variables, then a state of each",
    "MMAP": "the number of variables of the query, then a state of each, or pairs of a variable"
    " and its state",
}
