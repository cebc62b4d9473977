"""Why CD-1 and CD-PercLoss miss their published errors: from where mean field starts, and centring.

The first task of Ping & Ihler 2017 by the paper's protocol, judged on validation images alone.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ebmlearn as ebm

from ._report import environment
from .crbm import TASKS


LEARNERS = {
    "cd-1": lambda centred: ebm.CD(1, start="data", centred=centred),
    "cd-1-random": lambda centred: ebm.CD(1, start="random", centred=centred),
    "percloss": lambda centred: ebm.PercLoss(10, centred=centred),
}
# Learner, rate, batch, epochs, centred.
RUNS = (
    ("cd-1", 0.05, 80, 10, False),
    ("cd-1", 0.005, 80, 20, False),
    ("cd-1", 0.005, 80, 30, True),
    ("cd-1-random", 0.01, 80, 10, False),
    ("cd-1-random", 0.005, 80, 8, True),
    ("percloss", 0.05, 80, 10, False),
    ("percloss", 0.005, 80, 10, False),
    ("percloss", 0.0005, 80, 8, False),
    ("percloss", 0.005, 80, 8, True),
    ("percloss", 0.02, 80, 8, True),
    ("percloss", 0.02, 20, 10, True),
    ("percloss", 0.05, 80, 30, True),
    ("percloss", 0.2, 80, 20, True),
)
SWEEPS = 15


@jax.jit
def predictions(model: ebm.CRBM, x: jax.Array) -> dict[str, jax.Array]:
    """The visible units by mean field from several starts."""
    rbm = model.condition(x)
    features = x.astype(rbm.weights.dtype)

    def sweep(visible: jax.Array) -> jax.Array:
        hidden = jax.nn.sigmoid(rbm.hidden_bias + visible @ rbm.weights)
        return jax.nn.sigmoid(rbm.visible_bias + hidden @ rbm.weights.T)

    def mean_field(visible: jax.Array) -> jax.Array:
        for _ in range(SWEEPS):
            visible = sweep(visible)
        return visible > 0.5

    return {
        "hidden units at one half": mean_field(
            jax.nn.sigmoid(rbm.visible_bias + rbm.weights.sum(1) / 2)
        ),
        "visible units at one half": mean_field(jnp.full_like(rbm.visible_bias, 0.5)),
        "logistic regression": mean_field(jax.nn.sigmoid(rbm.visible_bias)),
        "features": mean_field(features),
        "features, one sweep": sweep(features) > 0.5,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, help="use only so many rows of each part")
    parser.add_argument("--runs", type=int, nargs="+", help="only these, counted from 0")


def train(
    clean: np.ndarray,
    valid: np.ndarray,
    name: str,
    rate: float,
    batch: int,
    epochs: int,
    centred: bool,
) -> dict[str, Any]:
    """Trains on clean images and their corruption, and keeps the errors of three epochs."""
    corrupt = TASKS["noisy10"].corrupt
    keys = jax.random.split(jax.random.key(0), 5)
    x, truth = corrupt(valid, key=keys[0])[:2000], valid[:2000]
    errors: list[dict[str, float]] = []

    def metric(model: ebm.CRBM, validation: Any, epoch: int) -> float:
        found = predictions(model, x)
        found["belief propagation"] = ebm.BP(SWEEPS)(model.condition(x)).decode().visible
        wrong = {name: 100 * float(ebm.error_rate(v, truth)) for name, v in found.items()}
        errors.append({name: round(error, 3) for name, error in wrong.items()})
        return wrong["features"]

    began = time.monotonic()
    ebm.fit(
        ebm.CRBM.init(784, 256, 784, key=keys[3]),
        LEARNERS[name](centred),
        (corrupt(clean, key=keys[2]), clean),
        optimizer=optax.sgd(rate, momentum=0.9),
        epochs=epochs,
        batch_size=batch,
        validation=ebm.Validation((x, truth), metric),
        key=keys[4],
        progress=False,
    )
    kept = sorted({0, epochs // 2, epochs - 1})
    return {
        "learner": name,
        "rate": rate,
        "batch": batch,
        "epochs": epochs,
        "centred": centred,
        "errors": {str(epoch + 1): errors[epoch] for epoch in kept},
        "seconds": round(time.monotonic() - began),
        "environment": environment(),
    }


def main(args: argparse.Namespace) -> dict[str, Any]:
    data = TASKS["noisy10"].data()
    runs = []
    for k in args.runs or range(len(RUNS)):
        runs.append(train(data.train.x[: args.rows], data.valid.x[: args.rows], *RUNS[k]))
        print(RUNS[k], runs[-1]["errors"], flush=True)
    return {"runs": runs}
