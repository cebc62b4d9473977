"""Puts the estimators through scikit-learn's `check_estimator`: `python tests/estimators.py`. Most
of its 150 checks train anew, which takes minutes, so that it runs beside pytest in `.ci/run`.
"""

import os
import sys
import tempfile
import warnings
from typing import Any

import programs


def main() -> None:
    os.environ.update(programs.quickly())
    import jax
    from sklearn.utils.estimator_checks import check_estimator

    from ebmlearn.sklearn import BernoulliRBM, CRBMClassifier, RBMClassifier, RBMImputer

    warnings.simplefilter("ignore")
    jax.config.update("jax_disable_most_optimizations", True)
    estimators: list[Any] = [
        BernoulliRBM(5, n_iter=2, batch_size=20),
        CRBMClassifier(5, n_iter=20, batch_size=20),
        RBMClassifier(5, n_iter=20, batch_size=20),
        RBMImputer(5, n_iter=3, iterations=2, batch_size=20),
    ]
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.02)
        wrong = 0
        for estimator in estimators:
            name = type(estimator).__name__
            # No check is expected to fail.
            found = check_estimator(estimator, on_fail=None, on_skip=None)
            passed = sum(x["status"] == "passed" for x in found)
            print(f"{name}: {passed} of {len(found)} checks passed", flush=True)
            for x in found:
                if x["status"] != "passed":
                    wrong += x["status"] != "skipped"
                    print(f"  {x['status']}: {x['check_name']}: {x['exception']}", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
