"""What all inferences share: their contract, and when they stop."""

import abc
import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any, ClassVar, dataclass_transform, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, Int, PyTree

from .. import _checks, messages
from .._types import AnyArray, Evidence, Observed
from ..models import (
    AbstractModel,
    AbstractProblem,
    chosen_units,
    each as each,
    each_and_mean as each_and_mean,
    families,
    Instance as Instance,
    refuse as refuse,
    require_model,
    require_possible as require_possible,
    stacks_of as stacks_of,
    Statistics,
)
from ._beliefs import Beliefs, Problem as Problem, Went


Tree = TypeVar("Tree")
# Without a tolerance of its own, a run is judged by that of Ping & Ihler 2017, section 6.
_JUDGED_BY = 1e-3
# What an inference aims at if neither a number of sweeps nor a tolerance is given, and the most
# sweeps that it then makes.
_REACHED, _MOST = 1e-5, 1000
# Messages of a batch are kept up to this many numbers, 256 MiB in float32.
KEPT = 2**26


# Over which units each product maximises.
_MAXIMISES: dict[str, Literal["nothing", "visible", "all"]] = {
    "sum": "nothing",
    "mixed": "visible",
    "max": "all",
}


class TooLarge(ValueError):
    """A model is too large for exact inference."""


class AbstractInference(eqx.Module):
    """Turns a model into beliefs about its units.

    - `takes`: the families of the units that it takes, such as `"binary"`, in any order.
    - `sends`: whether it passes messages, which are compiled for moderate parameters or for any:
      see `messages.assuming`.
    """

    takes: ClassVar[tuple[str, ...]]
    sends: ClassVar[bool] = False

    @property
    def maximises(self) -> Literal["nothing", "visible", "all"]:
        """The units over which it maximises; it sums over all others. It follows from `product`,
        which is `"sum"` where there is none.
        """
        return _MAXIMISES[getattr(self, "product", "sum")]

    def __call__(
        self,
        model: AbstractModel,
        evidence: Evidence = None,
        observed: Observed = None,
        *,
        maximised: Any = None,
    ) -> Beliefs:
        """Beliefs about all units of all instances of `model`.

        **Arguments:**

        - `model`: a model, or a batch of models, whose biases have leading axes. The page of each
          inference says which models it takes.
        - `evidence`: what is known about the visible units (`x` of a BoltzmannMachine). 0 and 1 fix
          a unit; a number between them is the likelihood of 1 against 0. For Gaussian units, real
          numbers. For a graph, a dictionary from groups of variables to their states
          `[*batch, *shape]`, integers, -1 for unknown ones; or to the likelihoods of all states
          `[*batch, *shape, states]`, floating-point numbers.
        - `observed`: booleans, the entries of `evidence` that count. For a graph, a dictionary from
          groups to booleans; without it, all entries count.
        - `maximised`: the units over which `product="mixed"` maximises; it sums over all others.
          Booleans by name, such as `Layers(visible=..., hidden=None)`; for a graph, a dictionary
          from groups to booleans `[*batch, *shape]`. Without it, the groups that are not named
          `hidden`, or `hidden_1`, `hidden_2` and so on; a graph must have some with such names.

        Leading axes of these are a batch too, and broadcast with the model's.

        **Returns:**

        [`ebmlearn.Beliefs`][].
        """
        kind = type(self)
        # On the class: Equinox wraps each method of an instance in a new module.
        kind.check(self, model)
        problem = type(model).problem(model, evidence, observed)
        return kind._beliefs(self, _split(self, problem, maximised))

    def statistics(
        self,
        model: AbstractModel,
        evidence: Evidence = None,
        observed: Observed = None,
        *,
        maximised: Any = None,
    ) -> Statistics:
        """Expected statistics, in memory that does not grow with the batch times the weights. The
        arguments are those of a call.
        """
        self.check(model)
        return self._statistics(_split(self, model.problem(evidence, observed), maximised))

    def check(self, model: AbstractModel) -> None:
        """Raises `TypeError` if it does not take this model."""
        require_model(model)
        kind = type(self)
        if not kind.accepts(self, model):
            units = f"{' or '.join(self.takes)} units"
            refuse(model, f"be of a kind that {kind.__name__} takes, {units}")

    def accepts(self, model: AbstractModel) -> bool:
        """Whether it takes a model: by default one of groups of units that it takes."""
        found = families(model)
        return bool(found) and set(found) <= set(self.takes)

    def beliefs_of(self, problem: AbstractProblem) -> Beliefs:
        """Beliefs about a problem: a model with evidence that has been checked."""
        self.check(problem.model)
        return self._beliefs(problem)

    def statistics_of(self, problem: AbstractProblem) -> Statistics:
        """Expected statistics of a problem: a model with evidence that has been checked."""
        self.check(problem.model)
        return self._statistics(problem)

    @abc.abstractmethod
    def _beliefs(self, problem: Any) -> Beliefs:
        """Does the work of a call."""

    @abc.abstractmethod
    def _statistics(self, problem: Any) -> Statistics:
        """Does the work of `statistics`."""


def _split(inference: AbstractInference, problem: Any, maximised: Any) -> Any:
    """A problem with the units over which a user asks to maximise, if any are named."""
    if maximised is None:
        return problem
    if inference.maximises != "visible":
        name = type(inference).__name__
        raise ValueError(f'`maximised` needs `product="mixed"`, got {name} with another product.')
    return problem.with_outputs(chosen_units(problem.model, maximised, "maximised"))


def outputs_of(problem: Problem, product: str) -> Bool[Array, "instances variables"] | None:
    """The variables over which mixed-product maximises, for each instance; None if these are whole
    groups, or none.
    """
    if product != "mixed":
        return None
    if problem.maximised() is None:
        raise ValueError(
            f'`product="mixed"` on {_checks.article(type(problem.model).__name__)} needs the'
            " variables over which it maximises: write `maximised={group: booleans}` in the call of"
            " the inference, or name the groups of all others `hidden`, got none."
        )
    return None if problem.outputs is None else problem.flat(problem.outputs)


class Posed(NamedTuple):
    """What may differ between instances: the unary scores of the states of all units, which states
    are possible, and over which units mixed-product maximises.
    """

    rows: Float[Array, "*batch variables most"]
    there: Bool[Array, "*batch variables most"]
    outputs: Bool[Array, "*batch variables"]


def posed(problem: Problem) -> Posed:
    """The instances of a problem along one leading axis."""
    (rows, there), outputs = problem.scores(), problem.maximised()
    if outputs is None:
        outputs = jnp.zeros(rows.shape[1], bool)
    return Posed(rows, there, problem.flat(outputs))


def statistics_of(
    problem: Problem, p: Float[Array, "*batch variables most"], pairs: tuple[Array, ...], went: Went
) -> Statistics:
    """Expected statistics from the probabilities of all states and the statistics of factors."""
    model = problem.model
    units = problem.expected(messages.probabilities(model.layers, p))
    return Statistics(units, model.by_factor(pairs), (None,) * len(model.layers), *went)


def sends_messages(tree: Any) -> bool:
    """Whether some inference in a pytree passes messages."""

    def is_inference(x: Any) -> bool:
        return isinstance(x, AbstractInference)

    found = jax.tree.leaves(tree, is_leaf=is_inference)
    return any(x.sends for x in found if is_inference(x))


def check_limits(iterations: Any, damping: Any, tol: Any) -> None:
    """Validates the arguments that all iterative inferences share."""
    if iterations is not None:
        _checks.steps("iterations", iterations)
    _checks.number("damping", damping, 0, 1, "[0, 1)")
    if tol is not None:
        _checks.number("tol", tol, 0, float("inf"), "[0, inf)")


# Marks a field of numbers of which new values compile nothing in `fit`. Its default, if it has one,
# switches something off and stays as it is: `eqx.field(metadata=NUMBER, default=0.0)`.
NUMBER = {"number": True}


def is_off(x: Any, default: Any) -> bool:
    """Whether a number is the default of its field, which is known when a program is compiled."""
    return isinstance(x, (int, float)) and x == default


def with_traced(tree: Tree) -> Tree:
    """The same with the numbers of such fields as arrays, wherever they are in it."""
    if not isinstance(tree, eqx.Module):
        nodes = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, eqx.Module))
        if not any(isinstance(x, eqx.Module) for x in nodes):
            return tree
        return jax.tree.map(with_traced, tree, is_leaf=lambda x: isinstance(x, eqx.Module))
    changed = {}
    for field in dataclasses.fields(tree):  # pyright: ignore
        value = getattr(tree, field.name, None)
        if field.metadata.get("static", False) or value is None:
            continue
        if not field.metadata.get("number", False):
            new = with_traced(value)
        elif is_off(value, field.default):
            continue
        else:
            new = np.asarray(value, np.result_type(jax.dtypes.canonicalize_dtype(float)))
        if new is not value:
            changed[field.name] = new
    if not changed:
        return tree
    return eqx.tree_at(lambda x: [getattr(x, name) for name in changed], tree, [*changed.values()])


def traced(x: Any, dtype: DTypeLike) -> AnyArray:
    """A number as an array, so that a new value compiles nothing. Arrays of NumPy are cheaper to
    make than those of JAX.
    """
    return jnp.asarray(x, dtype) if isinstance(x, Array) else np.asarray(x, dtype)


@dataclass_transform(frozen_default=True)
def static_fields(*names: str) -> Callable[[type[Tree]], type[Tree]]:
    """A class of settings as a frozen dataclass and a pytree, in which the fields of these names
    are static. It is made within a few microseconds at each call, where an Equinox module takes a
    hundred.
    """

    def decorate(cls: type[Tree]) -> type[Tree]:
        cls = dataclasses.dataclass(frozen=True)(cls)
        data = [x.name for x in dataclasses.fields(cls) if x.name not in names]  # pyright: ignore
        return jax.tree_util.register_dataclass(cls, data, list(names))

    return decorate


@static_fields("early", "length")
class Limits:
    """When to stop: after a number of sweeps, or earlier if a sweep changes little. The numbers are
    arrays, so new values need no compilation. With `length` the loop can be differentiated in
    reverse mode; each sweep is then recomputed instead of stored.
    """

    iterations: Int[AnyArray, ""]
    tol: Float[AnyArray, ""]
    early: bool
    length: int | None

    def iterate(
        self, sweep: Callable[[PyTree], tuple[PyTree, Float[Array, ""]]], start: PyTree
    ) -> tuple[PyTree, Int[Array, ""], Float[Array, ""]]:
        """Repeats `sweep`, which returns the new state and how much changed. Returns the last
        state, the number of sweeps and the last change.
        """
        residual = jnp.asarray(jnp.inf, self.tol.dtype)
        if self.length is not None:

            @jax.checkpoint
            def step(carry, _):
                return sweep(carry[0]), None

            carry, _ = jax.lax.scan(step, (start, residual), length=self.length)
            return carry[0], jnp.asarray(self.length, jnp.int32), carry[1]

        def unfinished(carry):
            _, residual, i = carry
            more = i < self.iterations
            # Written so that a NaN is never converged.
            return more & ~(residual <= self.tol) if self.early else more

        def body(carry):
            state, _, i = carry
            return *sweep(state), i + 1

        carry = start, residual, jnp.zeros((), jnp.int32)
        state, residual, i = jax.lax.while_loop(unfinished, body, carry)
        return state, i, residual


def limited(iterations: Any, tol: Any, dtype: DTypeLike, unroll: bool = False) -> Limits:
    """The limits that the arguments of an inference mean."""
    if iterations is None:
        iterations, tol = _MOST, _REACHED if tol is None else tol
    return Limits(
        iterations=traced(iterations, jnp.int32),
        tol=traced(_JUDGED_BY if tol is None else tol, dtype),
        early=tol is not None,
        length=int(iterations) if unroll else None,
    )


def chunk_of(model: AbstractModel) -> int:
    """The number of instances to process at once, so that their messages take no more memory than
    messages that are kept.
    """
    return max(1, KEPT // max(1, messages.outline(model).size))


def swept_at_once(size: int) -> int:
    """How many instances with so many numbers each pass messages at once on the device at hand."""
    return max(1, _numbers() // max(1, size))


@functools.cache
def _numbers() -> int:
    """How many numbers the messages of instances that are swept together should have.

    A CPU sweeps several times as fast if they stay in the cache of a core. On other devices a sweep
    should fill a sixteenth of the memory, because each kernel costs time to start.
    """
    if jax.default_backend() == "cpu":
        return _cache() // 4
    stats = jax.local_devices()[0].memory_stats() or {}
    return max(KEPT, stats.get("bytes_limit", 0) // 64)


def _cache() -> int:
    """The bytes of the second-level cache of a core, 1 MiB where the system does not tell."""
    try:
        size = pathlib.Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip()
        return int(size.removesuffix("K")) * 1024
    except (OSError, ValueError):
        return 2**20
