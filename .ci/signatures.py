"""Shows in the reference what Python knows and a generator that only reads the source does not: the
arguments of classes without an `__init__` of their own, such as Equinox modules and named tuples,
the values of defaults, and second names of classes. An extension of mkdocstrings.
"""

import dataclasses
import importlib
import inspect
from typing import Any

import griffe


class Signatures(griffe.Extension):
    """Takes names and defaults of arguments from `inspect.signature`, types from the source."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        real = importlib.import_module(pkg.path)
        for name, member in list(pkg.members.items()):
            if member.is_alias or name == "__main__":
                continue
            if isinstance(member, griffe.Module):
                self.on_package(pkg=member)
                continue
            found = inspect.unwrap(getattr(real, name, None))
            if isinstance(member, griffe.Class):
                add_constructor(member, found)
            elif isinstance(member, griffe.Function):
                set_defaults(member, found)
            elif inspect.isclass(found) and found.__module__ == real.__name__:
                pkg.set_member(name, griffe.Alias(name, f"{pkg.path}.{found.__name__}", parent=pkg))


def add_constructor(cls: griffe.Class, found: Any) -> None:
    """The `__init__` that Python made."""
    own = "__init__" in cls.members and cls.members["__init__"].lineno
    parameters = {} if own or not inspect.isclass(found) else signature(found)
    if not parameters:
        return
    made = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
    for name, given in parameters.items():
        kind = griffe.ParameterKind[given.kind.name.lower()]
        default = None if given.default is given.empty else shown(found, name, given.default)
        of_type = annotation(cls, name)
        made.append(griffe.Parameter(name, annotation=of_type, kind=kind, default=default))
    init = griffe.Function("__init__", parameters=griffe.Parameters(*made), parent=cls)
    cls.set_member("__init__", init)


def set_defaults(function: griffe.Function, found: Any) -> None:
    """The values of defaults that the source names."""
    for name, given in signature(found).items():
        if isinstance(given.default, bool | int | float | str) and name in function.parameters:
            function.parameters[name].default = repr(given.default)


def signature(found: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return {}


def annotation(cls: griffe.Class, name: str) -> Any:
    """The type of a field, in the class or in one it inherits from."""
    for one in (cls, *cls.mro()):
        if name in one.members and one.members[name].is_attribute:
            return one.members[name].annotation
    return None


def shown(found: Any, name: str, default: Any) -> str:
    if repr(default) == "<factory>":
        fields = {field.name: field for field in dataclasses.fields(found)}
        return repr(fields[name].default_factory())
    return default.__name__ if inspect.isfunction(default) else repr(default)
