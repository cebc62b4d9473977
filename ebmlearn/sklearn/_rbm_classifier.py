import math

import jax
import numpy as np
from jaxtyping import Bool, Float, Shaped
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from .. import _checks
from ..estimate import classify
from ..learners import AbstractLearner, SAP
from ..models import SemiRestrictedBM
from ._common import checked, Estimator, MatrixLike, RandomState, validate_data


class RBMClassifier(ClassifierMixin, Estimator):
    """An RBM with a label layer as a classifier. It models binary features and the label together,
    so the fitted model also draws rows of a class and fills in features.

    Features above `threshold` are 1, all others 0.

    !!! example

        ```python
        from ebmlearn import datasets
        from ebmlearn.sklearn import RBMClassifier

        train, valid, _ = datasets.digits()
        classifier = RBMClassifier(50, n_iter=20).fit(train.x, train.y)
        accuracy = classifier.score(valid.x, valid.y)
        ```
    """

    def __init__(
        self,
        n_components: int = 200,
        *,
        threshold: float = 0.5,
        learning_rate: float = 0.01,
        batch_size: int = 50,
        n_iter: int = 300,
        verbose: int = 0,
        random_state: RandomState = None,
        learner: AbstractLearner | None = None,
    ):
        """**Arguments:**

        - `n_components`: the number of hidden units.
        - `threshold`: features above this number are 1.
        - `learning_rate`: the learning rate of Adam at the start. It falls to 0 as a cosine.
        - `batch_size`: rows per step.
        - `n_iter`: the number of epochs.
        - `verbose`: whether to show a progress bar.
        - `random_state`: a seed, a `RandomState`, or None for a different result each time.
        - `learner`: any learner that takes a [`ebmlearn.SemiRestrictedBM`][]. By default
          [`ebmlearn.SAP`][] with 100 chains.

        Fitted attributes: `model_`, the [`ebmlearn.SemiRestrictedBM`][]; `classes_`, the labels;
        `n_iter_`, the number of epochs.
        """
        super().__init__(n_components, learning_rate, batch_size, n_iter, verbose, random_state)
        self.threshold = threshold
        self.learner = learner

    def fit(self, X: MatrixLike, y: MatrixLike) -> "RBMClassifier":
        """Trains the model on the rows of `X` and their labels `y`."""
        self._check_settings()
        _checks.number("threshold", self.threshold, -math.inf, math.inf, "(-inf, inf)")
        rows, named = validate_data(self, X, y)
        check_classification_targets(named)
        self.classes_, labels = np.unique(named, return_inverse=True)
        one, two = jax.random.split(self._seeded())
        number = len(self.classes_)
        start = SemiRestrictedBM.init(rows.shape[1], self.n_components, max(number, 2), key=one)
        learner = checked(SAP(num_chains=100) if self.learner is None else self.learner)
        data = self._binary(rows), labels.astype(np.int32)
        self.model_ = self._trained(start, learner, data, self._falling(len(rows)), two)
        self.n_iter_ = self.n_iter
        return self

    def predict(self, X: MatrixLike) -> Shaped[np.ndarray, " rows"]:
        """The most likely label of each row."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def predict_proba(self, X: MatrixLike) -> Float[np.ndarray, "rows classes"]:
        """The probability of each label given the features, with hidden units summed out."""
        check_is_fitted(self)
        rows = self._binary(validate_data(self, X, reset=False))
        p = np.asarray(classify(self.model_, rows), np.float64)[:, : len(self.classes_)]
        return p / p.sum(1, keepdims=True)

    def _binary(self, X: Float[np.ndarray, "rows features"]) -> Bool[np.ndarray, "rows features"]:
        return np.asarray(X) > self.threshold

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        assert tags.classifier_tags is not None
        # A threshold leaves little of features that are not binary.
        tags.classifier_tags.poor_score = True
        return tags
