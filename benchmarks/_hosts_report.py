import json
from typing import Any

from ._report import machine, RESULTS


def _read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def numpyro() -> str:
    """Kernels inside NumPyro."""
    result = _read("numpyro")
    turns = result["second_run"]
    lines = [
        "`SamplerKernel(Gibbs())` inside `MCMC` against plain `sample`, after compilation"
        f" (`python -m benchmarks numpyro`; {machine(result)}, medians of"
        f" {result['arguments']['repeats']} rounds in one run):",
        "",
        "| model | chains | sweeps | `MCMC` | `sample` | ratio |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['model']} | {row['chains']} | {row['sweeps']} | {row['kernel']:.3f} s |"
        f" {row['sample']:.3f} s | {row['ratio']:.2f} |"
        for row in result["against_sample"]
    ]
    once, again = turns["object_second"], turns["function_second"]
    lines += [
        "",
        "Four chains of 2,100 sweeps of 20 spins: a second `run` of one `MCMC` object takes"
        f" {once['seconds']:.1f} s, nearly all of it compilation; a second call of a jitted"
        f" function that makes the object takes {again['seconds']:.2f} s and compiles"
        f" {again['compiled'] or 'nothing'}.",
        "",
        "Effective draws of 20 spins, the mean over spins, for 8,000 draws:",
        "",
        "| kernel | effective draws | a second | a second, compilation included |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{row['kernel']}` | {row['mean_ess']:,.0f} | {row['ess_a_second']:,.0f} |"
        f" {row['ess_a_second_with_compilation']:,.0f} |"
        for row in result["against_numpyro"]
    ]
    return "\n".join(lines)


def samplers() -> str:
    """Samplers of binary units."""
    result = _read("samplers")
    of = result["arguments"]
    lines = [
        "Effective draws of samplers of binary units, the fewest of those of the energy and of the"
        " distance to a random configuration. An evaluation is a pass over all weights: of the"
        " energy, of its gradient, or a sweep. The Ising model is a torus with couplings of"
        f" {of['coupling']}, the RBM was trained on stochastically binarised MNIST for"
        f" {of['epochs']} epochs of PCD-5. {of['chains']} chains of {of['steps']:,} steps, after as"
        f" many that do not count (`python -m benchmarks samplers --steps {of['steps']} --burn-in"
        f" {of['burn_in']}`; {machine(result)}, seed {of['seed']}):",
        "",
        "| model | sampler | effective draws a second | for each evaluation | accepted |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        share = f"{row['accepted']:.2f}" if row["accepted"] == row["accepted"] else ""
        lines.append(
            f"| {row['model']} | {row['sampler']} | {row['per_second']:,.0f} |"
            f" {row['per_evaluation']:.1e} | {share} |"
        )
    return "\n".join(lines)


def calibration() -> str:
    """Simulation-based calibration of the exchange kernel."""
    result = _read("exchange")
    of = result["arguments"]
    lines = [
        f"Simulation-based calibration: {of['runs']} runs, each with parameters from the prior and"
        f" {of['rows']} rows of a ring of {of['spins']} spins; χ² of the ranks of the true"
        f" parameters among {of['draws']} draws, in 20 bins (`python -m benchmarks exchange`):",
        "",
        "| kernel | parameter | χ², 19 degrees of freedom | p |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['kernel']} | {row['site']} | {row['chi2']:.1f} | {row['p']:.2f} |"
        for row in result["rows"]
    ]
    return "\n".join(lines)


def notebooks() -> str:
    """PGMax's notebooks, both ways."""
    result = _read("notebooks")
    names = {
        "rbm": "RBM, max-product, `MatrixBP`",
        "ising": "Ising, max-product, `BP`",
        "grid_mrf": "grid MRF, marginals and a gradient, `BP`",
        "deconvolution": "binary deconvolution, `BP`",
        "sdlp": "smooth dual of an RBM, PGMax's solver on a dense group",
    }
    lines = [
        "PGMax's example notebooks with generated weights and images, by PGMax and here: seconds to"
        " build, to compile and to run, and the largest relative difference of the results"
        f" (`python -m benchmarks notebooks`; {machine(result)}, float32, beside other work):",
        "",
        "| notebook | PGMax | here | difference |",
        "|---|---|---|---|",
    ]
    for row in result["rows"]:
        both = " | ".join(
            f"{row[way]['build_s']:.1f} + {row[way]['compile_s']:.1f} + {row[way]['run_s']:.2f}"
            for way in ("pgmax", "ours")
        )
        lines.append(f"| {names[row['notebook']]} | {both} | {row['largest_difference']:.1g} |")
    return "\n".join(lines)
