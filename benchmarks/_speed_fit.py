"""Rows about `fit`: compiled once, no overhead of an epoch, many runs at once."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import datasets


TASKS = ("fit_again", "fit_epoch", "fit_many")
RATES = np.geomspace(1e-4, 1e-1, 20).tolist()
SEEDS = (0, 1, 2)


def rows(tasks: Sequence[str], small: bool = False) -> Iterator[dict[str, Any]]:
    """The rows of some tasks: name, value, unit, what is to be reached, and the formula of bytes
    where there is one. All of them are small.
    """
    for task in tasks:
        yield from globals()[f"_{task}"]()


def _row(name: str, value: float, unit: str, reach: str | None = None) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "reach": reach, "bytes": None}


def _seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _fit_again() -> list[dict[str, Any]]:
    """An epoch of a CRBM on digits, with a new optimizer that equals that of a run before."""
    v = np.asarray(datasets.digits().train.x)
    x = np.asarray(datasets.flip(v, 0.15, key=jax.random.key(3)))
    model = ebm.CRBM.init(visible=64, hidden=64, features=64, key=0)
    learner = ebm.MLE(ebm.BP(iterations=10))
    options: dict[str, Any] = dict(epochs=1, batch_size=50, key=0, progress=False)

    def run(rate: float) -> float:
        return _seconds(
            lambda: ebm.fit(model, learner, (x, v), optimizer=optax.adam(rate), **options)
        )

    first = run(1e-2)
    equal = min(run(1e-2) for _ in range(3))
    other = min(run(rate) for rate in (1e-3, 2e-3, 3e-3))
    return [
        _row("first fit, CRBM 64x64 on digits, one epoch", first, "s"),
        _row("fit again, new equal optimizer", equal, "s", "<= 0.5"),
        _row("fit again, another learning rate", other, "s", "<= 0.5"),
    ]


def _fit_epoch() -> list[dict[str, Any]]:
    """The time of an epoch of one step beside that of a step in a long epoch."""
    data = np.random.default_rng(0).integers(0, 2, (4096, 8)).astype(np.float32)
    model, learner, epochs = ebm.RBM.init(8, 4, key=0), ebm.MLE(ebm.MeanField(1)), 4096

    def run(rows: int, epochs: int) -> float:
        return _seconds(
            lambda: ebm.fit(
                model,
                learner,
                data[:rows],
                optimizer=optax.sgd(0.01),
                epochs=epochs,
                batch_size=16,
                key=0,
                progress=False,
            )
        )

    def each(rows: int, epochs: int) -> float:
        run(rows, 1)
        return min(run(rows, epochs) for _ in range(3)) / (epochs * (rows // 16))

    one, step = each(16, epochs), each(4096, epochs // 256)
    eight = 8 * (each(128, epochs // 8) - step)
    return [
        _row("overhead of an epoch of one step, no metric", 1e3 * (one - step), "ms", "<= 0.5"),
        _row("overhead of an epoch of eight steps, no metric", 1e3 * eight, "ms", "<= 0.5"),
    ]


def _fit_many() -> list[dict[str, Any]]:
    """Twenty rates and three seeds of query training, at once and one after the other."""
    data = datasets.nade("mushrooms")
    train, valid = np.asarray(data.train.x), np.asarray(data.valid.x)
    grid = [(rate, seed) for rate in RATES for seed in SEEDS]
    learner = ebm.QueryTraining(ebm.queries.RandomTargets(0.5))
    models = [
        ebm.QueryModel(ebm.RBM.init(train.shape[1], 50, key=seed), iterations=10)
        for _, seed in grid
    ]
    options: dict[str, Any] = dict(epochs=10, batch_size=100, validation=valid, progress=False)

    def many() -> list[ebm.Fitted]:
        optimizers = [one for one in map(optax.adam, RATES) for _ in SEEDS]
        keys = [seed for _, seed in grid]
        return ebm.fit_many(models, learner, train, optimizer=optimizers, key=keys, **options)

    def single(k: int) -> ebm.Fitted:
        rate, seed = grid[k]
        return ebm.fit(models[k], learner, train, optimizer=optax.adam(rate), key=seed, **options)

    # Both have compiled before.
    many()
    single(0)
    together = min(_seconds(many) for _ in range(2))
    some = range(0, len(grid), max(1, len(grid) // 6))
    apart = sum(_seconds(lambda k=k: single(k)) for k in some) * len(grid) / len(some)
    return [
        _row("query training, 20 rates x 3 seeds, at once", together, "s"),
        _row("query training, one after the other (from six)", apart, "s"),
        _row("query training, gain of `fit_many`", apart / together, "x", ">= 8 on an H200"),
    ]
