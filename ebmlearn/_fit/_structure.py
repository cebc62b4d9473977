"""A description of a model in JSON: its class, its settings, and the names of its arrays."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import models, units


Node = dict[str, Any] | None


def described(tree: Any, name: str = "") -> Node:
    """A pytree of models, tuples, lists, dictionaries, arrays, numbers and strings; None if it
    holds something else, which cannot be made again from a file.
    """
    if eqx.is_array(tree) and not jnp.issubdtype(tree.dtype, jax.dtypes.prng_key):
        return {"array": name, "numpy": isinstance(tree, np.ndarray)}
    if tree is None or type(tree) in (bool, int, float, str):
        return {"value": tree}
    if type(tree) in (tuple, list):
        parts = [described(x, f"{name}[{k}]") for k, x in enumerate(tree)]
        return None if None in parts else {type(tree).__name__: parts}
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        named = {key: described(x, f"{name}[{key!r}]") for key, x in tree.items()}
        return None if None in named.values() else {"dict": named}
    kind: Any = type(tree)
    if _classes().get(kind.__name__) is kind:
        fields = [field.name for field in dataclasses.fields(kind)]
        named = {key: described(getattr(tree, key), f"{name}.{key}") for key in fields}
        return None if None in named.values() else {"class": kind.__name__, "fields": named}
    return None


def rebuilt(node: dict[str, Any], arrays: dict[str, np.ndarray]) -> PyTree:
    """The reverse of `described`, without a call of any constructor."""
    if "array" in node:
        values = arrays[node["array"]]
        return values.copy() if node["numpy"] else jnp.asarray(values)
    if "class" in node:
        if node["class"] not in _classes():
            raise ValueError(f"the file holds a {node['class']}, which this version does not know.")
        out = object.__new__(_classes()[node["class"]])
        for key, part in node["fields"].items():
            object.__setattr__(out, key, rebuilt(part, arrays))
        return out
    if "dict" in node:
        return {key: rebuilt(part, arrays) for key, part in node["dict"].items()}
    for kind in (tuple, list):
        if kind.__name__ in node:
            return kind(rebuilt(part, arrays) for part in node[kind.__name__])
    return node["value"]


@functools.cache
def _classes() -> dict[str, type]:
    """The models and the units of this library, by name."""
    return {
        name: x
        for room in (models, units)
        for name, x in vars(room).items()
        if isinstance(x, type) and issubclass(x, eqx.Module)
    }
