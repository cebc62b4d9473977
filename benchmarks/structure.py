"""Counts the structure of the package, at an earlier commit and now, beside what is asked of it.

A *room* is a folder of the package; *now* is the working tree. Classes are followed by name, in the
same file first. What each row counts:

- Code lines: all but comments, docstrings and blank lines.
- Abstract members: what the bases of a concrete class declare by `abstractmethod`,
  `eqx.AbstractVar` or `eqx.AbstractClassVar`, each declaration once. A model descends from
  `AbstractModel`, a factor is in `factors/` or has a base there.
- Deepest class: the classes of the package in the longest chain of bases, with the class itself.
- Methods (with properties): those in the body of a class; for "with inherited" also those of its
  bases, each name once.
- Private imports: statements `from ..room._module import ...`, wherever they stand, in a file of
  another room. Rooms that are private themselves, as `_checks` is, are not counted as `room`.
- Arguments: those of functions and methods whose annotation is just `Any`.
- Files passed through: those of the package whose functions a first call runs, all of them, in a
  fresh process. The table model is a chain of 40 variables, which `Auto` eliminates.
- Circles: groups of rooms or modules that import each other. Between rooms all imports count;
  between modules those that run when a module is loaded.
- Doubled names: pairs of private modules with one name in two folders. `_base.py` is left out: in
  every room it holds the abstract classes.
"""

import argparse
import ast
import functools
import io
import itertools
import re
import subprocess
import tempfile
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ._passed_through import passed_through
from ._report import ROOT


_ASKED = {
    "code lines": 20500,
    "abstract members above a model": 12,
    "abstract members above a factor": 8,
    "deepest class": 3,
    "methods of the largest class": 25,
    "imports of another room's private modules": 40,
    "arguments model, problem, view, graph: Any": 20,
    "files: BP(10)(rbm)": 9,
    "files: sample(rbm, Gibbs(), 10, key=0)": 9,
    "files: fit(crbm, MLE(BP(10)), ...)": 16,
    "files: Auto()(table_model)": 12,
    "files inference/_graph_*": 0,
    "circles between rooms": 0,
    "circles between modules": 0,
    "doubled names of files": 0,
}


class File(NamedTuple):
    name: str  # "inference._bp"; "inference" for the face of a room
    room: str  # "" at the top
    text: str
    tree: ast.Module


class Class(NamedTuple):
    node: ast.ClassDef
    room: str
    above: list["Class"]  # its bases in the package, and theirs
    depth: int

    def methods(self) -> set[str]:
        return {x.name for x in self.node.body if isinstance(x, ast.FunctionDef)}

    def inherited(self) -> set[str]:
        return self.methods().union(*(x.methods() for x in self.above))

    def abstract_above(self) -> int:
        return sum(_is_abstract(x) for base in self.above for x in base.node.body)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--before", default="807652a", help="the commit to compare with")


def main(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        archive = subprocess.run(
            ["git", "archive", args.before, "ebmlearn"], cwd=ROOT, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", name], input=archive.stdout, check=True)
        before, now = counts(Path(name).resolve() / "ebmlearn"), counts(ROOT / "ebmlearn")
    for key, asked in (("structure", _ASKED), ("code lines by room", {})):
        print(f"\n{key:45} {args.before:>8} {'now':>8} {'asked':>8}")
        for row in before[key] | now[key]:
            numbers = [before[key].get(row), now[key].get(row), asked.get(row)]
            print(f"{row:45}", *(f"{'-' if x is None else x:>8}" for x in numbers))
    for title, found in ((args.before, before), ("now", now)):
        print(f"\n{title}:", *(f"{k}: {v}" for k, v in found["which"].items()), sep="\n  ")
    return {"asked": _ASKED, "before": before, "now": now}


def counts(package: Path) -> dict[str, Any]:
    """The counts of one version, the code lines by room, and which classes and files these are."""
    files = [_file(path, package) for path in sorted(package.rglob("*.py"))]
    lines: Counter[str] = Counter()
    for file in files:
        lines[file.room or "(top)"] += _code_lines(file)
    classes = _classes(files)
    concrete = [x for x in classes if not x.node.name.startswith("Abstract")]
    models = [x for x in concrete if any(b.node.name == "AbstractModel" for b in x.above)]
    factors = [x for x in concrete if any(b.room == "factors" for b in (x, *x.above))]
    largest = {
        "abstract members above a model": _largest(models, Class.abstract_above),
        "abstract members above a factor": _largest(factors, Class.abstract_above),
        "deepest class": _largest(classes, lambda x: x.depth),
        "methods of the largest class": _largest(classes, lambda x: len(x.methods())),
        "with inherited methods": _largest(classes, lambda x: len(x.inherited())),
    }
    imports = [(f, x) for f in files for x in ast.walk(f.tree) if isinstance(x, ast.ImportFrom)]
    arguments = [ast.unparse(x) for f in files for x in ast.walk(f.tree) if isinstance(x, ast.arg)]
    rooms: dict[str, set[str]] = {}
    for file in files:
        # A module at the top is a room of its own.
        room, used = file.name.partition(".")[0], _used(file, ast.walk(file.tree), files)
        rooms.setdefault(room, set()).update({x.partition(".")[0] for x in used} - {room})
    homes = Counter(x.name.rpartition(".")[2] for x in files if re.search(r"\b_[a-z]\w*$", x.name))
    doubled = {name: n for name, n in homes.items() if n > 1 and name != "_base"}
    return {
        "structure": {
            "code lines": lines.total(),
            **{name: number for name, (number, _) in largest.items()},
            "imports of another room's private modules": sum(
                _is_private(file, _origin(file, x)) for file, x in imports
            ),
            "the same as `from ..room import _module`": sum(
                any(_is_private(file, f"{_origin(file, x)}.{y.name}") for y in x.names)
                for file, x in imports
            ),
            "arguments model, problem, view, graph: Any": sum(
                arguments.count(f"{x}: Any") for x in ("model", "problem", "view", "graph")
            ),
            **{f"files: {call}": number for call, number in passed_through(package).items()},
            "files inference/_graph_*": len(list(package.glob("inference/_graph_*.py"))),
            "circles between rooms": _circles(rooms),
            "circles between modules": _circles(
                {file.name: _used(file, _run_at_load(file.tree), files) for file in files}
            ),
            "doubled names of files": sum(n * (n - 1) // 2 for n in doubled.values()),
        },
        "code lines by room": dict(lines.most_common()),
        "which": {
            **{name: found for name, (_, found) in largest.items()},
            "doubled names of files": ", ".join(doubled),
        },
    }


def _file(path: Path, package: Path) -> File:
    *folders, stem = path.relative_to(package).with_suffix("").parts
    name = ".".join(folders if stem == "__init__" else [*folders, stem])
    text = path.read_text()
    return File(name, folders[0] if folders else "", text, ast.parse(text))


def _code_lines(file: File) -> int:
    """The lines with a token that is neither a comment nor a string that stands alone."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
        if token.string.strip() and token.type != tokenize.COMMENT:
            found.update(range(token.start[0], token.end[0] + 1))
    for x in ast.walk(file.tree):
        if isinstance(x, ast.Expr) and isinstance(getattr(x.value, "value", None), str):
            found.difference_update(range(x.lineno, (x.end_lineno or x.lineno) + 1))
    return len(found)


def _classes(files: list[File]) -> list[Class]:
    found = [(f, x) for f in files for x in ast.walk(f.tree) if isinstance(x, ast.ClassDef)]

    @functools.cache
    def made(file: File, node: ast.ClassDef) -> Class:
        bases: list[Class] = []
        for base in node.bases:
            name = ast.unparse(base).partition("[")[0]
            named = [(f, x) for f, x in found if x.name == name and x is not node]
            bases += [made(*x) for x in sorted(named, key=lambda x: x[0] is not file)[:1]]
        above = {id(x.node): x for base in bases for x in (base, *base.above)}
        depth = 1 + max((x.depth for x in bases), default=0)
        return Class(node, file.room, list(above.values()), depth)

    return [made(*x) for x in found]


def _largest(classes: list[Class], number: Callable[[Class], int]) -> tuple[int | None, str]:
    best = max(classes, key=number, default=None)
    return (number(best), best.node.name) if best else (None, "-")


def _is_abstract(node: ast.stmt) -> bool:
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.annotation).startswith("eqx.Abstract")
    return isinstance(node, ast.FunctionDef) and any(
        "abstract" in ast.unparse(x) for x in node.decorator_list
    )


def _origin(file: File, node: ast.ImportFrom) -> str:
    """The module of the package that a statement imports from; "?" for other packages."""
    module = node.module or ""
    if node.level == 0:
        return module[len("ebmlearn.") :] if module.split(".")[0] == "ebmlearn" else "?"
    return f"{file.room}.{module}".strip(".") if node.level == 1 else module


def _is_private(file: File, module: str) -> bool:
    """Whether a module is a private one of another room, which is not private itself."""
    found = re.fullmatch(r"([a-z]\w*)\._[a-z]\w*", module)
    return found is not None and found[1] != file.room


def _used(file: File, nodes: Iterable[ast.AST], files: list[File]) -> set[str]:
    """The modules of the package that a file imports."""
    known, used = {x.name for x in files}, set[str]()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            origin = _origin(file, node)
            inner = {f"{origin}.{x.name}".strip(".") for x in node.names}
            used |= {x if x in known else origin for x in inner}
    return used & known - {file.name, ""}


def _run_at_load(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not typing_only and not isinstance(child, ast.FunctionDef):
            yield child
            yield from _run_at_load(child)


def _circles(used: dict[str, set[str]]) -> int:
    """How many groups of names use each other, over any number of steps."""
    reached = {name: set(names) for name, names in used.items()}
    for middle, start in itertools.product(used, used):
        if middle in reached[start]:
            reached[start] |= reached[middle]
    return len({frozenset(names) for name, names in reached.items() if name in names})
