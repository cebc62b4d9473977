"""The documentation: every public name has its place."""

import importlib
import inspect
import re
from collections import Counter
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
PACKAGES = ["", ".datasets", ".numpyro", ".pgmax", ".plotting"]


def public(package: str) -> set[str]:
    module = importlib.import_module(f"ebmlearn{package}")
    names = {name for name in dir(module) if not name.startswith("_")}
    return {
        f"ebmlearn{package}.{name}" for name in names if not inspect.ismodule(getattr(module, name))
    }


def test_every_public_name_stands_once_in_the_reference():
    pages = "\n".join(path.read_text() for path in sorted((ROOT / "docs" / "api").glob("*.md")))
    shown = Counter(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    assert set(shown) == set().union(*map(public, PACKAGES))
    assert [name for name, times in shown.items() if times > 1] == []
