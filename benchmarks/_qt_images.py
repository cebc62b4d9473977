"""Query training of faces and of borders: Lázaro-Gredilla et al. 2021, sections on the Gaussian RBM
and on the grid MRF.
"""

import functools
import operator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import datasets
from ebmlearn.estimate._query_entropy import independent_entropy

from ._slices import Deadline


QUERIES = ebm.queries.RandomTargets(0.5)


def about(fitted: ebm.Fitted) -> dict[str, Any]:
    """How a run went on the validation rows, and the seconds that its steps took in all slices."""
    curve = np.asarray(fitted.history.validations["metric"])
    return {
        "valid": float(curve.min()),
        "best_step": fitted.best_step,
        "steps_done": len(fitted.history.steps["loss"]),
        "stopped": fitted.stopped,
        "curve": [round(float(x), 5) for x in curve],
        "seconds": float(np.sum(fitted.history.epochs["seconds"])),
    }


def frey(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict | None:
    """A Gaussian RBM of faces, asked for random pixels and for blocks, in nats.

    Pixels have their means taken away and are all divided by one number, so that a gain over the
    trivial answer does not depend on their scale. That answer is one Gaussian for each image, with
    the mean and variance of the pixels that are given. With no faces held out for validation, all
    epochs are done, as the paper has it.
    """
    data = datasets.frey_faces()
    rows = data.train.x.astype(np.float32)
    held = run.get("held", 172)
    kept = len(rows) - held
    place = rows[:kept].mean(0)
    unit = (rows[:kept] - place).std()
    train, valid, test = ((x - place) / unit for x in (rows[:kept], rows[kept:], data.test.x))
    one, two, three = jax.random.split(jax.random.key(run["seed"]), 3)
    model = ebm.QueryModel(
        ebm.GaussianRBM.init(560, run["hidden"], key=one, scale=run["scale"]), run["layers"]
    )
    metric = functools.partial(
        ebm.query_entropy, queries=QUERIES, unit="nats", key=jax.random.key(0)
    )
    fitted = ebm.fit(
        model,
        ebm.QueryTraining(QUERIES),
        np.asarray(train, np.float32),
        optimizer=optax.adam(run["rate"]),
        epochs=run["epochs"],
        batch_size=run["batch"],
        validation=ebm.Validation(
            np.asarray(valid if held else train, np.float32),
            lambda model, x, epoch: metric(model, x).value,
        ),
        key=two,
        **deadline.options(work),
    )
    if fitted.stopped == "callback" and deadline.over:
        return None
    out = {**run, **about(fitted)}
    best = fitted.model if held else fitted.last
    if run["stage"] != "row":
        return out
    x = np.asarray(test, np.float32)
    for name, queries in (
        ("random", QUERIES),
        ("blocks", ebm.queries.BlockTargets((28, 20), (5, 5))),
    ):
        found = ebm.query_entropy(best, x, queries, key=three, unit="nats", batch_size=len(x))
        first, _ = jax.random.split(jax.random.fold_in(three, 0))
        observed, targets = (np.asarray(m) for m in queries(model, len(x), key=first))
        out[name] = {
            "nce": found.value,
            "standard_error": found.standard_error,
            "trivial": trivial(x, observed, targets),
            "independent": independent_entropy(
                model, train, x, queries, key=three, batch_size=len(x)
            )
            * np.log(2),
        }
        shown = np.linspace(0, len(x) - 1, 8).astype(int)
        answers = ebm.query(best, x[shown], observed[shown])
        grey = [x[shown] * unit + place, np.asarray(answers.mean) * unit + place]
        out[name]["pictures"] = [
            [np.clip(row, 0, 255).astype(np.uint8).tobytes().hex() for row in images]
            for images in grey
        ]
        out[name]["observed"] = [np.packbits(row).tobytes().hex() for row in observed[shown]]
    return out


def trivial(x: np.ndarray, observed: np.ndarray, targets: np.ndarray) -> float:
    """What one Gaussian for each image makes of its targets, in nats."""
    count = observed.sum(1, keepdims=True)
    mean = np.where(observed, x, 0).sum(1, keepdims=True) / count
    variance = np.where(observed, (x - mean) ** 2, 0).sum(1, keepdims=True) / count
    each = ((x - mean) ** 2 / variance + np.log(2 * np.pi * variance)) / 2
    return float(each[targets].mean())


def border(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict | None:
    """A grid of hidden states that learns which side of a noisy contour is the object.

    The published table has a guess without knowledge at 1 bit and an intersection over union of
    16.39%: a coin that says object or not for each of all pixels (16.41% of these images). So its
    bits are about that, and they are measured here beside those of the three labels. Of several
    numbers of layers to answer with, `answers`, the validation images choose.
    """
    data = datasets.border_ownership()
    rows = slice(run["rows"])
    images, labels = data.train.images[rows], data.train.labels[rows]
    one, two = jax.random.split(jax.random.key(run["seed"]))
    label = np.repeat([0, 1, 2], [run["hidden"], 1, 1])
    seen = data.p_contour
    emissions = {
        "pixels": jnp.asarray(np.log(np.stack([1 - seen, seen], -1))[label], jnp.float32),
        "labels": jnp.log(jax.nn.one_hot(label, 3)),
    }
    starts = [
        ebm.GridMRF.init((30, 30), len(label), emissions, key=key, scale=run["scale"])
        for key in (one, *jax.random.split(one, run.get("starts", 1) - 1))
    ]
    roles = ebm.queries.FixedTargets(["pixels"], ["labels"])
    kept = len(images) - run["held"]
    validation = {"pixels": images[kept:], "labels": labels[kept:]}
    steps = kept // run["batch"]

    def measured(model: ebm.QueryModel, asked: dict[str, np.ndarray]) -> ebm.estimate.QueryEntropy:
        return ebm.query_entropy(model, asked, roles, key=0, batch_size=run["batch"])

    falls = run.get("decay", False)
    warm, top = run.get("warm", 0), run["rate"]
    rate = optax.warmup_cosine_decay_schedule(top / 10, top, warm, run["epochs"] * steps)
    # Few layers are stable and cheap to begin with; each stage takes the model of the one before.
    stages = run.get("stages", [[run["layers"], run["epochs"]]])

    def trained(model: ebm.GridMRF, layers: int, epochs: int, done: int, start: int) -> ebm.Fitted:
        first = done * steps
        adam = optax.adam((lambda step: rate(first + step)) if falls else top)
        if "clip" in run:
            adam = optax.chain(optax.clip_by_global_norm(run["clip"]), adam)
        # As precise as products of matrices are by default: on a GPU a quarter faster.
        with jax.default_matmul_precision("default"):
            return ebm.fit(
                ebm.QueryModel(model, layers, temperature=None),
                ebm.QueryTraining(roles, scale=False, strength=False),
                {"pixels": images[:kept], "labels": labels[:kept]},
                optimizer=adam,
                epochs=epochs,
                batch_size=run["batch"],
                average=run.get("average"),
                validation=ebm.Validation(
                    validation, lambda model, x, epoch: measured(model, x).value
                ),
                key=jax.random.fold_in(two, done) if done else two,
                **deadline.options(None if work is None else work / f"{done}-{start}"),
            )

    done, fits, tried, seconds = 0, [], [], 0.0
    for layers, epochs in stages:
        # Of several starts, the one that validation prefers after the first stage goes on.
        firsts = [fits[-1].last.to_model()] if fits else starts
        found = []
        for k, first in enumerate(firsts):
            found.append(trained(first, layers, epochs, done, k))
            if found[-1].stopped == "callback" and deadline.over:
                return None
        scores = [about(fitted)["valid"] for fitted in found]
        seconds += sum(about(fitted)["seconds"] for fitted in found)
        tried = tried or scores
        fits.append(found[int(np.argmin(scores))])
        done += epochs
    parts = [about(fitted) for fitted in fits]
    out = {**run, **parts[-1], "valid_starts": tried, "seconds": seconds}
    for name in ("curve", "steps_done"):
        out[name] = functools.reduce(operator.add, [part[name] for part in parts])
    out["best_step"] += out["steps_done"] - parts[-1]["steps_done"]
    if run["stage"] != "row":
        return out

    best = fits[-1].model
    if "answers" in run:
        others = {n: ebm.QueryModel(best.to_model(), n, temperature=None) for n in run["answers"]}
        scores = {n: measured(m, validation).value for n, m in others.items()}
        out["valid_answers"] = scores
        out["answered_with"] = min(scores, key=scores.__getitem__)
        best = others[out["answered_with"]]
    test, truth = data.test.images[rows], data.test.labels[rows]
    found = measured(best, {"pixels": test, "labels": truth})
    ask = jax.jit(lambda model, x: ebm.query(model, {"pixels": x}, targets="labels"))
    parts = np.split(test, range(run["batch"], len(test), run["batch"]))
    p = np.concatenate([np.asarray(ask(best, part)) for part in parts])
    inside = p[..., 1] < 0.5
    inside[:, [0, -1]] = False
    inside[:, :, [0, -1]] = False
    true = truth != 1
    overlap = (inside & true).sum((1, 2)) / np.maximum((inside | true).sum((1, 2)), 1)
    object_bits = -np.log2(np.where(true, p[..., [0, 2]].sum(-1), p[..., 1])).mean((1, 2))
    return {
        **out,
        "iou": 100 * float(overlap.mean()),
        "iou_standard_error": 100 * float(overlap.std() / np.sqrt(len(overlap))),
        "nce": found.value,
        "standard_error": found.standard_error,
        "object_nce": float(object_bits.mean()),
        "object_standard_error": float(object_bits.std() / np.sqrt(len(object_bits))),
        "pictures": {
            "noisy": [np.packbits(x).tobytes().hex() for x in test[:10]],
            "found": [bytes(x.argmax(-1).astype(np.uint8).reshape(-1)).hex() for x in p[:10]],
            "true": [bytes(x.reshape(-1)).hex() for x in truth[:10]],
        },
    }
