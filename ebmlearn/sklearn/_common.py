"""What the estimators share: arguments as scikit-learn gives them."""

import math
from typing import Any, TypeAlias

import numpy as np
import sklearn.utils.validation
from sklearn.utils import check_random_state

from .. import _checks
from ..learners import AbstractLearner


# Arrays, sparse matrices, frames, lists: `sklearn.utils.validation.validate_data` decides.
MatrixLike: TypeAlias = object
validate_data: Any = sklearn.utils.validation.validate_data  # Its types say a string.
RandomState: TypeAlias = int | np.random.RandomState | None


def seed(random_state: RandomState) -> int:
    """A seed for JAX. A `RandomState` gives another one at each call."""
    return int(check_random_state(random_state).randint(2**31 - 1))


def check_settings(estimator: Any) -> None:
    """Raises unless the settings that all estimators have are what they must be."""
    for name in ("n_components", "batch_size", "n_iter"):
        _checks.count(name, getattr(estimator, name))
    _checks.number("learning_rate", estimator.learning_rate, 0, math.inf, "(0, inf)")


def learner_of(estimator: Any, default: AbstractLearner) -> AbstractLearner:
    """The learner that was given, or the default."""
    learner = default if estimator.learner is None else estimator.learner
    if not isinstance(learner, AbstractLearner):
        got = _checks.describe(learner)
        raise TypeError(f"`learner` must be a learner such as `CD(1)`, got {got}.")
    return learner
