import jax
import numpy as np
from jaxtyping import Float, Shaped
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from ..inference import BP
from ..learners import AbstractLearner, MLE
from ..models import CRBM
from ._common import checked, Estimator, MatrixLike, RandomState, validate_data


def _has_marginals(self: "CRBMClassifier") -> bool:
    return self._learner().decoder(0).maximises == "nothing"


class CRBMClassifier(ClassifierMixin, Estimator):
    """A conditional RBM as a classifier with many binary outputs. Its hidden units model how the
    outputs depend on each other, so they are predicted together.

    `y` has one column for each output, with two classes each; a single output may be a vector.

    !!! example

        ```python
        from ebmlearn import datasets
        from ebmlearn.sklearn import CRBMClassifier

        pixels = datasets.digits().train.x
        noisy = datasets.flip(pixels, 0.1, key=0)
        clean = CRBMClassifier(32, n_iter=2).fit(noisy, pixels).predict(noisy)
        ```
    """

    def __init__(
        self,
        n_components: int = 64,
        *,
        learning_rate: float = 0.01,
        batch_size: int = 50,
        n_iter: int = 50,
        verbose: int = 0,
        random_state: RandomState = None,
        learner: AbstractLearner | None = None,
    ):
        """**Arguments:**

        - `n_components`: the number of hidden units.
        - `learning_rate`: the learning rate of Adam.
        - `batch_size`: rows per step.
        - `n_iter`: the number of epochs.
        - `verbose`: whether to show a progress bar.
        - `random_state`: a seed, a `RandomState`, or None for a different result each time.
        - `learner`: any learner that takes a CRBM, for instance [`ebmlearn.MSSVM`][]. By default
          `MLE(BP(10))`.

        Fitted attributes: `model_`, the [`ebmlearn.CRBM`][]; `classes_`, the classes of each
        output; `n_iter_`, the number of epochs.
        """
        super().__init__(n_components, learning_rate, batch_size, n_iter, verbose, random_state)
        self.learner = learner

    def fit(self, X: MatrixLike, y: MatrixLike) -> "CRBMClassifier":
        """Trains a CRBM to predict the outputs `y` from the features `X`."""
        self._check_settings()
        features, outputs = validate_data(self, X, y, multi_output=True, dtype=np.float32)
        check_classification_targets(outputs)
        columns = outputs.reshape(len(outputs), -1)
        classes = [np.unique(column) for column in columns.T]
        for k, found in enumerate(classes):
            if len(found) > 2:
                raise ValueError(
                    "Only binary classification is supported. The type of the target is multiclass:"
                    f" `y` must have two classes per output, got {len(found)} in output {k}."
                )
        bits = np.stack(
            [column == found[-1] for column, found in zip(columns.T, classes, strict=True)], 1
        )
        # An output with one class is always that class.
        bits &= np.array([len(found) > 1 for found in classes])
        one, two = jax.random.split(self._seeded())
        crbm = CRBM.init(bits.shape[1], self.n_components, features.shape[1], key=one)
        data, rate = (features, bits), self.learning_rate
        self.model_ = self._trained(crbm, self._learner(), data, rate, two)
        self.n_iter_ = self.n_iter
        self.classes_ = classes if outputs.ndim > 1 else classes[0]
        return self

    def predict(self, X: MatrixLike) -> Shaped[np.ndarray, "rows *outputs"]:
        """Predicts all outputs with the inference of the learner; by default each output by its own
        probability.
        """
        features = self._features(X)
        found = self._learner().predict(self.model_, features, epoch=self.n_iter_ - 1)
        bits = np.asarray(found, int)
        if not isinstance(self.classes_, list):
            return self.classes_[np.minimum(bits[:, 0], len(self.classes_) - 1)]
        pairs = zip(bits.T, self.classes_, strict=True)
        return np.stack([found[np.minimum(bit, len(found) - 1)] for bit, found in pairs], 1)

    @available_if(_has_marginals)
    def predict_proba(self, X: MatrixLike) -> Float[np.ndarray, "rows outputs"]:
        """The probability of the second class of each output; if `y` was a vector, the
        probabilities of both classes. The learner must predict by probabilities.
        """
        features = self._features(X)
        inference = self._learner().decoder(self.n_iter_ - 1)
        beliefs = inference(self.model_.condition(features))
        p = np.asarray(beliefs.visible, np.float64)
        if isinstance(self.classes_, list):
            return p
        return np.concatenate([1 - p, p], 1)[:, : len(self.classes_)]

    def _learner(self) -> AbstractLearner:
        return checked(MLE(BP(10)) if self.learner is None else self.learner)

    def _features(self, X: MatrixLike) -> Float[np.ndarray, "rows features"]:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, dtype=np.float32)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        assert tags.classifier_tags is not None
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.multi_label = True
        return tags
