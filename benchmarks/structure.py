"""Counts what a new kind of units or models would touch: forks on classes, names, lines."""

import argparse
import ast
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ._report import ROOT


# Rooms that may know the classes of models, and what is no library code.
_HOME = ("units", "models")
# What a model, a problem or beliefs are called where they are arguments.
_ARGUMENTS = ("model", "built", "plain", "graph", "problem", "beliefs", "gradient", "units")


# Which files of the library a batch of a CRBM passes through.
_SCRIPT = """
import sys
import jax, numpy as np, optax
import ebmlearn as ebm

files = set()

def see(frame, event, _):
    name = frame.f_code.co_filename
    if event == "call" and "/ebmlearn/" in name:
        files.add(name.rpartition("/ebmlearn/")[2])

x, v = np.random.default_rng(0).integers(0, 2, (2, 40, 8)).astype(np.float32)
model = ebm.CRBM.init(8, 4, 8, key=jax.random.key(0))
learner = ebm.MLE(ebm.BP(10))
sys.setprofile(see)
ebm.fit(model, learner, (x, v), optimizer=optax.sgd(0.1), epochs=1, batch_size=20,
        key=jax.random.key(1), progress=False)
sys.setprofile(None)
print(sum(not name.startswith(("_fit/", "_checks")) for name in files))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--before", default="e27649a", help="the commit to compare with")


def main(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        archive = subprocess.run(
            ["git", "archive", args.before, "ebmlearn"], cwd=ROOT, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", name], input=archive.stdout, check=True)
        rows = {args.before: counts(Path(name) / "ebmlearn"), "now": counts(ROOT / "ebmlearn")}
    width = max(map(len, rows["now"]))
    print(f"{'':{width}}  {args.before:>8}  {'now':>8}")
    for name in rows["now"]:
        print(f"{name:{width}}  {rows[args.before][name]:8}  {rows['now'][name]:8}")
    return {"rows": rows}


def counts(package: Path) -> dict[str, int]:
    """The counts of one version."""
    files = {path: path.read_text() for path in sorted(package.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in files.items()}
    classes = {
        node.name
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and _is_model(path.relative_to(package), node.name)
    }
    outside = [t for p, t in trees.items() if p.relative_to(package).parts[0] not in _HOME]
    nodes = [node for tree in outside for node in ast.walk(tree)]
    face = (package / "__init__.py").read_text()
    return {
        "isinstance on classes of models, problems, beliefs": sum(
            _names(node.args[1]) & classes != set()
            for node in nodes
            if isinstance(node, ast.Call) and _calls(node, "isinstance")
        ),
        "all isinstance outside units/ and models/": sum(_calls(n, "isinstance") for n in nodes),
        "hasattr or getattr on a model, problem or beliefs": sum(
            _root(node.args[0])
            for node in nodes
            if isinstance(node, ast.Call) and (_calls(node, "hasattr") or _calls(node, "getattr"))
        ),
        "type(...) is, match, singledispatch": sum(map(_is_other_fork, nodes)),
        "flags such as on_graphs": len(
            {
                (node.attr if isinstance(node, ast.Attribute) else node.id)
                for node in nodes
                if isinstance(node, ast.Attribute | ast.Name)
                and re.fullmatch(
                    r"on_[a-z]+", node.attr if isinstance(node, ast.Attribute) else node.id
                )
            }
        ),
        "comparisons of kinds (strings)": sum(map(_compares_kinds, nodes)),
        "files that a batch of a CRBM passes through": _passed_through(package),
        "public names": len(re.findall(r"(\w+) as \1", face.replace("__version__", ""))),
        "files that name NNBM": sum("NNBM" in text for text in files.values()),
        "files that name GaussianRBM": sum("GaussianRBM" in text for text in files.values()),
        "files": len(files),
        "lines": sum(text.count("\n") for text in files.values()),
    }


def _passed_through(package: Path) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        cwd=package.parent,
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)


def _is_model(path: Path, name: str) -> bool:
    return path.parts[0] == "models" or name.endswith(("Beliefs", "Problem", "FactorGraphModel"))


def _calls(node: Any, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _names(node: ast.AST) -> set[str]:
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name)} | {
        x.attr for x in ast.walk(node) if isinstance(x, ast.Attribute)
    }


def _root(node: ast.AST) -> bool:
    """Whether an expression is one of a model, a problem or beliefs."""
    while isinstance(node, ast.Attribute):
        if node.attr in _ARGUMENTS:
            return True
        node = node.value
    return isinstance(node, ast.Name) and node.id in _ARGUMENTS


def _is_other_fork(node: ast.AST) -> bool:
    if isinstance(node, ast.Match):
        return True
    if isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        return name.startswith("singledispatch")
    return (
        isinstance(node, ast.Compare)
        and _calls(node.left, "type")
        and any(isinstance(op, ast.Is | ast.Eq | ast.IsNot | ast.NotEq) for op in node.ops)
    )


def _compares_kinds(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    return any(
        _names(side) & {"kind", "kinds"} for side in sides if not isinstance(side, ast.Constant)
    )
