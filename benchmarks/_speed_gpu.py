"""Belief propagation and samplers: rows of `python -m benchmarks speed`."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ebmlearn as ebm


SWEEPS = 10
Row = dict[str, Any]


def rows(tasks: list[str], small: bool = False) -> Iterator[Row]:
    """The rows of some tasks, one after the other."""
    for task in tasks:
        try:
            yield from TASKS[task](small)
        except ModuleNotFoundError as error:
            yield {**_row(task, None, "", None), "why": str(error)}


def _row(name: str, value: float | None, unit: str, reach: Any, formula: str | None = None) -> Row:
    return {"name": name, "value": value, "unit": unit, "reach": reach, "bytes": formula}


def clock(run: Callable[[], Any], repeats: int = 7) -> float:
    """The median seconds of a function."""
    jax.block_until_ready(run())
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def slope(make: Callable[[int], Callable[[], Any]], number: int, repeats: int = 9) -> float:
    """The seconds of one round, from `number` and twice as many: what a call costs drops out."""
    few, many = make(number), make(2 * number)
    return (clock(many, repeats) - clock(few, repeats)) / number


def machine(visible: int, hidden: int, batch: int | None = None) -> ebm.RBM:
    keys = jax.random.split(jax.random.key(0), 3)
    shape = (visible,) if batch is None else (batch, visible)
    return ebm.RBM(
        0.1 * jax.random.normal(keys[0], (visible, hidden)),
        jax.random.normal(keys[1], shape),
        jax.random.normal(keys[2], (hidden,)),
    )


def _sizes(small: bool) -> tuple[int, int, int]:
    if small:
        return 40, 20, 8
    return (784, 500, 1000) if jax.default_backend() == "gpu" else (784, 500, 32)


def copy_seconds(size: int) -> float:
    """Seconds to read and write so many numbers once, from a loop of copies."""
    x = jnp.ones(size)

    def make(number: int) -> Callable[[], Any]:
        run = jax.jit(lambda x: jax.lax.fori_loop(0, number, lambda _, x: x + 1, x))
        return lambda: run(x)

    return slope(make, SWEEPS, 5)


FORMS: dict[str, tuple[dict[str, Any], int, Any]] = {
    "sum-product": ({}, 4, 0.88),
    "log-odds": ({"form": "log-odds"}, 4, 0.8),
    "max-product": ({"product": "max"}, 4, 0.8),
    "damped": ({"damping": 0.5}, 6, 0.8),
    "damped max-product, flooding": (
        {"product": "max", "damping": 0.5, "schedule": "flooding"},
        4,
        0.8,
    ),
}


def bandwidth(small: bool) -> Iterator[Row]:
    """BP by default settings, in parts of the bandwidth of a copy."""
    visible, hidden, batch = _sizes(small)
    size = visible * hidden * batch
    copy = copy_seconds(size)
    number = 40 if jax.default_backend() == "gpu" else SWEEPS
    shape = f"{visible}x{hidden}, {batch} instances"
    yield _row(f"copy of the messages of {shape}", 8e-9 * size / copy, "GB/s", None, "2 M")
    rbm = machine(visible, hidden, batch)
    for name, (settings, arrays, reach) in FORMS.items():

        def make(number: int, settings: Any = settings) -> Callable[[], Any]:
            bp = ebm.BP(number, **settings)
            return lambda: bp(rbm).log_odds

        seconds = slope(make, number, 5)
        share = arrays / 2 * copy / seconds
        formula = f"{arrays} M a sweep, M = 4 x visible x hidden x instances"
        yield _row(f"BP {name}, {shape}, share of a copy", share, "", f">= {reach}", formula)

    def mixed(number: int) -> Callable[[], Any]:
        bp = ebm.BP(number, product="mixed")
        return lambda: bp(rbm).log_odds

    milliseconds = 1e3 * slope(mixed, number, 5)
    yield _row(f"BP mixed-product, {shape}", milliseconds, "ms a sweep", None, "no messages")


def plain(rbm: ebm.RBM, number: int) -> Callable[[], Any]:
    """Belief propagation as one would write it in JAX, by softplus."""

    @jax.jit
    def run(w: jax.Array, b: jax.Array, c: jax.Array) -> Any:
        def message(field: jax.Array, incoming: jax.Array) -> jax.Array:
            t = field - incoming
            return jax.nn.softplus(w + t) - jax.nn.softplus(t)

        def sweep(_: Any, state: Any) -> Any:
            to_visible, visible, _ = state
            to_hidden = message(visible[:, None], to_visible)
            hidden = c + to_hidden.sum(0)
            to_visible = message(hidden[None, :], to_hidden)
            return to_visible, b + to_visible.sum(1), hidden

        return jax.lax.fori_loop(0, number, sweep, (jnp.zeros_like(w), b, c))

    return lambda: run(rbm.weights, rbm.visible_bias, rbm.hidden_bias)


def one(small: bool) -> Iterator[Row]:
    """A sweep of one instance."""
    visible, hidden, _ = _sizes(small)
    rbm = machine(visible, hidden)

    def make(number: int) -> Callable[[], Any]:
        bp = ebm.BP(number)
        return lambda: bp(rbm).log_odds

    shape = f"{visible}x{hidden}, one instance"
    formula = "4 M a sweep, M = 4 x visible x hidden"
    reach = "<= 10" if jax.default_backend() == "gpu" else None
    number = 1000 if jax.default_backend() == "gpu" else 50
    seconds = slope(make, number)
    yield _row(f"BP, {shape}", 1e6 * seconds, "us a sweep", reach, formula)
    other = slope(lambda number: plain(rbm, number), number)
    yield _row(f"plain JAX (softplus), {shape}", 1e6 * other, "us a sweep", None, formula)
    began = time.perf_counter()
    jax.clear_caches()
    jax.block_until_ready(ebm.BP(SWEEPS)(rbm).log_odds)
    yield _row(f"BP, {shape}, first call", time.perf_counter() - began, "s", None)
    from benchmarks.bp import ITERATIONS, pgmax

    seconds = clock(pgmax(rbm)[0]) / ITERATIONS
    yield _row(f"PGMax, {shape}", 1e6 * seconds, "us a sweep", None)


def chunks(small: bool) -> Iterator[Row]:
    """PMP by default against its best chunk."""
    on_gpu = jax.default_backend() == "gpu"
    few, sweeps = (200, 200) if on_gpu else (16, 5)
    tried = (10, 50, 100, 200) if on_gpu else (1, 2, 4, 8, 16)
    for visible, hidden, number in ((*_sizes(small)[:2], few), (196, 100, 2 * few)):
        rbm = machine(visible, hidden)

        def seconds(chunk: int | None, rbm: Any = rbm, number: int = number) -> float:
            sampler = ebm.PMP(sweeps, chunk=chunk)
            return clock(lambda: ebm.sample(rbm, sampler, number, key=0, num_chains=number))

        times = {chunk: seconds(chunk) for chunk in tried if chunk <= number}
        best = min(times, key=lambda c: times[c])
        ratio = seconds(None) / times[best]
        name = f"PMP {visible}x{hidden}, {number} samples, by default / chunk={best}"
        yield _row(name, ratio, "x", "<= 1.15")


def gibbs(small: bool) -> Iterator[Row]:
    """Gibbs sweeps against their two products of matrices."""
    visible, hidden, _ = _sizes(small)
    rbm = ebm.RBM.init(visible, hidden, key=0, scale=0.1)
    sizes = (64, 10_000) if jax.default_backend() == "gpu" else (64,)
    for chains in (6,) if small else sizes:
        sweeps = 400 if chains < 1000 else 40
        v = jax.random.bernoulli(jax.random.key(1), 0.5, (chains, visible)).astype(jnp.float32)

        def products(number: int, v: Any = v) -> Callable[[], Any]:
            def step(_: Any, x: jax.Array, w: jax.Array) -> jax.Array:
                # The states stay what they were: numbers that fade away are slow to multiply.
                return v + ((x @ w) @ w.T) * 1e-9

            run = jax.jit(lambda w, v: jax.lax.fori_loop(0, number, lambda i, x: step(i, x, w), v))
            return lambda: run(rbm.weights, v)

        def ours(number: int, chains: int = chains) -> Callable[[], Any]:
            def run() -> Any:
                return ebm.sample(
                    rbm, ebm.Gibbs(), chains, key=0, num_chains=chains, burn_in=number
                )

            return run

        def stepped(number: int, chains: int = chains) -> Callable[[], Any]:
            sampler = ebm.Gibbs()
            state = sampler.init(rbm, chains, key=1)

            @jax.jit
            def run(rbm: Any, state: Any, key: Any) -> Any:
                def step(i: Any, s: Any) -> Any:
                    return sampler.step(rbm, s, key=jax.random.fold_in(key, i))[0]

                return jax.lax.fori_loop(0, number, step, state)

            return lambda: run(rbm, state, jax.random.key(2))

        bare = slope(products, sweeps)
        shape = f"{visible}x{hidden}, {chains} chains"
        yield _row(f"the two products of a sweep, {shape}", 1e6 * bare, "us", None)
        for name, make in (("sample", ours), ("a loop of Gibbs().step", stepped)):
            ratio = slope(make, sweeps) / bare
            yield _row(f"Gibbs by {name} / products, {shape}", ratio, "x", "<= 1.4")
        if chains == 64:
            yield from _others(rbm, np.asarray(v), bare, shape)


def _others(rbm: ebm.RBM, v: np.ndarray, bare: float, shape: str) -> Iterator[Row]:
    from benchmarks.gibbs import scikit_learn, thrml

    for name, make, number in (("scikit-learn", scikit_learn, 20), ("thrml", thrml, 20)):
        try:
            seconds = clock(make(rbm, v.astype(np.int64), number), 3) / number
        except ModuleNotFoundError as error:
            yield {**_row(f"Gibbs by {name}, {shape}", None, "x", None), "why": str(error)}
            continue
        yield _row(f"Gibbs by {name} / products, {shape}", seconds / bare, "x", None)


def pcd(small: bool) -> Iterator[Row]:
    """A step of persistent contrastive divergence, and one of rbms."""
    visible, hidden, _ = _sizes(small)
    rows = 8 if small else 500
    rbm = ebm.RBM.init(visible, hidden, key=0, scale=0.01)
    data = jax.random.bernoulli(jax.random.key(1), 0.3, (rows, visible)).astype(jnp.int32)
    learner, optimizer = ebm.SAP(ebm.Gibbs(), num_chains=rows), optax.sgd(0.01)
    state = learner.init(rbm, key=2)

    def make(number: int) -> Callable[[], Any]:
        @jax.jit
        def run(rbm: Any, state: Any, data: jax.Array, key: Any) -> Any:
            def step(carry: Any, key: Any) -> Any:
                rbm, state, memory = carry
                gradient, state, _ = learner.step(rbm, state, data, key=key, epoch=0)
                updates, memory = optimizer.update(gradient, memory, rbm)
                return (optax.apply_updates(rbm, updates), state, memory), None

            start = rbm, state, optimizer.init(rbm)
            return jax.lax.scan(step, start, jax.random.split(key, number))[0]

        return lambda: run(rbm, state, data, jax.random.key(3))

    seconds = slope(make, 100)
    shape = f"{visible}x{hidden}, batch {rows}"
    yield _row(f"PCD-1 step, {shape}", 1e6 * seconds, "us", None)
    reach = ">= 12" if jax.default_backend() == "gpu" else None
    yield _row(f"rbms / ebmlearn, PCD-1 step, {shape}", _rbms(data, hidden) / seconds, "x", reach)


def _rbms(data: jax.Array, hidden: int) -> float:
    """Seconds of a step of rbms, without centring, on the same device."""
    import torch  # pyright: ignore
    from rbms.bernoulli_bernoulli.classes import BBRBM  # pyright: ignore
    from rbms.training.pcd import fit_batch_pcd  # pyright: ignore

    on_gpu = jax.default_backend() == "gpu"
    device = torch.device("cuda" if on_gpu else "cpu")
    # As XLA does: products of matrices with factors of 10 bits.
    torch.backends.cuda.matmul.allow_tf32 = True
    rows, visible = data.shape
    v = torch.tensor(np.asarray(data), dtype=torch.float32, device=device)
    parts = 0.01 * torch.randn(visible, hidden), torch.zeros(visible), torch.zeros(hidden)
    weights, b, c = (x.to(device) for x in parts)
    model = BBRBM(weight_matrix=weights, vbias=b, hbias=c)
    for x in model.parameters():
        x.grad = torch.zeros_like(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, maximize=True)
    batch = v, torch.ones(rows, 1, device=device)
    chains = model.init_chains(rows)

    def run(number: int) -> float:
        nonlocal chains
        began = time.perf_counter()
        for _ in range(number):
            chains, _ = fit_batch_pcd(batch, chains, model, 1, 1.0, centered=False)
            optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    number = 200 if on_gpu else 5
    run(number)
    return statistics.median(run(number) for _ in range(5)) / number


def eager(small: bool) -> Iterator[Row]:
    """What a call of BP costs beside its computation."""
    from ebmlearn.inference._bp import settings_of, solved

    rbm, bp = machine(8, 4), ebm.BP(SWEEPS)
    problem, settings = rbm.problem(None, None), settings_of(bp, rbm)
    leaves, structure = jax.tree.flatten((settings, problem))
    flat = [jnp.asarray(x) for x in leaves]
    bare = jax.jit(lambda *x: solved(*jax.tree.unflatten(structure, x))[:4])
    call, alone = clock(lambda: bp(rbm).log_odds, 301), clock(lambda: bare(*flat), 301)
    reach = "<= 0.3" if jax.default_backend() == "cpu" else None
    yield _row("BP of 8x4 units, a call less its program", 1e3 * (call - alone), "ms", reach)


TASKS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "bandwidth": bandwidth,
    "one": one,
    "chunks": chunks,
    "gibbs": gibbs,
    "pcd": pcd,
    "eager": eager,
}
