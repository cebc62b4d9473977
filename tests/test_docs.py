"""The documentation: every public name has its place, figures are those of the results, examples
run, and what is linked is there. The site itself is built by `.ci/run`.
"""

import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import programs
import pytest

from benchmarks import report


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


def test_references_in_docstrings_lead_somewhere():
    known = set().union(*map(public, PACKAGES))
    texts = [*(ROOT / "ebmlearn").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    for path in texts:
        for name in re.findall(r"\[`(ebmlearn[^`]*)`\]\[\]", path.read_text()):
            assert name in known, f"{path} refers to {name}"


@pytest.mark.parametrize("name", report.TABLES)
def test_documents_hold_the_committed_figures(name):
    text = (ROOT / name).read_text()
    assert report.filled(text, name) == text


@pytest.mark.parametrize("page", ["index", "extending"])
def test_examples_run(page, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / f"docs/{page}.md").read_text(), re.DOTALL)
    assert len(blocks) >= 3
    command = [sys.executable, "-c", "\n".join(blocks)]
    env = programs.quickly() | {"MPLBACKEND": "agg", "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, cwd=tmp_path, env=env)


def test_pages_are_in_the_navigation():
    def pages(nav):
        for entry in nav:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else pages(value)

    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(pages(nav)) == sorted(there)


@pytest.mark.parametrize("name", ["README.md", "docs/install.md"])
def test_installing_gives_the_overrides_of_the_project(name):
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]
    text = (ROOT / name).read_text()
    blocks = [tomllib.loads(b) for b in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)]
    assert settings["override-dependencies"] in [
        b["tool"]["uv"]["override-dependencies"] for b in blocks
    ]
