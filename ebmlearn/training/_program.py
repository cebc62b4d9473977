"""A function as a list of operations whose numbers are arguments, so that two functions that
differ only in their numbers, such as `optax.adam(0.1)` and `optax.adam(0.2)`, are one program for
the compiler.

`optax.inject_hyperparams` cannot do this: it must build the optimizer, while users pass one that is
built, and what it builds is new functions each time, which `jax.jit` traces and compiles anew. A
test shows both.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxtyping import PyTree


# Calls whose inside is written out, where their numbers are found. Those of loops and branches
# stay as they are and belong to what is compared.
_CALLS = {"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint"}


class Program(eqx.Module):
    """What a function does to arguments of certain shapes.

    Programs of equal operations are equal but for `numbers`, which are arrays: `jax.jit` compiles
    them once.
    """

    numbers: list[np.ndarray]
    _code: "_Code" = eqx.field(static=True)

    def __init__(self, function: Callable, *arguments: PyTree):
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        code = _Code(closed, jax.tree.structure(arguments), jax.tree.structure(shapes))
        # One array for each dtype, since each argument costs a call time.
        groups = [[code.values[slot] for slot in group] for group in code.groups]
        self.numbers = [x[0][None] if len(x) == 1 else np.stack(x) for x in groups]
        self._code = code

    def __call__(self, *arguments: PyTree) -> PyTree:
        code = self._code
        leaves, structure = jax.tree.flatten(arguments)
        assert structure == code.inputs
        slots: dict[int, Any] = dict(enumerate(leaves))
        for group, numbers in zip(code.groups, self.numbers, strict=True):
            slots |= {slot: numbers[k] for k, slot in enumerate(group)}
        for primitive, params, given, results in code.operations:
            found = primitive.bind(*[slots[i] for i in given], **params)
            slots |= zip(results, found if primitive.multiple_results else [found], strict=True)
        found = [_plain(slots[i]) for i in code.results]
        return jax.tree.unflatten(code.outputs, found)


class _Code:
    """The operations of a function in order, each on slots that are filled one after the other. Two
    are equal if they do the same, whatever their numbers are.
    """

    def __init__(self, closed: ClosedJaxpr, inputs: Any = None, outputs: Any = None):
        # What is done, its parameters, and the slots that it reads and fills.
        self.operations: list[tuple[Any, dict, tuple[int, ...], tuple[int, ...]]] = []
        self.values: dict[int, Any] = {}  # the numbers, by slot
        self.inputs, self.outputs = inputs, outputs
        shapes = tuple(_shape(v.aval) for v in closed.jaxpr.invars)
        self.size = len(shapes)
        self.results = self._written_out(closed, list(range(self.size)))
        kinds: dict[Any, list[int]] = {}
        for slot, value in self.values.items():
            # Keys, and numbers that are no scalars, stand alone.
            is_scalar = value.shape == () and isinstance(value, np.ndarray)
            kinds.setdefault(value.dtype if is_scalar else slot, []).append(slot)
        self.groups = list(kinds.values())
        numbers = tuple((slot, _shape(value)) for slot, value in self.values.items())
        operations = tuple((what, _described(how), *at) for what, how, *at in self.operations)
        self.key = inputs, outputs, shapes, tuple(self.results), numbers, operations
        self.hash = hash(self.key)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: Any) -> bool:
        return self is other or (isinstance(other, _Code) and self.key == other.key)

    def _written_out(self, closed: ClosedJaxpr, given: list[int]) -> list[int]:
        slots = dict(zip(closed.jaxpr.invars, given, strict=True))
        for variable, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            slots[variable] = self._number(value, variable.aval)

        def slot(x: Any) -> int:
            return self._number(x.val, x.aval) if isinstance(x, Literal) else slots[x]

        for equation in closed.jaxpr.eqns:
            given = [slot(x) for x in equation.invars]
            inside = _inside(equation)
            if inside is not None:
                results = self._written_out(inside, given)
            else:
                results = list(range(self.size, self.size + len(equation.outvars)))
                self.size += len(results)
                parts = equation.primitive, equation.params, tuple(given), tuple(results)
                self.operations.append(parts)
            slots |= zip(equation.outvars, results, strict=True)
        return [slot(x) for x in closed.jaxpr.outvars]

    def _number(self, value: Any, aval: Any) -> int:
        is_key = jnp.issubdtype(aval.dtype, jax.dtypes.extended)
        self.values[self.size] = value if is_key else np.asarray(value, aval.dtype)
        self.size += 1
        return self.size - 1


def _inside(equation: Any) -> ClosedJaxpr | None:
    """What a call does, to be written out in its place."""
    if equation.primitive.name not in _CALLS:
        return None
    found = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    return ClosedJaxpr(found, ()) if isinstance(found, Jaxpr) else found


def _described(x: Any) -> Any:
    """A parameter of an operation as something that can be hashed and compared."""
    if isinstance(x, dict):
        return tuple((name, _described(x[name])) for name in sorted(x))
    if isinstance(x, (tuple, list)):
        return (type(x), *map(_described, x))
    if isinstance(x, Jaxpr) and not x.constvars:
        x = ClosedJaxpr(x, ())
    if isinstance(x, ClosedJaxpr):
        code = _Code(x)
        return code, _described(list(code.values.values()))
    if isinstance(x, np.ndarray):
        return _shape(x), x.tobytes()
    try:
        hash(x)
    except TypeError:
        # It equals itself alone. Operations keep it, so no other has its number.
        return type(x), id(x)
    return type(x), x


def _shape(x: Any) -> tuple[tuple[int, ...], Any]:
    return tuple(x.shape), x.dtype


def _plain(x: Any) -> Any:
    """The same without JAX's mark of a number whose dtype may still change."""
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.extended)
    return x if is_key else jax.lax.convert_element_type(x, x.dtype)
