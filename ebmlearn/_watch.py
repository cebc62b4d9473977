"""Long calls: how far they are, and when their time is over."""

import math
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from . import _checks


# Calls that take less than this many seconds show nothing.
_SHORT = 2.0
Item = TypeVar("Item")


def clock() -> float:
    """The time in seconds."""
    return time.perf_counter()


class Watch:
    """The progress bar and the time limit of a call, from its start on.

    **Arguments:**

    - `name`: what the bar is called.
    - `total`: how many `unit`s there are; None if that is not known.
    - `seconds`: when the time is over; None is never.
    - `progress`: whether to show a bar.
    - `done`: how many there were before.
    - `always`: whether to show it even if the call is short, or standard error is no terminal.
    """

    def __init__(
        self,
        name: str,
        total: int | None,
        seconds: float | int | None = None,
        *,
        progress: bool = True,
        unit: str = "steps",
        done: int = 0,
        always: bool = False,
    ):
        _checks.instance("progress", progress, bool, "a boolean")
        if seconds is not None:
            _checks.number("seconds", seconds, 0, math.inf, "(0, inf)")
        self.began = clock()
        self.deadline = math.inf if seconds is None else self.began + seconds
        self.name, self.bar, self.rated = name, None, not always
        # Notebooks are no terminals, but show bars.
        if progress and (always or sys.stderr.isatty() or "ipykernel" in sys.modules):
            from tqdm.auto import tqdm

            delay = 0 if always else _SHORT
            options: Any = {"initial": done, "unit": f" {unit}", "delay": delay}
            self.bar = tqdm(total=total, dynamic_ncols=True, **options)
            self.bar.set_description(f"{name}, compiling ..." if always else name, refresh=always)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    @property
    def left(self) -> float:
        """How many seconds are left."""
        return self.deadline - clock()

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return self.left <= 0

    def each(self, items: Iterable[Item], least: int = 0, steps: int = 1) -> Iterator[Item]:
        """Counts some steps after each item, and ends early if the time is over, but not before the
        `least` items.
        """
        for k, item in enumerate(items):
            if k >= least and self.over:
                return
            yield item
            self.count(steps)

    def count(self, number: int, total: int | None = None, **figures: Any) -> None:
        """Counts steps and shows figures. `total` says that there are as many as this after all."""
        if self.bar is None:
            return
        if not self.rated:
            # The time so far was spent on compilation; do not count it in the rate.
            self.bar.start_t = self.bar.last_print_t = time.time()
            self.bar.set_description(self.name)
            self.rated = True
        if total is not None:
            self.bar.total = total
        if figures:
            self.bar.set_postfix(figures, refresh=False)
        self.bar.update(number)

    def stage(self, what: str) -> None:
        """Says what comes next in a call whose steps are seconds."""
        if self.bar is not None:
            self.bar.set_description(f"{self.name}, {what}", refresh=False)
            self.bar.update(round(clock() - self.began) - self.bar.n)
