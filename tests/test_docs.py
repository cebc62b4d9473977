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
PACKAGES = ["", ".datasets", ".numpyro", ".pgmax", ".plotting", ".sklearn", ".uai"]
# Their names stand in the reference if `ebmlearn` itself does not have them.
ROOMS = [
    ".units",
    ".models",
    ".inference",
    ".answers",
    ".samplers",
    ".estimate",
    ".learners",
    ".training",
    ".queries",
    ".factors",
    ".messages",
    ".elimination",
]


def public(package: str) -> set[str]:
    module = importlib.import_module(f"ebmlearn{package}")
    names = {name for name in dir(module) if not name.startswith("_")}
    return {
        f"ebmlearn{package}.{name}" for name in names if not inspect.ismodule(getattr(module, name))
    }


def known() -> set[str]:
    of_rooms = {name for room in ROOMS for name in public(room)}
    top = {name.rpartition(".")[2] for name in public("")}
    rest = {name for name in of_rooms if name.rpartition(".")[2] not in top}
    return set().union(rest, *map(public, PACKAGES))


def test_every_public_name_stands_once_in_the_reference():
    """Of what rooms export to each other, all abstract classes and what else is of use."""
    pages = "\n".join(path.read_text() for path in sorted((ROOT / "docs" / "api").glob("*.md")))
    shown = Counter(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    assert set(shown) <= known()
    abstract = {name for name in known() if name.rpartition(".")[2].startswith("Abstract")}
    assert abstract.union(*map(public, PACKAGES)) <= set(shown)
    assert [name for name, times in shown.items() if times > 1] == []


def test_references_in_docstrings_lead_somewhere():
    names = known()
    texts = [*(ROOT / "ebmlearn").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    for path in texts:
        for name in re.findall(r"\[`(ebmlearn[^`]*)`\]\[\]", path.read_text()):
            assert name in names, f"{path} refers to {name}"


@pytest.mark.slow
@pytest.mark.parametrize("name", report.TABLES)
def test_documents_hold_the_committed_figures(name):
    text = (ROOT / name).read_text()
    assert report.filled(text, name) == text


@pytest.mark.slow
def test_examples_run(tmp_path):
    """Those of a page one after the other, each page for itself."""
    pages = []
    for name in ("index", "extending", "loops", "api/factors"):
        text = (ROOT / f"docs/{name}.md").read_text()
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        assert len(blocks) >= 3
        pages.append("\n".join(blocks))
    command = [sys.executable, "-c", f"for page in {pages!r}:\n    exec(page, {{}})"]
    env = programs.quickly() | {"MPLBACKEND": "agg", "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, cwd=tmp_path, env=env)


def test_pages_are_in_the_navigation():
    def pages(nav):
        for entry in nav:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else pages(value)

    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    # `.ci/site` makes the pages of tutorials, which need not be there.
    there = {page for page in there if not page.startswith("tutorials/")}
    there |= {f"tutorials/{path.stem}.md" for path in (ROOT / "tutorials").glob("[0-9]*.py")}
    assert sorted(pages(nav)) == sorted(there)


def test_installing_gives_the_overrides_of_the_project():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]
    text = (ROOT / "docs/install.md").read_text()
    blocks = [tomllib.loads(b) for b in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)]
    assert settings["override-dependencies"] in [
        b["tool"]["uv"]["override-dependencies"] for b in blocks
    ]


def test_notebooks_as_text(tmp_path):
    """Cells, what they print and return, their pictures, errors with lines of the file, and the
    pages and notebooks that are written.
    """
    import json
    import traceback

    from tutorials import _notebook

    path = tmp_path / "1_small.py"
    path.write_text(
        "# %% [markdown]\n# # Title\n#\n# Words.\n\n# %%\nx = 2\nprint('two')\nx + 1\n\n"
        "# %%\nimport matplotlib.pyplot as plt\n\nplt.plot([1, x])\n"
    )
    _notebook.make(path, tmp_path / "books")
    _notebook.as_page(tmp_path / "books" / "1_small.ipynb", tmp_path / "pages")
    page = (tmp_path / "pages" / "1_small.md").read_text()
    top = "![figure 1, explained below](1_small_1.png){ .top }"
    assert page.startswith(f"# Title\n\n{top}\n\nWords.\n\n```python\nx = 2\n")
    assert "%pip" not in page
    assert "```text\ntwo\n3\n```" in page
    assert "![figure 1](1_small_1.png)" in page
    assert (tmp_path / "pages" / "1_small_1.png").read_bytes().startswith(b"\x89PNG")
    book = json.loads((tmp_path / "books" / "1_small.ipynb").read_text())
    assert [cell["cell_type"] for cell in book["cells"]] == ["markdown", "code", "code", "code"]
    assert "%pip install" in "".join(book["cells"][1]["source"])
    assert book["cells"][2]["outputs"][0]["text"] == ["two\n", "3\n"]
    assert "image/png" in book["cells"][3]["outputs"][0]["data"]

    path.write_text("# %%\nx = 1\n\n# %%\nassert x == 2\n")
    with pytest.raises(AssertionError) as caught:
        _notebook.make(path, tmp_path / "failed")
    assert any(
        frame.filename == str(path) and frame.lineno == 5
        for frame in traceback.extract_tb(caught.tb)
    )
    assert not (tmp_path / "failed").exists()
    for text, error in (("x = 1\n", "begin with a cell"), ("# %% [raw]\n", "code or")):
        path.write_text(text)
        with pytest.raises(ValueError, match=error):
            _notebook.read(path)


def test_notebook_that_is_not_of_its_source_is_noticed(tmp_path, monkeypatch):
    from tutorials import _notebook

    path = tmp_path / "1_small.py"
    path.write_text("# %% [markdown]\n# # Title\n\n# %%\nprint('two')\n")
    assert not _notebook.is_current(path)
    _notebook.make(path, tmp_path)
    assert _notebook.is_current(path)
    text = path.read_text()
    path.write_text(text.replace("two", "three"))
    assert not _notebook.is_current(path)
    path.write_text(text)
    assert _notebook.is_current(path)
    monkeypatch.setattr(_notebook, "repository", lambda: "https://github.com/somebody/ebmlearn")
    assert not _notebook.is_current(path)
    _notebook.make(path, tmp_path)
    book = path.with_suffix(".ipynb").read_text()
    assert "colab.research.google.com/github/somebody/ebmlearn/blob/main/tutorials/1_small" in book
    assert "ebmlearn[data,plot] @ git+https://github.com/somebody/ebmlearn" in book


def test_repository_has_one_address():
    from tutorials import _notebook

    home = _notebook.repository()
    site = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    assert site.get("repo_url", "") == home
    cited = re.search(
        r"^repository-code: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE
    )
    assert (cited[1] if cited else "") == home


def test_tutorials_are_notebooks():
    from tutorials import _notebook

    paths = sorted((ROOT / "tutorials").glob("[0-9]*.py"))
    assert len(paths) >= 9
    for path in paths:
        build = f"uv run python -m tutorials {path.stem} --notebooks"
        assert _notebook.is_current(path), f"the notebook of {path.name} is old: {build}"
        assert path.with_suffix(".ipynb").stat().st_size <= 400_000, path
    for path in paths:
        cells = _notebook.read(path)
        assert cells[0].source.startswith("# "), path
        # Each tells what it claims, and checks it.
        assert any("assert" in cell.source for cell in cells if cell.kind == "code"), path
