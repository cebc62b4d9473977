"""Simulation-based calibration of the exchange kernel (Talts et al. 2018).

Parameters are drawn from the prior and data from the model that they make. If a kernel samples the
posterior, the rank of the true parameters among its draws is uniform.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
from scipy.stats import chi2

import ebmlearn as ebm
from ebmlearn.numpyro import EnergyDistribution, ExchangeKernel


SITES = ("coupling", "field")
BINS = 20
PRIOR = 0.5


def ising(values: dict[str, Any], spins: int) -> ebm.BoltzmannMachine:
    """A ring of spins in a field."""
    ring = jnp.roll(jnp.eye(spins), 1, 0) + jnp.roll(jnp.eye(spins), -1, 0)
    return ebm.BoltzmannMachine.from_spins(
        values["coupling"] * ring, values["field"] * jnp.ones(spins)
    )


def model(data: jax.Array) -> None:
    values = {name: numpyro.sample(name, dist.Normal(0.0, PRIOR)) for name in SITES}
    with numpyro.plate("rows", len(data)):
        d = EnergyDistribution(ising(values, data.shape[-1]), "exchange")
        numpyro.sample("x", d, obs=data)


def ranks(kernel: ExchangeKernel, args: argparse.Namespace) -> dict[str, np.ndarray]:
    """The rank of the true parameters among the draws, for each run."""

    def one(key: jax.Array) -> dict[str, jax.Array]:
        keys = jax.random.split(key, 4)
        true = {
            name: PRIOR * jax.random.normal(k, ()) for name, k in zip(SITES, keys, strict=False)
        }
        machine = ising(true, args.spins)
        states = EnergyDistribution(machine, "exact").enumerate_support()
        scores = EnergyDistribution(machine, "exact").log_prob(states)
        data = states[jax.random.categorical(keys[2], scores, shape=(args.rows,))]
        mcmc = MCMC(
            kernel,
            num_warmup=args.warmup,
            num_samples=args.draws * args.thin,
            thinning=args.thin,
            progress_bar=False,
        )
        mcmc.run(keys[3], data)
        return {name: (x < true[name]).sum() for name, x in mcmc.get_samples().items()}

    found = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(args.seed), args.runs))
    return {name: np.asarray(x) for name, x in found.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--spins", type=int, default=5)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--draws", type=int, default=99)
    parser.add_argument("--thin", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20, help="of double Metropolis-Hastings")
    parser.add_argument("--seed", type=int, default=0)


def main(args: argparse.Namespace) -> dict[str, Any]:
    if (args.draws + 1) % BINS:
        raise ValueError(f"`--draws` must be one less than a multiple of {BINS}.")
    kernels = {
        "exchange": ExchangeKernel(model),
        f"double, {args.steps} sweeps": ExchangeKernel(model, ebm.Gibbs(), args.steps),
    }
    rows = []
    for name, kernel in kernels.items():
        for site, found in ranks(kernel, args).items():
            counts = np.bincount(found * BINS // (args.draws + 1), minlength=BINS)
            expected = args.runs / BINS
            statistic = float(((counts - expected) ** 2 / expected).sum())
            p = float(chi2.sf(statistic, BINS - 1))
            rows.append({
                "kernel": name, "site": site, "counts": counts.tolist(), "chi2": statistic,
                "degrees": BINS - 1, "p": p, "mean_rank": float(found.mean() / args.draws),
            })  # fmt: skip
            print(
                f"{name}, {site}: chi2 {statistic:.1f} ({BINS - 1} degrees), p {p:.2f}", flush=True
            )
    return {"rows": rows}
