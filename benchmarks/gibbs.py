"""Block Gibbs sampling of an RBM, against scikit-learn, thrml and the bare matrix products and
random numbers.

All in one run, medians of rounds in which each takes its turn. thrml is a package of its own:
`uv run --group benchmarks python -m benchmarks gibbs`.
"""

import argparse
import importlib.metadata
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ebmlearn as ebm


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--visible", type=int, default=784)
    parser.add_argument("--hidden", type=int, default=500)
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--sweeps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)


def ours(rbm: ebm.RBM, start: np.ndarray, sweeps: int) -> Callable[[], Any]:
    sampler = ebm.Gibbs()
    units = ebm.Layers(jnp.asarray(start, jnp.int32), None)
    state = sampler.init(rbm, len(start), key=jax.random.key(1), start=units)

    @jax.jit
    def run(rbm: ebm.RBM, state: Any, key: jax.Array) -> Any:
        def step(i: Any, state: Any) -> Any:
            return sampler.step(rbm, state, key=jax.random.fold_in(key, i))[0]

        return jax.lax.fori_loop(0, sweeps, step, state)

    return lambda: jax.block_until_ready(run(rbm, state, jax.random.key(2)))


def products(rbm: ebm.RBM, start: np.ndarray, sweeps: int) -> Callable[[], Any]:
    """The matrix products of the sweeps alone, whatever comes out."""
    v = jnp.asarray(start, rbm.weights.dtype)

    @jax.jit
    def run(weights: jax.Array, v: jax.Array) -> Any:
        def step(i: Any, x: jax.Array) -> jax.Array:
            # The states stay what they were: numbers that fade away would be slow to multiply.
            return v + ((x @ weights) @ weights.T) * 1e-9

        return jax.lax.fori_loop(0, sweeps, step, v)

    return lambda: jax.block_until_ready(run(rbm.weights, v))


def numbers(rbm: ebm.RBM, start: np.ndarray, sweeps: int) -> Callable[[], Any]:
    """The random numbers of the sweeps alone, by `jax.random.uniform`."""
    sizes = (len(start), rbm.num_hidden), start.shape

    @jax.jit
    def run(key: jax.Array) -> Any:
        def step(i: Any, total: jax.Array) -> jax.Array:
            keys = jax.random.split(jax.random.fold_in(key, i))
            drawn = [jax.random.uniform(keys[k], sizes[k]).sum() for k in range(2)]
            return total + drawn[0] + drawn[1]

        return jax.lax.fori_loop(0, sweeps, step, jnp.zeros(()))

    return lambda: jax.block_until_ready(run(jax.random.key(2)))


def scikit_learn(rbm: ebm.RBM, start: np.ndarray, sweeps: int) -> Callable[[], Any]:
    from sklearn.neural_network import BernoulliRBM

    other = BernoulliRBM(rbm.num_hidden, random_state=0)
    other.components_ = np.asarray(rbm.weights).T.copy()
    other.intercept_visible_ = np.asarray(rbm.visible_bias)
    other.intercept_hidden_ = np.asarray(rbm.hidden_bias)
    other._n_features_out = rbm.num_hidden
    first = start.astype(np.float32)

    def run() -> Any:
        v = first
        for _ in range(sweeps):
            v = other.gibbs(v)
        return v

    return run


def thrml(rbm: ebm.RBM, start: np.ndarray, sweeps: int) -> Callable[[], Any]:
    from thrml import Block, sample_states, SamplingSchedule, SpinNode  # pyright: ignore
    from thrml.models import IsingEBM, IsingSamplingProgram  # pyright: ignore

    couplings, visible_field, hidden_field = (np.asarray(x) for x in rbm.to_spins())
    visible = [SpinNode() for _ in range(rbm.num_visible)]
    hidden = [SpinNode() for _ in range(rbm.num_hidden)]
    edges: Any = [(v, h) for v in visible for h in hidden]
    model = IsingEBM(
        [*visible, *hidden],
        edges,
        jnp.asarray(np.concatenate([visible_field, hidden_field])),
        jnp.asarray(couplings.reshape(-1)),
        jnp.asarray(1.0),
    )
    blocks: Any = [Block(hidden), Block(visible)]
    program = IsingSamplingProgram(model, blocks, clamped_blocks=[])
    schedule = SamplingSchedule(n_warmup=sweeps - 1, n_samples=1, steps_per_sample=1)
    v = jnp.asarray(start, bool)
    h = jnp.zeros((len(start), rbm.num_hidden), bool)

    @jax.jit
    def run(keys: jax.Array, h: jax.Array, v: jax.Array) -> Any:
        def chain(key: jax.Array, h: jax.Array, v: jax.Array) -> Any:
            return sample_states(key, program, schedule, [h, v], [], [Block(visible)])

        return jax.vmap(chain)(keys, h, v)

    keys = jax.random.split(jax.random.key(2), len(start))
    return lambda: jax.block_until_ready(run(keys, h, v))


def main(args: argparse.Namespace) -> dict[str, Any]:
    key = jax.random.key(args.seed)
    rbm = ebm.RBM.init(args.visible, args.hidden, key=key, scale=0.1)
    start = np.random.default_rng(args.seed).integers(0, 2, (args.chains, args.visible))
    names = {
        "ebmlearn": ours,
        "scikit-learn": scikit_learn,
        "products": products,
        "numbers": numbers,
        "thrml": thrml,
    }
    runs = {}
    for name, make in names.items():
        try:
            runs[name] = make(rbm, start, args.sweeps)
        except ModuleNotFoundError as error:
            print(f"{name} is not installed: {error}")
            continue
        runs[name]()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for k in range(args.repeats):
        for name, run in runs.items():
            if name == "thrml" and k >= 3:
                continue  # It takes seconds: three rounds will do.
            # Threads of the one before may still be waiting for work, and take a core each.
            time.sleep(0.2)
            run()
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    ms = {name: 1000 * statistics.median(each) for name, each in times.items()}
    for name, value in ms.items():
        print(f"{name:13} {value / ms['ebmlearn']:7.2f} times the time of ebmlearn")
    versions = {
        name: importlib.metadata.version(name) for name in ("scikit-learn", "thrml") if name in runs
    }
    return {"ms": ms, "others": versions}
