"""Notebooks kept as text: Python files whose cells begin with `# %%`, as editors know them.

A file is run from top to bottom in one namespace. What a cell prints, the value of its last line
and the figures that it leaves open are its output, as in Jupyter.
"""

import ast
import base64
import contextlib
import hashlib
import io
import json
import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple


ROOT = Path(__file__).parents[1]
# The first line of the cell that installs what a notebook needs.
INSTALL = "# Skip this cell if ebmlearn is installed."


class Output(NamedTuple):
    """What a cell gave: text, and figures as PNG."""

    text: str
    figures: list[bytes]


class Cell(NamedTuple):
    """A piece of text, or of code with the line of the file where it begins."""

    kind: str
    source: str
    line: int


def read(path: Path) -> list[Cell]:
    """The cells of a file."""
    cells: list[Cell] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("# %%"):
            kind = "markdown" if line[4:].strip() == "[markdown]" else "code"
            if line[4:].strip() not in ("", "[markdown]"):
                raise ValueError(f"{path.name}, line {number}: a cell must be code or [markdown].")
            cells.append(Cell(kind, "", number + 1))
        elif not cells:
            raise ValueError(f"{path.name}, line {number}: a notebook must begin with a cell.")
        else:
            if cells[-1].kind == "markdown":
                if line and not line.startswith("#"):
                    raise ValueError(f"{path.name}, line {number}: text must be commented.")
                line = line[2:]
            cells[-1] = cells[-1]._replace(source=f"{cells[-1].source}{line}\n")
    return [cell._replace(source=cell.source.strip("\n")) for cell in cells if cell.source.strip()]


def run(path: Path, cells: list[Cell]) -> list[Output | None]:
    """Runs all code in one namespace, as a user would."""
    import matplotlib

    matplotlib.use("Agg")
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    outputs: list[Output | None] = []
    for cell in cells:
        try:
            outputs.append(_run(path, cell, names) if cell.kind == "code" else None)
        except BaseException:
            # What had been printed until then may say why.
            print("".join(output.text for output in outputs if output is not None), flush=True)
            raise
    return outputs


def _run(path: Path, cell: Cell, names: dict[str, Any]) -> Output:
    import matplotlib.pyplot as plt

    tree = ast.parse(cell.source, str(path))
    # Errors are to name the lines of the file.
    ast.increment_lineno(tree, cell.line - 1)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, str(path), "exec"), names)
        value = None
        if last is not None:
            assert isinstance(last, ast.Expr)
            value = eval(compile(ast.Expression(last.value), str(path), "eval"), names)
    text = printed.getvalue()
    figures = []
    for number in plt.get_fignums():
        file = io.BytesIO()
        figure = plt.figure(number)
        figure.savefig(file, dpi=90, bbox_inches="tight", metadata={"Software": None})
        figures.append(file.getvalue())
    plt.close("all")
    if value is not None and not figures:
        text += f"{value!r}\n"
    return Output(text, figures)


def as_page(book: Path, folder: Path) -> None:
    """Writes a page from the stored outputs of a notebook, and its figures beside it. The largest
    figure also stands below the title.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[str] = []
    figures: list[bytes] = []
    for cell in json.loads(book.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        if source.startswith(INSTALL):
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
                continue
            figures.append(base64.b64decode(output["data"]["image/png"]))
            name = f"{book.stem}_{len(figures)}.png"
            (folder / name).write_bytes(figures[-1])
            parts.append(f"![figure {len(figures)}]({name})")
    if figures:
        number = 1 + max(range(len(figures)), key=lambda k: len(figures[k]))
        title, _, rest = parts[0].partition("\n\n")
        top = f"![figure {number}, explained below]({book.stem}_{number}.png){{ .top }}"
        parts[0] = f"{title}\n\n{top}\n\n{rest}"
    (folder / f"{book.stem}.md").write_text("\n\n".join(parts) + "\n")


def repository() -> str:
    """The address of the repository, from `[project.urls]`; empty while there is none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project.get("urls", {}).get("Repository", "")


def in_notebook(name: str, cells: list[Cell], home: str) -> list[Cell]:
    """The cells of a notebook: those of the file, after the first a cell that installs what they
    import, and a badge that opens the notebook in Colab if the repository has a `home`.
    """
    title, *rest = cells
    if home:
        where = home.removeprefix("https://github.com/").rstrip("/")
        address = f"https://colab.research.google.com/github/{where}/blob/main/tutorials"
        badge = "https://colab.research.google.com/assets/colab-badge.svg"
        source = f"{title.source}\n\n[![Open in Colab]({badge})]({address}/{name}.ipynb)"
        title = title._replace(source=source)
    code = "\n".join(cell.source for cell in cells if cell.kind == "code")
    package = f"ebmlearn[data,plot] @ git+{home}" if home else "..[data,plot]"
    lines = [
        INSTALL,
        f'%pip install --quiet "{package}"',
    ]
    if "pgmax" in code:
        # Without the development tools that PGMax declares.
        lines += ["%pip install --quiet numba", "%pip install --quiet --no-deps pgmax"]
    return [title, Cell("install", "\n".join(lines), 0), *rest]


def digest(cells: list[Cell]) -> str:
    """A hash of all that a notebook is made from."""
    text = json.dumps([[cell.kind, cell.source] for cell in cells])
    return hashlib.sha256(text.encode()).hexdigest()


def is_current(path: Path) -> bool:
    """Whether the notebook beside a file was made from it as it is now."""
    book = path.with_suffix(".ipynb")
    if not book.exists():
        return False
    cells = in_notebook(path.stem, read(path), repository())
    return json.loads(book.read_text())["metadata"].get("source_sha256") == digest(cells)


def as_notebook(name: str, cells: list[Cell], outputs: list[Output | None], folder: Path) -> None:
    """Writes a Jupyter notebook with its outputs."""
    folder.mkdir(parents=True, exist_ok=True)
    found = dict(zip([cell.line for cell in cells], outputs, strict=True))
    cells = in_notebook(name, cells, repository())
    out, count = [], 0
    for number, cell in enumerate(cells):
        entry: dict[str, Any] = {
            "cell_type": "markdown" if cell.kind == "markdown" else "code",
            "id": f"cell-{number}",
            "metadata": {},
            "source": cell.source.splitlines(keepends=True),
        }
        if cell.kind == "install":
            entry |= {"execution_count": None, "outputs": []}
        output = found.get(cell.line)
        if output is not None:
            count += 1
            shown: list[dict[str, Any]] = []
            if output.text:
                text = output.text.splitlines(keepends=True)
                shown.append({"output_type": "stream", "name": "stdout", "text": text})
            for figure in output.figures:
                data = {"image/png": base64.b64encode(figure).decode()}
                shown.append({"output_type": "display_data", "data": data, "metadata": {}})
            entry |= {"execution_count": count, "outputs": shown}
        out.append(entry)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {
        "cells": out,
        "metadata": {
            "kernelspec": kernel,
            "language_info": {"name": "python"},
            "source_sha256": digest(cells),
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (folder / f"{name}.ipynb").write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def make(path: Path, notebooks: Path | None) -> float:
    """Runs one file, writes its notebook if wanted, and returns how many seconds it took."""
    began = time.monotonic()
    cells = read(path)
    outputs = run(path, cells)
    if notebooks is not None:
        as_notebook(path.stem, cells, outputs, notebooks)
    return time.monotonic() - began
