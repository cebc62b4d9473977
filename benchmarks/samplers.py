"""Samplers of binary units: effective draws a second and for each evaluation of the energy.

An Ising model on a square lattice that closes on itself, and an RBM of stochastically binarised
MNIST, which is trained first. The settings of DMALA and PAS are those of a few whose acceptance is
closest to the best one known (0.574), by short runs. Effective draws are the fewest of those of two
statistics: the energy, and the number of units that differ from a random configuration.

An evaluation is a pass over all weights: of the energy, of its gradient, or a sweep of Gibbs
sampling; a flip of Gibbs with gradients in the Ising model needs one row of the weights, and counts
as one all the same.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import datasets
from ebmlearn.factors import inner

from . import _ising


STEP_SIZES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
RADII = (1, 2, 4, 8, 16, 32, 64)
BEST = 0.574


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--side", type=int, default=50, help="of the lattice")
    parser.add_argument("--coupling", type=float, default=0.3, help="of neighbouring spins")
    parser.add_argument("--hidden", type=int, default=500, help="hidden units of the RBM")
    parser.add_argument("--rows", type=int, default=50_000, help="images to train it on")
    parser.add_argument("--epochs", type=int, default=10, help="how long it is trained")
    parser.add_argument("--flips", type=int, default=100, help="of a step of Gibbs with gradients")
    parser.add_argument("--replicas", type=int, default=10, help="of parallel tempering")
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5000, help="of each chain that count")
    parser.add_argument("--burn-in", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--small", action="store_true", help="a small lattice and RBM, short chains: a trial"
    )


def trained(hidden: int, rows: int, epochs: int, seed: int) -> ebm.RBM:
    """An RBM of MNIST."""
    grey = datasets.mnist(threshold=None).train.x[:rows]
    bits = np.random.default_rng(seed).random(grey.shape) < grey.astype(np.float32) / 255
    x = bits.astype(np.uint8)
    start = ebm.RBM.init(x.shape[1], hidden, key=seed)
    start = start.with_unary((ebm.estimate.base_rate(x), start.hidden_bias))
    learner = ebm.PCD(num_chains=100, steps=5)
    fitted = ebm.fit(
        start, learner, x, optimizer=optax.adam(1e-3), epochs=epochs, batch_size=100, key=seed,
        progress=False,
    )  # fmt: skip
    return fitted.last


def acceptance(
    model: Any, sampler: ebm.samplers.AbstractSampler, start: Any, steps: int, seed: int
) -> float:
    chains = jax.tree.leaves(start)[0].shape[0]
    options = {"key": seed, "num_chains": chains, "start": start, "burn_in": steps}
    _, info = ebm.sample_with_info(model, sampler, steps * chains, **options)
    return float(np.asarray(info.accepted).mean())


def tuned(
    model: Any, makers: list[ebm.samplers.AbstractSampler], start: Any, steps: int, seed: int
) -> Any:
    """The sampler whose acceptance is closest to the best one."""
    rates = [acceptance(model, sampler, start, steps, seed) for sampler in makers]
    best = int(np.argmin(np.abs(np.array(rates) - BEST)))
    return makers[best], rates[best]


def effective(
    model: Any, sampler: ebm.samplers.AbstractSampler, start: Any, args: Any
) -> dict[str, Any]:
    """Draws worth independent ones, and the time of the steps without compilation."""
    chains = args.chains
    far = jax.tree.map(
        lambda x: jnp.asarray(np.random.default_rng(1).integers(0, 2, x.shape[-1])), start
    )

    @jax.jit
    def run(state: Any, key: jax.Array) -> Any:
        def one(state: Any, key: jax.Array) -> Any:
            state, info = sampler.step(model, state, key=key)
            pairs = zip(jax.tree.leaves(state.units), jax.tree.leaves(far), strict=True)
            distance = sum((x != y).sum(-1) for x, y in pairs)
            share = info.accepted.mean() if hasattr(info, "accepted") else jnp.nan
            return state, (info.energy, distance, share)

        return jax.lax.scan(one, state, jax.random.split(key, args.steps))

    state = sampler.init(model, chains, key=args.seed, start=start)
    state, _ = jax.block_until_ready(run(state, jax.random.key(2)))  # Compiles, and burns in.
    began = time.perf_counter()
    _, (energy, distance, share) = jax.block_until_ready(run(state, jax.random.key(3)))
    seconds = time.perf_counter() - began
    times = [float(ebm.samplers.autocorrelation_time(x)) for x in (energy, distance)]
    return {
        "steps": args.steps * chains,
        "seconds": seconds,
        "autocorrelation": {"energy": times[0], "distance": times[1]},
        "effective": args.steps * chains / max(times),
        "accepted": float(share.mean()),
    }


def compared(name: str, model: Any, args: Any) -> list[dict[str, Any]]:
    """All samplers on a model, from chains that parallel tempering has brought to it."""
    ladder = ebm.ParallelTempering(np.linspace(0.5, 1, args.replicas))
    warm = ebm.sample(
        model, ladder, args.chains, key=args.seed, num_chains=args.chains, burn_in=args.burn_in
    )
    pilot = max(args.burn_in // 10, 20)
    # A step size that is an array compiles nothing anew.
    dmala, _ = tuned(model, [ebm.DMALA(jnp.asarray(x)) for x in STEP_SIZES], warm, pilot, args.seed)
    radii = RADII[::2] if args.small else RADII
    pas, _ = tuned(model, [ebm.PAS(x) for x in radii], warm, pilot, args.seed)
    # Evaluations in a step: those of the energy at both ends of a proposal, and of its gradient.
    samplers = {
        "Gibbs": (ebm.Gibbs(), 1),
        "Gibbs, metropolised": (ebm.Gibbs(metropolised=True), 1),
        f"GibbsWithGradients({args.flips})": (ebm.GibbsWithGradients(args.flips), args.flips),
        f"DMALA({float(dmala.step_size):g})": (dmala, 4),
        f"PAS({pas.radius})": (pas, 4),
        f"ParallelTempering({args.replicas} betas)": (ladder, 2 * args.replicas),
    }
    if not inner(model.factors()):
        samplers.pop("Gibbs, metropolised")  # Layers are drawn at once: it is the same.
    rows = []
    for label, (sampler, evaluations) in samplers.items():
        found = effective(model, sampler, warm, args)
        row = {"model": name, "sampler": label, "evaluations": evaluations, **found}
        row["per_second"] = row["effective"] / row["seconds"]
        row["per_evaluation"] = row["effective"] / (row["steps"] * evaluations)
        rows.append(row)
        print(
            f"{name:16} {label:30} {row['per_second']:12.1f} a second"
            f" {row['per_evaluation']:10.2e} an evaluation, accepted {row['accepted']:.2f}"
        )
    return rows


def main(args: argparse.Namespace) -> dict[str, Any]:
    if args.small:
        small = {"side": 10, "hidden": 30, "rows": 2000, "epochs": 2, "flips": 20, "replicas": 4}
        vars(args).update(small | {"chains": 16, "steps": 300, "burn_in": 100})
    lattice = _ising.spins(_ising.torus(args.side, args.coupling))
    rows = compared(f"Ising {args.side}x{args.side}", lattice, args)
    rbm = trained(args.hidden, args.rows, args.epochs, args.seed)
    rows += compared(f"RBM {rbm.num_visible}x{rbm.num_hidden}", rbm, args)
    return {"rows": rows}
