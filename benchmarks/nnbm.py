"""Nonnegative Boltzmann machines: Yasuda 2015, section V, and how inference scales.

`--task grid` and `--task orientation` learn models of 36 units back from 10,000 samples, 50 times,
by SusP and I-SusP and by maximum likelihood with long Markov chains. `--task scaling` times one
inference of sparse and dense models. `--task wine` learns a model of the 13 measurements of
scikit-learn's wines and draws from it. Finished runs are kept in the result file and not done
again.
"""

import argparse
import functools
import statistics
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ebmlearn as ebm

from . import _slices
from ._slices import drive


# Mean absolute errors of biases and couplings.
PUBLISHED = {
    "grid": {"downs": (0.515, 0.376), "susp": (0.297, 0.095), "isusp": (0.153, 0.060)},
    "orientation": {"downs": (10.772, 0.700), "susp": (1.644, 0.151), "isusp": (0.480, 0.107)},
}
UNITS = 36
SAMPLES = 10_000
CHAINS = 1_000
BURN_IN, THIN = 150, 15
INFERENCES = {"tap": ebm.TAP(), "susp": ebm.SusP(), "isusp": ebm.ISusP()}
# So many trials are sampled at the same time.
AT_ONCE = 10


def grid_edges(rows: int, columns: int) -> np.ndarray:
    """The mask of a rectangular grid."""
    number = np.arange(rows * columns).reshape(rows, columns)
    mask = np.zeros((rows * columns, rows * columns), bool)
    for one, two in ((number[1:], number[:-1]), (number[:, 1:], number[:, :-1])):
        mask[one.ravel(), two.ravel()] = mask[two.ravel(), one.ravel()] = True
    return mask


def truth(task: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Couplings and biases of the model that the data come from: eqs. (23) and (24)."""
    if task == "grid":
        return np.eye(UNITS) + 0.8 * grid_edges(6, 6), rng.uniform(-0.4, 0.4, UNITS)
    i = np.arange(UNITS)
    cosine = np.cos(2 * np.pi / UNITS * np.abs(i[:, None] - i[None, :]))
    return 10 * (np.eye(UNITS) + 1 / UNITS - 2 / UNITS * cosine), np.full(UNITS, 10.0)


def table(run: dict[str, Any], work: Any, deadline: Any) -> dict[str, Any]:
    """The errors of all methods in all trials of one task."""
    jax.config.update("jax_enable_x64", True)
    task, trials = run["task"], run["trials"]
    rngs = [np.random.default_rng([run["seed"], k]) for k in range(trials)]
    couplings, biases = (np.stack(x) for x in zip(*(truth(task, r) for r in rngs), strict=True))
    edges = grid_edges(6, 6) if task == "grid" else None
    one, two = jax.random.split(jax.random.key(run["seed"]))
    timed = fixed_points(couplings, biases, edges)
    print(timed, flush=True)
    began = time.perf_counter()
    data = draw(couplings, biases, edges, jax.random.split(one, trials))
    result: dict[str, Any] = {**run, **timed, "sampling_seconds": time.perf_counter() - began}
    print(f"{task}: sampled in {result['sampling_seconds']:.0f} s", flush=True)
    solutions = {}
    for name, inference in INFERENCES.items():
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of couplings that are not copositive.
            solutions[name], converged = solve(data, inference, edges)
        result[f"{name}_seconds"] = time.perf_counter() - began
        result[f"{name}_converged"] = int(converged.sum())
        seconds = result[f"{name}_seconds"]
        print(f"{name}: {seconds:.0f} s, {converged.sum()} converged", flush=True)
    began = time.perf_counter()
    solutions["monte_carlo"] = likelihood(data, solutions["isusp"], edges, two)
    result["monte_carlo_seconds"] = time.perf_counter() - began
    first, second = ebm.NNBM(couplings[0], biases[0], edges).pairs
    for name, (w, b) in solutions.items():
        apart = np.abs(w - couplings)
        total = apart[:, first, second].sum(1) + np.einsum("tii->t", apart)
        result[f"{name}_e_b"] = np.abs(b - biases).mean(1).round(6).tolist()
        result[f"{name}_e_w"] = (total / (UNITS + len(first))).round(6).tolist()
    return result


def draw(
    couplings: np.ndarray, biases: np.ndarray, edges: np.ndarray | None, keys: jax.Array
) -> np.ndarray:
    """Samples of each model by Gibbs sampling, in float32."""

    @jax.jit
    @jax.vmap
    def sampled(w: jax.Array, b: jax.Array, key: jax.Array) -> jax.Array:
        model = ebm.NNBM(w, b, edges)
        return ebm.sample(
            model, ebm.Gibbs(), SAMPLES, key=key, num_chains=CHAINS, burn_in=BURN_IN, thin=THIN
        ).x

    parts = [
        np.asarray(sampled(jnp.float32(couplings[k]), jnp.float32(biases[k]), keys[k]))
        for k in np.split(np.arange(len(keys)), range(AT_ONCE, len(keys), AT_ONCE))
    ]
    return np.concatenate(parts).astype(np.float64)


def solve(
    data: np.ndarray, inference: Any, edges: np.ndarray | None
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Couplings and biases that match the moments of each set of data, and whether they do."""
    parts = []
    for rows in data:
        match = ebm.learners.solve_moments(rows, inference, edges=edges)
        parts.append((match.model.couplings, match.model.bias, match.converged))
    w, b, converged = (np.stack([np.asarray(y) for y in x]) for x in zip(*parts, strict=True))
    return (w, b), converged


def fixed_points(
    couplings: np.ndarray, biases: np.ndarray, edges: np.ndarray | None
) -> dict[str, float]:
    """Milliseconds of one fixed point of I-SusP, and of those of all trials by one `vmap`."""

    @jax.jit
    def one(w: jax.Array, b: jax.Array) -> Any:
        beliefs = ebm.ISusP()(ebm.NNBM(w, b, edges))
        gap = jnp.diagonal(beliefs.covariance) - beliefs.variance
        return jnp.abs(gap).max(), beliefs.converged

    out = {}
    for name, fn, args in (
        ("one", one, (couplings[0], biases[0])),
        ("batch", jax.jit(jax.vmap(one)), (couplings, biases)),
    ):
        gap, converged = jax.block_until_ready(fn(*args))
        times = []
        for _ in range(20):
            began = time.perf_counter()
            jax.block_until_ready(fn(*args))
            times.append(time.perf_counter() - began)
        out[f"{name}_fixed_point_ms"] = 1e3 * statistics.median(times)
        out[f"{name}_inconsistency"] = float(gap.max())
        out[f"{name}_fixed_points_converged"] = int(converged.sum())
    return out


def likelihood(
    data: np.ndarray,
    start: tuple[np.ndarray, np.ndarray],
    edges: np.ndarray | None,
    key: jax.Array,
    steps: int = 60,
    sweeps: int = 10,
) -> tuple[np.ndarray, np.ndarray]:
    """Maximum likelihood by persistent Markov chains: Newton's steps of half length with the
    covariance of the statistics of the data in place of the model's, from the solution of I-SusP,
    whose last half is averaged.
    """
    n = data.shape[-1]
    first, second = ebm.NNBM(np.eye(n), np.zeros(n), edges).pairs

    def features(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x, -(x**2) / 2, -x[..., first] * x[..., second]], -1)

    def model(theta: jax.Array) -> ebm.NNBM:
        upper = jnp.zeros((n, n), theta.dtype).at[first, second].set(theta[2 * n :])
        couplings = upper + upper.T + jnp.diag(theta[n : 2 * n])
        return ebm.NNBM(couplings, theta[:n], edges)

    @jax.jit
    def information(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        f = features(rows)
        mean = f.mean(0)
        return mean, jnp.linalg.inv((f - mean).T @ (f - mean) / len(f))

    @jax.jit
    @jax.vmap
    def climbed(theta: jax.Array, mean: jax.Array, inverse: jax.Array, key: jax.Array) -> jax.Array:
        sampler = ebm.Gibbs()

        def step(carry: Any, key: jax.Array) -> Any:
            theta, state = carry
            own = model(theta.astype(jnp.float32))

            def sweep(state: Any, key: jax.Array) -> Any:
                state, _ = sampler.step(own, state, key=key)
                return state, features(state.units.x.astype(jnp.float64)).mean(0)

            state, means = jax.lax.scan(sweep, state, jax.random.split(key, sweeps))
            theta = theta + 0.5 * inverse @ (mean - means.mean(0))
            return (theta, state), theta

        one, two = jax.random.split(key)
        state = sampler.init(model(theta.astype(jnp.float32)), CHAINS, key=one)
        _, path = jax.lax.scan(step, (theta, state), jax.random.split(two, steps))
        return path[steps // 2 :].mean(0)

    w, b = start
    starts = np.concatenate([b, np.einsum("tii->ti", w), w[:, first, second]], 1)
    thetas = []
    for k in range(0, len(data), AT_ONCE):
        parts = zip(*map(information, data[k : k + AT_ONCE]), strict=True)
        means, inverses = (jnp.stack(x) for x in parts)
        keys = jax.random.split(jax.random.fold_in(key, k), len(means))
        thetas.append(
            np.asarray(climbed(jnp.asarray(starts[k : k + AT_ONCE]), means, inverses, keys))
        )
        print(f"Monte Carlo: {k + len(means)} trials", flush=True)
    theta = np.concatenate(thetas)
    found = np.zeros((len(theta), n, n))
    found[:, first, second] = found[:, second, first] = theta[:, 2 * n :]
    found[:, np.arange(n), np.arange(n)] = theta[:, n : 2 * n]
    return found, theta[:, :n]


SIZES = {
    "sparse": ((6, 6), (10, 10), (15, 15), (20, 20), (25, 40)),
    "dense": (36, 100, 200, 400),
}


def scaling(run: dict[str, Any], work: Any, deadline: Any) -> dict[str, Any]:
    """Median times of one inference after compilation, in float32."""
    rng = np.random.default_rng(run["seed"])
    rows = []
    for kind, sizes in SIZES.items():
        for size in sizes:
            if kind == "sparse":
                edges = grid_edges(*size)
                couplings = np.eye(len(edges)) + 0.4 * edges
            else:
                upper = np.triu(rng.normal(size=(size, size)) * 0.4 / np.sqrt(size), 1)
                couplings, edges = np.eye(size) + upper + upper.T, None
            n = len(couplings)
            bias = rng.uniform(-0.4, 0.4, n)
            model = ebm.NNBM(jnp.float32(couplings), jnp.float32(bias), edges)
            row: dict[str, Any] = {"kind": kind, "units": n, "edges": len(model.pairs[0])}
            for name, inference in {
                "tap": ebm.TAP(),
                "susp_solve": ebm.SusP(),
                "susp_propagation": ebm.SusP(method="propagation"),
                "isusp_solve": ebm.ISusP(),
                "isusp_propagation": ebm.ISusP(method="propagation"),
            }.items():
                beliefs = jax.block_until_ready(inference(model))
                times: list[float] = []
                while len(times) < run["repeats"] and sum(times) < 3:
                    began = time.perf_counter()
                    jax.block_until_ready(inference(model))
                    times.append(time.perf_counter() - began)
                row[f"{name}_ms"] = round(1e3 * statistics.median(times), 3)
                row[f"{name}_sweeps"] = int(beliefs.iterations)
                row[f"{name}_converged"] = bool(beliefs.converged)
            print(row, flush=True)
            rows.append(row)
    return {**run, "rows": rows}


def wine(run: dict[str, Any], work: Any, deadline: Any) -> dict[str, Any]:
    """Models of real data, each measurement in units of its standard deviation: how far the means
    and correlations of their samples are from those of the data.
    """
    from sklearn.datasets import load_wine

    jax.config.update("jax_enable_x64", True)
    stored: Any = load_wine()
    rows = stored.data / stored.data.std(0)
    n = rows.shape[1]
    models = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of couplings that are not copositive.
        for name, inference in INFERENCES.items():
            models[name] = ebm.learners.solve_moments(rows, inference)
        models["alone"] = ebm.learners.solve_moments(rows, ebm.TAP(), edges=np.zeros((n, n), bool))
    out: dict[str, Any] = {**run, "rows": len(rows), "names": list(stored.feature_names)}
    for name, match in models.items():
        # As much is added to the diagonal as copositivity needs.
        model = match.model.project()
        added = float(jnp.abs(model.diagonal - match.model.diagonal).max())
        key = jax.random.key(run["seed"])
        x = np.asarray(
            ebm.sample(
                model, ebm.Gibbs(), 20_000, key=key, num_chains=1000, burn_in=2000, thin=50
            ).x
        )
        apart = np.abs(np.corrcoef(x.T) - np.corrcoef(rows.T))
        out[name] = {
            "converged": bool(match.converged),
            "added": added,
            "mean_error": float(np.abs(x.mean(0) - rows.mean(0)).max()),
            "spread_error": float(np.abs(x.std(0) - 1).max()),
            "correlation_error": float(apart.max()),
            "correlation_error_mean": float(apart[np.triu_indices(n, 1)].mean()),
        }
        if name == "isusp":
            out["samples"] = x[: len(rows)].round(3).tolist()
            out["data"] = rows.round(3).tolist()
        print(name, out[name], flush=True)
    return out


TASKS = {"grid": table, "orientation": table, "scaling": scaling, "wine": wine}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", choices=TASKS, default="grid")
    parser.add_argument("--trials", type=int, default=50, help="of the two tables")
    parser.add_argument("--repeats", type=int, default=7, help="of timings")
    parser.add_argument("--seed", type=int, default=0)
    _slices.add_arguments(parser)


def main(args: argparse.Namespace) -> dict[str, Any]:
    def runs() -> Any:
        run = {"task": args.task, "method": "all", "seed": args.seed}
        for name in {"scaling": ("repeats",), "wine": ()}.get(args.task, ("trials",)):
            run[name] = getattr(args, name)
        yield run, functools.partial(TASKS[args.task], run)

    return drive(args, runs, show)


def show(run: dict[str, Any]) -> None:
    """A few lines about a run."""
    for name in (*INFERENCES, "monte_carlo"):
        if f"{name}_e_b" in run:
            b, w = (statistics.mean(run[f"{name}_{kind}"]) for kind in ("e_b", "e_w"))
            print(f"{run['task']} {name:12} e_b {b:.3f}, e_w {w:.3f}", flush=True)
