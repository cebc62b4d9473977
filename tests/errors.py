"""How errors are tested: a call, the error, and parts of its message: argument, expected, got."""

import pytest


def check(case) -> None:
    call, kind, *parts = case
    with pytest.raises(kind) as caught:
        call()
    for part in parts:
        assert caught.match(part)
