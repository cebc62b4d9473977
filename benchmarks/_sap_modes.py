"""RBMs of data whose modes are far apart, trained by chains of Gibbs sampling and of tempering, at
equally many Gibbs steps. They have few hidden units, so that log Z and draws from them are exact.
"""

import functools
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import datasets

from ._clusters import centres, nearest, shares
from ._slices import Deadline


DATA = ("zero-one", "caltech")
METHODS = ("exact", "sap", "trans-sap", "trans-sap-far", "parallel", "trajectory")
BATCH = 100
RATES = (0.01, 0.03, 0.1)
SEEDS = (0, 1, 2, 3, 4)
CHAINS = (20, 100)
CLUSTERS = 3
# Replicas of a chain of parallel and of trajectory tempering: so many times fewer chains.
REPLICAS = 10
# Inverse temperatures: of the paper, and down to where chains cross between modes. A tempered
# transition costs two sweeps an interval. It comes once in so many updates, after a share of them.
LADDERS = {
    "trans-sap": (np.linspace(0.9, 1, 51), 200, 0.5),
    "trans-sap-far": (np.linspace(0.2, 1, 201), 400, 0.25),
}
# Exact draws from a model, and sweeps after which they are looked at again.
DRAWS, SWEEPS = 10_000, 100


class Rows(NamedTuple):
    """Binary rows, and the means of clusters of the training rows."""

    train: jax.Array
    test: jax.Array
    means: jax.Array


@functools.cache
def rows(name: str) -> Rows:
    """The zeros and ones of MNIST, whose pixels are drawn once, or silhouettes."""
    if name == "caltech":
        data = datasets.caltech_silhouettes()
        train, test, classes = data.train.x, data.test.x, None
    else:
        data = datasets.mnist(threshold=None)
        random = np.random.default_rng(0)
        parts = []
        for part in (data.train, data.test):
            assert part.y is not None
            own = part.x[part.y < 2]
            parts.append((random.random(own.shape) * 255 < own).astype(np.uint8))
        (train, test), classes = parts, data.train.y[data.train.y < 2]  # pyright: ignore
    means = centres(train.astype(np.float32), classes, CLUSTERS)
    return Rows(jnp.asarray(train), jnp.asarray(test), jnp.asarray(means))


def learner(run: dict[str, Any], model: ebm.RBM) -> tuple[ebm.learners.AbstractLearner, int]:
    """A method, and after how many updates it has spent the Gibbs steps of all chains."""
    method, chains, updates = run["method"], run["chains"], run["updates"]
    centred = {"centred": run["centred"]}
    if method == "exact":
        return ebm.MLE(ebm.Exact(), **centred), updates
    if method in LADDERS:
        betas, every, share = LADDERS[method]
        begin = int(share * updates)
        cost = 1 + 2 * (len(betas) - 1) / every
        tempered = ebm.TransSAP(betas, every=every, begin=begin, num_chains=chains, **centred)
        return tempered, begin + int((updates - begin) / cost)
    if method == "sap":
        return ebm.SAP(num_chains=chains, **centred), updates
    if method == "parallel":
        sampler = ebm.ParallelTempering(np.linspace(0.1, 1, REPLICAS))
    else:
        trajectory = ebm.Trajectory.start(model, rows(run["data"]).train, capacity=REPLICAS)
        sampler = ebm.TrajectoryTempering(trajectory)
    return ebm.SAP(sampler, num_chains=max(1, chains // REPLICAS), **centred), updates


def falling(rate: float, updates: int) -> optax.Schedule:
    """A rate that stays for half of the updates and then falls to 0."""
    return lambda step: rate * jnp.clip(2 - 2 * step / updates, 0, 1)


@jax.jit
def exact_loss(model: ebm.RBM, x: jax.Array, epoch: Any = 0) -> jax.Array:
    """Minus the mean log-probability in nats."""
    return -ebm.log_likelihood(model, x, ebm.Exact()(model).log_partition).mean()


@functools.cache
def side_by_side(
    fixed: tuple[tuple[str, Any], ...], rates: tuple[float, ...], seeds: tuple[int, ...]
) -> tuple[dict[tuple[float, int], ebm.Fitted], float]:
    """Models of some rates and seeds, trained at once where that is faster, and the seconds of
    all.
    """
    run = dict(fixed)
    train = rows(run["data"]).train
    grid = [(rate, seed) for rate in rates for seed in seeds]
    keys = [jax.random.split(jax.random.key(seed)) for _, seed in grid]
    base = ebm.estimate.base_rate(train)
    models = [ebm.RBM.init(train.shape[1], run["hidden"], key=key) for key, _ in keys]
    models = [ebm.RBM(model.weights, base, model.hidden_bias) for model in models]
    method, updates = learner(run, models[0])
    options: dict[str, Any] = {
        "epochs": -(-updates // (len(train) // BATCH)),
        "batch_size": BATCH,
        "validation": ebm.Validation(train[:2000], exact_loss, every=max(1, updates // 10)),
        "progress": False,
    }
    optimisers = [optax.sgd(falling(rate, updates)) for rate, _ in grid]
    own = [key for _, key in keys]
    began = time.monotonic()
    if run["method"] in LADDERS:
        # Side by side, the tempered transitions that are not due would be made in vain.
        every = zip(models, optimisers, own, strict=True)
        found = [ebm.fit(m, method, train, optimizer=o, key=k, **options) for m, o, k in every]
    else:
        found = ebm.fit_many(models, method, train, optimizer=optimisers, key=own, **options)
    return dict(zip(grid, found, strict=True)), time.monotonic() - began


@jax.jit
def drawn_exactly(model: ebm.RBM, key: jax.Array) -> ebm.samplers.ChainState:
    """Independent draws: hidden units by enumeration, then visible ones."""
    number = model.hidden_bias.shape[0]
    states = (jnp.arange(2**number)[:, None] >> jnp.arange(number)[None]) & 1
    h = states.astype(model.dtype)
    field = model.visible_bias[None] + h @ model.weights.T
    log_p = h @ model.hidden_bias + jax.nn.softplus(field).sum(1)
    one, two = jax.random.split(key)
    own = jax.random.categorical(one, log_p, shape=(DRAWS,))
    visible = jax.random.bernoulli(two, jax.nn.sigmoid(field[own])).astype(jnp.int32)
    start = model.named([visible, states[own].astype(jnp.int32)])
    return ebm.Gibbs().init(model, DRAWS, key=one, start=start)


@jax.jit
def moved(model: ebm.RBM, state: Any, key: jax.Array) -> Any:
    """Chains after some sweeps."""

    def step(state: Any, own: jax.Array) -> tuple[Any, None]:
        return ebm.Gibbs().step(model, state, key=own)[0], None

    return jax.lax.scan(step, state, jax.random.split(key, SWEEPS))[0]


def modes(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict | None:
    """Trains an RBM, and looks at its likelihood and at the shares of its clusters."""
    varied = ("rate", "seed", "rates", "seeds")
    fixed = tuple((k, x) for k, x in run.items() if k not in varied)
    every, seconds = side_by_side(fixed, tuple(run["rates"]), tuple(run["seeds"]))
    fitted = every[run["rate"], run["seed"]]
    model, data = fitted.last, rows(run["data"])
    one, two = jax.random.split(jax.random.key(run["seed"]))
    with jax.default_matmul_precision("float32"):
        state = drawn_exactly(model, one)
        later = moved(model, state, two)
        near, then = (
            np.asarray(nearest(model.encode(x.units)[0], data.means)) for x in (state, later)
        )
        train, test = (-float(exact_loss(model, x)) for x in (data.train, data.test))
    number = len(data.means)
    own = shares(near, number)
    wanted = shares(np.asarray(nearest(data.train.astype(jnp.float32), data.means)), number)
    accepted = np.asarray(fitted.history.steps["accepted"])
    return {
        **run,
        "train_log_probability": train,
        "test_log_probability": test,
        "shares": own,
        "shares_of_data": wanted,
        "share_error": float(np.abs(np.subtract(own, wanted)).sum() / 2),
        "left": float((near != then).mean()),
        "accepted": float(np.nanmean(accepted)) if np.isfinite(accepted).any() else None,
        "updates_done": len(fitted.history.steps["gap"]),
        "stopped": fitted.stopped,
        "curve": [round(-float(x), 2) for x in fitted.history.validations["metric"]],
        "seconds": seconds,
    }
