"""Query training: Lázaro-Gredilla et al. 2021, table 1.

For a data set of binary units, learning rates are tried with one seed and fewer steps, the best by
validation is then used with three seeds, each stopped by validation, and only these look at the
test rows. `--method pcd` does the same for maximum likelihood by persistent contrastive divergence,
whose model is asked by belief propagation and by Gibbs sampling. `--choices` compares which of the
numbers beside the parameters are learned. `--rows` cuts the training rows, and the validation rows
in proportion; validation then comes every 20 steps. `--task speed` times a step against the same
network written plainly. Finished runs are kept in the result file and not done again; a run that
`--seconds` cuts short goes on from its checkpoint.
"""

import argparse
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import datasets
from ebmlearn.estimate._query_entropy import independent_entropy

from . import _slices
from ._qt_images import about, border, frey, QUERIES
from ._slices import Deadline, drive


NADE = {
    "adult": "adult",
    "connect4": "connect4",
    "dna": "dna",
    "mushrooms": "mushrooms",
    "nips": "nips",
    "ocr": "ocr_letters",
    "rcv1": "rcv1",
    "web": "web",
}
OTHERS = {"frey": "grbm", "border": "gmrf"}
# Options of borders that are part of a run if they are given.
BORDERS = ("decay", "clip", "average", "warm", "starts")
# Units; of the grid, states that are clones of a contour.
HIDDEN = {"nips": 200, "web": 100, "frey": 200, "border": 64}
RATES = {"qt": (0.001, 0.003, 0.01, 0.03), "pcd": (0.03, 0.1, 0.3, 1.0)}
# Of few rows, which are soon learned by heart.
FEW = {"qt": (0.0003, 0.001, 0.003, 0.01), "pcd": (0.003, 0.01, 0.03, 0.1)}
SEEDS = (0, 1, 2)
BATCH = 500
# Steps between two validations: of all rows, and of few.
EVERY, OFTEN = 500, 20
LAYERS = 10
SWEEPS = ebm.BP(LAYERS // 2)
# Test rows that are answered at once.
AT_ONCE = 2000


def load(run: dict[str, Any]) -> datasets.Dataset:
    """The data of a run: of few rows, some drawn at random, and as large a share of those for
    validation. Test rows stay whole.
    """
    task, rows = run["task"], run.get("rows")
    data = datasets.shifted_digits() if task == "digits" else datasets.nade(NADE[task])
    if rows is None:
        return data
    share = rows / len(data.train.x)
    random = np.random.default_rng(0)
    train, valid = (
        datasets.Split(random.permutation(x)[: round(share * len(x))])
        for x in (data.train.x, data.valid.x)
    )
    return datasets.Dataset(train, valid, data.test)


def protocol(x: np.ndarray, run: dict[str, Any], steps: int) -> dict[str, Any]:
    """The data of `fit`, and how long and how often it looks at what. Rows are repeated until there
    are enough for `EVERY` batches, since small epochs would cost more on the host than on the
    device. Validation does not wait for the end of an epoch.
    """
    times = -(-EVERY * BATCH // len(x))
    return {
        "data": np.tile(x, (times, 1))[: EVERY * BATCH],
        "epochs": max(1, steps // EVERY),
        "batch_size": BATCH,
    }


def often(run: dict[str, Any]) -> int:
    """How many steps are between two validations."""
    return run.get("every") or EVERY


def start(run: dict[str, Any], units: int, key: jax.Array) -> Any:
    """A model of small random weights."""
    if run["model"] == "dbm":
        return ebm.DBM.init(units, (run["hidden"], run["hidden"]), key=key, scale=run["scale"])
    return ebm.RBM.init(units, run["hidden"], key=key, scale=run["scale"])


def qt(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict | None:
    """Query training of one model, stopped by validation."""
    data = load(run)
    learned = run.get("learned", ["temperature", "scale", "strength"])
    one, two, three = jax.random.split(jax.random.key(run["seed"]), 3)
    learned = ["strength" if name == "evidence" else name for name in learned]
    strength = None if "strength" in learned else 1000.0
    if run.get("start") is not None:
        first = by_chains(run, data, run["start"], 8000, progress=False).model
        model = ebm.QueryModel(first, LAYERS, scale=1.0, strength=strength)
    else:
        first = start(run, data.train.x.shape[1], one)
        scale = 5.0 if "scale" in learned else 1.0
        model = ebm.QueryModel(first, LAYERS, scale=scale, strength=strength)
    names = ("temperature", "scale", "strength")
    learner = ebm.QueryTraining(QUERIES, **{name: name in learned for name in names})
    falls = run.get("decay", False)
    rate = optax.cosine_decay_schedule(run["rate"], run["steps"]) if falls else run["rate"]
    fitted = ebm.fit(
        model,
        learner,
        **protocol(data.train.x, run, run["steps"]),
        optimizer=optax.adam(rate),
        validation=ebm.Validation(data.valid.x, every=often(run), patience=run.get("patience")),
        key=two,
        **deadline.options(work),
    )
    if fitted.stopped == "callback" and deadline.over:
        return None
    best = fitted.model
    out = {**run, **about(fitted)}
    out["numbers"] = {
        "temperature": float(best.temperature),
        "scale": float(best.scale),
        "evidence": [float(x) for x in np.asarray(best.strength)],
    }
    if run["stage"] == "row":
        out["test"] = asked(best, data.test.x, None, three)
        out["independent"] = alone(model, data, three)
    return out


def binarised(batch: jax.Array, *, key: jax.Array) -> jax.Array:
    """Ones as often as grey levels say."""
    return jax.random.bernoulli(key, batch).astype(jnp.uint8)


def by_chains(
    run: dict[str, Any], data: datasets.Dataset, rate: float, steps: int, **options: Any
) -> ebm.Fitted:
    """Maximum likelihood by persistent chains, stopped by what belief propagation makes of it."""
    one, two, _ = jax.random.split(jax.random.key(run["seed"]), 3)
    model = start(run, data.train.x.shape[1], one)
    mean = np.clip(data.train.x.mean(0), 1e-3, 1 - 1e-3)
    base = jnp.asarray(np.log(mean) - np.log1p(-mean), jnp.float32)
    model = model.with_unary((base, *model.unary()[1:]))
    return ebm.fit(
        model,
        ebm.SAP(num_chains=BATCH),
        **protocol(data.train.x, run, steps),
        optimizer=optax.sgd(optax.linear_schedule(rate, 0.0, steps)),
        # Grey levels are the shares of ones.
        augment=None if run["task"] != "digits" else binarised,
        validation=ebm.Validation(
            data.valid.x,
            lambda model, x, epoch: (
                ebm.query_entropy(model, x, QUERIES, SWEEPS, key=jax.random.key(0)).value
            ),
        ),
        key=two,
        **options,
    )


def pcd(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict | None:
    """A model by persistent chains, asked by belief propagation and by Gibbs sampling."""
    data = load(run)
    key = jax.random.split(jax.random.key(run["seed"]), 3)[2]
    fitted = by_chains(run, data, run["rate"], run["steps"], **deadline.options(work))
    if fitted.stopped == "callback" and deadline.over:
        return None
    out = {**run, **about(fitted)}
    if run["stage"] == "row":
        out["test"] = asked(fitted.model, data.test.x, SWEEPS, key)
        out["independent"] = alone(fitted.model, data, key)
        chains = {"steps": run["samples"]}
        out["test_gibbs"] = asked(fitted.model, data.test.x, ebm.Gibbs(), key, **chains)
    return out


def asked(
    model: Any, x: np.ndarray, inference: Any, key: jax.Array, **options: Any
) -> dict[str, Any]:
    """The cross-entropy of queries on test rows, in bits, and by how many units were asked for."""
    found = ebm.query_entropy(model, x, QUERIES, inference, key=key, batch_size=AT_ONCE, **options)
    middle = x.shape[1] // 2
    edges = [0, middle - 5, middle + 6, x.shape[1] + 1]
    sizes = {f"{a}-{b - 1}": round(v, 5) for (a, b), v in found.by_targets(edges).items()}
    return {"nce": found.value, "standard_error": found.standard_error, "by_targets": sizes}


def alone(model: Any, data: datasets.Dataset, key: jax.Array) -> float:
    """The same of independent units that are as often 1 as in the training rows."""
    x, y = data.train.x, data.test.x
    return independent_entropy(model, x, y, QUERIES, key=key, batch_size=AT_ONCE)


def speed(run: dict[str, Any], work: Path | None, deadline: Deadline) -> dict:
    """A gradient of the library against that of the same network written plainly, N layers of
    flooding with softplus: time and memory, as ratios.
    """
    visible, hidden, size = run["visible"], run["hidden"], run["batch"]
    keys = jax.random.split(jax.random.key(run["seed"]), 3)
    weights = 0.1 * jax.random.normal(keys[0], (visible, hidden))
    x = jax.random.bernoulli(keys[1], 0.3, (size, visible)).astype(jnp.float32)
    rbm = ebm.RBM(weights, jnp.zeros(visible), jnp.zeros(hidden))
    model = ebm.QueryModel(rbm, run["layers"], strength=9.21)
    learner = ebm.QueryTraining(QUERIES)

    def plain(model: ebm.QueryModel, x: jax.Array, key: jax.Array) -> jax.Array:
        observed, targets = QUERIES(model, size, key=key)
        w, T = model.centred.weights, model.temperature
        first, second = model.centred.unary()
        high = jnp.asarray(model.strength)[1]
        u = jnp.where(observed, (2 * x - 1) * high, 0) + first[None]

        def sent(t: jax.Array) -> jax.Array:
            return T * (jax.nn.softplus((t + w[None]) / T) - jax.nn.softplus((t - w[None]) / T)) - w

        up = down = jnp.zeros((size, visible, hidden))
        for _ in range(run["layers"]):
            up, down = (
                sent(u[:, :, None] + down.sum(2, keepdims=True) - down),
                sent(second[None, None] + up.sum(1, keepdims=True) - up),
            )
        z = model.scale * (u + down.sum(2))
        each = jnp.where(targets, jax.nn.softplus(z) - x * z, 0)
        return each.sum() / targets.sum()

    losses: dict[str, Callable] = {
        "plain": plain,
        "ours": lambda model, x, key: learner.loss(model, x, key=key),
    }
    with jax.numpy_rank_promotion("allow"):
        compiled = {
            name: jax.jit(jax.value_and_grad(loss)).lower(model, x, keys[2]).compile()
            for name, loss in losses.items()
        }
    times: dict[str, list[float]] = {name: [] for name in compiled}
    values = {}
    for _ in range(run["repeats"]):
        # In turns, so that both meet the same machine.
        for name, gradient in compiled.items():
            began = time.perf_counter()
            value, _ = jax.block_until_ready(gradient(model, x, keys[2]))
            times[name].append(time.perf_counter() - began)
            values[name] = float(value)
    memory: Any = {name: g.memory_analysis() for name, g in compiled.items()}
    memory = {name: m.temp_size_in_bytes for name, m in memory.items()}
    medians = {name: float(np.median(t[1:])) for name, t in times.items()}
    return {
        **run,
        "loss": values,
        "milliseconds": {name: 1000 * t for name, t in medians.items()},
        "times_faster": medians["plain"] / medians["ours"],
        "memory": memory["ours"] / memory["plain"],
        "bytes": memory,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", choices=(*NADE, "digits", *OTHERS, "speed"), default="mushrooms")
    parser.add_argument(
        "--model", choices=("rbm", "dbm", *OTHERS.values()), help="that of the task, or rbm"
    )
    parser.add_argument("--method", choices=("qt", "pcd"), default="qt")
    parser.add_argument("--rates", nargs="+", type=float, help="learning rates to choose from")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--search", type=int, default=8000, help="steps for each learning rate")
    parser.add_argument(
        "--steps", type=int, help="steps at most, then; of pcd, whose rate falls to 0, as many"
    )
    parser.add_argument("--patience", type=int, default=10, help="of so many validations")
    parser.add_argument("--decay", action="store_true", help="let the rate fall to 0 over --steps")
    parser.add_argument(
        "--start", type=float, help="start at what persistent chains learn at this rate"
    )
    parser.add_argument("--samples", type=int, default=1000, help="of a chain for each test row")
    parser.add_argument("--scale", type=float, default=0.01, help="of the first weights")
    parser.add_argument("--hidden", type=int, help="units; the paper's by default")
    parser.add_argument("--layers", type=int, help="of faces and borders; the paper's by default")
    parser.add_argument("--clip", type=float, help="the largest norm of a gradient of borders")
    parser.add_argument("--average", type=float, help="decay of a mean of parameters, of borders")
    parser.add_argument("--warm", type=int, help="steps in which the rate of borders rises")
    parser.add_argument(
        "--stages", nargs="+", type=int, help="of borders: layers and epochs, by turns"
    )
    parser.add_argument(
        "--starts", type=int, help="of borders: first guesses that the first stage chooses from"
    )
    parser.add_argument(
        "--answers", nargs="+", type=int, help="layers to answer about borders with, to choose from"
    )
    parser.add_argument("--epochs", type=int, help="of faces and borders; the paper's by default")
    parser.add_argument("--rows", type=int, help="use only so many training rows")
    parser.add_argument(
        "--every", type=int, help="steps between validations; 500, or 20 of few rows"
    )
    parser.add_argument("--held", type=int, help="faces for validation; 0: all epochs are done")
    parser.add_argument("--choices", action="store_true", help="compare what is learned")
    _slices.add_arguments(parser)


def main(args: argparse.Namespace) -> dict[str, Any]:
    found: list[dict[str, Any]] = _slices.read(args.json)

    def kept(train: Callable, run: dict[str, Any]) -> Callable:
        def do(work: Path | None, deadline: Deadline) -> dict | None:
            result = train(run, work, deadline)
            if result is not None:
                found.append(result)
            return result

        return do

    def preferred(search: dict[str, Any], rates: Sequence[float]) -> float:
        """The learning rate that validation prefers."""
        tried = [r for r in found if all(r.get(k) == v for k, v in search.items())]
        return min((r for r in tried if r["rate"] in rates), key=lambda r: r["valid"])["rate"]

    def runs() -> Iterator[tuple[dict[str, Any], Callable]]:
        if args.task == "speed":
            run = {"task": "speed", "method": "qt", "visible": 128, "hidden": args.hidden or 50}
            run |= {"batch": BATCH, "layers": LAYERS, "repeats": 11, "seed": 0}
            yield run, functools.partial(speed, run)
            return
        base = {"task": args.task, "method": args.method}
        base["model"] = args.model or OTHERS.get(args.task, "rbm")
        if OTHERS.get(args.task) not in (None, base["model"]) or (
            base["model"] in OTHERS.values() and args.task not in OTHERS
        ):
            raise SystemExit(f"{args.task} is not for a {base['model']}")
        base |= {"hidden": args.hidden or HIDDEN.get(args.task, 50), "scale": args.scale}
        if args.task in OTHERS:
            if args.task == "frey":
                train, rates = frey, [0.005]
                base |= {"layers": args.layers or 50, "batch": 100, "epochs": args.epochs or 50}
                base |= {} if args.held is None else {"held": args.held}
            else:
                train, rates = border, [0.01]
                base |= {"layers": args.layers or 15, "batch": 50, "epochs": args.epochs or 10}
                base |= {"rows": args.rows, "held": 50 if args.rows else 1000}
                given = {name: getattr(args, name) for name in BORDERS}
                base |= {name: value for name, value in given.items() if value}
                if args.stages:
                    stages = [
                        [layers, epochs]
                        for layers, epochs in zip(args.stages[::2], args.stages[1::2], strict=True)
                    ]
                    base |= {"stages": stages, "epochs": sum(epochs for _, epochs in stages)}
                    base["layers"] = stages[-1][0]
            rates = args.rates or rates
            if args.stages and len(rates) > 1:
                raise SystemExit("--stages takes one rate")
            # A fifth of the epochs is enough to choose one.
            search = {**base, "stage": "rate", "epochs": max(1, base["epochs"] // 5), "seed": 0}
            for rate in rates if len(rates) > 1 else ():
                run = {**search, "rate": rate}
                yield run, kept(train, run)
            best = preferred(search, rates) if len(rates) > 1 else rates[0]
            for seed in args.seeds:
                run = {**base, "stage": "row", "rate": best, "seed": seed}
                run |= {"answers": args.answers} if args.answers else {}
                yield run, kept(train, run)
            return
        train = {"qt": qt, "pcd": pcd}[args.method]
        # Older results lack these, and were found without them.
        every = args.every or (OFTEN if args.rows else None)
        base |= {"start": args.start, "rows": args.rows, "every": every}
        if args.choices:
            names = ("temperature", "scale", "evidence")
            for pick in itertools.product((True, False), repeat=3):
                learned = [name for name, on in zip(names, pick, strict=True) if on]
                run = {**base, "stage": "choice", "learned": learned, "steps": args.search}
                run |= {"rate": (args.rates or [0.01])[0], "seed": 0}
                yield run, kept(train, run)
            return
        search = {**base, "stage": "rate", "steps": args.search, "seed": 0}
        search |= {"stage": "falling rate", "decay": True} if args.decay else {}
        rates = args.rates or (FEW if args.rows else RATES)[args.method]
        for rate in rates:
            run = {**search, "rate": rate}
            yield run, kept(train, run)
        best = preferred(search, rates)
        for seed in args.seeds:
            steps = args.steps or (32_000 if args.method == "qt" else args.search)
            run = {**base, "stage": "row", "steps": steps, "rate": best, "seed": seed}
            run |= {"decay": True} if args.decay else {"patience": args.patience}
            run |= {"samples": args.samples} if args.method == "pcd" else {}
            yield run, kept(train, run)

    return drive(args, runs, show)


def show(run: dict[str, Any]) -> None:
    """A line about a run."""
    if run["task"] == "speed":
        print(
            f"{run['times_faster']:.2f} times as fast, {100 * run['memory']:.0f}% of the memory",
            flush=True,
        )
        return
    test = f", test {run['test']['nce']:.4f}" if "test" in run else ""
    if "iou" in run:
        test += f", test {run['nce']:.4f}, of the object {run['object_nce']:.4f}"
        test += f", intersection over union {run['iou']:.2f}%"
    for name in ("random", "blocks"):
        if name in run:
            test += f", {name} {run[name]['nce']:.4f} (trivial {run[name]['trivial']:.4f})"
    if "test_gibbs" in run:
        test += f" by Gibbs {run['test_gibbs']['nce']:.4f}"
    print(
        f"{run['task']} {run['model']} {run['method']} {run['stage']} rate {run['rate']} seed"
        f" {run['seed']}: valid {run['valid']:.4f} at step {run['best_step']:,}{test},"
        f" {run['seconds']:.0f} s {run.get('learned', '')}",
        flush=True,
    )
