"""Answers to the tasks: exact where variables can be eliminated, else the best approximation."""

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from .. import _checks
from ..answers import Auto, marginals_of, maximum, propagated, tabled
from ..elimination import (
    bucketed,
    find_order,
    HOPELESS,
    Impossible,
    Marginals,
    Network,
    Reduced,
    reduced,
    Solution,
    States,
)
from ..models import whole
from ._answers import Answer, Task, TASKS


# Seconds for each number of a table that is eliminated: a sum, and the marginals beside.
_PER_NUMBER = 5e-8


class Report(NamedTuple):
    """How an answer was found.

    !!! example

        ```python
        from ebmlearn import uai

        found, report = uai.answer("PR", uai.to_network(ebmlearn.RBM.init(4, 3)))
        report.method, report.is_exact, report.width
        ```

    **Fields:**

    - `method`: what was used.
    - `is_exact`: whether the answer is exact.
    - `width`: the logarithm to base 2 of the largest table that exact elimination needs.
    - `quality`: how good the answer is, in words.
    - `seconds`: how long it took.
    """

    method: str
    is_exact: bool
    width: float
    quality: str
    seconds: float

    def __str__(self) -> str:
        kind = "exact" if self.is_exact else "approximate"
        return (
            f"{self.method}: {kind}, width {self.width:.1f} bits, {self.seconds:.1f} s."
            f" {self.quality}"
        )


def answer(
    task: Task,
    network: Network,
    evidence: Int[np.ndarray, " variables"] | None = None,
    query: Sequence[int] = (),
    *,
    seconds: float | int = 20,
    memory: float | int = 28,
) -> tuple[Answer, Report]:
    """Answers one of the tasks of the UAI competitions. The answer is exact if variables can be
    eliminated within the limits. Otherwise [`ebmlearn.Auto`][] chooses an approximation, and for
    `MAP` a search goes on until the time is over.

    !!! example

        ```python
        from ebmlearn import uai

        found, report = uai.answer("MAR", uai.to_network(ebmlearn.RBM.init(4, 3)))
        found.marginals[0], report.is_exact
        ```

    **Arguments:**

    - `task`: `"PR"`, log10 of the partition function; `"MAR"`, the marginals of all variables;
      `"MAP"`, the most likely states of all variables; `"MMAP"`, those of the variables of a query,
      the others summed out.
    - `network`: the tables, as [`ebmlearn.uai.read_network`][] or [`ebmlearn.uai.to_network`][]
      return them.
    - `evidence`: the state of each variable, -1 where it is not observed.
    - `query`: the variables of the query, for `"MMAP"` only.
    - `seconds`: about how long it may take.
    - `memory`: the logarithm to base 2 of the size of the largest table that is allowed.

    **Returns:**

    The answer, and a report that says how it was found and how good it is. Raises `ValueError` if
    tables and evidence exclude all configurations.
    """
    _checks.choice("task", task, TASKS)
    if (task == "MMAP") != bool(len(query)):
        wanted = "hold variables" if task == "MMAP" else "be empty"
        raise ValueError(f"`query` must {wanted} for {task}, got {tuple(query)!r}.")
    counts = np.asarray(network.counts)
    wrong = [v for v in query if whole(v) is None or not 0 <= v < len(counts)]
    if wrong or len(set(query)) < len(query):
        raise ValueError(
            f"`query` must hold different variables from 0 to {len(counts) - 1}, got"
            f" {tuple(query)!r}."
        )
    if evidence is not None:
        evidence = np.asarray(evidence)
        _checks.exact_shape("evidence", evidence, counts.shape, "a state of each variable")
        if not np.issubdtype(evidence.dtype, np.integer):
            raise TypeError(f"`evidence` must hold integers, got {_checks.describe(evidence)}.")
        wrong = (evidence < -1) | (evidence >= counts)
        if wrong.any():
            v = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"`evidence` must hold states from 0 to {counts[v] - 1} of variable {v}, or -1"
                f" where not observed, got {evidence[v]}."
            )
    began = time.perf_counter()
    small = reduced(network, evidence)
    maximised = {"MAP": range(len(network.counts)), "MMAP": query}.get(task, ())
    solution, width = _eliminated(small.network, frozenset(maximised), seconds, memory)
    if solution is not None:
        marginals = solution.marginals()[0] if task == "MAR" else ()
        said = _value_of(task, solution.value)
        found = _Found("elimination", said, solution.value, marginals, solution.best())
    else:
        found = _Approximate(small, began + seconds, memory).found(task, tuple(query))
    variables, states = tuple(sorted(query)), small.restored(found.states)
    if task == "PR":
        told = Answer(task, log10_partition=found.value / math.log(10))
    elif task == "MAR":
        told = Answer(task, marginals=tuple(small.whole(found.marginals, network.counts)))
    elif task == "MAP":
        told = Answer(task, states=states)
    else:
        told = Answer(task, states=states[list(variables)], variables=variables)
    took = time.perf_counter() - began
    return told, Report(found.method, solution is not None, width, found.quality, took)


class _Found(NamedTuple):
    """What was found of a network without impossible states: by which method, and how good it is in
    words; log Z, marginals, and likely states, as far as the task asks for them.
    """

    method: str
    quality: str
    value: float
    marginals: Marginals
    states: States


def _eliminated(
    network: Network, maximised: frozenset[int], seconds: float | int, memory: float | int
) -> tuple[Solution | None, float]:
    """The network with all variables eliminated, or None where that costs too much; and the width
    of the order.
    """
    order = find_order(
        network.counts, network.scopes, last=maximised, most=HOPELESS * memory, seconds=seconds / 10
    )
    width, work = order.width, order.work
    if width > memory or work > memory + 3 or 2.0**work * _PER_NUMBER > seconds:
        return None, width
    return Solution(network, bucketed(network.counts, network.scopes, order, maximised)), width


def _value_of(task: Task, value: float) -> str:
    what = "the value" if task in ("MAP", "MMAP") else "Z"
    return f"log10 of {what}: {value / math.log(10):.6g}."


class _Approximate:
    """Approximate answers about a network, until a deadline."""

    def __init__(self, small: Reduced, deadline: float, memory: float | int):
        self.small, self.deadline, self.memory = small, deadline, memory
        self.model, self.constant = tabled(small.network)
        self.key = jax.random.key(0)

    def found(self, task: Task, query: tuple[int, ...]) -> _Found:
        if task == "MMAP":
            return self._mmap(query)
        return self._best() if task == "MAP" else self._judged()

    def _judged(self) -> _Found:
        """The best approximation of all marginals and of log Z."""
        left = max(self.deadline - time.perf_counter(), 0.5)
        beliefs = Auto(left, exact=False, key=self.key)(self.model)
        if float(beliefs.log_partition) == -math.inf:
            raise Impossible
        report = beliefs.report
        assert report is not None
        lower, upper = (
            (float(x) + self.constant) / math.log(10) for x in (report.lower, report.upper)
        )
        said = ""
        if not bool(beliefs.converged):
            said = f"It did not converge in {int(beliefs.iterations)} sweeps. "
        elif beliefs.stable is not None and not bool(beliefs.stable):
            said = "Messages from different starts led to different answers. "
        said += (
            f"Probabilities are off by about {float(report.error):.1e}; log10 of Z is between"
            f" {lower:.6g} and {upper:.6g}."
        )
        value = float(beliefs.log_partition) + self.constant
        marginals = marginals_of(beliefs, self.small)
        return _Found(report.method, said, value, marginals, self._unknown())

    def _mmap(self, query: tuple[int, ...]) -> _Found:
        """Of the joint maximum, and of states fixed one part after the other by their marginals,
        the better one, if the others can be summed out.
        """
        # The last quarter of the time is for the sums that compare the two.
        end = self.deadline
        self.deadline -= (end - time.perf_counter()) / 4
        decimated = self._decimated(query)
        candidates = [decimated, np.where(decimated >= 0, self._best().states, -1)]
        values = []
        for k, states in enumerate(candidates):
            left = (end - time.perf_counter()) / (len(candidates) - k)
            values.append(self._value_given(states, max(left, 1.0)))
        best = int(np.argmax(values))
        said = "Its value is not known: the other variables cannot be summed out."
        if np.isfinite(values[best]):
            said = _value_of("MMAP", values[best])
        name = ("sum-product, variables fixed in turn", "search")[best]
        return _Found(name, said, values[best], (), candidates[best])

    def _best(self) -> _Found:
        """Likely states."""
        found = maximum(self.small.network, self.deadline, self.key)
        if found.bound == -math.inf:
            raise Impossible
        said = "No configuration was found that tables allow."
        if np.isfinite(found.value):
            gap = (found.bound - found.value) / math.log(10)
            said = f"{_value_of('MAP', found.value)} No value is higher by more than {gap:.4g}."
        return _Found("search", said, found.value, (), found.states)

    def _unknown(self) -> States:
        return np.full(len(self.small.states), -1, np.int64)

    def _decimated(self, query: tuple[int, ...]) -> States:
        """States of the query: the surest half is fixed, and messages are passed again."""
        states = self._unknown()
        open_ = list(query)
        while open_:
            now = time.perf_counter()
            problem = self.model.problem({"x": jnp.asarray(states, jnp.int32)}, None)
            beliefs = propagated(problem, "sum", now + 0.2 * (self.deadline - now), self.key)
            marginals = marginals_of(beliefs, self.small)
            open_.sort(key=lambda v: -float(marginals[v].max()))
            sure = sum(float(marginals[v].max()) > 0.99 for v in open_)
            number = max(1, sure, len(open_) // 2)
            for v in open_[:number]:
                states[v] = int(marginals[v].argmax())
            open_ = open_[number:]
        return states

    def _value_given(self, states: States, seconds: float) -> float:
        """The value of states of the query, minus infinity where it cannot be computed in time."""
        try:
            small = reduced(self.small.network, states)
            solution, _ = _eliminated(small.network, frozenset(), seconds, self.memory)
        except Impossible:
            return -math.inf
        return -math.inf if solution is None else solution.value
