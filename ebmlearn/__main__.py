"""The demonstration: how exact belief propagation and mean field are, and how fast."""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from . import BP, Exact, MeanField, RBM


SCALES = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
VISIBLE, HIDDEN, MODELS = 12, 8, 50
INFERENCES = {"BP": BP(iterations=200, tol=1e-5), "mean field": MeanField(iterations=200, tol=1e-5)}


def random_rbm(scale: jax.Array, key: jax.Array) -> RBM:
    """A random RBM, its weights of standard deviation `scale` and its biases of 1."""
    one, two, three = jax.random.split(key, 3)
    return RBM(
        scale * jax.random.normal(one, (VISIBLE, HIDDEN)),
        jax.random.normal(two, (VISIBLE,)),
        jax.random.normal(three, (HIDDEN,)),
    )


@jax.jit
def errors(scale: jax.Array, keys: jax.Array) -> dict[str, tuple[jax.Array, jax.Array, jax.Array]]:
    """For each inference and key: the mean error of a marginal of a random model, the error of
    log Z, and whether it converged.
    """

    def one(key: jax.Array):
        rbm = random_rbm(scale, key)
        exact = Exact()(rbm)
        out = {}
        for name, inference in INFERENCES.items():
            beliefs = inference(rbm)
            gap = jnp.abs(beliefs.visible - exact.visible).mean()
            out[name] = gap, beliefs.log_partition - exact.log_partition, beliefs.converged
        return out

    return jax.vmap(one)(keys)


def accuracy() -> list[dict[str, float]]:
    """Prints and returns the errors against the strength of the coupling."""
    print(f"{MODELS} random RBMs of {VISIBLE}x{HIDDEN} units at each strength of coupling,")
    print("against exact enumeration (mean error of a visible marginal; of log Z; converged)\n")
    print("coupling |" + "".join(f"{name:^34}|" for name in INFERENCES))
    rows = []
    keys = jax.random.split(jax.random.key(0), MODELS)
    for scale in SCALES:
        row: dict[str, float] = {"scale": scale}
        cells = []
        for name, (gap, log_z, converged) in errors(jnp.asarray(scale), keys).items():
            row[f"{name} marginal"] = float(gap.mean())
            row[f"{name} log Z"] = float(log_z.mean())
            row[f"{name} converged"] = share = float(converged.mean())
            cells.append(f"{gap.mean():12.5f}{log_z.mean():12.4f}{share:9.0%} |")
        print(f"{scale:8.2f} |" + "".join(cells))
        rows.append(row)
    return rows


def speed(visible: int = 784, hidden: int = 500, repeats: int = 10) -> float:
    """Prints and returns the milliseconds of ten sweeps on one large RBM."""
    rbm = RBM.init(visible, hidden, key=jax.random.key(0), scale=0.1)
    bp = BP(iterations=10)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(bp(rbm).log_odds)
        times.append(time.perf_counter() - start)
    fastest = 1e3 * float(np.median(times[1:]))
    device = jax.devices()[0]
    print(
        f"\n10 sweeps of belief propagation on {visible}x{hidden} units: {fastest:.1f} ms on ",
        end="",
    )
    print(f"{device.platform} ({times[0]:.1f} s the first time, to compile)")
    return fastest


def picture(rows: list[dict[str, float]], path: Path) -> None:
    """Draws the errors against the strength of the coupling."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    scales = [row["scale"] for row in rows]
    for name, colour in zip(INFERENCES, ("C0", "C1"), strict=True):
        left.plot(scales, [row[f"{name} marginal"] for row in rows], "o-", color=colour, label=name)
        right.plot(scales, [row[f"{name} log Z"] for row in rows], "o-", color=colour, label=name)
    left.set(xscale="log", yscale="log", ylabel="mean error of a visible marginal")
    right.set(xscale="log", ylabel="estimate of log Z, less the exact one")
    right.axhline(0, color="0.6", linewidth=1)
    for axes in (left, right):
        axes.set_xlabel("standard deviation of the weights")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.suptitle(f"{MODELS} random RBMs of {VISIBLE}×{HIDDEN} units, against exact enumeration")
    figure.savefig(path, dpi=150)
    plt.close(figure)
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ebmlearn", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("ebmlearn-demo.png"))
    args = parser.parse_args()
    rows = accuracy()
    speed()
    picture(rows, args.output)


if __name__ == "__main__":
    main()
