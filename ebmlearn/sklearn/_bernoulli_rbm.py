import time
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree
from scipy.special import expit
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from ..estimate import pseudo_log_likelihood_of
from ..learners import AbstractLearner, SAP
from ..models import RBM
from ..samplers import Gibbs
from ._common import checked, Estimator, keeps_dtype, MatrixLike, RandomState, validate_data


class BernoulliRBM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):
    """An RBM as a transformer. It replaces `sklearn.neural_network.BernoulliRBM`, with the same
    arguments, methods and fitted attributes, and works with any learner.

    Rows lie in [0, 1]. A number between 0 and 1, such as a grey level, is the mean of a unit, as in
    scikit-learn.

    There are two differences. `score_samples` computes the whole pseudo-likelihood instead of an
    estimate from one random unit, so it is deterministic. An epoch leaves out rows that do not fill
    a batch; rows are shuffled, so these differ from epoch to epoch.

    !!! example

        ```python
        from ebmlearn import datasets
        from ebmlearn.sklearn import BernoulliRBM
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        digits = datasets.digits()
        rbm = BernoulliRBM(50, learning_rate=0.06, n_iter=2)
        pipeline = make_pipeline(rbm, LogisticRegression(max_iter=1000))
        pipeline.fit(digits.train.x, digits.train.y).score(digits.test.x, digits.test.y)
        ```
    """

    def __init__(
        self,
        n_components: int = 256,
        *,
        learning_rate: float = 0.1,
        batch_size: int = 10,
        n_iter: int = 10,
        verbose: int = 0,
        random_state: RandomState = None,
        learner: AbstractLearner | None = None,
    ):
        """**Arguments:**

        - `n_components`: the number of hidden units.
        - `learning_rate`: the learning rate of stochastic gradient descent.
        - `batch_size`: rows per step.
        - `n_iter`: the number of epochs.
        - `verbose`: whether to print the pseudo-likelihood after each epoch.
        - `random_state`: a seed, a `RandomState`, or None for a different result each time.
        - `learner`: any learner that takes an RBM, for instance [`ebmlearn.CD`][] or
          [`ebmlearn.MLE`][]. By default persistent contrastive divergence with `batch_size` chains,
          as in scikit-learn.

        Fitted attributes: `model_`, the [`ebmlearn.RBM`][]; `components_`, `intercept_hidden_` and
        `intercept_visible_`, its parameters as scikit-learn names them; `n_iter_`, the number of
        epochs, of `fit` and of calls of `partial_fit`.
        """
        super().__init__(n_components, learning_rate, batch_size, n_iter, verbose, random_state)
        self.learner = learner

    def fit(self, X: MatrixLike, y: object = None) -> "BernoulliRBM":
        """Trains an RBM on the rows of `X`; `y` is not used."""
        self._check_settings()
        rows = self._rows(X, reset=True)
        self._begin(rows)
        size = min(self.batch_size, len(rows))
        for k in range(self.n_iter):
            began = time.perf_counter()
            self._epoch(rows, size)
            if self.verbose:
                score, seconds = self.score_samples(rows).mean(), time.perf_counter() - began
                print(
                    f"[{type(self).__name__}] Iteration {k + 1}, pseudo-likelihood = {score:.2f},"
                    f" time = {seconds:.2f}s"
                )
        return self

    def partial_fit(self, X: MatrixLike, y: object = None) -> "BernoulliRBM":
        """Makes one step of gradient descent with the rows of `X` as one batch, continuing from the
        last call; `y` is not used. A call counts as one epoch in `n_iter_`, and for settings of the
        learner that depend on the epoch.
        """
        self._check_settings()
        first = not hasattr(self, "model_")
        rows = self._rows(X, reset=first)
        if first:
            self._begin(rows)
        self._epoch(rows, len(rows))
        return self

    def transform(self, X: MatrixLike) -> Float[np.ndarray, "rows components"]:
        """The probability of 1 of each hidden unit given the rows of `X`."""
        check_is_fitted(self)
        kinds = (np.float64, np.float32)
        rows = validate_data(self, X, accept_sparse="csr", reset=False, dtype=kinds)
        # In the precision of `X`, and without compiling for each number of rows.
        weights = self.components_.T.astype(rows.dtype)
        return np.asarray(expit(rows @ weights + self.intercept_hidden_.astype(rows.dtype)))

    def score_samples(self, X: MatrixLike) -> Float[np.ndarray, " rows"]:
        """The pseudo-log-likelihood of each row: the sum over units of the log-probability of the
        unit given all others.
        """
        check_is_fitted(self)
        rows = self._rows(X, reset=False)
        return np.asarray(_pseudo_log_likelihood(self.model_, (jnp.asarray(rows), None)))

    def gibbs(self, v: MatrixLike) -> Bool[np.ndarray, "rows visible"]:
        """Visible units after one step of Gibbs sampling from the visible units `v`."""
        check_is_fitted(self)
        rows = jnp.asarray(self._rows(v, reset=False))
        one, two = jax.random.split(self._next_key())
        hidden = jax.random.bernoulli(one, self.model_.hidden_given(rows))
        return np.asarray(jax.random.bernoulli(two, self.model_.visible_given(hidden)))

    @property
    def components_(self) -> Float[np.ndarray, "components visible"]:
        """The weights, a row for each hidden unit."""
        return np.asarray(self.model_.weights, np.float64).T

    @property
    def intercept_hidden_(self) -> Float[np.ndarray, " components"]:
        """The biases of the hidden units."""
        return np.asarray(self.model_.hidden_bias, np.float64)

    @property
    def intercept_visible_(self) -> Float[np.ndarray, " visible"]:
        """The biases of the visible units."""
        return np.asarray(self.model_.visible_bias, np.float64)

    @property
    def _n_features_out(self) -> int:
        return self.model_.num_hidden

    def _learner(self) -> AbstractLearner:
        default = SAP(Gibbs(), num_chains=self.batch_size)
        return checked(default if self.learner is None else self.learner)

    def _begin(self, rows: Float[np.ndarray, "rows visible"]) -> None:
        self._key = self._seeded()
        self.n_iter_ = 0
        self.model_ = RBM.init(rows.shape[1], self.n_components, key=self._next_key())
        self._started = None

    def _epoch(self, rows: Float[np.ndarray, "rows visible"], size: int) -> None:
        rate = jnp.asarray(self.learning_rate, self.model_.dtype)
        learner = self._learner()
        if not eqx.tree_equal(learner, self._started):
            # It is the first call, or settings have changed since the last one.
            self._state = learner.init(self.model_, key=self._next_key())
            self._started = learner
        epoch, key = jnp.asarray(self.n_iter_), self._next_key()
        carry = self.model_, self._state
        model, state = _epoch(learner, carry, jnp.asarray(rows), size, rate, epoch, key)
        if not all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(model)):
            raise FloatingPointError(
                f"A parameter is NaN or infinite in iteration {self.n_iter_ + 1}: try a smaller"
                f" `learning_rate` than {self.learning_rate}."
            )
        self.model_, self._state, self.n_iter_ = model, state, self.n_iter_ + 1

    def _rows(self, X: MatrixLike, reset: bool) -> Float[np.ndarray, "rows visible"]:
        """Rows as training takes them."""
        rows = validate_data(self, X, accept_sparse="csr", reset=reset, dtype=np.float32)
        rows = rows if isinstance(rows, np.ndarray) else rows.toarray()
        if reset and (rows.min() < 0 or rows.max() > 1):
            warnings.warn(
                f"`X` should lie in [0, 1], got {rows.min():.3g} to {rows.max():.3g}: training"
                " clips it. Scale `X` first, for instance by `MinMaxScaler`.",
                stacklevel=3,
            )
        return rows.clip(0, 1)

    def _next_key(self) -> PRNGKeyArray:
        self._key, key = jax.random.split(self._key)
        return key

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return keeps_dtype(tags)


@eqx.filter_jit
def _epoch(
    learner: AbstractLearner,
    carry: tuple[RBM, PyTree],
    rows: Float[Array, "rows visible"],
    size: int,
    rate: Float[Array, ""],
    number: Int[Array, ""],
    key: PRNGKeyArray,
) -> tuple[RBM, PyTree]:
    """Goes through the rows once. The learning rate is an argument: another one compiles nothing.
    `ebmlearn.fit` would refuse grey levels.
    """
    one, two = jax.random.split(key)
    steps = rows.shape[0] // size
    order = jax.random.permutation(one, rows.shape[0])[: steps * size].reshape(steps, size)

    def step(carry: tuple[RBM, PyTree], batch: tuple[Array, Array]) -> tuple[Any, None]:
        (model, state), (places, own) = carry, batch
        gradient, state, _ = learner.step(model, state, rows[places], key=own, epoch=number)
        return (jax.tree.map(lambda x, g: x - rate * g, model, gradient), state), None

    return jax.lax.scan(step, carry, (order, jax.random.split(two, steps)))[0]


_pseudo_log_likelihood = eqx.filter_jit(pseudo_log_likelihood_of)
