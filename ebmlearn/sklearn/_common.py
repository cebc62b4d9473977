"""The base of all estimators: arguments as scikit-learn gives them."""

import dataclasses
import math
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np
import optax
import sklearn.utils.validation
from jaxtyping import PRNGKeyArray, PyTree
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state, Tags

from .. import _checks
from ..learners import AbstractLearner
from ..training import fit


# Arrays, sparse matrices, frames, lists: `sklearn.utils.validation.validate_data` decides.
MatrixLike: TypeAlias = object
validate_data: Any = sklearn.utils.validation.validate_data  # Its types say a string.
RandomState: TypeAlias = int | np.random.RandomState | None
Model = TypeVar("Model")


@dataclasses.dataclass(eq=False, repr=False)
class Estimator(BaseEstimator):
    """The settings that all estimators have, and training by Adam."""

    n_components: int
    learning_rate: float
    batch_size: int
    n_iter: int
    verbose: int
    random_state: RandomState

    def _check_settings(self) -> None:
        for name in ("n_components", "batch_size", "n_iter"):
            _checks.count(name, getattr(self, name))
        _checks.number("learning_rate", self.learning_rate, 0, math.inf, "(0, inf)")

    def _seeded(self) -> PRNGKeyArray:
        """A key. A `RandomState` gives another one at each call."""
        return jax.random.key(int(check_random_state(self.random_state).randint(2**31 - 1)))

    def _falling(self, rows: int) -> optax.Schedule:
        """The learning rate as a cosine that ends at 0."""
        steps = self.n_iter * (rows // min(self.batch_size, rows))
        return optax.cosine_decay_schedule(self.learning_rate, steps)

    def _trained(
        self, model: Model, learner: AbstractLearner, data: PyTree, rate: Any, key: PRNGKeyArray
    ) -> Model:
        return fit(
            model,
            learner,
            data,
            optimizer=optax.adam(rate),
            epochs=self.n_iter,
            batch_size=min(self.batch_size, len(jax.tree.leaves(data)[0])),
            key=key,
            progress=bool(self.verbose),
        ).model


def checked(learner: AbstractLearner) -> AbstractLearner:
    """The learner, or `TypeError` if it is none."""
    _checks.instance("learner", learner, AbstractLearner, "a learner such as `CD(1)`")
    return learner


def keeps_dtype(tags: Tags) -> Tags:
    """Tags that say of a transformer that it keeps the dtype of rows."""
    assert tags.transformer_tags is not None
    tags.transformer_tags.preserves_dtype = ["float64", "float32"]
    return tags
