"""The words of a file, and errors that name the file, the line, and what was expected there."""

import math
import os
import re
from pathlib import Path
from typing import NoReturn

import numpy as np


_COMMENT = re.compile(r"#.*")


class Words:
    """The words of a file, after an optional first one that names its kind, as numbers. `#` begins
    a comment. Lines are looked for only where an error needs one.
    """

    def __init__(self, path: str | os.PathLike, kinds: tuple[str, ...] = ()):
        self.path = Path(path)
        self._text = _read(self.path)
        words = _plain(self._text).split()
        self._first = 1 if kinds else 0
        self.kind = "".join(words[: self._first]).upper()
        if kinds and self.kind not in kinds:
            got = repr(self.kind) if words else "an empty file"
            self.fail(-1, f"the file must begin with {' or '.join(kinds)}, got {got}")
        words = words[self._first :]
        self._values: list[float] = []
        try:
            self._values.extend(map(float, words))
        except ValueError:
            at = len(self._values)  # All before it are numbers, and were kept.
            self.fail(at, f"expected a number, got {words[at]!r}")
        self.numbers = np.asarray(self._values)

    def __len__(self) -> int:
        return len(self.numbers)

    def whole(self, at: int, what: str, least: int, most: int | None = None) -> int:
        """The whole number at a place.

        **Arguments:**

        - `at`: the place, from 0 on.
        - `what`: what the number means, for the error.
        - `least`, `most`: the smallest and the largest number allowed.
        """
        return self.wholes(at, 1, what, least, most)[0]

    def wholes(
        self, at: int, number: int, what: str, least: int, most: int | None = None
    ) -> tuple[int, ...]:
        """Whole numbers from a place on, each within limits."""
        found = self._values[at : at + number]
        top = math.inf if most is None else most
        for k, value in enumerate(found):
            if not (value.is_integer() and least <= value <= top):
                limits = f"from {least} on" if most is None else f"from {least} to {most}"
                self.fail(at + k, f"expected {what}, a whole number {limits}, got {value:g}")
        if len(found) < number:
            self.fail(len(self), f"expected {what}")
        return tuple(map(int, found))

    def rest(self, at: int, number: int, what: str) -> None:
        """Raises `ValueError` unless there are so many more numbers.

        **Arguments:**

        - `at`: the place of the first.
        - `number`: how many.
        - `what`: what they are, for the error.
        """
        if at + number > len(self):
            self.fail(len(self), f"expected {number} {what}, got {len(self) - at}")

    def exactly(self, at: int, number: int, what: str) -> None:
        """Raises `ValueError` unless there are so many more numbers, and nothing after them."""
        self.rest(at, number, what)
        self.ended(at + number, f"{number} {what}")

    def ended(self, at: int, what: str) -> None:
        """Raises `ValueError` unless nothing comes after `what`."""
        if at < len(self):
            left = len(self) - at
            words = "one more number" if left == 1 else f"{left} more numbers"
            self.fail(at, f"expected the end of the file after {what}, got {words}")

    def fail(self, at: int, message: str) -> NoReturn:
        """Raises `ValueError` for the number at a place, or for the end of the file; at -1 is the
        word that names the kind.
        """
        number, seen = 0, 0
        for number, line in enumerate(_plain(self._text).split("\n"), 1):
            seen += len(line.split())
            if seen > at + self._first:
                raise ValueError(f"`{self.path}`, line {number}: {message}.")
        raise ValueError(f"`{self.path}`, line {number}, where the file ends: {message}.")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise type(error)(f"`{path}` must be a file that can be read, got: {reason}.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"`{path}` must be a file of text, got other bytes.") from error


def _plain(text: str) -> str:
    return _COMMENT.sub("", text) if "#" in text else text
