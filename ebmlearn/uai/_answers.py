"""Answers to the four tasks, and their files, `.PR`, `.MAR`, `.MAP` and `.MMAP`."""

import math
import os
from typing import get_args, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..training._file import write as write_file
from ._words import Words


Task = Literal["PR", "MAR", "MAP", "MMAP"]
TASKS: tuple[str, ...] = get_args(Task)


class Answer(NamedTuple):
    """The answer to a task. Only the fields of that task are set.

    !!! example

        ```python
        from ebmlearn import uai

        found, report = uai.answer("PR", uai.to_network(ebmlearn.RBM.init(4, 3)))
        found.log10_partition
        ```

    **Fields:**

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

    !!! example

        ```python
        from ebmlearn import uai

        found, report = uai.answer("PR", uai.to_network(ebmlearn.RBM.init(4, 3)))
        uai.write_answer("rbm.uai.PR", found)
        ```

    **Arguments:**

    - `path`: the file.
    - `answer`: the answer.
    """
    write_file(path, answer.text().encode())


def read_answer(path: str | os.PathLike, query: tuple[int, ...] | None = None) -> Answer:
    """Reads an answer. A 1, the number of samples, may come before it.

    !!! example

        ```python
        from ebmlearn import uai

        found, report = uai.answer("MAR", uai.to_network(ebmlearn.RBM.init(4, 3)))
        uai.write_answer("rbm.uai.MAR", found)
        uai.read_answer("rbm.uai.MAR").marginals
        ```

    **Arguments:**

    - `path`: the file. Its first word is the task.
    - `query`: for `MMAP`, the variables of the query, in any order. Some files give the variable of
      each state; others, which give states in increasing order of variables, need the query to say
      which these are.
    """
    words = Words(path, TASKS)
    # Lengths tell whether the number of samples comes first.
    starts = (0, 1) if len(words) > 1 and words.numbers[0] == 1 else (0,)
    for first in starts[: len(words)]:
        found = _READERS[words.kind](words, first)
        if found is not None:
            return found if query is None else _of_query(words, found, query)
    wanted = _FORMS[words.kind]
    return words.fail(0, f"expected {wanted}, got {len(words)} numbers that do not fit")


def _of_query(words: Words, found: Answer, query: tuple[int, ...]) -> Answer:
    """An answer with the variables of the query, which only those to a marginal MAP have."""
    variables = tuple(sorted(query))
    if words.kind != "MMAP":
        return found
    if found.variables is not None and found.variables != variables:
        words.fail(0, f"expected the variables of the query, got {list(found.variables)[:10]}")
    if len(found.states) != len(variables):
        got = len(found.states)
        words.fail(0, f"expected {len(variables)} states, as the query has, got {got}")
    return found._replace(variables=variables)


def _log10_partition(words: Words, first: int) -> Answer | None:
    if len(words) != first + 1:
        return None
    return Answer("PR", log10_partition=float(words.numbers[first]))


def _marginals(words: Words, first: int) -> Answer | None:
    numbers, at, found = words.numbers, first + 1, []
    if not numbers[first].is_integer():
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


def _states(words: Words, first: int) -> Answer | None:
    left = len(words) - first - 1
    if left == words.numbers[first]:
        states = words.wholes(first + 1, left, "a state", 0)
        return Answer(words.kind, states=np.asarray(states, np.int64))  # pyright: ignore
    if words.kind == "MAP" or left != 2 * words.numbers[first]:
        return None
    pairs = {
        words.whole(k, "a variable", 0): words.whole(k + 1, "a state", 0)
        for k in range(first + 1, len(words), 2)
    }
    variables = tuple(sorted(pairs))
    return Answer("MMAP", states=np.asarray([pairs[v] for v in variables]), variables=variables)


_READERS = {"PR": _log10_partition, "MAR": _marginals, "MAP": _states, "MMAP": _states}
_FORMS = {
    "PR": "one number, log10 of Z",
    "MAR": "the number of variables, then for each the number of its states and as many"
    " probabilities",
    "MAP": "the number of variables, then a state of each",
    "MMAP": "the number of variables of the query, then a state of each, or pairs of a variable"
    " and its state",
}
