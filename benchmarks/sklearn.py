"""The estimators of `ebmlearn.sklearn` beside those of scikit-learn.

`digits`: scikit-learn's own example, features of an RBM before logistic regression, on digits moved
by a pixel in each direction. `impute`: 30% of all values missing at random, in the rows to train on
too; log-loss of what was missing in the test rows. All in one run.
"""

import argparse
import importlib.metadata
import json
import time
from typing import Any

import numpy as np

import ebmlearn as ebm
from ebmlearn import datasets

from . import _report


TASKS = ("digits", "impute")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5, help="of the digits")
    parser.add_argument("--share", type=float, default=0.3, help="of values that are missing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sets", nargs="+", default=["digits", "adult"])


def moved_digits() -> tuple[np.ndarray, ...]:
    """The data of scikit-learn's example `plot_rbm_logistic_classification`."""
    from scipy.ndimage import shift
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import minmax_scale

    x, y = load_digits(return_X_y=True)
    images = np.asarray(x, np.float32).reshape(-1, 8, 8)
    steps = ((0, 0), (-1, 0), (0, -1), (0, 1), (1, 0))
    moved = [shift(images, (0, *step), order=0).reshape(-1, 64) for step in steps]
    rows = minmax_scale(np.concatenate(moved))
    parts = train_test_split(rows, np.tile(y, 5), test_size=0.2, random_state=0)
    return tuple(np.asarray(part) for part in parts)


def classify(seeds: int) -> dict[str, Any]:
    """Accuracy and seconds of both, in turns. The example's `tol=1` ends the logistic regression
    of recent versions of scikit-learn before its first step, so the default is used.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import BernoulliRBM as Theirs

    from ebmlearn.sklearn import BernoulliRBM as Ours

    x, x_test, y, y_test = moved_digits()
    out: dict[str, Any] = {
        name: {"accuracy": [], "seconds": []} for name in ("scikit-learn", "ebmlearn")
    }
    for seed in range(seeds):
        for name, kind in (("scikit-learn", Theirs), ("ebmlearn", Ours)):
            rbm = kind(100, learning_rate=0.06, n_iter=10, random_state=seed)
            began = time.perf_counter()
            rbm.fit(x)
            seconds = time.perf_counter() - began
            logistic = LogisticRegression(solver="newton-cg", C=6000)
            logistic.fit(rbm.transform(x), y)
            accuracy = logistic.score(rbm.transform(x_test), y_test)
            out[name]["accuracy"].append(accuracy)
            out[name]["seconds"].append(seconds)
            print(f"{name:13} seed {seed}: accuracy {accuracy:.4f}, {seconds:.1f} s", flush=True)
    logistic = LogisticRegression(solver="newton-cg", C=100).fit(x, y)
    out["pixels"] = {"accuracy": [logistic.score(x_test, y_test)]}
    return out


CLIPS = (0.05, 0.02, 0.01, 0.005, 1e-3, 1e-4, 1e-5)
# Hidden units, learning rate, epochs and iterations, which are tried on the validation rows with
# and without couplings between the columns.
SETTINGS = {
    "digits": ((50, 0.02, 50, 10), (100, 0.01, 100, 10)),
    "adult": ((20, 0.02, 20, 4),),
}


def impute(name: str, share: float, seed: int) -> dict[str, Any]:
    """Log-loss in nats a missing value. Each method's settings, and how far from 0 and 1 its
    answers are clipped, are chosen by the validation rows; the test rows are looked at once.
    """
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer, SimpleImputer

    from ebmlearn.sklearn import RBMImputer

    data = datasets.digits() if name == "digits" else datasets.nade(name)
    rng = np.random.default_rng(seed)
    rows = {}
    for part in ("train", "valid", "test"):
        x = np.asarray(getattr(data, part).x, np.float64)
        missing = rng.random(x.shape) < share
        rows[part] = x, missing, np.where(missing, np.nan, x)

    def loss(part: str, filled: np.ndarray, clip: float) -> float:
        x, missing, _ = rows[part]
        p = filled.clip(clip, 1 - clip)[missing]
        return float(-np.where(x[missing] > 0.5, np.log(p), np.log1p(-p)).mean())

    queries = ebm.queries.RandomTargets(share)
    methods: dict[str, list[tuple[dict[str, Any], Any]]] = {
        "column mean": [({}, SimpleImputer(keep_empty_features=True))],
        "IterativeImputer": [({}, IterativeImputer(random_state=seed, keep_empty_features=True))],
        "RBMImputer": [],
    }
    for couplings in (False, True):
        for hidden, rate, epochs, iterations in SETTINGS[name]:
            settings = {"n_components": hidden, "learning_rate": rate, "n_iter": epochs}
            settings |= {"iterations": iterations, "couplings": couplings}
            imputer = RBMImputer(**settings, queries=queries, random_state=seed)
            methods["RBMImputer"].append((settings, imputer))
    out: dict[str, Any] = {}
    for method, tries in methods.items():
        tried = []
        for settings, imputer in tries:
            began = time.perf_counter()
            imputer.fit(rows["train"][2])
            filled = imputer.transform(rows["valid"][2])
            seconds = time.perf_counter() - began
            valid, clip = min((loss("valid", filled, clip), clip) for clip in CLIPS)
            tried.append((valid, clip, settings, imputer, seconds))
            print(f"{name} {method} {settings}: valid {valid:.4f}, {seconds:.1f} s", flush=True)
        valid, clip, settings, imputer, seconds = min(tried, key=lambda one: one[0])
        test = loss("test", imputer.transform(rows["test"][2]), clip)
        print(f"{name} {method}: test {test:.4f} nats a missing value", flush=True)
        out[method] = {
            "valid": [one[0] for one in tried],
            "test": test,
            "clip": clip,
            "settings": settings,
            "seconds": seconds,
        }
    return out


def main(args: argparse.Namespace) -> dict[str, Any]:
    path = _report.RESULTS / "sklearn.json"
    # What is not asked for stays as it was measured.
    out = json.loads(path.read_text()) if path.exists() else {}
    out = {name: out[name] for name in TASKS if name in out}
    if "digits" in args.tasks:
        out["digits"] = classify(args.seeds)
    if "impute" in args.tasks:
        new = {name: impute(name, args.share, args.seed) for name in args.sets}
        out["impute"] = out.get("impute", {}) | new
    return {"scikit-learn": importlib.metadata.version("scikit-learn"), **out}
