"""The classes of docs/extending.md, as a user would write them."""

import ast
import re
from pathlib import Path


def page() -> dict:
    """The imports, classes and functions of the page, by name, without what it runs."""
    text = (Path(__file__).parents[1] / "docs/extending.md").read_text()
    tree = ast.parse("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
    defined = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)
    tree.body = [node for node in tree.body if isinstance(node, defined)]
    found = {"__name__": __name__}
    exec(compile(tree, "docs/extending.md", "exec"), found)
    return found
