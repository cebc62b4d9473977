"""What `fit` compiles serves again: other numbers of an optimiser or a learner compile nothing."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ebmlearn as ebm
from ebmlearn.training._program import Program


RATES = np.geomspace(1e-3, 0.3, 20).tolist()
ROWS = np.random.default_rng(0).integers(0, 2, (20, 4)).astype(np.float32)
compiled: list[str] = []


def listen(event: str, duration_secs: float, **about: Any) -> None:
    if event.endswith("backend_compile_duration"):
        compiled.append(about.get("fun_name", "?"))


jax.monitoring.register_event_duration_secs_listener(listen)


def fit(optimizer, learner=None, seed=0, epochs=2, **options):
    learner = ebm.MLE(ebm.MeanField(2)) if learner is None else learner
    return ebm.fit(
        ebm.RBM.init(4, 3, key=0, scale=1.0),
        learner,
        ROWS,
        optimizer=optimizer,
        epochs=epochs,
        batch_size=10,
        key=seed,
        progress=False,
        **options,
    )


def compilations(run: Callable[[], object]) -> list[str]:
    """The programs that were compiled meanwhile."""
    before = len(compiled)
    run()
    return compiled[before:]


def clipped(rate):
    return optax.chain(optax.clip_by_global_norm(10 * rate), optax.adam(rate))


def cosine(rate):
    return optax.adam(optax.cosine_decay_schedule(rate, int(1000 * rate) + 5, alpha=rate))


def warm(rate):
    steps = int(100 * rate) + 1
    return optax.sgd(optax.warmup_cosine_decay_schedule(0.0, rate, steps, steps + 9, rate / 10))


def injected(rate):
    return optax.inject_hyperparams(optax.adam)(learning_rate=rate)


OPTIMIZERS = {
    "adam": optax.adam,
    "momentum": lambda rate: optax.sgd(rate, momentum=1 - rate, nesterov=True),
    "adamw": lambda rate: optax.adamw(rate, b1=1 - rate, weight_decay=rate),
    "clipped": clipped,
    "cosine": cosine,
    "warm": warm,
    "injected": injected,
    "rmsprop": lambda rate: optax.rmsprop(rate, decay=1 - rate, eps=1e-7 * rate),
    "piecewise": lambda rate: optax.adam(optax.piecewise_constant_schedule(rate, {3: 1 - rate})),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_rates_and_seeds_compile_once(name):
    make = OPTIMIZERS[name]
    fit(make(0.05), seed=9)
    results = []

    def run():
        results.extend(fit(make(rate), seed=k) for k, rate in enumerate(RATES))

    assert compilations(run) == []
    # They are twenty different runs all the same.
    assert len({float(x.last.weights.sum()) for x in results}) == 20


@pytest.mark.parametrize("make", [optax.adam, injected])
@jax.numpy_dtype_promotion("standard")
def test_optax_alone_is_traced_anew_for_each_rate(make):
    """The reason for `Program`: also with hyper-parameters that Optax keeps in the state."""
    traced = []
    tree = jnp.ones(3)

    @functools.partial(jax.jit, static_argnums=0)
    def plain(update, state):
        traced.append("plain")
        return update(tree, state)[0]

    @jax.jit
    def ours(program, state):
        traced.append("ours")
        return program(tree, state)[0]

    for rate in (0.1, 0.2):
        optimizer = make(rate)
        state = optimizer.init(tree)
        np.testing.assert_allclose(
            ours(Program(optimizer.update, tree, state), state), plain(optimizer.update, state)
        )
    assert sorted(traced) == ["ours", "plain", "plain"]


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")
def test_is_the_optimizer_itself():
    """Numbers as arguments give what Optax gives."""
    rng = np.random.default_rng(1)
    tree = {"a": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32), "b": jnp.ones(4)}
    gradient = jax.tree.map(lambda x: x**2 - 0.3, tree)
    for make in OPTIMIZERS.values():
        for rate in (0.3, 0.01):
            optimizer = make(rate)
            state = Program(optimizer.init, tree)(tree)
            expected = optimizer.init(tree)
            program = Program(optimizer.update, tree, state, tree)
            for _ in range(5):
                updates, state = program(gradient, state, tree)
                wanted, expected = optimizer.update(gradient, expected, tree)
                pairs = zip(jax.tree.leaves(updates), jax.tree.leaves(wanted), strict=True)
                for a, b in pairs:
                    np.testing.assert_allclose(a, b, rtol=1e-6)
            assert jax.tree.structure(state) == jax.tree.structure(expected)


def test_programs_differ_where_operations_do():
    tree = jnp.ones(3)

    def code(function):
        return Program(function, tree)._code

    assert code(lambda x: 2 * x) == code(lambda x: 3 * x)
    assert code(lambda x: 2 * x) != code(lambda x: 2 + x)
    assert code(lambda x: x**2) != code(lambda x: x**3)
    assert code(lambda x: x * jnp.array([1.0, 2.0, 3.0])) == code(
        lambda x: x * jnp.array([3.0, 2.0, 1.0])
    )

    # Numbers of loops and branches are compared, and so nothing is confused.
    def looped(a):
        return lambda x: jax.lax.fori_loop(0, 3, lambda _, y: a * y, x)

    assert code(looped(2.0)) == code(looped(2.0))
    assert code(looped(2.0)) != code(looped(3.0))
    np.testing.assert_array_equal(Program(looped(3.0), tree)(tree), 27 * tree)


LEARNERS = {
    "weight_decay": lambda x: ebm.CD(1, weight_decay=x),
    "ladder": lambda x: ebm.TransSAP([x, 0.7, 1.0], every=2, num_chains=4),
    "tempering": lambda x: ebm.SAP(ebm.ParallelTempering([x, 0.7, 1.0]), num_chains=4),
    "renewal": lambda x: ebm.PMPLearner(ebm.PMP(3, renewal=x), num_chains=4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_numbers_of_learners_compile_nothing(name):
    make = LEARNERS[name]
    fit(optax.sgd(0.1), make(0.2), average=0.9)
    one, other = [], []

    def run():
        one.append(fit(optax.sgd(0.1), make(0.05), average=0.5, epochs=20))
        other.append(fit(optax.sgd(0.1), make(0.65), average=0.5, epochs=20))

    assert [x for x in compilations(run) if "advance" in x] == []
    assert float(one[0].last.weights.sum()) != float(other[0].last.weights.sum())


@pytest.mark.slow
def test_query_training_compiles_once():
    learner = ebm.QueryTraining(ebm.queries.RandomTargets(0.5), iterations=4)
    model = ebm.QueryModel(ebm.RBM.init(4, 3, key=0), iterations=4)

    def run(rate):
        ebm.fit(
            model,
            learner,
            ROWS,
            optimizer=optax.adam(rate),
            epochs=1,
            batch_size=10,
            key=0,
            validation=ROWS,
            progress=False,
        )

    run(0.1)
    assert compilations(lambda: run(0.2)) == []
