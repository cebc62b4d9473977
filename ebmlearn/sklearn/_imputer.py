import jax
import numpy as np
from jaxtyping import Float
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from .. import _checks
from ..answers import query
from ..learners import QueryTraining
from ..models import QueryModel, RBM, SemiRestrictedBM
from ..queries import AbstractQueries, RandomTargets
from ._common import Estimator, keeps_dtype, MatrixLike, RandomState, validate_data


_ROWS = 256  # Rows are answered in batches of this size, so that only one size is compiled.


class RBMImputer(OneToOneFeatureMixin, TransformerMixin, Estimator):
    """Fills in missing values with an RBM trained by query training. Each missing value becomes its
    mean given the other values of the row ([`ebmlearn.query`][]). Missing values are NaN, in
    training rows as well as in rows to fill in.

    It is made for binary columns, whose mean is the probability of 1. Other columns are scaled from
    their range to [0, 1] and back. A column without any value becomes 0.

    !!! example

        ```python
        from ebmlearn import datasets
        from ebmlearn.sklearn import RBMImputer

        rows = datasets.digits().train.x.astype(float)
        rows[:, :8] = np.where(np.arange(8) % 2, np.nan, rows[:, :8])
        filled = RBMImputer(32, n_iter=2).fit(rows).transform(rows)
        ```
    """

    def __init__(
        self,
        n_components: int = 100,
        *,
        couplings: bool = False,
        learning_rate: float = 0.01,
        batch_size: int = 100,
        n_iter: int = 100,
        iterations: int = 10,
        queries: AbstractQueries | None = None,
        verbose: int = 0,
        random_state: RandomState = None,
    ):
        """**Arguments:**

        - `n_components`: the number of hidden units.
        - `couplings`: whether columns are also joined to each other directly
          ([`ebmlearn.SemiRestrictedBM`][]). Use it for columns that exclude each other, such as
          those of a one-hot code.
        - `learning_rate`: the learning rate of Adam at the start. It falls to 0 as a cosine.
        - `batch_size`: rows per step.
        - `n_iter`: the number of epochs.
        - `iterations`: the number of message updates for an answer.
        - `queries`: the distribution of queries to train with; by default
          [`ebmlearn.queries.RandomTargets`][]`(0.5)`. Choose it close to the pattern of missing
          values.
        - `verbose`: whether to show a progress bar.
        - `random_state`: a seed, a `RandomState`, or None for a different result each time.

        Fitted attributes: `model_`, the [`ebmlearn.QueryModel`][]; `data_min_` and `data_max_`, the
        ranges of the columns.
        """
        super().__init__(n_components, learning_rate, batch_size, n_iter, verbose, random_state)
        self.couplings = couplings
        self.iterations = iterations
        self.queries = queries

    def fit(self, X: MatrixLike, y: object = None) -> "RBMImputer":
        """Trains the model on the rows of `X`, which may have missing values; `y` is not used."""
        self._check_settings()
        _checks.count("iterations", self.iterations)
        rows = self._rows(X, reset=True)
        told = ~np.isnan(rows)
        least = np.where(told, rows, np.inf).min(0)
        most = np.where(told, rows, -np.inf).max(0)
        empty = ~told.any(0)
        self.data_min_ = np.where(empty, 0.0, least)
        self.data_max_ = np.where(empty, 0.0, most)
        one, two = jax.random.split(self._seeded())
        kind = SemiRestrictedBM if self.couplings else RBM
        start = QueryModel(kind.init(rows.shape[1], self.n_components, key=one), self.iterations)
        learner = QueryTraining(RandomTargets(0.5) if self.queries is None else self.queries)
        rate = self._falling(len(rows))
        self.model_ = self._trained(start, learner, self._shares(rows), rate, two)
        return self

    def transform(self, X: MatrixLike) -> Float[np.ndarray, "rows features"]:
        """The rows of `X` with missing values filled in and all other values unchanged."""
        check_is_fitted(self)
        rows = self._rows(X, reset=False).copy()
        missing, shares = np.isnan(rows), self._shares(rows)
        span = self.data_max_ - self.data_min_
        wanted = np.flatnonzero(missing.any(1))
        for first in range(0, len(wanted), _ROWS):
            some = wanted[first : first + _ROWS]
            padded = np.resize(some, _ROWS)
            evidence, observed = np.nan_to_num(shares[padded]), ~missing[padded]
            answer = np.asarray(query(self.model_, evidence, observed), np.float64)[: len(some)]
            rows[some] = np.where(missing[some], self.data_min_ + span * answer, rows[some])
        return rows

    def _rows(self, X: MatrixLike, reset: bool) -> Float[np.ndarray, "rows features"]:
        kinds = (np.float64, np.float32)
        return validate_data(self, X, reset=reset, dtype=kinds, ensure_all_finite="allow-nan")

    def _shares(self, X: Float[np.ndarray, "rows features"]) -> Float[np.ndarray, "rows features"]:
        """Values as shares of the range of their column, from 0 to 1; NaN stays."""
        span = self.data_max_ - self.data_min_
        shares = (X - self.data_min_) / np.where(span > 0, span, 1)
        return shares.clip(0, 1).astype(np.float32)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return keeps_dtype(tags)
