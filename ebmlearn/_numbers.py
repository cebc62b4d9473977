"""Numbers of learners and samplers that `fit` hands to the compiler as arguments."""

import dataclasses
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np


Tree = TypeVar("Tree")


# Marks a field of numbers of which new values compile nothing in `fit`. Its default, if it has one,
# switches something off and stays as it is: `eqx.field(metadata=NUMBER, default=0.0)`.
NUMBER = {"number": True}


def is_off(x: Any, default: Any) -> bool:
    """Whether a number is the default of its field, which is known when a program is compiled."""
    return isinstance(x, (int, float)) and x == default


def traced(tree: Tree) -> Tree:
    """The same with the numbers of such fields as arrays, wherever they are in it."""
    if not isinstance(tree, eqx.Module):
        nodes = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, eqx.Module))
        if not any(isinstance(x, eqx.Module) for x in nodes):
            return tree
        return jax.tree.map(traced, tree, is_leaf=lambda x: isinstance(x, eqx.Module))
    changed = {}
    for field in dataclasses.fields(tree):  # pyright: ignore
        value = getattr(tree, field.name, None)
        if field.metadata.get("static", False) or value is None:
            continue
        if not field.metadata.get("number", False):
            new = traced(value)
        elif is_off(value, field.default):
            continue
        else:
            new = np.asarray(value, np.result_type(jax.dtypes.canonicalize_dtype(float)))
        if new is not value:
            changed[field.name] = new
    if not changed:
        return tree
    return eqx.tree_at(lambda x: [getattr(x, name) for name in changed], tree, [*changed.values()])
