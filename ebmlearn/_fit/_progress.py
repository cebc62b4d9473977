import math
import time
from typing import Any


class Bar:
    """A progress bar of all steps of a run."""

    def __init__(self, shown: bool, name: str, total: int | None, done: int):
        self.bar: Any = None
        self.metric = math.nan
        if shown:
            from tqdm.auto import tqdm

            self.name = name
            self.bar = tqdm(total=total, initial=done, unit=" steps", dynamic_ncols=True)
            self.bar.set_description(f"{name}, compiling ...")

    def update(self, number: int, epoch: int, info: dict[str, float]) -> None:
        """Shows the means of the last steps, without those that are NaN."""
        if self.bar is None:
            return
        if self.name:
            # The time so far was spent on compilation; do not count it in the rate.
            self.bar.start_t = self.bar.last_print_t = time.time()
            self.bar.set_description(self.name)
            self.name = ""
        figures: dict[str, Any] = {"epoch": epoch + 1}
        loss = info["loss"] if math.isfinite(info["loss"]) else info["gap"]
        figures["loss" if math.isfinite(info["loss"]) else "gap"] = f"{loss:.4g}"
        if math.isfinite(self.metric):
            figures["metric"] = f"{self.metric:.4g}"
        figures["converged"] = f"{info['converged']:.0%}"
        self.bar.set_postfix(figures, refresh=False)
        self.bar.update(number)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
