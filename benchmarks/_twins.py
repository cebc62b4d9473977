"""Ising models by Gibbs with gradients, chains kept and chains begun anew, trained side by side.

A flip is a few tiny operations, so that on a GPU starting them takes all the time: two models in
one program take as long as one.
"""

import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import ebmlearn as ebm

from ._ising import free_spins
from ._slices import Deadline


METHODS = ("gwg", "gwg-reset")
# Updates between two looks at the clock.
AT_ONCE = 10


def trained(
    run: dict[str, Any],
    train: np.ndarray,
    rate: float,
    num_chains: int,
    batch_size: int,
    file: Path | None,
    deadline: Deadline,
) -> dict[str, tuple[ebm.BoltzmannMachine, int]] | None:
    """Both models and how many updates they had, or None if the time was over: `file` then tells
    how far they are. Keys and batches are those of `ebm.fit`, so that each is what training it
    alone would give.
    """
    units = train.shape[1]
    learner = ebm.SAP(ebm.GibbsWithGradients(units), num_chains=num_chains, steps=run["sweeps"])
    optimizer = optax.adam(rate)
    rows = jnp.asarray(train, jnp.uint8)
    each = len(train) // batch_size
    updates = each * -(-run["updates"] // each)
    order_key, step_key, init_key = jax.random.split(jax.random.key(run["seed"]), 3)
    build, free = free_spins(units)

    def begin() -> Any:
        return free, optimizer.init(free), learner.init(build(free), key=init_key)

    @eqx.filter_jit
    def update(state: Any, rows: jax.Array, order: jax.Array, step: jax.Array) -> Any:
        chosen = jax.lax.dynamic_slice(order, (step % each * batch_size,), (batch_size,))
        key = jax.random.split(jax.random.fold_in(step_key, step))[1]

        def one(state: Any, reset: jax.Array) -> Any:
            free, moments, chains = state
            model, pull = jax.vjp(build, free)
            rest, own = jax.random.split(key)
            new = learner.init(model, key=own)
            chains = jax.tree.map(lambda a, b: jnp.where(reset, a, b), new, chains)
            gradient, chains, _ = learner.step(
                model, chains, rows[chosen], key=jnp.where(reset, rest, key), epoch=0
            )
            # The gradient of an edge stands whole at both its places.
            halved = eqx.tree_at(lambda m: m.couplings, gradient, gradient.couplings / 2)
            (change,) = pull(halved)
            # Optax mixes dtypes, which a test forbids.
            with jax.numpy_dtype_promotion("standard"):
                change, moments = optimizer.update(change, moments)
            return optax.apply_updates(free, change), moments, chains

        return jax.vmap(one)(state, jnp.array([False, True]))

    state = jax.tree.map(lambda x: jnp.stack([x, x]), begin())
    done = 0
    leaves, shape = jax.tree.flatten(state)
    if file is not None and file.exists():
        with np.load(file) as kept:
            done, *leaves = (kept[name] for name in kept.files)
            done, leaves = int(done), list(map(jnp.asarray, leaves))
        state = jax.tree.unflatten(shape, leaves)
    while done < updates:
        key = jax.random.fold_in(order_key, done // each)
        order = jax.random.permutation(key, len(train)).astype(jnp.int32)
        end = min(done + AT_ONCE, (done // each + 1) * each)
        for step in range(done, end):
            state = update(state, rows, order, jnp.asarray(step, jnp.int32))
        jax.block_until_ready(state)
        done = end
        over = deadline() and done < updates
        if file is not None and (over or done == updates or done % (10 * AT_ONCE) == 0):
            _save(file, done, jax.tree.leaves(state))
        if over:
            return None
    models = [build(jax.tree.map(lambda x, k=k: x[k], state[0])) for k in range(len(METHODS))]
    return {name: (model, done) for name, model in zip(METHODS, models, strict=True)}


def _save(file: Path, done: int, leaves: list[jax.Array]) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".part")
    with fresh.open("wb") as out:
        np.savez(out, np.asarray(done), *map(np.asarray, leaves))
    os.replace(fresh, file)
