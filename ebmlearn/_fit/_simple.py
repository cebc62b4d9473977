"""Compares the validations of a run with a simple model."""

import warnings
from collections.abc import Callable
from typing import Any

from ..learners._base import AbstractComparedMetric


# A metric has risen if it is above the best one before it, and above that of the simple model, by
# more than this share of the larger of the two. Metrics of real units may be negative.
RISE = 0.01


class Comparison:
    """Warns once if the metric of a run has risen above that of a simple model."""

    def __init__(
        self, metric: Callable | None, model: Any, data: Callable[[], Any], validation: Any
    ):
        self.metric = metric if isinstance(metric, AbstractComparedMetric) else None
        if self.metric is not None:
            self.simple = self.metric.simple(model, data(), validation)

    def see(self, value: float, best: float, level: int) -> None:
        """Looks at a validation, given the best one before it. The user's call is `level` above."""
        if self.metric is None:
            return
        limit = max(self.simple, best)
        if value > limit + RISE * abs(limit):
            warnings.warn(self.metric.worse(value, self.simple), stacklevel=level + 1)
            self.metric = None
