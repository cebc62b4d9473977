"""The reference: what it lists and what docstrings tell. As a program, whether the built pages show
the same: `python tests/reference.py`.
"""

import html
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any


ROOT = Path(__file__).parents[1]


def pages() -> dict[str, list[str]]:
    """The names on each page."""
    return {
        path.stem: re.findall(r"^::: (\S+)$", path.read_text(), re.MULTILINE)
        for path in sorted((ROOT / "docs" / "api").glob("*.md"))
    }


def named(name: str) -> Any:
    module, _, own = name.rpartition(".")
    return getattr(importlib.import_module(module), own)


def signature(found: Any) -> inspect.Signature:
    # Where Python cannot tell there is nothing to show.
    try:
        return inspect.signature(found)
    except ValueError:
        return inspect.Signature()


def arguments(found: Any) -> list[str]:
    return list(signature(found).parameters)


def documented(found: Any) -> str:
    """The docstring; of a class, with that of its constructor."""
    texts = [inspect.cleandoc(found.__doc__ or "")]
    if inspect.isclass(found) and "__init__" in vars(found):
        texts.append(inspect.cleandoc(found.__init__.__doc__ or ""))
    return "\n\n".join(texts)


def told(text: str) -> set[str]:
    """The arguments, or fields, that a docstring lists."""
    title = "**Arguments:**" if "**Arguments:**" in text else "**Fields:**"
    lines = re.findall(r"^ *- ((?:`\w+`(?:,\s+)?)+):", text.partition(title)[2], re.MULTILINE)
    return {name for line in lines for name in re.findall(r"`(\w+)`", line)}


def examples(text: str) -> list[str]:
    blocks = re.findall(r"^ *```python\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    return [inspect.cleandoc("\n" + block) for block in blocks]


def main() -> None:
    wrong = []
    for page, names in pages().items():
        built = (ROOT / "site" / "api" / page / "index.html").read_text()
        starts = [built.find(f'id="{name}"') for name in names]
        for name, start in zip(names, starts, strict=True):
            if start < 0:
                wrong.append(f"{name} is not on its page")
                continue
            end = min((x for x in starts if x > start), default=len(built))
            shown = html.unescape(re.sub(r"<[^>]+>", "", built[start:end]))
            flat = re.sub(r"\s", "", shown)
            found = named(name)
            for own, given in signature(found).parameters.items():
                default = ""
                if isinstance(given.default, bool | int | float | str | None):
                    shown_as = repr(given.default).replace("'", '"').replace(" ", "")
                    default = "[^=]*=" + re.escape(shown_as)
                if not re.search(rf"[(,*]{own}{default}[,:=)]", flat):
                    wrong.append(f"{name} does not show the argument {own}")
            text = documented(found)
            blocks = [re.sub(r"\s", "", block) for block in examples(text)]
            wrong += [f"{name} does not show an example" for x in blocks if x not in flat]
            wrong += [f"{name} does not explain {x}" for x in told(text) if x not in flat]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{sum(map(len, pages().values()))} names with their arguments and examples")


if __name__ == "__main__":
    main()
