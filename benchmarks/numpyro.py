"""Kernels in NumPyro: against plain `sample`, a second run, and its own discrete sampler."""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import DiscreteHMCGibbs, HMC, MCMC

import ebmlearn as ebm
from ebmlearn.numpyro import SamplerKernel

from .bp import random_rbm, steady


COMPILED = "/jax/core/compile/backend_compile_duration"


def spins(number: int) -> ebm.BoltzmannMachine:
    """An Ising model with random couplings."""
    rng = np.random.default_rng(0)
    couplings = np.triu(rng.normal(size=(number, number)) / (2 * np.sqrt(number)), 1)
    return ebm.BoltzmannMachine.from_spins(
        jnp.asarray(couplings + couplings.T, jnp.float32), jnp.zeros(number)
    )


def drawing(kernel: Any, warmup: int, number: int, chains: int) -> Callable[..., Any]:
    """A function that runs chains together, and compiles once."""

    @jax.jit
    def draw(key: jax.Array, *args: Any) -> Any:
        mcmc = MCMC(
            kernel, num_warmup=warmup, num_samples=number, num_chains=chains,
            chain_method="vectorized", progress_bar=False,
        )  # fmt: skip
        mcmc.run(key, *args)
        return mcmc.get_samples(group_by_chain=True)

    return draw


def against_sample(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of a kernel inside `MCMC` and of plain `sample`, after compilation."""
    out = []
    key = jax.random.key(0)
    for name, model, number in (
        ("RBM 784x500", random_rbm(784, 500), args.sweeps),
        ("20 spins", spins(20), 20 * args.sweeps),
    ):
        draw = drawing(SamplerKernel(ebm.Gibbs()), 0, number, args.chains)

        def plain(model: Any = model, number: int = number) -> Any:
            return ebm.sample(
                model, ebm.Gibbs(), args.chains * number, key=key, num_chains=args.chains
            )

        def inside(model: Any = model, draw: Any = draw) -> Any:
            return draw(key, model)

        seconds = steady({"kernel": inside, "sample": plain}, args.repeats)
        row = {"model": name, "sweeps": number, "chains": args.chains, **seconds}
        row["ratio"] = seconds["kernel"] / seconds["sample"]
        out.append(row)
        print(f"{name}: {row['ratio']:.2f} times plain `sample`", flush=True)
    return out


def second_run(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds and compilations of two runs of one `MCMC` object, and of a function that makes
    one.
    """
    compiled: list[float] = []

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event == COMPILED:
            compiled.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    model, out = spins(20), {}
    mcmc = MCMC(
        SamplerKernel(ebm.Gibbs()), num_warmup=100, num_samples=2000, num_chains=4,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    draw = drawing(SamplerKernel(ebm.Gibbs()), 100, 2000, 4)
    for name, run in (
        ("object", lambda key: (mcmc.run(key, model), mcmc.get_samples())[1]),
        ("function", lambda key: draw(key, model)),
    ):
        for turn in ("first", "second"):
            del compiled[:]
            start = time.perf_counter()
            jax.block_until_ready(run(jax.random.key(len(out))))
            seconds = time.perf_counter() - start
            out[f"{name}_{turn}"] = {"seconds": seconds, "compiled": len(compiled)}
            print(f"{name}, {turn} run: {seconds:.2f} s, {len(compiled)} compilations", flush=True)
    return out


def bernoulli_sites(model: ebm.BoltzmannMachine) -> Callable[[], None]:
    """The same distribution as NumPyro's users write it."""

    def sites() -> None:
        n = model.bias.shape[0]
        x = numpyro.sample("x", dist.Bernoulli(0.5).expand([n]))
        numpyro.factor("energy", -model.energy(jnp.asarray(x)))

    return sites


def against_numpyro(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Effective draws a second and a sweep on 20 spins."""
    model = spins(20)
    kernels: dict[str, tuple[Any, tuple]] = {
        "Gibbs": (SamplerKernel(ebm.Gibbs()), (model,)),
        "DiscreteHMCGibbs(modified=True)": (
            DiscreteHMCGibbs(HMC(bernoulli_sites(model), trajectory_length=1.0), modified=True),
            (),
        ),
    }
    if "metropolised" in ebm.Gibbs.__dataclass_fields__:
        better: Any = ebm.Gibbs
        kernels["Gibbs(metropolised=True)"] = (SamplerKernel(better(metropolised=True)), (model,))
    out = []
    for name, (kernel, given) in kernels.items():
        try:
            draw = drawing(kernel, 100, args.draws, 4)
            start = time.perf_counter()
            jax.block_until_ready(draw(jax.random.key(0), *given))
        except ValueError:
            # It takes no batch of keys: chains are mapped over.
            draw = _mapped(kernel, args.draws)
            start = time.perf_counter()
            jax.block_until_ready(draw(jax.random.key(0), *given))
        first = time.perf_counter() - start
        times, samples = [], {}
        for k in range(args.repeats):
            start = time.perf_counter()
            samples = jax.block_until_ready(draw(jax.random.key(k), *given))
            times.append(time.perf_counter() - start)
        x = np.asarray(samples["x"], float)
        size = effective_sample_size(x)
        row = {
            "kernel": name, "draws": x.shape[0] * x.shape[1], "first_s": first,
            "seconds": float(np.median(times)), "mean_ess": float(size.mean()),
            "least_ess": float(size.min()),
        }  # fmt: skip
        row["ess_a_second"] = row["mean_ess"] / row["seconds"]
        row["ess_a_second_with_compilation"] = row["mean_ess"] / first
        out.append(row)
        print(
            f"{name}: {row['mean_ess']:.0f} effective of {row['draws']} draws,"
            f" {row['ess_a_second']:.0f} a second, {row['ess_a_second_with_compilation']:.0f} with"
            " compilation",
            flush=True,
        )
    return out


def _mapped(kernel: Any, draws: int) -> Callable[..., Any]:
    """Chains of a kernel that takes one key, mapped over."""

    @jax.jit
    def draw(key: jax.Array) -> Any:
        def one(key: jax.Array) -> Any:
            mcmc = MCMC(kernel, num_warmup=100, num_samples=draws, progress_bar=False)
            mcmc.run(key)
            return mcmc.get_samples()

        return jax.vmap(one)(jax.random.split(key, 4))

    return draw


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chains", type=int, default=100)
    parser.add_argument("--sweeps", type=int, default=20)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)


def main(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "against_sample": against_sample(args),
        "second_run": second_run(args),
        "against_numpyro": against_numpyro(args),
    }
