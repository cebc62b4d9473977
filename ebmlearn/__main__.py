"""Trains conditional RBMs with four learners to clean noisy 8×8 digits, prints their error rates
and draws the cleaned digits.
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import _extras, datasets


NOISE = 0.15
EPOCHS = 60
HIDDEN = 64
BATCH = 50
# Learner, hidden units, learning rate.
LEARNERS: dict[str, tuple[ebm.learners.AbstractLearner, int, float]] = {
    "logistic regression": (ebm.MLE(ebm.BP(iterations=1)), 0, 1e-2),
    "CD-10": (ebm.CD(10, start="random"), HIDDEN, 1e-2),
    "MLE-BP": (ebm.MLE(ebm.BP(iterations=10)), HIDDEN, 1e-2),
    "MSSVM": (ebm.MSSVM(ebm.BP(iterations=10, product="mixed")), HIDDEN, 1e-2),
}


def noisy(v: jax.Array, *, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Pairs of noisy and clean digits, with new noise at each call."""
    return datasets.flip(v, NOISE, key=key), v


def train(
    name: str, data: datasets.Dataset, valid: tuple, epochs: int, progress: bool
) -> ebm.Fitted:
    learner, hidden, rate = LEARNERS[name]
    steps = epochs * (len(data.train.x) // BATCH)
    return ebm.fit(
        ebm.CRBM.init(visible=64, hidden=hidden, features=64, key=jax.random.key(0)),
        learner,
        data.train.x,
        augment=noisy,
        optimizer=optax.adam(optax.cosine_decay_schedule(rate, steps)),
        average=0.99,
        epochs=epochs,
        batch_size=BATCH,
        validation=valid,
        key=jax.random.key(1),
        progress=progress,
    )


def picture(images: dict[str, np.ndarray], path: Path, columns: int = 7) -> None:
    """Draws digits in rows, wrong pixels in colour."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    clean = images["original"]
    size = columns * 0.62 + 1.7, len(images) * 0.66
    figure, grid = plt.subplots(len(images), columns, figsize=size, layout="constrained")
    for axes, (name, rows) in zip(grid, images.items(), strict=True):
        for k, ax in enumerate(axes):
            # 0 white, 1 black; wrongly 1 orange, wrongly 0 blue.
            shades = np.array([[255, 255, 255], [40, 40, 40], [222, 108, 28], [60, 120, 200]])
            wrong = rows[k] != clean[k]
            kind = np.where(wrong, 3 - rows[k], rows[k]).astype(int)
            ax.imshow(shades[kind].reshape(8, 8, 3).astype(np.uint8))
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set(color="0.8", linewidth=0.6)
        axes[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=12)
    colours = "orange: wrongly on, blue: wrongly off"
    figure.suptitle(f"Digits with {NOISE:.0%} of the pixels flipped\n({colours})", fontsize=12)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ebmlearn", description=__doc__)
    path = Path("ebmlearn-demo.png")
    parser.add_argument("--output", type=Path, default=path, help=f"by default {path}")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"by default {EPOCHS}")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    which = "which learners, by default all"
    parser.add_argument(
        "--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS), help=which
    )
    args = parser.parse_args()
    if args.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {args.epochs}")
    try:
        _extras.need("python -m ebmlearn", "data", "plot")
    except ImportError as error:
        raise SystemExit(f"error: {error}") from None
    data = datasets.digits()
    valid_key, test_key = jax.random.split(jax.random.key(2))
    valid = noisy(jnp.asarray(data.valid.x), key=valid_key)
    x, v = noisy(jnp.asarray(data.test.x), key=test_key)
    print(f"{len(data.train.x)} digits of 8x8 pixels, {NOISE:.0%} of them flipped in each epoch;")
    print(f"conditional RBMs with {HIDDEN} hidden units, {args.epochs} epochs\n")
    images = {"original": np.asarray(v), "noisy": np.asarray(x)}
    lines, worse = [], []
    for name in args.learners:
        learner, _, _ = LEARNERS[name]
        began = time.perf_counter()
        fitted = train(name, data, valid, args.epochs, not args.quiet)
        found = learner.predict(fitted.model, x, epoch=fitted.best_epoch)
        images[name] = np.asarray(found)
        every = ebm.error_rate(found, v)
        changed = ebm.error_rate(found, v, where=x != v)
        seconds = time.perf_counter() - began
        if every > ebm.error_rate(x, v):
            worse.append(name)
        lines.append(f"{name:20} {every:10.2%} {changed:16.2%} {seconds:12.1f}")
    print(f"\n{'':20} {'test error':>10} {'of changed ones':>16} {'seconds':>12}")
    print(f"{'left as it came':20} {ebm.error_rate(x, v):10.2%} {1:16.2%}")
    print("\n".join(lines))
    if worse:
        names = ", ".join(worse)
        print(
            f"\nWorse than the noisy digits: {names}. Train longer; the default is {EPOCHS} epochs."
        )
    picture(images, args.output)
    print(f"\nwrote {args.output}")


if __name__ == "__main__":
    main()
