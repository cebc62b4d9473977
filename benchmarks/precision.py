"""Float32 against float64: the largest difference of a belief, over weights of all magnitudes."""

import argparse
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np

import ebmlearn as ebm


# The place of this switch depends on the version of JAX.
x64: Any = jax.enable_x64 if hasattr(jax, "enable_x64") else vars(jax.experimental)["enable_x64"]
MAGNITUDES = (4.0, 8.0, 12.0, 16.0, 20.0, 30.0, 100.0, 800.0, 1000.0)
REGIMES = ("half", "saturated", "clamped")
# Without fields that decide every unit, BP on strong weights of random signs need not settle, and
# its tenth sweep depends on the last bit of the parameters. Shown beside what that bit does.
FRUSTRATED = ("contested", "frustrated")


def problem(magnitude: float, regime: str, dtype: str, seed: int = 0):
    """A random RBM with weights ±`magnitude`, and evidence on it.

    - `half`: the strong weights are a spanning tree whose two best configurations nearly balance,
      by biases that cancel all but a small field; all other weights are weak. So beliefs lie near
      one half although every message is as large as it can be.
    - `saturated`: all weights strong, and fields that decide every unit.
    - `clamped`: the same with half of the visible units observed.
    - `contested`: normal fields about as strong as the messages, so that a few units are undecided.
    - `frustrated`: all weights strong, weak fields.

    Parameters are rounded to float32 in either dtype, so that the models are the same.
    """
    rng = np.random.default_rng(seed)
    visible, hidden = 24, 17
    weights = magnitude * rng.choice([-1.0, 1.0], size=(visible, hidden))
    fields = rng.normal(size=visible), rng.normal(size=hidden)
    evidence = observed = None
    if regime == "half":
        tree = np.zeros((visible, hidden), bool)
        joined: tuple[list[int], list[int]] = [0], [0]
        tree[0, 0] = True
        units = [(0, i) for i in range(1, visible)] + [(1, j) for j in range(1, hidden)]
        for k in rng.permutation(len(units)):
            side, unit = units[k]
            other = int(rng.choice(joined[1 - side]))
            tree[(unit, other) if side == 0 else (other, unit)] = True
            joined[side].append(unit)
        # Uneven weights, so that sums of halves of them are not exact in float32.
        weights = weights * rng.uniform(0.9, 1.0, weights.shape)
        weak = 1e-3 * rng.normal(size=weights.shape)
        weights = np.where(tree, weights, weak).astype(np.float32).astype(np.float64)
        balance = -weights.sum(1) / 2, -weights.sum(0) / 2
        fields = tuple(a + 0.05 * b for a, b in zip(balance, fields, strict=True))
    elif regime == "contested":
        strength = 1 + magnitude * np.sqrt(hidden)
        fields = strength * fields[0], strength * fields[1]
    elif regime not in FRUSTRATED:
        strength = 4 + magnitude * np.sqrt(visible)
        fields = tuple(strength * np.sign(x) * (1 + np.abs(x)) for x in fields)
    if regime == "clamped":
        evidence = (rng.random(visible) < 0.5).astype(np.float32)
        observed = np.arange(visible) % 2 == 0
    rounded = [np.asarray(x, np.float32) for x in (weights, *fields)]
    rbm = ebm.RBM(*(jnp.asarray(x, dtype) for x in rounded))
    return rbm, evidence, observed


def beliefs(magnitude: float, regime: str, dtype: str, seed: int, ulps: float = 0.0) -> np.ndarray:
    """Beliefs of all units, the parameters changed at random by up to `ulps` float32 roundings."""
    with x64(dtype == "float64"):
        rbm, evidence, observed = problem(magnitude, regime, dtype, seed)
        if ulps:
            rng = np.random.default_rng(seed)
            eps = ulps * float(np.finfo(np.float32).eps) / 2
            rbm = jax.tree.map(lambda x: x * (1 + eps * rng.uniform(-1, 1, x.shape)), rbm)
        out = ebm.BP(iterations=10)(rbm, evidence, observed)
        return np.concatenate([out.visible, out.hidden]).astype(np.float64)


def main(args: argparse.Namespace) -> dict:
    rows = []
    for magnitude in MAGNITUDES:
        row: dict = {"magnitude": magnitude}
        for regime in (*REGIMES, *FRUSTRATED):
            exact = [beliefs(magnitude, regime, "float64", seed) for seed in range(args.seeds)]
            single = [beliefs(magnitude, regime, "float32", seed) for seed in range(args.seeds)]
            row[regime] = float(np.abs(np.array(exact) - np.array(single)).max())
            row[f"{regime}_unsure"] = float((np.abs(np.array(exact) - 0.5) < 0.4).mean())
            if regime in FRUSTRATED:
                seeds = range(args.seeds)
                moved = [beliefs(magnitude, regime, "float64", seed, 1.0) for seed in seeds]
                row[f"{regime}_ulp"] = float(np.abs(np.array(exact) - np.array(moved)).max())
        rows.append(row)
    print(f"largest |float32 - float64| of a belief, 10 sweeps, {args.seeds} random 24x17 RBMs;")
    print("in brackets the share of beliefs between 0.1 and 0.9;")
    print("last columns: float64 against itself, parameters changed by one float32 rounding")
    columns = (*REGIMES, *FRUSTRATED)
    print(
        f"{'|W|':>6}"
        + "".join(f"{name:>18}" for name in columns)
        + "".join(f"{name + ', 1 ulp':>19}" for name in FRUSTRATED)
    )
    for row in rows:
        cells = [f"{row[name]:.1e} ({row[f'{name}_unsure']:4.0%})" for name in columns]
        line = "".join(f"{cell:>18}" for cell in cells)
        moved = "".join(f"{row[f'{name}_ulp']:>19.1e}" for name in FRUSTRATED)
        print(f"{row['magnitude']:>6.0f}{line}{moved}")
    return {"rows": rows, "seeds": args.seeds}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=20)
