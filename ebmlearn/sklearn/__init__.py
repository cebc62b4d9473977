"""Scikit-learn estimators, for `Pipeline`, `GridSearchCV` and `clone`."""

# ruff: noqa: E402
from .. import _extras


_extras.need("ebmlearn.sklearn", "sklearn")

from ._bernoulli_rbm import BernoulliRBM as BernoulliRBM
from ._crbm import CRBMClassifier as CRBMClassifier
from ._imputer import RBMImputer as RBMImputer
from ._rbm_classifier import RBMClassifier as RBMClassifier
