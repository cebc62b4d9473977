"""Ising models of the experiments, and an exact partition function of the torus."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import ebmlearn as ebm


def torus(side: int, theta: float) -> np.ndarray:
    """The couplings of a square lattice that closes on itself, for E = -½ sᵀJs."""
    place = np.arange(side * side).reshape(side, side)
    couplings = np.zeros((side * side, side * side), np.float32)
    for near in (np.roll(place, 1, 0), np.roll(place, 1, 1)):
        couplings[place, near] = couplings[near, place] = theta
    return couplings


def random_graph(units: int, degree: float, spread: float, seed: int) -> np.ndarray:
    """The couplings of an Erdős–Rényi graph of this mean degree, normal of this deviation."""
    rng = np.random.default_rng(seed)
    joined = rng.random((units, units)) < degree / (units - 1)
    upper = np.triu(joined * rng.normal(0, spread, (units, units)), 1)
    return (upper + upper.T).astype(np.float32)


def spins(couplings: np.ndarray, field: np.ndarray | None = None) -> ebm.BoltzmannMachine:
    """An Ising model."""
    field = np.zeros(len(couplings), np.float32) if field is None else field
    return ebm.BoltzmannMachine.from_spins(jnp.asarray(couplings), jnp.asarray(field))


def free_spins(
    units: int,
) -> tuple[Callable[[dict[str, jax.Array]], ebm.BoltzmannMachine], dict[str, jax.Array]]:
    """A fully connected Ising model as a function of the parameters of spins, and these at zero."""

    def build(free: dict[str, jax.Array]) -> ebm.BoltzmannMachine:
        couplings = (free["couplings"] + free["couplings"].T) / 2 * (1 - jnp.eye(units))
        return ebm.BoltzmannMachine.from_spins(couplings, free["field"])

    return build, {"couplings": jnp.zeros((units, units)), "field": jnp.zeros(units)}


def exchanged(model: ebm.BoltzmannMachine) -> float:
    """What log Z of the model of zeros and ones has more than that of the spins."""
    couplings, field = model.to_spins()
    return float(field.sum() - couplings.sum() / 2)


def log_partition_of_torus(side: int, theta: float) -> float:
    """Log Z of the spins of a torus, exactly, by the transfer matrix T of its rows: the trace of
    Tᴸ. Rows that are each other's rotation or reversal of all spins have the same diagonal entry,
    so that one of each kind is enough.
    """
    states = np.arange(2**side)
    bits = (states[:, None] >> np.arange(side)) & 1
    s = 2 * bits - 1
    root = np.exp(theta * (s * np.roll(s, 1, 1)).sum(1) / 2)  # half of what joins a row

    kinds = states.copy()
    for turned in (bits, 1 - bits):
        for k in range(side):
            kinds = np.minimum(kinds, np.roll(turned, k, 1) @ (1 << np.arange(side)))
    chosen, counts = np.unique(kinds, return_counts=True)

    same, other = np.exp(theta), np.exp(-theta)

    def applied(x: np.ndarray) -> np.ndarray:
        x = root[:, None] * x
        for k in range(side):
            pairs = x.reshape(2 ** (side - 1 - k), 2, 2**k * x.shape[1])
            low, high = pairs[:, 0].copy(), pairs[:, 1].copy()
            pairs[:, 0] = same * low + other * high
            pairs[:, 1] = other * low + same * high
        return root[:, None] * x

    total = scale = 0.0
    for part in np.array_split(np.arange(len(chosen)), max(1, len(chosen) // 300)):
        x = np.zeros((2**side, len(part)))
        x[chosen[part], np.arange(len(part))] = 1
        log = 0.0
        # T is symmetric: half of the power on either side.
        for _ in range(side // 2):
            x = applied(x)
            log += np.log(x.max())
            x /= x.max()
        y = applied(x) if side % 2 else x
        diagonal = ((x * y).sum(0) * counts[part]).sum()
        if total == 0:
            scale = 2 * log
        total += diagonal * np.exp(2 * log - scale)
    return float(np.log(total) + scale)


def chains(model: ebm.BoltzmannMachine, number: int, sweeps: int, key: jax.Array) -> jax.Array:
    """Samples by so many sweeps of Gibbs, a chain for each."""
    drawn = ebm.sample(model, ebm.Gibbs(), number, key=key, num_chains=number, burn_in=sweeps - 1)
    return drawn.x
