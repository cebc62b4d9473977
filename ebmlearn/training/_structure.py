"""A description of a model in JSON: its class, its settings, and the names of its arrays."""

import dataclasses
import functools
import importlib
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import _checks, factors, models, units


Node = dict[str, Any] | None
# The adaptor that has models of its own. It is imported for a file that holds one.
_ADAPTOR = "pgmax"


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
    if isinstance(tree, type):
        return {"type": tree.__name__} if _classes().get(tree.__name__) is tree else None
    kind: Any = type(tree)
    if _classes().get(kind.__name__) is kind:
        fields = [field.name for field in dataclasses.fields(kind)]
        named = {key: described(getattr(tree, key), f"{name}.{key}") for key in fields}
        room = kind.__module__.split(".")[1]
        about = {"class": kind.__name__, "room": room, "fields": named}
        return None if None in named.values() else about
    return None


def rebuilt(node: dict[str, Any], arrays: dict[str, np.ndarray]) -> PyTree:
    """The reverse of `described`, without a call of any constructor."""
    if "array" in node:
        values = arrays[node["array"]]
        return values.copy() if node["numpy"] else jnp.asarray(values)
    if "type" in node:
        return _class(node["type"])
    if "class" in node:
        if node.get("room") == _ADAPTOR:
            importlib.import_module(f"ebmlearn.{_ADAPTOR}")
        out = object.__new__(_class(node["class"]))
        for key, part in node["fields"].items():
            object.__setattr__(out, key, rebuilt(part, arrays))
        return out
    if "dict" in node:
        return {key: rebuilt(part, arrays) for key, part in node["dict"].items()}
    for kind in (tuple, list):
        if kind.__name__ in node:
            return kind(rebuilt(part, arrays) for part in node[kind.__name__])
    return node["value"]


def _class(name: str) -> type:
    if name not in _classes():
        raise ValueError(
            f"the file holds {_checks.article(name)}, which this version does not know."
        )
    return _classes()[name]


def _classes() -> dict[str, type]:
    """The models, factors and units of this library by name, with those of the adaptor."""
    adaptor = sys.modules.get(f"ebmlearn.{_ADAPTOR}")
    return _own_classes() if adaptor is None else _own_classes() | adaptor._SAVED


@functools.cache
def _own_classes() -> dict[str, type]:
    return {
        name: x
        for room in (factors, models, units)
        for name, x in vars(room).items()
        if isinstance(x, type) and issubclass(x, eqx.Module)
    }
